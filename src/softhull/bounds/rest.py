"""Sums over the rest: for every output k the sum over all other logits, all K of them in O(K)."""

from __future__ import annotations

from typing import NamedTuple

from array_api_compat import is_jax_array

from .._arrays import Array, constant, limits, logsumexp, minimum, namespace


def rest_of(terms: Array) -> Array:
    """For every k the sum of the non-negative terms over all j != k.

    Subtracting a term from the total loses at most one bit, unless the term is more than half of it; at most one is,
    and its rest is summed anew.
    """
    xp = namespace(terms)
    total = xp.sum(terms, axis=-1, keepdims=True)
    dominant = terms > 0.5 * total
    anew = xp.sum(xp.where(dominant, xp.zeros_like(terms), terms), axis=-1, keepdims=True)
    return xp.where(dominant, anew, total - terms)


def leave_one_out_logsumexp(a: Array) -> Array:
    """For every k the log-sum-exp over all j != k; the entry that dominates gets a scale of its own."""
    xp = namespace(a)
    top = constant(xp.max(a, axis=-1, keepdims=True))
    terms = xp.exp(a - top)
    total = xp.sum(terms, axis=-1, keepdims=True)
    dominant = terms > 0.5 * total
    if not (is_jax_array(a) or bool(xp.any(dominant))):
        return top + xp.log(total - terms)
    others = top + xp.log(xp.where(dominant, xp.ones_like(terms), total - terms))
    without = logsumexp(xp.where(dominant, -xp.inf, a), keepdims=True)
    return xp.where(dominant, without, others)


class RestRows(NamedTuple):
    """Rows ``sum_{j != k} exp(log_weight_j - log_scale_k) e_j`` as ``diagonal + left @ right`` of rank 2.

    ``steep`` marks rows whose entries would overflow; they are stored as zero.
    """

    diagonal: Array
    left: Array
    right: Array
    steep: Array


def rest_rows(log_weight: Array, log_scale: Array) -> RestRows:
    """One common row minus its diagonal for every output; an output whose own weight dominates gets a separate row.

    Separate, because the diagonal that has to be taken out may exceed all the rest by any factor.
    """
    xp = namespace(log_weight)
    _, cap = limits(log_weight)
    top = constant(xp.max(log_weight, axis=-1, keepdims=True))
    common = xp.exp(log_weight - top)
    dominant = common > 0.5 * xp.sum(common, axis=-1, keepdims=True)
    some = xp.any(dominant, axis=-1, keepdims=True)
    exponent = top - log_scale
    shared = xp.exp(minimum(exponent, cap))
    own_scale = xp.max(xp.where(dominant, log_scale, -xp.inf), axis=-1, keepdims=True)
    own_exponent = xp.where(dominant, -xp.inf, log_weight) - xp.where(some, own_scale, top)
    own = xp.exp(minimum(own_exponent, cap))
    steep = xp.where(dominant, xp.max(own_exponent, axis=-1, keepdims=True) > cap, exponent > cap)
    zero = xp.zeros_like(shared)
    shared = xp.where(dominant | steep, zero, shared)
    alone = xp.where(dominant & ~steep, xp.ones_like(shared), zero)
    return RestRows(
        diagonal=-shared * common,
        left=xp.stack([shared, alone], axis=-1),
        right=xp.stack([xp.broadcast_to(common, own.shape), own], axis=-2),
        steep=steep,
    )
