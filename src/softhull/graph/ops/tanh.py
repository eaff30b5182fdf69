"""The hyperbolic tangent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Curve, Segment, left_of, right_of
from ..operator import Interval


@dataclass(frozen=True)
class Tanh(Curve):
    """``tanh(x)``: convex, then concave."""

    name: ClassVar[str] = "Tanh"

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.tanh(inputs[0])

    def derivative(self, x: Tensor) -> Tensor:
        return 4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x)  # 1 - tanh(x)**2 would cancel

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        return self.value(lower), self.value(upper)

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return left_of(0.0, lower)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return right_of(0.0, lower)
