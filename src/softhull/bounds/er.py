"""Bounds from the exponential-reciprocal decomposition (section 3.2 of Wei et al. 2023)."""

from __future__ import annotations

from .._arrays import Array, limits, logsumexp, minimum, namespace, sigmoid, softplus
from ..boxes import Box
from .chords import log_chord, log_chord_slope
from .log_odds import upper_planes
from .pairwise import Tangent, pairwise_planes
from .planes import LowRankPlanes, RowPlanes


def er_lower(box: Box, at: Array, outputs: Array | None = None) -> RowPlanes:
    """Convex lower bound 1 / (1 + chords of exp(x_j - x_k)); equation (ER_LB)."""
    return pairwise_planes(box, at, outputs, _reciprocal_of_chords)


def _reciprocal_of_chords(d: Array, lower: Array, upper: Array, own: Array) -> Tangent:
    xp = namespace(d)
    _, cap = limits(d)
    log_rest = logsumexp(xp.where(own, -xp.inf, log_chord(d, lower, upper)))
    log_value = -softplus(log_rest)
    exponent = log_chord_slope(lower, upper) + 2 * log_value[..., None]
    steep = xp.any((exponent > cap) & ~own, axis=-1)
    value = sigmoid(-log_rest)
    return value, -xp.exp(minimum(exponent, cap)), steep, value


def er_upper(box: Box, at: Array, outputs: Array | None = None) -> LowRankPlanes:
    """Concave upper bound, the chord of 1/q over the range of q = SE(x - x_k); equation (ER_UB)."""
    return upper_planes(box, at, outputs, chord_of_reciprocal)


def chord_of_reciprocal(v: Array, lowest: Array, highest: Array) -> tuple[Array, Array]:
    """U_ER as a function of the log-odds: a convex combination of the two extreme probabilities."""
    xp = namespace(v)
    least, most = sigmoid(lowest), sigmoid(highest)
    width = -xp.expm1(lowest - highest)
    open_ = width > 0
    share = xp.where(open_, -xp.expm1(lowest - v) / xp.where(open_, width, xp.ones_like(width)), width * 0)
    return least + (most - least) * share, most * sigmoid(-lowest) * xp.exp(lowest - v)
