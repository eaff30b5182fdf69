"""The Gaussian error linear unit, exact and in its approximation by tanh."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Curve, Segment, segment
from ..operator import Interval


class _Valley(Curve):
    """A function that falls to one minimum and rises: concave, convex on ``[-bend, bend]``, concave."""

    @abstractmethod
    def bend(self) -> float:
        """Where the curvature changes sign."""

    @abstractmethod
    def valley(self) -> tuple[float, float, float]:
        """An interval around the minimum and a number just below it."""

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        left, right, depth = self.valley()
        least = torch.minimum(*(self.at_least(end, self.value(end)) for end in (lower, upper)))
        most = torch.maximum(*(self.at_most(end, self.value(end)) for end in (lower, upper)))
        return torch.where((lower <= right) & (upper >= left), least.clamp(max=depth), least), most

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, -self.bend(), self.bend())

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        # Of the two concave parts only one can touch a line from above: the right one rises everywhere,
        # the left one falls everywhere, and a line over both rises.
        bend = torch.full_like(lower, self.bend())
        infinite = torch.full_like(lower, torch.inf)
        right = upper > bend
        return torch.where(right, bend, -infinite), torch.where(right, infinite, -bend)


@dataclass(frozen=True)
class Gelu(_Valley):
    """``x/2 * (1 + erf(gain*x))``; the gelu of the literature has gain 1/sqrt(2).

    The gain is kept as it stands in the file, so that a constant rounded there is not replaced by another.
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

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        return slope.abs() + 1 + (self.gain * x).square()  # the factors of its terms, magnified by the tails

    def bend(self) -> float:
        return 1 / self.gain

    def valley(self) -> tuple[float, float, float]:
        stretch = math.sqrt(0.5) / self.gain
        return -0.7517915247 * stretch, -0.7517915246 * stretch, -0.1699712075 * stretch


@dataclass(frozen=True)
class TanhGelu(_Valley):
    """``x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715*x**3)))``."""

    name: ClassVar[str] = "TanhGelu"

    def _argument(self, x: Tensor) -> Tensor:
        return math.sqrt(8 / math.pi) * x * (1 + 0.044715 * x * x)

    def value(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        return x * torch.sigmoid(self._argument(x))  # 1 + tanh would cancel on the left

    def derivative(self, x: Tensor) -> Tensor:
        y = self._argument(x)
        rise = math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return torch.sigmoid(y) + x * rise * torch.sigmoid(y) * torch.sigmoid(-y)

    def rounding(self, x: Tensor, y: Tensor) -> Tensor:
        # The exponential inside turns the absolute error of its argument into a relative one.
        return super().rounding(x, y) * (1 + self._argument(x).abs())

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        return slope.abs() + 1 + x.square()  # the factors of its terms, magnified by the tails

    def bend(self) -> float:
        return 1.4185040087908284

    def valley(self) -> tuple[float, float, float]:
        return -0.7524614221, -0.7524614220, -0.1700407506
