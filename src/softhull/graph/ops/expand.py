"""Entries repeated to fill a larger shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..broadcast import align, sum_to_shape
from ..operator import Monotone, Shape


@dataclass(frozen=True)
class Expand(Monotone):
    """Broadcast one instance to the shape ``target``."""

    name: ClassVar[str] = "Expand"
    target: Shape

    def shape(self, *shapes: Shape) -> Shape:
        return self.target

    def value(self, *inputs: Tensor) -> Tensor:
        x = align(inputs[0], len(self.target), 1)
        return x.expand((x.shape[0], *self.target))

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        back = sum_to_shape(coefficients, shapes[0], leading=2)
        return (back,), coefficients.new_zeros(coefficients.shape[:2])
