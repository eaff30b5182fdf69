"""Matrix product of two variable tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..broadcast import align, broadcast, matmul_shape, matmul_work, sum_to_shape
from ..operator import Bilinear, Interval, Shape
from ..products import product_interval
from ..rounding import largest, overflown, share, underflow

# The interval rule forms the scalar products of a block of the inner dimension at once, at most this many.
_BLOCK = 1 << 21


@dataclass(frozen=True)
class MatMul(Bilinear):
    """``x @ y`` of instances of shape ``left`` and ``right``, whose batch dimensions broadcast."""

    name: ClassVar[str] = "MatMul"
    left: Shape
    right: Shape

    def shape(self, *shapes: Shape) -> Shape:
        return matmul_shape(*shapes)

    def work(self, *shapes: Shape) -> int:
        return matmul_work(*shapes)

    def value(self, *inputs: Tensor) -> Tensor:
        x, y = inputs
        rank = max(len(self.left), len(self.right))
        return align(x, rank, 1) @ align(y, rank, 1)

    def interval(self, *inputs: Interval) -> Interval:
        rank = max(len(self.left), len(self.right))
        (x_lower, x_upper), (y_lower, y_upper) = (
            (align(lower, rank, 1), align(upper, rank, 1)) for lower, upper in inputs
        )
        inner = x_lower.shape[-1]
        batch = broadcast(x_lower.shape[:-2], y_lower.shape[:-2])
        outputs = math.prod(batch) * x_lower.shape[-2] * y_lower.shape[-1]
        step = max(1, min(inner, _BLOCK // max(1, outputs)))
        lower = upper = x_lower.new_zeros((*batch, x_lower.shape[-2], y_lower.shape[-1]))
        for start in range(0, inner, step):
            block = slice(start, start + step)
            least, most = product_interval(
                (x_lower[..., :, block].unsqueeze(-1), x_upper[..., :, block].unsqueeze(-1)),
                (y_lower[..., block, :].unsqueeze(-3), y_upper[..., block, :].unsqueeze(-3)),
            )
            lower, upper = lower + least.sum(-2), upper + most.sum(-2)
        lower, upper = overflown(lower, upper)  # the sums; their error is infinite then
        error = share(inner + 2, lower.dtype) * (largest(x_lower, x_upper) @ largest(y_lower, y_upper))
        error = torch.where(error.isnan(), math.inf, error + underflow(lower.dtype))  # 0 times unbounded
        return lower - torch.where(lower.isinf(), 0.0, error), upper + torch.where(upper.isinf(), 0.0, error)

    def contract(self, coefficients: Tensor, side: int, other: Tensor) -> Tensor:
        other = align(other, coefficients.ndim - 2, 2)
        if side == 0:
            return sum_to_shape(coefficients @ other.mT, self.left, leading=2)
        return sum_to_shape(other.mT @ coefficients, self.right, leading=2)
