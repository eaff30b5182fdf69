"""Constant powers; those with operators of their own are the square, the cube, the root and the reciprocals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Curve, Segment, segment
from ..domain import refuse
from ..operator import Interval
from ..rounding import is_rounded, ulps


@dataclass(frozen=True)
class Power(Curve):
    """``x ** exponent`` where that is a real number: anywhere, off 0, or right of it."""

    name: ClassVar[str] = "Power"
    exponent: float = 4.0
    label: str = ""

    @property
    def _whole(self) -> bool:
        return self.exponent == round(self.exponent)

    @property
    def _odd(self) -> bool:
        return self._whole and self.exponent % 2 == 1

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.pow(inputs[0], self.exponent)

    def derivative(self, x: Tensor) -> Tensor:
        return self.exponent * torch.pow(x, self.exponent - 1)

    def rounding(self, x: Tensor, y: Tensor) -> Tensor:
        # An exponent brought to a shorter format is off by a share of itself, which the logarithm of x multiplies.
        return super().rounding(x, y) + self._drift(x) * y.abs()

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        return slope.abs() * (1 + self._drift(x) / ulps(1, x.dtype))

    def _drift(self, x: Tensor) -> Tensor:
        if not any(is_rounded(number, x.dtype) for number in (self.exponent, self.exponent - 1)):
            return torch.zeros_like(x)
        away = torch.where(x > 0, x, 1.0).log().abs()
        return ulps(2, x.dtype) * (1 + abs(self.exponent)) * away

    def check(self, lower: Tensor, upper: Tensor) -> None:
        if self._whole and self.exponent > 0:
            return
        inside = (lower > 0) | (upper < 0) if self._whole else lower > 0
        refuse(~inside, lower, upper, f"the power {self.exponent:g}", self.label)

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        self.check(lower, upper)
        ends = [(end, self.value(end)) for end in (lower, upper)]
        least = torch.minimum(*(self.at_least(x, y) for x, y in ends))
        most = torch.maximum(*(self.at_most(x, y) for x, y in ends))
        if self._odd:
            return least, most
        return torch.where((lower <= 0) & (upper >= 0), 0.0, least.clamp(min=0)), most

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        if self._odd:
            return segment(lower, 0.0, torch.inf)
        up = not 0 < self.exponent < 1
        return segment(lower, -torch.inf, torch.inf) if up else segment(lower, torch.inf, -torch.inf)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        if self._odd:
            return segment(lower, -torch.inf, 0.0)
        down = 0 < self.exponent < 1
        return segment(lower, -torch.inf, torch.inf) if down else segment(lower, torch.inf, -torch.inf)
