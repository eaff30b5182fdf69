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

where q is the quadratic with its rectifiers, is a concave problem in k, weights, d and v together. Over an l_1 ball the
bound is the least of what q is at pairs of corners instead, which is a concave problem, too. Both are solved by a
primal-dual interior point method. What is found here is a choice, and promises nothing: it is walked with afterwards.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# How far towards the edge a step goes, and how much nearer to the edge the next one aims: by the length of this one.
_SHORT, _BACK, _TRIES = 0.9, 0.8, 30
_AIMS = ((0.8, 0.15), (0.4, 0.3), (0.0, 0.6))
_PAIRS = 1 << 12  # pairs of corners that a choice looks at
_ENOUGH = 5e-3  # what is left to gain, in units of the value, or of a tenth
_LITTLE = 0.05  # multipliers of noise that is held, as a share of those at first
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
    """Slopes and bends ``[m]`` of ``slope x + bend x^2 + offset``, multipliers, and the value expected.

    Multipliers are those of groups, then those of noise that is held, in order.
    """

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
    constant: Tensor,
    linear: Tensor,
    B: Tensor,
    met: Rectifiers,
    groups: Tensor,
    held: Tensor,
    steps: int,
    target: float,
) -> Chosen | None:
    """The best choice for one quadratic ``constant + linear . eps + eps'B eps`` plus rectifiers; None where it fails.

    ``groups [n]``: the squares of noise of one group add up to at most 1. ``held [n]``: 1 for noise that is never below
    0, -1 for noise that is never above. Work ends when the value exceeds ``target``.
    """
    path = _Definite(constant, linear, B, met, groups, held)
    return path.follow(steps, target) if path.begin() else None


def best_bends_over_pairs(
    constant: Tensor,
    linear: Tensor,
    B: Tensor,
    met: Rectifiers,
    beside: Tensor,
    held: Tensor,
    steps: int,
    target: float,
) -> Chosen | None:
    """The same over an l_1 ball of all the noise; what a rectifier is applied to is known up to ``beside [m]``."""
    path = _Corners(constant, linear, B, met, beside, held)
    found = path.follow(steps, target) if path.begin(path.start()) else None
    # Pairs that were not looked at may be worse by now.
    if found is not None and path.all_seen:
        return found
    return path.follow(steps, target) if found is not None and path.begin(path.best) else found


class _Path(ABC):
    """Variables ``y``: the value, multipliers of groups, bends from above, weights of ``x`` and the bent one below.

    ``sides`` are what must be positive by itself, ``z`` the multipliers of these; the rest is that of a cone.
    """

    y: Tensor
    z: Tensor
    curved: Tensor  # second derivatives [3, up] by bends from above
    length: float

    def __init__(self, met: Rectifiers, groups: int) -> None:
        self.met, self.m = met, len(met.weight)
        self.up, self.down = (met.weight < 0).nonzero()[:, 0], (met.weight >= 0).nonzero()[:, 0]
        self.counts = (1, groups, len(self.up), len(self.down), len(self.down))
        self.place = torch.arange(sum(self.counts), device=met.weight.device).split(self.counts)
        self.mixed = self.place[3:]

    @abstractmethod
    def put(self, y: Tensor) -> bool:
        """Look at some variables; whether they are inside the cone."""

    @abstractmethod
    def value(self) -> float:
        """The bound of the variables looked at."""

    @abstractmethod
    def gap(self) -> tuple[float, int]:
        """The sum of all products of the cone and their number."""

    @abstractmethod
    def system(self, mu: float) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix and the right side of a step, without sides, and the moments ``[3, up]`` of 1, x and x^2."""

    @abstractmethod
    def towards(self, step: Tensor, mu: float) -> None:
        """Where the multipliers of the cone go with a step."""

    @abstractmethod
    def move(self, near: float) -> float:
        """Move the multipliers of the cone by so much of their step, or less; how much."""

    def start(self) -> Tensor:
        """Small bends and equal weights; the value and multipliers are 0."""
        met, none = self.met, self.met.weight.new_zeros
        near, far = torch.minimum(-met.low, met.high), torch.maximum(-met.low, met.high)
        bends = (near / (near + far).square())[self.up]
        return torch.cat((none(1 + self.counts[1]), bends, none(2 * len(self.down)) + 1 / 3))

    def follow(self, steps: int, target: float) -> Chosen:
        """Steps until little is left to gain."""
        self.best, best_value, aim = self.y, -math.inf, _AIMS[1][1]
        for _ in range(steps):
            sides = self.sides(self.y)
            total, count = self.gap()
            gap = total + float((self.z * sides).sum())
            if not self._step(sides, aim * gap / (count + len(sides))):
                break
            value = self.value()
            if value > best_value:
                self.best, best_value = self.y, value
            if value > target or gap < _ENOUGH * max(0.1, abs(value)):
                break
            aim = next(share for least, share in _AIMS if self.length >= least)
        value_of = self.terms(self.best)[0]
        slope, bend = value_of[1] / self.met.weight, value_of[2] / self.met.weight
        return Chosen(slope, bend, self.best[self.place[1]], best_value)

    def sides(self, y: Tensor) -> Tensor:
        """All that must be positive."""
        _, d, k, p, q = y.split(self.counts)
        return torch.cat((d, k, p, q, 1 - p - q))

    def terms(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients ``[3, m]`` of all rectifiers, their derivatives by the variables that are not the value or a
        multiplier, and the second ones by bends from above."""
        _, _, k, p, q = y.split(self.counts)
        met, up, down = self.met, self.up, self.down
        A, low, width = met.weight[down], met.low[down], (met.high - met.low)[down]
        found = above(k, met.low[up], met.high[up])
        value = k.new_zeros(3, self.m)
        value[:, up] = met.weight[up] * found.value
        value[1, down], value[2, down] = A * (p - q * low / width), A * q / width
        none = torch.zeros_like(A)
        mixed = torch.stack((none, A, none)), torch.stack((none, -A * low / width, A / width))
        return value, torch.cat((met.weight[up] * found.first, *mixed), 1), met.weight[up] * found.second

    def _step(self, sides: Tensor, mu: float) -> bool:
        """One step towards where all products of sides and their multipliers are mu; whether it was possible."""
        bent, slope, moments = self.system(mu)
        V, ratio, own = len(self.y), self.z / sides, mu / sides
        diagonal = bent.diagonal()
        diagonal[self.place[2]] -= (self.curved * moments).sum(0).clamp(max=0)
        diagonal[1:] += ratio[: V - 1]
        slope[0] += 1
        slope[1:] += own[: V - 1]
        for one in self.mixed:
            slope[one] -= own[V - 1 :]
            for other in self.mixed:
                bent[one, other] += ratio[V - 1 :]
        factor, info = torch.linalg.cholesky_ex(bent)
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0]
        if bool(info) or not bool(step.isfinite().all()):
            return False
        self.towards(step, mu)
        p, q = (step[one] for one in self.mixed)
        on_sides = torch.cat((step[1:], -p - q))
        on_z = own - self.z - ratio * on_sides
        far, before = _share(sides, on_sides), self.y
        for _ in range(_TRIES):
            if self.put(before + far * step):
                break
            far *= _BACK
        else:
            return False
        if far < 1 and not self.put(before + _SHORT * far * step):
            return False
        near = self.move(_share(self.z, on_z))
        self.z, self.length = self.z + near * on_z, min(far, near)
        return True


class _Definite(_Path):
    """A matrix S over (1, eps) that has to be definite, with a moment matrix X as its multiplier.

    Every variable is the factor of an atom: ``[[a, b / 2], [b / 2, c]]`` on (1, x) for one of ``columns [1 + n + m]``:
    1 itself, every noise number, and what every rectifier is applied to.
    """

    def __init__(
        self, constant: Tensor, linear: Tensor, B: Tensor, met: Rectifiers, groups: Tensor, held: Tensor
    ) -> None:
        self.groups, self.sizes = groups, torch.bincount(groups).to(B)
        self.held = held.nonzero()[:, 0]
        self.signs = held[self.held]
        super().__init__(met, len(self.sizes) + len(self.held))
        self.n = n = len(linear)
        self.base = torch.cat((torch.cat((constant[None], linear / 2))[None], torch.cat((linear[:, None] / 2, B), 1)))
        self.lines = torch.cat((met.centre[:, None], met.slope), 1)
        self.columns = torch.cat((torch.eye(1 + n, dtype=B.dtype, device=B.device), self.lines))
        own = self.place[1][groups], self.place[1][len(self.sizes) :]
        self.owner = torch.cat((self.place[0], *own, *self.place[2:]))
        first = torch.arange(1 + n, device=B.device)
        self.column = torch.cat((first, 1 + self.held, 1 + n + self.up, 1 + n + self.down, 1 + n + self.down))

    def begin(self) -> bool:
        """A point inside: multipliers that are large enough."""
        y = self.start()
        self.put(y)
        d = _FIRST * (self.S[1:, 1:].abs().sum(1) + self.S[0, 1:].abs()).amax()
        for _ in range(_TRIES):
            y[self.place[1]] = d
            y[self.place[1][len(self.sizes) :]] *= _LITTLE
            self.put(y)
            value = self.value()
            if math.isfinite(value):
                break
            d = _GROW * d
        else:
            return False
        y[0] = value - 0.1 * (1 + abs(value))
        if not self.put(y.clone()):
            return False
        self.X = self.W / self.W[0, 0]  # that of 1 is 1
        self.z = (self.X * self.S).sum() / (1 + self.n) / self.sides(self.y)
        return bool(self.X.isfinite().all())

    def put(self, y: Tensor) -> bool:
        value, first, curved = self.terms(y)
        d, e = y[self.place[1]].split((len(self.sizes), len(self.held)))
        S = self.base + _over(value, self.lines)
        S[0, 0] -= y[0] + d.sum()
        S.diagonal()[1:].add_(d[self.groups])
        here = 1 + self.held
        S[here, here] += e
        S[0, here] -= self.signs * e / 2
        S[here, 0] -= self.signs * e / 2
        factor, info = torch.linalg.cholesky_ex(S)
        self.y, self.S, self.curved = y, S, curved
        one, other = S.new_ones(self.n), torch.ones_like(self.signs)
        on_noise = torch.stack((-1 / self.sizes[self.groups], 0 * one, one))
        on_held = torch.stack((0 * other, -self.signs, other))
        self.atoms = torch.cat((S.new_tensor([[-1.0], [0.0], [0.0]]), on_noise, on_held, first), 1)
        inside = not bool(info) and bool(S.isfinite().all())
        if inside:
            self.W = torch.cholesky_inverse(factor)
        return inside

    def value(self) -> float:
        factor, info = torch.linalg.cholesky_ex(self.S[1:, 1:])
        half = torch.linalg.solve_triangular(factor, self.S[1:, :1], upper=False)
        value = float(self.S[0, 0] + self.y[0] - half.square().sum())
        return value if not bool(info) and math.isfinite(value) else -math.inf

    def gap(self) -> tuple[float, int]:
        return float((self.X * self.S).sum()), 1 + self.n

    def system(self, mu: float) -> tuple[Tensor, Tensor, Tensor]:
        (a, b, c), V, at = self.atoms, len(self.y), self.column
        X, W = (self.columns @ t @ self.columns.mT for t in (self.X, self.W))
        slope = W.new_zeros(V).index_add(0, self.owner, mu * (a * W[0, 0] + b * W[0, at] + c * W[at, at]))
        atom = ((a, b / 2), (b / 2, c))
        # tr G_i X G_j W, by blocks over (1, x_i) and (1, x_j).
        x, w = (((t[0, 0], t[0, at][None]), (t[0, at][:, None], t[at][:, at])) for t in (X, W))
        total = X.new_zeros(())
        for i in range(2):
            for j in range(2):
                left = atom[i][0][:, None] * x[0][j] + atom[i][1][:, None] * x[1][j]
                right = atom[j][0] * w[i][0] + atom[j][1] * w[i][1]
                total = total + left * right
        bent = total.new_zeros(V, len(at)).index_add(0, self.owner, total)
        bent = total.new_zeros(V, V).index_add(1, self.owner, bent)
        here = 1 + self.n + self.up
        moments = torch.stack((X[0, 0].expand(len(here)), X[0, here], X[here, here]))
        return (bent + bent.mT) / 2, slope, moments

    def towards(self, step: Tensor, mu: float) -> None:
        turn = _over(self.atoms * step[self.owner], self.columns[self.column])
        moved = self.X @ turn @ self.W
        self.on_X = mu * self.W - self.X - (moved + moved.mT) / 2

    def move(self, near: float) -> float:
        for _ in range(_TRIES):
            if not bool(torch.linalg.cholesky_ex(self.X + near * self.on_X)[1]):
                break
            near *= _BACK
        near = near if near == 1 else _SHORT * near
        self.X = self.X + near * self.on_X
        return near


class _Corners(_Path):
    """What the quadratic is at pairs of corners of an l_1 ball, those that are least, with weights as multipliers.

    A corner is a noise number at 1 or at -1, or nothing. At a pair (s, t) the quadratic counts as
    ``constant + l . (s + t) / 2 + s'B t``, as where it is bounded.
    """

    def __init__(
        self, constant: Tensor, linear: Tensor, B: Tensor, met: Rectifiers, beside: Tensor, held: Tensor
    ) -> None:
        super().__init__(met, 0)
        self.constant, self.linear, self.B, self.beside = constant, linear, B, beside
        n = len(linear)
        number = torch.arange(2 * n + 1, device=B.device)
        self.noise = torch.where(number < 2 * n, number % n, 0)
        self.sign = torch.where(number < n, 1.0, torch.where(number < 2 * n, -1.0, 0.0)).to(B)
        self.slopes = met.slope[:, self.noise] * self.sign  # [m, corners]
        self.out = self.sign * held[self.noise] < 0
        self.all_seen = False

    def begin(self, y: Tensor) -> bool:
        """The pairs that are least at some variables."""
        value = self.terms(y)[0]
        pairs = self._all_pairs(value)
        corners = len(pairs)
        least = pairs.flatten().topk(min(_PAIRS, corners**2), largest=False).indices
        self.all_seen = corners**2 <= _PAIRS
        one, other = least // corners, least % corners
        keep = (one <= other) & ~self.out[one] & ~self.out[other]
        one, other = one[keep], other[keep]
        sign, i, j = self.sign, self.noise[one], self.noise[other]
        mean = (self.linear[i] * sign[one] + self.linear[j] * sign[other]) / 2
        self.base = self.constant + mean + sign[one] * sign[other] * self.B[i, j]
        a, b, c = self.slopes[:, one], self.slopes[:, other], self.met.centre[:, None]
        beside = self.beside[:, None]
        rest = beside * (a.abs() + b.abs())
        # Bends from above are below 0 with their coefficients, and what is beside x costs them its square, too.
        rest = torch.where(self.met.weight[:, None] < 0, rest + beside.square(), -rest)
        self.x, self.square = c + (a + b) / 2, c.square() + c * (a + b) + a * b + rest  # [m, pairs]
        y = y.clone()
        y[0] = 0.0
        self.put(y)
        y[0] = float(self.s.amin()) - 0.1 * (1 + float(self.s.amin().abs()))
        if not self.put(y):
            return False
        self.weights = 1 / self.s / (1 / self.s).sum()
        self.z = (self.weights * self.s).mean() / self.sides(self.y)
        return True

    def _all_pairs(self, value: Tensor) -> Tensor:
        """What the quadratic with its rectifiers counts as at all pairs, ``[corners, corners]``."""
        met, (_, b, c), n = self.met, value, len(self.linear)
        M = self.B + met.slope.mT @ (c[:, None] * met.slope)
        linear = self.linear + met.slope.mT @ (b + 2 * c * met.centre)
        lost = 2 * met.slope.abs().mT @ (c.abs() * self.beside)
        at = self.sign * linear[self.noise] - self.sign.abs() * lost[self.noise]
        both = M[self.noise][:, self.noise] * self.sign[:, None] * self.sign
        opposite = (torch.arange(2 * n + 1, device=M.device) + n) % (2 * n)
        found = (at[:, None] + at) / 2 + both
        found[torch.arange(2 * n, device=M.device), opposite[: 2 * n]] = math.inf  # that is nothing, twice
        return found.masked_fill(self.out | self.out[:, None], math.inf)

    def put(self, y: Tensor) -> bool:
        value, first, curved = self.terms(y)
        self.s = self.base + value[0].sum() + self.x.mT @ value[1] + self.square.mT @ value[2] - y[0]
        self.y, self.first, self.curved = y, first, curved
        return bool((self.s > 0).all())

    def value(self) -> float:
        return float(self.s.amin() + self.y[0])

    def gap(self) -> tuple[float, int]:
        return float((self.weights * self.s).sum()), len(self.s)

    def _slopes(self) -> Tensor:
        """How all pairs move with the variables: ``[V, pairs]``."""
        which = torch.cat((self.up, self.down, self.down))
        a, b, c = self.first[..., None]
        return torch.cat((-torch.ones_like(self.s)[None], a + b * self.x[which] + c * self.square[which]))

    def system(self, mu: float) -> tuple[Tensor, Tensor, Tensor]:
        moved = self._slopes()
        bent = (moved * (self.weights / self.s)) @ moved.mT
        x, square = self.x[self.up] @ self.weights, self.square[self.up] @ self.weights
        return (bent + bent.mT) / 2, moved @ (mu / self.s), torch.stack((self.weights.sum().expand(x.shape), x, square))

    def towards(self, step: Tensor, mu: float) -> None:
        self.on_weights = mu / self.s - self.weights - self.weights / self.s * (self._slopes().mT @ step)

    def move(self, near: float) -> float:
        near = min(near, _share(self.weights, self.on_weights))
        self.weights = self.weights + near * self.on_weights
        return near


def _over(coefficients: Tensor, lines: Tensor) -> Tensor:
    """The matrix over (1, eps) of ``sum a + b x + c x^2`` of lines x, with coefficients ``[3, lines]``."""
    S = lines.mT @ (coefficients[2][:, None] * lines)
    row = lines.mT @ coefficients[1] / 2
    S[0] += row
    S[:, 0] += row
    S[0, 0] += coefficients[0].sum()
    return S


def _share(t: Tensor, step: Tensor) -> float:
    """How much of a step leaves t positive, and a little short of that."""
    falling = step < 0
    return min(1.0, float((-0.95 * t[falling] / step[falling]).amin())) if bool(falling.any()) else 1.0
