"""Permutation of the axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Monotone, Shape


@dataclass(frozen=True)
class Transpose(Monotone):
    """Axis ``i`` of the output is axis ``order[i]`` of the input."""

    name: ClassVar[str] = "Transpose"
    exact_backward: ClassVar[bool] = True
    order: tuple[int, ...]

    def shape(self, *shapes: Shape) -> Shape:
        return tuple(shapes[0][axis] for axis in self.order)

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].permute((0, *(axis + 1 for axis in self.order)))

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        back = coefficients.permute((0, 1, *(axis + 2 for axis in inverse)))
        return (back,), coefficients.new_zeros(coefficients.shape[:2])
