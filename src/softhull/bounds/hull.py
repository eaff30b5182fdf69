"""Bounds at the limit: the concave envelope in the log-odds above, exact-offset planes below.

Lower planes. For reference weights ``w`` let ``d_j = x_j - w.x``, ``y = d_k`` and ``s = sum_{j != k} chord(d_j)``. This
sum is affine in x and at least ``sum_{j != k} e^{d_j}``; hence ``p_k >= F(y, s) = e^y / (e^y + s)``, and any plane
below F in (y, s) is a plane below ``p_k`` in x. The references tried are ``w = 0``, ``w = theta e_J`` and ``w = e_J``
with J the largest logit of the rest, and for the largest output also ``w = e_k`` (the exponential-reciprocal form).

With weights common to all outputs everything is a sum over all logits minus one term, so K planes cost O(K). A few
outputs are worked out alone: the two largest, whose best theta is their own, and the one whose chord dominates the
sum, where taking it out again would leave only rounding errors.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from array_api_compat import is_jax_array

from .._arrays import Array, clip, limits, logsumexp, maximum, minimum, namespace, one_hot, pick
from ..boxes import Box
from .log_odds import upper_planes
from .planes import LowRankPlanes, restrict
from .rest import rest_of
from .share_envelope import Rectangle, smallest_slope, supporting_plane, touching_value
from .sigmoid_envelope import concave_envelope


def hull_upper(box: Box, at: Array, outputs: Array | None = None, tangent: Array | None = None) -> LowRankPlanes:
    """Concave upper bound: the concave envelope of the sigmoid at the log-odds; never above U_LSE.

    ``tangent`` (one log-odds value per output) is free: where on the envelope the plane touches.
    """
    return upper_planes(box, at, outputs, concave_envelope, tangent)


def hull_lower(
    box: Box,
    at: Array,
    outputs: Array | None = None,
    w: Array | None = None,
    alpha: Array | None = None,
    gamma: Array | None = None,
) -> LowRankPlanes:
    """Convex lower bound: the best plane of the two-parameter family at ``at``, over several references.

    Free parameters, each choice sound: ``w [..., K]`` reference weights shared by all outputs; ``alpha [..., K]``
    in [0, 1/4] the slope in y; ``gamma [..., K]`` > 0 the slope in s in units of 1 / s(at). What is not given is
    optimal for what is.
    """
    if w is None and alpha is None and gamma is None and _worth_splitting(box, at):
        return _in_pieces(box, at, outputs)
    xp = namespace(at)
    shared: list[Candidate] = []  # planes for all outputs
    alone: list[Single] = []  # the best plane so far of outputs worked out alone

    waiting: list[tuple[int, Work]] = []  # planes for all outputs, or that of one of those worked out alone
    numbers: list[Array] = []  # of outputs worked out alone

    def attempt(reference: Reference, singles: list[Array], for_all: bool, dominant: bool = False) -> None:
        """One reference for all outputs and for some alone; where they are many, its arrays are gone before the next
        one comes."""
        terms = _terms(box, at, reference)
        if for_all:
            waiting.append((-1, _together(terms, outputs, alpha, gamma)))
        for k in [*singles, xp.argmax(terms.slope, axis=-1)] if dominant else singles:
            own_alpha, own_gamma = (None if f is None else pick(f + xp.zeros_like(at), k) for f in (alpha, gamma))
            known = [i for i, number in enumerate(numbers) if number is k]
            if not known:
                numbers.append(k)
            waiting.append((known[0] if known else len(numbers) - 1, _one_output(terms, k, own_alpha, own_gamma)))
        if math.prod(at.shape) > _FEW:
            work()

    def work() -> None:
        """All that waits, together."""
        for (place, _), found in zip(waiting, _worked_out([task for _, task in waiting])):
            if isinstance(found, Candidate):
                shared.append(found)
            elif place == len(alone):
                alone.append(found)
            else:
                alone[place] = _better(alone[place], found)
        waiting.clear()

    if w is not None or alpha is not None or gamma is not None:
        attempt(_plain(box) if w is None else _weighted(box, w), [], for_all=True, dominant=True)
        work()
        return _merge(at, outputs, shared, alone)

    middle = box.midpoint
    first = xp.argmax(middle, axis=-1)
    without_first = xp.where(one_hot(first, middle), -xp.inf, middle)
    second = xp.argmax(without_first, axis=-1)
    to_first, to_second = (xp.astype(one_hot(index, middle), middle.dtype) for index in (first, second))
    one = xp.ones_like(middle[..., 0])
    several = box.size > 2
    attempt(_plain(box), [first, second], several, dominant=several)
    attempt(_relative(box, first, one, to_first), [first, second], several)
    attempt(_relative(box, second, one, to_second), [first], False)
    if several:
        without_second = xp.where(one_hot(second, middle), -xp.inf, middle)
        half_first, half_second = pick(box.half_width, first), pick(box.half_width, second)
        attempt(_relative(box, first, _best_weight(middle, half_first), to_first), [], True)
        attempt(_relative(box, second, _best_weight(without_first, half_second), to_second), [first], False)
        attempt(_relative(box, first, _best_weight(without_second, half_first), to_first), [second], False)
    work()
    return _merge(at, outputs, shared, alone)


PIECE = 1 << 16  # numbers; some forty arrays of this size are alive at once and should stay near the processor


def _worth_splitting(box: Box, at: Array) -> bool:
    plain = box.differences is None and at.shape == box.lower.shape and not is_jax_array(at)
    return plain and math.prod(at.shape) > max(PIECE, at.shape[-1])


def _in_pieces(box: Box, at: Array, outputs: Array | None) -> LowRankPlanes:
    """The same planes, some boxes at a time."""
    xp = namespace(at)
    K = at.shape[-1]
    lower, upper, point = (xp.reshape(a, (-1, K)) for a in (box.lower, box.upper, at))
    shift = xp.reshape(box.shift, (-1, 1))
    pieces = []
    step = max(1, PIECE // K)
    for i in range(0, lower.shape[0], step):
        piece = Box(lower[i : i + step, :], upper[i : i + step, :], shift[i : i + step, :])
        here = piece.midpoint if at is box.midpoint else point[i : i + step, :]
        pieces.append(hull_lower(piece, here, outputs))

    def joined(parts: list[Array]) -> Array:
        whole = xp.concat(parts, axis=0)
        return xp.reshape(whole, (*at.shape[:-1], *whole.shape[1:]))

    return LowRankPlanes(
        at,
        joined([piece.value for piece in pieces]),
        joined([piece.diagonal for piece in pieces]),
        joined([piece.left for piece in pieces]),
        joined([piece.right for piece in pieces]),
        terms=joined([piece.terms for piece in pieces]),
        outputs=outputs,
    )


def _best_weight(middle: Array, half_width: Array) -> Array:
    """The weight theta of the largest logit J as reference that makes the chord sum at the midpoint smallest.

    For equal half-widths e and J's softmax share q it minimises ``sum_j q_j cosh(h_j)``:
    ``tanh(theta e) = (2 q - 1) tanh(e)``.
    """
    xp = namespace(middle)
    eps, _ = limits(middle)
    share = xp.exp(xp.max(middle, axis=-1) - logsumexp(middle))
    lead = maximum(2 * share - 1, 0.0)
    narrow = half_width < 1e-3
    e = xp.where(narrow, xp.ones_like(half_width), half_width)
    wide = xp.atanh(minimum(lead * xp.tanh(e), 1 - eps)) / e
    return clip(xp.where(narrow, lead, wide), 0.0, 1.0)


class Reference(NamedTuple):
    """Reference weights ``w = theta * direction`` (None: w = 0) and the interval of every ``d_j = x_j - w.x``."""

    lower: Array
    upper: Array
    theta: Array | None = None  # [..., 1]
    direction: Array | None = None
    logit: Array | None = None  # J for weights on a single logit

    def apply(self, x: Array) -> Array:
        """``w . x`` as an array ``[..., 1]`` or the number 0."""
        if self.direction is None:
            return 0
        return self.theta * namespace(x).sum(self.direction * x, axis=-1, keepdims=True)


def _plain(box: Box) -> Reference:
    return Reference(box.lower, box.upper)


def _relative(box: Box, index: Array, theta: Array, direction: Array) -> Reference:
    """Weights ``theta e_J``: difference bounds to J tighten the intervals."""
    xp = namespace(box.lower)
    here = direction > 0
    theta = theta[..., None]
    low_J, high_J = pick(box.lower, index)[..., None], pick(box.upper, index)[..., None]
    lower = xp.where(here, (1 - theta) * box.lower, box.lower - theta * high_J)
    upper = xp.where(here, (1 - theta) * box.upper, box.upper - theta * low_J)
    if box.differences is not None:
        low, high = box.differences.columns(index)
        lower = maximum(lower, theta * low + (1 - theta) * box.lower)
        upper = minimum(upper, theta * high + (1 - theta) * box.upper)
    return Reference(lower, upper, theta, direction, logit=index)


def _weighted(box: Box, weights: Array) -> Reference:
    """Any weights ``w``."""
    xp = namespace(weights)
    h, m = box.half_width, box.midpoint
    spread = xp.abs(weights) * h
    radius = xp.sum(spread, axis=-1, keepdims=True) - spread + xp.abs(1 - weights) * h
    centre = m - xp.sum(weights * m, axis=-1, keepdims=True)
    return Reference(centre - radius, centre + radius, xp.ones_like(m[..., :1]), weights)


class Terms(NamedTuple):
    """What the sum s is made of, all ``[..., K]``, in units of ``exp(top)``."""

    reference: Reference
    d: Array  # at the anchor
    inside: Array  # the same, clipped into its interval: difference bounds may exclude the anchor
    top: Array  # [..., 1]
    chord: Array  # at the anchor
    chord_at_middle: Array  # at the midpoint of the box
    slope: Array
    least: Array
    most: Array
    half_width: Array  # of the box
    in_box: bool  # no difference bounds: s(midpoint) +- its half range over the box bounds s too


def _terms(box: Box, at: Array, reference: Reference) -> Terms:
    """The chords of the exponentials relative to a reference, at a point: their values, slopes and range."""
    xp = namespace(at)
    lower, upper = reference.lower, reference.upper
    top = xp.max(upper, axis=-1, keepdims=True)
    most = xp.exp(upper - top)
    width = upper - lower
    shrink = xp.exp(-width)
    open_ = width > 0
    safe = xp.where(open_, width, xp.ones_like(width))
    slope = most * xp.where(open_, -xp.expm1(-safe) / safe, xp.ones_like(width))

    def chord(inside: Array) -> Array:
        share = (inside - lower) / safe
        return most * (share + (1 - share) * shrink)

    d = at - reference.apply(at)
    inside = clip(d, lower, upper)
    here = chord(inside)
    at_middle = here
    if at is not box.midpoint:
        at_middle = chord(clip(box.midpoint - reference.apply(box.midpoint), lower, upper))
    in_box = box.differences is None
    return Terms(reference, d, inside, top, here, at_middle, slope, most * shrink, most, box.half_width, in_box)


class Sum(NamedTuple):
    """The sum s of one or of all outputs, in units of ``exp(log_unit)``: at the anchor, its ends, and its range."""

    here: Array
    least: Array
    most: Array
    middle: Array
    radius: Array | None
    log_unit: Array


class Anchored(NamedTuple):
    """A rectangle around the point of interest, in units of s there, and slopes that are given."""

    where: Rectangle
    unit: Array
    alpha: Array | None
    gamma: Array | None


Best = tuple[Array, Array, Array]  # slopes in y and in s, the value of the plane at the anchor
Slopes = tuple[Array, Array, Array, Array]  # in y and in s, the value of the plane at the anchor, the size of its terms


def _anchored(y: Array, a: Array, b: Array, s: Sum, alpha: Array | None, gamma: Array | None) -> Anchored:
    """The rectangle of exponents ``[a, b]`` and sums around the point ``y``, with the slopes that are given."""
    xp = namespace(y)
    floor = smallest_slope(y)
    unit = maximum(s.here, floor)  # a larger s than the true one only lowers the plane
    least, most = s.least, s.most
    if s.radius is not None:
        least, most = maximum(least, s.middle - s.radius), minimum(most, s.middle + s.radius)
    log_unit = xp.log(unit) + s.log_unit
    where = Rectangle(
        y - log_unit, a - log_unit, b - log_unit, clip(least / unit, floor, 1.0), clip(most / unit, 1.0, 1 / floor)
    )
    return Anchored(where, unit, alpha, gamma)


def _supported(asked: Anchored, best: Best | None) -> Slopes:
    """Slopes (given or ``best``), the value of their plane at the anchor, and the size of its terms.

    Where the plane touches, ``gamma s`` is at most the touching value or ``gamma``; so what the value is added up from
    exceeds it by no more than a few times ``gamma``, and ``alpha`` times the width of the exponents.
    """
    where, unit, alpha, gamma = asked
    xp = namespace(unit)
    if best is not None:
        best_alpha, best_gamma, value = best
        if alpha is None and gamma is None:
            return best_alpha, best_gamma / unit, value, xp.abs(value) + 4 * (best_alpha + best_gamma)
        alpha, gamma = best_alpha if alpha is None else alpha, best_gamma if gamma is None else gamma
    alpha, gamma = clip(alpha, 0.0, 0.25), maximum(gamma, smallest_slope(unit))
    value = touching_value(where, alpha, gamma)
    return alpha, gamma / unit, value, xp.abs(value) + 4 * (alpha + gamma)


# Says where a plane is wanted, is told its slopes, and returns what is made of them.
Work = Generator[Anchored, Slopes, "Candidate | Single"]
# With at most so many numbers planes are found for all references at once: what counts is the number of calls.
_FEW = 1 << 12


def _worked_out(tasks: list[Work]) -> list[Candidate | Single]:
    """What all tasks return; their planes are found together."""
    asked = [next(task) for task in tasks]
    best = iter(_supporting([one.where for one in asked if one.alpha is None or one.gamma is None]))
    found = []
    for task, one in zip(tasks, asked):
        given = one.alpha is not None and one.gamma is not None
        try:
            task.send(_supported(one, None if given else next(best)))
        except StopIteration as done:
            found.append(done.value)
    return found


def _supporting(rectangles: list[Rectangle]) -> list[Best]:
    """The best planes of every rectangle."""
    if len(rectangles) < 2:
        return [supporting_plane(rectangle) for rectangle in rectangles]
    xp = namespace(rectangles[0].y)
    shapes = [np.broadcast_shapes(*(tuple(part.shape) for part in rectangle)) for rectangle in rectangles]
    flat = [[xp.reshape(xp.broadcast_to(part, shape), (-1,)) for part in r] for r, shape in zip(rectangles, shapes)]
    found = supporting_plane(Rectangle(*(xp.concat(parts, axis=0) for parts in zip(*flat))))
    ends = list(accumulate(math.prod(shape) for shape in shapes))
    pieces = list(zip([0, *ends], ends, shapes))
    planes = [[xp.reshape(part[start:end], shape) for start, end, shape in pieces] for part in found]
    return list(zip(*planes))


class Candidate(NamedTuple):
    """Planes for all outputs: gradient = diagonal + sum of columns x rows; value -inf where it says nothing."""

    value: Array
    terms: Array
    diagonal: Array
    columns: list[Array]
    rows: list[Array]


class Single(NamedTuple):
    """The plane of one output ``k [...]``: its value and terms ``[..., 1]`` and gradient ``[..., K]``."""

    k: Array
    value: Array
    terms: Array
    row: Array


def _better(a: Single, b: Single) -> Single:
    xp = namespace(a.row)
    better = b.value > a.value
    return Single(a.k, *(xp.where(better, new, old) for old, new in zip(a[1:], b[1:])))


def _together(terms: Terms, outputs: Array | None, alpha: Array | None, gamma: Array | None) -> Work:
    """Planes for the outputs with common reference weights, save those whose own chord dominates the sum."""
    xp = namespace(terms.d)
    reference, slope = terms.reference, terms.slope
    total_slope = xp.sum(slope, axis=-1, keepdims=True)
    rest_slope = total_slope - slope
    usable = slope <= 0.5 * total_slope
    radius = None
    if terms.in_box and reference.logit is not None:
        h, J, theta = terms.half_width, reference.logit, reference.theta
        slope_J, h_J = pick(slope, J)[..., None], pick(h, J)[..., None]
        swing = slope * h
        others = xp.sum(swing, axis=-1, keepdims=True) - swing - slope_J * h_J
        radius = others + xp.abs(slope_J - theta * rest_slope) * h_J
    if reference.logit is not None:
        usable = usable & ~one_hot(reference.logit, slope)  # J itself is worked out alone, with another reference

    def some(part: Array) -> Array:
        return restrict(part, outputs)

    here = some(rest_of(terms.chord))
    middle = here if terms.chord_at_middle is terms.chord else some(rest_of(terms.chord_at_middle))
    least, most = some(rest_of(terms.least)), some(rest_of(terms.most))
    s = Sum(here, least, most, middle, None if radius is None else some(radius), terms.top)
    y, a, b = some(terms.inside), some(reference.lower), some(reference.upper)
    alpha, gamma = (None if free is None else some(free + 0 * terms.d) for free in (alpha, gamma))
    alpha, gamma, value, size = yield _anchored(y, a, b, s, alpha, gamma)
    own_slope, rest_slope = some(slope), some(rest_slope)
    if not terms.in_box:
        excess = terms.d - terms.inside
        along = xp.sum(slope * excess, axis=-1, keepdims=True) - some(slope * excess)
        value = value + alpha * some(excess) - gamma * along
        size = size + alpha * some(xp.abs(excess)) + gamma * xp.sum(slope * xp.abs(excess), axis=-1, keepdims=True)
    columns, rows = [-gamma], [slope]
    if reference.direction is not None:
        columns.append(reference.theta * (gamma * rest_slope - alpha))
        rows.append(reference.direction)
    return Candidate(xp.where(some(usable), value, -xp.inf), size, alpha + gamma * own_slope, columns, rows)


def _one_output(terms: Terms, k: Array, alpha: Array | None = None, gamma: Array | None = None) -> Work:
    """Value ``[...]`` and gradient ``[..., K]`` of the plane of output ``k`` (one index per leading position)."""
    xp = namespace(terms.d)
    reference = terms.reference
    own = one_hot(k, terms.slope)

    def rest(part: Array) -> Array:
        return xp.where(own, xp.zeros_like(part), part)

    slope = rest(terms.slope)
    rest_slope = xp.sum(slope, axis=-1, keepdims=True)
    pull = 0 if reference.direction is None else reference.theta * reference.direction
    radius = xp.sum(xp.abs(slope - pull * rest_slope) * terms.half_width, axis=-1) if terms.in_box else None
    here, least, most = (xp.sum(rest(part), axis=-1) for part in (terms.chord, terms.least, terms.most))
    middle = here if terms.chord_at_middle is terms.chord else xp.sum(rest(terms.chord_at_middle), axis=-1)
    s = Sum(here, least, most, middle, radius, terms.top[..., 0])
    y, a, b = pick(terms.inside, k), pick(reference.lower, k), pick(reference.upper, k)
    alpha, gamma, value, size = yield _anchored(y, a, b, s, alpha, gamma)
    if not terms.in_box:
        excess = terms.d - terms.inside
        value = value + alpha * pick(excess, k) - gamma * xp.sum(slope * excess, axis=-1)
        size = size + alpha * pick(xp.abs(excess), k) + gamma * xp.sum(slope * xp.abs(excess), axis=-1)
    alpha, gamma = alpha[..., None], gamma[..., None]
    row = xp.where(own, alpha, -gamma * slope) + (gamma * rest_slope - alpha) * pull
    return Single(k, value[..., None], size[..., None], row)


def _merge(at: Array, outputs: Array | None, shared: list[Candidate], alone: list[Single]) -> LowRankPlanes:
    """For every output the plane with the largest value; their low-rank parts are put side by side."""
    xp = namespace(at)
    owns = [restrict(one_hot(single.k, at), outputs) for single in alone]
    value = xp.full_like(restrict(alone[0].row, outputs), -xp.inf)
    for candidate in shared:
        value = xp.maximum(value, candidate.value)
    for single, own in zip(alone, owns):
        value = xp.maximum(value, xp.where(own, single.value, -xp.inf))
    nothing = xp.zeros_like(value)
    taken, diagonal, terms = nothing > 0, nothing, nothing
    columns: list[Array] = []
    rows: list[Array] = []
    for single, own in zip(alone, owns):
        mine = own & (single.value == value) & ~taken
        taken = taken | mine
        terms = xp.where(mine, single.terms, terms)
        columns.append(xp.astype(mine, at.dtype))
        rows.append(single.row)
    for candidate in shared:
        mine = (candidate.value == value) & ~taken
        taken = taken | mine
        terms = xp.where(mine, candidate.terms, terms)
        diagonal = xp.where(mine, candidate.diagonal, diagonal)
        for column, row in zip(candidate.columns, candidate.rows):
            column = xp.where(mine, column, nothing)
            known = [i for i, seen in enumerate(rows) if seen is row]
            if known:
                columns[known[0]] = columns[known[0]] + column
            else:
                columns.append(column)
                rows.append(row)
    right = xp.stack([xp.broadcast_to(row, alone[0].row.shape) for row in rows], axis=-2)
    return LowRankPlanes(at, value, diagonal, xp.stack(columns, axis=-1), right, outputs=outputs, terms=terms)
