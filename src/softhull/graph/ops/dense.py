"""Product with a constant matrix, plus a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..broadcast import align, matmul_shape, matmul_work, sum_to_shape
from ..operator import Affine, Interval, Shape, constant_part


@dataclass(frozen=True)
class Dense(Affine):
    """``x @ matrix + bias``, or ``matrix @ x + bias`` with ``left``; ``bias`` broadcasts to the output shape.

    ``matrix`` may carry batch dimensions in front, which broadcast against those of ``x``.
    """

    name: ClassVar[str] = "Dense"
    matrix: Tensor
    bias: Tensor | None = None
    left: bool = False

    def _product(self, x: Tensor, matrix: Tensor) -> Tensor:
        # A stack of matrices taller than x must broadcast behind the instance dimension, not over it.
        x = align(x, matrix.ndim, 1)
        return matrix @ x if self.left else x @ matrix

    def _factors(self, shape: Shape) -> tuple[Shape, Shape]:
        matrix = tuple(self.matrix.shape)
        return (matrix, shape) if self.left else (shape, matrix)

    def shape(self, *shapes: Shape) -> Shape:
        return matmul_shape(*self._factors(shapes[0]))

    def work(self, *shapes: Shape) -> int:
        return matmul_work(*self._factors(shapes[0])) if self.matrix.ndim > 2 else 0

    def value(self, *inputs: Tensor) -> Tensor:
        y = self._product(inputs[0], self.matrix)
        return y if self.bias is None else y + self.bias

    def range(self, *inputs: Interval) -> Interval:
        (lower, upper) = inputs[0]
        up, down = self.matrix.clamp(min=0), self.matrix.clamp(max=0)
        y_lower = self._product(lower, up) + self._product(upper, down)
        y_upper = self._product(upper, up) + self._product(lower, down)
        return (y_lower, y_upper) if self.bias is None else (y_lower + self.bias, y_upper + self.bias)

    def magnitude(self, *sizes: Tensor) -> Tensor:
        y = self._product(sizes[0], self.matrix.abs())
        return y if self.bias is None else y + self.bias.abs()

    def terms(self, *shapes: Shape) -> int:
        return 2 * self.matrix.shape[-1 if self.left else -2]

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        transposed = self.matrix.mT
        back = transposed @ coefficients if self.left else coefficients @ transposed
        if self.matrix.ndim > 2:
            back = sum_to_shape(back, shapes[0], leading=2)
        if self.bias is None:
            return (back,), coefficients.new_zeros(coefficients.shape[:2])
        return (back,), constant_part(coefficients, self.bias)
