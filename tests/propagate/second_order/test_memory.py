"""Second order within few bytes: noise is merged, products are forgotten, and every claim still holds."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

from softhull.graph.builder import GraphBuilder
from softhull.graph.ops.relu import Relu
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order import forward
from softhull.propagate.second_order.affine_form import Basis
from softhull.propagate.second_order.forward import TENSORS, NoAffineForms
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from tests.graph.random_graphs import random_graph
from tests.propagate.networks import random_attention
from tests.propagate.second_order.claims import WatchedForms, assert_claims_hold

NETWORKS = int(os.environ.get("SOFTHULL_RANDOM_NETWORKS", "4"))
SHARES = (0.7, 0.3)
MEASURES = (("merge", 3, False, 0.8), ("narrow", 4, True, 0.25), ("forget", 3, False, 0.5))


def _case(seed, depth=3, **settings):
    rng = np.random.default_rng(4000 + seed)
    graph = random_attention(rng, depth, **settings)
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    return graph, Perturbation(10 ** rng.uniform(-3, -0.5), (math.inf, 2)[seed % 2]).around(x)


def _linear(graph, region):
    return LinearBounds(graph, region, SecondOrder().linear)


def _forms(bounds, memory=None):
    return WatchedForms(bounds, memory).build()


def test_merged_noise_reaches_what_it_stands_for():
    rng = np.random.default_rng(0)
    basis = Basis(torch.from_numpy(rng.normal(size=(3, 4, 12))))
    basis.map[:, 2, 5:] = 0.0  # an entry without any of the merged noise needs no number
    kept = torch.arange(12) < 5
    merged = basis.merged(kept, 12)
    assert merged.map.shape == (3, 4, 5 + 3)
    assert merged.numbered().tolist() == [0, 1, 2, 3, 4, 12, 13, 14]
    reach = merged.map[..., 5:].sum(-1)
    for _ in range(100):
        noise = torch.from_numpy(rng.uniform(-1, 1, size=(3, 12))).sign()
        missing = basis.values(noise) - merged.values(torch.cat((noise, noise.new_zeros(3, 3)), 1))
        assert bool((missing.abs() <= reach).all())
    worst = (basis.map[..., 5:].abs().sum(-1) - reach).abs()
    assert bool((worst <= 1e-13).all())


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("seed", range(max(1, NETWORKS // 4)))
def test_claims_hold_and_memory_is_kept(seed, skip):
    graph, region = _case(seed, skip=skip)
    bounds = _linear(graph, region)
    full = _forms(bounds)
    products = len(full.factors)
    for share in SHARES:
        memory = int(share * full.held())
        try:
            forms = _forms(bounds, memory)
        except NoAffineForms:
            continue
        assert max(forms.most_held, forms.held()) <= memory
        assert len(forms.factors) < products or forms.noise_count != full.noise_count
        assert assert_claims_hold(graph, region, seed, memory) == 6


@pytest.mark.parametrize("seed", range(NETWORKS))
def test_random_graphs_within_half_of_what_they_want(seed):
    rng = np.random.default_rng(5000 + seed)
    graph = random_graph(rng, blocks=5)
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *graph.input_shape)))
    region = Perturbation(1e-3).around(x)
    full = _forms(_linear(graph, region))
    try:
        assert assert_claims_hold(graph, region, seed, full.held() // 2) == 6
    except NoAffineForms:
        assert full.held() > 0  # one layer alone takes more than half; that is said, not hidden


@pytest.mark.parametrize(("measure", "depth", "skip", "share"), MEASURES)
def test_each_measure_is_taken(measure, depth, skip, share, monkeypatch):
    """The mildest that suffices: merged noise, the entries of several forms as basis, forgotten products."""
    monkeypatch.setattr(forward, "_SETTLED", 0)  # every narrow layer is a basis
    bounds = _linear(*_case(12, depth, skip=skip))
    full = _forms(bounds)
    forms = _forms(bounds, int(share * full.held()))
    assert forms.held() <= forms.memory
    taken = {
        "merge": any(basis.numbers is not None for basis in forms.bases.values()),
        "narrow": forms.current > full.current,
        "forget": bool(forms.forgotten),
    }
    assert taken[measure]
    assert len(forms.factors) + forms.forgotten == len(full.factors)


def test_what_does_not_fit_at_all_is_refused():
    graph, region = _case(0)
    with pytest.raises(NoAffineForms, match="affine forms of the input take"):
        SecondOrderBounds.of(LinearBounds(graph, region, SecondOrder().linear), memory=8)


def test_memory_of_linear_bounds_is_what_forms_go_by():
    graph, region = _case(1)
    small = LinearBounds(graph, region, SecondOrder().linear, memory=4096)
    assert SecondOrderBounds.of(small).forms.held() <= 32 * 4096


@pytest.mark.filterwarnings("ignore::softhull.errors.InputWarning")  # the radius is meant to be large
def test_records_say_what_could_not_be_used():
    rng = np.random.default_rng(4002)
    graph, perturbation = random_attention(rng, 2), Perturbation(5.0)
    x = torch.from_numpy(rng.uniform(0, 1, size=(1, *graph.input_shape)))
    label = graph(x).flatten(1).argmax(1)
    wanted = _forms(_linear(graph, perturbation.around(x))).held()

    def message(memory):
        record = verify_robustness(
            graph, x, label, perturbation, method="second-order", attack=False, memory=int(memory)
        )[0]
        assert record.verdict is Verdict.UNKNOWN
        return record.message.removeprefix(Verdict.UNKNOWN.advice)

    assert not message(wanted)
    assert "products relaxed linearly to save memory" in message(0.5 * wanted / TENSORS)
    assert "linear bounds only: affine forms of the input take" in message(1)


def test_a_network_without_products_is_said_to_have_none():
    builder = GraphBuilder((1, 2))
    graph = builder.finish(builder.elementwise(Relu(), builder.linear(-1, torch.eye(2, dtype=torch.float64))))
    x, label = np.array([[[1.0, 0.2]]]), [0]
    record = verify_robustness(graph, x, label, Perturbation(0.01), method="second-order")[0]
    assert record.verdict is Verdict.CERTIFIED
    assert "no products" in record.message
    assert not verify_robustness(graph, x, label, Perturbation(0.01), method="auto")[0].message
