"""Constant factor and constant shift of every entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Affine, Interval, Shape, constant_part, sum_per_instance


@dataclass(frozen=True)
class Scale(Affine):
    """``factor * x + shift``; both broadcast to the shape of ``x``. A shift of -inf masks an entry."""

    name: ClassVar[str] = "Scale"
    factor: Tensor
    shift: Tensor

    def value(self, *inputs: Tensor) -> Tensor:
        return self.factor * inputs[0] + self.shift

    def range(self, *inputs: Interval) -> Interval:
        (lower, upper) = inputs[0]
        a, b = self.factor * lower, self.factor * upper
        return torch.minimum(a, b) + self.shift, torch.maximum(a, b) + self.shift

    def magnitude(self, *sizes: Tensor) -> Tensor:
        # A mask of -inf is exact; where it is asked for, the constant is infinite and says so.
        shift = self.shift.abs()
        return self.factor.abs() * sizes[0] + shift.where(shift.isfinite(), torch.zeros_like(shift))

    def terms(self, *shapes: Shape) -> int:
        return 2

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        back = coefficients * self.factor
        if bool(self.shift.isfinite().all()):
            return (back,), constant_part(coefficients, self.shift)
        charged = coefficients * self.shift
        # A masked entry (-inf) that nothing asks for contributes nothing; 0 * inf would be NaN.
        charged = torch.where(coefficients == 0, torch.zeros_like(charged), charged)
        return (back,), sum_per_instance(charged)
