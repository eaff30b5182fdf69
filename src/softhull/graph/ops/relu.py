"""The rectifier and its leaky form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Elementwise, Interval, Lines
from ..rounding import is_rounded, outward, overflown, ulps, underflow


@dataclass(frozen=True)
class Relu(Elementwise):
    """``max(x, 0)``."""

    name: ClassVar[str] = "Relu"

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(min=0)

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        return lower.clamp(min=0), upper.clamp(min=0)

    def lines(self, lower: Tensor, upper: Tensor, free: Tensor | None = None) -> Lines:
        """Above: the chord. Below: through the origin with slope ``free[0]`` where the sign is open."""
        return _kinked_lines(lower, upper, 0.0, self.start(lower, upper) if free is None else free)

    def start(self, lower: Tensor, upper: Tensor) -> Tensor:
        slope = (upper > -lower).to(lower)
        return torch.stack((slope, slope))


@dataclass(frozen=True)
class LeakyRelu(Elementwise):
    """``x`` for positive ``x``, ``slope * x`` otherwise; any real slope."""

    name: ClassVar[str] = "LeakyRelu"
    slope: float

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.where(inputs[0] > 0, inputs[0], self.slope * inputs[0])

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        least, most = (self.value(end) for end in (lower, upper))
        # one rounding of the slope and one of the product
        least, most = outward(*outward(*overflown(torch.minimum(least, most), torch.maximum(least, most))))
        if self.slope < 0:  # the valley at 0
            least = torch.where((lower < 0) & (upper > 0), torch.zeros_like(least), least)
        return least, most

    def lines(self, lower: Tensor, upper: Tensor, free: Tensor | None = None) -> Lines:
        free = self.start(lower, upper) if free is None else free
        if self.slope <= 1:
            return _kinked_lines(lower, upper, self.slope, free)
        # Steeper on the left the function is concave: chord below, support above.
        mirrored = _kinked_lines(lower, upper, self.slope, free.flip(0))
        return Lines(mirrored.upper_slope, mirrored.upper_offset, mirrored.lower_slope, mirrored.lower_offset)

    def start(self, lower: Tensor, upper: Tensor) -> Tensor:
        slope = (upper > -lower).to(lower)
        return torch.stack((slope, slope))


def _kinked_lines(lower: Tensor, upper: Tensor, left: float, free: Tensor) -> Lines:
    """Support through the kink and chord of the function with slopes ``left`` and 1 around 0.

    With ``left <= 1`` the support is below and the chord above; with ``left > 1`` it is the other way round
    and the names in the result are exchanged.
    """
    below, above = upper <= 0, lower >= 0
    crossing = ~(below | above)
    zero, one = torch.zeros_like(lower), torch.ones_like(lower)
    fixed = torch.where(above, one, one * left)
    support = torch.where(crossing, (left + (1 - left) * free[0]).clamp(min(left, 1.0), max(left, 1.0)), fixed)
    chord = torch.where(crossing, (upper - left * lower) / torch.where(crossing, upper - lower, one), fixed)
    side = 1 if left <= 1 else -1
    rounding = side * ulps(8, lower.dtype)  # a product, a difference, the slope of the function, the shift
    at_upper = upper - chord * upper + rounding * (upper.abs() + (chord * upper).abs())
    at_lower = left * lower - chord * lower + rounding * ((left * lower).abs() + (chord * lower).abs())
    offset = torch.maximum(at_lower, at_upper) if side > 0 else torch.minimum(at_lower, at_upper)
    drift = side * ulps(1, lower.dtype) * abs(left) * lower.clamp(max=0) if is_rounded(left, lower.dtype) else zero
    return Lines(support, drift, chord, torch.where(crossing, offset + side * underflow(lower.dtype), zero) - drift)
