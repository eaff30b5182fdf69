"""A value that is known up to a tiny number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Interval, Monotone, Shape
from ..rounding import outward


@dataclass(frozen=True)
class Near(Monotone):
    """``x``, off by at most ``slack``: stands where something too small to matter was left out.

    It is evaluated as ``x``; everything that bounds it charges the slack.
    """

    name: ClassVar[str] = "Near"
    exact_backward: ClassVar[bool] = True
    slack: float

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0]

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        return outward(lower - self.slack, upper + self.slack)

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        return (coefficients,), coefficients.new_zeros(coefficients.shape[:2])
