"""Quadratics kept by their factors are those of the matrix over the basis, and gradient steps see the same bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.propagate.crown import LinearBounds
from softhull.propagate.free import Free
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order import specification
from softhull.propagate.second_order.ascent import _value
from softhull.propagate.second_order.dual import cost
from softhull.propagate.second_order.specification import SecondOrderBounds, bound_quadratic
from softhull.regions import Perturbation
from tests.propagate.second_order.test_sharpen import attention, inside


@pytest.fixture
def second():
    rng = np.random.default_rng(5)
    graph = attention(rng)
    x = torch.from_numpy(rng.normal(size=(2, *graph.input_shape)))
    bounds = LinearBounds(graph, Perturbation(0.1).around(x), SecondOrder().linear)
    with torch.no_grad():
        return x, SecondOrderBounds.of(bounds, rectified=True)


ROWS = torch.tensor([[[1.0, -1, 0]], [[0, 1, -1]]], dtype=torch.float64)
BOTH = torch.arange(2)


@pytest.mark.parametrize("free", [None, Free])
def test_thin_and_thick_agree(second, monkeypatch, free):
    x, second = second
    found = []
    for share in (0.0, math.inf):
        monkeypatch.setattr(specification, "THIN", share)
        with torch.no_grad():
            found.append(second.quadratic(ROWS, BOTH, free=free and free()))
    thick, thin = found
    assert len(thin.bases) >= len(thick.bases)
    assert max(basis.size for basis in thin.bases) < max(basis.size for basis in thick.bases)
    noise = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (2, thick.linear.shape[1])))
    assert torch.allclose(thick.at(noise), thin.at(noise), rtol=1e-12, atol=1e-12)
    never = torch.full((2,), math.inf, dtype=torch.float64)
    values = [bound_quadratic(each, second.forms.noise, 12, never) for each in found]
    points = inside(np.random.default_rng(1), x, 0.1, math.inf)
    y = second.bounds.graph(points.flatten(0, 1)).reshape(len(points), 2, -1)
    least = (y * ROWS.flatten(1)).sum(-1).amin(0)
    for value in values:
        assert bool((value <= least).all())
        assert bool((value > least - 10 * (least - values[0]).clamp(min=1e-3)).all())


def test_the_value_of_gradient_steps_is_the_dual_bound(second):
    """And so is its slope in the linear part: the minimiser of the Lagrangian."""
    _, second = second
    noise = second.forms.noise
    with torch.no_grad():
        quadratic = second.quadratic(ROWS, BOTH)
    quadratic.linear.requires_grad_()
    value, d = _value(quadratic, noise, None)
    assert d is not None
    B = quadratic.dense()[0]
    M = (B + B.mT) / 2 + torch.diag_embed(d)
    minimiser = -torch.linalg.solve(M, quadratic.linear) / 2
    least = quadratic.constant - cost(d, None) + (quadratic.linear * minimiser).sum(-1) / 2
    assert torch.allclose(value, least, rtol=1e-8, atol=1e-8)
    (slope,) = torch.autograd.grad(value.sum(), quadratic.linear)
    assert torch.allclose(slope, minimiser, rtol=1e-6, atol=1e-6)
