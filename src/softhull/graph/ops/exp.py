"""The exponential."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..curves import Curve, Segment, everywhere, nowhere
from ..operator import Interval


@dataclass(frozen=True)
class Exp(Curve):
    """``exp(x)``: convex."""

    name: ClassVar[str] = "Exp"

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].exp()

    def derivative(self, x: Tensor) -> Tensor:
        return x.exp()

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        return lower.exp(), upper.exp()

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return everywhere(lower, upper)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return nowhere(lower, upper)
