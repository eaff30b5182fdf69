"""Sums and means along axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Monotone, Shape


@dataclass(frozen=True)
class Sum(Monotone):
    """Sum over ``axes`` (kept with size one), divided by ``divisor`` > 0: a mean when that is their size."""

    name: ClassVar[str] = "Sum"
    axes: tuple[int, ...]
    divisor: int = 1

    def shape(self, *shapes: Shape) -> Shape:
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(shapes[0]))

    def value(self, *inputs: Tensor) -> Tensor:
        total = inputs[0].sum(tuple(axis + 1 for axis in self.axes), keepdim=True)
        return total if self.divisor == 1 else total / self.divisor

    def terms(self, *shapes: Shape) -> int:
        return math.prod(shapes[0][axis] for axis in self.axes) + 1

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        leading = coefficients.shape[:2]
        share = coefficients if self.divisor == 1 else coefficients / self.divisor
        return (share.expand((*leading, *shapes[0])),), coefficients.new_zeros(leading)
