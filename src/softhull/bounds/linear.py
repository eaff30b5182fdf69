"""Linear bounds of Shi et al. 2020 and Bonaert et al. 2021 as combined in section 3.1 of Wei et al. 2023."""

from __future__ import annotations

import math

from .._arrays import Array, logsumexp, maximum, minimum, namespace, softplus
from ..boxes import Box
from .chords import log_chord, log_chord_slope
from .pairwise import Tangent, pairwise_planes
from .planes import RowPlanes


def lin_lower(box: Box, at: Array, outputs: Array | None = None) -> RowPlanes:
    """Affine lower bound: a tangent of 1/q over the chords of the exponentials; equation (lin_LB)."""
    return pairwise_planes(box, at, outputs, _tangent_over_chords)


def lin_upper(box: Box, at: Array, outputs: Array | None = None) -> RowPlanes:
    """Affine upper bound: the chord of 1/q over tangents of the exponentials; equation (lin_UB)."""
    return pairwise_planes(box, at, outputs, _chord_over_tangents)


def _tangent_over_chords(d: Array, lower: Array, upper: Array, own: Array) -> Tangent:
    xp = namespace(d)
    _, log_q_least = _tangents(lower, upper, own)
    log_q_most = softplus(logsumexp(xp.where(own, -xp.inf, upper)))
    log_touch = maximum((log_q_least + log_q_most) / 2, log_q_most - math.log(2))
    log_q = softplus(logsumexp(xp.where(own, -xp.inf, log_chord(d, lower, upper))))
    ratio = xp.exp(log_q - log_touch)
    value, terms = (xp.exp(-log_touch) * part for part in (2 - ratio, 2 + ratio))
    log_slope = xp.where(own, -xp.inf, log_chord_slope(lower, upper))
    return value, -xp.exp(log_slope - 2 * log_touch[..., None]), value != value, terms


def _chord_over_tangents(d: Array, lower: Array, upper: Array, own: Array) -> Tangent:
    """The chord of ``1 / q`` over the tangents of the exponentials in ``q``: a plane above every output."""
    xp = namespace(d)
    touch, log_q_least = _tangents(lower, upper, own)
    log_least = -softplus(logsumexp(xp.where(own, -xp.inf, upper)))
    # p_min * e^{t_j} <= 1, so the products are formed before anything can overflow
    steepness = xp.where(own, xp.zeros_like(d), xp.exp(touch + log_least[..., None]))
    least, inverse_q = xp.exp(log_least), xp.exp(-log_q_least)
    least_times_q = least + xp.vecdot(steepness, d - touch + 1)
    value = inverse_q * (1 - least_times_q) + least
    terms = inverse_q * (1 + least + xp.vecdot(steepness, xp.abs(d - touch) + 1)) + least
    return value, -inverse_q[..., None] * steepness, value != value, terms


def _tangents(lower: Array, upper: Array, own: Array) -> tuple[Array, Array]:
    """Tangent points t_j (equation (tj)) and the log of the resulting lower bound on q (equation (lin_zLB))."""
    xp = namespace(lower)
    touch = minimum(log_chord_slope(lower, upper), lower + 1)
    height = maximum(lower - touch + 1, 0.0)
    some = (height > 0) & ~own
    logs = xp.where(some, touch + xp.log(xp.where(some, height, xp.ones_like(height))), -xp.inf)
    top = maximum(xp.max(logs, axis=-1, keepdims=True), 0.0)
    total = xp.exp(-top[..., 0]) + xp.sum(xp.exp(logs - top), axis=-1)
    return touch, top[..., 0] + xp.log(total)
