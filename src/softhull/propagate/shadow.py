"""Nodes as functions of the input: what their entries are above and below, found once.

A combination of entries is then bounded by a combination of these functions, for the price of a matrix product where a
walk would go through the whole network again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.operator import Interval
from ..graph.rounding import largest
from .structure import pieces, positions

if TYPE_CHECKING:
    from .crown import LinearBounds
    from .walk import Claim

# Functions of the input are kept in at most this many times the memory of one coefficient tensor, and always where they
# take no more than so many bytes for one instance.
_TENSORS, _FEW = 16, 1 << 20
# Every walk through a normalisation multiplies by all of them: with more numbers than this that takes longer than the
# rest of the walk, and grows with the cube of the number of tokens.
_NORMALIZED = 1 << 20
# Weights of the plane through the lower ends of both factors of a product that are tried.
MIXTURES = (0.5, 1.0, 0.0)
# Of choices that are as good up to this share the first is taken, so that rounding decides nothing.
_TIE = 1e-6


@dataclass(frozen=True)
class Shadow:
    """``below . x + below_offset <= node <= above . x + above_offset``: slopes ``[B or 1, entries, moving]``.

    Only inputs that move are counted, by ``moving``; ``size [B, entries]`` bounds the terms of both functions. Where
    more is known, ``closer(lines, C)`` are lower ends as of ``least_combined``, or -inf.
    """

    below: Tensor
    below_offset: Tensor
    above: Tensor
    above_offset: Tensor
    size: Tensor
    moving: Tensor
    closer: Callable[[Tensor, Tensor], Tensor] | None = None

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

    def reordered(self, order: Tensor) -> Shadow:
        """The functions of a node whose entries are these in the order given."""
        below, low, above, high, size = (
            t[:, order] for t in (self.below, self.below_offset, self.above, self.above_offset, self.size)
        )
        return Shadow(below, low, above, high, size, self.moving)


def shadow(bounds: LinearBounds, index: int) -> Shadow | None:
    """A node as functions of the input; None where they would take too much memory."""
    return bounds.knowledge.find("shadow", index, lambda: _found(bounds, index))


def clearly_above(one: Tensor, other: Tensor) -> Tensor:
    """Where a bound is better than another one by more than rounding may be the reason of; not where it is NaN."""
    return one > other + torch.where(other.isfinite(), _TIE * other.abs(), 0.0)


def few(bounds: LinearBounds, index: int) -> bool:
    """Whether the functions of a node cost little, whatever the other instances are: fewer inputs move than it has."""
    entries = math.prod(bounds.graph.shape_of(index))
    return _bytes(bounds, index) <= min(_FEW, 16 * entries**2)


def _bytes(bounds: LinearBounds, index: int) -> int:
    """The memory that both functions of every entry take for one instance."""
    return 16 * math.prod(bounds.graph.shape_of(index)) * max(1, len(moving_inputs(bounds)))


def moving_inputs(bounds: LinearBounds) -> Tensor:
    """The inputs that move in some instance; those that the graph does not read have no part in any function."""
    moves = (bounds.region.upper > bounds.region.lower).flatten(1).any(0)
    return (moves & bounds.structure.read.to(moves.device)).nonzero()[:, 0]


def _found(bounds: LinearBounds, index: int) -> Shadow | None:
    """The functions by a walk for every entry; None where they do not fit."""
    region, shape = bounds.region, bounds.graph.shape_of(index)
    moving = moving_inputs(bounds)
    entries = math.prod(shape)
    if index < 0 or not (few(bounds, index) or bounds.size * _bytes(bounds, index) <= _TENSORS * bounds.memory):
        return None
    if entries * len(moving) > _NORMALIZED and bounds.structure.is_normalized(index):
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


def combined(bounds: LinearBounds, index: int, lines: Tensor, C: Tensor) -> Interval:
    """The ranges ``[S, B, rows]`` of ``C [S, B or 1, rows or 1, d]`` times the entries ``lines [rows, d]`` of a node.

    From its interval, and from its functions of the input where these fit the memory.
    """
    low, high = least_combined(bounds, index, lines, C), -least_combined(bounds, index, lines, -C)
    return torch.minimum(low, high), torch.maximum(low, high)


def least_combined(bounds: LinearBounds, index: int, lines: Tensor, C: Tensor) -> Tensor:
    """The lower ends of these ranges, which rounding may have put above the upper ones."""
    lower, upper = (end.flatten(1)[:, lines] for end in bounds.interval(index))  # [B, rows, d]
    if bounds.outward:
        cost = bounds.share(2 * lines.shape[1]) * largest(lower, upper)
        lower, upper = lower - 2 * cost, upper + 2 * cost
    low = _sums(C.clamp(min=0), lower) + _sums(C.clamp(max=0), upper)
    found = shadow(bounds, index)
    if found is None:
        return low
    moved = ((found.below != 0) | (found.above != 0)).any(-1).any(0)[lines].any(-1).nonzero()[:, 0]
    if not len(moved) or not len(C):  # constants, of which their box says all, or nothing asked
        return low
    lines = lines[moved]
    C = C[:, :, moved] if C.shape[2] > 1 else C
    if found.closer is not None:
        low[..., moved] = torch.maximum(low[..., moved], found.closer(lines, C))
    parts = []
    for part in pieces(positions(C), together(bounds, len(lines))):
        bounds.check_time()
        parts.append(lower_function(bounds, found, lines, C[part]).least(bounds))
    least = torch.cat(parts)
    low[..., moved] = torch.maximum(low[..., moved], torch.where(least.isfinite(), least, -math.inf))
    return low


def together(bounds: LinearBounds, rows: int) -> int:
    """How many combinations of so many rows to work on at once."""
    return max(1, 4 * bounds.memory // (8 * bounds.size * rows * max(1, len(moving_inputs(bounds)))))


@dataclass(frozen=True)
class Function:
    """``slope . x + offset``: ``slope [S, B, rows, moving]`` over the inputs that move, ``offset [S, B, rows]``."""

    slope: Tensor
    offset: Tensor
    moving: Tensor

    def plus(self, other: Function) -> Function:
        """The sum of both."""
        return Function(self.slope + other.slope, self.offset + other.offset, self.moving)

    def times(self, factor: Tensor) -> Function:
        """Multiplied by ``factor [S, B, rows]``."""
        return Function(factor[..., None] * self.slope, factor * self.offset, self.moving)

    def least(self, bounds: LinearBounds) -> Tensor:
        """The least value ``[S, B, rows]`` over the region."""
        S, _, rows = self.slope.shape[:3]
        slope = self.slope.transpose(1, 2).flatten(0, 1)
        found = bounds.region.minimum_along(self.moving, slope, bounds.outward)
        return found.reshape(S, rows, -1).transpose(1, 2) + self.offset


def lower_function(bounds: LinearBounds, found: Shadow, lines: Tensor, C: Tensor) -> Function:
    """A function of the input below ``C [S, B or 1, rows or 1, d]`` times the entries ``lines [rows, d]`` of a node."""
    plus, minus = C.clamp(min=0), C.clamp(max=0)
    slope = _times(plus, found.below[:, lines]) + _times(minus, found.above[:, lines])
    offset = _sums(plus, found.below_offset[:, lines]) + _sums(minus, found.above_offset[:, lines])
    if bounds.outward:
        offset = offset - 2 * bounds.share(lines.shape[1] + 4) * _sums(C.abs(), found.size[:, lines])
    return Function(slope, offset, found.moving)


def _sums(C: Tensor, entries: Tensor) -> Tensor:
    """``[S, B or 1, rows or 1, d]`` times ``[B, rows, d]``, added up along d: ``[S, B, rows]``."""
    if C.shape[2] == 1:
        return torch.einsum("sbd,brd->sbr", C[:, :, 0].expand(-1, len(entries), -1), entries)
    return torch.einsum("sbrd,brd->sbr", C.expand(-1, len(entries), -1, -1), entries)


def _times(C: Tensor, lines: Tensor) -> Tensor:
    """``[S, B or 1, rows or 1, d]`` times ``[B or 1, rows, d, n]``: ``[S, B or 1, rows, n]``."""
    B = max(C.shape[1], lines.shape[0])
    left = C.expand(-1, B, lines.shape[1], -1).permute(1, 2, 0, 3)  # [B, rows, S, d]
    return (left @ lines.expand(B, *lines.shape[1:])).permute(2, 0, 1, 3)
