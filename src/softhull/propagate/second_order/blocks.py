"""Quadratics too large for one matrix: every basis is measured on its own, and nothing of size n x n is formed.

For weights ``w > 0`` of the noise and ``L L' >= U diag(1/w) U'`` every ``z = U eps`` has ``|L^-1 z|^2 <= eps'diag(w)
eps``; so ``L'C L >= -s I`` proves ``U'C U >= -s diag(w)``. Added up over the bases, ``M >= diag(d - S w)`` for any
multipliers d: one set of weights serves every step, and what a step needs besides is products with vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...graph.rounding import accumulated, ulps, underflow
from .affine_form import Basis
from .dual import Problem, Solved
from .quadratic import dual_value

_ITERATIONS = 20  # of conjugate gradients; what they leave is charged
_ENOUGH = 1e-9  # of the norm they start from


class BlockQuadratic(Problem):
    """Quadratics ``l.eps + sum over bases of z'C z`` with symmetric ``C [P, r, r]`` each."""

    def __init__(
        self, linear: Tensor, bases: Sequence[Basis], matrices: Sequence[Tensor], ball: Tensor | None = None
    ) -> None:
        self.linear, self.ball = linear, ball
        self.blocks = [_used(basis, C) for basis, C in zip(bases, matrices)]
        self._row_sums: Tensor | None = None
        self._weights: tuple[Tensor, Tensor] | None = None  # w [P, n] and S [P]

    def take(self, which: Tensor) -> BlockQuadratic:
        if len(which) == len(self.linear):
            return self
        bases, matrices = [basis.take(which) for basis, _ in self.blocks], [C[which] for _, C in self.blocks]
        return BlockQuadratic(self.linear[which], bases, matrices, self.ball)

    def times(self, e: Tensor) -> Tensor:
        return self._added(lambda U, C, part: (U.mT @ (C @ (U @ part[..., None])))[..., 0], e)

    def diagonal(self) -> Tensor:
        return torch.zeros_like(self.linear)

    def row_sums(self) -> Tensor:
        if self._row_sums is None:
            self._row_sums = self._sizes(torch.ones_like(self.linear))
        return self._row_sums

    def _sizes(self, e: Tensor) -> Tensor:
        """``sum |U|'|C| |U| e``."""
        return self._added(lambda U, C, part: (U.abs().mT @ (C.abs() @ (U.abs() @ part[..., None])))[..., 0], e)

    def _added(self, term: Callable[[Tensor, Tensor, Tensor], Tensor], e: Tensor) -> Tensor:
        total = torch.zeros_like(self.linear)
        for basis, C in self.blocks:
            numbers = basis.numbered()
            total.index_add_(1, numbers, term(basis.map, C, e[:, numbers]))
        return total

    @property
    def operations(self) -> int:
        return max(basis.noise + 4 * basis.size for basis, _ in self.blocks) + len(self.blocks) + 4

    def _floor(self, d: Tensor) -> Tensor:
        """``M >= diag(floor)``; the weights are the first multipliers asked about."""
        if self._weights is None:
            strength = torch.zeros_like(d[:, 0])
            for basis, C in self.blocks:
                strength = strength + _strength(basis, C, d)
            self._weights = d, strength * (1 + accumulated(len(self.blocks) + 2, d.dtype))
        w, strength = self._weights
        once = ulps(4, d.dtype)  # two products, one difference, and this factor
        return (d - strength[:, None] * w * (1 + once)) * (1 - once)

    def solve(self, d: Tensor) -> Solved:
        floor = self._floor(d)
        x = self._inverse_times_linear(d) / 2
        return Solved((floor > 0).all(-1) & x.isfinite().all(-1), x, 1 / floor)

    def _inverse_times_linear(self, d: Tensor) -> Tensor:
        """``M^-1 l`` by conjugate gradients, preconditioned by ``1 / d``."""
        y = self.linear / d
        residual = self.linear - d * y - self.times(y)
        direction = scaled = residual / d
        size = first = (residual * scaled).sum(-1)
        for _ in range(_ITERATIONS):
            if bool((size <= _ENOUGH**2 * first).all()):
                break
            image = d * direction + self.times(direction)
            length = size / (direction * image).sum(-1)
            length = torch.where(length.isfinite(), length, 0.0)[:, None]
            y, residual = y + length * direction, residual - length * image
            scaled = residual / d
            size, before = (residual * scaled).sum(-1), size
            direction = scaled + (size / before).nan_to_num(0.0)[:, None] * direction
        return y

    def certified(self, d: Tensor) -> Tensor:
        linear = self.linear
        usable = d.isfinite().all(-1) & (d > 0).all(-1)
        d = torch.where(usable[:, None], d, torch.ones_like(d))
        floor = self._floor(d)
        usable = usable & (floor > 0).all(-1)
        if not bool(usable.any()):
            return linear.new_full(linear.shape[:1], -math.inf)
        y = self._inverse_times_linear(d)
        residual = linear - d * y - self.times(y)
        error = accumulated(self.operations + 4, linear.dtype) * (linear.abs() + d * y.abs() + self._sizes(y.abs()))
        error = error + underflow(linear.dtype)
        value = dual_value(linear, d, y, residual, error, floor, self.ball)
        return torch.where(usable, value, torch.full_like(value, -math.inf))


def _used(basis: Basis, C: Tensor) -> tuple[Basis, Tensor]:
    """The basis entries that the matrix sees."""
    rows = (C != 0).any(-1).any(0).nonzero()[:, 0]
    if len(rows) == basis.size:
        return basis, C
    return Basis(basis.map[:, rows], basis.numbers), C[:, rows[:, None], rows]


def _strength(basis: Basis, C: Tensor, w: Tensor) -> Tensor:
    """Certified ``s [P]`` with ``U'C U >= -s diag(w)``; infinite where nothing could be proved."""
    n, r = basis.noise, basis.size
    if not r:
        return torch.zeros_like(w[:, 0])
    eye = torch.eye(r, dtype=C.dtype, device=C.device)
    U = basis.map * w[:, None, basis.numbered()].rsqrt()
    W = U @ U.mT
    trace = W.diagonal(dim1=-2, dim2=-1).sum(-1)
    # More than the rounding of W and of its factorisation.
    lift = accumulated(4 * (n + r) + 16, C.dtype) * trace + underflow(C.dtype)
    L, info = torch.linalg.cholesky_ex(W + (2 * lift)[:, None, None] * eye)
    K = L.mT @ (C @ L)
    K = (K + K.mT) / 2
    length = K.norm(dim=(-2, -1)) * (1 + accumulated(r * r + 4, C.dtype))
    once = 2 * accumulated(2 * r + 16, C.dtype)
    # Rounding of the two products behind K; its factorisation adds its trace, and that of what is added to it.
    size = math.sqrt(r) * length + 2 * L.norm(dim=(-2, -1)).square() * C.norm(dim=(-2, -1))
    usable = (info == 0) & size.isfinite()
    K = torch.where(usable[:, None, None], K, eye)
    found = torch.where(usable, length + once * size, math.inf)
    guess = _spectral_radius(K)
    for stretch in (1.02, 1.2, 2.0):  # the guess is from below
        tried = stretch * guess + once * size
        _, info = torch.linalg.cholesky_ex(K + tried[:, None, None] * eye)
        proved = tried + 2 * once * (size + r * tried)
        found = torch.where(usable & (info == 0), torch.minimum(found, proved), found)
        if bool((info == 0).all()):
            break
    return found


def _spectral_radius(K: Tensor, steps: int = 30) -> Tensor:
    """An estimate ``[P]`` by power iteration."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(K.shape[-1], 1, generator=generator, dtype=torch.float64).to(K).expand(*K.shape[:-1], 1)
    size = v.norm(dim=(-2, -1))
    for _ in range(steps):
        v = K @ (v / torch.where(size > 0, size, 1.0)[:, None, None])
        size = v.norm(dim=(-2, -1))
    return size
