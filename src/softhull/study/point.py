"""Every bound of the table at one point of one box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bounds.questions import softmax_bounds
from ..bounds.table import BOUNDS, Bound, Side
from ..errors import InvalidInput


@dataclass(frozen=True)
class SideAtPoint:
    """One side of a bound at the point; ``gap`` is its distance to the probability, never negative but for rounding."""

    value: float
    gap: float
    curvature: str
    equation: str


@dataclass(frozen=True)
class BoundAtPoint:
    """A row of the table of bounds at the point; a side the bound does not have there is None."""

    name: str
    summary: str
    lower: SideAtPoint | None
    upper: SideAtPoint | None


@dataclass(frozen=True)
class PointStudy:
    """What every bound says about output ``output`` of softmax at ``x``."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    x: tuple[float, ...]
    output: int
    probability: float
    bounds: tuple[BoundAtPoint, ...]


def bounds_at_point(
    lower: Any,
    upper: Any,
    at: Any = None,
    output: int = 0,
    table: Mapping[str, Bound] = BOUNDS,
) -> PointStudy:
    """The value of every bound on one softmax output at ``at`` (default: the midpoint of the box)."""
    lower, upper = (np.asarray(side, dtype=np.float64) for side in (lower, upper))
    if lower.ndim != 1 or lower.shape != upper.shape:
        raise InvalidInput(f"lower has {lower.size} entries and upper has {upper.size}; they need one per logit each")
    # Halves first: the midpoint of two huge numbers must not overflow; a masked logit stays -inf.
    x = lower / 2 + upper / 2 if at is None else np.asarray(at, dtype=np.float64)
    # The constant bound validates the box, the point and the output for all the others.
    softmax_bounds(x, lower, upper, "const", outputs=output)
    output %= len(lower)
    shifted = np.exp(x - np.max(x))
    probability = float(shifted[output] / np.sum(shifted))
    rows = []
    for name, bound in table.items():
        if not any(exists_for(side, len(lower)) for side in (bound.lower, bound.upper)):
            rows.append(BoundAtPoint(name, bound.summary, None, None))
            continue
        low, high = softmax_bounds(x, lower, upper, name, outputs=output)
        rows.append(
            BoundAtPoint(
                name,
                bound.summary,
                _side(bound.lower, low, lambda value: probability - value),
                _side(bound.upper, high, lambda value: value - probability),
            )
        )
    ends = [tuple(float(entry) for entry in array) for array in (lower, upper, x)]
    return PointStudy(ends[0], ends[1], ends[2], output, probability, tuple(rows))


def exists_for(side: Side | None, size: int) -> bool:
    """Whether a bound has this side for softmax of ``size`` logits."""
    return side is not None and (size == 1 or side.only_for in (None, size))


def _side(side: Side | None, value: Any, gap: Any) -> SideAtPoint | None:
    if side is None or value is None:
        return None
    number = float(value)
    return SideAtPoint(number, float(gap(number)), side.curvature.value, side.equation)
