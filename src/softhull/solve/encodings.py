"""The softmax bounds in CVXPY's calculus: every constraint is convex by its rules (DCP).

All constraints of an output are stated in units of its smallest probability, the scale on which interior-point solvers
still see the difference between a chord sum and its reciprocal when the output is tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays import sigmoid
from ..bounds.chords import log_chord_slope
from ..bounds.linear import lin_lower, lin_upper
from ..bounds.log_odds import log_odds_range
from ..bounds.lse import log_sigmoid_rise
from ..bounds.questions import softmax_planes
from ..bounds.sigmoid_envelope import concave_envelope
from ..boxes import Box, make_box
from ..errors import InvalidInput, MissingExtra

# Tangents of the concave envelope along the log-odds, between the ends of their range.
ENVELOPE_TANGENTS = 12


def softmax_constraints(
    x: Any,
    p: Any,
    lower: Any,
    upper: Any,
    bound: str = "hull",
    differences: tuple[Any, Any] | None = None,
    below: Sequence[int] | None = None,
    above: Sequence[int] | None = None,
    points: Sequence[Any] | None = None,
) -> list[Any]:
    """Convex constraints that ``p = softmax(x)`` satisfies for every ``x`` between ``lower`` and ``upper``.

    The simplex and the constant bounds are always among them.

    Args:
        x (cvxpy.Expression): The logits, K entries.
        p (cvxpy.Expression): The probabilities, K entries.
        lower (array [K]): Lower ends of the logits.
        upper (array [K]): Upper ends of the logits.
        bound: The name of a bound in ``BOUNDS``, a pair ``"lower/upper"``, or ``"all"`` for the tightest set.
        differences (pair of arrays [K, K]): Bounds on ``x_j - x_k`` at place ``[j, k]``, if you have them.
        below: The outputs to bound from below; all by default.
        above: The outputs to bound from above; all by default.
        points (list of arrays [K]): Where the lower hull, a supremum of planes, is imposed by tangent planes; by
            default at the midpoint of the box.

    Returns:
        A list of CVXPY constraints.
    """
    encoder = Encoder(x, p, lower, upper, differences, points)
    names_below, names_above = _names(bound)
    every = range(encoder.size)
    constraints = [encoder.simplex()]
    for k in every if below is None else below:
        constraints.append(encoder.least(k))
        constraints += [c for name in names_below for c in encoder.lower(name, k)]
    for k in every if above is None else above:
        constraints.append(encoder.most(k))
        constraints += [c for name in names_above for c in encoder.upper(name, k)]
    return constraints


def _names(bound: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if bound == "all":
        return ("hull", "er"), ("hull",)
    first, slash, second = bound.partition("/")
    return (first,), (second if slash else first,)


@dataclass(frozen=True)
class _ChordSum:
    """``scale * sum_j chord(d_j)`` as an affine expression, ``d = x`` or ``x - x_reference``."""

    slopes: np.ndarray
    offset: float

    def expression(self, x: Any) -> Any:
        return self.slopes @ x + self.offset


class Encoder:
    """Constraints for one softmax, output by output and side by side."""

    def __init__(
        self,
        x: Any,
        p: Any,
        lower: Any,
        upper: Any,
        differences: tuple[Any, Any] | None = None,
        points: Sequence[Any] | None = None,
    ) -> None:
        try:
            import cvxpy
        except ImportError:
            raise MissingExtra("this needs CVXPY: pip install 'softhull[conic]'") from None
        self.cp = cvxpy
        lower, upper = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
        if lower.ndim != 1 or tuple(x.shape) != lower.shape or tuple(p.shape) != lower.shape:
            raise InvalidInput(
                f"x {tuple(x.shape)}, p {tuple(p.shape)} and lower {lower.shape} must be vectors of one length"
            )
        self.x, self.p = x, p
        self.low, self.high, self.differences = lower, upper, differences
        self.points = [(lower + upper) / 2] if points is None else [np.clip(q, lower, upper) for q in points]
        self.box: Box = make_box(lower, upper, differences)
        self.size = len(lower)
        lowest, highest = log_odds_range(self.box)
        self.lowest, self.highest = np.asarray(lowest), np.asarray(highest)
        self.smallest, self.largest = sigmoid(self.lowest), sigmoid(self.highest)
        # Powers of two, so that scaling changes no digit; never so small that the scaled rows overflow.
        self.unit = 2.0 ** np.floor(np.log2(np.maximum(self.smallest, 1e-300)))
        self._log_total: Any = None
        self.logarithmic: set[int] = set()  # constraints on log p_k, whose multipliers are p_k times those on p_k

    def simplex(self) -> Any:
        """Probabilities sum to one."""
        return self.cp.sum(self.p) == 1

    def least(self, k: int) -> Any:
        """Probability k is at least its smallest value over the box."""
        return self.p[k] / self.unit[k] >= self.smallest[k] / self.unit[k]

    def most(self, k: int) -> Any:
        """Probability k is at most its largest value over the box."""
        return self.p[k] <= self.largest[k]

    def lower(self, name: str, k: int) -> list[Any]:
        """The lower bound ``name`` on output ``k``."""
        rules: dict[str, Callable[[int], list[Any]]] = {
            "const": lambda k: [],
            "lin": lambda k: self._plane(lin_lower, k, above=False),
            "er": self._er_lower,
            "lse": lambda k: self._share_lower(k, None) if self.size > 2 else self._lse2_lower(k),
            "lse*": lambda k: self._share_lower(k, int(np.argmax(self.box.midpoint))),
            "lse2": self._lse2_lower,
            "hull": lambda k: self._cuts_below("hull", k),
        }
        if name not in rules:
            raise InvalidInput(f"no lower bound {name!r} in CVXPY; there are: {', '.join(rules)}")
        return rules[name](k)

    def upper(self, name: str, k: int) -> list[Any]:
        """The upper bound ``name`` on output ``k``."""
        rules: dict[str, Callable[[int], list[Any]]] = {
            "const": lambda k: [],
            "lin": lambda k: self._plane(lin_upper, k, above=True),
            "er": self._er_upper,
            "lse": self._lse_upper,
            "hull": self._hull_upper,
        }
        if name not in rules:
            raise InvalidInput(f"no upper bound {name!r} in CVXPY; there are: {', '.join(rules)}")
        return rules[name](k)

    def _interval(self, reference: int) -> tuple[np.ndarray, np.ndarray]:
        """Bounds on ``x_j - x_reference``."""
        if self.box.differences is not None:
            known = self.box.differences
            return np.asarray(known.lower[:, reference]), np.asarray(known.upper[:, reference])
        lower, upper = self.low - self.high[reference], self.high - self.low[reference]
        lower[reference] = upper[reference] = 0.0
        return lower, upper

    def _chords(self, lower: np.ndarray, upper: np.ndarray, reference: int | None, log_scale: float) -> _ChordSum:
        slope = np.exp(log_chord_slope(lower, upper) + log_scale)
        offset = float((np.exp(lower + log_scale) - slope * lower).sum())
        if reference is not None:
            offset += float(
                np.exp(log_scale) - np.exp(lower[reference] + log_scale) + slope[reference] * lower[reference]
            )
            slope[reference] = 0.0
            slope[reference] = -slope.sum()
        return _ChordSum(slope, offset)

    def _er_lower(self, k: int) -> list[Any]:
        lower, upper = self._interval(k)
        total = self._chords(lower, upper, k, float(np.log(self.unit[k])))
        return [self.cp.inv_pos(total.expression(self.x)) <= self.p[k] / self.unit[k]]

    def _share_lower(self, k: int, reference: int | None) -> list[Any]:
        """``p_k >= e^{d_k} / chords`` as ``log p_k + log chords >= d_k``."""
        if reference is None:
            shift = float(self.high.max())
            total = self._chords(self.low - shift, self.high - shift, None, 0.0)
            total = _ChordSum(total.slopes, total.offset - float(total.slopes.sum()) * shift)
            own = self.x[k] - shift
        else:
            lower, upper = self._interval(reference)
            total = self._chords(lower, upper, reference, 0.0)
            own = self.x[k] - self.x[reference]
        log_unit = float(np.log(self.unit[k]))
        constraint = self.cp.log(self.p[k] / self.unit[k]) + self.cp.log(total.expression(self.x)) >= own - log_unit
        self.logarithmic.add(constraint.id)
        return [constraint]

    def _lse2_lower(self, k: int) -> list[Any]:
        if self.size != 2:
            raise InvalidInput(f"bound 'lse2' is defined for K = 2 only, not for K = {self.size}; use 'lse'")
        lowest, highest = float(self.lowest[k]), float(self.highest[k])
        gain = float(log_sigmoid_rise(np.float64(lowest), np.float64(highest)))
        rate = gain / (highest - lowest) if highest > lowest else float(sigmoid(np.float64(-lowest)))
        start = float(np.log(self.smallest[k] / self.unit[k]))
        v = self.x[k] - self.x[1 - k]
        return [self.cp.exp(start + rate * (v - lowest)) <= self.p[k] / self.unit[k]]

    def _plane(self, rule: Callable[..., Any], k: int, above: bool) -> list[Any]:
        planes = rule(self.box, self.box.midpoint, None)
        row = np.asarray(planes.rows(k, k + 1))[0]
        value = float(planes.value[k]) - float(row @ (self.box.midpoint + self.box.shift))
        return [self.p[k] <= row @ self.x + value if above else self.p[k] >= row @ self.x + value]

    def _cuts_below(self, name: str, k: int) -> list[Any]:
        constraints = []
        for point in self.points:
            plane = softmax_planes(self.low, self.high, name, at=point, outputs=k, differences=self.differences).lower
            row, offset = plane.dense()
            constraints.append(self.p[k] / self.unit[k] >= (row / self.unit[k]) @ self.x + offset / self.unit[k])
        return constraints

    def _er_upper(self, k: int) -> list[Any]:
        least, most = float(self.smallest[k]), float(self.largest[k])
        rest = [j for j in range(self.size) if j != k]
        total = 1 + self.cp.sum(self.cp.exp(self.x[rest] - self.x[k]))
        return [self.p[k] <= most + least - most * least * total]

    def _total(self) -> Any:
        """One variable above ``log sum exp x``, shared by all outputs."""
        if self._log_total is None:
            variable = self.cp.Variable()
            self._log_total = variable, self.cp.log_sum_exp(self.x) <= variable
        return self._log_total

    def _lse_upper(self, k: int) -> list[Any]:
        least, most = float(self.smallest[k]), float(self.largest[k])
        gain = float(log_sigmoid_rise(self.lowest[k], self.highest[k]))
        steepness = (most - least) / gain if gain > 0 else most
        log_total, constraint = self._total()
        return [constraint, self.p[k] <= least + steepness * (self.x[k] - log_total - float(np.log(least)))]

    def _hull_upper(self, k: int) -> list[Any]:
        """Tangents of the envelope in the log-odds ``v = x_k - LSE(rest)``, which is concave itself."""
        rest = [j for j in range(self.size) if j != k]
        touch = np.linspace(self.lowest[k], self.highest[k], ENVELOPE_TANGENTS)
        values, slopes = concave_envelope(touch, self.lowest[k] + 0 * touch, self.highest[k] + 0 * touch)
        v = self.cp.Variable()
        constraints = [v + self.cp.log_sum_exp(self.x[rest]) <= self.x[k]]
        known: set[tuple[float, float]] = set()
        for t, value, slope in zip(touch, values, slopes):
            line = (float(slope), float(value - slope * t))
            if line not in known:
                known.add(line)
                constraints.append(self.p[k] <= line[0] * v + line[1])
        return constraints
