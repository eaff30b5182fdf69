"""Quadratics of few combinations of the noise: ``B = U'C U`` with r rows of U, at O(r^3) a step and what U costs.

Where U has parts that share no noise (``noise_parts.py``), only what belongs to one part is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ...graph.rounding import accumulated, underflow
from .central_path import usable
from .dual import Problem, Solved
from .noise_parts import NoisePart, noise_parts
from .quadratic import dual_value


class LowRankQuadratic(Problem):
    """Quadratics ``l.eps + eps'U'C U eps`` with ``U [P, r, n]``, in parts, and symmetric ``C [P, r, r]``.

    For an ``L`` with ``L L' >= U diag(1/d) U'`` every ``z = U eps`` has ``|L^-1 z|^2 <= eps'diag(d) eps``; so M is
    positive definite where ``K = I + L'C L`` is. By Woodbury ``M^-1 = 1/d - 1/d U'N U 1/d`` with
    ``N = C - C L K^-1 L'C = L^-T (I - K^-1) L^-1``.
    """

    def __init__(self, linear: Tensor, parts: Sequence[NoisePart], C: Tensor, ball: Tensor | None = None) -> None:
        self.linear, self.parts, self.C, self.ball = linear, parts, C, ball

    @staticmethod
    def of(linear: Tensor, U: Tensor, C: Tensor, ball: Tensor | None = None) -> LowRankQuadratic:
        """The same from a map that is not in parts."""
        order, parts = noise_parts(U)
        return LowRankQuadratic(linear, parts, C[:, order[:, None], order], ball)

    def take(self, which: Tensor) -> LowRankQuadratic:
        if len(which) == len(self.linear):
            return self
        parts = [part.take(which) for part in self.parts]
        return LowRankQuadratic(self.linear[which], parts, self.C[which], self.ball)

    def times(self, e: Tensor) -> Tensor:
        return self._down((self.C @ self._up(e)[..., None])[..., 0])

    @property
    def operations(self) -> int:
        return self.linear.shape[-1] + 4 * self.C.shape[-1] + 4

    def diagonal(self) -> Tensor:
        return self._columns(lambda part, rows: part.squares(self.C[:, rows, rows]))

    def row_sums(self) -> Tensor:
        return self._sizes(torch.ones_like(self.linear))

    def _placed(self) -> Iterator[tuple[NoisePart, slice]]:
        """Every part, and where its rows are."""
        first = 0
        for part in self.parts:
            yield part, slice(first, first + part.count)
            first += part.count

    def _columns(self, found: Callable[[NoisePart, slice], Tensor]) -> Tensor:
        """``[P, n]`` from what every part gives for its columns; 0 where there is none."""
        total = torch.zeros_like(self.linear)
        for part, rows in self._placed():
            total[:, part.columns] = found(part, rows)
        return total

    def _up(self, e: Tensor) -> Tensor:
        """``U e``."""
        parts = [part.up(e[:, part.columns]) for part in self.parts]
        return torch.cat([part.expand(len(e), part.shape[1]) for part in parts], 1) if parts else e[:, :0]

    def _down(self, z: Tensor) -> Tensor:
        """``U'z``."""
        return self._columns(lambda part, rows: part.down(z[:, rows]))

    def _sizes(self, e: Tensor) -> Tensor:
        """``|U|'|C||U| e``."""
        parts = [part.sizes() for part in self.parts]
        return LowRankQuadratic(self.linear, parts, self.C.abs(), self.ball).times(e)

    def _seen(self) -> Tensor:
        """Mask ``[P, r]`` of the rows of U that C has anything on: what it does not see must not cost digits."""
        return (self.C != 0).any(-1)

    def _congruence(self, d: Tensor) -> tuple[list[Tensor], Tensor]:
        """The roots L of all parts, and K."""
        seen = self._seen()
        operations = 4 * (d.shape[-1] + self.C.shape[-1]) + 16
        roots = [part.root(d[:, part.columns], seen[:, rows], operations) for part, rows in self._placed()]
        K = self._between(roots, self.C)
        return roots, torch.eye(K.shape[-1], dtype=K.dtype, device=K.device) + (K + K.mT) / 2

    def _between(self, roots: Sequence[Tensor], C: Tensor) -> Tensor:
        """``L'C L``."""
        for _ in range(2):  # C L, then its transpose times L
            columns = [part.times_root(C[:, :, rows], L) for (part, rows), L in zip(self._placed(), roots)]
            C = (torch.cat(columns, 2) if columns else C).mT
        return C

    def _solution(self, right: Tensor, d: Tensor, roots: Sequence[Tensor], factor: Tensor) -> Tensor:
        """``M^-1 l = l/d - 1/d U'N U l/d`` for a right side l in floating point, with a factor of K."""
        y, placed = right / d, list(zip(self._placed(), roots))
        z = torch.where(self._seen(), self._up(y), 0.0)
        z = torch.cat([part.root_over(L, z[:, rows]) for (part, rows), L in placed] or [z], 1)
        z = z - torch.cholesky_solve(z[..., None], factor)[..., 0]
        back = [part.over_root(z[:, None, rows], L)[:, 0] for (part, rows), L in placed]
        return y - self._down(torch.cat(back or [z], 1)) / d

    def solve(self, d: Tensor) -> Solved:
        roots, K = self._congruence(d)
        factor, info = torch.linalg.cholesky_ex(K)
        factor = usable(factor, info)
        x = self._solution(self.linear, d, roots, factor) / 2
        inner = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device) - torch.cholesky_inverse(factor)
        placed = zip(self.parts, roots)

        def squares(part: NoisePart, rows: slice) -> Tensor:
            _, L = next(placed)
            half = part.over_root(inner[:, rows, rows], L).mT
            return part.squares(part.over_root(half, L))

        inverse = 1 / d - self._columns(squares) / d.square()
        return Solved((info == 0) & x.isfinite().all(-1), x, inverse)

    def certified(self, d: Tensor) -> Tensor:
        """A factorisation of ``K - 2t I`` that succeeds, for a ``t`` above its rounding, proves ``M >= t diag(d)``."""
        linear, C = self.linear, self.C
        n, r = linear.shape[-1], C.shape[-1]
        usable = d.isfinite().all(-1) & (d > 0).all(-1)
        d = torch.where(usable[:, None], d, torch.ones_like(d))
        roots, K = self._congruence(d)
        # Rounding of the two products behind K, entry by entry, and of its factorisation.
        size = self._between([L.abs() for L in roots], C.abs()).norm(dim=(-2, -1))
        t = 2 * accumulated(2 * r + 16, linear.dtype) * (K.diagonal(dim1=-2, dim2=-1).abs().sum(-1) + 2 * size) + 1e-9
        eye = torch.eye(r, dtype=linear.dtype, device=linear.device)
        factor, info = torch.linalg.cholesky_ex(K - (2 * t)[:, None, None] * eye)
        # Nearly M^-1 l, by a factor of nearly K, and better by once more; what is missing is charged.
        y = self._solution(linear, d, roots, factor)
        y = y + self._solution(linear - d * y - self.times(y), d, roots, factor)
        residual = linear - d * y - self.times(y)
        size = linear.abs() + d * y.abs() + self._sizes(y.abs())
        error = accumulated(n + 2 * r + 8, linear.dtype) * size + underflow(linear.dtype)
        value = dual_value(linear, d, y, residual, error, t[:, None] * d, self.ball)
        return torch.where(usable & (info == 0), value, torch.full_like(value, -math.inf))
