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
    share = (x - lower) / xp.where(wide, width, xp.ones_like(width))  # 0 for an interval of one point
    chord = share + (1 - share) * xp.exp(-width)  # in units of e^upper
    visible = chord > float(xp.finfo(chord.dtype).smallest_normal)
    return xp.where(visible, upper + xp.log(xp.where(visible, chord, xp.ones_like(chord))), lower)
