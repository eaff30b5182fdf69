"""The largest entry along axes, which only a softmax written out may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Interval, Operator, Shape


@dataclass(frozen=True)
class Maximum(Operator):
    """The maximum over ``axes``, kept with size one; simplification removes it where it shifts a softmax."""

    name: ClassVar[str] = "Maximum"
    axes: tuple[int, ...]

    def shape(self, *shapes: Shape) -> Shape:
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(shapes[0]))

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].amax(tuple(axis + 1 for axis in self.axes), keepdim=True)

    def interval(self, *inputs: Interval) -> Interval:
        return self.value(inputs[0][0]), self.value(inputs[0][1])
