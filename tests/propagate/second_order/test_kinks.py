"""Rectifiers that stay in the quadratic, and single differences of logits as quadratics: they hold, and they gain."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order.affine_form import AffineForm, Basis
from softhull.propagate.second_order.elementwise import parallel_band
from softhull.propagate.second_order.joint import kink_cuts, solved_jointly
from softhull.propagate.second_order.kinks import Kinks
from softhull.propagate.second_order.remainders import own_ranges
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation
from tests.propagate.second_order.test_sharpen import inside


def exact(numbers: Tensor) -> list[Fraction]:
    return [Fraction(float(t)) for t in numbers]


def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum((s * t for s, t in zip(a, b)), Fraction(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e9])
def test_ranges_of_single_products_hold_exactly(dtype, size):
    rng = np.random.default_rng(0)
    left, right = (torch.from_numpy(size * rng.normal(size=(12, 2, 5))).to(dtype) for _ in range(2))
    left[1], right[2, :, 1:], left[3, 1] = 0, 0, right[3, 0]
    left[4, :, :3], right[4, :, 3:] = 0, 0  # no noise in common
    left[5] = right[5]  # a sum of squares
    low, high = own_ranges(left, right)
    for _ in range(40):
        e = rng.uniform(-1, 1, 5) if rng.uniform() < 0.2 else rng.choice([-1.0, 1.0], 5)
        noise = exact(torch.from_numpy(e))
        for p in range(len(left)):
            value = sum(dot(exact(a), noise) * dot(exact(b), noise) for a, b in zip(left[p], right[p]))
            assert Fraction(float(low[p])) <= value <= Fraction(float(high[p]))
    # One product of noise with itself is known to the last digits, from both sides.
    one = torch.tensor([[[2.0, 0.0]]], dtype=dtype)
    low, high = own_ranges(one, one)
    assert float(low) == pytest.approx(0, abs=1e-3)
    assert float(high) == pytest.approx(4, rel=1e-3)


def test_ranges_of_single_products_are_better_than_absolute_sums():
    rng = np.random.default_rng(1)
    left, right = (torch.from_numpy(rng.normal(size=(20, 3, 24))) for _ in range(2))
    low, high = own_ranges(left, right)
    sums = (left.mT @ right).abs().sum((1, 2))
    assert bool((torch.maximum(-low, high) < 0.8 * sums).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e6])
def test_what_is_said_of_rectifiers_holds_exactly(dtype, size):
    """At every noise that makes ``y = relu(x)`` all cuts are at most zero, and y is what a walk goes on with."""
    rng = np.random.default_rng(2)
    n, entries = 4, 6
    slope = torch.from_numpy(size * rng.normal(size=(1, n, entries))).to(dtype)
    centre = torch.from_numpy(size * rng.normal(size=(1, entries))).to(dtype)
    centre[0, 0] = 100 * size  # a line
    reach = slope.abs().sum(1) * (1 + 1e-5)
    rate, middle, radius = parallel_band(Relu(), centre - reach, centre + reach)
    basis = Basis(torch.ones(1, n + entries, dtype=dtype))
    zero = torch.zeros_like(centre)
    wide = torch.cat((rate[:, None] * slope, torch.diag_embed(radius)), 1)
    kinks = Kinks(AffineForm(centre, slope, zero), AffineForm(rate * centre + middle, wide, zero), rate, radius, 0)
    A = torch.from_numpy(rng.normal(size=(1, entries))).to(dtype)
    cuts, (back, constant, on_basis) = kinks.cuts(basis, n + entries), kinks.met(A, basis)
    (squares,) = cuts.squares
    assert squares.matrix.shape[1] == int((radius > 0).sum()) < entries
    for _ in range(30):
        noise = exact(torch.from_numpy(rng.choice([-1.0, 0.3, 1.0], n)))
        x = [Fraction(float(c)) + dot(exact(s), noise) for c, s in zip(centre[0], slope[0].T)]
        y = [max(t, Fraction(0)) for t in x]
        for k in range(entries):  # the noise of its own that makes the form what it stands for
            known = Fraction(float(kinks.y.centre[0, k])) + dot(exact(wide[0, :n, k]), noise[:n])
            own = Fraction(float(radius[0, k]))
            noise.append((y[k] - known) / own if own else Fraction(0))
        values = [Fraction(float(c)) + dot(exact(g), noise) for c, g in zip(cuts.constant[0], cuts.linear[0])]
        for k in range(squares.matrix.shape[1]):
            met = [dot(exact(row), noise) for row in squares.factors[0, k]]
            values[k] += sum(dot(exact(row), met) * t for row, t in zip(squares.matrix[0, k], met))
        assert all(value <= 0 for value in values)
        walked = dot(exact(back[0]), x) + dot(exact(on_basis[0]), noise) + Fraction(float(constant[0]))
        assert walked <= dot(exact(A[0]), y)


def rectified(rng: np.random.Generator, tokens: int = 3, width: int = 4) -> Graph:
    """Attention after a layer of ReLU."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(1.5 * rng.normal(size=shape) / math.sqrt(shape[0]))

    b = GraphBuilder((tokens, width))
    x = b.elementwise(Relu(), b.linear(-1, normal(width, width)))
    q, k, v = (b.linear(x, normal(width, width)) for _ in range(3))
    x = b.sum_of(x, b.matmul(b.add(Softmax(1), b.matmul(q, b.transpose(k, (1, 0)))), v))
    return b.finish(b.linear(x, normal(width, 2)))


def test_networks_whose_rectifiers_stay():
    """Bounds hold at all points tried, so do differences of logits; together they gain over lines."""
    gained = 0.0
    for seed in (1, 4):
        rng = np.random.default_rng(seed)
        graph = rectified(rng)
        x = torch.from_numpy(rng.normal(size=(2, *graph.input_shape)))
        bounds = LinearBounds(graph, Perturbation(0.1).around(x), SecondOrder().linear)
        rows = torch.from_numpy(rng.normal(size=(2, *graph.output_shape)))
        both, never = torch.arange(2), torch.full((2,), math.inf, dtype=torch.float64)
        with torch.no_grad():
            points = inside(rng, x, 0.1, math.inf)
            points[::3] = x + 0.1 * (points[::3] - x).sign() * (1 - 1e-12)
            least = (graph(points.flatten(0, 1)).reshape(len(points), 2, -1) * rows.flatten(1)).sum(-1).amin(0)
            found = []
            for sharp in (False, True):
                second = SecondOrderBounds.of(bounds, sharp=sharp)
                near = x.new_zeros(2, second.forms.noise_count)
                quadratic = second.quadratic(rows, both, near, mixed=True, kinked=sharp)
                low, _ = solved_jointly(quadratic, kink_cuts(quadratic), 60, never, 1e-3, math.inf)
                assert bool((low <= least).all())
                found.append((low, second))
            (plain, before), (low, second) = found
            (index,) = second.forms.logits
            node = graph.nodes[index]
            logits = node.inputs[0]
            values = _node(graph, logits, points.flatten(0, 1)).reshape(len(points), 2, *node.shape)
            apart = values[..., :, None] - values[..., None, :]
            lower, upper = second.forms.logits[index].differences
            assert bool(((apart >= lower) & (apart <= upper)).all())
            old = before.forms.logits[index].differences
            assert bool((upper - lower <= old[1] - old[0] + 1e-9).all())
        assert bool((low >= plain - 0.02 * plain.abs()).all())
        gained += float((low - plain).sum())
    assert gained > 0.1


def _node(graph: Graph, index: int, x: Tensor) -> Tensor:
    values = {-1: x}
    for number, node in enumerate(graph.nodes[: index + 1]):
        values[number] = node.operator.value(*(values[i] for i in node.inputs))
    return values[index]
