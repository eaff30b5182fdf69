"""Bounds written in the differences ``d_j = x_j - x_k`` to the output itself: K x K by nature, so never stored.

A rule sees some outputs at a time, with arrays ``[..., o, K]`` of differences and their intervals, and returns the
value and the derivative in every difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .._arrays import Array, clip, device, in_chunks, maximum, namespace
from ..boxes import Box
from .planes import RowPlanes

# value [..., o], derivative [..., o, K], where the derivative overflows [..., o], and the absolute values of the terms
# that make the value, added up [..., o]
Tangent = tuple[Array, Array, Array, Array]
# (d, d_lo, d_hi, own) -> Tangent; own masks the entry j = k, where d = 0
Rule = Callable[[Array, Array, Array, Array], Tangent]


def pairwise_planes(box: Box, at: Array, outputs: Array | None, rule: Rule) -> RowPlanes:
    """Tangent planes at ``at`` of the bound given by ``rule``, for some outputs (an index array) or all of them."""
    xp = namespace(at)
    if outputs is None:
        outputs = xp.arange(box.size, dtype=xp.int64, device=device(at))

    def tangent(i: int, j: int) -> Tangent:
        k = outputs[i:j]
        own = xp.arange(box.size, dtype=xp.int64, device=device(at)) == k[:, None]
        lower, upper = _intervals(box, k)
        d = at[..., None, :] - xp.take(at, k, axis=-1)[..., None]
        inside = clip(d, lower, upper)  # with difference bounds the differences at a point of the box may leave them
        value, derivative, steep, terms = rule(inside, lower, upper, own)
        derivative = xp.where(own | steep[..., None], xp.zeros_like(derivative), derivative)
        excess = d - inside
        value = value + xp.vecdot(derivative, excess)
        terms = terms + xp.vecdot(xp.abs(derivative), xp.abs(excess))
        return value, xp.where(own, -xp.sum(derivative, axis=-1, keepdims=True), derivative), steep, terms

    reach = 1 + maximum(box.upper - at, at - box.lower)

    def summary(i: int, j: int) -> Tangent:
        value, gradient, steep, terms = tangent(i, j)
        return value, steep, terms, xp.vecdot(xp.abs(gradient), reach[..., None, :])

    pieces = in_chunks(int(outputs.shape[0]), math.prod(at.shape), summary)
    value, steep, terms, slopes = (xp.concat(list(parts), axis=-1) for parts in zip(*pieces))
    return RowPlanes(at, value, lambda i, j: tangent(i, j)[1], steep=steep, terms=terms, slopes=slopes)


def _intervals(box: Box, k: Array) -> tuple[Array, Array]:
    xp = namespace(box.lower)
    if box.differences is not None:
        return (
            xp.matrix_transpose(xp.take(box.differences.lower, k, axis=-1)),
            xp.matrix_transpose(xp.take(box.differences.upper, k, axis=-1)),
        )
    lower = box.lower[..., None, :] - xp.take(box.upper, k, axis=-1)[..., None]
    upper = box.upper[..., None, :] - xp.take(box.lower, k, axis=-1)[..., None]
    return lower, upper
