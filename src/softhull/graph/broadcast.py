"""Shapes that stretch to fit each other, and the sums that undo the stretching."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from .operator import Shape


def broadcast(*shapes: Shape) -> Shape:
    """The common shape of one instance; raises ValueError where there is none."""
    try:
        return np.broadcast_shapes(*shapes)  # torch's own loads sympy, a second at every start
    except ValueError:
        raise ValueError(f"shapes {' and '.join(map(str, shapes))} do not fit each other") from None


def matmul_shape(left: Shape, right: Shape) -> Shape:
    """The shape of a product of matrices, or of stacks of them that broadcast."""
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise ValueError(f"cannot multiply matrices of shape {left} and {right}")
    return (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])


def matmul_work(left: Shape, right: Shape) -> int:
    """The entries of both factors where stacks of them broadcast: torch writes every repetition out."""
    stack = math.prod(broadcast(left[:-2], right[:-2]))
    parts = ((stack, math.prod(shape[:-2]), shape[-2] * shape[-1]) for shape in (left, right))
    return sum(stack * size for stack, own, size in parts if own < stack)


def sum_to_shape(x: Tensor, shape: Shape, leading: int) -> Tensor:
    """Sum the entries of ``x`` that broadcasting made out of one entry of ``shape``.

    ``x`` has ``leading`` batch dimensions in front, which are kept.
    """
    extra = x.ndim - leading - len(shape)
    if extra:
        x = x.sum(tuple(range(leading, leading + extra)))
    stretched = tuple(leading + i for i, size in enumerate(shape) if size == 1 and x.shape[leading + i] != 1)
    return x.sum(stretched, keepdim=True) if stretched else x


def align(x: Tensor, rank: int, leading: int) -> Tensor:
    """Insert ones after the ``leading`` batch dimensions until one instance has ``rank`` dimensions."""
    missing = rank - (x.ndim - leading)
    return x.reshape((*x.shape[:leading], *(1,) * missing, *x.shape[leading:])) if missing > 0 else x
