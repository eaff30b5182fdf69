"""The square: one operator, because a product would forget that both factors are the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Convex
from ..operator import Interval


@dataclass(frozen=True)
class Square(Convex):
    """``x * x``: convex."""

    name: ClassVar[str] = "Square"
    codomain: ClassVar[tuple[float, float]] = (0.0, torch.inf)

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * inputs[0]

    def derivative(self, x: Tensor) -> Tensor:
        return 2 * x

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        a, b = lower * lower, upper * upper
        least = torch.where((lower <= 0) & (upper >= 0), torch.zeros_like(a), torch.minimum(a, b))
        # the least is never below zero, the error of the most is that of its own rounding
        most = torch.maximum(a, b)
        return self.at_least(least, least), self.at_most(most, most)
