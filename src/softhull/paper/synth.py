"""Section 6 of Wei et al. 2023 and its appendix: mean gaps of all bounds on synthetic input regions.

Every curve comes from the table of bounds; whatever the table holds beyond the paper appears beside the paper's.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..bounds.questions import softmax_bounds, softmax_planes
from ..bounds.table import BOUNDS, Bound, Curvature, Exactness, Side, find_bound
from ..errors import InvalidInput
from ..study.point import exists_for
from ..study.regions import dirichlet_logits
from ..workers import map_in_processes

SIZES = (2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
WIDTHS = (1.0, 0.2, 2.0)
MEANS = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)
SIDES = ("lower", "upper")
BOX_MEAN = {True: 0.8, False: 0.99}  # the paper's box plots, high and low

# Entries per array: large enough for NumPy, small enough for the processor's cache.
CHUNK = 200_000
# A bound that iterates costs several times the others; the first of the points are enough for its mean.
ITERATED_POINTS = 250

Key = tuple[str, str, bool]  # name, side, linearised


def box_partner(side: str, high: bool, size: int) -> str:
    """The bound the paper compares ER with; for K = 2 its special LSE bound, which is what ``lse`` is there."""
    return "lse*" if side == "lower" and not high and size > 2 else "lse"


@dataclass(frozen=True)
class Setting:
    """Regions of one kind: ``size`` logits, boxes of one half-width, largest mean ``mu``, on output 0 (high) or not."""

    size: int
    half_width: float
    mu: float
    high: bool


@dataclass(frozen=True)
class _Task:
    setting: Setting
    bounds: tuple[str, ...]
    regions: int
    points: int
    seed: tuple[int, ...]


Gaps = dict[Key, np.ndarray]  # mean gap of every region


def measure(task: _Task) -> Gaps:
    """Mean gaps ``[region]`` of the asked bounds, as functions and as tangent planes at the midpoint."""
    setting, size = task.setting, task.setting.size
    rng = np.random.default_rng(task.seed)
    middle = dirichlet_logits(rng, task.regions, size, setting.mu, setting.high)
    step = max(1, CHUNK // (task.points * size))
    pieces = []
    for start in range(0, task.regions, step):
        centre = middle[start : start + step, None, :]
        x = rng.uniform(-setting.half_width, setting.half_width, (len(centre), task.points, size)) + centre
        pieces.append(_gaps(centre - setting.half_width, centre + setting.half_width, x, task.bounds))
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def _gaps(lower: np.ndarray, upper: np.ndarray, x: np.ndarray, names: Iterable[str]) -> Gaps:
    """Mean gaps between softmax and every bound, as functions and as planes, over sampled points of every box."""
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    probability = weights[..., 0] / np.sum(weights, axis=-1)
    mean_probability, mean_x = np.mean(probability, axis=-1), np.mean(x, axis=1)
    found: Gaps = {}
    for name in names:
        row = find_bound(name)
        below, _, above = name.partition("/")
        planes = softmax_planes(lower[:, 0], upper[:, 0], name, outputs=0)
        # An affine function has at the mean of the points the mean of its values.
        for side, own in (("lower", below), ("upper", above or below)):
            plane = getattr(planes, side)
            if plane is not None:
                sign = 1.0 if side == "lower" else -1.0
                found[own, side, True] = sign * (mean_probability - plane(mean_x))
                if _is_affine(getattr(row, side)):
                    found[own, side, False] = found[own, side, True]
        if all(side is None or _is_affine(side) for side in (row.lower, row.upper)):
            continue
        count = min(ITERATED_POINTS, x.shape[1]) if _iterates(row) else x.shape[1]
        low, high = softmax_bounds(x[:, :count], lower, upper, name, outputs=0)
        if low is not None:
            found[below, "lower", False] = np.mean(probability[:, :count] - low, axis=-1)
        if high is not None:
            found[above or below, "upper", False] = np.mean(high - probability[:, :count], axis=-1)
    return found


def _is_affine(side: Side) -> bool:
    return side is not None and side.curvature in (Curvature.CONSTANT, Curvature.AFFINE)


def _iterates(row: Bound) -> bool:
    return any(side is not None and side.exactness is Exactness.NEAR_ENVELOPE for side in (row.lower, row.upper))


def curves(size: int) -> tuple[str, ...]:
    """The rows of the table with a side for softmax of ``size`` logits; portfolios have no curve of their own."""
    return tuple(
        name
        for name, row in BOUNDS.items()
        if any(exists_for(side, size) and side is not None and not side.parts for side in (row.lower, row.upper))
    )


def beyond_the_paper() -> tuple[str, ...]:
    """The rows that the paper does not have."""
    return tuple(
        name
        for name, row in BOUNDS.items()
        if not any(side and ("Wei et al." in side.equation or side.parts) for side in (row.lower, row.upper))
    )


@dataclass(frozen=True)
class Panel:
    """One panel of a figure; ``name`` is the name of its files."""

    name: str
    side: str
    high: bool
    half_width: float

    @property
    def title(self) -> str:
        """What stands above the panel."""
        return f"{self.side} bounds, {'high' if self.high else 'low'} prob."


@dataclass(frozen=True)
class Sweep(Panel):
    """Mean gaps over mu: divided by the gap of the constant bound (``ratio``) or as they are."""

    size: int
    ratio: bool = True
    linearised: bool = False  # tangent planes beside the functions

    def settings(self) -> list[Setting]:
        """One setting for each mean probability of the panel."""
        means = [1 / self.size, *(mu for mu in MEANS if mu > 1 / self.size)]
        return [Setting(self.size, self.half_width, mu, self.high) for mu in means]


@dataclass(frozen=True)
class Boxes(Panel):
    """Distribution over the regions of the gap of ER divided by the gap of another bound, for many K."""

    sizes: tuple[int, ...] = SIZES

    def partners(self, size: int) -> tuple[str, ...]:
        """The bounds that are compared with ``er`` for this number of logits."""
        return (box_partner(self.side, self.high, size), *beyond_the_paper())

    @property
    def title(self) -> str:
        """What stands above the panel."""
        return f"{self.side}: ER vs. others, {'high' if self.high else 'low'} prob."

    def settings(self) -> list[Setting]:
        """One setting for each number of logits."""
        return [Setting(size, self.half_width, BOX_MEAN[self.high], self.high) for size in self.sizes]


@dataclass(frozen=True)
class FigurePlan:
    """A figure of the paper: panels row by row."""

    name: str
    caption: str
    columns: int
    panels: tuple[Panel, ...]


def figure_plans(sizes: tuple[int, ...] = SIZES) -> list[FigurePlan]:
    """All figures of section 6 and of its appendix."""

    def main(half_width: float) -> tuple[Panel, ...]:
        tag = f"width{half_width:g}"
        panels: list[Panel] = []
        for high in (True, False):
            level = "high" if high else "low"
            for side in ("upper", "lower"):
                panels.append(Sweep(f"{tag}_{side}_{level}", side, high, half_width, 16))
                panels.append(Boxes(f"{tag}_{side}_{level}_boxes", side, high, half_width, sizes))
        return tuple(panels)

    def square(tag: str, ratio: bool, linearised: bool) -> tuple[Panel, ...]:
        return tuple(
            Sweep(f"{tag}_{side}_{'high' if high else 'low'}", side, high, 1.0, 16, ratio, linearised)
            for high in (True, False)
            for side in ("upper", "lower")
        )

    two_sizes = tuple(
        Sweep(f"k{size}_{side}_{'high' if high else 'low'}", side, high, 1.0, size)
        for high in (True, False)
        for side in ("upper", "lower")
        for size in (2, 128)
    )
    first, *others = WIDTHS
    return [
        FigurePlan("main", "mean gaps, half-width 1", 4, main(first)),
        FigurePlan(
            "linearised", "tangent planes at the midpoint (dashed), half-width 1", 2, square("linear", True, True)
        ),
        FigurePlan("absolute", "mean gaps, no ratios, half-width 1", 2, square("absolute", False, False)),
        FigurePlan("sizes", "mean gaps for K = 2 and K = 128, half-width 1", 4, two_sizes),
        *(FigurePlan(f"width{w:g}", f"mean gaps, half-width {w:g}", 4, main(w)) for w in others),
    ]


@dataclass(frozen=True)
class SweepRow:
    """One point of a curve."""

    mu: float
    bound: str
    linearised: bool
    mean: float
    standard_error: float
    regions: int


@dataclass(frozen=True)
class BoxRow:
    """One box: ratios of mean gaps, ER divided by ``partner``; infinite where the partner has no gap at all."""

    size: int
    partner: str
    p5: float
    q25: float
    median: float
    q75: float
    p95: float
    regions: int
    below_one: float  # share of regions where ER is the tighter one


@dataclass
class SynthStudy:
    """The whole study; ``gaps`` holds what has been computed so far."""

    plans: Sequence[FigurePlan]
    regions: int = 100
    points: int = 1000
    seed: int = 0
    gaps: dict[Setting, Gaps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.regions < 2 or self.points < 1:
            raise InvalidInput(f"needs at least 2 regions and 1 point, got {self.regions} and {self.points}")

    def tasks(self) -> list[_Task]:
        """Every setting once, with all bounds some panel wants; the longest first, so that no process waits."""
        wanted: dict[Setting, tuple[str, ...]] = {}
        for panel in self.panels():
            if isinstance(panel, Boxes):
                for setting in panel.settings():
                    paired = "/".join(box_partner(side, setting.high, setting.size) for side in SIDES)
                    wanted.setdefault(setting, ("er", paired, *beyond_the_paper()))
        for panel in self.panels():
            if isinstance(panel, Sweep):
                wanted |= {setting: curves(setting.size) for setting in panel.settings()}
        settings = sorted(wanted, key=lambda s: (-s.size, -len(wanted[s]), s.half_width, s.mu, s.high))
        return [
            _Task(s, wanted[s], self.regions, self.points, (self.seed, position)) for position, s in enumerate(settings)
        ]

    def panels(self) -> list[Panel]:
        """The panels of all figures, in order."""
        return [panel for plan in self.plans for panel in plan.panels]

    def run(self, workers: int = 1) -> Iterator[Setting]:
        """Compute every setting; what has been yielded is kept, whatever happens later."""
        tasks = self.tasks()
        for position, gaps in map_in_processes(measure, tasks, workers):
            self.gaps[tasks[position].setting] = gaps
            yield tasks[position].setting

    def rows(self, panel: Panel) -> list[SweepRow] | list[BoxRow]:
        """What the panel shows, as far as it has been computed."""
        if isinstance(panel, Sweep):
            return self.sweep_rows(panel)
        assert isinstance(panel, Boxes)
        return self.box_rows(panel)

    def sweep_rows(self, panel: Sweep) -> list[SweepRow]:
        """The mean gap of every bound at every setting of a panel, with its standard error."""
        rows = []
        for setting in panel.settings():
            gaps = self.gaps.get(setting, {})
            for (name, side, linearised), gap in gaps.items():
                flat = _is_affine(getattr(BOUNDS[name], side))
                if side != panel.side or (linearised and (flat or not panel.linearised)):
                    continue
                values = gap / gaps["const", side, False] if panel.ratio else gap
                error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
                rows.append(SweepRow(setting.mu, name, linearised, float(np.mean(values)), error, len(values)))
        return rows

    def box_rows(self, panel: Boxes) -> list[BoxRow]:
        """Quantiles of the ratio of gaps, ``er`` to each partner, at every setting of a panel."""
        rows = []
        for setting in panel.settings():
            gaps = self.gaps.get(setting)
            for partner in panel.partners(setting.size) if gaps else ():
                assert gaps is not None
                ratios = _ratio(gaps["er", panel.side, False], gaps[partner, panel.side, False], setting.size)
                quantiles = np.quantile(ratios, [0.05, 0.25, 0.5, 0.75, 0.95], method="inverted_cdf")
                p5, q25, median, q75, p95 = map(float, quantiles)
                below = float(np.mean(ratios < 1))
                rows.append(BoxRow(setting.size, partner, p5, q25, median, q75, p95, len(ratios), below))
        return rows

    def write_csv(self, folder: Path) -> list[Path]:
        """One file per panel that has data."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for panel in self.panels():
            if rows := self.rows(panel):
                path = folder / f"{panel.name}.csv"
                with path.open("w", newline="") as file:
                    writer = csv.DictWriter(file, list(vars(rows[0])), lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(vars(row) for row in rows)
                written.append(path)
        return written


def _ratio(numerator: np.ndarray, denominator: np.ndarray, size: int) -> np.ndarray:
    """Quotients of mean gaps; a gap at the level of rounding is none.

    Softmax and its bound are at most 1, each with the roundings of an exponential (two) above and below the bar, a sum
    and a quotient; a rounding is half a unit.
    """
    roundings = 2 * (2 + 2 + size)
    nothing = denominator <= roundings * 0.5 * np.finfo(np.float64).eps
    return np.where(nothing, np.inf, numerator / np.where(nothing, 1.0, denominator))
