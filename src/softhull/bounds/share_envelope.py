"""Planes below ``F(y, s) = e^y / (e^y + s)`` on a rectangle, at the limit: its convex envelope.

``s`` is measured in units of its value at the point of interest, so that it is 1 there. For slopes ``alpha`` in y
and ``-gamma`` in s the best offset is the minimum of ``F + gamma s - alpha y`` over the rectangle. Minimising over
``s`` first leaves ``h(y) = F(y, s(y)) + gamma s(y)`` with ``s(y)`` clipped to its interval. Its derivative is
``p (1 - p)`` at ``p = F(y, s(y))``, and ``p`` rises with ``y`` (both along clipped and unclipped pieces), so ``h`` is
first convex, then concave: the minimum of ``h - alpha y`` lies at the one point with ``p (1 - p) = alpha``,
``p <= 1/2``, clipped to ``[a, b]``, or at ``b``. For the same reason the envelope at a point is carried by at most two
points, one at some ``t`` and one at ``b``, which leaves a single equation in ``t``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._arrays import (
    Array,
    clip,
    constant,
    is_differentiated,
    limits,
    maximum,
    minimum,
    namespace,
    repeat,
    sigmoid,
    where_true,
)

ROOT_STEPS = 26  # every third halves the bracket, the last does not; relative error of the value below 1e-8 (tested)


class Rectangle(NamedTuple):
    """``y`` in ``[a, b]``, ``s`` in ``[s_lo, s_hi]`` around the point ``(y, 1)``."""

    y: Array
    a: Array
    b: Array
    s_lo: Array
    s_hi: Array


def touching_value(where: Rectangle, alpha: Array, gamma: Array) -> Array:
    """The value at ``(y, 1)`` of the highest plane with slopes ``alpha`` and ``-gamma`` below F on the rectangle."""
    xp = namespace(where.y)
    alpha, gamma = clip(alpha, 0.0, 0.25), maximum(gamma, smallest_slope(where.y))
    root = xp.sqrt(maximum(1 - 4 * alpha, 0.0))
    p = 2 * alpha / (1 + root)
    rising = p > 0
    s = clip(alpha / gamma, where.s_lo, where.s_hi)
    safe = xp.where(rising, p, xp.full_like(p, 0.5))
    stationary = xp.where(rising, xp.log(safe / (1 - safe)) + xp.log(s), -xp.inf)
    inner = clip(stationary, where.a, where.b)
    return minimum(_lifted(where, alpha, gamma, inner), _lifted(where, alpha, gamma, where.b))


def _lifted(where: Rectangle, alpha: Array, gamma: Array, y: Array) -> Array:
    """Value at ``(y, 1)`` of the plane that touches F from below along the line ``y``."""
    xp = namespace(y)
    z = xp.exp(minimum(0.5 * (y + xp.log(gamma)), 1.0))
    s = clip(z * (1 - z) / gamma, where.s_lo, where.s_hi)
    return sigmoid(y - xp.log(s)) + gamma * (s - 1) + alpha * (where.y - y)


class Mixture(NamedTuple):
    """Two points ``(t, s1)`` and ``(b, s2)`` that average to ``(y, 1)``, best for the given ``t``."""

    alpha: Array  # slope of the secant through both
    gamma: Array
    imbalance: Array  # positive: t is too large


def _mixture(where: Rectangle, t: Array) -> Mixture:
    """The mixture of a point at ``t`` and one at the upper end of ``y`` with the least mean of the share."""
    xp = namespace(t)
    _, cap = limits(t)
    y, b, s_lo, s_hi = where.y, where.b, where.s_lo, where.s_hi
    span = b - t
    open_ = span > 0
    span = xp.where(open_, span, xp.ones_like(span))
    share_b = clip((y - t) / span, 1e-7, 1 - 1e-7)
    share_t = 1 - share_b
    half_t, half_b = xp.exp(clip(t / 2, -cap, cap)), xp.exp(clip(b / 2, -cap, cap))
    e_t, e_b = half_t * half_t, half_b * half_b
    root_gamma = (share_t * half_t + share_b * half_b) / (1 + share_t * e_t + share_b * e_b)
    s1 = half_t / root_gamma - e_t
    s1 = clip(s1, maximum(s_lo, (1 - share_b * s_hi) / share_t), minimum(s_hi, (1 - share_b * s_lo) / share_t))
    s2 = clip((1 - share_t * s1) / share_b, s_lo, s_hi)
    p1, p2 = e_t / (e_t + s1), e_b / (e_b + s2)
    slope1 = p1 * (1 - p1)
    # The derivative in s is -gamma at a point inside its interval, smaller at the left end, larger at the right end.
    gamma1, gamma2 = slope1 / s1, p2 * (1 - p2) / s2
    gamma = xp.where(s1 <= s_lo, xp.maximum(gamma1, gamma2), xp.minimum(gamma1, gamma2))
    gamma = xp.where((s1 > s_lo) & (s1 < s_hi), gamma1, gamma)
    rise = p2 - p1 + gamma * (s2 - s1)
    secant = xp.where(open_, rise / span, slope1)
    # in the limit t -> b what decides is whether F is concave there
    return Mixture(secant, gamma, xp.where(open_, (slope1 - secant) / span, p1 - 0.5))


def supporting_plane(where: Rectangle) -> tuple[Array, Array, Array]:
    """``(alpha, gamma, value)`` of the plane that supports the convex envelope of F at ``(y, 1)``."""
    p = sigmoid(where.y)
    slope = p * (1 - p)
    tangent = slope, slope, p
    # Where F is still convex and its tangent plane stays below it up to the end b, nothing better exists.
    crossed = (_overshoot(where, p, slope) > 0) | (p > 0.5)
    return where_true(crossed, _secant_plane, tuple(where), tangent)


def _overshoot(where: Rectangle, p: Array, slope: Array) -> Array:
    """By how much the tangent plane of F at ``(y, 1)`` exceeds F along the edge ``y = b``."""
    xp = namespace(p)
    _, cap = limits(p)
    e_b = xp.exp(clip(where.b, -cap, cap))
    gamma = maximum(slope, smallest_slope(p))
    z = xp.sqrt(gamma * e_b)
    s = clip(z * (1 - z) / gamma, where.s_lo, where.s_hi)
    return p + slope * (1 - s + (where.b - where.y)) - e_b / (e_b + s)


def _secant_plane(*rectangle: Array) -> tuple[Array, Array, Array]:
    where = Rectangle(*rectangle)
    fixed = Rectangle(*(constant(part) for part in where))
    t = _balance(fixed)
    if is_differentiated(*where):
        t = _implicit(where, fixed, t)
    found = _mixture(where, t)
    alpha = clip(found.alpha, 0.0, 0.25)
    gamma = maximum(found.gamma, smallest_slope(t))
    return alpha, gamma, touching_value(where, alpha, gamma)


def smallest_slope(like: Array) -> float:
    """The slope gamma is kept away from zero by a number whose square is still normal."""
    return float(namespace(like).finfo(like.dtype).smallest_normal) ** 0.5


def _balance(where: Rectangle) -> Array:
    """The ``t`` in ``[a, y]`` at which the imbalance changes sign, by bracketing with the Illinois rule."""
    xp = namespace(where.y)
    low, high = where.a, clip(xp.log(where.s_hi), where.a, where.y)  # p > 1/2 beyond: t is too large there
    f_low, f_high = _mixture(where, low).imbalance, _mixture(where, high).imbalance
    # No sign change: the whole weight at y (still falling at y), or the left end (rising from a on).
    fixed_high, fixed_low = (f_high <= 0) & (high >= where.y), f_low >= 0
    # With s held at 1, F is the sigmoid in y and this is close to where its tangent meets it again at b.
    reach = maximum(where.b, 0.0)
    t = clip(-minimum(0.5 * reach, xp.log1p(reach + xp.log1p(reach))), low, high)

    def narrow(step: Any, bracket: tuple[Array, ...]) -> tuple[Array, ...]:
        t, low, high, f_low, f_high = bracket
        f = _mixture(where, t).imbalance
        above = f > 0
        f_low, f_high = xp.where(above, 0.5 * f_low, f), xp.where(above, f, 0.5 * f_high)
        low, high = xp.where(above, low, t), xp.where(above, t, high)
        gap = f_high - f_low
        halve = (gap <= 0) | (step % 3 == 2)
        share = xp.where(halve, xp.full_like(gap, 0.5), -f_low / xp.where(gap > 0, gap, xp.ones_like(gap)))
        return low + (high - low) * clip(share, 0.0, 1.0), low, high, f_low, f_high

    def settled(before: tuple[Array, ...], after: tuple[Array, ...]) -> bool:
        # the value changes by less than the square of this share
        return bool(xp.all(xp.abs(after[0] - before[0]) <= 1e-5 * (where.b - where.a)))

    t = repeat(ROOT_STEPS, narrow, (t, low, high, f_low, f_high), settled)[0]
    t = xp.where(fixed_low, where.a, t)
    return xp.where(fixed_high, where.y, t)


def _implicit(where: Rectangle, fixed: Rectangle, t: Array) -> Array:
    """The same ``t`` as a differentiable function of the rectangle (implicit function theorem)."""
    xp = namespace(t)
    eps, _ = limits(t)
    step = eps**0.33 * maximum(fixed.b - fixed.a, eps)
    rate = (_mixture(fixed, t + step).imbalance - _mixture(fixed, t - step).imbalance) / (2 * step)
    moving = (t > fixed.a) & (t < fixed.y) & (rate > 0)
    pull = _mixture(where, t).imbalance
    pull = (pull - constant(pull)) / xp.where(moving, rate, xp.ones_like(rate))
    at_end = xp.where(t >= fixed.y, where.y, where.a)
    return xp.where(moving, t - pull, at_end)
