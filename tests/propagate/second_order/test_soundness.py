"""No point of a region violates a claim of second order: score differences, probabilities, rows, margins."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

from softhull.attack.pgd import minimize_margin
from softhull.errors import DomainError
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.perturbation import Perturbation
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from tests.graph.random_graphs import random_graph
from tests.propagate.checks import points_of
from tests.propagate.networks import random_attention

NETWORKS = int(os.environ.get("SOFTHULL_RANDOM_NETWORKS", "4"))
NORMS = (math.inf, math.inf, 2, 1)
# What is checked is itself evaluated in floating point.
ROUNDING = 1e-10


def _assert_at_most(low, value):
    assert not low.isnan().any()
    slack = ROUNDING * (1 + value.abs().nan_to_num(posinf=0.0))
    assert bool((low <= value + slack).all())


def _adversaries(second, rows, instances, region):
    """Inputs where the linear part of a quadratic, and the whole, are small."""
    quadratic = second.quadratic(rows, instances)
    inputs = second.forms.noise.inputs
    centre, radius = (region.lower + region.upper) / 2, (region.upper - region.lower) / 2
    if region.centre is not None:
        centre, radius = region.centre, torch.full_like(region.lower, float(region.eps))
    corners = [-quadratic.linear.sign()]
    if quadratic.maps:
        corners.append(quadratic.corner())
    for corner in corners:
        x = centre[instances] + radius[instances] * corner[:, :inputs].reshape(-1, *centre.shape[1:])
        yield region.take(instances).project(x)


def _check(graph, region, seed):
    """Every claim at sampled points, corners, minimisers and attacked points; returns how many specifications."""
    generator = torch.Generator().manual_seed(seed)
    B = region.size
    bounds = LinearBounds(graph, region, SecondOrder().linear)
    second = SecondOrderBounds(bounds)
    S = 3
    C = torch.randn((S, B, *graph.output_shape), generator=generator, dtype=region.lower.dtype)
    row, instance = (t.flatten() for t in torch.meshgrid(torch.arange(S), torch.arange(B), indexing="ij"))
    rows = C[row, instance]
    never = torch.full((len(row),), math.inf, dtype=region.lower.dtype)
    lows = [second.lower(rows, instance, 6, never, fitted) for fitted in (False, True)]
    points = list(points_of(region, seed, count=30))
    intervals = {i: second.forms.interval(i) for i in second.forms.known()}
    for x in points:
        values = graph.values(x)
        for i, (least, most) in intervals.items():
            value = values[i] if i >= 0 else x
            _assert_at_most(least, value)
            _assert_at_most(-most, -value)
        for i, scores in second.forms.scores.items():
            node = graph.nodes[i]
            assert isinstance(node.operator, Softmax)
            found = values[node.inputs[0]].movedim(node.operator.axis + 1, -1).flatten(1, -2)
            apart = found[..., :, None] - found[..., None, :]
            _assert_at_most(scores.differences[0], apart)
            _assert_at_most(-scores.differences[1], -apart)
        margins = (rows * values[-1][instance]).flatten(1).sum(1)
        for low in lows:
            _assert_at_most(low, margins)
    for x in _adversaries(second, rows, instance, region):
        margins = (rows * graph(x)).flatten(1).sum(1)
        for low in lows:
            _assert_at_most(low, margins)

    def margin(x, which):
        return (rows[which] * graph(x)).flatten(1).sum(1)

    start = (region.lower + region.upper) / 2
    attacked, _ = minimize_margin(margin, region.take(instance), start[instance], 12, 2, seed, target=-math.inf)
    for low in lows:
        _assert_at_most(low, attacked)
    return len(row)


@pytest.mark.parametrize("seed", range(NETWORKS))
def test_random_attention(seed):
    rng = np.random.default_rng(1000 + seed)
    graph = random_attention(rng)
    norm = NORMS[seed % len(NORMS)]
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    clip = (0, 1) if seed % 2 else None
    assert _check(graph, Perturbation(10 ** rng.uniform(-4, -0.3), norm, clip).around(x), seed) == 6


@pytest.mark.parametrize("seed", range(max(3, NETWORKS // 5)))
def test_random_graphs(seed):
    rng = np.random.default_rng(2000 + seed)
    graph = random_graph(rng, blocks=int(rng.integers(1, 5)))
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    try:
        assert _check(graph, Perturbation(10 ** rng.uniform(-4, -1), NORMS[seed % 4]).around(x), seed) == 6
    except DomainError:
        assert x.shape[0] == 2  # intervals may leave the domain of a logarithm; that is said, not hidden


def test_a_point_is_bounded_by_its_own_value():
    rng = np.random.default_rng(3)
    graph = random_attention(rng)
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    second = SecondOrderBounds(LinearBounds(graph, Perturbation(0.0).around(x), SecondOrder().linear))
    rows = torch.eye(3, dtype=x.dtype)[:2].reshape(2, *graph.output_shape)
    target = torch.full((2,), math.inf, dtype=x.dtype)
    low = second.lower(rows, torch.arange(2), 6, target)
    assert torch.allclose(low, (rows * graph(x)).flatten(1).sum(1), atol=1e-8)


@pytest.mark.parametrize("method", ["auto", "second-order"])
@pytest.mark.parametrize("norm", [math.inf, 2])
def test_verdicts_add_up_and_no_proof_is_broken(method, norm):
    for seed in range(1):
        rng = np.random.default_rng(seed)
        graph = random_attention(rng, depth=1)
        x = rng.uniform(0, 1, size=(6, *graph.input_shape))
        label = rng.integers(0, 3, size=6)
        perturbation = Perturbation(0.03, norm)
        result = verify_robustness(graph, x, label, perturbation, method=method)
        counts = [result.count(verdict) for verdict in Verdict]
        assert sum(counts) == len(result) == 6
        assert not result.count(Verdict.ERROR)
        always = verify_robustness(graph, x, label, perturbation, method=method, attack=True)
        for record in always.records:
            assert record.verdict is not Verdict.CERTIFIED or record.attack is None or record.attack > 0
            assert record.verdict is not Verdict.CERTIFIED or (record.bound or 0) <= (record.attack or math.inf) + 1e-9
