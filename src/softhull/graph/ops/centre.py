"""Deviation from the mean."""

from __future__ import annotations

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

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        axes = tuple(axis + 1 for axis in self.axes)
        count = 1
        for axis in axes:
            count *= lower.shape[axis]
        own = (upper - lower) / count
        return lower - upper.mean(axes, keepdim=True) + own, upper - lower.mean(axes, keepdim=True) - own

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        back = coefficients - coefficients.mean(tuple(axis + 2 for axis in self.axes), keepdim=True)
        return (back,), coefficients.new_zeros(coefficients.shape[:2])
