"""The concave envelope of the sigmoid on an interval: a chord up to its tangent point, then the sigmoid itself."""

from __future__ import annotations

from .._arrays import Array, constant, limits, maximum, minimum, namespace, sigmoid, where_true

NEWTON_STEPS = 3  # from the starting point below; what the last one leaves is charged
# Roundings, each half a unit in the last place: NumPy's exponential of floats is off by up to three units.
EXP = 6
SIGMOID = EXP + 2  # a sum and a quotient more
SERIES = 6.5e-4  # of length^5, what the series leaves out (tested)


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
    eps, _ = limits(start)
    short = 4 * eps ** (1 / 7)  # below it the series t = reach / 2 - reach^3 / 80 beats the equation, which cancels
    length = maximum(-start, 0.0)
    reach = maximum(length, short)
    from_start, shrink = sigmoid(reach), xp.exp(-reach)
    # within 0.05 of the root: t ~ reach / 2 for short chords, e^t ~ reach + t + 1 for long ones
    square = reach * reach
    t = constant(xp.log1p(0.5 * reach) + 0.7 * square / (square + 0.82 * reach + 6.65))
    for _ in range(NEWTON_STEPS):
        p, q = sigmoid(t), sigmoid(-t)  # 1 - p would be zero for the longest chords
        slope, span, tail = p * q, t + reach, shrink * q
        wrong = from_start * (p - tail) / span - slope  # chord slope minus slope at t
        step = wrong / (slope * (p - q) - wrong / span)
        t = t - step
    # In units of the slope, `wrong` is off by the roundings of `slope` (two sigmoids, a product), of `from_start`, two
    # products, `span` and the difference, and by those of `tail`, which p shares; Newton's step divides that by p - q.
    rounded = (2 * SIGMOID + 1) + (SIGMOID + 4) + (SIGMOID + EXP + 1) * (p + tail) / (p - tail)
    left = step * step * (1 + 1 / reach)  # the factor is above wrong'' / (2 wrong')
    error = 0.5 * eps * (rounded / (p - q) + t) + left
    brief = minimum(length, short)
    series = brief * (0.5 - brief * brief / 80)  # four roundings
    t = xp.where(length < short, series, t)
    error = xp.where(length < short, 0.5 * eps * 4 * series + SERIES * brief**5, error)
    return maximum(t - error, 0.0), t + error


def concave_envelope(v: Array, lowest: Array, highest: Array) -> tuple[Array, Array]:
    """Value and slope at ``v`` of the least concave majorant of the sigmoid on ``[lowest, highest]``."""
    xp = namespace(v)
    # Only where the sigmoid bends within the interval is there a tangent point to find.
    zero = xp.zeros_like(lowest)
    otherwise = zero, xp.where(lowest < 0, xp.inf, zero)
    below, above = where_true((lowest < 0) & (highest > 0), tangent_point, (lowest,), otherwise)
    at_lowest = sigmoid(lowest)
    # The chord of the whole interval is a majorant only if it certainly ends before the tangent point.
    slope_of_chord = xp.where(highest <= below, chord_slope(lowest, highest), sigmoid(below) * sigmoid(-below))
    on_chord = v < above
    at_v = sigmoid(v)
    value = xp.where(on_chord, at_lowest + slope_of_chord * (v - lowest), at_v)
    return value, xp.where(on_chord, slope_of_chord, at_v * sigmoid(-v))
