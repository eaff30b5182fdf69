"""Quadratics of few combinations of the noise: ``B = U'C U`` with r rows of U, at O(n r^2) a step instead of O(n^3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...graph.rounding import accumulated, underflow
from .dual import Problem, Solved
from .quadratic import dual_value


class LowRankQuadratic(Problem):
    """Quadratics ``l.eps + eps'U'C U eps`` with ``U [P, r, n]`` and symmetric ``C [P, r, r]``.

    For an ``L`` with ``L L' >= U diag(1/d) U'`` every ``z = U eps`` has ``|L^-1 z|^2 <= eps'diag(d) eps``; so M is
    positive definite where ``K = I + L'C L`` is. By Woodbury ``M^-1 = 1/d - 1/d U'N U 1/d`` with
    ``N = C - C L K^-1 L'C``.
    """

    def __init__(self, linear: Tensor, U: Tensor, C: Tensor, ball: Tensor | None = None) -> None:
        self.linear, self.U, self.C, self.ball = linear, U, C, ball

    def take(self, which: Tensor) -> LowRankQuadratic:
        if len(which) == len(self.linear):
            return self
        return LowRankQuadratic(self.linear[which], self.U[which], self.C[which], self.ball)

    def times(self, e: Tensor) -> Tensor:
        return _times(self.U, self.C, e)

    @property
    def operations(self) -> int:
        return self.U.shape[-1] + 4 * self.C.shape[-1] + 4

    def diagonal(self) -> Tensor:
        return (self.U * (self.C @ self.U)).sum(1)

    def row_sums(self) -> Tensor:
        return _times(self.U.abs(), self.C.abs(), torch.ones_like(self.linear))

    def _congruence(self, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``L``, ``C L`` and K. The diagonal is raised by more than the rounding of W and of its factorisation."""
        C = self.C
        n, r = d.shape[-1], C.shape[-1]
        eye = torch.eye(r, dtype=C.dtype, device=C.device)
        U = torch.where((C != 0).any(-1)[..., None], self.U, 0.0)  # what C does not see must not cost digits
        U = U * d.rsqrt()[:, None]
        W = U @ U.mT
        trace = W.diagonal(dim1=-2, dim2=-1).sum(-1)
        lift = accumulated(4 * (n + r) + 16, C.dtype) * trace + underflow(C.dtype)
        L, info = torch.linalg.cholesky_ex(W + (2 * lift)[:, None, None] * eye)
        L = torch.where((info == 0)[:, None, None], L, torch.nan)
        CL = C @ L
        K = L.mT @ CL
        return L, CL, eye + (K + K.mT) / 2

    def _inner(self, CL: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
        """N, and whether K could be factorised."""
        factor, info = torch.linalg.cholesky_ex(K)
        half = torch.linalg.solve_triangular(factor, CL.mT, upper=False)
        return self.C - half.mT @ half, info == 0

    def solve(self, d: Tensor) -> Solved:
        U, (_, CL, K) = self.U, self._congruence(d)
        N, definite = self._inner(CL, K)
        y = self.linear / d
        x = (y - _times(U, N, y) / d) / 2
        inverse = 1 / d - (U * (N @ U)).sum(1) / d.square()
        return Solved(definite & x.isfinite().all(-1), x, inverse)

    def certified(self, d: Tensor) -> Tensor:
        """A factorisation of ``K - 2t I`` that succeeds, for a ``t`` above its rounding, proves ``M >= t diag(d)``."""
        linear, U, C = self.linear, self.U, self.C
        n, r = linear.shape[-1], C.shape[-1]
        usable = d.isfinite().all(-1) & (d > 0).all(-1)
        d = torch.where(usable[:, None], d, torch.ones_like(d))
        L, CL, K = self._congruence(d)
        # Rounding of the two products behind K, entry by entry, and of its factorisation.
        size = (L.abs().mT @ C.abs() @ L.abs()).norm(dim=(-2, -1))
        t = 2 * accumulated(2 * r + 16, linear.dtype) * (K.diagonal(dim1=-2, dim2=-1).abs().sum(-1) + 2 * size) + 1e-9
        eye = torch.eye(r, dtype=linear.dtype, device=linear.device)
        _, info = torch.linalg.cholesky_ex(K - (2 * t)[:, None, None] * eye)
        N, _ = self._inner(CL, K)
        y = linear / d
        y = y - _times(U, N, y) / d
        residual = linear - d * y - _times(U, C, y)
        size = linear.abs() + d * y.abs() + _times(U.abs(), C.abs(), y.abs())
        error = accumulated(n + 2 * r + 8, linear.dtype) * size + underflow(linear.dtype)
        value = dual_value(linear, d, y, residual, error, t[:, None] * d, self.ball)
        return torch.where(usable & (info == 0), value, torch.full_like(value, -math.inf))


def _times(U: Tensor, C: Tensor, e: Tensor) -> Tensor:
    return (U.mT @ (C @ (U @ e[..., None])))[..., 0]
