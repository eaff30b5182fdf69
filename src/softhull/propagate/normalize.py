"""Normalisation inside a walk: the mean square by walks of its own, the product with its root contracted.

``<C, z r> = sum over rows of u r`` with ``u = C . z`` along the row: one product of two numbers per row and
specification instead of one per entry. The range of u needs no walk: what the entries of z are above and below as
functions of the input is found once (``shadow``), and u is a combination of these. Where r may be anything, the
normalised vector still has at most the length ``sqrt(d)``, and so ``|C . y| <= sqrt(d) |C|``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.operator import Elementwise, Interval
from ..graph.ops.log_sum_exp import Support
from ..graph.ops.normalize import InverseDeviation, Normalized
from ..graph.rounding import euclidean, largest
from .free import Free
from .log_sum_exp import by_planes, planes_of
from .rules import Backs, step, tightest
from .shadow import MIXTURES, clearly_above, combined, least_combined
from .structure import pieces, positions

if TYPE_CHECKING:
    from .crown import LinearBounds


@step.register(InverseDeviation)
def _(
    operator: InverseDeviation, bounds: LinearBounds, index: int, A: Tensor, contract: bool, free: Free | None
) -> Backs:
    return by_planes(bounds, index, A, operator.axes, lambda: _around(operator, bounds, index))


def _around(operator: InverseDeviation, bounds: LinearBounds, index: int) -> Support:
    """Planes in z, over all that is known of it."""
    before = bounds.graph.nodes[index].inputs[0]
    return operator.planes(*bounds.interval(before), *_mean_square(operator, bounds, index))


@tightest.register(InverseDeviation)
def _(operator: InverseDeviation, bounds: LinearBounds, index: int, consumer: Elementwise | None) -> Interval:
    return operator.of_mean_square(*_mean_square(operator, bounds, index))


def _mean_square(operator: InverseDeviation, bounds: LinearBounds, index: int) -> Interval:
    """The range ``[B, *shape]`` of the mean square over the box, met with walks on its tangent and on its chords."""
    return bounds.knowledge.find("mean square", index, lambda: walked_mean_square(operator, bounds, index))


def walked_mean_square(
    operator: InverseDeviation,
    bounds: LinearBounds,
    index: int,
    by: Callable[[int, Tensor], Tensor] | None = None,
) -> Interval:
    """The range of the mean square by one walk for every row and side, met with that over the box.

    ``by``: what bounds rows of a node from below, if not walks to the input.
    """
    node = bounds.graph.nodes[index]
    before = node.inputs[0]
    lower, upper = bounds.interval(before)
    least, most = operator.mean_square(lower, upper)
    around = operator.around_mean_square(lower, upper)
    if not bool((around.below_offset + around.above_offset).isfinite().all()):
        return least, most
    rows = math.prod(node.shape)
    unit = torch.eye(rows, dtype=lower.dtype, device=lower.device).reshape(rows, 1, *node.shape)
    low, high = least.flatten(1).T.clone(), most.flatten(1).T.clone()
    for part in pieces(positions(unit), max(1, bounds.chunk(before) // 2)):
        bounds.check_time()
        C = torch.cat((unit[part] * around.below, -unit[part] * around.above))
        found = bounds.lower(before, C) if by is None else by(before, C)
        below, above = found[: len(part)], -found[len(part) :]
        offsets = [end.flatten(1).T[part] for end in (around.below_offset, around.above_offset)]
        cost = bounds.share(1)
        square = (-offsets[0]).clamp(min=0) * (1 + 4 * operator.cost(lower))  # at least that of the middle
        along = (below / 2).clamp(min=0).square() / square * (1 - 8 * cost)
        below = below + offsets[0] - cost * (below.abs() + offsets[0].abs())
        # m . z <= |m| |z|: what is known of the tangent bounds the square root, too, and that never below 0.
        below = torch.maximum(below, torch.where(along.isfinite(), along, -math.inf))
        above = above + offsets[1] + cost * (above.abs() + offsets[1].abs())
        low[part] = torch.maximum(low[part], torch.where(below.isnan(), -math.inf, below))
        high[part] = torch.minimum(high[part], torch.where(above.isnan(), math.inf, above))
    low, high = (end.T.reshape(-1, *node.shape) for end in (low, high))
    return torch.minimum(low, high).clamp(min=0), torch.maximum(low, high).clamp(min=0)


@step.register(Normalized)
def _(operator: Normalized, bounds: LinearBounds, index: int, C: Tensor, contract: bool, free: Free | None) -> Backs:
    """Per row the plane through the lower ends of u and r, through the upper ends, their mean, or a constant.

    Whichever is highest where it is least, as a function of the input.
    """
    z, r = bounds.graph.nodes[index].inputs
    axes = operator.axes
    dims = tuple(axis + 2 for axis in axes)
    with torch.no_grad():
        low_u, high_u = _combined(bounds, z, C.detach(), axes)  # [S, B, *rows]
        low_r, high_r = bounds.interval(r)
        paid = torch.zeros_like(low_u)
        if bounds.outward:
            sizes = largest(*bounds.interval(z)) * largest(low_r, high_r)
            paid = 4 * bounds.share(math.prod(C.shape[2:]) + 16) * (C.abs() * sizes).sum(dims, keepdim=True)
        best = _constant(bounds, index, C, axes)
        share = torch.full_like(low_u, -1.0)  # of the lower ends; below 0: a constant
        shift = best
        for weight in MIXTURES:
            on_u, on_r = weight * low_r + (1 - weight) * high_r, weight * low_u + (1 - weight) * high_u
            offset = -(weight * low_u * low_r + (1 - weight) * high_u * high_r) - paid
            least = offset + _least(bounds, index, C * on_u, on_r, axes)
            better = clearly_above(least, best)
            best, share = torch.where(better, least, best), torch.where(better, weight, share)
            shift = torch.where(better, offset, shift)
    plane = share >= 0
    on_z = torch.where(plane, C * (share * low_r + (1 - share) * high_r), 0.0)
    on_r = torch.where(plane, share * low_u + (1 - share) * high_u, 0.0)
    total = shift.flatten(2).sum(-1)
    if bounds.outward:
        total = total - bounds.share(math.prod(shift.shape[2:])) * shift.abs().flatten(2).sum(-1)
    return (on_z, on_r), total


def _constant(bounds: LinearBounds, index: int, C: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A lower bound ``[S, B, *rows]`` on ``C . y`` along every row, by the box of y and by its length."""
    dims = tuple(axis + 2 for axis in axes)
    least, most = bounds.rough(index)
    flat = (C.clamp(min=0) * least + C.clamp(max=0) * most).sum(dims, keepdim=True)
    count = math.prod(C.shape[axis + 2] for axis in axes)
    rows = C.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))
    kept = [1 if dim in dims else size for dim, size in enumerate(C.shape)]
    length = euclidean(rows, -1).reshape(kept) * math.sqrt(count)
    if bounds.outward:
        cost = bounds.share(2 * count + 8)
        flat = flat - cost * (C.abs() * largest(least, most)).sum(dims, keepdim=True)
        length = length * (1 + cost)
    return torch.maximum(flat, -length)


def _least(bounds: LinearBounds, index: int, on_z: Tensor, on_r: Tensor, axes: tuple[int, ...]) -> Tensor:
    """About the least ``[S, B, *rows]`` of ``on_z . z + on_r r`` along every row, with r by its planes."""
    z, r = bounds.graph.nodes[index].inputs
    inverse = bounds.graph.nodes[r].operator
    assert isinstance(inverse, InverseDeviation)
    planes = planes_of(bounds, r, axes, lambda: _around(inverse, bounds, r))
    rising = on_r >= 0
    slope = torch.where(rising, planes.below, planes.above)
    offset = torch.where(rising, planes.below_offset, planes.above_offset)
    lines, rows, kept = _by_rows(on_z + on_r * slope, axes)
    least = least_combined(bounds, z, lines, rows)
    return least.reshape(*least.shape[:2], *kept) + on_r * offset


def _combined(bounds: LinearBounds, index: int, C: Tensor, axes: tuple[int, ...]) -> Interval:
    """The range ``[S, B, *shape with size one along axes]`` of ``C . node`` along the axes of every row."""
    lines, rows, kept = _by_rows(C, axes)
    low, high = (end.reshape(*end.shape[:2], *kept) for end in combined(bounds, index, lines, rows))
    return low, high


def _by_rows(C: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, list[int]]:
    """The entries ``[rows, d]`` of every row along the axes, ``C [..., rows, d]``, and the shape of what rows give."""
    shape = C.shape[2:]
    order = [i for i in range(len(shape)) if i not in axes] + list(axes)
    d = math.prod(shape[axis] for axis in axes)

    def moved(t: Tensor) -> Tensor:
        lead = t.ndim - len(shape)
        there = t.permute(*range(lead), *(lead + i for i in order))
        return there.reshape(*t.shape[:lead], math.prod(shape) // d, d)

    lines = moved(torch.arange(math.prod(shape), device=C.device).reshape(shape))
    return lines, moved(C), [1 if axis in axes else size for axis, size in enumerate(shape)]
