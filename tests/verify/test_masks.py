"""Answers about masked attention do not depend on the number that masks, and are those without what is masked."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.graph.graph import Graph
from softhull.propagate.methods import Linear, SecondOrder
from softhull.regions import Region
from softhull.verify.ensemble import Ensemble, Joined
from softhull.verify.robustness import verify_robustness
from softhull.verify.uncertainty import verify_uncertainty

from ..propagate.test_masks import CAUSAL, NUMBERS, _attention, _mask, _padding

METHODS = (Linear(optimize=0), SecondOrder())
CENTRE = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def _bounds(graph: Graph, eps: float = 0.05, scale: float = 1.0) -> list[list[float]]:
    x = scale * CENTRE
    label = graph(x).flatten(1).argmax(1).numpy()
    return [
        [
            -math.inf if record.bound is None else record.bound
            for record in verify_robustness(graph, x.numpy(), label, eps, method=method, attack=False).records
        ]
        for method in METHODS
    ]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("how", ["add", "replace"])
def test_bounds_do_not_depend_on_the_number(layers, how):
    *finite, infinite = (_bounds(_attention(_mask(CAUSAL, number), 16, how, layers, read=9)) for number in NUMBERS)
    assert np.isfinite(infinite).all()
    for found in finite:
        np.testing.assert_allclose(found, infinite, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layers", "numbers"), [(1, NUMBERS), (2, NUMBERS[::3])])
def test_bounds_are_those_without_the_masked_tokens(layers, numbers):
    removed = _bounds(_attention(None, 11, layers=layers))
    for number in numbers:
        masked = _bounds(_attention(_padding(number), 16, layers=layers))
        np.testing.assert_allclose(masked, removed, rtol=0, atol=1e-12, err_msg=f"{number}")


def test_scores_do_not_depend_on_the_number():
    graphs = [_attention(_mask(CAUSAL, number), 16, layers=2) for number in (-1e4, -math.inf)]
    found = [verify_uncertainty(graph, CENTRE.numpy(), [0, 1], 0.05).column("bound") for graph in graphs]
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)


def test_a_mask_that_leaks_stays_in_the_network():
    """With logits in the thousands a mask of -1e4 hides little; beside such an input others get the same answer."""
    graph, eps = _attention(_padding(-1e4), 16, read=0), 0.02
    x = torch.cat((CENTRE, 1e3 * CENTRE[:1]))
    hides = Joined((Ensemble(graph),)).hides(Region(x - eps, x + eps))
    assert hides.tolist() == [True, True, False]
    label = graph(x).flatten(1).argmax(1).numpy()
    together = verify_robustness(graph, x.numpy(), label, eps, method=METHODS[0], attack=False).records
    for i, record in enumerate(together):
        (alone,) = verify_robustness(graph, x[i : i + 1].numpy(), label[i : i + 1], eps, method=METHODS[0]).records
        assert record.index == i
        assert record.bound == pytest.approx(alone.bound, abs=1e-12)
    torch.manual_seed(0)
    for _ in range(50):
        y = graph(x + eps * torch.sign(torch.randn_like(x))).flatten(1)
        for i, record in enumerate(together):
            rest = y[i][torch.arange(3) != label[i]].max()
            assert record.bound is not None
            assert y[i, label[i]] - rest >= record.bound
