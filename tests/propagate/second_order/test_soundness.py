"""No point of a region violates a claim of second order: logit differences, probabilities, rows, margins."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

from softhull.errors import DomainError
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear, SecondOrder
from softhull.propagate.second_order import specification
from softhull.propagate.second_order.forward import Forms
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from tests.graph.random_graphs import random_graph
from tests.propagate.checks import points_of
from tests.propagate.networks import random_attention
from tests.propagate.second_order.claims import assert_claims_hold
from tests.propagate.test_zonotopes import at_the_edge

NETWORKS = int(os.environ.get("SOFTHULL_RANDOM_NETWORKS", "4"))
NORMS = (math.inf, math.inf, 2, 1)


@pytest.mark.parametrize("seed", range(NETWORKS))
def test_random_attention(seed):
    rng = np.random.default_rng(1000 + seed)
    graph = random_attention(rng)
    norm = NORMS[seed % len(NORMS)]
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    clip = (0, 1) if seed % 2 else None
    assert assert_claims_hold(graph, Perturbation(10 ** rng.uniform(-4, -0.3), norm, clip).around(x), seed) == 6


@pytest.mark.parametrize("seed", range(max(1, NETWORKS // 5)))
def test_quadratics_bounded_basis_by_basis(seed, monkeypatch):
    monkeypatch.setattr(specification, "_LARGE", 0)
    rng = np.random.default_rng(6000 + seed)
    graph = random_attention(rng, depth=2)
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    region = Perturbation(10 ** rng.uniform(-3, -0.5), NORMS[seed % len(NORMS)]).around(x)
    assert assert_claims_hold(graph, region, seed) == 6


@pytest.mark.parametrize("seed", range(max(3, NETWORKS // 5)))
def test_random_graphs(seed):
    rng = np.random.default_rng(2000 + seed)
    graph = random_graph(rng, blocks=int(rng.integers(1, 5)))
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    try:
        assert assert_claims_hold(graph, Perturbation(10 ** rng.uniform(-4, -1), NORMS[seed % 4]).around(x), seed) == 6
    except DomainError:
        assert x.shape[0] == 2  # intervals may leave the domain of a logarithm; that is said, not hidden


def test_a_point_is_bounded_by_its_own_value():
    rng = np.random.default_rng(3)
    graph = random_attention(rng)
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    second = SecondOrderBounds.of(LinearBounds(graph, Perturbation(0.0).around(x), SecondOrder().linear))
    rows = torch.eye(3, dtype=x.dtype)[:2].reshape(2, *graph.output_shape)
    target = torch.full((2,), math.inf, dtype=x.dtype)
    low = second.lower(rows, torch.arange(2), 6, target)
    assert torch.allclose(low, (rows * graph(x)).flatten(1).sum(1), atol=1e-8)


@pytest.mark.parametrize("method", ["auto", "second-order"])
@pytest.mark.parametrize("seed", range(max(2, NETWORKS // 10)))
def test_random_attention_verdicts_add_up_and_no_proof_is_broken(seed, method):
    rng = np.random.default_rng(3000 + seed)
    graph = random_attention(rng)
    x = rng.uniform(0, 1, size=(6, *graph.input_shape))
    label = rng.integers(0, 3, size=6)
    perturbation = Perturbation(10 ** rng.uniform(-4, -0.3), NORMS[seed % len(NORMS)])
    result = verify_robustness(graph, x, label, perturbation, method=method)
    assert sum(result.count(verdict) for verdict in Verdict) == len(result) == 6
    assert not result.count(Verdict.ERROR)
    always = verify_robustness(graph, x, label, perturbation, method=method, attack=True)
    for before, record in zip(result.records, always.records):
        if Verdict.CERTIFIED in (before.verdict, record.verdict):
            assert record.verdict is not Verdict.FALSIFIED


@pytest.mark.parametrize("name", ["products", "factors", "slopes", "lengths"])
def test_what_vanishes_is_not_forgotten(name):
    graph, region = at_the_edge(name)
    forms = Forms(LinearBounds(graph.to(torch.float32, "cpu"), region, Linear()))
    for index, value in enumerate(graph.values(points_of(region, 1)[:, 0].double())):
        forms._forms[index] = forms.rule(index)
        low, high = forms.interval(index)
        assert bool(((low <= value) & (value <= high)).all())
