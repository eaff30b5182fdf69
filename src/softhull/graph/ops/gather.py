"""Entries picked along one axis by constant positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Monotone, Shape


@dataclass(frozen=True)
class Gather(Monotone):
    """``index_select`` along ``axis``; ``positions`` is a vector of non-negative integers."""

    name: ClassVar[str] = "Gather"
    axis: int
    positions: Tensor

    def shape(self, *shapes: Shape) -> Shape:
        return (*shapes[0][: self.axis], len(self.positions), *shapes[0][self.axis + 1 :])

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].index_select(self.axis + 1, self.positions)

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        leading = coefficients.shape[:2]
        zeros = coefficients.new_zeros((*leading, *shapes[0]))
        return (zeros.index_add(self.axis + 2, self.positions, coefficients),), coefficients.new_zeros(leading)
