"""Sum and difference of two variable tensors of one shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Affine, Interval, Monotone, Shape


@dataclass(frozen=True)
class Add(Monotone):
    """``x + y``."""

    name: ClassVar[str] = "Add"

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] + inputs[1]

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        return (coefficients, coefficients), coefficients.new_zeros(coefficients.shape[:2])


@dataclass(frozen=True)
class Subtract(Affine):
    """``x - y``."""

    name: ClassVar[str] = "Subtract"

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] - inputs[1]

    def interval(self, *inputs: Interval) -> Interval:
        (x_lower, x_upper), (y_lower, y_upper) = inputs
        return x_lower - y_upper, x_upper - y_lower

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        return (coefficients, -coefficients), coefficients.new_zeros(coefficients.shape[:2])
