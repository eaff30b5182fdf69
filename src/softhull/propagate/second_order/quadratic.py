"""Certified lower bounds on a quadratic of the noise, ``l.eps + eps'B eps``, over a box or a box met with a ball."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidInput
from ...graph.broadcast import broadcast
from ...graph.rounding import accumulated, ulps, underflow
from .central_path import followed, usable
from .dual import NEXT_TO, Problem, Pursuit, Solved, bound, cost

# Noise numbers up to which three factorisations a step are worth their time.
NEWTON_UP_TO = 512


@dataclass(frozen=True)
class QuadraticBound:
    """``l.eps + eps'B eps >= value`` for all noise; ``-inf`` where nothing could be said.

    ``d`` is the certificate: ``diag(d) + B`` is positive semidefinite and ``value`` is at most
    ``-cost(d) - l'(diag(d) + B)^-1 l / 4`` (see ``dual.py``).
    """

    value: Tensor  # [...]
    d: Tensor  # [..., n]


def quadratic_lower_bound(l: Any, B: Any, ball: Any = None, *, steps: int = 12) -> QuadraticBound:  # noqa: E741
    """Certified lower bound on ``l.eps + eps'B eps`` over ``eps`` in ``[-1, 1]^n``, batched, with its certificate.

    NaN or overflow gives ``-inf``. Rounding is charged: the value holds for the numbers as given.

    Args:
        l (tensor [..., n]): The linear part.
        B (tensor [..., n, n]): The quadratic part; its symmetric part counts.
        ball (mask [n]): The noise that also lies in the unit l_2 ball.
        steps: At most so many factorisations; 0 leaves the bound by absolute sums.
    """
    linear, B = (torch.as_tensor(part) for part in (l, B))
    dtype = torch.promote_types(linear.dtype, B.dtype)
    if not dtype.is_floating_point:
        dtype = torch.float64
    linear, B = linear.to(dtype), B.to(dtype)
    if linear.ndim < 1 or B.shape[-2:] != (linear.shape[-1], linear.shape[-1]):
        raise InvalidInput(f"l [..., n] and B [..., n, n] do not fit: {tuple(l.shape)} and {tuple(B.shape)}")
    n = linear.shape[-1]
    if ball is not None:
        ball = torch.as_tensor(ball, dtype=torch.bool)
        if ball.shape != (n,):
            raise InvalidInput(f"ball must be a mask of {n} entries, got shape {tuple(ball.shape)}")
    leading = broadcast(linear.shape[:-1], B.shape[:-2])
    count = math.prod(leading)
    problem = DenseQuadratic(
        linear.expand(*leading, n).reshape(count, n), B.expand(*leading, n, n).reshape(count, n, n), ball
    )
    with torch.no_grad():
        value, d = bound(problem, Pursuit(steps, linear.new_full((count,), math.inf)))
    return QuadraticBound(value.reshape(leading), d.reshape(*leading, n))


class DenseQuadratic(Problem):
    """Quadratics with matrices ``B [P, n, n]``, symmetrised here."""

    def __init__(self, linear: Tensor, B: Tensor, ball: Tensor | None = None) -> None:
        self.linear = linear
        self.ball = ball
        self.B = (B + B.mT) / 2

    def take(self, which: Tensor) -> DenseQuadratic:
        part = DenseQuadratic.__new__(DenseQuadratic)
        part.linear, part.B, part.ball = self.linear[which], self.B[which], self.ball
        return part

    def times(self, e: Tensor) -> Tensor:
        return (self.B @ e[..., None])[..., 0]

    @property
    def operations(self) -> int:
        return self.B.shape[-1] + 2

    def diagonal(self) -> Tensor:
        return self.B.diagonal(dim1=-2, dim2=-1)

    def row_sums(self) -> Tensor:
        return self.B.abs().sum(-1)

    def shifted(self, d: Tensor) -> Tensor:
        """``diag(d) + B``; noise that enters nowhere gets a diagonal of its own, which is free."""
        idle = (self.linear == 0) & (self.B == 0).all(-1)
        return self.B + torch.diag_embed(torch.where(idle, torch.ones_like(d), d))

    def solve(self, d: Tensor) -> Solved:
        factor, info = torch.linalg.cholesky_ex(self.shifted(d))
        inverse = torch.cholesky_inverse(usable(factor, info))
        x = (inverse @ self.linear[..., None])[..., 0] / 2
        return Solved(info == 0, x, inverse.diagonal(dim1=-2, dim2=-1))

    def improved(self, d: Tensor, value: Tensor, steps: Tensor, target: Tensor) -> Tensor:
        """By the central path; where one multiplier stands for a whole ball, and where n is large, by fixed points."""
        if self.ball is not None or self.linear.shape[-1] > NEWTON_UP_TO:
            return super().improved(d, value, steps, target)
        return followed(self.linear, self.B, steps, target, NEXT_TO).d

    def certified(self, d: Tensor) -> Tensor:
        """A Cholesky factorisation of ``M - 2c I`` that succeeds proves ``M >= c I`` for a ``c`` above its rounding.

        With ``y`` near ``M^-1 l`` and ``r = l - M y``: ``l'M^-1 l = y.(l + r) + r'M^-1 r <= y.(l + r) + |r|^2 / c``.
        """
        linear, n = self.linear, self.linear.shape[-1]
        tiny = underflow(linear.dtype)
        usable = d.isfinite().all(-1) & (d >= 0).all(-1)
        d = torch.where(usable[:, None], d, torch.ones_like(d))
        M = self.shifted(d)
        # The symmetric part and the diagonal are rounded once each; (n + 3) u tr(M) covers the factorisation.
        trace = M.diagonal(dim1=-2, dim2=-1).abs().sum(-1)
        once = accumulated(2, linear.dtype) * M.norm(dim=(-2, -1))
        c = 2 * accumulated(n + 6, linear.dtype) * trace + 4 * once + 64 * tiny
        eye = torch.eye(n, dtype=linear.dtype, device=linear.device)
        factor, info = torch.linalg.cholesky_ex(M - (2 * c)[:, None, None] * eye)
        usable = usable & (info == 0)
        y = torch.cholesky_solve(linear[..., None], factor)[..., 0]
        y = y + torch.cholesky_solve((linear - (M @ y[..., None])[..., 0])[..., None], factor)[..., 0]
        residual = linear - (M @ y[..., None])[..., 0]
        error = accumulated(n + 8, linear.dtype) * ((M.abs() @ y.abs()[..., None])[..., 0] + linear.abs()) + tiny
        value = dual_value(linear, d, y, residual, error, c[:, None].expand(linear.shape), self.ball)
        return torch.where(usable, value, torch.full_like(value, -math.inf))


def dual_value(
    linear: Tensor, d: Tensor, y: Tensor, residual: Tensor, error: Tensor, floor: Tensor, ball: Tensor | None
) -> Tensor:
    """``-cost(d) - l'M^-1 l / 4`` rounded down, for ``M >= diag(floor)``, ``y`` near ``M^-1 l`` and its residual.

    ``error`` bounds the rounding of the residual entry by entry. -inf instead of NaN.
    """
    n = linear.shape[-1]
    y_size, r_size = y.abs(), residual.abs() + error
    main = (y * linear).sum(-1) + (y * residual).sum(-1)
    charge = (y_size * error).sum(-1) + (r_size.square() / floor).sum(-1)
    charge = charge + accumulated(2 * n + 6, linear.dtype) * ((y_size * (linear.abs() + r_size)).sum(-1) + charge)
    price = cost(d, ball) * (1 + accumulated(n + 4, linear.dtype))
    value = -(price + (main + charge) / 4)
    # Three sums, a quarter, and the shift itself.
    value = value - ulps(8, linear.dtype) * (value.abs() + price + main.abs() + charge)
    return torch.where(value.isfinite(), value, torch.full_like(value, -math.inf))
