"""Quadratics of the noise: which are certainly not negative, and the bounds that follow.

*Noise* is numbers ``e_i`` in [-1, 1]. Where the region is a ball, the first of them, those of the input, lie in the
unit ball of its norm. Floats find the factors; only balls decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flint import arb

from .balls import (
    ONE,
    ZERO,
    Balls,
    Floats,
    euclidean,
    exact,
    is_zero,
    largest,
    lower_floats,
    magnitude,
    matrix,
    negative,
    times,
    zeros,
)
from .positions import Indices


@dataclass(frozen=True)
class Noise:
    """``norm`` 1 or 2: the first ``inputs`` have a norm of at most 1; 0: every number counts for itself."""

    inputs: int
    norm: int

    def reach(self, row: Balls) -> arb:
        """At least the largest ``row . e``."""
        size = magnitude(row)
        if not self.norm:
            return size.sum()
        own = size[: self.inputs]
        length = largest(own) if self.norm == 1 else euclidean(own)
        return length + size[self.inputs :].sum()

    def cost(self, d: Balls) -> arb:
        """At least the largest ``sum_i d_i e_i^2``, for ``d >= 0``."""
        return d.sum() if not self.norm else largest(d[: self.inputs]) + d[self.inputs :].sum()


def semidefinite(M: Balls) -> bool:
    """Whether a symmetric matrix is certainly positive semidefinite: ``M = G G' + R`` with a dominant diagonal of R.

    G is a Cholesky factor of the rounded matrix less a little of its diagonal, scaled by powers of two. Entries whose
    rows are zero count for nothing.
    """
    middle = M.astype(np.float64)
    if not np.isfinite(middle).all():
        return False
    if dominant(M):
        return True
    used = (middle != 0).any(1) | np.array([not all(a.is_zero() for a in row) for row in M])
    M, middle = M[np.ix_(used, used)], middle[np.ix_(used, used)]
    diagonal = np.diagonal(middle)
    if not (diagonal > 0).all():
        return False
    scale = 2.0 ** -np.round(np.log2(diagonal) / 2)
    M, middle = M * exact(np.outer(scale, scale)), middle * np.outer(scale, scale)
    try:
        G: Floats = np.linalg.cholesky(middle - 1e-15 * len(M) ** 1.5 * np.eye(len(M)))
    except np.linalg.LinAlgError:
        return False
    return dominant(M - times(G, matrix(G.T)))


def dominant(R: Balls) -> bool:
    """Whether every diagonal entry is at least the sum of the sizes of the others in its row (Gershgorin)."""
    sizes = magnitude(R)
    np.fill_diagonal(sizes, ZERO)
    return all(a >= b for a, b in zip(np.diagonal(R), sizes.sum(1)))


def root_above(W: Balls) -> Floats | None:
    """A lower triangle L, no diagonal entry 0, with ``L L' - W`` certainly semidefinite; None where none is found."""
    middle = W.astype(np.float64)
    diagonal = np.diagonal(middle)
    if not np.isfinite(middle).all() or (diagonal < 0).any():
        return None
    scale = 2.0 ** np.round(np.log2(np.where(diagonal > 0, diagonal, 1.0)) / 2)
    outer, more = np.outer(scale, scale), 1e-15 * len(W) ** 1.5 * np.eye(len(W))
    try:
        L: Floats = np.linalg.cholesky(middle / outer + more)
    except np.linalg.LinAlgError:
        return None
    return scale[:, None] * L if dominant(times(L, matrix(L.T)) - W / exact(outer)) else None


@dataclass(frozen=True)
class Squares:
    """``(U e)'C (U e)`` for symmetric C and few combinations U of the noise, or for the noise itself (None)."""

    U: Balls | None
    C: Balls

    def dense(self) -> Balls:
        """The matrix over the noise."""
        return self.C if self.U is None else times(times(self.U.T, matrix(self.C)), matrix(self.U))

    def times(self, e: Balls) -> Balls:
        """The matrix over the noise times a point."""
        f = e[:, None] if self.U is None else times(self.U, matrix(e[:, None]))
        Cf = times(self.C, matrix(f))
        return (Cf if self.U is None else times(self.U.T, matrix(Cf)))[:, 0]

    def covered(self, d: Balls) -> bool:
        """Whether ``M = diag(d) + U'C U`` is certainly semidefinite.

        Theorem: with ``d > 0`` and ``L L' >= U diag(1/d) U'`` any ``f = U e`` is ``L u`` with ``|u|^2 <= e'diag(d) e``,
        as ``L^-1 U diag(1/d) U'L^-T <= I``. So ``e'M e >= u'(I + L'C L)u``. Noise in no combination may have d = 0.
        """
        if self.U is None:
            M = self.C.copy()
            np.fill_diagonal(M, np.diagonal(M) + d)
            return semidefinite(M)
        used = ~is_zero(self.U).astype(bool).all(0)
        if not all(a > 0 for a in d[used]):
            return False
        U = self.U[:, used]
        L = root_above(times(U / d[used], matrix(U.T)))
        if L is None:
            return False
        K = times(L.T, matrix(times(self.C, matrix(L))))
        np.fill_diagonal(K, np.diagonal(K) + ONE)
        return semidefinite(K)


def least(linear: Balls, B: Squares, multipliers: Floats, point: Floats, noise: Noise) -> arb | None:
    """A lower bound on ``l.e + e'B e`` for symmetric B; None where the multipliers prove nothing.

    For ``d >= 0`` let ``M = diag(d) + B``, so that ``e'B e >= e'M e - cost(d)``. Where M is semidefinite, any point z
    has ``e'M e + l.e = (e - z)'M(e - z) + (l + 2 M z).e - z'M z >= -reach(l + 2 M z) - z'M z``.
    """
    d, z = exact(multipliers), exact(point)
    if not (multipliers >= 0).all() or not B.covered(d):
        return None
    Mz = d * z + B.times(z)
    return -noise.cost(d) - noise.reach(linear + 2 * Mz) - (z * Mz).sum()


def least_by_corners(linear: Balls, B: Balls, noise: Noise) -> arb:
    """A lower bound on ``l.e + e'B e`` for symmetric B, where the norm of the noise of the input is l_1.

    A point of the ball is ``sum_k t_k s_k`` with weights ``t >= 0`` that add up to 1 and corners s, which are zero and
    signed units, of every unit with one sign alone. For all other noise f the quadratic is ``l_f.f + f'B f`` and
    ``sum_km t_k t_m (s_k'B s_m + (c_k + c_m) / 2)`` with ``c_k = l.s_k + 2 s_k'B f``, at least the smallest term. With
    ``|f_i| <= 1``, ``c_k`` of a unit is at least ``+-l_i - 2 sum_j |B_ij|``; that of zero is 0.
    """
    n = noise.inputs
    own, rest = B[:n, :n], magnitude(B[n:, n:])
    np.fill_diagonal(rest, -negative(np.diagonal(B)[n:]))
    meeting = 2 * magnitude(B[:n, n:]).sum(1)
    up, down = linear[:n] - meeting, -linear[:n] - meeting
    alike = [(c[:, None] + c) / 2 + own for c in (up, down)]
    apart = (up[:, None] + down) / 2 - own
    np.fill_diagonal(apart, ZERO)
    terms = [lower_floats(part).min(initial=0.0) for part in (*alike, apart, up / 2, down / 2)]
    return arb(min(terms)) - magnitude(linear[n:]).sum() - rest.sum()


class ProductRanges:
    """Between which numbers ``(P e).(R e)`` lies, for combinations P of some rows X and R of others Y.

    Take weights ``d > 0`` and ``G = F diag(1/d) F'`` for F, both factors stacked. Then ``f = F e`` has
    ``f'G^-1 f <= e'diag(d) e <= cost(d)``; with ``L L' >= G``, ``u = L^-1 f`` has ``|u|^2 <= cost(d)``. The product is
    ``u'S u`` with S the symmetric part of ``L_P' L_R``: it lies between the least and the largest eigenvalue of S, or
    zero, times the cost. One set of weights serves all, so that the matrices of a product are as small as its factors;
    or a product has weights of its own, which tell more. Noise that moves neither factor weighs nothing then.
    """

    def __init__(self, X: Balls, Y: Balls, noise: Noise) -> None:
        self.X, self.Y, self.noise = X, Y, noise
        F = np.concatenate((X, Y))
        size = np.sqrt((F.astype(np.float64) ** 2).sum(0))
        if noise.norm:  # one weight for the whole ball
            size[: noise.inputs] = size[: noise.inputs].max(initial=0.0)
        size = np.maximum(size, 1e-6 * size.max(initial=0.0))
        d = exact(np.where(size > 0, size, 1.0))
        self.cost = noise.cost(d)
        G = times(F / d, matrix(F.T))
        n = len(X)
        self.gram, self.cross, self.other = G[:n, :n], G[:n, n:], G[n:, n:]

    def between(self, left: Indices, C: Balls, right: Indices, own: bool = False) -> tuple[arb, arb]:
        """The range for ``P = X[left]`` and ``R = C Y[right]``; ``own``: by weights of its own, over a box."""
        if not min(len(left), len(right)):  # a sum of nothing
            return ZERO, ZERO
        fewer = len(right) < len(left)  # (X e)'C (Y e) is (C'X e)'(Y e): as few numbers as possible
        if own and not self.noise.norm:
            P, R = self.X[left], self.Y[right]
            P, R = (times(C.T, matrix(P)), R) if fewer else (P, times(C, matrix(R)))
            F = np.concatenate((P, R))
            F = F[:, ~is_zero(F).astype(bool).all(0)]
            if not F.size:
                return ZERO, ZERO
            d = exact(_weights(F.astype(np.float64)))
            return _by_eigenvalues(times(F / d, matrix(F.T)), d.sum())
        gram, cross, other = (
            self.gram[np.ix_(left, left)],
            self.cross[np.ix_(left, right)],
            self.other[np.ix_(right, right)],
        )
        if fewer:
            gram, cross, other, C = other, cross.T, gram, C.T
        cross = times(cross, matrix(C.T))
        other = times(times(C, matrix(other)), matrix(C.T))
        return _by_eigenvalues(np.block([[gram, cross], [cross.T, other]]), self.cost)


def _by_eigenvalues(G: Balls, cost: arb) -> tuple[arb, arb]:
    """The range of a product by the matrix G of both factors (``ProductRanges``)."""
    m = len(G) // 2
    first, second = (part.sum().abs_upper() for part in np.split(np.diagonal(G), 2))
    anything = (first * second).sqrt() * cost  # |P e| |R e|
    trace = float(np.diagonal(G).sum())
    try:
        L: Floats = np.linalg.cholesky(G.astype(np.float64) + 1e-12 * trace * np.eye(2 * m)).astype(np.float64)
    except np.linalg.LinAlgError:
        return -anything, anything
    if not dominant(times(L, matrix(L.T)) - G):
        return -anything, anything
    S = times(L[:m].T, matrix(L[m:]))
    S = (S + S.T) / 2
    values = np.linalg.eigvalsh(S.astype(np.float64))
    ends = []
    for sign, extreme in ((-ONE, -values[0]), (ONE, values[-1])):
        most = arb(float(max(extreme, 0.0) + 1e-10 * trace))
        shifted = -sign * S
        np.fill_diagonal(shifted, np.diagonal(shifted) + most)
        ends.append(sign * (most * cost if semidefinite(shifted) else anything))
    return ends[0], ends[1]


def _weights(F: Floats) -> Floats:
    """Weights above 0 for which the range of one product is small; any are as true.

    It is smallest where the squares of eigenvectors, those of the extreme eigenvalues mixed, are ``d / sum d``: weights
    move towards that, in steps that get smaller and tell nearly equal eigenvalues better and better apart.
    """

    def spread(d: Floats) -> Floats:
        most = d.max(initial=0.0)
        return np.maximum(d, 1e-6 * most) if 0 < most < np.inf else np.ones_like(d)

    m = len(F) // 2
    best = d = spread(np.sqrt((F * F).sum(0)))
    least = np.inf
    for sharpness, step in ((3.0, 0.5), (5.0, 0.4), (8.0, 0.3), (12.0, 0.25)):
        G = (F / d) @ F.T
        try:
            L = np.linalg.cholesky(G + 1e-12 * np.trace(G) * np.eye(2 * m))
            S = L[:m].T @ L[m:]
            values, vectors = np.linalg.eigh((S + S.T) / 2)
        except np.linalg.LinAlgError:
            break
        low, high = values[0], values[-1]
        most = max(high, -low)
        if not 0 < most < np.inf:
            break
        if d.sum() * (high - low) < least:
            best, least = d, d.sum() * (high - low)
        up, down = np.exp(sharpness * (values - high) / most), np.exp(sharpness * (low - values) / most)
        mixed = high * up / up.sum() - low * down / down.sum()
        squares = np.maximum(mixed @ (np.linalg.solve(L.T, vectors).T @ F) ** 2 / d, 0.0)
        d = spread((d / d.sum()) ** (1 - step) * (squares / squares.sum()) ** step)
    return best


def padded(rows: Balls, n: int) -> Balls:
    """Coefficients on more noise, which does not enter."""
    return rows if rows.shape[-1] == n else np.concatenate((rows, zeros(len(rows), n - rows.shape[-1])), 1)
