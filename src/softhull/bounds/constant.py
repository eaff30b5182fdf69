"""Constant bounds: the exact range of every softmax output over the box."""

from __future__ import annotations

from .._arrays import Array, namespace, sigmoid
from ..boxes import Box
from .log_odds import log_odds_range
from .planes import LowRankPlanes


def const_lower(box: Box, at: Array, outputs: Array | None = None) -> LowRankPlanes:
    """Smallest value of every output; equation (const_LB) of Wei et al. 2023."""
    return _flat(at, sigmoid(log_odds_range(box)[0]))


def const_upper(box: Box, at: Array, outputs: Array | None = None) -> LowRankPlanes:
    """Largest value of every output; equation (const_UB) of Wei et al. 2023."""
    return _flat(at, sigmoid(log_odds_range(box)[1]))


def _flat(at: Array, value: Array) -> LowRankPlanes:
    xp = namespace(at)
    value = value + xp.zeros_like(at)
    nothing = xp.zeros_like(value)
    return LowRankPlanes(at, value, nothing, nothing[..., None], nothing[..., None, :])
