"""Entry by entry product of two variable tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..broadcast import align, broadcast, sum_to_shape
from ..operator import Bilinear, Interval, Shape
from ..products import product_interval
from ..rounding import outward, overflown


@dataclass(frozen=True)
class Product(Bilinear):
    """``x * y`` of instances of shape ``left`` and ``right``, which broadcast."""

    name: ClassVar[str] = "Product"
    left: Shape
    right: Shape

    def _aligned(self, x: Tensor, y: Tensor, leading: int = 1) -> tuple[Tensor, Tensor]:
        rank = max(len(self.left), len(self.right))
        return align(x, rank, leading), align(y, rank, leading)

    def shape(self, *shapes: Shape) -> Shape:
        return broadcast(*shapes)

    def value(self, *inputs: Tensor) -> Tensor:
        x, y = self._aligned(inputs[0], inputs[1])
        return x * y

    def interval(self, *inputs: Interval) -> Interval:
        (x_lower, x_upper), (y_lower, y_upper) = inputs
        x_lower, y_lower = self._aligned(x_lower, y_lower)
        x_upper, y_upper = self._aligned(x_upper, y_upper)
        return outward(*overflown(*product_interval((x_lower, x_upper), (y_lower, y_upper))))

    def contract(self, coefficients: Tensor, side: int, other: Tensor) -> Tensor:
        target = (self.left, self.right)[side]
        return sum_to_shape(coefficients * align(other, coefficients.ndim - 2, 2), target, leading=2)
