"""Where a bound loses: the account of one walk, and the cuts it speaks for."""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.operator import Interval
from ..graph.ops.relu import LeakyRelu, Relu

# Intervals that are narrower, relative to their ends, are not cut: rounding decides in them.
NARROW = 1e-7


def entry_cut(activation: object, interval: Interval, value: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
    """Losses that a cut can help, and thresholds: the kink, or for a curve between its middle and its value."""
    lower, upper = interval
    if isinstance(activation, Relu | LeakyRelu):
        return torch.where((lower < 0) & (upper > 0), loss, 0.0), torch.zeros_like(loss)
    return torch.where(upper - lower > NARROW * (1 + upper.abs()), loss, 0.0), between(lower, upper, value)


def between(lower: Tensor, upper: Tensor, value: Tensor) -> Tensor:
    """Half way between the middle of an interval and a value in it, not too near the ends."""
    width = upper - lower
    inside = torch.minimum(torch.maximum(value, lower + 0.15 * width), upper - 0.15 * width)
    return (lower + width / 2 + inside) / 2
