"""Try to break every claim of second order: ranges of forms, logit differences, fitted rows, margins."""

from __future__ import annotations

import math

import numpy as np
import torch
from flint import ctx

from softhull.attack.pgd import minimize_margin
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order.fitted_rows import FittedRows
from softhull.propagate.second_order.forward import Forms
from softhull.propagate.second_order.row_fit import CELLS
from softhull.propagate.second_order.specification import SecondOrderBounds
from tests.propagate.checks import points_of
from tests.soundness.exact import DIGITS, balls
from tests.soundness.exact import values as exact_values

POINTS = 6


def _assert_at_most(low, value):
    """Claims against balls, with no tolerance: none is certainly above the truth."""
    assert not low.isnan().any()
    for claim, exact in zip(balls(low).reshape(-1), value.reshape(-1), strict=True):
        assert not claim > exact, (float(claim), exact)


def _rows_in_balls(a, axis):
    moved = np.moveaxis(a, axis, -1)
    return moved.reshape(-1, moved.shape[-1])


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
    for i, logits in forms.logits.items():
        node = forms.graph.nodes[i]
        axis = node.operator.axis
        if node.shape[axis] - 1 in CELLS and node.operator.mask is None:  # others are not fitted
            A = torch.randn((len(instance), *node.shape), generator=generator, dtype=noise.dtype)
            basis = forms.bases[logits.basis].take(instance)
            yield i, A, FittedRows(A, axis, logits.take(instance), basis.values(noise))


def assert_claims_hold(graph, region, seed, memory=None):
    """Every claim at sampled points, corners, minimisers and attacked points; returns how many specifications."""
    generator = torch.Generator().manual_seed(seed)
    B = region.size
    bounds = LinearBounds(graph, region, SecondOrder().linear)
    second = SecondOrderBounds.of(bounds, memory)
    ranges = WatchedForms(bounds, memory).build().ranges
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
    sampled = (x[instance] for x in points_of(region, seed, count=POINTS))
    exact: dict[bytes, list[np.ndarray]] = {}  # all rows of an instance share its sampled points
    before, ctx.dps = ctx.dps, DIGITS
    try:
        for x in (*sampled, *_adversaries(second, rows, instance, region), attacked[1]):
            for place, b in enumerate(instance.tolist()):
                point = x[place].numpy().tobytes()
                values = exact[point] = exact[point] if point in exact else exact_values(graph, x[place])
                if place == b:  # the first row of every instance stands for all that does not depend on rows
                    _assert_forms_hold(graph, second, ranges, b, values)
                for i, A, fit in fits:
                    _assert_fit_holds(graph.nodes[i], A[place], fit, place, values, i)
                margin_there = (balls(rows[place]) * values[-1]).sum()
                for low in lows:
                    _assert_at_most(low[place], np.array([margin_there], dtype=object))
    finally:
        ctx.dps = before
    return len(row)


def _assert_forms_hold(graph, second, ranges, b, values):
    """Ranges of all forms, and differences within the rows of every softmax."""
    for i, (least, most) in ranges.items():
        _assert_at_most(least[b], values[i])
        _assert_at_most(-most[b], -values[i])
    for i, logits in second.forms.logits.items():
        node = graph.nodes[i]
        assert isinstance(node.operator, Softmax)
        found = _rows_in_balls(values[node.inputs[0]], node.operator.axis)
        apart = found[..., :, None] - found[..., None, :]
        _assert_at_most(logits.differences[0][b], apart)
        _assert_at_most(-logits.differences[1][b], -apart)


def _assert_fit_holds(node, A, fit, place, values, i):
    """A quadratic of the logits below a combination of the probabilities of every row."""
    axis = node.operator.axis
    logits = _rows_in_balls(values[node.inputs[0]], axis)
    centre, slope = balls(fit.centre[place]), balls(fit.slope[place])
    value, matrix = balls(fit.value[place]), balls(fit.matrix[place])
    weighted = _rows_in_balls(balls(A) * values[i], axis).sum(-1)
    for r, order in enumerate(fit.order[place].tolist()):
        found = logits[r][order]
        y = found[:-1] - found[-1] - centre[r]
        claimed = value[r] + (slope[r] * y).sum() + (y * (matrix[r] @ y)).sum()
        assert not claimed > weighted[r], (float(claimed), weighted[r])
