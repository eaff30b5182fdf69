"""The Gaussian error linear unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Curve, Segment
from ..operator import Interval

# Where gelu has its only minimum, and the value there, rounded outward.
_VALLEY = (-0.7517915247, -0.7517915246)
_DEPTH = -0.1699712075


@dataclass(frozen=True)
class Gelu(Curve):
    """``x/2 * (1 + erf(gain*x))``: concave, convex on ``[-1/gain, 1/gain]``, concave.

    The gelu of the literature has gain 1/sqrt(2). The gain is kept as it stands in the file, so that a
    constant rounded there is not replaced by another.
    """

    name: ClassVar[str] = "Gelu"
    gain: float = math.sqrt(0.5)

    def value(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        return 0.5 * x * torch.erfc(-self.gain * x)  # 1 + erf would cancel on the left

    def derivative(self, x: Tensor) -> Tensor:
        y = self.gain * x
        return 0.5 * torch.erfc(-y) + y * torch.exp(-y * y) / math.sqrt(math.pi)

    def rounding(self, x: Tensor, y: Tensor) -> Tensor:
        # The tail of erfc multiplies the relative error of its argument by twice the argument squared.
        return super().rounding(x, y) * (1 + (self.gain * x).square())

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        stretch = math.sqrt(0.5) / self.gain
        ends = self.value(lower), self.value(upper)
        least, most = torch.minimum(*ends), torch.maximum(*ends)
        valley = (lower <= _VALLEY[1] * stretch) & (upper >= _VALLEY[0] * stretch)
        return torch.where(valley, least.clamp(max=_DEPTH * stretch), least), most

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        bend = torch.full_like(lower, 1 / self.gain)
        return -bend, bend

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        # Of the two concave parts only one can touch a line from above: the right one rises everywhere,
        # the left one falls everywhere, and a line over both rises.
        bend = torch.full_like(lower, 1 / self.gain)
        infinite = torch.full_like(lower, torch.inf)
        right = upper > bend
        return torch.where(right, bend, -infinite), torch.where(right, infinite, -bend)
