"""Bounds are never violated: random graphs over all operators, random attention networks, all norms and bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.bounds.table import BOUNDS
from softhull.errors import DomainError
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear, Paper
from softhull.propagate.perturbation import Perturbation, Region
from tests.graph.random_graphs import random_graph
from tests.propagate.checks import assert_claims_hold
from tests.propagate.networks import random_attention

NORMS = (math.inf, 2, 1)


def _region(graph, rng, norm=math.inf, clip=None, eps=None):
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    return Perturbation(10 ** rng.uniform(-3, -0.5) if eps is None else eps, norm, clip).around(x)


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, blocks=int(rng.integers(1, 5)))
    region = _region(graph, rng, NORMS[seed % 3], (0, 1) if seed % 2 else None)
    try:
        assert_claims_hold(graph, region, Paper("lse") if seed % 5 == 0 else Linear(), seed)
    except DomainError:
        assert region.size == 2  # intervals may leave the domain of a logarithm; that is said, not hidden


@pytest.mark.parametrize("seed", range(12))
def test_random_attention(seed):
    rng = np.random.default_rng(seed)
    graph = random_attention(rng)
    region = _region(graph, rng, NORMS[seed % 3], eps=10 ** rng.uniform(-4, -0.3))
    assert_claims_hold(graph, region, Linear(), seed)


@pytest.mark.parametrize("bound", [name for name in BOUNDS if name != "lse2"] + ["lse*/lse", "er/hull"])
def test_every_bound_of_the_table(bound):
    rng = np.random.default_rng(7)
    graph = random_attention(rng, depth=1)
    for method in (Linear(bound), Paper(bound)):
        assert_claims_hold(graph, _region(graph, rng, eps=0.1), method, 7)


@pytest.mark.parametrize("settings", [{"differences": False}, {"simplex": False}, {"contract": False}])
def test_every_setting(settings):
    rng = np.random.default_rng(11)
    for seed in range(4):
        graph = random_attention(rng)
        assert_claims_hold(graph, _region(graph, rng, eps=0.05), Linear(**settings), seed)


def test_a_point_is_bounded_by_its_own_value():
    rng = np.random.default_rng(3)
    graph = random_attention(rng)
    region = _region(graph, rng, eps=0.0)
    bounds = assert_claims_hold(graph, region, Linear(), 3)
    least, most = bounds.interval(len(graph.nodes) - 1)
    assert torch.allclose(least, most, atol=1e-9)
    assert torch.allclose(least, graph(region.lower), atol=1e-9)


def test_float32_bounds_hold_in_float64():
    rng = np.random.default_rng(5)
    for _ in range(4):
        graph = random_attention(rng, depth=1)
        box = _region(graph, rng, eps=0.05)
        single = Region(box.lower.float(), box.upper.float())
        least, most = LinearBounds(graph.to(torch.float32), single, Linear()).interval(len(graph.nodes) - 1)
        for share in (0.0, 0.3, 1.0):
            y = graph((single.lower + share * (single.upper - single.lower)).double())
            slack = 1e-4 * (1 + y.abs())
            assert bool((least.double() - slack <= y).all())
            assert bool((y <= most.double() + slack).all())
