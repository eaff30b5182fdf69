"""Bounds at the limit: the concave envelope in the log-odds above, exact-offset planes below.

Lower planes. For reference weights ``w`` let ``d_j = x_j - w.x``, ``y = d_k`` and ``s = sum_{j != k} chord(d_j)``, affine
in x and at least ``sum_{j != k} e^{d_j}``; hence ``p_k >= F(y, s) = e^y / (e^y + s)``, and any plane below F in (y, s)
is a plane below ``p_k`` in x. The references tried are ``w = 0``, ``w = theta e_J`` and ``w = e_J`` with J the largest logit
of the rest, and for the two largest outputs also ``w = e_k`` (the exponential-reciprocal form).
"""

from __future__ import annotations

from typing import NamedTuple

from .._arrays import (
    Array,
    clip,
    limits,
    logsumexp,
    maximum,
    minimum,
    namespace,
    one_hot,
    pick,
)
from ..boxes import Box
from .chords import log_chord, log_chord_slope
from .log_odds import upper_planes
from .planes import LowRankPlanes
from .rest import RestRows, leave_one_out_logsumexp, rest_rows
from .share_envelope import Rectangle, best_slopes, touching_value
from .sigmoid_envelope import concave_envelope


def hull_upper(box: Box, at: Array, outputs: Array | None = None, tangent: Array | None = None) -> LowRankPlanes:
    """Concave upper bound: the concave envelope of the sigmoid at the log-odds; never above U_LSE.

    ``tangent`` (one log-odds value per output) is free: where on the envelope the plane touches.
    """
    return upper_planes(box, at, concave_envelope, tangent)


def hull_lower(
    box: Box,
    at: Array,
    outputs: Array | None = None,
    w: Array | None = None,
    alpha: Array | None = None,
    gamma: Array | None = None,
) -> LowRankPlanes:
    """Convex lower bound: the best plane of the two-parameter family at ``at``, over several references.

    Free parameters, each choice sound: ``w [..., K]`` reference weights shared by all outputs; ``alpha [..., K]`` in
    [0, 1/4] the slope in y; ``gamma [..., K]`` > 0 the slope in s in units of 1 / s(at). What is not given is optimal.
    """
    xp = namespace(at)
    if w is not None or alpha is not None or gamma is not None:
        weights = xp.zeros_like(at) if w is None else w
        return _merge([_common_rows(_weighted(box, at, weights), alpha, gamma)], at)

    middle = box.midpoint
    first = xp.argmax(middle, axis=-1)
    second = xp.argmax(xp.where(one_hot(first, middle), -xp.inf, middle), axis=-1)
    one, nothing = xp.ones_like(middle[..., 0]), xp.zeros_like(middle[..., 0])
    candidates = []
    if box.size > 2:
        share = xp.exp(xp.max(middle, axis=-1) - logsumexp(middle))
        for theta in (nothing, _best_weight(share, pick(box.half_width, first)), one):
            candidates.append(_common_rows(_relative(box, at, first, theta)))
    for k, other in ((first, second), (second, first)):
        rest = xp.where(one_hot(k, middle), -xp.inf, middle)
        share = xp.exp(xp.max(rest, axis=-1) - logsumexp(rest))
        theta = one if box.size == 2 else _best_weight(share, pick(box.half_width, other))
        references = [(other, nothing), (other, theta), (other, one), (k, one)]
        candidates.append(_best_row([_one_row(_relative(box, at, *reference), k) for reference in references], k))
    return _merge(candidates, at)


def _best_weight(share: Array, half_width: Array) -> Array:
    """The weight theta of reference J that minimises the chord sum at the midpoint, given J's share of the rest.

    For equal half-widths e it minimises ``sum_j q_j cosh(h_j)``: ``tanh(theta e) = (2 q - 1) tanh(e)``.
    """
    xp = namespace(share)
    eps, _ = limits(share)
    lead = maximum(2 * share - 1, 0.0)
    narrow = half_width < 1e-3
    e = xp.where(narrow, xp.ones_like(half_width), half_width)
    wide = xp.atanh(minimum(lead * xp.tanh(e), 1 - eps)) / e
    return clip(xp.where(narrow, lead, wide), 0.0, 1.0)


class Terms(NamedTuple):
    """``d_j = x_j - w.x``: its value at the anchor, its interval, and what the sum s needs, all ``[..., K]``."""

    d: Array
    lower: Array
    upper: Array
    weights: Array
    log_chord: Array  # at the anchor, clipped into the interval
    log_slope: Array
    middle_log_chord: Array  # at the midpoint of the box
    half_width: Array  # of the box
    exact_range: bool  # whether s(midpoint) +- its half range over the box may be used


def _finish(box: Box, at: Array, weights: Array, lower: Array, upper: Array, exact_range: bool) -> Terms:
    xp = namespace(at)
    d = at - xp.sum(weights * at, axis=-1, keepdims=True)
    log_slope = log_chord_slope(lower, upper)
    chord = log_chord(clip(d, lower, upper), lower, upper)
    middle = box.midpoint
    if at is middle:
        middle_chord = chord
    else:
        middle_d = middle - xp.sum(weights * middle, axis=-1, keepdims=True)
        middle_chord = log_chord(clip(middle_d, lower, upper), lower, upper)
    return Terms(d, lower, upper, weights, chord, log_slope, middle_chord, box.half_width, exact_range)


def _relative(box: Box, at: Array, reference: Array, theta: Array) -> Terms:
    """Reference weights ``theta e_reference``: difference bounds to the reference tighten the intervals."""
    xp = namespace(at)
    here = one_hot(reference, box.lower)
    theta = theta[..., None]
    weights = xp.where(here, theta, xp.zeros_like(theta))
    low_r, high_r = pick(box.lower, reference)[..., None], pick(box.upper, reference)[..., None]
    lower = xp.where(here, (1 - theta) * box.lower, box.lower - theta * high_r)
    upper = xp.where(here, (1 - theta) * box.upper, box.upper - theta * low_r)
    if box.differences is not None:
        low, high = box.differences.columns(reference)
        lower = maximum(lower, theta * low + (1 - theta) * box.lower)
        upper = minimum(upper, theta * high + (1 - theta) * box.upper)
    return _finish(box, at, weights, lower, upper, exact_range=box.differences is None)


def _weighted(box: Box, at: Array, weights: Array) -> Terms:
    """Any reference weights ``w``."""
    xp = namespace(at)
    h, m = box.half_width, box.midpoint
    spread = xp.abs(weights) * h
    radius = xp.sum(spread, axis=-1, keepdims=True) - spread + xp.abs(1 - weights) * h
    centre = m - xp.sum(weights * m, axis=-1, keepdims=True)
    return _finish(box, at, weights, centre - radius, centre + radius, exact_range=True)


class Candidate(NamedTuple):
    """Planes for all outputs; ``value`` is -inf for outputs this candidate does not speak of."""

    value: Array
    diagonal: Array
    left: Array
    right: Array
    steep: Array


def _rectangle(
    y: Array, a: Array, b: Array, log_s: Array, log_s_lo: Array, log_s_hi: Array, middle: Array, radius: Array
) -> Rectangle:
    """The rectangle in units of s at the anchor; ``middle +- radius`` is another interval for s in those units."""
    xp = namespace(y)
    _, cap = limits(y)
    s_lo = xp.exp(clip(log_s_lo - log_s, -cap, 0.0))
    s_hi = xp.exp(clip(log_s_hi - log_s, 0.0, cap))
    s_lo = minimum(maximum(s_lo, middle - radius), 1.0)
    s_hi = maximum(minimum(s_hi, middle + radius), 1.0)
    inside = clip(y, a, b)
    return Rectangle(inside - log_s, a - log_s, b - log_s, s_lo, s_hi)


def _slopes(where: Rectangle, alpha: Array | None, gamma: Array | None) -> tuple[Array, Array, Array]:
    """Slopes, given or best, and the value of their plane at the anchor."""
    xp = namespace(where.y)
    best_alpha, best_gamma = best_slopes(where) if alpha is None or gamma is None else (alpha, gamma)
    tiny = float(xp.finfo(where.y.dtype).smallest_normal) ** 0.5
    alpha = best_alpha if alpha is None else clip(alpha, 0.0, 0.25)
    gamma = best_gamma if gamma is None else maximum(gamma, tiny)
    return alpha, gamma, touching_value(where, alpha, gamma)


def _common_rows(terms: Terms, alpha: Array | None = None, gamma: Array | None = None) -> Candidate:
    """Planes for all outputs with common reference weights: diagonal plus rank 3."""
    xp = namespace(terms.d)
    log_s = leave_one_out_logsumexp(terms.log_chord)
    middle, radius = xp.ones_like(log_s), xp.full_like(log_s, xp.inf)
    largest = one_hot(xp.argmax(terms.log_slope, axis=-1), terms.log_slope)
    rows = rest_rows(terms.log_slope, log_s, largest)
    total = xp.sum(rows.right, axis=-1)  # of the common row and of the row of the largest
    steepness = xp.sum(rows.left * total[..., None, :], axis=-1) + rows.diagonal  # sum of each row
    if terms.exact_range:
        middle, radius = _range_of_rows(terms, rows, steepness, log_s)
    where = _rectangle(
        terms.d,
        terms.lower,
        terms.upper,
        log_s,
        leave_one_out_logsumexp(terms.lower),
        leave_one_out_logsumexp(terms.upper),
        middle,
        radius,
    )
    alpha, gamma, value = _slopes(where, alpha, gamma)
    y_excess = terms.d - clip(terms.d, terms.lower, terms.upper)
    s_excess = _rest_dot(rows, y_excess)
    value = value + alpha * y_excess - gamma * s_excess
    flat = xp.zeros_like(value)
    alpha, gamma = xp.where(rows.steep, flat, alpha), xp.where(rows.steep, flat, gamma)
    weights = xp.broadcast_to(terms.weights, value.shape)
    shape = (*value.shape[:-1], 2, value.shape[-1])
    return Candidate(
        value=value,
        diagonal=alpha - gamma * rows.diagonal,
        left=xp.concat([-gamma[..., None] * rows.left, (gamma * steepness - alpha)[..., None]], axis=-1),
        right=xp.concat([xp.broadcast_to(rows.right, shape), weights[..., None, :]], axis=-2),
        steep=rows.steep,
    )


def _rest_dot(rows: RestRows, direction: Array) -> Array:
    xp = namespace(direction)
    return xp.matmul(rows.left, xp.matmul(rows.right, direction[..., None]))[..., 0] + rows.diagonal * direction


def _range_of_rows(terms: Terms, rows: RestRows, steepness: Array, log_s: Array) -> tuple[Array, Array]:
    """s at the midpoint and its half range over the box, in units of s at the anchor, for every output.

    In x the row of s is ``slope_j (j != k) - w (sum of slopes)``: where w takes away from an entry, s varies less than
    its terms do. Used for weights on a single logit J, where only one entry changes.
    """
    xp = namespace(log_s)
    _, cap = limits(log_s)
    h = terms.half_width
    weighted = xp.astype(terms.weights != 0, h.dtype)
    single = xp.sum(weighted, axis=-1, keepdims=True) <= 1
    J = xp.argmax(weighted, axis=-1)
    theta, h_J = pick(terms.weights, J)[..., None], pick(h, J)[..., None]
    slope_J = xp.sum(rows.left * pick(rows.right, J[..., None])[..., None, :], axis=-1)
    slope_J = slope_J + xp.where(one_hot(J, h), rows.diagonal, xp.zeros_like(rows.diagonal))
    radius = _rest_dot(rows, h + xp.zeros_like(log_s)) - slope_J * h_J + xp.abs(slope_J - theta * steepness) * h_J
    exponent = leave_one_out_logsumexp(terms.middle_log_chord) - log_s
    usable = single & ~rows.steep & (exponent < cap)
    return xp.exp(clip(exponent, -cap, cap)), xp.where(usable, radius, xp.full_like(radius, xp.inf))


def _one_row(terms: Terms, k: Array) -> tuple[Array, Array, Array]:
    """The plane of output ``k`` alone (one index per leading position): value, gradient row, steep."""
    xp = namespace(terms.d)
    _, cap = limits(terms.d)
    own = one_hot(k, terms.d)
    log_s = logsumexp(xp.where(own, -xp.inf, terms.log_chord))
    exponent = xp.where(own, -xp.inf, terms.log_slope - log_s[..., None])
    steep = xp.any(exponent > cap, axis=-1)
    slopes = xp.where(steep[..., None], xp.zeros_like(exponent), xp.exp(minimum(exponent, cap)))
    steepness = xp.sum(slopes, axis=-1)
    middle, radius = xp.ones_like(log_s), xp.full_like(log_s, xp.inf)
    if terms.exact_range:
        middle_log_s = logsumexp(xp.where(own, -xp.inf, terms.middle_log_chord))
        middle = xp.exp(clip(middle_log_s - log_s, -cap, cap))
        radius = xp.sum(xp.abs(slopes - terms.weights * steepness[..., None]) * terms.half_width, axis=-1)
        usable = ~steep & (middle_log_s - log_s < cap)
        radius = xp.where(usable, radius, xp.full_like(radius, xp.inf))
    where = _rectangle(
        pick(terms.d, k),
        pick(terms.lower, k),
        pick(terms.upper, k),
        log_s,
        logsumexp(xp.where(own, -xp.inf, terms.lower)),
        logsumexp(xp.where(own, -xp.inf, terms.upper)),
        middle,
        radius,
    )
    alpha, gamma, value = _slopes(where, None, None)
    excess = terms.d - clip(terms.d, terms.lower, terms.upper)
    value = value + alpha * pick(excess, k) - gamma * xp.sum(slopes * excess, axis=-1)
    alpha, gamma = alpha[..., None], gamma[..., None]
    row = xp.where(own, alpha, -gamma * slopes) + (gamma * steepness[..., None] - alpha) * terms.weights
    return value, xp.where(steep[..., None], xp.zeros_like(row), row), steep


def _best_row(rows: list[tuple[Array, Array, Array]], k: Array) -> Candidate:
    """The best of several planes for output ``k`` as a candidate that speaks of this output only."""
    value, row, steep = rows[0]
    xp = namespace(row)
    for other_value, other_row, other_steep in rows[1:]:
        better = other_value > value
        value = xp.where(better, other_value, value)
        row = xp.where(better[..., None], other_row, row)
        steep = xp.where(better, other_steep, steep)
    own = one_hot(k, row)
    alone = xp.astype(own, row.dtype)
    return Candidate(
        value=xp.where(own, value[..., None], -xp.inf),
        diagonal=xp.zeros_like(row),
        left=alone[..., None],
        right=row[..., None, :],
        steep=own & steep[..., None],
    )


def _merge(candidates: list[Candidate], at: Array) -> LowRankPlanes:
    """For every output the candidate with the largest value; their low-rank parts are put side by side."""
    xp = namespace(at)
    value = candidates[0].value
    for candidate in candidates[1:]:
        value = xp.maximum(value, candidate.value)
    taken = xp.zeros_like(value) > 0
    diagonal, steep = xp.zeros_like(value), taken
    left, right = [], []
    for candidate in candidates:
        mine = (candidate.value == value) & ~taken
        taken = taken | mine
        diagonal = xp.where(mine, candidate.diagonal, diagonal)
        steep = steep | (mine & candidate.steep)
        left.append(xp.where(mine[..., None], candidate.left, xp.zeros_like(candidate.left)))
        right.append(xp.broadcast_to(candidate.right, (*value.shape[:-1], *candidate.right.shape[-2:])))
    return LowRankPlanes(at, value, diagonal, xp.concat(left, axis=-1), xp.concat(right, axis=-2), steep=steep)
