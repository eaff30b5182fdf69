"""Certified ranges of the mean class probabilities of networks, and of the confidence of every class that may win."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bounds.rounding import check_rounding
from ..bounds.softmax import softmax_bounds
from ..errors import InvalidInput, MissingExtra, SofthullError
from ..formats.network import Network
from ..graph.graph import Graph
from ..graph.operator import Interval
from ..graph.rounding import share
from ..propagate.methods import Auto
from ..propagate.structure import pieces, positions
from ..regions import Alternatives, Perturbation, Region
from ..solve.dual import Dual
from ..solve.solution import Solution, simplex_bound
from .methods import RANGES, find_method
from .question import Highest, Relaxed, ScoreQuestion
from .replay import contradictions
from .scores import Brier
from .stages import ByPrograms, ByWalks
from .uncertainty import BATCH, check_inputs, find_solver

# A range that constant bounds leave no wider than this is not worth a program of its own.
NARROW = 1e-2
# Of the gradient method: there is a program for each end of a range, and twice as many steps narrow it by a percent.
STEPS = 100


@dataclass(frozen=True)
class Ranges:
    """What is certified of the mean probabilities of ``n`` samples, as arrays.

    ``least``, ``most [n, K]``: every probability. ``low``, ``high [n, K]``: the probability of a class where it is the
    largest of all; ``low > high`` for a class that never is. ``brier [n]``: the largest Brier score.
    ``box_least``, ``box_most [n, K]``: what boxes of logits alone say, for comparison.
    """

    least: np.ndarray
    most: np.ndarray
    low: np.ndarray
    high: np.ndarray
    brier: np.ndarray
    box_least: np.ndarray
    box_most: np.ndarray
    notes: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.least)

    def take(self, i: int) -> Ranges:
        """One of the samples."""
        arrays: dict[str, Any] = {name: getattr(self, name)[i : i + 1] for name in ARRAYS}
        return Ranges(**arrays, notes={0: self.notes[i]} if i in self.notes else {})

    @property
    def on_top(self) -> np.ndarray:
        """Which classes ``[n, K]`` may have the largest probability."""
        return np.asarray(self.low <= self.high)

    @property
    def confidence(self) -> tuple[np.ndarray, np.ndarray]:
        """The range ``[n]`` of the largest probability."""
        return np.where(self.on_top, self.low, 1.0).min(1), np.where(self.on_top, self.high, 0.0).max(1)


ARRAYS = ("least", "most", "low", "high", "brier", "box_least", "box_most")


def join_ranges(parts: Sequence[Ranges]) -> Ranges:
    """Several batches as one."""
    starts = np.cumsum([0, *map(len, parts)])
    notes = {int(start) + i: note for start, part in zip(starts, parts) for i, note in part.notes.items()}
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    return Ranges(**arrays, notes=notes)


@dataclass(frozen=True)
class RangeBounds(Highest):
    """Bounds that grow tighter from stage to stage; ``badness [B]``, the total width of the ranges, says how tight.

    ``lead [B, K]`` bounds how far a class may get above the top class of the input itself.
    """

    least: Tensor = field(default_factory=lambda: torch.empty(0))
    most: Tensor = field(default_factory=lambda: torch.empty(0))
    lead: Tensor = field(default_factory=lambda: torch.empty(0))
    brier: Tensor = field(default_factory=lambda: torch.empty(0))
    box: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(
        least: Tensor, most: Tensor, lead: Tensor, brier: Tensor, box: Interval | None, notes: dict[int, str]
    ) -> RangeBounds:
        return RangeBounds((most - least).sum(1), notes, (), least, most, lead, brier, box)

    def met(self, other: Highest) -> RangeBounds:
        assert isinstance(other, RangeBounds)
        return RangeBounds.of(
            torch.maximum(self.least, other.least),
            torch.minimum(self.most, other.most),
            torch.minimum(self.lead, other.lead),
            torch.minimum(self.brier, other.brier),
            _both(self.box, other.box),
            self.notes | other.notes,
        )

    def among(self, instances: Tensor, size: int) -> RangeBounds:
        def spread(part: Tensor, unknown: float) -> Tensor:
            return part.new_full((size, *part.shape[1:]), unknown).index_copy(0, instances, part)

        box = self.box and (spread(self.box[0], 0.0), spread(self.box[1], 1.0))
        notes = {int(instances[k]): note for k, note in self.notes.items()}
        parts = (spread(self.least, 0.0), spread(self.most, 1.0), spread(self.lead, 1.0), spread(self.brier, 2.0))
        return RangeBounds.of(*parts, box, notes)


@dataclass(frozen=True)
class RangeQuestion(ScoreQuestion):
    """Between which numbers does every probability lie? ``at [B, K]`` are the probabilities of the inputs themselves.

    ``narrow``: ranges of at most this width are left as constant bounds give them; 1 asks for those bounds alone.
    """

    narrow: float = NARROW

    def highest(self, relaxed: Relaxed) -> RangeBounds:
        """Constant bounds, then one program for each end of every range still wide, for every rival and for Brier."""
        notes: dict[int, str] = {}
        least, most = (end.clone() for end in relaxed.probabilities())
        instance, k = (most - least > self.narrow).nonzero(as_tuple=True)
        for sign, ends in ((1.0, most), (-1.0, least)):
            found = sign * self._solve(relaxed, _rows(least, len(k), (k, sign)), instance, notes)
            best = torch.minimum if sign > 0 else torch.maximum
            ends[instance, k] = best(ends[instance, k], found).clamp(0, 1)
        least, most = on_the_simplex(least, most)
        lead = self._lead(relaxed, least, most, notes)
        brier = self._brier(_Narrowed(relaxed, least, most, self.outward))
        return RangeBounds.of(least, most, lead, brier, _boxes(relaxed), notes)

    def _brier(self, relaxed: _Narrowed) -> Tensor:
        """The largest Brier score ``[B]``, by a program of its own or from ranges and simplex alone."""
        if self.narrow < 1:
            return super().highest(relaxed).badness
        (piece,) = self.score.pieces(self.label, *relaxed.probabilities())
        plane = piece.tangent(self.at)
        return self.sum(relaxed.trivial(plane.coefficients), plane.offset)

    def _lead(self, relaxed: Relaxed, least: Tensor, most: Tensor, notes: dict[int, str]) -> Tensor:
        """How far ``[B, K]`` every class gets above the top class at most; 0 for that class itself."""
        top = self.at.argmax(1, keepdim=True)
        lead = most - least.gather(1, top)
        if self.outward:
            lead = torch.nextafter(lead, torch.full_like(lead, math.inf))
        lead = lead.scatter(1, top, 0.0)
        instance, k = ((lead >= 0) & (self.narrow < 1)).scatter(1, top, False).nonzero(as_tuple=True)
        found = self._solve(relaxed, _rows(least, len(k), (k, 1.0), (top[instance, 0], -1.0)), instance, notes)
        lead[instance, k] = torch.minimum(lead[instance, k], found)
        return lead

    def _solve(self, relaxed: Relaxed, rows: Tensor, instance: Tensor, notes: dict[int, str]) -> Tensor:
        """Bounds on the maximum of ``rows . p``, as many rows at once as fit where all instances do."""
        found = []
        for part in pieces(positions(rows), max(len(self.label), relaxed.together)):
            solution = relaxed.solve(rows[part], instance[part])
            notes |= {int(instance[part[i]]): note for i, note in solution.notes.items()}
            found.append(torch.where(solution.bound.isnan(), math.inf, solution.bound))
        return torch.cat(found) if found else rows.new_zeros(0)


@dataclass(frozen=True)
class _Narrowed:
    """What is known, with better ranges."""

    relaxed: Relaxed
    least: Tensor
    most: Tensor
    outward: bool

    @property
    def together(self) -> int:
        return self.relaxed.together

    def probabilities(self) -> Interval:
        return self.least, self.most

    def trivial(self, coefficients: Tensor) -> Tensor:
        cost = share(coefficients.shape[1] + 4, coefficients.dtype) if self.outward else 0.0
        return simplex_bound(coefficients, self.least, self.most, cost)

    def logits(self) -> list[Interval]:
        return self.relaxed.logits()

    def solve(self, coefficients: Tensor, instances: Tensor) -> Solution:
        return self.relaxed.solve(coefficients, instances)


class RangeFinder:
    """Certified ranges of the mean probabilities of ``networks``; arguments as for ``verify_uncertainty``."""

    def __init__(
        self, networks: Sequence[Network | Graph], method: str | Any, bound: str, rounding: str, device: torch.device
    ) -> None:
        check_rounding(rounding)
        self.networks, self.device, self.outward = networks, device, rounding == "outward"
        chosen = find_method(method, RANGES)
        solver = find_solver(networks, chosen, bound, False, rounding).to(device)
        assert isinstance(solver, ByPrograms | ByWalks)
        self.solver: ByPrograms | ByWalks = solver
        if isinstance(chosen, Auto) and isinstance(self.solver, ByPrograms):
            self.solver = replace(self.solver, method=Dual(steps=STEPS))

    def inputs(self, x: Any, y: Any = None) -> tuple[Tensor, Tensor]:
        """Inputs ``[n, *shape]`` and labels ``[n]`` (default: 0), checked."""
        y = torch.zeros(len(x), dtype=torch.long) if y is None else y
        x, y = check_inputs(x, y, self.solver.classes, self.networks)
        return x.to(self.device), y.to(self.device)

    def probabilities(self, x: Tensor) -> Tensor:
        """Mean probabilities ``[B, K]`` as they are evaluated."""
        return self.solver.probabilities(x)

    def find(
        self, x: Any, perturbation: Perturbation | Alternatives | None = None, y: Any = None, deadline: float = math.inf
    ) -> Ranges:
        """Ranges within the perturbation of every input; without one, up to the rounding of the input itself.

        Nothing is claimed of an input on which the work failed, or on which a model file and its graph disagree.
        """
        x, y = self.inputs(x, y)
        region, narrow = (perturbation or Perturbation(0.0)).around(x), NARROW if perturbation else 1.0
        parts = positions(x).split(BATCH)
        return join_ranges([self._batch(x[i], y[i], region.take(i), narrow, deadline) for i in parts])

    def _batch(self, x: Tensor, y: Tensor, region: Region, narrow: float, deadline: float) -> Ranges:
        try:
            found = find_ranges(self.solver, x, y, region, self.outward, narrow, deadline)
        except (InvalidInput, MissingExtra):
            raise
        except (SofthullError, RuntimeError, MemoryError, ValueError) as problem:
            if len(x) == 1:
                line = " ".join(str(problem).split()) or type(problem).__name__
                return nothing_known(self.solver.classes, line)
            halves = positions(x).split((len(x) + 1) // 2)  # one instance must not take the others with it
            return join_ranges([self._batch(x[i], y[i], region.take(i), narrow, deadline) for i in halves])
        wrong = contradictions(self.networks, region, x, x)
        if not wrong:
            return found
        single = [
            found.take(i) if i not in wrong else nothing_known(self.solver.classes, wrong[i]) for i in range(len(x))
        ]
        return join_ranges(single)


def nothing_known(classes: int, why: str) -> Ranges:
    """The ranges of one sample of which nothing is known."""
    least, most = np.zeros((1, classes)), np.ones((1, classes))
    return Ranges(least, most, least, most, np.full(1, 2.0), least, most, {0: why})


def find_ranges(
    solver: ByPrograms | ByWalks,
    x: Tensor,
    y: Tensor,
    region: Region,
    outward: bool,
    narrow: float = NARROW,
    deadline: float = math.inf,
) -> Ranges:
    """Certified ranges over the regions of one batch, by whatever ``solver`` (convex programs or walks) can do."""
    at = solver.probabilities(x)
    found = solver.highest(RangeQuestion(Brier(), region, y, x, at, outward, deadline, narrow))
    assert isinstance(found, RangeBounds)
    least, most = on_the_simplex(found.least, found.most)
    low = torch.maximum(least, water_level(least, most)[:, None])
    high = torch.where(found.lead >= 0, most, -1.0)
    box = found.box or (torch.zeros_like(least), torch.ones_like(most))
    parts = (least, most, low, high, found.brier, *box)
    arrays: dict[str, Any] = {name: part.cpu().numpy() for name, part in zip(ARRAYS, parts)}
    return Ranges(**arrays, notes=found.notes)


def on_the_simplex(least: Tensor, most: Tensor) -> Interval:
    """Ranges ``[B, K]`` cut by what all others leave of a sum of one, rounded outward."""
    cost = share(least.shape[1] + 2, least.dtype)
    others = 1 - torch.eye(least.shape[1], dtype=least.dtype, device=least.device)
    left = 1 - least @ others * (1 - cost) + cost
    needed = 1 - most @ others * (1 + cost) - cost
    return torch.maximum(least, needed.clamp(max=1)), torch.minimum(most, left.clamp(min=0))


def water_level(least: Tensor, most: Tensor) -> Tensor:
    """A lower bound ``[B]`` on the largest probability: no less than any lower end, and enough to fill the simplex.

    If the largest is t, the sum is at most that of any upper ends plus t for every other class.
    """
    K = most.shape[1]
    capped = most.sort(1).values.cumsum(1)[:, :-1]
    capped = torch.cat((torch.zeros_like(most[:, :1]), capped), 1)
    cost = share(K + 2, most.dtype)
    level = (1 - capped * (1 + cost) - cost) / torch.arange(K, 0, -1, dtype=most.dtype, device=most.device)
    return torch.maximum(least.amax(1), (level * (1 - cost)).amax(1))


def _rows(like: Tensor, count: int, *entries: tuple[Tensor, float]) -> Tensor:
    """Rows ``[count, K]`` with one entry for each pair of columns and value."""
    rows = like.new_zeros(count, like.shape[1])
    for column, value in entries:
        rows[torch.arange(count, device=like.device), column] = value
    return rows


def _boxes(relaxed: Relaxed) -> Interval | None:
    """Ranges ``[B, K]`` that follow from the range of every logit alone, None where logits are not known."""
    boxes = relaxed.logits()
    if not boxes:
        return None
    ends = [softmax_bounds(None, low.cpu().numpy(), high.cpu().numpy(), "const") for low, high in boxes]
    least, most = (torch.from_numpy(np.mean(side, 0)).to(boxes[0][0]) for side in zip(*ends))
    cost = share(len(ends), least.dtype)
    return least * (1 - cost), (most * (1 + cost)).clamp(max=1)


def _both(one: Interval | None, other: Interval | None) -> Interval | None:
    """The intersection of what is known."""
    if one is None or other is None:
        return one or other
    return torch.maximum(one[0], other[0]), torch.minimum(one[1], other[1])
