"""Resizing at exact positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb

from ...errors import ModelError
from ..network import NODE, View, _limit, _list, _Reader, _real, operator
from .parts import FLOAT, INT, STRING, _combined, _view

UNSURE = Fraction(1, 1000)  # how far the coordinates of a runtime may be from the true ones


_RESIZED = {"mode": STRING, "coordinate_transformation_mode": STRING, "nearest_mode": STRING, "cubic_coeff_a": FLOAT}
_RESIZED |= {"exclude_outside": INT, "extrapolation_value": FLOAT}  # of modes that are refused


@operator("Resize", since=11, until=17, operands=(1, 4), **_RESIZED)
@operator("Resize", since=18, operands=(1, 4), **_RESIZED, antialias=INT, keep_aspect_ratio_policy=STRING)
def _resize(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Axis by axis the nearest entry, or a mean of two neighbours with weights that are balls."""
    if attributes.get("antialias", 0) or attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise ModelError("antialiasing, or a policy on the aspect ratio")
    x, _, scales, sizes = (*operands, None, None, None)[:4]
    x = _view(x)
    given = scales is not None and scales.size > 0
    if given == (sizes is not None and sizes.size > 0):
        raise ModelError("neither scales nor sizes, or both")
    wanted = [] if given else _list(sizes)
    rates = [Fraction(float(r)) for r in _real(scales)] if given else [Fraction(*pair) for pair in zip(wanted, x.shape)]
    if len(rates) != len(x.shape) or min(rates) <= 0 or (wanted and len(wanted) != len(x.shape)):
        raise ModelError("scales that do not fit the operand")
    targets = wanted or [
        _agreed(math.floor, n * rate, np.float32(n) * np.float32(rate)) for n, rate in zip(x.shape, rates)
    ]
    for axis, (target, rate) in enumerate(zip(targets, rates)):
        if target < 1:
            raise ModelError("a size of 0")
        if rate != 1:
            _limit(x.size // x.shape[axis] * target)
            _limit(NODE * target)  # exact positions take more room than numbers
            x = _resized(reader, x, axis, target, rate, attributes)
    return x


def _agreed(rounded: Callable[[Any], int], at: Fraction, single: Any) -> int:
    """A number rounded to a whole one, where the runtime, which has it in single precision, comes to the same."""
    if rounded(at) != rounded(Fraction(float(single))):
        raise ModelError("a size or a nearest entry that rounding changes")
    return rounded(at)


def _coordinate(at: Any, size: int, target: int, rate: Any, half: Any, how: bytes) -> Any:
    """Where an entry of the result stands in the operand, in the arithmetic of the numbers given."""
    if how == b"half_pixel" or (how == b"pytorch_half_pixel" and target > 1):
        return (at + half) / rate - half
    if how == b"align_corners" and target > 1:
        return at * (size - 1) / (target - 1)
    if how == b"asymmetric":
        return at / rate
    if how in (b"align_corners", b"pytorch_half_pixel"):
        return 0 * at
    raise ModelError("coordinates of another kind")


_NEAREST: dict[bytes, Callable[[Fraction], int]] = {
    b"round_prefer_floor": lambda at: math.ceil(at - Fraction(1, 2)),
    b"round_prefer_ceil": lambda at: math.floor(at + Fraction(1, 2)),
    b"floor": math.floor,
    b"ceil": math.ceil,
}


def _resized(reader: _Reader, x: View, axis: int, target: int, rate: Fraction, attributes: Any) -> View:
    """A tensor resampled along one axis at exact positions, which the runtime may compute in floating point."""
    how = attributes.get("coordinate_transformation_mode", b"half_pixel")
    size = x.shape[axis]
    at = [_coordinate(Fraction(t), size, target, rate, Fraction(1, 2), how) for t in range(target)]

    def taken(entries: list[int]) -> View:
        chosen = np.clip(entries, 0, size - 1)
        return x.moved(lambda index: np.take(index, chosen, axis))

    mode = attributes.get("mode", b"nearest")
    if mode == b"nearest":
        nearest = _NEAREST[attributes.get("nearest_mode", b"round_prefer_floor")]
        if any(nearest(a - UNSURE) != nearest(a + UNSURE) and Fraction(float(np.float32(a))) != a for a in at):
            raise ModelError("two entries that are equally near up to rounding")
        single = _coordinate(np.arange(target, dtype=np.float32), size, target, np.float32(rate), np.float32(0.5), how)
        return taken([_agreed(nearest, a, b) for a, b in zip(at, single)])
    if mode != b"linear":
        raise ModelError("interpolation of another kind")
    low = [math.floor(a) for a in at]
    wide = (-1, *(1 for _ in x.shape[axis + 1 :]))
    part = np.array([arb(a.numerator) / a.denominator - n for a, n in zip(at, low)], dtype=object).reshape(wide)
    return _combined(reader, [(taken(low), arb(1) - part), (taken([n + 1 for n in low]), part)])
