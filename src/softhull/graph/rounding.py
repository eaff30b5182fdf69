"""How far a computed number may be from the real one: the one place that says so for networks.

Every basic operation is rounded to nearest, and a sum of n terms in any order is off by at most n units of the sum of
their absolute values. What is computed to bound an error is rounded too, as are constants that were folded at import
or brought to a shorter format; twice the number of units pays for all of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Operations around a sum: the constant added to it, the shift outward, two roundings of every constant.
AROUND = 6


def share(operations: int, dtype: torch.dtype) -> float:
    """The share of the sum of absolute values that so many successive operations may cost; inf: nothing is known."""
    cost = (operations + AROUND) * torch.finfo(dtype).eps
    return cost if cost < 0.01 else math.inf


def ulps(operations: int, dtype: torch.dtype) -> float:
    """What a few operations, counted at the call, cost relative to the largest number among them; each counts twice."""
    return operations * torch.finfo(dtype).eps


def accumulated(operations: int, dtype: torch.dtype) -> float:
    """``n u / (1 - n u)``: what n successive roundings add up to at most, and no more than that; inf: no bound."""
    step = operations * torch.finfo(dtype).eps / 2
    return step / (1 - step) if step < 0.5 else math.inf


def underflow(dtype: torch.dtype) -> float:
    """What one product may lose near zero, also where subnormal numbers are flushed to zero."""
    return torch.finfo(dtype).tiny


def euclidean(x: Tensor, dim: int) -> Tensor:
    """At least the Euclidean norm along an axis, but for its relative error: squares may vanish, or overflow."""
    squares, lost = x.square().sum(dim), x.shape[dim] * underflow(x.dtype)
    # Sums of absolute values are never below, and exact for zeros.
    unsure = ~(squares > lost / torch.finfo(x.dtype).eps) | squares.isinf()
    return (squares + lost).sqrt().masked_scatter(unsure, x.movedim(dim, -1)[unsure].abs().sum(-1))


def extreme_eigenvalues(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest eigenvalue of symmetric matrices ``[..., n, n]``, to nearest; infinite where unknown.

    In float32, libraries were seen to return wrong ones without a word. They are found in float64, and believed where
    their sum and that of their squares are those of the matrix.
    """
    n, wide = matrices.shape[-1], matrices.double()
    wide = torch.where(wide.isfinite().flatten(-2).all(-1)[..., None, None], wide, math.nan)
    values = torch.linalg.eigvalsh(wide.nan_to_num(0.0))
    trace, square = wide.diagonal(dim1=-2, dim2=-1).sum(-1), wide.square().sum((-1, -2))
    off = 4 * n * share(n * n, torch.float64)  # orthogonal steps keep every one of them up to a share of the norm
    believed = (values.sum(-1) - trace).abs() <= off * square.sqrt()
    believed &= (values.square().sum(-1) - square).abs() <= off * square
    low, high = (values[..., end].to(matrices.dtype) for end in (0, -1))
    return torch.where(believed, low, -math.inf), torch.where(believed, high, math.inf)


def is_rounded(number: float, dtype: torch.dtype) -> bool:
    """Whether a setting of an operator changes when it is brought to the format."""
    return float(torch.tensor(number, dtype=dtype)) != number


def largest(lower: Tensor, upper: Tensor) -> Tensor:
    """The largest absolute value in an interval; NaN counts as unbounded."""
    size = torch.maximum(lower.abs(), upper.abs())
    return torch.where(size.isnan(), torch.full_like(size, math.inf), size)


def overflown(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The range of finite numbers whose ends may have overflown: inward, they go to the largest number at most."""
    most = torch.finfo(lower.dtype).max
    return lower.clamp(max=most), upper.clamp(min=-most)


def outward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The next smaller and the next larger number: what one rounded operation leaves open; infinite ends are exact."""
    infinite = torch.full_like(lower, math.inf)
    return (
        torch.where(lower.isinf(), lower, torch.nextafter(lower, -infinite)),
        torch.where(upper.isinf(), upper, torch.nextafter(upper, infinite)),
    )
