"""The soft form of the rectifier."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Convex
from ..operator import Elementwise, Interval, Lines
from ..rounding import ulps, underflow


@dataclass(frozen=True)
class Softplus(Convex):
    """``log(1 + exp(x))``: convex."""

    name: ClassVar[str] = "Softplus"
    codomain: ClassVar[tuple[float, float]] = (0.0, torch.inf)

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.logaddexp(inputs[0], torch.zeros_like(inputs[0]))

    def derivative(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


@dataclass(frozen=True)
class StraightSoftplus(Elementwise):
    """``log(1 + exp(x))``, but ``x`` itself above a threshold, as torch exports it.

    There it drops by ``log(1 + exp(-threshold))``, and is nowhere further below the curve.
    """

    name: ClassVar[str] = "StraightSoftplus"
    threshold: float

    @property
    def drop(self) -> float:
        """More than what it drops by."""
        return max(-self.threshold, 0.0) + math.log1p(math.exp(-abs(self.threshold))) * (1 + 2.0**-40)

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.where(inputs[0] > self.threshold, inputs[0], Softplus().value(*inputs))

    def interval(self, *inputs: Interval) -> Interval:
        least, most = Softplus().interval(*inputs)
        return self._dropped(inputs[0][1], least), most

    def lines(self, lower: Tensor, upper: Tensor, free: Tensor | None = None) -> Lines:
        curve = Softplus().lines(lower, upper, free)
        offset = self._dropped(upper, curve.lower_offset)
        return Lines(curve.lower_slope, offset, curve.upper_slope, curve.upper_offset)

    def start(self, lower: Tensor, upper: Tensor) -> Tensor:
        return Softplus().start(lower, upper)

    def _dropped(self, upper: Tensor, offset: Tensor) -> Tensor:
        """The offset where the threshold is out of reach, else less by the drop; a difference is rounded."""
        below = offset - self.drop
        below = below - ulps(2, offset.dtype) * (offset.abs() + self.drop) - underflow(offset.dtype)
        # A threshold between two floats may be rounded up by the comparison.
        return torch.where(upper >= self.threshold, below, offset)
