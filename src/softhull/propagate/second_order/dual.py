"""The Lagrangian (Shor) dual of a quadratic of the noise: which multipliers to choose, and what any choice costs.

The noise ``eps`` lies in ``[-1, 1]^n``; with a mask ``ball`` its masked part lies in the unit l_2 ball as well. For any
``d >= 0`` with ``M = diag(d) + B`` positive definite,

    l.eps + eps'B eps  >=  -cost(d) - l'M^-1 l / 4,        cost(d) = max of sum_i d_i eps_i^2 over the noise.

What is here searches; the promise is made by ``certified`` of the problem, for whatever ``d`` was found.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ...graph.rounding import accumulated, euclidean, underflow

# Multipliers start at this share of the row sums of |B|, which is nearly always enough (and 1 always is).
_FIRST_SHARE = 0.15
# It fades over the steps there are, to this share of its first weight, and not faster than at this rate.
_FADED, _FADING = 1e-5, 0.4
_BARRIER = 0.1  # the weight of the barrier at first; a tenth of it where good multipliers are known
# By these shares multipliers are raised, one after the other, where the best ones leave M too near to singular.
_RAISED = (0.0, 1e-6, 1e-4, 1e-2)
_INWARD, _OUTSIDE = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.5), 1.2  # the same for their minimiser, while it is outside
NEXT_TO = 1e-3  # the share of the value at a corner that is not worth further steps


class Solved(NamedTuple):
    """For multipliers ``d``: whether M is positive definite ``[P]``, ``x = M^-1 l / 2`` and the diagonal of M^-1."""

    feasible: Tensor
    x: Tensor
    diagonal: Tensor


class Problem(ABC):
    """P quadratics ``l.eps + eps'B eps``."""

    linear: Tensor  # [P, n]
    ball: Tensor | None  # [n]

    @abstractmethod
    def take(self, which: Tensor) -> Self:
        """Some of the problems."""

    @abstractmethod
    def times(self, e: Tensor) -> Tensor:
        """``B e`` for ``e [P, n]``."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of B, or 0 where it is not worth the work; the signs at a corner and absolute sums use it."""

    @abstractmethod
    def row_sums(self) -> Tensor:
        """At least the row sums of ``|B|``."""

    @property
    @abstractmethod
    def operations(self) -> int:
        """How many roundings an entry of the row sums, or of the diagonal, may have seen."""

    def absolute_sums(self) -> tuple[Tensor, Tensor]:
        """All terms at their worst at once: ``-|l|_1 - sum_{i != j} |B_ij| - sum_i max(0, -B_ii)``, and multipliers.

        With these, M is diagonally dominant. Noise in a ball counts with the norm of its linear part.
        """
        diagonal, linear = self.diagonal(), self.linear.abs()
        sums = self.row_sums()
        rows = sums - diagonal.abs() + (-diagonal).clamp(min=0)
        rows = rows + 4 * accumulated(self.operations, sums.dtype) * sums
        ends, half = linear.sum(-1), linear / 2
        if self.ball is not None and bool(self.ball.any()):
            length = euclidean(linear[..., self.ball], -1)
            ends = length + linear[..., ~self.ball].sum(-1)
            half = torch.where(self.ball, length[..., None] / 2, half)
        # Half of the smallest number is zero, but multipliers must not be where there is anything to multiply.
        least = underflow(linear.dtype) * (half + linear > 0).to(linear)
        value = -(ends + rows.sum(-1))
        value = value - 2 * accumulated(linear.shape[-1] + 4, value.dtype) * value.abs() - 2 * least.sum(-1)
        sound = value.isfinite()
        value = torch.where(sound, value, torch.full_like(value, -math.inf))
        return value, torch.where(sound[..., None], rows + half + least, torch.full_like(linear, math.inf))

    @abstractmethod
    def solve(self, d: Tensor) -> Solved:
        """What a step from ``d`` needs, in floating point."""

    def improved(self, d: Tensor, value: Tensor, steps: Tensor, target: Tensor) -> Tensor:
        """Better multipliers than ``d`` with bounds ``value [P]``, by at most ``steps [P]`` steps up to the target."""
        return _ascend(self, d, value, steps, target, _BARRIER)

    @abstractmethod
    def certified(self, d: Tensor) -> Tensor:
        """The dual bound ``[P]`` of given multipliers, all rounding charged; -inf where M is not proved definite."""


def cost(d: Tensor, ball: Tensor | None) -> Tensor:
    """The largest ``sum_i d_i eps_i^2`` over the noise, or more."""
    if ball is None or not bool(ball.any()):
        return d.sum(-1)
    inside = d[..., ball]
    return d[..., ~ball].sum(-1) + torch.minimum(inside.sum(-1), inside.amax(-1))


@dataclass(frozen=True)
class Pursuit:
    """What a search for multipliers may take, and where it begins.

    At most ``steps`` factorisations for each; one is done when its bound exceeds its ``target [P]``. ``start [P, n]``:
    multipliers that were good for nearly the same problems (NaN: unknown); then steps are cheap ones. ``hopeless``: how
    low a problem is, is asked even where no bound can reach its target.
    """

    steps: int
    target: Tensor
    start: Tensor | None = None
    hopeless: bool = False

    def take(self, which: Tensor) -> Pursuit:
        """The same for some of the problems."""
        return replace(self, target=self.target[which], start=None if self.start is None else self.start[which])


def bound(problem: Problem, pursuit: Pursuit) -> tuple[Tensor, Tensor]:
    """The better of absolute sums and multipliers, and the multipliers; no more work than the target asks for."""
    value, d = problem.absolute_sums()
    active = (value.isfinite() & ~(value > pursuit.target)).nonzero()[:, 0]
    if pursuit.steps and len(active) and problem.linear.shape[1]:
        found, tried = maximise(problem.take(active), pursuit.take(active))
        better = found > value[active]
        value[active[better]], d[active[better]] = found[better], tried[better]
    return value, d


def maximise(problem: Problem, pursuit: Pursuit) -> tuple[Tensor, Tensor]:
    """Certified bounds ``[P]`` and their multipliers ``[P, n]`` (NaN where the bound is -inf).

    A problem is hopeless when the quadratic itself is below its target at a corner.
    """
    linear, ball = problem.linear, problem.ball
    steps, target, known = pursuit.steps, pursuit.target, pursuit.start
    corner, Be = vertex_minimiser(problem)
    scale = problem.row_sums() + linear.abs() / 2
    start = torch.maximum((linear + 2 * Be).abs() / 2, 1e-9 * linear.abs().amax(-1, keepdim=True))
    at_corner = (corner * (linear + Be)).sum(-1)
    hopeless = (at_corner < target) & target.isfinite() & (not pursuit.hopeless)
    if ball is None:
        # No bound passes a corner: where nobody asks for more, one that is next to it is enough.
        target = torch.where(target.isposinf(), at_corner - NEXT_TO * at_corner.abs(), target)
    else:  # the corner is not noise there
        hopeless = torch.zeros_like(hopeless)
    value = linear.new_full(linear.shape[:1], -math.inf)
    d = torch.full_like(linear, torch.nan)
    share = _FIRST_SHARE
    left = torch.full_like(value, steps)  # for each on its own: what one needs must not depend on the others
    while share < 4:
        active = (~value.isfinite() & (left > 0)).nonzero()[:, 0]
        if not len(active):
            break
        left[active] -= 1
        tried = torch.maximum(start[active], share * scale[active])
        if known is not None and share == _FIRST_SHARE:
            tried = torch.where(known[active].isfinite().all(-1, keepdim=True), known[active], tried)
        tried = levelled(_lifted(tried), ball)
        found = problem.take(active).certified(tried)
        good = found > -math.inf
        value[active[good]], d[active[good]] = found[good], tried[good]
        share *= 3
    active = (value.isfinite() & ~(value > target) & ~hopeless & (left > 0)).nonzero()[:, 0]
    if len(active):
        # A little more than the target, so that rounding does not lose it again.
        enough = target[active] + 1e-6 * (1 + target[active].abs())
        part = problem.take(active)
        if known is None:
            tried = part.improved(d[active], value[active], left[active], enough)
        else:
            tried = _ascend(part, d[active], value[active], left[active], enough, 0.1 * _BARRIER)
        for more in _RAISED:
            found = problem.take(active).certified((1 + more) * tried)
            better = found > value[active]
            value[active[better]], d[active[better]] = found[better], (1 + more) * tried[better]
            active, tried = active[~better], tried[~better]
            if not len(active):
                break
    return value, d


def _ascend(problem: Problem, start: Tensor, value: Tensor, steps: Tensor, target: Tensor, barrier: float) -> Tensor:
    """Better multipliers by ``steps [P]`` fixed-point steps ``d <- d sqrt(x^2 + mu diag(M^-1))`` with shrinking ``mu``.

    At the optimum ``x_i^2 = 1`` wherever ``d_i > 0``; the second term is that of a logarithmic barrier and keeps M
    definite. A step that leaves the cone is taken back half-way.
    """
    linear, ball = problem.linear, problem.ball
    best, best_value = start.clone(), value.clone()
    active = torch.arange(len(linear), device=linear.device)
    d = start
    weight = linear.new_full(linear.shape[:1], barrier)
    fading = (_FADED ** (1 / steps.clamp(min=1))).clamp(min=_FADING)
    for taken in range(1, int(steps.max()) + 1):
        found = problem.take(active).solve(d)
        value = -(cost(d, ball) + (linear[active] * found.x).sum(-1) / 2)
        good = found.feasible & value.isfinite()
        better = good & (value > best_value[active])
        best[active[better]], best_value[active[better]] = d[better], value[better]
        mu = weight[active] * cost(d, ball) / d.shape[-1]
        step = (found.x.square() + mu[:, None] * found.diagonal.clamp(min=0)).sqrt()
        moved = levelled(_lifted(d * step), ball, step)
        back = levelled((d * best[active]).sqrt(), ball)
        weight[active] = torch.where(good, weight[active] * fading[active], weight[active])
        d = torch.where((good & moved.isfinite().all(-1))[:, None], moved, back)
        more = ~(best_value[active] > target[active]) & d.isfinite().all(-1) & (steps[active] > taken)
        open_ = more.nonzero()[:, 0]
        active, d = active[open_], d[open_]
        if not len(active):
            break
    return best


def minimiser(problem: Problem, d: Tensor) -> Tensor:
    """Noise ``[P, n]`` where the quadratics are least with multipliers ``d [P, n]``; NaN where these are none.

    Where M is all but singular that is far from any noise. Multipliers are raised until it no longer is.
    """
    found = torch.full_like(d, torch.nan)
    for more in _INWARD if d.numel() else ():
        left = (~(found.abs().amax(-1) <= _OUTSIDE)).nonzero()[:, 0]
        if not len(left):
            break
        solved = problem.take(left).solve((1 + more) * d[left])
        usable = (solved.feasible & solved.x.isfinite().all(-1))[:, None]
        found[left] = torch.where(usable, -solved.x, found[left])
    return found.clamp(-1, 1)


def fixed_point(problem: Problem, d: Tensor, solved: Solved, times: int = 2) -> Tensor:
    """Multipliers after a few fixed-point steps from feasible ones, half steps where whole ones lose much."""

    def value(d: Tensor, solved: Solved) -> Tensor:
        return -(cost(d, problem.ball) + (problem.linear * solved.x).sum(-1) / 2)

    for _ in range(times):
        barrier = 0.01 * cost(d, problem.ball) / d.shape[-1]
        step = (solved.x.square() + barrier[:, None] * solved.diagonal.clamp(min=0)).sqrt()
        moved, before = levelled(_lifted(d * step), problem.ball, step), value(d, solved)
        for tried in (levelled((d * moved).sqrt(), problem.ball), moved):
            found = problem.solve(tried)
            good = (found.feasible & (value(tried, found) > before - 0.05 * before.abs()))[:, None]
            d = torch.where(good, tried, d)
            solved = Solved(solved.feasible, *(torch.where(good, new, old) for new, old in zip(found[1:], solved[1:])))
    return d


def _lifted(d: Tensor) -> Tensor:
    """No multiplier much smaller than the mean: it would gain nothing and cost digits."""
    return torch.maximum(d, 1e-5 * d.mean(-1, keepdim=True))


def levelled(d: Tensor, ball: Tensor | None, step: Tensor | None = None) -> Tensor:
    """One multiplier for all noise in a ball: a larger one costs nothing more."""
    if ball is None or not bool(ball.any()):
        return d
    inside = d[..., ball]
    level = inside.amax(-1, keepdim=True)
    if step is not None:
        level = level / step[..., ball].amax(-1, keepdim=True) * step[..., ball].norm(dim=-1, keepdim=True)
    d = d.clone()
    d[..., ball] = level.expand(inside.shape)
    return d


def vertex_minimiser(problem: Problem, rounds: int = 4) -> tuple[Tensor, Tensor]:
    """A corner ``e [P, n]`` of the box where turning single signs gains little, and ``B e``."""
    linear, diagonal = problem.linear, problem.diagonal()
    e = torch.where(linear > 0, -torch.ones_like(linear), torch.ones_like(linear))
    Be = problem.times(e)
    best, best_Be, best_value = e, Be, (e * (linear + Be)).sum(-1)
    for _ in range(rounds):
        wrong = (linear + 2 * (Be - diagonal * e)) * e  # positive: the sign should turn
        turn = (wrong > 0) & (wrong >= 0.3 * wrong.amax(-1, keepdim=True))  # the most pressing ones together
        if not bool(turn.any()):
            break
        e = torch.where(turn, -e, e)
        Be = problem.times(e)
        value = (e * (linear + Be)).sum(-1)
        better = value < best_value
        best, best_Be = (torch.where(better[:, None], new, old) for new, old in ((e, best), (Be, best_Be)))
        best_value = torch.where(better, value, best_value)
    return best, best_Be
