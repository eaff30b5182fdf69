"""The limit no bound can pass: the convex or concave envelope of one softmax output at a point of a box.

The convex envelope at ``x`` is the least mean of the function over all weightings of points of the box whose centre
is ``x``: a linear program with one column per point. Columns are generated: the dual solution is a plane, the points
where the function lies furthest below it enter, until there are none. Points come from a grid with the vertices
of the box in it, refined around its local minima, so the result is not tied to the grid.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidInput, MissingExtra, SofthullError

LARGEST_SIZE = 5
EXP = 2  # roundings, each half a unit in the last place, of NumPy's exponential of doubles
GRID_NODES = {1: 129, 2: 65, 3: 17, 4: 9, 5: 7}

# In units of the largest deviation of the function from its tangent plane over the grid.
TOLERANCE = 2e-5
ROUNDS = 200
STARTS = 32
HALVINGS = 9


@dataclass(frozen=True)
class Envelope:
    """``value`` lies on the safe side of the envelope: not below the convex one, not above the concave one.

    ``error`` is how far off it can be, as far as the search for better points found out.
    """

    value: float
    error: float
    columns: int


def softmax_envelope(lower: Any, upper: Any, at: Any = None, output: int = 0, concave: bool = False) -> Envelope:
    """The envelope of softmax output ``output`` over a box of at most 5 logits, at ``at`` (default: the midpoint)."""
    lower, upper = (np.asarray(side, dtype=np.float64) for side in (lower, upper))
    if lower.ndim != 1 or lower.shape != upper.shape or not 1 <= lower.size <= LARGEST_SIZE:
        raise InvalidInput(
            f"the envelope needs one box of 1 to {LARGEST_SIZE} logits, got {lower.shape}, {upper.shape}"
        )
    if not np.all((lower <= upper) & np.isfinite(lower) & np.isfinite(upper)):
        raise InvalidInput(f"the envelope needs a finite box with lower <= upper, got {lower} and {upper}")
    if not 0 <= output < lower.size:
        raise InvalidInput(f"output: there is no output {output} among {lower.size}")
    x = (lower + upper) / 2 if at is None else np.asarray(at, dtype=np.float64)
    if x.shape != lower.shape or not np.all((lower <= x) & (x <= upper)):
        raise InvalidInput(f"at must be a point of the box, got {x}")
    return _Program(lower, upper, x, output, -1.0 if concave else 1.0).solve()


class _Program:
    """Everything in unit coordinates ``z`` in [-1, 1]^K and relative to the tangent plane at the point.

    Affine terms change the envelope by themselves alone; without them, and scaled, the solver's absolute
    tolerances are small against what is sought, however small the probability or the box.
    """

    def __init__(self, lower: np.ndarray, upper: np.ndarray, x: np.ndarray, output: int, sign: float) -> None:
        self.middle, self.radius = (lower + upper) / 2, (upper - lower) / 2
        self.output, self.sign = output, sign
        wide = self.radius > 0
        self.centre = np.clip(np.where(wide, (x - self.middle) / np.where(wide, self.radius, 1.0), 0.0), -1, 1)
        self.scale = 1.0
        p = _softmax(self.middle + self.radius * self.centre)
        self.here = p[output]
        self.slope = self.here * ((np.arange(len(p)) == output) - p) * self.radius
        nodes = np.linspace(-1, 1, GRID_NODES[len(p)])
        axes = [nodes if w else np.zeros(1) for w in wide]
        self.shape = tuple(len(axis) for axis in axes)
        self.grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(p))
        self.spacing = float(nodes[1] - nodes[0])
        self.on_grid = self.deviation(self.grid)
        largest = float(np.max(np.abs(self.on_grid)))
        self.flat = bool(np.all(np.abs(self.on_grid) <= self.rounding(self.grid)))
        if not self.flat:
            self.scale = largest
            self.on_grid = self.on_grid / largest

    def deviation(self, z: np.ndarray) -> np.ndarray:
        p = _softmax(self.middle + self.radius * z)[..., self.output]
        return self.sign * (p - self.here - (z - self.centre) @ self.slope) / self.scale

    def rounding(self, z: np.ndarray) -> np.ndarray:
        """What a deviation is off by at most; one that is no larger is none.

        A logit is rounded by its product, its sum and the largest one taken from it, four times its size in all, and
        counts above and below the bar; so do exponentials; the sum and the quotient are K more. A slope is made of two
        probabilities, a difference and two products; an inner product of K + 1 operations.
        """
        count = self.centre.size
        share = 8 * float(np.max(np.abs(self.middle) + self.radius)) + 2 * EXP + count
        p = _softmax(self.middle + self.radius * z)[..., self.output]
        along = self.here * (np.abs(z - self.centre) @ self.radius)
        last = 2  # differences
        parts = (share + last) * (p + self.here) + (2 * share + 3 + count + 1 + last) * along
        return 0.5 * np.finfo(np.float64).eps * parts

    def solve(self) -> Envelope:
        """The value of the envelope at the centre, by column generation over the grid."""
        if self.flat:
            return Envelope(float(self.here), 0.0, 1)
        master = _Master(self.centre)
        corners = np.all(np.abs(self.grid) == np.max(np.abs(self.grid), axis=0), axis=-1)
        first = np.concatenate([self.grid[corners], self.centre[None]])
        master.add(first, self.deviation(first))
        for _ in range(ROUNDS):
            value, plane = master.solve()
            points, reduced = self.furthest_below(plane)
            least = float(np.min(reduced))
            if least > -TOLERANCE:
                break
            useful = reduced < -TOLERANCE / 2
            master.add(points[useful], self.deviation(points[useful]))
        error = max(0.0, -least)
        return Envelope(float(self.here + self.sign * self.scale * value), self.scale * error, master.columns)

    def furthest_below(self, plane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Local minima of function minus plane: those of the grid, refined by halving steps to all neighbours."""
        reduced = self.on_grid - plane[0] - self.grid @ plane[1:]
        starts = np.flatnonzero(_local_minima(reduced.reshape(self.shape)))
        starts = starts[np.argsort(reduced[starts], kind="stable")[:STARTS]]
        points = self.grid[starts]
        steps = np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=points.shape[1]))) * (self.radius > 0)
        step = self.spacing
        for _ in range(HALVINGS):
            step /= 2
            around = np.clip(points[:, None, :] + step * steps, -1, 1)
            values = self.deviation(around) - plane[0] - around @ plane[1:]
            best = np.argmin(values, axis=1)
            points = around[np.arange(len(points)), best]
        points = np.unique(np.concatenate([points, self.grid[starts]]), axis=0)
        return points, self.deviation(points) - plane[0] - points @ plane[1:]


class _Master:
    """min c.w over weights w >= 0 with sum 1 and centre given; HiGHS, warm-started from round to round."""

    def __init__(self, centre: np.ndarray) -> None:
        try:
            import highspy
        except ImportError:
            raise MissingExtra("the exact envelope needs HiGHS: pip install 'softhull[lp]'") from None
        self.optimal = highspy.HighsModelStatus.kOptimal
        self.highs = highspy.Highs()
        options = {
            "output_flag": False,
            "threads": 1,
            "presolve": "off",
            "primal_feasibility_tolerance": 1e-10,
            "dual_feasibility_tolerance": 1e-10,
        }
        for name, setting in options.items():
            self.highs.setOptionValue(name, setting)
        target = np.concatenate([[1.0], centre])
        none, no_index = np.zeros(0), np.zeros(0, dtype=np.int32)
        start = np.zeros(len(target), dtype=np.int32)
        self.highs.addRows(len(target), target, target, 0, start, no_index, none)
        self.rows = len(target)
        self.columns = 0

    def add(self, points: np.ndarray, costs: np.ndarray) -> None:
        count = len(points)
        entries = np.concatenate([np.ones((count, 1)), points], axis=1)
        starts = np.arange(count, dtype=np.int32) * self.rows
        index = np.tile(np.arange(self.rows, dtype=np.int32), count)
        least, most = np.zeros(count), np.full(count, np.inf)
        self.highs.addCols(count, costs, least, most, entries.size, starts, index, entries.ravel())
        self.columns += count

    def solve(self) -> tuple[float, np.ndarray]:
        """The value and the plane: constant first, then slopes."""
        self.highs.run()
        status = self.highs.getModelStatus()
        if status != self.optimal:
            raise SofthullError(f"the envelope's linear program: HiGHS says {self.highs.modelStatusToString(status)}")
        return float(self.highs.getObjectiveValue()), np.asarray(self.highs.getSolution().row_dual)


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return weights / np.sum(weights, axis=-1, keepdims=True)


def _local_minima(values: np.ndarray) -> np.ndarray:
    """Which entries of a grid are no larger than their neighbours along every axis."""
    found = np.ones(values.shape, dtype=bool)
    for axis in range(values.ndim):
        forward = np.diff(values, axis=axis) < 0  # the next one is smaller
        backward = np.diff(values, axis=axis) > 0  # the one before is smaller
        pad = [(0, 0)] * values.ndim
        pad[axis] = (0, 1)
        found &= ~np.pad(forward, pad)
        pad[axis] = (1, 0)
        found &= ~np.pad(backward, pad)
    return found
