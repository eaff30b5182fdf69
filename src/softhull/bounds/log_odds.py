"""The log-odds ``v_k = x_k - LSE(x_rest)`` of an output: ``p_k = sigmoid(v_k)``, concave in x.

Every concave increasing majorant of the sigmoid over the range of ``v_k`` is an upper bound on ``p_k``; the upper
bounds of the paper and the hull are such majorants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from array_api_compat import is_jax_array

from .._arrays import Array, clip, constant, device, in_chunks, logsumexp, namespace
from ..boxes import Box, Differences
from .planes import LowRankPlanes, restrict
from .rest import leave_one_out_logsumexp

# (v, v_lo, v_hi) -> (value, slope) of a concave increasing majorant of the sigmoid on [v_lo, v_hi]
Majorant = Callable[[Array, Array, Array], tuple[Array, Array]]


def log_odds_range(box: Box) -> tuple[Array, Array]:
    """The smallest and largest log-odds of every output, from the box or from the difference bounds."""
    if box.differences is None:
        lowest = box.lower - leave_one_out_logsumexp(box.upper)
        highest = box.upper - leave_one_out_logsumexp(box.lower)
        return lowest, highest
    return _range_from_differences(box.differences)


def _range_from_differences(known: Differences) -> tuple[Array, Array]:
    """The range of the log-odds of every output that bounds on differences of logits imply."""
    xp = namespace(known.lower)
    K = int(known.lower.shape[-1])
    own = xp.eye(K, dtype=known.lower.dtype, device=device(known.lower)) > 0

    def columns(i: int, j: int) -> tuple[Array, Array]:
        itself = own[:, i:j]
        lowest = -logsumexp(xp.where(itself, -xp.inf, known.upper[..., :, i:j]), axis=-2)
        highest = -logsumexp(xp.where(itself, -xp.inf, known.lower[..., :, i:j]), axis=-2)
        return lowest, highest

    pieces = in_chunks(K, math.prod(known.lower.shape[:-1]), columns)
    return xp.concat([p[0] for p in pieces], axis=-1), xp.concat([p[1] for p in pieces], axis=-1)


class RestAverage(NamedTuple):
    """Softmax over the rest as rows: row k is ``diagonal_k e_k + left_k @ right``, the gradient of LSE(x_rest)."""

    diagonal: Array
    left: list[Array]
    right: list[Array]


def _log_odds(x: Array) -> tuple[Array, RestAverage]:
    """The log-odds of every output and the averages over the rest that are their gradients, in one pass."""
    xp = namespace(x)
    top = constant(xp.max(x, axis=-1, keepdims=True))
    terms = xp.exp(x - top)
    total = xp.sum(terms, axis=-1, keepdims=True)
    dominant = terms > 0.5 * total
    if not (is_jax_array(x) or bool(xp.any(dominant))):
        share = 1 / (total - terms)
        return x - top - xp.log(total - terms), RestAverage(-share * terms, [share], [terms])
    rest = xp.where(dominant, xp.ones_like(terms), total - terms)
    others = xp.where(dominant, -xp.inf, x)  # the rest of the dominant one gets a scale of its own
    log_others = logsumexp(others, keepdims=True)
    v = x - xp.where(dominant, log_others, top + xp.log(rest))
    alone = xp.astype(dominant, x.dtype)
    share = (1 - alone) / rest
    return v, RestAverage(-share * terms, [share, alone], [terms, xp.exp(others - log_others)])


def upper_planes(
    box: Box, at: Array, outputs: Array | None, majorant: Majorant, tangent: Array | None = None
) -> LowRankPlanes:
    """Tangent planes at ``at`` of ``majorant(v_k(x))`` for some outputs (an index array) or all of them.

    ``tangent`` moves the point on the v axis where the majorant is linearised (default: ``v(at)``); it is clipped
    to the range of ``v``, which with difference bounds may leave ``v(at)`` outside.
    """
    xp = namespace(at)
    v, rest = _log_odds(at)
    lowest, highest, v = (restrict(part, outputs) for part in (*log_odds_range(box), v))
    touch = clip(v if tangent is None else restrict(tangent + 0 * at, outputs), lowest, highest)
    value, slope = majorant(touch, lowest, highest)
    excess = slope * (v - touch)
    return LowRankPlanes(
        at=at,
        value=value + excess,
        terms=xp.abs(value) + xp.abs(excess) + slope,  # the log-odds are off by a share of one
        diagonal=slope * (1 - restrict(rest.diagonal, outputs)),
        left=xp.stack([-slope * restrict(column, outputs) for column in rest.left], axis=-1),
        right=xp.stack(rest.right, axis=-2),
        outputs=outputs,
    )
