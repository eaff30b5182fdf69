"""Networks as their relaxed entries alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from softhull.branch.cut_leaves import CutLeaves
from softhull.graph.builder import GraphBuilder
from softhull.graph.operator import Lines
from softhull.propagate import spread
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.regions import Perturbation
from tests.propagate.networks import random_attention

from .cells import KINDS, random_inner


@cache
def prepared(seed: int, kind: str) -> tuple[CutLeaves, torch.Tensor]:
    problem = random_inner(seed, kind, sharpen=True)
    assert isinstance(problem.bounds, CutLeaves)
    with torch.no_grad():
        problem.bounds.roots()
    return problem.bounds, problem.points()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_functions_between_relaxed_entries_hold(seed: int, kind: str) -> None:
    leaves, x = prepared(seed, kind)
    (root,) = leaves.parts.values()
    skeleton = root.skeleton
    if skeleton is None:
        assert not len(root.warm.lower)  # nothing is relaxed
        return
    values = root.graph.values(x)
    given, inside = (x.new_zeros(len(x), skeleton.count) for _ in range(2))
    for index, part in skeleton.relaxed.items():
        given[:, part.every] = values[index].flatten(1)[:, part.entries]
        inside[:, part.every] = (x if part.before < 0 else values[part.before]).flatten(1)[:, part.entries]
    margin = (values[-1].flatten(1) * leaves.rows.flatten()).sum(1)
    pairs = []
    for layer in skeleton.layers.values():
        z = inside[:, layer.every]
        pairs.append((torch.cat((z, -z), 1), layer.functions))
    for true, found in [*pairs, (margin[:, None], leaves.starts[0])]:
        below = x.flatten(1) @ found.on_input.T + given @ found.on_values.T + found.constant
        assert bool((below <= true + 1e-12 * (1 + found.size)).all())  # what rounding makes of both here
        if kind != "attention":  # exact but for rounding: all is affine between activations
            assert bool((below >= true - 1e-9 * (1 + found.size)).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_a_walk_over_the_functions_is_below_the_network_for_any_lines(seed: int, kind: str) -> None:
    leaves, x = prepared(seed, kind)
    (root,) = leaves.parts.values()
    if root.skeleton is None:
        return
    values, generator = root.graph.values(x), torch.Generator().manual_seed(seed)
    least = float((values[-1].flatten(1) * leaves.rows.flatten()).sum(1).min())
    lower, upper = root.warm.lower, root.warm.upper
    for _ in range(20):
        free = torch.rand(2, 1, len(lower), generator=generator, dtype=lower.dtype)
        found = [
            part.operator.lines(lower[None, part.every], upper[None, part.every], free[:, :, part.every])
            for part in root.relaxed.values()
        ]
        names = ("lower_slope", "lower_offset", "upper_slope", "upper_offset")
        lines = Lines(*(torch.cat([getattr(each, name) for each in found], 1) for name in names))
        claim, _ = root.skeleton.back(leaves.starts[0], lines, torch.zeros_like(lower[None]))
        assert float(root.bounds.input_minimum(claim)) <= least


def test_more_cells_by_functions_are_as_good_as_those_by_walks() -> None:
    """On feedforward networks both are the same relaxation."""
    for seed in range(4):
        with torch.no_grad():
            by_walks, by_functions = (random_inner(seed, "relu", sharpen).bounds for sharpen in (False, True))
            one, other = by_walks.roots()[0].bound, by_functions.roots()[0].bound
        assert other >= one - 1e-3 * (1 + abs(one))


@pytest.mark.parametrize("norm", [float("inf"), 2, 1])
@pytest.mark.parametrize("seed", range(2))
def test_lines_that_are_mixed_move_no_further_than_their_ellipsoids_say(seed: int, norm: float) -> None:
    rng = np.random.default_rng([seed, 21])
    graph = random_attention(rng)
    centre = torch.from_numpy(rng.uniform(0, 1, (2, *graph.input_shape)))
    region = Perturbation(float(rng.uniform(0.05, 0.4)), norm=norm).around(centre)
    bounds = LinearBounds(graph, region, SecondOrder().linear).jointly()
    last = len(graph.nodes) - 1
    rows = torch.from_numpy(rng.normal(size=(3, 1, *graph.output_shape)))
    with torch.no_grad():
        low = bounds.lower(last, rows)
        apart = LinearBounds(graph, region, SecondOrder().linear).lower(last, rows)
    x = sampled(rng, centre, region.lower, region.upper, norm)
    for instance in range(2):
        value = (graph(x[instance]).flatten(1) @ rows.flatten(1).T).min(0).values
        assert bool((low[:, instance] <= value).all())
    assert bool(low.isfinite().all() | ~apart.isfinite().all())
    known = [(index, flipped) for flipped, kind in enumerate(spread.KINDS) for index in bounds.knowledge.known(kind)]
    for index, flipped in known:
        facts = spread.spread(bounds, index, bool(flipped))
        weights = torch.from_numpy(rng.normal(size=(5, 2, *facts.middle.shape[1:-2], 1, facts.middle.shape[-1])))
        reach = facts.reach(weights)
        for instance in range(2):
            lines = graph.values(x[instance])[index]
            lines = lines.mT if flipped else lines
            moved = (weights[:, instance, None] @ (lines - facts.middle[instance]).mT).abs().amax(1)
            assert bool((moved <= reach[:, instance]).all())


def sampled(
    rng: np.random.Generator, centre: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor, norm: float
) -> torch.Tensor:
    """Points ``[2, 500, *shape]`` of both regions, corners among them."""
    n = centre[0].numel()
    noise = rng.uniform(-1, 1, (500, n))
    noise[::2] = np.sign(noise[::2])
    if norm == 2:
        noise = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    if norm == 1:
        noise = noise / np.abs(noise).sum(1, keepdims=True)
        noise[:n], noise[n : 2 * n] = np.eye(n), -np.eye(n)
    away = torch.from_numpy(noise).reshape(1, 500, *centre.shape[1:]) * (1 - 1e-12)
    radius = ((upper - lower) / 2)[:, None]
    return centre[:, None] + away * radius


def test_a_network_without_relaxed_entries_has_no_functions() -> None:
    b = GraphBuilder((1, 3))
    graph = b.finish(b.linear(-1, torch.ones(3, 2, dtype=torch.float64)))
    region = Perturbation(0.1).around(torch.zeros(1, 1, 3, dtype=torch.float64))
    bounds = LinearBounds(graph, region, SecondOrder().linear)
    rows = torch.ones(1, *graph.output_shape, dtype=torch.float64)
    leaves = CutLeaves(bounds, torch.zeros(1, dtype=torch.long), rows, torch.zeros(1, dtype=torch.float64), True)
    with torch.no_grad():
        (found,) = leaves.roots()
    assert found.bound <= -0.6 <= found.bound + 1e-9
    assert leaves.parts[0].skeleton is None
