"""Sine and cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import OPERATIONS, Curve, Segment
from ..operator import Interval, Lines
from ..rounding import largest, ulps

WIDEST = 3.0  # less than a half period, so that an interval holds one bend at most, however bends are rounded
FARTHEST = 2.0**16  # beyond, single precision does not tell where in a period a number lies


@dataclass(frozen=True)
class Sine(Curve):
    """``sin(x)``, which bends at every multiple of pi: lines over intervals up to 3, the range beyond."""

    name: ClassVar[str] = "Sine"
    codomain: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    shift: ClassVar[float] = 0.0  # by how many half periods the sine is ahead

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.sin(inputs[0])

    def derivative(self, x: Tensor) -> Tensor:
        return torch.cos(x)

    def rounding(self, x: Tensor, y: Tensor) -> Tensor:
        return ulps(OPERATIONS, y.dtype) * (1 + x.abs())  # also where the period is taken off in the same precision

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        return 1 + x.abs()

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        size = largest(lower, upper)
        near = size <= FARTHEST
        lower, upper = torch.where(near, lower, 0.0), torch.where(near, upper, 0.0)
        slack = ulps(OPERATIONS, lower.dtype) * (1 + size)

        def reaches(phase: float) -> Tensor:
            """Whether the interval may hold a point this many half periods behind a zero, of any period."""
            first, last = ((end / math.pi + self.shift - phase) / 2 for end in (lower, upper))
            return ~near | (torch.ceil(first - slack) <= torch.floor(last + slack))

        ends = [(end, self.value(end)) for end in (lower, upper)]
        least = torch.minimum(*(self.at_least(x, y) for x, y in ends))
        most = torch.maximum(*(self.at_most(x, y) for x, y in ends))
        return torch.where(reaches(1.5), -1.0, least), torch.where(reaches(0.5), 1.0, most)

    def lines(self, lower: Tensor, upper: Tensor, free: Tensor | None = None) -> Lines:
        wide = ~((upper - lower <= WIDEST) & (largest(lower, upper) <= FARTHEST))
        found = super().lines(torch.where(wide, 0.0, lower), torch.where(wide, 0.0, upper), free)
        if not bool(wide.any()):
            return found
        least, most = self.interval((lower, upper))
        flat = torch.zeros_like(lower)
        parts = (found.lower_slope, flat), (found.lower_offset, least), (found.upper_slope, flat)
        return Lines(*(torch.where(wide, b, a) for a, b in (*parts, (found.upper_offset, most))))

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return self._bent(lower, 1)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return self._bent(lower, 0)

    def _bent(self, lower: Tensor, odd: int) -> Segment:
        """Half periods are concave and convex in turn: the part before or behind the first bend after ``lower``."""
        half = torch.floor(lower / math.pi + self.shift)
        bend = (half + 1 - self.shift) * math.pi
        first = half.remainder(2) == odd
        infinite = torch.full_like(lower, torch.inf)
        return torch.where(first, -infinite, bend), torch.where(first, bend, infinite)


@dataclass(frozen=True)
class Cosine(Sine):
    """``cos(x)``, a sine that is half a half period ahead."""

    name: ClassVar[str] = "Cosine"
    shift: ClassVar[float] = 0.5

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.cos(inputs[0])

    def derivative(self, x: Tensor) -> Tensor:
        return -torch.sin(x)
