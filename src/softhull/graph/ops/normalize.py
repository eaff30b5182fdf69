"""Normalisation by the root mean square: what LayerNorm does with deviations and RMSNorm with anything.

``y = z * r(z)`` with ``r(z) = 1 / sqrt(mean(z^2) + epsilon)``. The mean square ``v`` is convex in z and r is convex in
v and falls. So tangents and chords give planes of r in z whatever z is, and y, which is at most ``sqrt(d)`` whatever
happens, rises with its own entry of z and is nearer to 0 the larger the others are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Interval, Operator, Shape
from ..rounding import share, underflow
from .log_sum_exp import Support
from .product import Product


@dataclass(frozen=True)
class InverseDeviation(Operator):
    """``1 / sqrt(mean(z^2) + epsilon)`` over ``axes``, which stay with size one; ``epsilon > 0``."""

    name: ClassVar[str] = "InverseDeviation"
    axes: tuple[int, ...]
    epsilon: float

    @property
    def dims(self) -> tuple[int, ...]:
        """The axes, counted with the dimension of instances."""
        return tuple(axis + 1 for axis in self.axes)

    def count(self, z: Tensor) -> int:
        """How many entries one row has."""
        return math.prod(z.shape[dim] for dim in self.dims)

    def shape(self, *shapes: Shape) -> Shape:
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(shapes[0]))

    def value(self, *inputs: Tensor) -> Tensor:
        return (inputs[0].square().mean(self.dims, keepdim=True) + self.epsilon).rsqrt()

    def cost(self, z: Tensor) -> float:
        """What squaring, adding up and the root cost a mean square, or what is made of it, relative to itself."""
        return share(2 * self.count(z) + 8, z.dtype)

    def mean_square(self, lower: Tensor, upper: Tensor) -> Interval:
        """The exact range of the mean square over a box, without epsilon and up to rounding; NaN is unbounded."""
        a, b = lower.square(), upper.square()
        least = torch.where((lower <= 0) & (upper >= 0), 0.0, torch.minimum(a, b)).mean(self.dims, keepdim=True)
        most = torch.maximum(a, b).mean(self.dims, keepdim=True)
        cost, tiny = self.cost(lower), underflow(lower.dtype)
        # A sum that overflows says nothing below and is unbounded above.
        least, most = least * (1 - cost) - tiny, most * (1 + cost) + tiny
        return least.nan_to_num(0.0, 0.0).clamp(min=0), most.nan_to_num(math.inf, math.inf)

    def of_mean_square(self, least: Tensor, most: Tensor) -> Interval:
        """The range of the operator for mean squares in an interval."""
        cost = share(8, least.dtype)
        low, high = ((v.clamp(min=0) + self.epsilon).rsqrt() for v in (most, least))
        return low * (1 - cost), high * (1 + cost)

    def interval(self, *inputs: Interval) -> Interval:
        return self.of_mean_square(*self.mean_square(*inputs[0]))

    def around_mean_square(self, lower: Tensor, upper: Tensor) -> Support:
        """Planes around the mean square, without epsilon, over a box: the tangent at its middle below, chords above."""
        middle = lower + (upper - lower) / 2
        d = self.count(lower)
        total = lower + upper
        below_offset = -middle.square().mean(self.dims, keepdim=True)
        above_offset = -(lower * upper).mean(self.dims, keepdim=True)
        size = torch.maximum(lower.abs(), upper.abs()).square().mean(self.dims, keepdim=True)
        error = 4 * self.cost(lower) * size + underflow(lower.dtype)
        return Support(2 * middle / d, below_offset - error, total / d, above_offset + error)

    def planes(self, lower: Tensor, upper: Tensor, least: Tensor, most: Tensor) -> Support:
        """Planes in z over a box on which the mean square is also known to lie between ``least`` and ``most``.

        Below: the tangent of r at the middle of the chords, of which the mean square is at most the chords. Above: the
        chord of r between both ends, of which the mean square is at least its tangent.
        """
        squares = self.around_mean_square(lower, upper)
        low_v, high_v = (least.clamp(min=0) + self.epsilon), (most.clamp(min=0) + self.epsilon)
        low_r, high_r = self.of_mean_square(least, most)
        middle = lower + (upper - lower) / 2
        at = (squares.above * middle).sum(self.dims, keepdim=True) + squares.above_offset + self.epsilon
        at = torch.minimum(torch.maximum(at, low_v), high_v)
        root = at.rsqrt()
        tangent = -0.5 * root / at
        width = high_v - low_v
        chord = torch.where(width > 0, (low_r - high_r) / width, tangent).clamp(max=0)
        cost, reach = share(32, lower.dtype), self.epsilon + torch.maximum(high_v, at)
        # Ends and touching points are off by a share of r, a slope by a share of itself times what it meets.
        below_offset = root + tangent * (squares.above_offset + self.epsilon - at)
        above_offset = high_r + chord * (squares.below_offset + self.epsilon - low_v)
        sizes = [
            (slope.abs() * torch.maximum(lower.abs(), upper.abs())).sum(self.dims, keepdim=True) + offset.abs()
            for slope, offset in ((squares.above, squares.above_offset), (squares.below, squares.below_offset))
        ]
        count, tiny = share(2 * self.count(lower) + 16, lower.dtype), underflow(lower.dtype)
        # Slopes of r at huge mean squares, and what they are multiplied by, may be less than any number of this dtype.
        widest = 1 + torch.maximum(lower.abs(), upper.abs()).sum(self.dims, keepdim=True)
        below_offset = below_offset - cost * root - (count * tangent.abs() + tiny) * (sizes[0] + reach) - tiny * widest
        above_offset = above_offset + cost * high_r + (count * chord.abs() + tiny) * (sizes[1] + reach) + tiny * widest
        below, above = tangent * squares.above, chord * squares.below
        good = below_offset.isfinite() & (below.abs().sum(self.dims, keepdim=True) < math.inf)
        well = above_offset.isfinite() & (above.abs().sum(self.dims, keepdim=True) < math.inf)
        return Support(
            torch.where(good, below, 0.0),
            torch.where(good, below_offset, low_r),
            torch.where(well, above, 0.0),
            torch.where(well, above_offset, high_r),
        )


@dataclass(frozen=True)
class Normalized(Product):
    """The product of z and its ``InverseDeviation`` over ``axes``, which knows where its second factor is from."""

    name: ClassVar[str] = "Normalized"
    axes: tuple[int, ...]
    epsilon: float

    def interval(self, *inputs: Interval) -> Interval:
        """Exact over the box of z: its own entry at one end and the others as large, or as small, as they can be."""
        lower, upper = inputs[0]
        inverse = InverseDeviation(self.axes, self.epsilon)
        d = inverse.count(lower)
        a, b = lower.square(), upper.square()
        least = torch.where((lower <= 0) & (upper >= 0), 0.0, torch.minimum(a, b))
        most = torch.maximum(a, b)
        others = least.sum(inverse.dims, keepdim=True), most.sum(inverse.dims, keepdim=True)
        cost, tiny = inverse.cost(lower), underflow(lower.dtype)
        # What is subtracted again may leave nothing but rounding, which is charged with all that was added up.
        few = (others[0] - least - cost * others[0] - tiny).nan_to_num(0.0).clamp(min=0)
        many = (others[1] - most + cost * others[1] + tiny).nan_to_num(math.inf, math.inf)

        def at(z: Tensor, rest: Tensor) -> Tensor:
            return (z * ((z.square() + rest) / d + self.epsilon).rsqrt()).nan_to_num(0.0)

        low = at(lower, torch.where(lower < 0, few, many))
        high = at(upper, torch.where(upper > 0, few, many))
        cost = share(16, lower.dtype)
        limit = math.sqrt(d) * (1 + cost)
        low, high = low - cost * low.abs() - tiny, high + cost * high.abs() + tiny
        # An end that overflowed on the way says nothing; the limit always holds.
        low = torch.where((a + few).isfinite(), low, torch.where(lower > 0, 0.0, -limit))
        high = torch.where((b + few).isfinite(), high, torch.where(upper < 0, 0.0, limit))
        plain = super().interval(*inputs)
        low = torch.maximum(low, plain[0].nan_to_num(-math.inf)).clamp(-limit, limit)
        high = torch.minimum(high, plain[1].nan_to_num(math.inf)).clamp(-limit, limit)
        return torch.minimum(low, high), torch.maximum(low, high)
