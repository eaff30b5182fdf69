"""How affine forms move through one kind of operator: exactly, or with fresh noise for what is relaxed.

Rules are registered by the class of the operator; an operator of one of these kinds needs none of its own.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import SofthullError
from ...graph.operator import Affine, Bilinear, Elementwise, Interval, Operator
from ...graph.ops.log_sum_exp import LogSumExp
from ...graph.ops.matmul import MatMul
from ...graph.ops.normalize import InverseDeviation, Normalized
from ...graph.ops.relu import Relu
from ...graph.ops.rsqrt import Rsqrt
from ...graph.ops.softmax import Softmax
from ...graph.rounding import largest, outward, share, ulps
from ..softmax_steps import DensePlanes
from .affine_form import PIECE, AffineForm, Basis, product_error, vanishing
from .elementwise import parallel_band
from .kinks import Kinks
from .logits import ProductLogits
from .probabilities import AffineProbabilities, affine_probabilities, tangent_directions
from .row_fit import CELLS

if TYPE_CHECKING:
    from .forward import Forms


class NoAffineForms(SofthullError):
    """Second order says nothing about a network or region; the message says why."""


@singledispatch
def affine_form(operator: Operator, forms: Forms, index: int) -> AffineForm:
    """The form of a node from those of its inputs, which are at hand."""
    raise NoAffineForms(f"no affine form for {operator.name} at {forms.graph.nodes[index].label}")


@affine_form.register(Affine)
def _(operator: Affine, forms: Forms, index: int) -> AffineForm:
    inputs = [forms.form(i) for i in forms.graph.nodes[index].inputs]
    r = max(form.slope.shape[1] for form in inputs)
    slopes = [form.padded(r) for form in inputs]
    B = max(slope.shape[0] for slope in slopes)
    flat = [slope.expand(B, *slope.shape[1:]).flatten(0, 1) for slope in slopes]
    at_zero = operator.value(*(torch.zeros_like(part[:1]) for part in flat))
    slope = _moved(operator, flat, at_zero)
    centre = operator.value(*(form.centre for form in inputs))
    constant = operator.magnitude(*(torch.zeros_like(form.error) for form in inputs))
    error = operator.magnitude(*(form.error for form in inputs)) - constant
    if terms := operator.terms(*(tuple(form.centre.shape[1:]) for form in inputs)):
        sizes = operator.magnitude(*(form.size(forms.basis) for form in inputs))
        # The constant was subtracted from the slope of every basis entry.
        often = forms.basis.reach.sum(-1).reshape(-1, *[1] * (centre.ndim - 1))
        error = error * (1 + forms.share(terms)) + forms.share(terms + 2) * (sizes + 2 * often * constant)
        error = error + terms * vanishing(forms.basis, error)
    if operator.slack:
        error = (error + operator.slack) * (1 + forms.share(1))
    return AffineForm(centre, slope.unflatten(0, (B, r)), torch.where(constant.isfinite(), error, 0.0))


def _moved(operator: Affine, slopes: list[Tensor], at_zero: Tensor) -> Tensor:
    """What an affine function without its constant makes of slopes ``[r, *shape]``: a view of them, or in pieces."""
    if not bool(at_zero.any()):
        return operator.value(*slopes)
    found = at_zero.new_empty(len(slopes[0]), *at_zero.shape[1:])
    size = max(1, PIECE // at_zero.numel())
    for out, *part in zip(*(t.split(size) for t in (found, *slopes))):
        # Entries masked by a constant of -inf do not move.
        out.copy_(torch.where(at_zero.isfinite(), operator.value(*part) - at_zero, 0.0))
    return found


@affine_form.register(Elementwise)
def _(operator: Elementwise, forms: Forms, index: int) -> AffineForm:
    (before,) = forms.graph.nodes[index].inputs
    form = forms.form(before)
    lower, upper = forms.bounds.interval(before, operator)
    least, most = forms.interval(before)
    lower, upper = torch.maximum(lower, least), torch.minimum(upper, most)
    rate, middle, radius = parallel_band(operator, torch.minimum(lower, upper), torch.maximum(lower, upper))
    exact = ((rate == 0) | (rate == 1)) & (middle == 0)
    rounded = forms.share(3) * (rate.abs() * form.size(forms.basis) + middle.abs()) + vanishing(forms.basis, rate)
    error = rate.abs() * form.error + torch.where(exact, 0.0, rounded)
    found = forms.with_noise(rate * form.centre + middle, rate[:, None] * form.slope, radius, error)
    if forms.sharp and isinstance(operator, Relu):
        fresh = found.slope.flatten(2)[:, form.slope.shape[1] :].abs().sum(1)
        noisy = fresh.expand(len(rate), -1).reshape(rate.shape)
        forms.kinks[index] = Kinks(form, found, rate, noisy, forms.current)
    return found


@affine_form.register(Bilinear)
def _(operator: Bilinear, forms: Forms, index: int) -> AffineForm:
    return forms.with_noise(*_product(operator, forms, index))


def _product(operator: Bilinear, forms: Forms, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tangent of the product at the centres: centre and slope, the radius of its remainder, what rounding costs."""
    x, y = (_summing_to_one(forms, i) for i in forms.graph.nodes[index].inputs)
    r = forms.basis.size
    slopes = [form.padded(r) for form in (x, y)]
    B = x.centre.shape[0]

    def times(a: Tensor, b: Tensor) -> Tensor:
        flat = [t.expand(B, r, *t.shape[2:]).flatten(0, 1) for t in (a, b)]
        return operator.value(*flat).unflatten(0, (B, r))

    slope = times(slopes[0], y.centre[:, None]) + times(x.centre[:, None], slopes[1])
    radius = operator.value(forms.radius(x), forms.radius(y))
    low, high = -radius, radius
    if isinstance(operator, MatMul) and operator.left[:-2] == operator.right[:-2] and operator.left[-1] <= 64:
        least, most = _remainders(forms, *slopes)
        low, high = torch.maximum(low, least.reshape(low.shape)), torch.minimum(high, most.reshape(high.shape))
    centre = operator.value(x.centre, y.centre) + (low + high) / 2
    n, m = x.centre.shape[-1], y.centre.shape[-1]
    error = product_error(operator, x, y, forms.basis, n + m + r)
    return centre, slope, (high - low) / 2 * (1 + forms.share(n)), error


@affine_form.register(Normalized)
def _(operator: Normalized, forms: Forms, index: int) -> AffineForm:
    """As a product; constant where its box, which never leaves the normalised ball, is narrower."""
    centre, slope, radius, error = _product(operator, forms, index)
    least, most = forms.bounds.rough(index)
    half = (most - least) / 2 + ulps(4, least.dtype) * largest(least, most)
    flat = ~(forms.radius(AffineForm(centre, slope, error)) + radius <= half)
    return forms.with_noise(
        torch.where(flat, least + (most - least) / 2, centre),
        torch.where(flat[:, None], 0.0, slope),
        torch.where(flat, half, radius),
        torch.where(flat, 0.0, error),
    )


def _remainders(forms: Forms, x: Tensor, y: Tensor) -> Interval:
    """Ranges ``[B, groups, I, J]`` of ``sum_m dx_im dy_mj``."""
    left = x.movedim(1, -1).reshape(x.shape[0], -1, *x.shape[-2:], x.shape[1])  # [B, g, I, m, r]
    right = y.mT.movedim(1, -1).reshape(y.shape[0], -1, y.shape[-1], y.shape[-2], y.shape[1])  # [B, g, J, m, r]
    left, right = (t * _other_moves(t, other) for t, other in ((left, right), (right, left)))
    gauge = forms.gauge_of(left, right)
    own, other = gauge.inner(left, left), gauge.inner(right, right)
    found = []
    for i in range(left.shape[2]):
        cross = gauge.inner(left[:, :, i : i + 1], right)
        found.append(gauge.between(own[:, :, i : i + 1].expand(cross.shape), cross, other.expand(cross.shape)))
    return torch.stack([low for low, _ in found], 2), torch.stack([high for _, high in found], 2)


def _other_moves(lines: Tensor, other: Tensor) -> Tensor:
    """1 for the lines ``[B, g, I, m, r]`` that meet one that moves, ``[1, g, 1, m, 1]``; others add nothing."""
    return (other != 0).any(-1, keepdim=True).any(2, keepdim=True).any(0, keepdim=True).to(lines)


def _summing_to_one(forms: Forms, index: int) -> AffineForm:
    """A form of probabilities whose rows sum to one exactly: the one with the largest error gives way."""
    form = forms.form(index)
    source = forms.bounds.structure.source(index)
    if source < 0 or source not in forms.errors:
        return form
    operator = forms.graph.nodes[source].operator
    assert isinstance(operator, Softmax)
    order = forms.bounds.structure.order(index).to(form.centre.device)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    shape = forms.graph.nodes[source].shape
    axis = operator.axis - len(shape)

    def rows(t: Tensor) -> Tensor:
        return t.flatten(-len(forms.graph.shape_of(index)))[..., back].unflatten(-1, shape).movedim(axis, -1)

    def restored(t: Tensor) -> Tensor:
        return t.movedim(-1, axis).flatten(-len(shape))[..., order].unflatten(-1, forms.graph.shape_of(index))

    centre, slope = rows(form.centre), rows(form.slope)
    loosest = forms.errors[source].movedim(axis, -1).argmax(-1, keepdim=True)
    chosen = torch.zeros_like(centre, dtype=torch.bool).scatter(-1, loosest, True)
    centre = torch.where(chosen, 1 - centre.masked_fill(chosen, 0.0).sum(-1, keepdim=True), centre)
    chosen = chosen[:, None]
    slope = torch.where(chosen, -slope.masked_fill(chosen, 0.0).sum(-1, keepdim=True), slope)
    cost = forms.share(centre.shape[-1])
    total = rows(form.error + cost * form.size(forms.basis)).sum(-1, keepdim=True) * (1 + cost)
    error = torch.where(chosen[:, 0], total, rows(form.error))
    return AffineForm(restored(centre), restored(slope), restored(error))


@affine_form.register(Softmax)
def _(operator: Softmax, forms: Forms, index: int) -> AffineForm:
    """Logits that are masked in every row are left out, as if they were not there."""
    node, axis = forms.graph.nodes[index], operator.axis
    lower, upper = forms.bounds.interval(node.inputs[0])
    masked = None if operator.masked is None else by_rows(operator.masked.expand(1, *node.shape), axis)
    seen = torch.ones(node.shape[axis], dtype=torch.bool, device=lower.device)
    shown = (seen if masked is None else ~masked.flatten(0, 1).all(0)).nonzero()[:, 0]
    if not bool(lower.isfinite().all() and upper.isfinite().all()) or len(shown) == 1:
        return _constant_rows(forms, index)
    logits = ProductLogits.of(forms, index, shown)
    known = forms.bounds.differences(index)
    if known is not None:
        known = known[0][..., shown[:, None], shown], known[1][..., shown[:, None], shown]
    rows = logits.rows(known)
    if forms.sharp and len(shown) - 1 in CELLS:
        rows = logits.sharpened(rows, lambda prove: forms.bounds.knowledge.find("sharp differences", index, prove))
    forms.know_differences(index, rows, shown)
    at, differences = logits.at, rows.differences
    if masked is not None:
        at, differences = far_below(masked[..., shown], at, differences)
    affine = affine_probabilities(at, differences, tangent_directions(at), logits.reach, logits.variance)
    leak = torch.zeros_like(at[..., :1])
    if masked is not None:
        leak = by_rows(operator.leak(lower, upper), axis)
        affine = leaking(masked[..., shown], affine, leak)
    if len(shown) == len(seen):
        below, above = affine.value - affine.error, affine.value + affine.error
        forms.parallel[index] = DensePlanes(affine.at, below, above, affine.slope, affine.slope)
    slope, (low, high) = logits.combined(affine.slope)
    value, error = affine.value + (low + high) / 2, affine.error + (high - low) / 2
    if len(shown) < len(seen):
        value, error = (t.new_zeros(*t.shape[:2], len(seen)).index_copy(2, shown, t) for t in (value, error))
        slope = slope.new_zeros(*value.shape, slope.shape[-1]).index_copy(2, shown, slope)
    return _rows_to_form(forms, index, axis, value, slope, error, leak.expand(value.shape))


@affine_form.register(LogSumExp)
def _(operator: LogSumExp, forms: Forms, index: int) -> AffineForm:
    """Parallel to the plane above; the plane below says how far off it may be over the box of the logits."""
    before = forms.graph.nodes[index].inputs[0]
    form, (lower, upper) = forms.form(before), forms.bounds.interval(before)
    planes, axes = operator.planes(lower, upper), tuple(axis + 1 for axis in operator.axes)
    slope, tilt = planes.above, planes.below - planes.above
    low = planes.below_offset + torch.minimum(tilt * lower, tilt * upper).sum(axes, keepdim=True)
    centre = (slope * form.centre).sum(axes, keepdim=True)
    terms = math.prod(lower.shape[1:])
    cost = forms.share(2 * terms)
    sizes = (slope.abs() * form.size(forms.basis) + tilt.abs() * torch.maximum(lower.abs(), upper.abs())).sum(
        axes, keepdim=True
    )
    error = (slope.abs() * form.error).sum(axes, keepdim=True) + cost * (
        sizes + planes.above_offset.abs() + planes.below_offset.abs()
    )
    error = error * (1 + cost) + terms * vanishing(forms.basis, error)
    radius = (planes.above_offset - low) / 2
    moved = (slope[:, None] * form.slope).sum(tuple(axis + 1 for axis in axes), keepdim=True)
    return forms.with_noise(centre + low + radius, moved, radius.clamp(min=0), error)


def mean_square_tangent(operator: InverseDeviation, form: AffineForm, basis: Basis) -> tuple[Tensor, Tensor, Tensor]:
    """The mean square at the centre of a form, its slope there, and what rounding costs both and the square part."""
    d, dims = operator.count(form.centre), operator.dims

    def mean(t: Tensor) -> Tensor:
        return t.mean(dims, keepdim=True)

    sizes = form.size(basis)
    slope = (2 * form.centre[:, None] * form.slope).mean(tuple(dim + 1 for dim in dims), keepdim=True)
    cost = share(4 * d + form.slope.shape[1] + 8, sizes.dtype)
    error = mean((2 * sizes + form.error) * form.error) * (1 + cost) + cost * mean(sizes.square())
    return mean(form.centre.square()), slope, error + 4 * vanishing(basis, sizes)


@affine_form.register(InverseDeviation)
def _(operator: InverseDeviation, forms: Forms, index: int) -> AffineForm:
    """The mean square of a form is a quadratic of the noise; its square part and the curve of the root are noise."""
    node = forms.graph.nodes[index]
    form, dims = forms.form(node.inputs[0]), operator.dims
    d, r = operator.count(form.centre), form.slope.shape[1]
    mean, slope, error = mean_square_tangent(operator, form, forms.basis)
    most = forms.radius(form).square().mean(dims, keepdim=True) * (1 + forms.share(d + 2))
    if d <= _LARGEST_ROW:
        order = [i for i in range(form.centre.ndim - 1) if i not in operator.axes] + list(operator.axes)
        lines = form.slope.permute(0, *(i + 2 for i in order), 1)  # [B or 1, *rows, *d, r]
        lines = lines.reshape(lines.shape[0], -1, d, r)
        own = forms.gauge.inner(lines, lines)
        high = forms.gauge.between(own, own, own)[1].reshape(most.shape[0], *node.shape) / d
        most = torch.minimum(most, high * (1 + forms.share(2)))
    centre = mean + most / 2
    swing = AffineForm(centre, slope, error)
    reach = forms.radius(swing) + most / 2 + forms.share(4) * centre
    below, above = forms.bounds.knowledge.find("mean square", index, lambda: (centre - reach, centre + reach))
    low, high = torch.maximum(below, centre - reach).clamp(min=0), torch.minimum(above, centre + reach)
    low, high = (torch.minimum(low, high) + operator.epsilon, torch.maximum(low, high) + operator.epsilon)
    rate, middle, radius = parallel_band(Rsqrt(), *outward(low, high))
    rounded = forms.share(6) * (rate.abs() * (swing.size(forms.basis) + operator.epsilon) + middle.abs())
    rounded = rounded + vanishing(forms.basis, rate)
    return forms.with_noise(
        rate * (centre + operator.epsilon) + middle,
        rate[:, None] * slope,
        radius + rate.abs() * most / 2,
        rate.abs() * error + rounded,
    )


_LARGEST_ROW = 64  # longer rows are not worth their eigenvalues
_FAR = 1000.0  # exp(-_FAR) is 0 in every dtype: a logit that far below the others is not there


def by_rows(t: Tensor, axis: int) -> Tensor:
    """``[B, *shape]`` as ``[B, rows, K]``, or with one number per row where the axis has size 1."""
    t = t.movedim(axis + 1, -1)
    return t.reshape(t.shape[0], -1, t.shape[-1])


def far_below(masked: Tensor, at: Tensor, differences: Interval) -> tuple[Tensor, Interval]:
    """Logits ``[B, rows, K]`` and their differences with the masked ones too low to count, in exact arithmetic, too."""
    lowest = at.masked_fill(masked, torch.inf).amin(-1, keepdim=True)
    at = torch.where(masked, lowest.nan_to_num(posinf=0.0) - _FAR, at)
    one, other = masked[..., :, None], masked[..., None, :]
    apart = torch.where(one & ~other, -_FAR, torch.where(other & ~one, _FAR, 0.0)).to(at)
    low, high = (torch.where(one | other, apart, end) for end in differences)
    return at, (low, high)


def leaking(masked: Tensor, found: AffineProbabilities, leak: Tensor) -> AffineProbabilities:
    """Probabilities of visible logits with what masked ones may take from them, and constants for the masked ones.

    A row with one visible logit is constant, too: its probability is 1 less what leaks, ``leak [B, rows, 1]``.
    """
    constant = masked | ((~masked).sum(-1, keepdim=True) == 1)
    value = torch.where(masked, 0.0, torch.where(constant, 1.0, found.value))
    slope = found.slope.masked_fill(constant[..., :, None] | masked[..., None, :], 0.0)
    error = torch.where(constant, 0.0, found.error + leak * (1 + ulps(4, leak.dtype)))
    return AffineProbabilities(found.at, value, slope, error)


def _rows_to_form(
    forms: Forms, index: int, axis: int, value: Tensor, slope: Tensor, error: Tensor, leak: Tensor
) -> AffineForm:
    """``slope [B, rows, K, r]``; where a constant is closer than the affine function, the constant.

    An error of 0 is that of a constant beside a mask, off by what leaks, which is worth no noise of its own.
    """
    known = error == 0
    node = forms.graph.nodes[index]
    moved = [s for i, s in enumerate(node.shape) if i != axis] + [node.shape[axis]]
    lower, upper = (end.movedim(axis + 1, -1).reshape(error.shape) for end in forms.bounds.interval(index))
    flat = ~(error < (upper - lower) / 2) & ~known
    value = torch.where(flat, lower + (upper - lower) / 2, value)
    error = torch.where(flat, (upper - lower) / 2 + ulps(4, lower.dtype), error)  # probabilities are at most one
    slope = torch.where(flat[..., None], 0.0, slope)

    def back(t: Tensor) -> Tensor:
        return t.reshape(*t.shape[:-2], *moved).movedim(-1, axis - len(node.shape))

    forms.errors[index] = back(error)
    beside = back(torch.where(known, leak, 0.0))
    return forms.with_noise(back(value), back(slope.movedim(-1, 1)), forms.errors[index], beside)


def _constant_rows(forms: Forms, index: int) -> AffineForm:
    lower, upper = forms.bounds.interval(index)
    slope = lower.new_zeros(1, forms.basis.size, *lower.shape[1:])
    radius = (upper - lower) / 2
    forms.errors[index] = radius
    radius = radius + ulps(4, radius.dtype)  # half a difference and a sum of numbers of at most one
    return forms.with_noise(lower + radius, slope, radius, torch.zeros_like(radius))
