"""The chord of the exponential over an interval, in logarithms: what every lower bound of the paper is made of."""

from __future__ import annotations

from .._arrays import Array, log_sinhc, namespace


def log_chord_slope(lower: Array, upper: Array) -> Array:
    """log of ``(e^u - e^l) / (u - l) = e^m sinh(h) / h``, with its limit for ``u = l``."""
    return (lower + upper) / 2 + log_sinhc((upper - lower) / 2)


def log_chord(x: Array, lower: Array, upper: Array) -> Array:
    """log of the chord of exp over ``[lower, upper]`` at a point ``x`` of the interval."""
    xp = namespace(x)
    width = upper - lower
    wide = width > 0
    share = xp.where(wide, (x - lower) / xp.where(wide, width, xp.ones_like(width)), xp.zeros_like(x - width))
    some, not_all = share > 0, share < 1
    log_share = xp.where(some, xp.log(xp.where(some, share, xp.ones_like(share))), -xp.inf)
    log_other = xp.where(not_all, xp.log1p(-xp.where(not_all, share, xp.zeros_like(share))), -xp.inf)
    return lower + xp.logaddexp(width + log_share, log_other)
