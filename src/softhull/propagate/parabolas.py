"""Curves between two parabolas over a range: as close as they come, on average and at worst.

A parabola that touches f at a and meets it at b is off by ``f'''(x) (v - a)^2 (v - b) / 6``, x being somewhere in
between. Where the third derivative has one sign, it stays on one side of f up to b: above and below are told by which
end of the range it meets, wherever it touches. Rectifiers have parabolas of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.rounding import largest, share, ulps, underflow

# Points of a range at which parabolas may touch, those between 0 and the farther end for rectifiers, and points at
# which a sigmoid is looked at.
_TOUCHING, _ABOVE, _SAMPLES = 9, 33, 129
# Exponentials below this lose digits.
_VANISHING = 1e-290
# What the largest of many values counts against their mean, wherever bounds have to be good for both.
WORST = 0.3
# What squares are uncertain by counts more than a gap: later nodes feed on it.
BLUR = 2.0


@dataclass(frozen=True)
class Parabola:
    """``value + slope D + bend D^2`` of numbers D, which are counted from their centre."""

    value: Tensor
    slope: Tensor
    bend: Tensor

    def at(self, by: Tensor) -> Tensor:
        """Its values."""
        return self.value + (self.slope + self.bend * by) * by

    def rate(self, by: Tensor) -> Tensor:
        """Its derivatives."""
        return self.slope + 2 * self.bend * by

    def cheapest(self, cost: Tensor) -> Parabola:
        """Of several ``[k, E]`` the one that costs least, for every number."""
        place = cost.argmin(0)[None]
        return Parabola(*(t.gather(0, place)[0] for t in (self.value, self.slope, self.bend)))


# One above and one below, for numbers [E]: from centres, least and largest values, the means of squares of D, and what
# these are uncertain by.
Parabolas = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Parabola, Parabola]]


@dataclass(frozen=True)
class Curve:
    """A function whose third derivative has the sign ``third``.

    ``bend(a, b, sign)`` is ``(f(b) - f(a) - f'(a) (b - a)) / (b - a)^2``, rounded down (-1) or up (1).
    """

    value: Callable[[Tensor], Tensor]
    rate: Callable[[Tensor], Tensor]
    bend: Callable[[Tensor, Tensor, int], Tensor]
    third: int

    def parabolas(
        self, centre: Tensor, low: Tensor, high: Tensor, squares: Tensor, blur: Tensor
    ) -> tuple[Parabola, Parabola]:
        """One above and one below for numbers ``[E]`` between ``low`` and ``high``.

        Of all pairs the one whose gap is least on average, for numbers whose squares from the centre have the mean
        ``squares`` and are known up to ``blur``, and at worst.
        """
        above, below = (
            self._touching(centre, low, high, sign, high if sign == self.third else low) for sign in (1, -1)
        )
        gap = Parabola(
            above.value[:, None] - below.value, above.slope[:, None] - below.slope, above.bend[:, None] - below.bend
        )
        ends = [(end - centre).expand(gap.value.shape) for end in (low, high)]
        top = torch.minimum(torch.maximum(-gap.slope / (2 * gap.bend), ends[0]), ends[1]).nan_to_num(0.0)
        most = torch.stack([gap.at(by) for by in (*ends, top)]).amax(0)
        cost = gap.value + gap.bend * squares + WORST * most
        cost = cost + BLUR * blur * (above.bend.abs()[:, None] + below.bend.abs())
        one, other = (t[None] for t in torch.unravel_index(cost.flatten(0, 1).argmin(0), cost.shape[:2]))
        found = [
            Parabola(*(t.gather(0, place)[0] for t in (each.value, each.slope, each.bend)))
            for each, place in ((above, one), (below, other))
        ]
        return found[0], found[1]

    def _touching(self, centre: Tensor, low: Tensor, high: Tensor, sign: int, end: Tensor) -> Parabola:
        """Parabolas ``[.., E]`` that touch between both ends and meet one of them; rounded to their side."""
        ways = torch.linspace(0, 1, _TOUCHING, dtype=low.dtype, device=low.device)[:, None]
        a = torch.cat((low + ways * (high - low), torch.minimum(torch.maximum(centre, low), high)[None]))
        value, rate, bend = self.value(a), self.rate(a), self.bend(a, end.expand(a.shape), sign)
        by = centre - a
        far = by.abs() + largest(low - centre, high - centre)
        paid = share(64, low.dtype) * (value.abs() + (rate.abs() + bend.abs() * far) * far) + underflow(low.dtype)
        return Parabola(value + (rate + bend * by) * by + sign * paid, rate + 2 * bend * by, bend)


def inverse_root(epsilon: float) -> Curve:
    """``1 / sqrt(v + epsilon)``."""

    def bend(a: Tensor, b: Tensor, sign: int) -> Tensor:
        t, s = ((v + epsilon).sqrt() for v in (a, b))
        return (s + 2 * t) / (2 * s * t**3 * (s + t).square()) * (1 + sign * share(32, a.dtype))

    return Curve(lambda v: (v + epsilon).rsqrt(), lambda v: -0.5 * (v + epsilon) ** -1.5, bend, -1)


def _bend_of_exponential(a: Tensor, b: Tensor, sign: int) -> Tensor:
    """The bend of ``exp(v)``; what the difference is rounded by counts as a share of it.

    It is never negative, and at most half of the larger value: where one of these loses its digits, that will do.
    """
    found = a.exp() * exponential_bend(b - a, sign) * (1 + sign * share(4, a.dtype) * (1 + (b - a).abs()))
    vanishes = a.exp() < _VANISHING
    rough = torch.maximum(a, b).exp() * (1 + share(4, a.dtype)) / 2 + underflow(a.dtype) if sign > 0 else 0.0 * a
    return torch.where(vanishes, rough, found)


def exponential_bend(t: Tensor, sign: int) -> Tensor:
    """``(exp(t) - 1 - t) / t^2``, which rises with t and is never negative, rounded down (-1) or up (1)."""
    small = t.abs() < 0.01
    series, left = 0.5 + t / 6 + t.square() / 24, t.abs() ** 3 / 100
    safe = torch.where(small, 1.0, t)
    whole = (safe.expm1() - safe) / safe.square()
    cost = ulps(8, t.dtype)
    error = torch.where(small, left, cost * (safe.expm1().abs() + safe.abs()) / safe.square()) + cost * (1 + whole)
    return (torch.where(small, series, whole) + sign * error).clamp(min=0)


def logarithm_bend(a: Tensor, b: Tensor, sign: int) -> Tensor:
    """The bend of ``log(1 + v)``, which is never positive, rounded down (-1) or up (1)."""
    t = (b - a) / (1 + a)
    small = t.abs() < 0.01
    series, left = -0.5 + t / 3 - t.square() / 4, t.abs() ** 3 / 4
    safe, one, other = torch.where(small, 1.0, t), a.log1p(), b.log1p()
    whole = (other - one - safe) / safe.square()  # log(1 + t) would lose digits near its pole
    cost = ulps(16, t.dtype)
    lost = cost * (one.abs() + other.abs() + safe.abs()) / safe.square()
    error = torch.where(small, left, lost) + cost * (1 + whole.abs())
    return (torch.where(small, series, whole) + sign * error).clamp(max=0) / (1 + a).square()


def sigmoid_parabolas(
    centre: Tensor, low: Tensor, high: Tensor, squares: Tensor, blur: Tensor
) -> tuple[Parabola, Parabola]:
    """One above and one below ``1 / (1 + exp(-v))``, whose third derivative changes its sign.

    Both are parallel to one that meets it at three points. What that is off by is looked at in many points; between
    two of them it is larger by at most an eighth of the second derivative times the square of their distance.
    """
    middle, half, root = low + (high - low) / 2, (high - low) / 2, math.sqrt(3) / 2
    one, two, three = (torch.sigmoid(middle + way * half) for way in (-root, 0.0, root))
    wide = half > 1e-3
    step = root * torch.where(wide, half, 1.0)
    slope = torch.where(wide, (three - one) / (2 * step), two * (1 - two))
    bend = torch.where(wide, (one + three - 2 * two) / (2 * step.square()), two * (1 - two) * (0.5 - two))
    by = centre - middle
    value, slope = two + (slope + bend * by) * by, slope + 2 * bend * by
    ways = torch.linspace(0, 1, _SAMPLES, dtype=low.dtype, device=low.device)[:, None]
    at = low + ways * (high - low) - centre
    off = torch.sigmoid(at + centre) - value - (slope + bend * at) * at
    far = largest(low - centre, high - centre)
    # The second derivative of the sigmoid is at most 1 / (6 sqrt(3)).
    paid = ((high - low) / (_SAMPLES - 1)).square() / 8 * (0.0963 + 2 * bend.abs())
    paid = paid + share(64, low.dtype) * (1 + value.abs() + (slope.abs() + bend.abs() * far) * far)
    return Parabola(value + off.amax(0) + paid, slope, bend), Parabola(value + off.amin(0) - paid, slope, bend)


def rectifier_parabolas(
    centre: Tensor, low: Tensor, high: Tensor, squares: Tensor, blur: Tensor
) -> tuple[Parabola, Parabola]:
    """One above and one below ``max(v, 0) = (v + |v|) / 2`` for numbers of both signs.

    Let v be turned so that its centre is not negative, and lie in ``[-l, h]``. Above ``|v|``: ``v + k (v - b)^2`` with
    ``k = 2 l / (b + l)^2`` for ``b >= l``, which meets it at ``-l``, and ``k = 1 / (2 b)`` for any b; and the chord.
    Below: ``v + k v (v - h)`` with ``k <= 2 / (h + l)``, which meets it at 0 and h, at best at ``-l`` as well; and
    lines through 0. Of both the one whose gap is least on average and at worst, with what its bend makes of ``blur``.
    """
    turn = torch.where(centre >= 0, 1.0, -1.0)
    at, less, more = centre.abs(), torch.where(turn > 0, -low, high), torch.where(turn > 0, high, -low)
    far, none = torch.maximum(more, less), torch.zeros_like(at)
    steep, over = (more - less) / (more + less), 2 * less * (more / (more + less))
    b = torch.linspace(1 / _ABOVE, 1, _ABOVE, dtype=low.dtype, device=low.device)[:, None] * far
    k = torch.where(b >= less, 2 / (b + less) * (less / (b + less)), 1 / (2 * b)) * (1 + share(4, low.dtype))
    above = Parabola(*_stacked((k * b.square(), over), (1 - 2 * k * b, steep), (k, none)))
    top = 2 / (more + less) * (1 - share(4, low.dtype)) * torch.tensor([[1.0], [0.5], [0.0]]).to(low)
    below = Parabola(*_stacked((none, none, 0 * top), (steep, none - 1, 1 - top * more), (none, none, top)))
    # Above, the gap is most at 0 or h. Below, at an end or, where there is a bend, half way to one.
    worst = torch.maximum(above.value, above.at(more) - more)
    cost = above.value + above.slope * at + above.bend * (at.square() + squares) + WORST * worst
    above = above.cheapest(cost + BLUR * blur * above.bend)
    worst = torch.stack([v.abs() - below.at(v) for v in (-less, more, -less / 2, more / 2)]).amax(0)
    cost = WORST * worst - below.slope * at - below.bend * (at.square() + squares)
    below = below.cheapest(cost + BLUR * blur * below.bend)
    sizes = at + less + more + far
    paid = share(64, low.dtype) * (1 + (above.bend + below.bend) * sizes) * sizes
    found = [
        Parabola((centre + each.at(at) + sign * paid) / 2, (1 + turn * each.rate(at)) / 2, each.bend / 2)
        for each, sign in ((above, 1), (below, -1))
    ]
    return found[0], found[1]


def _stacked(*columns: tuple[Tensor, ...]) -> list[Tensor]:
    """Numbers ``[E]`` and ``[k, E]`` in columns, as one tensor each."""
    return [torch.cat([t.reshape(-1, t.shape[-1]) for t in column]) for column in columns]


# exp(v), log(1 + v).
EXPONENTIAL = Curve(torch.exp, torch.exp, _bend_of_exponential, 1)
LOGARITHM = Curve(torch.log1p, lambda v: 1 / (1 + v), logarithm_bend, 1)
