"""Certified ranges of the mean class probabilities of networks, and of the confidence of every class that may win."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attack.score import ScoreAttack
from ..attack.visits import Visits, attack_samples
from ..bounds.questions import softmax_bounds
from ..bounds.rounding import check_rounding
from ..deadlines import TimeLimits
from ..formats.network import Network
from ..graph.graph import Graph
from ..graph.operator import Interval
from ..graph.rounding import share
from ..propagate.structure import pieces, positions
from ..regions import Alternatives, Perturbation, Region
from ..solve.dual import Dual
from ..solve.optimum import Optimum, simplex_bound
from .engine import solve
from .instances import answer_all
from .methods import RANGES, find_method
from .problem import Effort, Problem, Solution
from .replay import contradictions
from .score_claims import ScoreClaims
from .scores import Brier
from .simplex import Relaxed
from .uncertainty import BATCH, check_inputs, prepare

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
class RangeClaims(ScoreClaims):
    """Between which numbers does every probability lie? ``at [B, K]`` are the probabilities of the inputs themselves.

    Bounded from below are, in this order, all probabilities, their negations, how far a class stays below the top class
    of the input itself, the two ends of the range that boxes of logits give, and the Brier score, negated. ``narrow``:
    ranges of at most this width are left as constant bounds give them; 1 asks for those bounds alone.
    """

    narrow: float = NARROW

    def nothing(self) -> Tensor:
        """Bounds that say nothing: probabilities from 0 to 1, any class may be on top."""
        zero = torch.zeros_like(self.at)
        return _stacked(zero, zero + 1, zero + 1, zero, zero + 1, zero[:, 0] + 2)

    def least(self, found: Solution) -> Tensor:
        """How narrow the ranges are."""
        return found.bounds[: 2 * self.at.shape[1]].sum(0)

    def open(self, found: Solution, tolerance: float) -> Tensor:
        return torch.ones_like(self.label, dtype=torch.bool)

    def improve(self, stage: Any, found: Solution) -> None:
        """Constant bounds, then one program for each end of every range still wide, for every rival and for Brier."""
        mine, here = self.take(stage.instances), stage.instances
        assert isinstance(mine, RangeClaims)
        relaxed, notes = stage.relaxed(mine.at, self.outward), dict[int, str]()
        ranges = mine._ends(relaxed, notes)
        lead = mine._lead(relaxed, *ranges, notes)
        brier = mine._brier(_Narrowed(relaxed, *ranges, self.outward))
        box = _boxes(relaxed) or (torch.zeros_like(mine.at), torch.ones_like(mine.at))
        found.raise_to(_stacked(*ranges, lead, *box, brier), here)
        found.notes |= {int(here[k]): note for k, note in notes.items()}

    def _ends(self, relaxed: Relaxed, notes: dict[int, str]) -> Interval:
        least, most = (end.clone() for end in relaxed.probabilities())
        instance, k = (most - least > self.narrow).nonzero(as_tuple=True)
        for sign, ends in ((1.0, most), (-1.0, least)):
            found = sign * self._solve(relaxed, _rows(least, len(k), (k, sign)), instance, notes)
            best = torch.minimum if sign > 0 else torch.maximum
            ends[instance, k] = best(ends[instance, k], found).clamp(0, 1)
        return on_the_simplex(least, most)

    def _brier(self, relaxed: _Narrowed) -> Tensor:
        """The largest Brier score ``[B]``, by a program of its own or from ranges and simplex alone."""
        if self.narrow < 1:
            return self.highest(relaxed)[0]
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

    def solve(self, coefficients: Tensor, instances: Tensor) -> Optimum:
        return self.relaxed.solve(coefficients, instances)


class RangeFinder:
    """Certified ranges of the mean probabilities of ``networks``; arguments as for ``verify_uncertainty``."""

    def __init__(
        self, networks: Sequence[Network | Graph], method: str | Any, bound: str, rounding: str, device: torch.device
    ) -> None:
        check_rounding(rounding)
        self.networks, self.device, self.outward = networks, device, rounding == "outward"
        chosen, program = find_method(method, RANGES), Dual(steps=STEPS)
        self.bounded, self.method = prepare(networks, chosen, bound, False, rounding, device, program=program)

    def inputs(self, x: Any, y: Any = None) -> tuple[Tensor, Tensor]:
        """Inputs ``[n, *shape]`` and labels ``[n]`` (default: 0), checked."""
        y = torch.zeros(len(x), dtype=torch.long) if y is None else y
        x, y = check_inputs(x, y, self.bounded.classes, self.networks)
        return x.to(self.device), y.to(self.device)

    def probabilities(self, x: Tensor) -> Tensor:
        """Mean probabilities ``[B, K]`` as they are evaluated."""
        return self.bounded.probabilities(x)

    def find(self, x: Any, perturbation: Perturbation | Alternatives | None = None, y: Any = None) -> Ranges:
        """Ranges within the perturbation of every input; without one, up to the rounding of the input itself."""
        x, y = self.inputs(x, y)
        region = (perturbation or Perturbation(0.0)).around(x)
        asked = Samples(self, x, y, region, NARROW if perturbation else 1.0)
        found = answer_all(asked, positions(x), BATCH).records
        return join_ranges([found[i].ranges for i in range(len(x))])

    def ranges(self, x: Tensor, y: Tensor, region: Region, narrow: float, deadline: float) -> Ranges:
        """Ranges over the regions of one batch; nothing of an input on which a model file and its graph disagree."""
        with torch.no_grad():
            claims = RangeClaims(Brier(), y, self.bounded.probabilities(x), self.outward, narrow)
        effort = Effort(deadline, attack="never")
        found = solve(Problem(self.bounded, region, x, claims), self.method, effort)
        K = claims.at.shape[1]
        (least, most, lead, *box), brier = found.bounds[:-1].reshape(5, K, -1).mT, -found.bounds[-1]
        least, most = on_the_simplex(least, -most)
        low = torch.maximum(least, water_level(least, most)[:, None])
        high = torch.where(lead <= 0, most, -1.0)
        parts = (least, most, low, high, brier, box[0], -box[1])
        arrays: dict[str, Any] = {name: part.cpu().numpy() for name, part in zip(ARRAYS, parts)}
        notes = dict.fromkeys(range(len(x)), found.stopped) if found.stopped else {}
        whole = Ranges(**arrays, notes=notes | found.notes)
        wrong = contradictions(self.networks, region, x, x)
        if not wrong:
            return whole
        return join_ranges([nothing_known(K, wrong[i]) if i in wrong else whole.take(i) for i in range(len(x))])


@dataclass(frozen=True)
class Sample:
    """What is known of one sample: its ranges, and what attacks met where there were any."""

    ranges: Ranges
    visits: Visits | None = None
    reached: bool = True


@dataclass(frozen=True)
class Samples:
    """In which ranges are the probabilities within the regions around ``x``? With ``edges`` attacks look for the worst.

    ``edges`` are those of the bins of confidences that attacks keep their tables by.
    """

    finder: RangeFinder
    x: Tensor
    label: Tensor
    region: Region
    narrow: float = NARROW
    limits: TimeLimits = field(default_factory=TimeLimits)
    edges: np.ndarray | None = None
    attack: ScoreAttack | None = None

    def apart(self, batch: Tensor) -> list[Tensor]:
        """The samples of a batch in groups whose networks are bounded in one form."""
        return [batch[part.cpu()] for part in self.finder.bounded.alike(self.region.take(batch.to(self.x.device)))]

    def answer(self, batch: Tensor) -> list[Sample]:
        """The ranges of the samples of a batch, and what attacks reached."""
        here, deadline = batch.to(self.x.device), self.limits.for_batch(len(batch))
        x, label, region = self.x[here], self.label[here], self.region.take(here)
        visits = self._visits(x, label, region, self.attack, deadline)
        ranges = self.finder.ranges(x, label, region, self.narrow, deadline)
        return [Sample(ranges.take(i), visits and visits.take(i)) for i in range(len(batch))]

    def nothing(self, index: int, why: str, failed: bool = False) -> Sample:
        """A sample of which nothing is known but its clean probabilities."""
        here = torch.tensor([index], device=self.x.device)
        visits = self._visits(self.x[here], self.label[here], self.region.take(here), None, 0.0)
        return Sample(nothing_known(self.finder.bounded.classes, why), visits, reached=failed)

    def _visits(
        self, x: Tensor, label: Tensor, region: Region, attack: ScoreAttack | None, deadline: float
    ) -> Visits | None:
        if self.edges is None:
            return None
        return attack_samples(self.finder.probabilities, x, label, region, self.edges, attack, deadline)


def nothing_known(classes: int, why: str) -> Ranges:
    """The ranges of one sample of which nothing is known."""
    least, most = np.zeros((1, classes)), np.ones((1, classes))
    return Ranges(least, most, least, most, np.full(1, 2.0), least, most, {0: why})


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


def _stacked(least: Tensor, most: Tensor, lead: Tensor, box_least: Tensor, box_most: Tensor, brier: Tensor) -> Tensor:
    """What is bounded from below, ``[5 K + 1, B]``, from ranges ``[B, K]`` and so on."""
    return torch.cat((least, -most, -lead, box_least, -box_most, -brier[:, None]), 1).mT.contiguous()


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
