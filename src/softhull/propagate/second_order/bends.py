"""The best slopes and bends of rectifiers: all of them at once, as multipliers of one quadratic of the noise.

Lines above rectifiers cost a margin the sum of what each of them loses at its own worst, but inputs of the region that
are the worst for one are not for another. Quadratics lose less together. From above, those of bend k that are nowhere
better are one family: with ``l <= x <= u``, the nearer end at a distance L of zero and the other at H,

    k <= L / (L + H)^2    the chord and ``k (x - l)(x - u)``: through both ends;
    k <= 1 / (4 L)        through the nearer end, touching the other half;
    beyond                ``k x^2 + x / 2 + 1 / (16 k)``: touching both halves.

For every x this is convex in k, with one slope where the pieces meet. From below, ``0``, ``x`` and
``x (x - l) / (u - l)`` may be mixed with any weights. So the bound of the Lagrangian dual,

    max v   with   q(eps) - v + sum d_g (eps_g^2 - 1)  >=  0  for all eps,

where q is the quadratic with its rectifiers, is a concave problem in k, weights, d and v together. It is solved by a
primal-dual interior point method. What is found here is a choice, and promises nothing: it is walked with afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# How far towards the edge a step goes, and how much nearer to the edge the next one aims: by the length of this one.
_SHORT, _BACK, _TRIES = 0.9, 0.8, 30
_AIMS = ((0.8, 0.15), (0.4, 0.3), (0.0, 0.6))
_ENOUGH = 5e-3  # what is left to gain, in units of the value, or of a tenth
_FIRST, _GROW = 0.02, 1.5  # multipliers at first, as a share of row sums, growing until the quadratic is definite


class Coefficients(NamedTuple):
    """Those of 1, x and x^2, each ``[3, m]``: as functions of bends ``k [m]``, with two derivatives."""

    value: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Rectifiers:
    """Rectifiers of ``x = centre + slope . eps`` between ``low < 0 < high``, met with coefficients ``weight``: ``[m]``.

    ``slope [m, n]``.
    """

    weight: Tensor
    centre: Tensor
    slope: Tensor
    low: Tensor
    high: Tensor

    def take(self, which: Tensor) -> Rectifiers:
        """Some of them."""
        return Rectifiers(*(t[which] for t in (self.weight, self.centre, self.slope, self.low, self.high)))


@dataclass(frozen=True)
class Chosen:
    """Slopes and bends ``[m]`` of ``slope x + bend x^2 + offset``, multipliers ``[groups]``, and the value expected."""

    slope: Tensor
    bend: Tensor
    multipliers: Tensor
    value: float


def above(k: Tensor, low: Tensor, high: Tensor) -> Coefficients:
    """The quadratics of bends ``k > 0`` above rectifiers between two ends."""
    near, far = torch.minimum(-low, high), torch.maximum(-low, high)
    width, root, none, one = near + far, (near * k).sqrt(), torch.zeros_like(k), torch.ones_like(k)
    through = (
        torch.stack((far / width * near - k * near * far, far / width + k * (near - far), k)),
        torch.stack((-near * far, near - far, one)),
        torch.stack((none, none, none)),
    )
    leaning = (
        torch.stack((k * near.square() - 2 * near * root + near, 2 * k * near - 2 * root + 1, k)),
        torch.stack((near.square() - near.square() / root, 2 * near - near / root, one)),
        torch.stack((near**3 / (2 * root**3), near.square() / (2 * root**3), none)),
    )
    touching = (
        torch.stack((1 / (16 * k), 0.5 * one, k)),
        torch.stack((-1 / (16 * k.square()), none, one)),
        torch.stack((1 / (8 * k**3), none, none)),
    )
    found = []
    for order, (a, b, c) in enumerate(zip(through, leaning, touching)):
        piece = torch.where(k < near / width.square(), a, torch.where(k < 1 / (4 * near), b, c))
        # A rectifier is x plus that of -x: where the nearer end is the upper one, everything is mirrored.
        mirrored = (1.0 if order == 0 else 0.0) - piece[1]
        found.append(torch.stack((piece[0], torch.where(high < -low, mirrored, piece[1]), piece[2])))
    return Coefficients(*found)


def best_bends(
    constant: Tensor, linear: Tensor, B: Tensor, met: Rectifiers, groups: Tensor, steps: int, target: float
) -> Chosen | None:
    """The best choice for one quadratic ``constant + linear . eps + eps'B eps`` plus rectifiers; None where it fails.

    ``groups [n]``: the squares of noise of one group add up to at most 1. Work ends when the value exceeds ``target``.
    """
    path = _Path(constant, linear, B, met, groups)
    return path.follow(steps, target) if path.begin() else None


class _Path:
    """Variables ``y``: the value, multipliers of groups, bends from above, weights of ``x`` and the bent one below.

    Each is the factor of an atom: ``[[a, b / 2], [b / 2, c]]`` on (1, x) for one column x of ``columns [1 + n + m]``,
    all over (1, eps): 1 itself, every noise number, and what every rectifier is applied to.
    """

    def __init__(self, constant: Tensor, linear: Tensor, B: Tensor, met: Rectifiers, groups: Tensor) -> None:
        n, m, self.met = len(linear), len(met.weight), met
        self.up, self.down = (met.weight < 0).nonzero()[:, 0], (met.weight >= 0).nonzero()[:, 0]
        self.base = torch.cat((torch.cat((constant[None], linear / 2))[None], torch.cat((linear[:, None] / 2, B), 1)))
        lines = torch.cat((met.centre[:, None], met.slope), 1)
        self.lines = lines
        self.columns = torch.cat((torch.eye(1 + n, dtype=B.dtype, device=B.device), lines))
        self.groups, self.sizes = groups, torch.bincount(groups).to(B)
        U, D, G = len(self.up), len(self.down), len(self.sizes)
        self.counts = (1, G, U, D, D)
        place = torch.arange(1 + G + U + 2 * D, device=B.device).split(self.counts)
        self.owner = torch.cat((place[0], place[1][groups], *place[2:]))
        first = torch.arange(1 + n, device=B.device)
        self.column = torch.cat((first, 1 + n + self.up, 1 + n + self.down, 1 + n + self.down))
        self.bends, self.mixed = place[2], (place[3], place[4])
        self.n, self.m = n, m

    def begin(self) -> bool:
        """A point inside: small bends, equal weights, multipliers that are large enough."""
        met, none = self.met, self.base.new_zeros
        near, far = torch.minimum(-met.low, met.high), torch.maximum(-met.low, met.high)
        bends = (near / (near + far).square())[self.up]
        D = len(self.down)
        self.y = torch.cat((none(1 + self.counts[1]), bends, none(2 * D) + 1 / 3))
        S = self._slack(self.y)[0]
        d = _FIRST * (S[1:, 1:].abs().sum(1) + S[0, 1:].abs()).amax()
        for _ in range(_TRIES):
            self.y[1 : 1 + self.counts[1]] = d
            self.S, self.atoms, self.curved = self._slack(self.y)
            value = self._value()
            if math.isfinite(value):
                break
            d = _GROW * d
        else:
            return False
        self.y[0] = value - 0.1 * (1 + abs(value))
        self.S, self.atoms, self.curved = self._slack(self.y)
        factor, info = torch.linalg.cholesky_ex(self.S)
        self.W = torch.cholesky_inverse(factor)
        self.X = self.W / self.W[0, 0]  # a moment matrix: that of 1 is 1
        sides = self._sides(self.y)
        self.z = (self.X * self.S).sum() / (1 + self.n) / sides
        return not bool(info) and bool(self.X.isfinite().all())

    def follow(self, steps: int, target: float) -> Chosen:
        """Steps until little is left to gain."""
        best, best_value, aim = self.y, -math.inf, _AIMS[1][1]
        for _ in range(steps):
            sides = self._sides(self.y)
            gap = float((self.X * self.S).sum() + (self.z * sides).sum())
            if not self._step(sides, aim * gap / (1 + self.n + len(sides))):
                break
            value = self._value()
            if value > best_value:
                best, best_value = self.y, value
            if value > target or gap < _ENOUGH * max(0.1, abs(value)):
                break
            aim = next(share for least, share in _AIMS if self.length >= least)
        value = self._terms(best)[0]
        slope, bend = value[1] / self.met.weight, value[2] / self.met.weight
        return Chosen(slope, bend, best[1 : 1 + self.counts[1]], best_value)

    def _parts(self, y: Tensor) -> tuple[Tensor, ...]:
        return y.split(self.counts)

    def _sides(self, y: Tensor) -> Tensor:
        """All that must be positive."""
        _, d, k, p, q = self._parts(y)
        return torch.cat((d, k, p, q, 1 - p - q))

    def _terms(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients ``[3, m]`` of all rectifiers, of all atoms, and their curvature in the bends from above."""
        _, _, k, p, q = self._parts(y)
        met, up, down = self.met, self.up, self.down
        A, low, width = met.weight[down], met.low[down], (met.high - met.low)[down]
        found = above(k, met.low[up], met.high[up])
        value = k.new_zeros(3, self.m)
        value[:, up] = met.weight[up] * found.value
        value[1, down], value[2, down] = A * (p - q * low / width), A * q / width
        none, one = torch.zeros_like(A), k.new_ones(self.n)
        atoms = torch.cat(
            (
                k.new_tensor([[-1.0], [0.0], [0.0]]),
                torch.stack((-1 / self.sizes[self.groups], 0 * one, one)),
                met.weight[up] * found.first,
                torch.stack((none, A, none)),
                torch.stack((none, -A * low / width, A / width)),
            ),
            1,
        )
        return value, atoms, met.weight[up] * found.second

    def _slack(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix over (1, eps) that has to be definite, the atoms and their curvature."""
        value, atoms, curved = self._terms(y)
        v, d = self._parts(y)[:2]
        S = self.base + _over(value, self.lines)
        S[0, 0] -= v[0] + d.sum()
        S.diagonal()[1:].add_(d[self.groups])
        return S, atoms, curved

    def _value(self) -> float:
        """The bound of the multipliers at hand."""
        factor, info = torch.linalg.cholesky_ex(self.S[1:, 1:])
        half = torch.linalg.solve_triangular(factor, self.S[1:, :1], upper=False)
        value = float(self.S[0, 0] + self.y[0] - half.square().sum())
        return value if not bool(info) and math.isfinite(value) else -math.inf

    def _system(self, sides: Tensor, mu: float) -> tuple[Tensor, Tensor]:
        """The matrix and the right side of a step: ``tr G_i X G_j W`` of all atoms, and what sides add."""
        (a, b, c), V = self.atoms, len(self.y)
        X, W = (self.columns @ t @ self.columns.mT for t in (self.X, self.W))
        at = self.column
        slope = (
            (mu * (a * W[0, 0] + b * W[0, at] + c * W[at, at]))
            .new_zeros(V)
            .index_add(0, self.owner, mu * (a * W[0, 0] + b * W[0, at] + c * W[at, at]))
        )
        slope[0] += 1
        atom = ((a, b / 2), (b / 2, c))
        # Blocks over (1, x_i) and (1, x_j).
        x, w = (((t[0, 0], t[0, at][None]), (t[0, at][:, None], t[at][:, at])) for t in (X, W))
        total = X.new_zeros(())
        for i in range(2):
            for j in range(2):
                left = atom[i][0][:, None] * x[0][j] + atom[i][1][:, None] * x[1][j]
                right = atom[j][0] * w[i][0] + atom[j][1] * w[i][1]
                total = total + left * right
        bent = total.new_zeros(V, len(at)).index_add(0, self.owner, total)
        bent = total.new_zeros(V, V).index_add(1, self.owner, bent)
        bent = (bent + bent.mT) / 2
        here = 1 + self.n + self.up
        curved = (self.curved * torch.stack((X[0, 0].expand(len(here)), X[0, here], X[here, here]))).sum(0)
        ratio, own = self.z / sides, mu / sides
        diagonal = bent.diagonal()
        diagonal[self.bends] -= curved.clamp(max=0)
        diagonal[1:] += ratio[: V - 1]
        slope[1:] += own[: V - 1]
        for one in self.mixed:
            slope[one] -= own[V - 1 :]
            for other in self.mixed:
                bent[one, other] += ratio[V - 1 :]
        return bent, slope

    def _step(self, sides: Tensor, mu: float) -> bool:
        """One step towards where all products of sides and their multipliers are mu; whether it was possible."""
        bent, slope = self._system(sides, mu)
        factor, info = torch.linalg.cholesky_ex(bent)
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0]
        if bool(info) or not bool(step.isfinite().all()):
            return False
        turn = _over(self.atoms * step[self.owner], self.columns[self.column])
        moved = self.X @ turn @ self.W
        on_X = mu * self.W - self.X - (moved + moved.mT) / 2
        p, q = (step[one] for one in self.mixed)
        on_sides = torch.cat((step[1:], -p - q))
        on_z = mu / sides - self.z - self.z / sides * on_sides
        far, near = _share(sides, on_sides), _share(self.z, on_z)
        for _ in range(_TRIES):
            y = self.y + far * step
            S, atoms, curved = self._slack(y)
            factor, info = torch.linalg.cholesky_ex(S + (1 - _SHORT) * (S - self.S) if far < 1 else S)
            if not bool(info) and bool(S.isfinite().all()):
                break
            far *= _BACK
        else:
            return False
        for _ in range(_TRIES):
            X = self.X + near * on_X
            if not bool(torch.linalg.cholesky_ex(X + (1 - _SHORT) * (X - self.X) if near < 1 else X)[1]):
                break
            near *= _BACK
        factor, info = torch.linalg.cholesky_ex(S)
        if bool(info):
            return False
        self.y, self.S, self.atoms, self.curved, self.W = y, S, atoms, curved, torch.cholesky_inverse(factor)
        self.X, self.z, self.length = X, self.z + near * on_z, min(far, near)
        return True


def _over(coefficients: Tensor, lines: Tensor) -> Tensor:
    """The matrix over (1, eps) of ``sum a + b x + c x^2`` of lines x, with coefficients ``[3, lines]``."""
    S = lines.mT @ (coefficients[2][:, None] * lines)
    row = coefficients[1] @ lines / 2
    S[0] += row
    S[:, 0] += row
    S[0, 0] += coefficients[0].sum()
    return S


def _share(t: Tensor, step: Tensor) -> float:
    """How much of a step leaves t positive, and a little short of that."""
    falling = step < 0
    return min(1.0, float((-0.95 * t[falling] / step[falling]).amin())) if bool(falling.any()) else 1.0
