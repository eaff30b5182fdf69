"""Forms of all nodes by one pass: whatever they say of encoders with real normalisation holds, without tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.concat import Concat
from softhull.graph.ops.relu import LeakyRelu, Relu
from softhull.graph.ops.softmax import Softmax
from softhull.propagate import zonotopes
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.second_order.rules import NoAffineForms
from softhull.propagate.shadow import shadow
from softhull.propagate.token_balls import known_by_token_balls
from softhull.propagate.zonotopes import Zonotopes, known_by_forms, worth_forms
from softhull.regions import Perturbation, Region
from tests.graph.random_graphs import random_graph
from tests.propagate.checks import points_of
from tests.propagate.test_shadow import encoder, one_token

Make = Callable[[LinearBounds], LinearBounds]


def violations(graph: Graph, region: Region, seed: int, make: Make = known_by_forms) -> int:
    """How many sampled values lie outside of ranges, functions of the input, differences of logits and rows."""
    rounded, last = graph.to(region.lower.dtype, "cpu"), len(graph.nodes) - 1
    bounds = make(LinearBounds(rounded, region, Linear()))
    C = torch.randn((4, 1, *graph.output_shape), dtype=region.lower.dtype)
    low, high = bounds.between(last, C)
    points = points_of(region, seed, 120)[:, 0].double()
    values, C = graph.values(points), C.double()
    count, tiny = 0, 1e-12 if region.lower.dtype == torch.float64 else 1e-5

    def outside(least: Tensor, value: Tensor, most: Tensor) -> int:
        seen = (most > least + tiny).expand(value.shape)  # of what does not move the value is as rounded as its bounds
        return int((~((least <= value) & (value <= most)) & seen).sum())

    for index, value in enumerate(values):
        count += outside(bounds.interval(index)[0], value, bounds.interval(index)[1])
        found = shadow(bounds, index)
        assert found is not None
        x = points.flatten(1)[:, found.moving]
        least = x @ found.below[0].double().T + found.below_offset
        most = x @ found.above[0].double().T + found.above_offset
        count += outside(least, value.flatten(1), most)
        if isinstance(operator := graph.nodes[index].operator, Softmax):
            logits = values[graph.nodes[index].inputs[0]].movedim(operator.axis + 1, -1)
            rows = logits.reshape(len(points), -1, logits.shape[-1])
            known = bounds.differences(index)
            assert known is not None
            count += outside(known[0], rows[..., :, None] - rows[..., None, :], known[1])
    met = torch.einsum("sk,pk->ps", C.flatten(1), values[last].flatten(1))
    return count + outside(low[:, 0], met, high[:, 0])


@pytest.mark.parametrize(("norm", "walked"), [(math.inf, False), (2, False), (1, False), (math.inf, True)])
def test_forms_hold(norm: float, walked: bool) -> None:
    rng = np.random.default_rng(3)
    for depth, centred in ((1, False), (2, True), (6, True)):
        graph = encoder(rng, depth, centred, 2, 4)
        for eps in (1e-6, 0.2, 30.0) if depth < 6 else (0.003,):
            make = partial(known_by_forms, walked=walked)
            assert violations(graph, one_token(rng, graph, eps, norm), depth, make) == 0


def held(found: Callable[[Graph, Region, int], int], seeds: int) -> int:
    """How many of so many random networks have forms, of which none is violated."""
    made = 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng)
        eps = float(rng.choice((1e-3, 0.05, 0.5)))
        region = Perturbation(eps).around(torch.from_numpy(rng.normal(size=(1, *graph.input_shape))))
        try:
            assert found(graph, region, seed) == 0
        except NoAffineForms:
            continue
        made += 1
    return made


def test_forms_of_random_networks_hold() -> None:
    assert held(violations, 20) > 5


@pytest.mark.parametrize("planted", ["_joint", "_mean_square", "radius_of"])
def test_a_planted_error_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def less(self, *given):
        found = true_rule(self, *given)
        return tuple(end * 0.3 for end in found) if isinstance(found, tuple) else found * 0.3

    true_rule = getattr(Zonotopes, planted)
    monkeypatch.setattr(zonotopes.Zonotopes, planted, less)
    rng = np.random.default_rng(5)
    graph = encoder(rng, 2, True)
    assert any(violations(graph, one_token(rng, graph, eps, math.inf), 5) for eps in (0.05, 0.2, 0.5))


def test_no_cliff_and_no_walk_but_that_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the region is, bounds fall to those of normalised rows and no further; nothing is walked before."""
    rng = np.random.default_rng(8)
    graph = encoder(rng, 2, True)
    C = torch.tensor([1.0, -1.0], dtype=torch.float64).reshape(1, 1, *graph.output_shape)
    matrix = graph.nodes[-1].operator.matrix  # type: ignore[attr-defined]
    limit = math.sqrt(6) * float((matrix @ C.flatten()).norm())
    walks: list[int] = []
    walk = LinearBounds._walk

    def seen(self: LinearBounds, index: int, *rest: Any) -> Any:
        walks.append(index)
        return walk(self, index, *rest)

    monkeypatch.setattr(LinearBounds, "_walk", seen)
    for eps in (0.01, 1.0, 1e3, 1e6):
        bounds = known_by_forms(LinearBounds(graph, one_token(rng, graph, eps, math.inf), Linear()))
        assert float(bounds.lower(len(graph.nodes) - 1, C)) >= -limit - 1e-9
    assert set(walks) == {len(graph.nodes) - 1}


def test_small_networks_are_walked() -> None:
    rng = np.random.default_rng(9)
    graph = encoder(rng, 2, True)
    assert not worth_forms(LinearBounds(graph, one_token(rng, graph, 0.1, math.inf), Linear()))


def at_the_edge(name: str) -> tuple[Graph, Region]:
    """Networks and regions with numbers near the ends of single precision, all of them moderate in the end."""
    b, x, eps, norm = GraphBuilder((1, 8)), 1.5, 0.5, math.inf
    if name == "products":
        y = b.scale(-1, 1e-30, 0.0)
        y = b.scale(b.scale(b.product(y, y), 1e30, 0.0), 1e30, 0.0)
    elif name == "factors":
        y = b.scale(b.scale(b.scale(b.scale(-1, 1e-30, 0.0), 1e-30, 0.0), 1e30, 0.0), 1e30, 0.0)
    elif name == "slopes":
        y = b.elementwise(LeakyRelu(1e-30), b.scale(-1, -1e-30, 0.0))
        y = b.scale(b.scale(y, 1e30, 0.0), 1e30, 0.0)
    elif name == "lengths":
        x, eps, norm = 0.0, 1e-24, 2
        y = b.scale(b.linear(-1, torch.ones(8, 2, dtype=torch.float64)), 1e24, 0.0)
    elif name == "quotients":
        x, eps = 0.0, 1e38
        y = b.scale(b.scale(-1, 1e-20, 0.0), 1e-23, 0.0)
    else:
        x, eps = 0.0, 1e38
        signs = torch.tensor([[1.0], [-1.0]] * 4, dtype=torch.float64)
        y = b.sum_of(b.linear(b.elementwise(Relu(), -1), 4 * signs), b.linear(-1, -2 * signs))
        y = b.scale(b.add(Concat(1, (None, None)), y, y), 1e-38, 0.0)
    return b.finish(y), Perturbation(eps, norm).around(torch.full((1, 1, 8), x))


@pytest.mark.parametrize("name", ["products", "factors", "slopes", "lengths", "quotients", "infinite errors"])
@pytest.mark.parametrize("make", [known_by_forms, known_by_token_balls])
def test_numbers_at_the_edge_of_the_format(name: str, make: Make) -> None:
    """What vanishes or overflows on the way is not forgotten."""
    graph, region = at_the_edge(name)
    bounds = make(LinearBounds(graph.to(torch.float32, "cpu"), region, Linear()))
    points = points_of(region, 1)[:, 0].double()
    for index, value in enumerate(graph.values(points)):
        low, high = bounds.interval(index)
        assert bool(((low <= value) & (value <= high)).all())
        found = shadow(bounds, index)
        assert found is not None
        x = points.flatten(1)[:, found.moving]
        most = x @ found.above[0].double().T + found.above_offset
        assert bool((~(most < value.flatten(1))).all())
