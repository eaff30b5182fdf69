"""A regular part of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Monotone, Shape


@dataclass(frozen=True)
class Slice(Monotone):
    """``ranges`` holds one ``(start, stop, step)`` per axis, non-negative, ``step >= 1``."""

    name: ClassVar[str] = "Slice"
    exact_backward: ClassVar[bool] = True
    ranges: tuple[tuple[int, int, int], ...]

    def _index(self) -> tuple[slice, ...]:
        return tuple(slice(*part) for part in self.ranges)

    def shape(self, *shapes: Shape) -> Shape:
        return tuple(len(range(size)[slice(*part)]) for size, part in zip(shapes[0], self.ranges, strict=True))

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0][(slice(None), *self._index())]

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        leading = coefficients.shape[:2]
        back = coefficients.new_zeros((*leading, *shapes[0]))
        back[(slice(None), slice(None), *self._index())] = coefficients
        return (back,), coefficients.new_zeros(leading)
