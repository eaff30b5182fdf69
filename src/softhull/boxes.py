"""The set of softmax inputs a bound speaks about: a box, and bounds on differences where they are known."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ._arrays import Array, clip, device, is_traced, maximum, minimum, namespace, pick
from .errors import InvalidInput

# exp(-MASKED_GAP) is zero in every floating-point format, so a logit this far below all others drops out of every sum,
# without infinities that turn into NaN in differences.
MASKED_GAP = 4000.0
# Ends of a box that is too large to compute with are moved to this distance from its largest lower end. The range of
# softmax over it stays the same in every floating-point format: all that is moved is further than MASKED_GAP from
# what it is compared with.
FAR = 9000.0


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
        if xp.finfo(value.dtype).bits > 64:
            raise InvalidInput(f"{name} must have at most 64 bits, not {value.dtype}; convert it first")
    dtype = xp.result_type(*given.values())
    return {name: xp.astype(value, dtype, copy=False) for name, value in given.items()}


def as_index(value: Any, name: str) -> int:
    """A whole number given as one; 0.9 and True are mistakes, not indices."""
    try:
        if isinstance(value, bool | np.bool_) or "bool" in str(getattr(value, "dtype", "")):
            raise TypeError
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"{name} must be whole numbers, got {value!r}") from None


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
    """The common shape of named arrays, or an error that names those that do not fit together."""
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
    differences of large logits from losing digits later. ``masked`` marks logits without influence, which a stand-in
    far below the others takes the place of; ``remote`` marks those of them whose probability is not exactly 0.
    ``huge [..., 1]`` marks boxes too large to compute with, and those of a logit alone: their ends are moved, and only
    the range of softmax over them is right. None: there are none. ``modest``: no end is so large that anything could
    overflow.
    """

    lower: Array
    upper: Array
    shift: Array
    masked: Array | None = None
    differences: Differences | None = None
    remote: Array | None = None
    huge: Array | None = None
    modest: bool = True

    @property
    def size(self) -> int:
        """The number of logits K."""
        return int(self.lower.shape[-1])

    @cached_property
    def midpoint(self) -> Array:
        """The midpoint, moved by a rounding error to where it is a number in the caller's coordinates, too."""
        middle = self.lower + self.half_width
        there = clip(self.given(middle) - self.shift, self.lower, self.upper)
        return there if self.ignored is None else namespace(middle).where(self.ignored, middle, there)

    @cached_property
    def half_width(self) -> Array:
        """Half the width of every interval."""
        return (self.upper - self.lower) / 2

    def without_differences(self) -> Box:
        """The box alone, with no further bounds on differences of logits."""
        return replace(self, differences=None)

    @property
    def ignored(self) -> Array | None:
        """The logits that no plane over this box depends on."""
        if self.huge is None:
            return self.masked
        return self.huge | (namespace(self.lower).zeros_like(self.lower) > 0 if self.masked is None else self.masked)

    def place(self, x: Array) -> Array:
        """A point in the coordinates of this box; masked entries take their stand-in, as all do in a huge box."""
        xp = namespace(x)
        if self.ignored is not None:
            x = xp.where(self.ignored, self.shift, x)
        x = x - self.shift
        return x if self.ignored is None else xp.where(self.ignored, self.lower, x)

    def given(self, x: Array) -> Array:
        """A point of this box in the caller's coordinates; what no plane depends on is moved, and might overflow."""
        xp = namespace(x)
        return (x if self.ignored is None else xp.where(self.ignored, xp.zeros_like(x), x)) + self.shift


def make_box(lower: Array, upper: Array, differences: tuple[Any, Any] | None = None, of_any_size: bool = False) -> Box:
    """A validated box. A logit of -inf on both sides is a masked token of probability 0.

    A box too large to compute with is refused, unless the caller minds ``remote`` and ``huge``: ``of_any_size``.
    """
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
    refuse(xp.all(masked, axis=-1), "every logit is masked")
    box = _near_zero(lower, upper, masked, of_any_size)
    if differences is None:
        return box
    return replace(box, differences=_make_differences(box, arrays["differences[0]"], arrays["differences[1]"]))


def _near_zero(lower: Array, upper: Array, masked: Array, of_any_size: bool) -> Box:
    """The box shifted by its largest midpoint, or by its largest lower end where it is huge."""
    xp = namespace(lower)
    largest = float(xp.finfo(lower.dtype).max)
    size = xp.where(masked, xp.zeros_like(lower), xp.maximum(upper, -lower))
    floor = xp.max(lower, axis=-1, keepdims=True)  # at least one logit is never below it
    # With ends below this power no product of what is computed from them comes near the largest number; in 16 bits
    # every number is near it, or near 1.
    short = xp.finfo(lower.dtype).bits < 32
    modest = not (is_traced(size) or short or bool(xp.any(size > largest**0.1)))
    absent, remote, huge = masked, None, None
    if not modest:
        if of_any_size:
            remote = _if_any(~masked & (upper / 2 + MASKED_GAP / 2 < floor / 2))
            absent = masked if remote is None else masked | remote
        # With ends below this one their squares do not overflow; slopes that do are seen when they are there.
        huge = _if_any(xp.any(~absent & (size > largest**0.4), axis=-1, keepdims=True))
        if huge is not None and not of_any_size:
            refuse(huge & ~absent, "logits too large to compute with", lower=lower, upper=upper)
    some = _if_any(absent)
    # A logit alone has all the probability, wherever it is.
    alone = xp.zeros_like(masked) if some is None else xp.count_nonzero(~some, axis=-1, keepdims=True) == 1
    if some is not None and of_any_size:
        huge = _if_any(alone if huge is None else alone | huge)
    low, high = lower, upper
    if some is not None:
        low, high = (xp.where(some, floor, end) for end in (low, high))
    if huge is not None:
        low, high = (xp.where(huge, floor, end) for end in (low, high))
    shift = xp.max(low + (high - low) / 2, axis=-1, keepdims=True)
    low, high = low - shift, high - shift
    if huge is not None:
        far_low, far_high = (2 * clip(end / 2 - floor / 2, -FAR / 2, FAR / 2) for end in (lower, upper))
        moved = huge & ~absent & ~alone
        low, high = xp.where(moved, far_low, low), xp.where(moved, far_high, high)
    if some is not None:
        # The gap is at least as large as the numbers it is added to: they cannot absorb it.
        bottom = 2 * xp.min(low, axis=-1, keepdims=True) - MASKED_GAP
        low, high = xp.where(some, bottom, low), xp.where(some, bottom, high)
    return Box(low, high, shift, some, None, remote, huge, modest)


def _if_any(mask: Array) -> Array | None:
    return mask if is_traced(mask) or bool(namespace(mask).any(mask)) else None


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
    if box.huge is not None:  # its ends are moved: differences cannot be compared with them
        free = free | box.huge[..., None]
    low, high = xp.where(free, -xp.inf, low), xp.where(free, xp.inf, high)
    refuse(xp.isnan(low) | xp.isnan(high), "NaN in differences", lower=low, upper=high)
    low = maximum(maximum(low, -xp.matrix_transpose(high)), box_low)
    high = minimum(minimum(high, -xp.matrix_transpose(low)), box_high)
    zero = xp.zeros_like(low)
    low, high = xp.where(diagonal, zero, low), xp.where(diagonal, zero, high)
    refuse(low > high, "differences contradict each other or the box", lower=low, upper=high)
    return Differences(low, high)


def place_inside(box: Box, at: Array, lower: Array, upper: Array, name: str = "at") -> Array:
    """A validated point of the box, made of ``lower`` and ``upper``, in its coordinates."""
    xp = namespace(box.lower)
    arrays = as_arrays(**{name: at, "lower": lower, "upper": upper})
    at, lower, upper = arrays[name], arrays["lower"], arrays["upper"]
    if not len(at.shape) or at.shape[-1] != box.size:
        raise InvalidInput(f"{name} must have {box.size} entries on its last axis, got shape {tuple(at.shape)}")
    broadcast_shape(**{name: at, "lower": box.lower})
    placed = box.place(at)
    seen = upper > -xp.inf
    refuse(xp.isnan(at) & seen, f"NaN in {name}", **{name: at})
    # Rounding of the shift is allowed for: one unit in the last place of the numbers involved. Halves do not overflow.
    low, high = (xp.where(seen, end / 2, xp.zeros_like(end)) for end in (lower, upper))
    eps = float(xp.finfo(at.dtype).eps)
    slack = eps * xp.abs(box.lower) + eps * xp.abs(box.upper) + eps * xp.abs(box.shift)
    outside = ((at / 2 < low - slack) | (at / 2 > high + slack)) & seen
    refuse(outside, f"{name} lies outside the box", **{name: at, "lower": lower, "upper": upper})
    return clip(placed, box.lower, box.upper)


def masked_out(box: Box, array: Array) -> Array:
    """Zero where the logit is masked: a masked output has probability 0, a masked input no influence."""
    if box.masked is None:
        return array
    xp = namespace(array)
    return xp.where(box.masked, xp.zeros_like(array), array)
