"""How far every bound is from the limit: its looseness against the exact envelope.

The mean over a box of an affine bound is its value at the midpoint m, and no affine lower bound is higher there than
the convex envelope. So ``(mean p - L(m)) / (mean p - envelope(m))`` is 1 for a bound that leaves nothing to gain, for
planes with every half-width and probability alike; for upper bounds with the signs turned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..bounds.questions import softmax_planes
from ..bounds.table import BOUNDS
from ..errors import InvalidInput
from ..solve.envelope import GRID_NODES, LARGEST_SIZE, softmax_envelope
from ..workers import map_in_processes
from .point import exists_for
from .regions import dirichlet_logits

SIDES = ("lower", "upper")
NARROWEST, WIDEST = 0.01, 8.0
MOST_NODES = 4_000_000

# Values computed on different ways differ in their last digits.
ROUNDING_ULPS = 64
# The tolerance of the linear program, in units of the envelope's own gap.
PROGRAM_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Cell:
    """Regions of one kind: ``high`` says whether output 0 is the one with mean ``mu``."""

    size: int
    half_width: float
    mu: float
    high: bool
    equal: bool  # half-widths all equal to the nominal one, or uniform in .5 to 1 of it


@dataclass(frozen=True)
class CellResult:
    """Looseness ``[region]`` of every bound in one cell, by side and name; ``broken`` are sentences."""

    cell: Cell
    looseness: dict[str, dict[str, list[float]]]
    envelope_error: float  # the largest, relative to the gap of the envelope
    broken: list[str]

    def mean(self, side: str, name: str) -> float:
        """The mean looseness of one bound from one side."""
        return float(np.mean(self.looseness[side][name]))


@dataclass(frozen=True)
class Summary:
    """Over the cells in which a bound exists: the mean of the cells, the worst cell, the worst region."""

    mean: float
    worst_cell: float
    worst_region: float


@dataclass(frozen=True)
class _Task:
    cell: Cell
    regions: int
    seed: tuple[int, ...]


@dataclass
class TightnessStudy:
    """All cells computed so far, in the order they were asked for."""

    cells: Sequence[Cell]
    regions: int
    seed: int
    results: dict[int, CellResult] = field(default_factory=dict)

    def run(self, workers: int = 1) -> Iterator[CellResult]:
        """Compute every cell; what has been yielded is kept, whatever happens later."""
        tasks = [_Task(cell, self.regions, (self.seed, position)) for position, cell in enumerate(self.cells)]
        for position, result in map_in_processes(_measure, tasks, workers):
            self.results[position] = result
            yield result

    @property
    def done(self) -> list[CellResult]:
        """The finished cells, in order."""
        return [self.results[position] for position in sorted(self.results)]

    @property
    def broken(self) -> list[str]:
        """Statements that must hold in every region and did not."""
        return [sentence for result in self.done for sentence in result.broken]

    @property
    def regions_checked(self) -> int:
        """How many boxes were measured so far."""
        return self.regions * len(self.results)

    @property
    def envelope_error(self) -> float:
        """The largest error of an exact envelope so far; NaN before the first."""
        return max((result.envelope_error for result in self.done), default=math.nan)

    def summary(self, side: str, equal: bool) -> dict[str, Summary]:
        """One line per bound of the table that has this side in some cell."""
        chosen = [result.looseness[side] for result in self.done if result.cell.equal == equal]
        found = {}
        for name in BOUNDS:
            regions = [looseness[name] for looseness in chosen if name in looseness]
            if regions:
                means = [float(np.mean(values)) for values in regions]
                found[name] = Summary(float(np.mean(means)), max(means), max(map(max, regions)))
        return found


def tightness_cells(
    sizes: Sequence[int] = (2, 3, 4),
    half_widths: Sequence[float] = (0.2, 1.0, 2.0),
    mus: Sequence[float] = (0.5, 0.8, 0.95),
    equal: Iterable[bool] = (True, False),
) -> list[Cell]:
    """All combinations, validated."""
    for size in sizes:
        if not 2 <= size <= LARGEST_SIZE:
            raise InvalidInput(f"k: the exact envelope is computed for 2 to {LARGEST_SIZE} logits, not for {size}")
    for half_width in half_widths:
        if not NARROWEST <= half_width <= WIDEST:
            raise InvalidInput(f"half-width must be between {NARROWEST:g} and {WIDEST:g}, not {half_width:g}")
    for size in sizes:
        _nodes(size, max(half_widths))
        for mu in mus:
            if not 1 / size <= mu < 1:
                raise InvalidInput(f"mu must be at least 1/K and below 1; for K = {size} got {mu:g}")
    return [
        Cell(size, half_width, mu, high, same)
        for same in equal
        for size in sizes
        for half_width in half_widths
        for mu in mus
        for high in (True, False)
    ]


def grid_description(sizes: Iterable[int]) -> str:
    """What the envelope was computed on, for the reader of its value."""
    grids = ", ".join(f"{GRID_NODES[size]}^{size} points for K = {size}" for size in sorted(set(sizes)))
    return f"column generation on grids of {grids}, vertices included, refined around their local minima"


def _measure(task: _Task) -> CellResult:
    """One cell: random boxes, the looseness of every bound at their midpoints, and any bound that is violated."""
    cell = task.cell
    rng = np.random.default_rng(task.seed)
    middle = dirichlet_logits(rng, task.regions, cell.size, cell.mu, cell.high)
    shares = np.ones_like(middle) if cell.equal else rng.uniform(0.5, 1.0, size=middle.shape)
    lower, upper = middle - cell.half_width * shares, middle + cell.half_width * shares
    means = np.array([mean_probability(*box) for box in zip(lower, upper)])
    values = _values_at_midpoint(lower, upper)
    looseness: dict[str, dict[str, list[float]]] = {}
    broken: list[str] = []
    worst_error = 0.0
    for side, sign in zip(SIDES, (1.0, -1.0)):
        limits = [softmax_envelope(*box, concave=side == "upper") for box in zip(lower, upper)]
        envelope = np.array([limit.value for limit in limits])
        least_gap = sign * (means - envelope)
        worst_error = max(worst_error, float(np.max([limit.error for limit in limits] / least_gap)))
        ratios = {name: sign * (means - value) / least_gap for name, value in values[side].items()}
        looseness[side] = {name: [float(ratio) for ratio in row] for name, row in ratios.items()}
        broken += _broken(cell, side, sign, values[side], envelope, least_gap)
    return CellResult(cell, looseness, worst_error, broken)


def _values_at_midpoint(lower: np.ndarray, upper: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """By side and bound, the values of the planes of output 0 at the midpoints."""
    found: dict[str, dict[str, np.ndarray]] = {side: {} for side in SIDES}
    size = lower.shape[-1]
    for name, bound in BOUNDS.items():
        if not any(exists_for(side, size) for side in (bound.lower, bound.upper)):
            continue
        planes = softmax_planes(lower, upper, name, outputs=0)
        for side in SIDES:
            if getattr(planes, side) is not None:
                found[side][name] = getattr(planes, side).value
    return found


def _broken(
    cell: Cell, side: str, sign: float, values: dict[str, np.ndarray], envelope: np.ndarray, least_gap: np.ndarray
) -> list[str]:
    """What must hold at every midpoint: no bound passes the envelope, and none is tighter than the hull."""
    rounding = ROUNDING_ULPS * np.finfo(np.float64).eps * envelope
    limits = {
        "passes the envelope": (envelope, rounding + PROGRAM_TOLERANCE * least_gap),
        "is tighter than hull": (values["hull"], rounding),
    }
    return [
        f"{name} {side} {what} by {excess[region]:.3g} in region {region} of {cell}"
        for name, value in values.items()
        for what, (limit, slack) in limits.items()
        for excess in [sign * (value - limit)]
        for region in np.flatnonzero(~(excess <= slack))
    ]


def mean_probability(lower: np.ndarray, upper: np.ndarray) -> float:
    """The mean of softmax output 0 over a box, by Gauss-Legendre quadrature to about ten digits."""
    size = len(lower)
    nodes, weights = np.polynomial.legendre.leggauss(_nodes(size, float(np.max(upper - lower)) / 2))
    weights = weights / 2
    total = np.zeros(())
    joint = np.ones(())
    for j in range(size):
        shape = [1] * size
        shape[j] = -1
        logit = (lower[j] + upper[j]) / 2 + (upper[j] - lower[j]) / 2 * nodes
        joint = joint * weights.reshape(shape)
        if j > 0:
            total = total + np.exp(logit - lower[0]).reshape(shape)
        else:
            own = np.exp(logit - lower[0]).reshape(shape)
    return float(np.sum(joint * (own / (own + total))))


def _nodes(size: int, half_width: float) -> int:
    """Nodes per axis: the logistic function is analytic up to a distance of pi from the axis."""
    nodes = 10 + 4 * math.ceil(half_width)
    if nodes**size > MOST_NODES:
        raise InvalidInput(f"half-width {half_width:g} is too large for an exact mean over {size} logits")
    return nodes
