"""The logistic function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Curve, Segment, left_of, right_of
from ..operator import Interval


@dataclass(frozen=True)
class Sigmoid(Curve):
    """``1 / (1 + exp(-x))``: convex, then concave."""

    name: ClassVar[str] = "Sigmoid"

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.sigmoid(inputs[0])

    def derivative(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * torch.sigmoid(-x)

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        return self.value(lower), self.value(upper)

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return left_of(0.0, lower)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return right_of(0.0, lower)
