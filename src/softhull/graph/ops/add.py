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
    exact_backward: ClassVar[bool] = True

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] + inputs[1]

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        return (coefficients, coefficients), coefficients.new_zeros(coefficients.shape[:2])

    def terms(self, *shapes: Shape) -> int:
        return 1


@dataclass(frozen=True)
class Subtract(Affine):
    """``x - y``."""

    name: ClassVar[str] = "Subtract"
    exact_backward: ClassVar[bool] = True

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] - inputs[1]

    def range(self, *inputs: Interval) -> Interval:
        (x_lower, x_upper), (y_lower, y_upper) = inputs
        return x_lower - y_upper, x_upper - y_lower

    def magnitude(self, *sizes: Tensor) -> Tensor:
        return sizes[0] + sizes[1]

    def terms(self, *shapes: Shape) -> int:
        return 1

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        return (coefficients, -coefficients), coefficients.new_zeros(coefficients.shape[:2])
