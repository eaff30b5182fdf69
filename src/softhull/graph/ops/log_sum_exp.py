"""The logarithm of a sum of exponentials, of which a log-softmax is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Interval, Operator, Shape
from ..rounding import share


@dataclass(frozen=True)
class Support:
    """``below . x + below_offset <= y <= above . x + above_offset``; slopes have the shape of x, offsets that of y."""

    below: Tensor
    below_offset: Tensor
    above: Tensor
    above_offset: Tensor

    def take(self, instances: Tensor) -> Support:
        """The planes of some instances, in the order given."""
        return Support(*(getattr(self, f.name)[instances] for f in fields(self)))


@dataclass(frozen=True)
class LogSumExp(Operator):
    """``log(sum exp(x))`` over ``axes``, which stay with size one: convex, and rises with every entry."""

    name: ClassVar[str] = "LogSumExp"
    axes: tuple[int, ...]

    @property
    def _dims(self) -> tuple[int, ...]:
        return tuple(axis + 1 for axis in self.axes)

    def shape(self, *shapes: Shape) -> Shape:
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(shapes[0]))

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].logsumexp(self._dims, keepdim=True)

    def interval(self, *inputs: Interval) -> Interval:
        least, most = (self.value(end) for end in inputs[0])
        cost = share(self._count(inputs[0][0]), least.dtype)
        low, high = (cost * (1 + end.abs().amax(self._dims, keepdim=True)) for end in inputs[0])
        ends = (least - low, -math.inf), (most + high, math.inf)
        lower, upper = (end.nan_to_num(unknown, math.inf, -math.inf) for end, unknown in ends)
        return lower, upper

    def _count(self, x: Tensor) -> int:
        return math.prod(x.shape[dim] for dim in self._dims)

    def planes(self, lower: Tensor, upper: Tensor) -> Support:
        """Below the tangent at the middle. Above: every exponential below its chord, the logarithm below its tangent.

        With the largest upper end c and ``s(x)`` the sum of the chords of ``exp(x - c)``,
        ``log sum exp(x) <= c + log s(x) <= c + log s(m) + (s(x) - s(m)) / s(m)``. Slopes are numbers as computed; what
        their rounding moves over the box is charged to the offsets.
        """
        dims = self._dims
        half = (upper - lower) / 2
        middle = lower + half
        top = upper.amax(dims, keepdim=True)
        first, last = (lower - top).exp(), (upper - top).exp()
        narrow = half < 1
        chord = torch.where(
            narrow,
            (middle - top).exp() * torch.where(half > 0, torch.sinh(half.clamp(max=1)) / half.clamp(min=1e-300), 1.0),
            (last - first) / (2 * half.clamp(min=1)),
        )
        total = ((first + last) / 2).sum(dims, keepdim=True)
        below, above = (middle - self.value(middle)).exp(), chord / total
        at = (below * middle).sum(dims, keepdim=True), (above * middle).sum(dims, keepdim=True)
        low, high = self.value(middle), top + total.log()
        reach = torch.maximum(lower.abs(), upper.abs()).amax(dims, keepdim=True)
        cost = share(4 * self._count(lower), lower.dtype)
        # Slopes of one row add up to a number near 1 below, to the mean growth of the chords above.
        error = [cost * (1 + reach) * (1 + slope.sum(dims, keepdim=True)) for slope in (below, above)]
        least, most = self.interval((lower, upper))
        offsets = low - at[0] - error[0] - cost * low.abs(), high - at[1] + error[1] + cost * high.abs()
        good = [
            offset.isfinite() & (slope.sum(dims, keepdim=True) < math.inf)
            for offset, slope in zip(offsets, (below, above))
        ]
        return Support(
            torch.where(good[0], below, 0.0),
            torch.where(good[0], offsets[0], least),
            torch.where(good[1], above, 0.0),
            torch.where(good[1], offsets[1], most),
        )
