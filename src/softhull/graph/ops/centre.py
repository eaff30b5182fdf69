"""Deviation from the mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Affine, Interval, Shape


@dataclass(frozen=True)
class Centre(Affine):
    """``x`` minus its mean over ``axes``: one operator, so that intervals know both are the same ``x``."""

    name: ClassVar[str] = "Centre"
    axes: tuple[int, ...]

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] - inputs[0].mean(tuple(axis + 1 for axis in self.axes), keepdim=True)

    def range(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        axes = tuple(axis + 1 for axis in self.axes)
        own = (upper - lower) / self._count(lower.shape[1:])
        return lower - upper.mean(axes, keepdim=True) + own, upper - lower.mean(axes, keepdim=True) - own

    def magnitude(self, *sizes: Tensor) -> Tensor:
        return 3 * sizes[0] + sizes[0].mean(tuple(axis + 1 for axis in self.axes), keepdim=True)

    def terms(self, *shapes: Shape) -> int:
        return self._count(shapes[0]) + 4

    def _count(self, shape: Shape) -> int:
        return math.prod(shape[axis] for axis in self.axes)

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        back = coefficients - coefficients.mean(tuple(axis + 2 for axis in self.axes), keepdim=True)
        return (back,), coefficients.new_zeros(coefficients.shape[:2])
