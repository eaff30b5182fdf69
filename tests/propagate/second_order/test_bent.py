"""Rectifiers by bent lines, and gradient steps on all that is free in a quadratic: both hold, and both gain."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from softhull.graph.builder import GraphBuilder
from softhull.graph.ops.relu import Relu
from softhull.propagate.crown import LinearBounds
from softhull.propagate.free import Free
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order.ascent import ascended_lower
from softhull.propagate.second_order.bent import Bent
from softhull.propagate.second_order.forward import Forms
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation, Region
from tests.propagate.second_order.test_sharpen import NORMS, attention, inside


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e6])
def test_bent_lines_hold_exactly(dtype, size):
    """``A relu(x)`` is at least the linear part, the square and the shift, in exact arithmetic."""
    rng = np.random.default_rng(0)
    entries = 40
    ends = torch.from_numpy(size * 10.0 ** rng.uniform(-3, 0, (2, 1, entries))).to(dtype)
    lower, upper = -ends[0], ends[1]
    lower[0, :3], upper[0, 3:6] = ends[0, 0, :3] / 2, -ends[1, 0, 3:6] / 2
    lower, upper = torch.minimum(lower, upper), torch.maximum(lower, upper)
    b = GraphBuilder((entries,))
    graph = b.finish(b.elementwise(Relu(), -1)).to(dtype)
    bounds = LinearBounds(graph, Region(lower, upper), SecondOrder().linear)
    forms = Forms(bounds, rectified=True).build()
    form, number = forms.rectified[0]
    for _ in range(5):
        free = Free()
        A = torch.from_numpy(rng.normal(size=(1, entries))).to(dtype)
        Bent(bounds, 0, A, form, forms.bases[number], free)
        for (_, name), parameter in free._parameters.items():  # any slope, any bend of at least 0
            drawn = torch.from_numpy(rng.uniform(0, parameter.high, parameter.value.shape))
            far = torch.from_numpy(rng.choice([0.0, 1.0, 1.0, 40.0], drawn.shape))
            sign = torch.from_numpy(rng.choice([1.0, -1.0], drawn.shape)) if name == "slope" else 1.0
            parameter.value = (drawn * torch.where(far > 1, far * sign, far)).to(dtype)
        bent = Bent(bounds, 0, A, form, forms.bases[number], free)
        (on_x,), shift, matrix = bent.linear(), Fraction(float(bent.shift())), bent.matrix()[0]
        for share in (0.0, 0.25, 0.5, 0.9, 1.0, *rng.uniform(0, 1, 3)):
            x = [Fraction(float(t)) for t in (lower + share * (upper - lower)).clamp(lower, upper)[0]]
            z = [t - Fraction(float(c)) for t, c in zip(x, form.centre[0])]
            value = sum(Fraction(float(a)) * max(t, Fraction(0)) for a, t in zip(A[0], x))
            square = sum(Fraction(float(matrix[k, k])) * z[k] ** 2 for k in range(entries))
            low = sum(Fraction(float(c)) * t for c, t in zip(on_x[0, 0], x)) + square + shift
            assert low <= value


@pytest.mark.parametrize("norm", NORMS)
def test_gradient_steps_hold_and_gain(norm):
    rng = np.random.default_rng(2)
    graph = attention(rng)
    x = torch.from_numpy(rng.normal(size=(2, *graph.input_shape)))
    eps = {math.inf: 0.1, 2: 0.5, 1: 0.5}[norm]
    bounds = LinearBounds(graph, Perturbation(eps, norm=norm).around(x), SecondOrder().linear)
    rows = torch.tensor([[[1.0, -1, 0]], [[0, 1, -1]]], dtype=torch.float64)
    never, both = torch.full((2,), math.inf, dtype=torch.float64), torch.arange(2)
    with torch.no_grad():
        plain = SecondOrderBounds.of(bounds).lower(rows, both, 12, never)
        second = SecondOrderBounds.of(bounds, rectified=True)
        assert set(second.forms.rectified) == {i for i, n in enumerate(graph.nodes) if isinstance(n.operator, Relu)}
        low = ascended_lower(second, rows, both, 20, 0.1, never)
        points = inside(rng, x, eps, norm)
        y = graph(points.flatten(0, 1)).reshape(len(points), 2, -1)
    least = (y * rows.flatten(1)).sum(-1).amin(0)
    assert bool((low <= least).all())
    assert bool((low > plain - 1e-3 * plain.abs()).all())
    assert bool((low > plain + 1e-3).any())
