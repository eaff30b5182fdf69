"""The exact extrema of a linear function of softmax over a box."""

from __future__ import annotations

from typing import Any

from .._arrays import Array, maximum, minimum, namespace, sigmoid
from ..boxes import as_arrays, broadcast_shape, make_box, refuse
from .rounding import check_rounding, relative_error


def softmax_extrema(c: Any, lower: Any, upper: Any, rounding: str = "outward") -> tuple[Array, Array]:
    """Exact minimum and maximum of ``c . softmax(x)`` over ``lower <= x <= upper``, in O(K log K).

    Along every coordinate the function is monotone, so an extremum is a vertex; at a maximum the logits with the
    largest coefficients are up and the others down, which leaves K + 1 vertices to compare.

    Args:
        c (array [..., K]): Coefficients of the probabilities.
        lower (array [..., K]): Lower ends of the logits.
        upper (array [..., K]): Upper ends of the logits.
        rounding: ``"outward"`` moves both results by what rounding may have cost; ``"nearest"`` leaves them as they
            were computed.

    Returns:
        The smallest and the largest value, arrays ``[...]``.
    """
    check_rounding(rounding)
    arrays = as_arrays(c=c, lower=lower, upper=upper)
    xp = namespace(*arrays.values())
    box = make_box(arrays["lower"], arrays["upper"], of_any_size=True)
    c = arrays["c"]
    shape = broadcast_shape(**arrays)
    refuse(~xp.isfinite(c), "c must be finite", c=c)
    c, low, high = (xp.broadcast_to(a, shape) for a in (c, box.lower, box.upper))
    # Differences of coefficients must not overflow; an eighth of a number this large is exact.
    large = xp.max(xp.abs(c), axis=-1) > float(xp.finfo(c.dtype).max) / 8
    unit = xp.where(large, xp.full_like(c[..., 0], 8.0), xp.ones_like(c[..., 0]))
    c = c / unit[..., None]
    least, most = -_maximum(-c, low, high), _maximum(c, low, high)
    # What only a masked logit would have is never taken.
    masked = xp.broadcast_to(arrays["upper"] == -xp.inf, shape)
    bottom = xp.min(xp.where(masked, xp.inf, c), axis=-1)
    top = xp.max(xp.where(masked, -xp.inf, c), axis=-1)
    if rounding == "outward":
        # Weights are off by a share of themselves, so a mean is off by that share of the spread, and by a rounding of
        # its own for every doubling; it stays between the ends.
        doublings = 4 + int(c.shape[-1]).bit_length()
        own = float(xp.finfo(c.dtype).eps) * doublings * maximum(xp.abs(bottom), xp.abs(top))
        # An error above one is as good as one: nothing leaves the ends.
        slack = minimum(2 * relative_error(box)[..., 0], 1.0) * (top - bottom) + own
        least, most = least - slack, most + slack
    return unit * maximum(least, bottom), unit * minimum(most, top)


def _maximum(c: Array, lower: Array, upper: Array) -> Array:
    """The largest ``c . softmax(x)`` over the K + 1 vertices that can be maximal."""
    xp = namespace(c)
    order = xp.argsort(c, axis=-1, descending=True)
    c, lower, upper = (xp.take_along_axis(a, order, axis=-1) for a in (c, lower, upper))
    raised = _running_average(upper, c)
    rest_weight, rest_mean = _running_average(xp.flip(lower, axis=-1), xp.flip(c, axis=-1))
    lowered = xp.flip(rest_weight, axis=-1), xp.flip(rest_mean, axis=-1)
    # i logits up, K - i down, for i = 1 .. K - 1; and the two vertices with all down and all up
    _, mixed = _join((raised[0][..., :-1], raised[1][..., :-1]), (lowered[0][..., 1:], lowered[1][..., 1:]))
    ends = xp.maximum(raised[1][..., -1], lowered[1][..., 0])
    return xp.maximum(ends, xp.max(mixed, axis=-1)) if c.shape[-1] > 1 else ends


Average = tuple[Array, Array]  # log of the total weight, weighted mean


def _join(a: Average, b: Average) -> Average:
    """Weighted means of two groups joined; a mean of means cannot leave the hull, whatever the weights."""
    xp = namespace(a[0])
    return xp.logaddexp(a[0], b[0]), a[1] + (b[1] - a[1]) * sigmoid(b[0] - a[0])


def _running_average(log_weight: Array, c: Array) -> Average:
    """Weighted means of all prefixes, by doubling: log2(K) sweeps, no difference of large sums."""
    xp = namespace(c)
    step, K = 1, int(c.shape[-1])
    while step < K:
        weight, mean = _join((log_weight[..., :-step], c[..., :-step]), (log_weight[..., step:], c[..., step:]))
        log_weight = xp.concat([log_weight[..., :step], weight], axis=-1)
        c = xp.concat([c[..., :step], mean], axis=-1)
        step *= 2
    return log_weight, c
