"""Values cut off below and above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Elementwise, Interval, Lines
from ..rounding import is_rounded, outward, ulps, underflow


@dataclass(frozen=True)
class Clip(Elementwise):
    """``min(max(x, least), most)`` with ``least < most``, one of them possibly infinite."""

    name: ClassVar[str] = "Clip"
    least: float
    most: float

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(self.least, self.most)

    def interval(self, *inputs: Interval) -> Interval:
        least, most = (self.value(end) for end in inputs[0])
        rounded = any(is_rounded(end, least.dtype) for end in (self.least, self.most))
        return outward(least, most) if rounded else (least, most)

    def lines(self, lower: Tensor, upper: Tensor, free: Tensor | None = None) -> Lines:
        """Below: from the lower kink with the share ``free[0]`` of the steepest slope; above likewise."""
        free = self.start(lower, upper) if free is None else free
        slope, offset = _line_below_clip(lower, upper, self.least, self.most, free[0])
        # Turned by 180 degrees the same function clips at -most and -least.
        above, turned = _line_below_clip(-upper, -lower, -self.most, -self.least, free[1])
        return Lines(slope, offset, above, -turned)

    def start(self, lower: Tensor, upper: Tensor) -> Tensor:
        middle = lower + (upper - lower) / 2
        return torch.stack(((middle > self.least).to(lower), (middle < self.most).to(lower)))


def _line_below_clip(lower: Tensor, upper: Tensor, least: float, most: float, share: Tensor) -> tuple[Tensor, Tensor]:
    """Any line from the pivot, the lower kink or the left end beyond it, that stays below the right end."""
    pivot = lower.clamp(min=least)
    start, end = pivot.clamp(max=most), upper.clamp(least, most)
    ahead = upper > pivot
    run = torch.where(ahead, upper - pivot, torch.ones_like(upper))
    steepest = torch.where(ahead, (end - start) / run, torch.zeros_like(run)).clamp(0, 1)
    # With the kink outside the interval the chord is best; flatter lines serve only left of the kink.
    slope = torch.where(lower < least, steepest * share, steepest)
    rounding = ulps(8, lower.dtype)  # a product, a difference, the ends of the function, the shift
    tiny = underflow(lower.dtype)
    at_pivot = start - slope * pivot - rounding * (start.abs() + (slope * pivot).abs()) - tiny
    at_end = end - slope * upper - rounding * (end.abs() + (slope * upper).abs()) - tiny
    offset = torch.where(ahead, torch.minimum(at_pivot, at_end), at_pivot)
    if is_rounded(least, lower.dtype) or is_rounded(most, lower.dtype):
        return slope, offset
    exact = (slope == 1) & (lower >= least) & (upper <= most)
    return slope, torch.where(exact, torch.zeros_like(offset), offset)
