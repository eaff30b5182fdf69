"""Sums over the rest: for every output k the sum over all other logits, all K of them in O(K)."""

from __future__ import annotations

from typing import NamedTuple

from .._arrays import Array, constant, limits, logsumexp, minimum, namespace, one_hot


def leave_one_out_logsumexp(a: Array) -> Array:
    """For every k the log-sum-exp over all j != k: subtract, and recompute for the largest entry.

    Without the largest entry the remaining sum would be lost in cancellation; for every other entry the
    remaining sum keeps the largest term, so subtracting loses at most one bit.
    """
    xp = namespace(a)
    largest = one_hot(xp.argmax(a, axis=-1), a)
    top = constant(xp.max(a, axis=-1, keepdims=True))
    terms = xp.exp(a - top)
    rest = xp.sum(terms, axis=-1, keepdims=True) - terms
    others = top + xp.log(xp.where(largest, xp.ones_like(a), rest))
    without = logsumexp(xp.where(largest, -xp.inf, a), keepdims=True)
    return xp.where(largest, without, others)


class RestRows(NamedTuple):
    """Rows ``sum_{j != k} exp(log_weight_j - log_scale_k) e_j`` as ``diagonal + left @ right`` of rank 2.

    ``steep`` marks rows whose entries would overflow; they are stored as zero.
    """

    diagonal: Array
    left: Array
    right: Array
    steep: Array


def rest_rows(log_weight: Array, log_scale: Array, largest: Array) -> RestRows:
    """One common row minus its diagonal for every output; the ``largest`` output (a mask) gets a row of its own.

    Its own row, because there the diagonal that has to be taken out may exceed all the rest by any factor.
    """
    xp = namespace(log_weight)
    _, cap = limits(log_weight)
    top = constant(xp.max(log_weight, axis=-1, keepdims=True))
    common = xp.exp(log_weight - top)
    exponent = top - log_scale
    shared = xp.exp(minimum(exponent, cap))
    own_scale = xp.max(xp.where(largest, log_scale, -xp.inf), axis=-1, keepdims=True)
    own_exponent = xp.where(largest, -xp.inf, log_weight) - own_scale
    own = xp.exp(minimum(own_exponent, cap))
    steep = xp.where(largest, xp.max(own_exponent, axis=-1, keepdims=True) > cap, exponent > cap)
    zero = xp.zeros_like(shared)
    shared = xp.where(largest | steep, zero, shared)
    alone = xp.where(largest & ~steep, xp.ones_like(shared), zero)
    common, own = xp.broadcast_to(common, own.shape), xp.broadcast_to(own, own.shape)
    return RestRows(
        diagonal=-shared * common,
        left=xp.stack([shared, alone], axis=-1),
        right=xp.stack([common, own], axis=-2),
        steep=steep,
    )
