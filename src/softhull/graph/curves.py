"""Sound lines under and over a smooth scalar function.

One idea serves every curve: choose a slope, then take the best offset that is sound for it. Below a function
that is convex on one segment and concave around it, the offset is decided at three points: the two ends of
the interval and the point of the segment where the tangent has that slope. So any tangent point gives a sound
line, and the search for a good one needs no care. Lines over a function are lines under its negative.

Offsets and ends are moved outward by more than the rounding of what they are computed from. A computed slope ``s`` is
a number of its own: the function less ``s*x`` is least not at the tangent point but where its derivative is ``s``, and
between the two it falls by at most the error of the derivative times the width of the interval.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from .operator import Elementwise, Interval, Lines
from .rounding import ulps, underflow

Segment = tuple[Tensor, Tensor]

# What a library function, accurate to a few units, the few operations around it, or an offset may take.
OPERATIONS = 8


class Curve(Elementwise):
    """A smooth function that declares itself, its derivative, its range and where it bends which way."""

    codomain: ClassVar[tuple[float, float]] = (-torch.inf, torch.inf)

    @abstractmethod
    def derivative(self, x: Tensor) -> Tensor:
        """The slope of the function."""

    @abstractmethod
    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        """Where the function is convex; within ``[lower, upper]`` it is concave around that."""

    @abstractmethod
    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        """Where the function is concave; within ``[lower, upper]`` it is convex around that."""

    def rounding(self, x: Tensor, y: Tensor) -> Tensor:
        """More than the error of ``y`` as the computed value at ``x``."""
        return ulps(OPERATIONS, y.dtype) * y.abs() + underflow(y.dtype) * (1 + x.abs())

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        """The sum of the absolute values of the terms that make the derivative at ``x``."""
        return slope.abs()

    def check(self, lower: Tensor, upper: Tensor) -> None:
        """Raise DomainError where the interval leaves the domain."""

    def interval(self, *inputs: Interval) -> Interval:
        """The values at the ends, rounded outward; operators that do not increase have a rule of their own."""
        lower, upper = inputs[0]
        self.check(lower, upper)
        return self.at_least(lower, self.value(lower)), self.at_most(upper, self.value(upper))

    def at_least(self, x: Tensor, y: Tensor) -> Tensor:
        """A number that the function at ``x``, computed as ``y``, reaches; it exceeds the format where it overflows."""
        y = y.clamp(max=torch.finfo(y.dtype).max)
        return (y - self.rounding(x, y)).clamp(min=self.codomain[0])

    def at_most(self, x: Tensor, y: Tensor) -> Tensor:
        """A number that the function at ``x``, computed as ``y``, does not exceed."""
        y = y.clamp(min=torch.finfo(y.dtype).min)
        return (y + self.rounding(x, y)).clamp(max=self.codomain[1])

    def lines(self, lower: Tensor, upper: Tensor, free: Tensor | None = None) -> Lines:
        """Tangents at the point ``free`` of the way through the sound ones, chords where there is none.

        The default touches the envelope of the function over the midpoint, which has the least area.
        """
        self.check(lower, upper)
        shape = lower.shape
        lower, upper = _without_repeats(lower, upper)
        below = _line_below(self, 1, lower, upper, None if free is None else free[0])
        above = _line_below(self, -1, lower, upper, None if free is None else free[1])
        return Lines(*(part.expand(shape) for part in (below[0], below[1], -above[0], -above[1])))

    def start(self, lower: Tensor, upper: Tensor) -> Tensor:
        shape = lower.shape
        lower, upper = _without_repeats(lower, upper)
        middle = lower + (upper - lower) / 2
        found = []
        for sign in (1, -1):
            first, last, _ = _tangent_points(self, sign, lower, upper)
            room = last - first
            wide = room > 0
            share = (middle - first) / torch.where(wide, room, torch.ones_like(room))
            found.append(torch.where(wide, share.clamp(0, 1), torch.full_like(share, 0.5)))
        return torch.stack(found).expand(2, *shape)


def _without_repeats(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The same intervals without leading dimensions that only repeat them, as ``expand`` makes them."""
    for axis in range(lower.ndim):
        if lower.stride(axis) or upper.stride(axis) or not lower.shape[axis]:
            break
        lower, upper = lower.narrow(axis, 0, 1), upper.narrow(axis, 0, 1)
    return lower, upper


class Convex(Curve):
    """A curve that bends upward wherever it is defined."""

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, -torch.inf, torch.inf)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, torch.inf, -torch.inf)


class Concave(Curve):
    """A curve that bends downward wherever it is defined."""

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, torch.inf, -torch.inf)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, -torch.inf, torch.inf)


class Sshaped(Curve):
    """An increasing curve that bends upward left of 0 and downward right of it."""

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, -torch.inf, 0.0)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, 0.0, torch.inf)


class Valley(Curve):
    """A function that falls to one minimum and rises: concave, convex between its two bends, concave."""

    @abstractmethod
    def bends(self) -> tuple[float, float]:
        """Where the curvature changes sign."""

    @abstractmethod
    def valley(self) -> tuple[float, float, float]:
        """An interval around the minimum and a number just below it."""

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        left, right, depth = self.valley()
        least = torch.minimum(*(self.at_least(end, self.value(end)) for end in (lower, upper)))
        most = torch.maximum(*(self.at_most(end, self.value(end)) for end in (lower, upper)))
        return torch.where((lower <= right) & (upper >= left), least.clamp(max=depth), least), most

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, *self.bends())

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        # Of the two concave parts only one can touch a line from above: the right one rises everywhere,
        # the left one falls everywhere, and a line over both rises.
        left, right = (torch.full_like(lower, bend) for bend in self.bends())
        infinite = torch.full_like(lower, torch.inf)
        beyond = upper > right
        return torch.where(beyond, right, -infinite), torch.where(beyond, infinite, left)


def segment(like: Tensor, left: float, right: float) -> Segment:
    """The same part of the line for all entries; none where ``left > right``."""
    return torch.full_like(like, left), torch.full_like(like, right)


def _line_below(curve: Curve, sign: int, lower: Tensor, upper: Tensor, free: Tensor | None) -> tuple[Tensor, Tensor]:
    """Slope and offset of a line that is nowhere above ``sign`` times the curve on ``[lower, upper]``."""
    first, last, tangent = _tangent_points(curve, sign, lower, upper)
    middle = lower + (upper - lower) / 2
    point = middle.clamp(first, last) if free is None else first + free * (last - first)
    with torch.no_grad():  # where a tangent is too steep for the number format its gradient must not be asked for
        steep = ~(curve.value(point).isfinite() & curve.derivative(point).isfinite())
    point = torch.where(steep, lower, point)
    slope = torch.where(tangent, sign * curve.derivative(point), sign * _chord(curve, lower, upper))

    once = ulps(OPERATIONS, slope.dtype)

    def offset_at(x: Tensor) -> Tensor:
        y, rise = curve.value(x), slope * x
        return sign * y - rise - curve.rounding(x, y) - once * (y.abs() + rise.abs())

    offset = torch.minimum(torch.minimum(offset_at(lower), offset_at(upper)), offset_at(point))
    with torch.no_grad():
        offset = offset - once * curve.steepness(point, slope) * (upper - lower)
    # An end where the curve overflows leaves no line of finite slope: fall back to a constant.
    finite = slope.isfinite() & offset.isfinite()
    least, most = curve.interval((lower, upper))
    flat = least if sign > 0 else -most
    return torch.where(finite, slope, torch.zeros_like(slope)), torch.where(finite, offset, flat)


def _chord(curve: Curve, lower: Tensor, upper: Tensor) -> Tensor:
    """Slope from end to end; the derivative in the middle where the ends are too close to tell."""
    width = upper - lower
    middle = lower + width / 2
    near = width <= torch.finfo(lower.dtype).eps ** 0.5 * (1 + middle.abs())
    rise = curve.value(upper) - curve.value(lower)
    return torch.where(near, curve.derivative(middle), rise / torch.where(near, torch.ones_like(width), width))


@torch.no_grad()
def _tangent_points(curve: Curve, sign: int, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The range ``[first, last]`` of points whose tangent passes below both ends, and where there is one.

    Where there is none the chord is the best line below, and the range holds an end of the interval.
    """
    start, end = curve.convex(lower, upper) if sign > 0 else curve.concave(lower, upper)
    left, right = torch.maximum(start, lower), torch.minimum(end, upper)
    inside = left <= right
    left = torch.where(inside, left, lower)
    right = torch.where(inside, right, lower)

    last, last_found = _sound_point(curve, sign, left, right, upper, inside & (right < upper))
    first, first_found = _sound_point(curve, sign, right, left, lower, inside & (left > lower))
    tangent = inside & first_found & last_found & (first <= last)
    return torch.where(tangent, first, lower), torch.where(tangent, last, lower), tangent


def _sound_point(
    curve: Curve, sign: int, sound: Tensor, unsound: Tensor, end: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """The point nearest to ``unsound`` whose tangent passes below the curve at ``end``, and where there is one.

    Where none is wanted it is ``unsound``: that point is the end itself.
    """
    point, found = unsound.clone(), torch.ones_like(wanted)
    if bool(wanted.any()):
        point[wanted], found[wanted] = _root(curve, sign, sound[wanted], unsound[wanted], end[wanted])
    return point, found


def _root(curve: Curve, sign: int, sound: Tensor, unsound: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """False position, halved in turn so that it cannot stall; the sound end of the last bracket is kept."""
    at_end = curve.value(end)

    def excess(point: Tensor) -> Tensor:
        return sign * (curve.value(point) + curve.derivative(point) * (end - point) - at_end)

    a, b, excess_a, excess_b = sound, unsound, excess(sound), excess(unsound)
    whole, found = excess_b <= 0, excess_a <= 0
    close = torch.finfo(a.dtype).eps ** 0.6
    for step in range(48):
        middle = a + (b - a) / 2
        crossing = (a * excess_b - b * excess_a) / (excess_b - excess_a)
        between = (torch.minimum(a, b) < crossing) & (crossing < torch.maximum(a, b)) & (step % 2 == 1)
        point = torch.where(between, crossing, middle)
        here = excess(point)
        good = here <= 0
        a, excess_a = torch.where(good, point, a), torch.where(good, here, excess_a)
        b, excess_b = torch.where(good, b, point), torch.where(good, excess_b, here)
        open_still = found & ~whole & ((b - a).abs() > close * (1 + a.abs())) & (excess_a < 0)
        if not bool(open_still.any()):
            break
    return torch.where(whole, unsound, a), found | whole
