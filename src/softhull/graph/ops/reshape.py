"""The same entries in another shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Monotone, Shape


@dataclass(frozen=True)
class Reshape(Monotone):
    """Entries in row-major order under the shape ``target``."""

    name: ClassVar[str] = "Reshape"
    exact_backward: ClassVar[bool] = True
    target: Shape

    def shape(self, *shapes: Shape) -> Shape:
        return self.target

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].reshape((inputs[0].shape[0], *self.target))

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        leading = coefficients.shape[:2]
        return (coefficients.reshape((*leading, *shapes[0])),), coefficients.new_zeros(leading)
