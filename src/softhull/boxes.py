"""The set of softmax inputs a bound speaks about: a box, and bounds on differences where they are known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ._arrays import Array, clip, device, is_traced, maximum, minimum, namespace, pick
from .errors import InvalidInput

# exp(-MASKED_GAP) is zero in every floating-point format, so a logit this far below all others has
# probability exactly 0 and drops out of every sum, without infinities that turn into NaN in differences.
MASKED_GAP = 4000.0


def as_arrays(**named: Any) -> dict[str, Array]:
    """Floating-point arrays of one framework and one dtype; lists and Python numbers become NumPy float64."""
    given = {
        name: np.asarray(value, dtype=np.float64) if isinstance(value, list | tuple | int | float) else value
        for name, value in named.items()
    }
    for name, value in given.items():
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            raise InvalidInput(f"{name} must be an array or a list of numbers, not {type(value).__name__}")
    try:
        xp = namespace(*given.values())
    except TypeError as problem:
        raise InvalidInput(f"{', '.join(given)} must be arrays of one framework: {problem}") from None
    for name, value in given.items():
        if not xp.isdtype(value.dtype, "real floating"):
            raise InvalidInput(f"{name} must be a floating-point array, not {value.dtype}; convert it first")
    dtype = xp.result_type(*given.values())
    return {name: xp.astype(value, dtype, copy=False) for name, value in given.items()}


def refuse(bad: Array, message: str, **values: Array) -> None:
    """Raise an error that shows the first index where ``bad`` holds and the values found there."""
    xp = namespace(bad)
    if any(is_traced(a) for a in (bad, *values.values())) or not bool(xp.any(bad)):
        return
    first = int(xp.argmax(xp.astype(xp.reshape(bad, (-1,)), xp.int64)))
    index = tuple(int(i) for i in np.unravel_index(first, bad.shape))
    found = {name: float(xp.reshape(xp.broadcast_to(value, bad.shape), (-1,))[first]) for name, value in values.items()}
    where = ", ".join(f"{name} = {value!r}" for name, value in found.items())
    raise InvalidInput(f"{message} at index {index}: {where}")


def broadcast_shape(**named: Array) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*(tuple(a.shape) for a in named.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {tuple(a.shape)}" for name, a in named.items())
        raise InvalidInput(f"shapes do not fit together: {shapes}") from None


@dataclass(frozen=True)
class Differences:
    """Bounds ``lower[..., j, k] <= x_j - x_k <= upper[..., j, k]``."""

    lower: Array
    upper: Array

    def columns(self, reference: Array) -> tuple[Array, Array]:
        """Bounds on ``x_j - x_r`` for one reference index per leading position: two arrays ``[..., K]``."""
        return pick(self.lower, reference[..., None]), pick(self.upper, reference[..., None])


@dataclass(frozen=True)
class Box:
    """``lower <= x <= upper`` along the last axis, any leading dimensions; build it with ``make_box``.

    Entries are finite and shifted by one constant per box, which softmax does not see: ``shift`` keeps
    differences of large logits from losing digits later. ``masked`` marks logits of -inf (None: there are none).
    """

    lower: Array
    upper: Array
    shift: Array
    masked: Array | None = None
    differences: Differences | None = None

    @property
    def size(self) -> int:
        return int(self.lower.shape[-1])

    @cached_property
    def midpoint(self) -> Array:
        """The midpoint, moved by a rounding error to where it is a number in the caller's coordinates, too."""
        there = self.lower + self.half_width + self.shift
        return clip(there - self.shift, self.lower, self.upper)

    @cached_property
    def half_width(self) -> Array:
        return (self.upper - self.lower) / 2

    def without_differences(self) -> Box:
        return Box(self.lower, self.upper, self.shift, self.masked)

    def place(self, x: Array) -> Array:
        """A point in the coordinates of this box; masked entries take their stand-in."""
        xp = namespace(x)
        if self.masked is not None:
            x = xp.where(self.masked, xp.zeros_like(x), x)
        x = x - self.shift
        return x if self.masked is None else xp.where(self.masked, self.lower, x)


def make_box(lower: Array, upper: Array, differences: tuple[Any, Any] | None = None) -> Box:
    """A validated box. A logit of -inf on both sides is a masked token of probability 0."""
    named = {"lower": lower, "upper": upper}
    if differences is not None:
        if not isinstance(differences, list | tuple) or len(differences) != 2:
            raise InvalidInput("differences must be a pair (lower, upper) of arrays [..., j, k] bounding x_j - x_k")
        named |= {"differences[0]": differences[0], "differences[1]": differences[1]}
    arrays = as_arrays(**named)
    lower, upper = arrays["lower"], arrays["upper"]
    xp = namespace(lower)
    shape = broadcast_shape(lower=lower, upper=upper)
    if not shape or shape[-1] == 0:
        raise InvalidInput(f"lower and upper need at least one logit on the last axis, got shape {shape}")
    lower, upper = xp.broadcast_to(lower, shape), xp.broadcast_to(upper, shape)
    refuse(xp.isnan(lower) | xp.isnan(upper), "NaN in the box", lower=lower, upper=upper)
    refuse(lower > upper, "lower > upper", lower=lower, upper=upper)
    masked = upper == -xp.inf
    refuse(
        (xp.isinf(lower) | xp.isinf(upper)) & ~masked,
        "infinite bound (only -inf on both sides, a masked logit, is allowed)",
        lower=lower,
        upper=upper,
    )
    some_masked: Array | None = masked
    if not is_traced(masked) and not bool(xp.any(masked)):
        some_masked = None
    else:
        refuse(xp.all(masked, axis=-1), "every logit is masked")
        bottom = xp.min(xp.where(masked, xp.inf, lower), axis=-1, keepdims=True) - MASKED_GAP
        lower, upper = xp.where(masked, bottom, lower), xp.where(masked, bottom, upper)
    middle = lower + (upper - lower) / 2
    shift = xp.max(middle, axis=-1, keepdims=True)
    box = Box(lower - shift, upper - shift, shift, some_masked)
    if differences is None:
        return box
    known = _make_differences(box, arrays["differences[0]"], arrays["differences[1]"])
    return Box(box.lower, box.upper, box.shift, box.masked, known)


def _make_differences(box: Box, low: Array, high: Array) -> Differences:
    """The given difference bounds, intersected with their own transposes and with the box."""
    xp = namespace(low)
    K = box.size
    for name, array in (("differences[0]", low), ("differences[1]", high)):
        if len(array.shape) < 2 or array.shape[-2:] != (K, K):
            raise InvalidInput(f"{name} must have shape (..., {K}, {K}), got {tuple(array.shape)}")
    box_low = box.lower[..., :, None] - box.upper[..., None, :]
    box_high = box.upper[..., :, None] - box.lower[..., None, :]
    diagonal = xp.eye(K, dtype=low.dtype, device=device(low)) > 0
    free = diagonal
    if box.masked is not None:  # differences with a masked logit are infinite; its stand-in speaks for it
        free = free | box.masked[..., :, None] | box.masked[..., None, :]
    low, high = xp.where(free, -xp.inf, low), xp.where(free, xp.inf, high)
    refuse(xp.isnan(low) | xp.isnan(high), "NaN in differences", lower=low, upper=high)
    low = maximum(maximum(low, -xp.matrix_transpose(high)), box_low)
    high = minimum(minimum(high, -xp.matrix_transpose(low)), box_high)
    zero = xp.zeros_like(low)
    low, high = xp.where(diagonal, zero, low), xp.where(diagonal, zero, high)
    refuse(low > high, "differences contradict each other or the box", lower=low, upper=high)
    return Differences(low, high)


def place_inside(box: Box, at: Array, name: str = "at") -> Array:
    """A validated point of the box in its coordinates (default of callers: the midpoint)."""
    xp = namespace(box.lower)
    at = as_arrays(**{name: at, "lower": box.lower})[name]
    if not len(at.shape) or at.shape[-1] != box.size:
        raise InvalidInput(f"{name} must have {box.size} entries on its last axis, got shape {tuple(at.shape)}")
    broadcast_shape(**{name: at, "lower": box.lower})
    placed = box.place(at)
    lower, upper = box.lower + box.shift, box.upper + box.shift
    refuse(xp.isnan(placed), f"NaN in {name}", **{name: at})
    # Rounding of the shift is allowed for: one unit in the last place of the numbers involved.
    slack = xp.finfo(at.dtype).eps * 2 * (xp.abs(box.lower) + xp.abs(box.upper) + xp.abs(box.shift))
    outside = (placed < box.lower - slack) | (placed > box.upper + slack)
    refuse(outside, f"{name} lies outside the box", **{name: at, "lower": lower, "upper": upper})
    return xp.minimum(xp.maximum(placed, box.lower), box.upper)


def masked_out(box: Box, array: Array) -> Array:
    """Zero where the logit is masked: a masked output has probability 0, a masked input no influence."""
    if box.masked is None:
        return array
    xp = namespace(array)
    return xp.where(box.masked, xp.zeros_like(array), array)
