"""All rectifiers of a skeleton at once: one quadratic of the input noise and of what rectifiers give.

A rectifier takes in z between l and u, and gives r. With functions ``L <= z <= U`` of a skeleton, every input has

    -r <= 0,    L - r <= 0,    r - s (U - l) <= 0,    r^2 - r U <= 0,    r L - r^2 <= 0,    r^2 - r u <= 0

with ``s = u / (u - l)`` for l < 0 < u. The third is the chord; the others follow from r >= 0, r >= z, r (r - z) = 0 and
r <= u. The noise e of the inputs has ``e_i^2 - 1 <= 0``, in an l_2 ball ``|e|^2 - 1 <= 0``. Whatever multipliers of at
least 0 these are added with, the sum

    Q(e, r)  =  row + multipliers . constraints

is at most the row. Lines bound rectifiers one by one, each at its own worst; here all are at one place. Where the
matrix of Q has no negative direction, a tangent is below it, wherever it touches, and the least of the tangent over the
ranges of e and r is a bound. The matrix is diagonal in e: whether it is definite is a question about r alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..graph.ops.relu import Relu
from ..graph.rounding import accumulated, share
from ..propagate.free import Free
from ..propagate.second_order.affine_form import centre_and_radius
from .skeleton import Functions, Skeleton

# Gradient steps, at most, and no more than so many operations allow.
STEPS, _OPERATIONS = 300, 1 << 36
# How far a step moves the logarithms of multipliers at first, and by what it shrinks.
_RATE, _SLOWER = 0.2, 0.99
# Multipliers that lines leave at 0, and those of products, start at these shares of the others; those of the range at
# so many times those of products. Those of the noise get a share of what makes the matrix diagonally dominant. Where
# that is not definite, both are raised.
_LEAST, _PRODUCTS, _RANGE, _DOMINANT, _RAISED = 1e-2, 0.1, 3.0, 0.1, 1.5
# The barrier that keeps the matrix definite costs this share of what the noise does to the row at first, and fades.
_BARRIER, _FADING = 0.2, 0.98
# After so many steps each, the last of them say how far the others may get.
_LOOK = 20
# A tangent touches at most so many times further out than e and r ever are.
_OUTSIDE = 4.0


@dataclass(frozen=True)
class _Quadratic:
    """``constant + on_noise . e + on_values . r + sum noise e^2 + 2 r . mixed e + r . square r``."""

    constant: Tensor
    on_noise: Tensor
    on_values: Tensor
    noise: Tensor  # [n], positive
    mixed: Tensor  # [E, n]
    square: Tensor  # [E, E]

    def value(self, e: Tensor, r: Tensor) -> Tensor:
        """What it is somewhere."""
        linear = self.on_noise @ e + self.on_values @ r
        return self.constant + linear + (self.noise * e) @ e + 2 * r @ (self.mixed @ e) + r @ (self.square @ r)

    def gradient(self, e: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """Its derivatives by e and by r."""
        on_noise = self.on_noise + 2 * (self.noise * e + r @ self.mixed)
        return on_noise, self.on_values + 2 * (self.mixed @ e + self.square @ r)

    def factorised(self) -> _Factorised | None:
        """Where it is least; None where rounding or a negative direction leaves that open."""
        scaled = self.mixed / self.noise.sqrt()
        schur = self.square - scaled @ scaled.mT
        factor, failed = torch.linalg.cholesky_ex(schur)
        if bool(failed):
            return None
        by_noise = self.mixed / self.noise
        r = -torch.cholesky_solve((self.on_values - by_noise @ self.on_noise)[:, None], factor)[:, 0] / 2
        e = -(self.on_noise / 2 + r @ self.mixed) / self.noise
        value = float(self.constant + (self.on_noise @ e + self.on_values @ r) / 2)
        if not math.isfinite(value):
            return None
        E, n = self.mixed.shape
        # Every entry of the matrix is a sum over the noise; a factorisation is that of a matrix this near.
        below = share(n + E + 16, torch.float64) * float(self.square.norm() + scaled.square().sum())
        below += 4 * accumulated(E + 3, torch.float64) * float(schur.diagonal().abs().sum())
        return _Factorised(value, e, r, factor, by_noise, below)


@dataclass(frozen=True)
class _Factorised:
    """The least value, about, where it is, and how far below 0 the matrix is in any direction of r, at most."""

    value: float
    e: Tensor
    r: Tensor
    factor: Tensor
    by_noise: Tensor
    below: float

    def inverse(self, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the matrix: the diagonal on the noise, the mixed part, the part on r."""
        square = torch.cholesky_inverse(self.factor)
        mixed = -square @ self.by_noise
        return 1 / noise - (self.by_noise * mixed).sum(0), mixed, square


@dataclass(frozen=True)
class Multipliers:
    """Logarithms of the multipliers of the noise ``[n]`` (``[1]`` in an l_2 ball) and of the six constraints."""

    noise: Tensor
    entries: Tensor  # [6, E]


class Rectifiers:
    """The rectifiers of a skeleton between ``lower`` and ``upper [E]``, over a box or an l_2 ball; in float64."""

    def __init__(self, skeleton: Skeleton, lower: Tensor, upper: Tensor) -> None:
        self.bounds, region = skeleton.bounds, skeleton.bounds.region
        self.centre, radius = (t.flatten().double() for t in centre_and_radius(region))
        self.moving = radius > 0
        self.radius = radius[self.moving]
        self.ball = region.centre is not None
        self.layers = [layer.every for layer in skeleton.layers.values()]
        both = [layer.functions.to(torch.float64) for layer in skeleton.layers.values()]
        halves = [torch.arange(len(part.constant)).chunk(2) for part in both]
        self.below, above = (
            self._of_noise([part.take(half[side]) for part, half in zip(both, halves)]) for side in (0, 1)
        )
        self.above = Functions(-above.on_input, -above.on_values, -above.constant, above.size)
        lower, upper = lower.double(), upper.double()
        crossing = (lower < 0) & (upper > 0)
        self.most = upper.clamp(min=0)
        # A chord may be too high; where the sign is known, it is the rectifier itself.
        chord = upper / torch.where(crossing, upper - lower, 1.0) * (1 + share(2, torch.float64))
        self.chord = torch.where(crossing, chord, (lower >= 0).double())
        self.least = torch.where(crossing, lower, 0.0)

    @staticmethod
    def of(skeleton: Skeleton, lower: Tensor, upper: Tensor) -> Rectifiers | None:
        """Those of a skeleton; None where it has other activations, or the region is neither a box nor an l_2 ball."""
        region = skeleton.bounds.region
        rectified = all(isinstance(skeleton.relaxed[i].operator, Relu) for i in skeleton.layers)
        return Rectifiers(skeleton, lower, upper) if rectified and (region.centre is None or region.norm == 2) else None

    def _of_noise(self, parts: list[Functions]) -> Functions:
        """Functions one after the other, of the noise instead of the input."""
        on_input, on_values, constant, size = (
            torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Functions)
        )
        constant = constant + on_input @ self.centre
        return Functions(on_input[:, self.moving] * self.radius, on_values, constant, 3 * size)

    @property
    def steps(self) -> int:
        """How many gradient steps the size of the matrices allows for."""
        E, n = self.below.on_input.shape
        return min(STEPS, _OPERATIONS // (2 * E * E * (n + E)))

    def lower(self, row: Functions, offset: Tensor, slopes: Tensor, enough: float = 0.0) -> float:
        """A lower bound on one row less its offset; steps start from lines with ``slopes [E]`` below rectifiers.

        Work ends when it exceeds ``enough``, or does not seem to get there.
        """
        row, offset = self._of_noise([row.to(torch.float64)]), offset.double()
        row = replace(row, constant=row.constant - offset, size=row.size + offset.abs())
        best, worth, before = self._start(row, slopes.double()), -math.inf, -math.inf
        for step, multipliers, value in self._climb(row, best):
            if value > worth:
                best, worth = multipliers, value
                if value > enough and (proved := self.certified(row, best)) > enough:
                    return proved
            if step % _LOOK == _LOOK - 1:
                # Steps gain less and less: where as much as the last ones does not do, nothing will.
                if worth + (worth - before) * (self.steps - step) / _LOOK < enough < math.inf:
                    break
                before = worth
        return self.certified(row, best)

    def _start(self, row: Functions, slopes: Tensor) -> Multipliers:
        """The linear constraints as lines take them, the products a little."""
        met = row.on_values[0]
        zero, below, chord = (torch.zeros_like(met) for _ in range(3))
        for every in reversed(self.layers):
            up, down = met[every].clamp(min=0), (-met[every]).clamp(min=0)
            zero[every], below[every], chord[every] = (1 - slopes[every]) * up, slopes[every] * up, down
            met = met + below[every] @ self.below.on_values[every]
            met = met - (down * self.chord[every]) @ self.above.on_values[every]
        moved = row.on_input[0] + below @ self.below.on_input - (chord * self.chord) @ self.above.on_input
        usual = met.abs().mean()
        scale = (self.most + self.most.mean()) / 2
        product = _PRODUCTS * usual / torch.where(scale > 0, scale, 1.0)
        noise = moved.abs() / 2 + _DOMINANT * ((product * self.most) @ self.above.on_input.abs())
        noise = noise.norm().reshape(1) if self.ball else noise
        linear = torch.stack((zero, below, chord)) + _LEAST * usual
        entries = torch.cat((linear, torch.stack((product, _LEAST * product, _RANGE * product))))
        tiny = torch.finfo(met.dtype).tiny ** 0.25  # nothing depends on what is as small
        found = Multipliers(noise.clamp(min=tiny).log(), entries.clamp(min=tiny).log())
        for _ in range(64):
            if self._quadratic(row, found).factorised() is not None:
                break
            raised = torch.cat((found.entries[:5], found.entries[5:] + math.log(_RAISED)))
            found = Multipliers(found.noise + math.log(_RAISED), raised)
        return found

    def _quadratic(self, row: Functions, multipliers: Multipliers) -> _Quadratic:
        """Q of some multipliers."""
        noise, (zero, below, chord, product, back, most) = multipliers.noise.exp(), multipliers.entries.exp()
        under, over, drawn = self.below, self.above, chord * self.chord
        on_values = row.on_values[0] - zero - below + chord + below @ under.on_values - drawn @ over.on_values
        on_values = on_values - product * over.constant + back * under.constant - most * self.most
        on_noise = row.on_input[0] + below @ under.on_input - drawn @ over.on_input
        constant = row.constant[0] + below @ under.constant - drawn @ (over.constant - self.least) - noise.sum()
        square = (back[:, None] * under.on_values - product[:, None] * over.on_values) / 2
        square = square + square.mT + (product - back + most).diag()
        mixed = (back[:, None] * under.on_input - product[:, None] * over.on_input) / 2
        return _Quadratic(constant, on_noise, on_values, noise.expand(on_noise.shape), mixed, square)

    def _climb(self, row: Functions, start: Multipliers) -> Iterator[tuple[int, Multipliers, float]]:
        """Multipliers on the way up, each with its step and what it is about worth."""
        free, before = Free(), start
        barrier = _BARRIER * float(start.noise.exp().sum()) / (len(self.radius) + len(self.most))
        for step in range(self.steps):
            self.bounds.check_time()
            noise = free(-1, "noise", start.noise, 0, -math.inf, math.inf)
            entries = free(-1, "entries", start.entries, 0, -math.inf, math.inf)
            here = Multipliers(noise.detach(), entries.detach())
            quadratic = self._quadratic(row, here)
            found = quadratic.factorised()
            if found is None:
                free.retreat({(-1, "noise"): before.noise, (-1, "entries"): before.entries})
                continue
            yield step, here, found.value
            before = here
            on_noise, on_entries = self._slopes(found, quadratic.noise, barrier)
            with torch.enable_grad():  # the derivatives are at hand: they are those of this sum
                moved = (on_noise * here.noise.exp() * noise).sum() + (on_entries * here.entries.exp() * entries).sum()
            free.ascend(moved, _RATE * _SLOWER**step)
            barrier *= _FADING

    def _slopes(self, found: _Factorised, noise: Tensor, barrier: float) -> tuple[Tensor, Tensor]:
        """How the least of Q changes with the multipliers: by the constraints there.

        A barrier adds to them what they are on average over a little noise around.
        """
        e, r, (own, mixed, square) = found.e, found.r, (barrier * part for part in found.inverse(noise))
        under, over = (
            (f.constant + f.on_input @ e + f.on_values @ r, (f.on_input * mixed).sum(1) + (f.on_values * square).sum(1))
            for f in (self.below, self.above)
        )
        squared = r * r + square.diagonal()
        chord = r - self.chord * (over[0] - self.least)
        product, back = squared - r * over[0] - over[1], r * under[0] + under[1] - squared
        moved = e * e + own
        on_noise = moved.sum().reshape(1) - 1 if self.ball else moved - 1
        return on_noise, torch.stack((-r, under[0] - r, chord, product, back, squared - r * self.most))

    def certified(self, row: Functions, multipliers: Multipliers) -> float:
        """What multipliers prove, all rounding charged."""
        quadratic = self._quadratic(row, multipliers)
        found = quadratic.factorised()
        if found is None:
            return -math.inf
        # The place may be outside the ranges, but not so far that rounding counts.
        e, r = found.e.clamp(-_OUTSIDE, _OUTSIDE), found.r.clamp(-_OUTSIDE * self.most, _OUTSIDE * self.most)
        on_noise, on_values = quadratic.gradient(e, r)
        reach = on_noise.norm() if self.ball else on_noise.abs().sum()
        ends = torch.minimum(-on_values * r, on_values * (self.most - r)).sum()
        bound = quadratic.value(e, r) - reach - on_noise @ e + ends
        return self._less_rounding(bound, found.below, row, multipliers)

    def _less_rounding(self, bound: Tensor, below: float, row: Functions, multipliers: Multipliers) -> float:
        """The bound less what the matrix may be below 0, and what coefficients and values of Q are rounded by."""
        noise, (zero, under, chord, product, back, most) = multipliers.noise.exp(), multipliers.entries.exp()
        E, n = self.below.on_input.shape
        reach, least, greatest = self.most, self.below.size, self.above.size
        # All terms of Q at their largest, the multipliers of noise twice: for the square and for what it costs.
        size = row.size[0] + zero @ reach + under @ (least + reach) + 2 * noise.sum() * (n if self.ball else 1)
        size = size + chord @ (reach + self.chord * (greatest - self.least)) + 2 * most @ reach.square()
        size = size + product @ (reach * (reach + greatest)) + back @ (reach * (reach + least))
        # Coefficients are sums over the entries, values over those of the noise and the entries; a tangent has every
        # term three times, and its own value once, all of them at a place that may be outside.
        far = (1 + _OUTSIDE) ** 2
        lost = far * (below * reach.square().sum() + 8 * share(4 * (n + E) + 16, torch.float64) * size)
        found = float(bound - lost * (1 + share(8, torch.float64)))
        return found if math.isfinite(found) else -math.inf
