"""What rounding may cost a softmax bound, in one place.

A computed plane is, up to relative errors of its value and of its slopes, a plane that is sound for a box whose ends
are off by rounding. Exponents are as large as the box is wide, so the relative errors are a few units times that
width, plus one unit for every logit added up; the anchor and the ends of the box are off by a few units of it. A plane
with slopes g then moves by at most those shares of

    (the absolute values of the terms that make its value) + sum_j |g_j| (1 + reach_j),

where reach_j is how far a point of the box can be from the anchor. With outward rounding the value is moved by that.
"""

from __future__ import annotations

from typing import Any

from .._arrays import Array, clip, constant, maximum, namespace
from ..boxes import Box
from ..errors import InvalidInput
from .planes import Planes, RowPlanes

ROUNDINGS = ("outward", "nearest")
# Units in the last place of the value, per unit of width of the exponents; a few operations make an exponent, and the
# library functions of the frameworks are accurate to a few units themselves.
PER_EXPONENT = 32
PER_LOGIT = 4


def check_rounding(rounding: str) -> None:
    """Raise InvalidInput for a mode that does not exist."""
    if rounding not in ROUNDINGS:
        raise InvalidInput(f"unknown rounding {rounding!r}; choose outward or nearest")


def relative_error(box: Box) -> Array:
    """An upper bound ``[..., 1]`` on the relative error of what is computed from the exponentials of a box."""
    xp = namespace(box.lower)
    lower, upper = box.lower, box.upper
    if box.masked is not None:
        lower, upper = xp.where(box.masked, xp.inf, lower), xp.where(box.masked, -xp.inf, upper)
    width = xp.max(upper, axis=-1, keepdims=True) - xp.min(lower, axis=-1, keepdims=True)
    unit = 0.5 * float(xp.finfo(lower.dtype).eps)
    return constant(unit * PER_EXPONENT * (2 + width) + unit * PER_LOGIT * box.size)


def move_outward(planes: Planes, box: Box, from_below: bool, everywhere: bool, flat: bool) -> Any:
    """The planes moved by what rounding may cost: at their anchor alone, or ``everywhere`` in the box.

    A ``flat`` bound is a probability, and stays one.
    """
    xp = namespace(planes.value)
    size = xp.abs(planes.value) if planes.terms is None else planes.terms
    tiny = float(xp.finfo(planes.value.dtype).smallest_normal)
    lost = tiny * (8 + box.size) + 0 * size
    if everywhere:
        reach = maximum(box.upper - planes.at, planes.at - box.lower)
        lost = lost + tiny * xp.sum(reach, axis=-1, keepdims=True)
        size = size + (planes.slopes if isinstance(planes, RowPlanes) else planes.size_within(1 + reach))
    slack = constant(relative_error(box) * size + lost)
    if from_below:
        moved = planes.value - slack
        return planes.at_value(maximum(moved, 0.0) if flat else moved, -1)
    moved = planes.value + slack
    return planes.at_value(clip(moved, 0.0, 1.0) if flat else moved, 1)
