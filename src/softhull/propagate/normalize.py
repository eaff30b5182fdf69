"""Normalisation inside a walk: the mean square by walks of its own, the product with its root contracted.

``<C, z r> = sum over rows of u r`` with ``u = C . z`` along the row: one product of two numbers per row and
specification instead of one per entry. The range of u needs no walk: what the entries of z are above and below as
functions of the input is found once (``shadow``), and u is a combination of these. Where r may be anything, the
normalised vector still has at most the length ``sqrt(d)``, and so ``|C . y| <= sqrt(d) |C|``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.operator import Elementwise, Interval
from ..graph.ops.normalize import InverseDeviation, Normalized
from ..graph.rounding import largest
from .free import Free
from .log_sum_exp import by_planes
from .rules import Backs, step, tightest
from .structure import pieces, positions

if TYPE_CHECKING:
    from .crown import LinearBounds
    from .walk import Claim

# Functions of the input are kept in at most this many times the memory of one coefficient tensor.
_TENSORS = 16


@step.register(InverseDeviation)
def _(
    operator: InverseDeviation, bounds: LinearBounds, index: int, A: Tensor, contract: bool, free: Free | None
) -> Backs:
    before = bounds.graph.nodes[index].inputs[0]
    return by_planes(
        bounds,
        index,
        A,
        operator.axes,
        lambda: operator.planes(*bounds.interval(before), *_mean_square(operator, bounds, index)),
    )


@tightest.register(InverseDeviation)
def _(operator: InverseDeviation, bounds: LinearBounds, index: int, consumer: Elementwise | None) -> Interval:
    return operator.of_mean_square(*_mean_square(operator, bounds, index))


def _mean_square(operator: InverseDeviation, bounds: LinearBounds, index: int) -> Interval:
    """The range ``[B, *shape]`` of the mean square over the box, met with walks on its tangent and on its chords."""
    return bounds.knowledge.find("mean square", index, lambda: _walked(operator, bounds, index))


def _walked(operator: InverseDeviation, bounds: LinearBounds, index: int) -> Interval:
    """The range of the mean square by one walk for every row and side, met with that over the box."""
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
        found = bounds.lower(before, C)
        below, above = found[: len(part)], -found[len(part) :]
        offsets = [end.flatten(1).T[part] for end in (around.below_offset, around.above_offset)]
        cost = bounds.share(1)
        below = below + offsets[0] - cost * (below.abs() + offsets[0].abs())
        above = above + offsets[1] + cost * (above.abs() + offsets[1].abs())
        low[part] = torch.maximum(low[part], torch.where(below.isnan(), -math.inf, below))
        high[part] = torch.minimum(high[part], torch.where(above.isnan(), math.inf, above))
    low, high = (end.T.reshape(-1, *node.shape) for end in (low, high))
    return torch.minimum(low, high).clamp(min=0), torch.maximum(low, high).clamp(min=0)


@step.register(Normalized)
def _(operator: Normalized, bounds: LinearBounds, index: int, C: Tensor, contract: bool, free: Free | None) -> Backs:
    z, r = bounds.graph.nodes[index].inputs
    axes = operator.axes
    dims = tuple(axis + 2 for axis in axes)
    with torch.no_grad():
        low_u, high_u = _combined(bounds, z, C.detach(), axes)  # [S, B, *rows]
        low_r, high_r = bounds.interval(r)
        half_u, half_r = (high_u - low_u) / 2, (high_r - low_r) / 2
        mid_u, mid_r = low_u + half_u, low_r + half_r
        sizes = largest(*bounds.interval(z)) * largest(low_r, high_r)
        lost = half_u * half_r
        if bounds.outward:
            terms = bounds.share(math.prod(C.shape[2:]) + 16)
            lost = lost * (1 + terms) + 4 * terms * (C.abs() * sizes).sum(dims, keepdim=True)
        # The plane in the worst corner of what is known, against what holds of y whatever z is.
        least, most = bounds.rough(index)
        flat = (C.clamp(min=0) * least + C.clamp(max=0) * most).sum(dims, keepdim=True)
        count = math.prod(C.shape[axis + 2] for axis in axes)
        length = C.norm(dim=dims, keepdim=True) * math.sqrt(count)
        if bounds.outward:
            cost = bounds.share(2 * count + 8)
            flat = flat - cost * (C.abs() * largest(least, most)).sum(dims, keepdim=True)
            length = length * (1 + cost)
        flat = torch.maximum(flat, -length)
        worst = mid_r * low_u + torch.minimum(mid_u * low_r, mid_u * high_r) - mid_u * mid_r - lost
        constant_row = ~(worst > flat)  # also where it is not a number
    on_z = torch.where(constant_row, 0.0, C * mid_r)
    on_r = torch.where(constant_row, 0.0, mid_u)
    shift = torch.where(constant_row, flat, -(mid_u * mid_r) - lost)
    total = shift.flatten(2).sum(-1)
    if bounds.outward:
        total = total - bounds.share(math.prod(shift.shape[2:])) * shift.abs().flatten(2).sum(-1)
    return (on_z, on_r), total


@dataclass(frozen=True)
class Shadow:
    """``below . x + below_offset <= node <= above . x + above_offset``: slopes ``[B or 1, entries, moving]``.

    Only inputs that move are counted, by ``moving``; ``size [B, entries]`` bounds the terms of both functions.
    """

    below: Tensor
    below_offset: Tensor
    above: Tensor
    above_offset: Tensor
    size: Tensor
    moving: Tensor

    def take(self, instances: Tensor) -> Shadow:
        """The functions of some instances, in the order given."""

        def some(t: Tensor) -> Tensor:
            return t if t.shape[0] == 1 else t[instances]

        return Shadow(
            some(self.below),
            self.below_offset[instances],
            some(self.above),
            self.above_offset[instances],
            self.size[instances],
            self.moving,
        )


def shadow(bounds: LinearBounds, index: int) -> Shadow | None:
    """A node as functions of the input; None where they would take too much memory."""
    return bounds.knowledge.find("shadow", index, lambda: _found(bounds, index))


def _found(bounds: LinearBounds, index: int) -> Shadow | None:
    """The functions by a walk for every entry; None where they do not fit."""
    region, shape = bounds.region, bounds.graph.shape_of(index)
    moving = (region.upper > region.lower).flatten(1).any(0).nonzero()[:, 0]
    entries = math.prod(shape)
    if index < 0 or 16 * bounds.size * entries * max(1, len(moving)) > _TENSORS * bounds.memory:
        return None
    unit = torch.eye(entries, dtype=region.lower.dtype, device=region.lower.device)
    ends: list[list[tuple[Tensor, Tensor, Tensor]]] = [[], []]
    for part in pieces(positions(unit), bounds.chunk(index)):
        bounds.check_time()
        for side, claim in zip(ends, bounds.functions(index, unit[part].reshape(-1, 1, *shape))):
            side.append(_of_moving(bounds, claim, moving))
    (below, low, size), (above, high, other) = ((torch.cat(t, 1) for t in zip(*side)) for side in ends)
    return Shadow(below, low, -above, -high, torch.maximum(size, other), moving)


def _of_moving(bounds: LinearBounds, claim: Claim, moving: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes ``[B or 1, S, moving]``, offsets and sizes ``[B, S]`` of a claim; what does not move is a constant."""
    region = bounds.region
    bound = claim.bound.expand(-1, bounds.size)
    A = claim.pending.get(-1)
    if A is None:
        return bound.new_zeros(1, len(bound), len(moving)), bound.T, bound.abs().T
    A = A.flatten(2)
    at, reach = region.lower.flatten(1), largest(region.lower, region.upper).flatten(1)
    still = torch.ones_like(at[0], dtype=torch.bool)
    still[moving] = False
    constant = (A * torch.where(still, at, 0.0)).sum(-1) + bound
    size = (A.abs() * reach).sum(-1) + bound.abs()
    if bounds.outward:
        constant = constant - bounds.share(at.shape[1]) * size
    return A[..., moving].transpose(0, 1), constant.T, size.T


def _combined(bounds: LinearBounds, index: int, C: Tensor, axes: tuple[int, ...]) -> Interval:
    """The range ``[S, B, *shape with size one along axes]`` of ``C . node`` along the axes of every row."""
    dims = tuple(axis + 2 for axis in axes)
    lower, upper = bounds.interval(index)
    up, down = C.clamp(min=0), C.clamp(max=0)
    low = (up * lower + down * upper).sum(dims, keepdim=True)
    high = (up * upper + down * lower).sum(dims, keepdim=True)
    if bounds.outward:
        cost = bounds.share(2 * math.prod(C.shape[2:])) * (C.abs() * largest(lower, upper)).sum(dims, keepdim=True)
        low, high = low - cost, high + cost
    found = shadow(bounds, index)
    if found is None:
        return low, high
    shape = C.shape[2:]
    order = [i for i in range(len(shape)) if i not in axes] + list(axes)
    rows = math.prod(s for i, s in enumerate(shape) if i not in axes)

    def by_rows(t: Tensor) -> Tensor:
        """``[..., *shape]`` as ``[..., rows, d]``."""
        lead = t.ndim - len(shape)
        moved = t.permute(*range(lead), *(lead + i for i in order))
        return moved.reshape(*t.shape[:lead], rows, math.prod(shape) // rows)  # named: where no input moves, n is 0

    def lines(t: Tensor) -> Tensor:
        """``[B, entries, n]`` as ``[B, rows, d, n]``."""
        return by_rows(t.movedim(1, -1).unflatten(-1, shape)).movedim(1, -1)

    below, above = lines(found.below), lines(found.above)
    offsets = [by_rows(t.unflatten(-1, shape)) for t in (found.below_offset, found.above_offset)]
    sizes = by_rows(found.size.unflatten(-1, shape))
    exact = torch.equal(found.below, found.above)
    n = below.shape[-1]
    together = max(1, 4 * bounds.memory // (8 * bounds.size * rows * max(1, n)))
    lows, highs = [], []
    inputs = math.prod(bounds.graph.input_shape)
    for part in by_rows(C).split(together):
        ends = []
        for some in (part, -part):
            plus, minus = some.clamp(min=0), some.clamp(max=0)
            slope = _times(some, below) if exact else _times(plus, below) + _times(minus, above)
            offset = (plus * offsets[0] + minus * offsets[1]).sum(-1)  # [S, B, rows]
            full = slope.new_zeros(*slope.shape[:3], inputs)
            full[..., found.moving] = slope
            full = full.movedim(2, 1).reshape(-1, slope.shape[1], *bounds.graph.input_shape)
            least = bounds.region.minimum(full, bounds.outward).reshape(len(part), rows, -1).movedim(1, 2)
            total = least + offset
            if bounds.outward:
                total = total - 2 * bounds.share(part.shape[-1] + 4) * (some.abs() * sizes).sum(-1)
            ends.append(torch.where(total.isfinite(), total, -math.inf))
        lows.append(ends[0])
        highs.append(-ends[1])
    target = low.shape
    low = torch.maximum(low, torch.cat(lows).reshape(target))
    high = torch.minimum(high, torch.cat(highs).reshape(target))
    return torch.minimum(low, high), torch.maximum(low, high)


def _times(C: Tensor, lines: Tensor) -> Tensor:
    """``[S, B, rows, d]`` times ``[B, rows, d, n]``: ``[S, B, rows, n]``."""
    B = max(C.shape[1], lines.shape[0])
    left = C.expand(-1, B, -1, -1).permute(1, 2, 0, 3)  # [B, rows, S, d]
    return (left @ lines.expand(B, *lines.shape[1:])).permute(2, 0, 1, 3)
