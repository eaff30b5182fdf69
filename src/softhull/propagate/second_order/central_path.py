"""Multipliers of a quadratic of the noise by Newton steps along the central path of its dual.

The dual ``-sum d - l'M^-1 l / 4`` over ``d > 0`` with ``M = diag(d) + B`` positive definite is concave. With a barrier,

    f(d)  =  -sum d - l'M^-1 l / 4 + mu (log det M + sum log d),

it has one maximum, next to which it is nearly quadratic; as ``mu`` shrinks, the maximum moves to that of the dual, and
is never further below it than ``2 n mu``. With ``x = M^-1 l / 2`` and ``W = M^-1`` the slope of f is
``x^2 - 1 + mu (diag W + 1 / d)`` and minus its second derivative ``W * (2 x x' + mu W) + mu / d^2``, so that a step
takes three factorisations. Fixed points of single multipliers are cheaper, but stop short of the maximum wherever M is
nearly singular in a direction of many of them.

Cuts are further quadratics ``c + g . eps + eps'G eps`` that are at most zero wherever the bound has to hold. Any
multiple ``b >= 0`` of them may be added, so that ``b`` are multipliers as ``d`` are (which belong to ``eps_i^2 - 1``):
``M = diag(d) + B + sum b G``, ``l`` becomes ``l + sum b g``, and the dual gains ``sum b c``. With ``u = G x - g / 2``
the slope in b is ``c - g . x + x'G x + mu (tr WG + 1 / b)``; minus the second derivatives are
``2 u'W u + mu tr WGWG + mu / b^2`` and, with those of d, ``2 x * W u + mu diag WGW``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Where the path begins: equal multipliers, at first this share of the largest row sum of |B|, growing until M is
# definite, then a little further inside, where the path is for this share of them as mu.
_SHARE, _GROW, _INSIDE, _FIRST = 0.1, 1.4, 1.2, 0.4
# A step is near the path where its length in the metric of f is below this, and then mu shrinks.
_NEAR, _SHRINK = 2.0, 0.2
# Steps are shortened until f rises; where they are nearly whole, mu shrinks a little.
_SHORT, _BACK, _TRIES = 0.9, 0.5, 12
# Minimisers are of use up to this.
_WITHIN = 1.1
# Bytes of the matrices that are worked on at once: they should stay near the processor.
_CACHE = 1 << 20
# Where another problem that is nearly the same begins: what is left to gain is this share of the value.
_START = 0.1


@dataclass(frozen=True)
class Squares:
    """The quadratic parts ``G = V'S V`` of some cuts, from number ``first`` on: V ``[P, c, r, n]``, S symmetric."""

    first: int
    factors: Tensor
    matrix: Tensor

    @property
    def cuts(self) -> slice:
        """Whose parts they are."""
        return slice(self.first, self.first + self.matrix.shape[1])

    def reach(self) -> Tensor:
        """At least the largest value ``[P, c]`` of every part."""
        rows = self.factors.abs().sum(-1, keepdim=True)
        return (rows.mT @ self.matrix.abs() @ rows)[..., 0, 0]


@dataclass(frozen=True)
class Cuts:
    """Quadratics that are at most zero: constants ``[P, C]``, slopes ``[P, C, n]``, and squares of some of them."""

    constant: Tensor
    linear: Tensor
    squares: tuple[Squares, ...] = ()

    @staticmethod
    def none(linear: Tensor) -> Cuts:
        """No cuts, of problems with slopes ``[P, n]``."""
        P, n = linear.shape
        return Cuts(linear.new_zeros(P, 0), linear.new_zeros(P, 0, n))

    @staticmethod
    def of(constant: Tensor, linear: Tensor, factors: Tensor, matrix: Tensor) -> Cuts:
        """Cuts that all have squares."""
        return Cuts(constant, linear, (Squares(0, factors, matrix),))

    def take(self, which: Tensor) -> Cuts:
        """The cuts of some of the problems."""
        squares = (Squares(part.first, part.factors[which], part.matrix[which]) for part in self.squares)
        return Cuts(self.constant[which], self.linear[which], tuple(squares))

    def over(self, noise: Tensor) -> Cuts:
        """The same as functions of some of the noise ``[n']``, where they depend on no other."""
        squares = (Squares(part.first, part.factors[..., noise], part.matrix) for part in self.squares)
        return Cuts(self.constant, self.linear[..., noise], tuple(squares))

    def and_those(self, other: Cuts) -> Cuts:
        """These cuts, then others of the same problems."""
        count = self.constant.shape[1]
        later = (Squares(part.first + count, part.factors, part.matrix) for part in other.squares)
        constant, linear = torch.cat((self.constant, other.constant), 1), torch.cat((self.linear, other.linear), 1)
        return Cuts(constant, linear, (*self.squares, *later))

    def reach(self) -> Tensor:
        """At least the largest size ``[P, C]`` of every cut."""
        found = self.constant.abs() + self.linear.abs().sum(-1)
        for part in self.squares:
            found[:, part.cuts] += part.reach()
        return found

    def total(self, b: Tensor) -> Tensor:
        """``sum b G`` ``[P, n, n]`` for multiples ``b [P, C]``."""
        P, _, n = self.linear.shape
        found = b.new_zeros(P, n, n)
        for part in self.squares:
            weighted = b[:, part.cuts, None, None] * part.matrix @ part.factors
            found = found + part.factors.flatten(1, 2).mT @ weighted.flatten(1, 2)
        return found

    def along(self, x: Tensor) -> Tensor:
        """``G x`` ``[P, C, n]`` at a point ``[P, n]`` each."""
        found = torch.zeros_like(self.linear)
        for part in self.squares:
            met = part.matrix @ (part.factors @ x[:, None, :, None])
            found[:, part.cuts] = (met.mT @ part.factors)[..., 0, :]
        return found

    def traces(self, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``tr W G_i`` ``[P, C]``, the diagonals of ``W G_i W`` ``[P, C, n]``, and ``tr W G_i W G_j`` ``[P, C, C]``."""
        P, C, n = self.linear.shape
        single, diagonal, pairs = W.new_zeros(P, C), W.new_zeros(P, C, n), W.new_zeros(P, C, C)
        met = [(part.factors.flatten(1, 2) @ W).unflatten(1, part.matrix.shape[1:3]) for part in self.squares]
        blocks = {}
        for i, (own, over) in enumerate(zip(self.squares, met)):
            diagonal[:, own.cuts] = ((own.matrix @ over) * over).sum(-2)
            for j, other in enumerate(self.squares):
                inner = over.flatten(1, 2) @ other.factors.flatten(1, 2).mT
                inner = inner.unflatten(2, other.matrix.shape[1:3]).unflatten(1, own.matrix.shape[1:3])
                # S_i V_i W V_j', of which traces are taken: [P, i, j, r, r']
                blocks[i, j] = own.matrix[:, :, None] @ inner.transpose(2, 3)
            single[:, own.cuts] = blocks[i, i].diagonal(dim1=1, dim2=2).diagonal(dim1=1, dim2=2).sum(-1)
        for (i, j), block in blocks.items():
            pairs[:, self.squares[i].cuts, self.squares[j].cuts] = (block * blocks[j, i].transpose(1, 2).mT).sum(
                (-2, -1)
            )
        return single, diagonal, pairs


@dataclass(frozen=True)
class Begun:
    """A point of the path, not far along it: ``d [P, n]``, ``b [P, C]`` and ``mu [P]``, NaN where there is none."""

    d: Tensor
    b: Tensor
    mu: Tensor

    def take(self, which: Tensor) -> Begun:
        """The points of some of the problems."""
        return Begun(self.d[which], self.b[which], self.mu[which])


@dataclass(frozen=True)
class Multipliers:
    """``d [P, n]`` (NaN where none were found), those of cuts ``b [P, C]``, and a minimiser ``x [P, n]`` on the way.

    ``begun``: where problems that are nearly the same may begin.
    """

    d: Tensor
    b: Tensor
    x: Tensor
    begun: Begun

    @staticmethod
    def together(parts: Sequence[Multipliers]) -> Multipliers:
        """Those of several groups of problems as one."""
        d, b, x = (torch.cat([getattr(part, name) for part in parts]) for name in ("d", "b", "x"))
        begun = (torch.cat([getattr(part.begun, name) for part in parts]) for name in ("d", "b", "mu"))
        return Multipliers(d, b, x, Begun(*begun))


def followed(
    linear: Tensor,
    B: Tensor,
    steps: Tensor,
    target: Tensor,
    enough: float,
    cuts: Cuts | None = None,
    hopeless: float = math.inf,
    begun: Begun | None = None,
) -> Multipliers:
    """Multipliers by at most ``steps [P]`` steps each.

    Work on one ends when its dual exceeds its ``target [P]``, when what is left to gain is a share ``enough`` of it, or
    when ``hopeless`` times that is less than what is missing.
    """
    cuts = Cuts.none(linear) if cuts is None else cuts
    together = max(1, _CACHE // (linear.element_size() * linear.shape[1] ** 2))
    if len(linear) > together:
        parts = []
        for some in torch.arange(len(linear), device=linear.device).split(together):
            first = None if begun is None else begun.take(some)
            given = linear[some], B[some], steps[some], target[some]
            parts.append(followed(*given, enough, cuts.take(some), hopeless, first))
        return Multipliers.together(parts)
    # For a large mu all multipliers on the path are nearly equal; a start with unequal ones is far from it.
    d = (_SHARE * (B.abs().sum(-1) + linear.abs() / 2).amax(-1, keepdim=True)).expand(linear.shape)
    reach = cuts.reach()
    b = _FIRST * d[:, :1] / torch.where(reach > 0, reach, 1.0)
    warm = torch.zeros(len(d), dtype=torch.bool, device=d.device)
    mu = torch.zeros_like(d[:, 0])
    if begun is not None:
        warm = begun.mu.isfinite() & begun.d.isfinite().all(-1)
        mu = torch.where(warm, begun.mu, mu)
        d = torch.where(warm[:, None], begun.d, d)
        fresh = mu[:, None] / torch.where(reach > 0, reach, 1.0)
        b = torch.where(warm[:, None], torch.where(begun.b > 0, begun.b, fresh), b)
    B = B + cuts.total(b)
    for _ in range(_TRIES):
        factor, info = torch.linalg.cholesky_ex(B + torch.diag_embed(d))
        if not bool((info != 0).any()):
            break
        d = torch.where((info != 0)[:, None], _GROW * d, d)
        mu = torch.where(info != 0, _GROW * mu, mu)
    d = torch.where(warm[:, None], d, _INSIDE * d)
    mu = torch.where(warm, mu, _FIRST * d.mean(-1))
    factor, info = torch.linalg.cholesky_ex(B + torch.diag_embed(d))
    best = Multipliers(
        torch.full_like(d, math.nan),
        torch.zeros_like(b),
        torch.zeros_like(d),
        Begun(torch.full_like(d, math.nan), torch.zeros_like(b), torch.full_like(mu, math.nan)),
    )
    best_value = linear.new_full(linear.shape[:1], -math.inf)
    active = torch.arange(len(linear), device=linear.device)
    on_path = torch.zeros_like(active, dtype=torch.bool)
    placed = torch.zeros_like(on_path)  # of which a minimiser is known
    for taken in range(1, int(steps.max()) + 2):
        l = linear[active] + (b[..., None] * cuts.linear).sum(1)  # noqa: E741
        W = torch.cholesky_inverse(usable(factor, info))
        x = (W @ l[..., None])[..., 0] / 2
        value = (b * cuts.constant).sum(-1) - (d.sum(-1) + (l * x).sum(-1) / 2)
        better = (info == 0) & (value > best_value[active])
        where = active[better]
        best.d[where], best.b[where], best_value[where] = d[better], b[better], value[better]
        # Next to the path the minimiser is within the box; away from it, M may be nearly singular.
        within = better & ((x.abs().amax(-1) <= _WITHIN) | ~placed[active])
        best.x[active[within]] = -x[within].clamp(-1, 1)
        placed[active[within]] = True
        gap = (2 * d.shape[-1] + b.shape[-1]) * mu
        early = (info == 0) & ((gap > _START * value.abs()) | best.begun.mu[active].isnan())
        where = active[early]
        best.begun.d[where], best.begun.b[where], best.begun.mu[where] = d[early], b[early], mu[early]
        missing = target[active] - value
        more = (info == 0) & ~(missing < 0) & (steps[active] >= taken) & (gap > enough * value.abs())
        more &= ~(missing > hopeless * gap) | ~on_path
        left = more.nonzero()[:, 0]
        if not len(left):
            break
        if len(left) < len(active):
            active, d, b, x, W, mu, B, factor = (t[left] for t in (active, d, b, x, W, mu, B, factor))
            cuts = cuts.take(left)
        height = _height(linear[active], cuts, d, b, factor, mu)
        d, b, B, factor, info, mu, on_path = _step(linear[active], B, cuts, d, b, x, W, mu, height)
    return best


def _height(linear: Tensor, cuts: Cuts, d: Tensor, b: Tensor, factor: Tensor, mu: Tensor) -> Tensor:
    """f ``[P]`` by a factor of M."""
    l = linear + (b[..., None] * cuts.linear).sum(1)  # noqa: E741
    half = torch.linalg.solve_triangular(factor, l[..., None], upper=False)[..., 0]
    barrier = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + d.log().sum(-1) + b.log().sum(-1)
    return (b * cuts.constant).sum(-1) - d.sum(-1) - half.square().sum(-1) / 4 + mu * barrier


def _step(
    linear: Tensor, B: Tensor, cuts: Cuts, d: Tensor, b: Tensor, x: Tensor, W: Tensor, mu: Tensor, height: Tensor
) -> tuple[Tensor, ...]:
    """Multipliers after one step, B with the cuts, a factor of M and whether it is one, the next mu, and whether they
    were next to the path. ``B`` is that with the multiples ``b`` of the cuts, ``height`` is f."""
    m, n, C = mu[:, None], d.shape[-1], b.shape[-1]
    slope = x.square() - 1 + m * (W.diagonal(dim1=-2, dim2=-1) + 1 / d)
    bent = W * (2 * x[:, :, None] * x[:, None] + m[..., None] * W) + torch.diag_embed(m / d.square())
    if C:
        Gx = cuts.along(x)
        u = Gx - cuts.linear / 2
        Wu = u @ W
        trace, diagonal, pairs = cuts.traces(W)
        on_cuts = cuts.constant - ((cuts.linear - Gx) * x[:, None]).sum(-1) + m * (trace + 1 / b)
        mixed = 2 * x[:, None] * Wu + m[..., None] * diagonal  # [P, C, n]
        own = 2 * u @ Wu.mT + m[..., None] * (pairs + pairs.mT) / 2 + torch.diag_embed(m / b.square())
        slope = torch.cat((slope, on_cuts), 1)
        bent = torch.cat((torch.cat((bent, mixed.mT), 2), torch.cat((mixed, own), 2)), 1)
    both = torch.cat((d, b), 1)
    # In units of the multipliers, which may be far apart.
    slope, bent = slope * both, bent * both[:, :, None] * both[:, None]
    half, info = torch.linalg.cholesky_ex(bent)
    relative = torch.cholesky_solve(slope[..., None], usable(half, info))[..., 0]
    relative = torch.where(((info == 0) & relative.isfinite().all(-1))[:, None], relative, 0.1)
    length = ((slope * relative).sum(-1) / mu).clamp(min=0).sqrt()

    # Steps that end short of where a multiplier fails; all go as far, or M would fail.
    share = (_SHORT / (-relative).amax(-1).clamp(min=_SHORT)).clamp(max=1)

    def moved(share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Multipliers after a share of the step, and B with these."""
        new_d, new_b = (both * (1 + share[:, None] * relative)).split((n, C), 1)
        return new_d, new_b, B + cuts.total(new_b - b) if C else B

    for _ in range(_TRIES):
        new_d, new_b, new_B = moved(share)
        factor, info = torch.linalg.cholesky_ex(new_B + torch.diag_embed(new_d))
        failed = (info != 0) | ~(_height(linear, cuts, new_d, new_b, factor, mu) >= height - 1e-9 * height.abs())
        if not bool(failed.any()):
            break
        share = torch.where(failed, _BACK * share, share)
    if bool(failed.any()):
        new_d, new_b, new_B = moved(torch.where(failed, 0.0, share))
    share, d, b, B = torch.where(failed, 0.0, share), new_d, new_b, new_B
    if bool(failed.any()):  # nowhere near: stay, and come from further inside
        d = torch.where(failed[:, None], 1.1 * d, d)
        factor, info = torch.linalg.cholesky_ex(B + torch.diag_embed(d))
    # Multipliers of cuts begin far from the path, and whole steps lead there only while mu stays.
    slowly = mu if C else torch.where(share > _SHORT, mu / 2, mu)
    smaller = torch.where((length < _NEAR) & (share == 1), _SHRINK * mu, slowly)
    return d, b, B, factor, info, smaller, length < 1


def usable(factor: Tensor, info: Tensor) -> Tensor:
    """Factors that can be worked with, whatever they are worth."""
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.where(((info == 0) & factor.isfinite().flatten(1).all(-1))[:, None, None], factor, eye)
