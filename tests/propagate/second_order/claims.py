"""Try to break every claim of second order: ranges of forms, score differences, fitted rows, margins."""

from __future__ import annotations

import math

import torch

from softhull.attack.pgd import minimize_margin
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order.fitted_rows import FittedRows
from softhull.propagate.second_order.forward import Forms
from softhull.propagate.second_order.row_fit import CELLS
from softhull.propagate.second_order.specification import SecondOrderBounds
from tests.propagate.checks import points_of

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
    if quadratic.bases:
        corners.append(quadratic.corner())
    for corner in corners:
        x = centre[instances] + radius[instances] * corner[:, :inputs].reshape(-1, *centre.shape[1:])
        yield region.take(instances).project(x)


class WatchedForms(Forms):
    """Forms that remember the range of every one of them, also of those that are let go on the way."""

    def __init__(self, bounds, memory=None):
        self.ranges = {}
        self.most_held = 0
        super().__init__(bounds, memory)

    def rule(self, index):
        self.most_held = max(self.most_held, self.held())
        found = self._forms[index] = super().rule(index)
        self.ranges[index] = self.interval(index)
        return found


def _fits(second, instance, generator):
    """Quadratics below random combinations of probabilities, near random noise, of every softmax with short rows."""
    forms = second.forms
    noise = torch.rand((len(instance), forms.noise_count), generator=generator, dtype=forms.basis.map.dtype) * 2 - 1
    for i, scores in forms.scores.items():
        node = forms.graph.nodes[i]
        axis = node.operator.axis
        if node.shape[axis] - 1 in CELLS:
            A = torch.randn((len(instance), *node.shape), generator=generator, dtype=noise.dtype)
            basis = forms.bases[scores.basis].take(instance)
            yield i, A, FittedRows(A, axis, scores.take(instance), basis.values(noise))


def _rows_of(t, axis):
    return t.movedim(axis + 1, -1).flatten(1, -2)


def assert_claims_hold(graph, region, seed, memory=None):
    """Every claim at sampled points, corners, minimisers and attacked points; returns how many specifications."""
    generator = torch.Generator().manual_seed(seed)
    B = region.size
    second = SecondOrderBounds.of(LinearBounds(graph, region, SecondOrder().linear), memory)
    ranges = WatchedForms(LinearBounds(graph, region, SecondOrder().linear), memory).build().ranges
    S = 3
    C = torch.randn((S, B, *graph.output_shape), generator=generator, dtype=region.lower.dtype)
    row, instance = (t.flatten() for t in torch.meshgrid(torch.arange(S), torch.arange(B), indexing="ij"))
    rows = C[row, instance]
    never = torch.full((len(row),), math.inf, dtype=region.lower.dtype)
    lows = [second.lower(rows, instance, 6, never, fitted) for fitted in (False, True)]
    fits = list(_fits(second, instance, generator))

    def margin(x, which):
        return (rows[which] * graph(x)).flatten(1).sum(1)

    start = (region.lower + region.upper) / 2
    attacked = minimize_margin(margin, region.take(instance), start[instance], 12, 2, seed, target=-math.inf)
    sampled = (x[instance] for x in points_of(region, seed, count=30))
    for x in (*sampled, *_adversaries(second, rows, instance, region), attacked[1]):
        values = graph.values(x)
        for i, (least, most) in ranges.items():
            _assert_at_most(least[instance], values[i])
            _assert_at_most(-most[instance], -values[i])
        for i, scores in second.forms.scores.items():
            node = graph.nodes[i]
            assert isinstance(node.operator, Softmax)
            found = _rows_of(values[node.inputs[0]], node.operator.axis)
            apart = found[..., :, None] - found[..., None, :]
            _assert_at_most(scores.differences[0][instance], apart)
            _assert_at_most(-scores.differences[1][instance], -apart)
        for i, A, fit in fits:
            node = graph.nodes[i]
            axis = node.operator.axis
            found = _rows_of(values[node.inputs[0]], axis).gather(-1, fit.order)
            y = found[..., :-1] - found[..., -1:] - fit.centre
            claimed = fit.value + (fit.slope * y).sum(-1) + (y * (fit.matrix @ y[..., None])[..., 0]).sum(-1)
            _assert_at_most(claimed, _rows_of(A * values[i], axis).sum(-1))
        for low in lows:
            _assert_at_most(low, (rows * values[-1]).flatten(1).sum(1))
    for low in lows:
        _assert_at_most(low, attacked[0])
    return len(row)
