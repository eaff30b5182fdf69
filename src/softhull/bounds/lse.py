"""Bounds from the log-sum-exp decomposition (section 4 of Wei et al. 2023 and its appendix)."""

from __future__ import annotations

from .._arrays import (
    Array,
    clip,
    limits,
    logsumexp,
    minimum,
    namespace,
    one_hot,
    pick,
    sigmoid,
    softplus,
)
from ..boxes import Box
from .chords import log_chord, log_chord_slope
from .log_odds import log_odds_range, upper_planes
from .planes import LowRankPlanes
from .rest import leave_one_out_logsumexp, rest_rows


def lse_lower(box: Box, at: Array, outputs: Array | None = None) -> LowRankPlanes:
    """Convex lower bound e^{x_k} / (chords of e^{x_j}); equation (LSE_LB), for K = 2 equation (LSE_LB2)."""
    if box.size == 2:
        return lse2_lower(box, at)
    return _over_chords(at, box.lower, box.upper, reference=None)


def lse_star_lower(box: Box, at: Array, outputs: Array | None = None) -> LowRankPlanes:
    """The same in the differences to the logit j* with the largest midpoint; equation (LSE_LB*)."""
    xp = namespace(at)
    reference = xp.argmax(box.midpoint, axis=-1)
    if box.differences is not None:
        lower, upper = box.differences.columns(reference)
    else:
        here = one_hot(reference, box.lower)
        lower = xp.where(here, xp.zeros_like(box.lower), box.lower - pick(box.upper, reference)[..., None])
        upper = xp.where(here, xp.zeros_like(box.lower), box.upper - pick(box.lower, reference)[..., None])
    return _over_chords(at, lower, upper, reference)


def _over_chords(at: Array, lower: Array, upper: Array, reference: Array | None) -> LowRankPlanes:
    """Tangent planes of ``e^{d_k} / sum_j chord(d_j)`` with ``d = x`` or ``d = x - x_reference``."""
    xp = namespace(at)
    _, cap = limits(at)
    d = at if reference is None else at - pick(at, reference)[..., None]
    inside = clip(d, lower, upper)
    log_total = logsumexp(log_chord(inside, lower, upper), keepdims=True)
    value = xp.exp(inside - log_total)
    log_share = log_chord_slope(lower, upper) - log_total
    if reference is not None:  # the reference itself is the constant 1 in the sum
        log_share = xp.where(one_hot(reference, lower), -xp.inf, log_share)
    top = xp.max(log_share, axis=-1, keepdims=True)
    steep = (inside - log_total + top) > cap
    shares = xp.exp(log_share - top)
    flat = xp.zeros_like(value)
    diagonal = xp.where(steep, flat, value)
    spread = xp.where(steep, flat, xp.exp(minimum(inside - log_total + top, cap)))
    left, right = [-spread], [shares]
    excess = d - inside
    terms = value + diagonal * xp.abs(excess) + spread * xp.sum(shares * xp.abs(excess), axis=-1, keepdims=True)
    value = value + diagonal * excess - spread * xp.sum(shares * excess, axis=-1, keepdims=True)
    if reference is not None:
        left.append(spread * xp.sum(shares, axis=-1, keepdims=True) - diagonal)
        right.append(xp.astype(one_hot(reference, at), at.dtype))
    right = [xp.broadcast_to(r, value.shape) for r in right]
    left, right = xp.stack(left, axis=-1), xp.stack(right, axis=-2)
    return LowRankPlanes(at, value, diagonal, left, right, steep=steep, terms=terms)


def lse2_lower(box: Box, at: Array, outputs: Array | None = None) -> LowRankPlanes:
    """Convex lower bound for K = 2, exponential in the difference; equation (LSE_LB2)."""
    xp = namespace(at)
    lowest, highest = log_odds_range(box)
    v = at - xp.flip(at, axis=-1)
    inside = clip(v, lowest, highest)
    gain, width = log_sigmoid_rise(lowest, highest), highest - lowest
    open_ = width > 0
    rate = xp.where(open_, gain / xp.where(open_, width, xp.ones_like(width)), sigmoid(-lowest))
    value = xp.exp(-softplus(-lowest) + rate * (inside - lowest))
    slope = value * rate
    excess = slope * (v - inside)
    ones = xp.ones_like(at)[..., None, :]
    return LowRankPlanes(at, value + excess, 2 * slope, -slope[..., None], ones, terms=value + xp.abs(excess))


def lse_prime_lower(box: Box, at: Array, outputs: Array | None = None) -> LowRankPlanes:
    """Convex lower bound, exponential in ``x_k - log(chords of the rest)``; equation (LSE_LBalt)."""
    xp = namespace(at)
    lowest, highest = log_odds_range(box)
    chords = log_chord(at, box.lower, box.upper)
    log_rest = leave_one_out_logsumexp(chords)
    v = at - log_rest
    gain, width = log_sigmoid_rise(lowest, highest), highest - lowest
    open_ = width > 0
    rate = xp.where(open_, gain / xp.where(open_, width, xp.ones_like(width)), sigmoid(-lowest))
    value = xp.exp(-softplus(-lowest) + rate * (v - lowest))
    rows = rest_rows(log_chord_slope(box.lower, box.upper), log_rest)
    slope = xp.where(rows.steep, xp.zeros_like(value), value * rate)
    left = -slope[..., None] * rows.left
    return LowRankPlanes(at, value, slope * (1 - rows.diagonal), left, rows.right, steep=rows.steep)


def lse_upper(box: Box, at: Array, outputs: Array | None = None) -> LowRankPlanes:
    """Concave upper bound, the chord of exp over the range of log p_k; equation (LSE_UB)."""
    return upper_planes(box, at, outputs, chord_of_exponential)


def chord_of_exponential(v: Array, lowest: Array, highest: Array) -> tuple[Array, Array]:
    """U_LSE as a function of the log-odds."""
    xp = namespace(v)
    least, most = sigmoid(lowest), sigmoid(highest)
    gain = log_sigmoid_rise(lowest, highest)
    open_ = gain > 0
    steepness = xp.where(open_, (most - least) / xp.where(open_, gain, xp.ones_like(gain)), least)
    return least + steepness * log_sigmoid_rise(lowest, v), steepness * sigmoid(-v)


def log_sigmoid_rise(a: Array, b: Array) -> Array:
    """``log sigmoid(b) - log sigmoid(a)`` for ``b >= a`` without cancellation."""
    xp = namespace(b)
    step = b - a
    near = step < 1
    small = xp.where(near, step, xp.zeros_like(step))
    return xp.where(near, xp.log1p(sigmoid(-b) * xp.expm1(small)), softplus(-a) - softplus(-b))
