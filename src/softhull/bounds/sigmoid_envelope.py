"""The concave envelope of the sigmoid on an interval: a chord up to its tangent point, then the sigmoid itself."""

from __future__ import annotations

from .._arrays import Array, constant, limits, maximum, minimum, namespace, sigmoid

NEWTON_STEPS = 4  # from the starting point below, enough for full double precision (tested)


def chord_slope(a: Array, b: Array) -> Array:
    """``(sigmoid(b) - sigmoid(a)) / (b - a)`` for ``b >= a`` without cancellation, and its limit for ``b = a``."""
    xp = namespace(b)
    step = b - a
    open_ = step > 0
    mean_decay = -xp.expm1(-step) / xp.where(open_, step, xp.ones_like(step))
    return sigmoid(b) * sigmoid(-a) * xp.where(open_, mean_decay, xp.ones_like(step))


def tangent_point(start: Array) -> tuple[Array, Array]:
    """A narrow bracket ``(below, above)`` of the point ``t >= 0`` where the chord from ``start < 0`` is a tangent.

    A slope taken at ``below`` dominates every chord slope from ``start``; a tangent at ``above`` or beyond passes
    above the sigmoid at ``start``. For ``start >= 0`` the sigmoid is concave already and both are 0.
    """
    xp = namespace(start)
    convex = start < 0
    reach = xp.where(convex, -start, xp.ones_like(start))
    # t ~ reach / 2 for short chords, e^t ~ reach + t + 1 for long ones
    far = xp.log1p(reach)
    far = xp.log1p(reach + far)
    t = constant(minimum(0.5 * reach, far))
    for _ in range(NEWTON_STEPS):
        slope = sigmoid(t) * sigmoid(-t)
        bend = slope * (2 * sigmoid(t) - 1)  # minus the second derivative, positive for t > 0
        wrong = chord_slope(-reach, t) - slope
        t = maximum(t - wrong / (bend - wrong / (t + reach)), 0.25 * t)
    eps, _ = limits(start)
    error = 16 * eps * (1 + t + 1 / maximum(t, eps**0.5))
    zero = xp.zeros_like(t)
    return xp.where(convex, maximum(t - error, 0.0), zero), xp.where(convex, t + error, zero)


def concave_envelope(v: Array, lowest: Array, highest: Array) -> tuple[Array, Array]:
    """Value and slope at ``v`` of the least concave majorant of the sigmoid on ``[lowest, highest]``."""
    xp = namespace(v)
    below, above = tangent_point(lowest)
    at_lowest = sigmoid(lowest)
    at_below = sigmoid(below) * sigmoid(-below)
    slope_of_chord = xp.where(highest < above, chord_slope(lowest, highest), at_below)
    on_chord = v < above
    at_v = sigmoid(v)
    value = xp.where(on_chord, at_lowest + slope_of_chord * (v - lowest), at_v)
    return value, xp.where(on_chord, slope_of_chord, at_v * sigmoid(-v))
