"""Questions that are cut into cells: margins by walks over boxes of inputs, scores by the dual with cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..branch.dual_leaves import DualLeaves
from ..branch.loop import Search
from ..branch.walk_leaves import Rows, WalkLeaves
from ..graph.operator import Interval
from ..propagate.methods import Branch
from ..propagate.structure import positions
from ..solve.dual import Dual
from ..solve.optimum import trivial_bound
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax import EVERYTHING, SoftmaxBounds
from .engine import Work, stages
from .ensemble import Layered
from .margins import Margins
from .problem import Solution
from .programs import Programs
from .score_claims import ScoreClaims
from .walks import networks_of

# Planes of the cells: nearly as tight as all bounds of the table in small boxes, at half the cost.
CELLS = SoftmaxBounds(("er",), ("lse",))
# Steps and restarts of an attack from where the bound of a cell is attained.
STEPS, RESTARTS = 20, 1


@stages.register(Branch)
def _(method: Branch, work: Work) -> Iterator[Any]:
    """The method inside first; then the regions of what it leaves open are cut into cells."""
    yield from stages(method.inner, work)
    left = work.open()
    if len(left):
        _branch_margins(method, work, left)


def _branch_margins(method: Branch, work: Work, instances: Tensor) -> None:
    problem, effort, found, margins = work.problem, work.effort, work.found, work.claims
    assert isinstance(margins, Margins)
    graph, mine = problem.graph, margins.take(instances)
    rows = Rows(mine.rows.reshape(*mine.offsets.shape, *graph.output_shape), mine.offsets, mine.group)
    given = graph, networks_of(work).graphs[0].structure, problem.region.take(instances), rows
    bounds = WalkLeaves(*given, method.second_order, effort.memory, effort.deadline)
    search = Search(bounds, method, [0.0] * len(instances), deadline=effort.deadline)

    def challenge(problems: list[int], at: list[Any]) -> None:
        which = instances[torch.tensor(problems, device=instances.device)]
        start = torch.stack(at).reshape(len(which), *graph.input_shape)
        groups = torch.arange(margins.groups, device=which.device).repeat_interleave(len(which))
        start, each = start.repeat(margins.groups, *[1] * len(graph.input_shape)), which.repeat(margins.groups)
        margins.descend(problem, found, groups, each, start, STEPS, RESTARTS, method.seed)
        for number, instance in zip(problems, which.tolist()):
            if found.attack[instance] < 0:
                search.give_up(number)

    try:
        search.run(None if effort.attack == "never" else challenge)
    finally:
        _, row = margins.best_rows(found.bounds)
        for number, instance in enumerate(instances.tolist()):
            # Every group is excluded by this much in every cell, by one row or another.
            low = search.bound(number)
            best = row[:, instance]
            found.bounds[best, instance] = found.bounds[best, instance].clamp(min=low)
            found.notes[instance] = search.described(number)
            if low > 0:
                found.cuts[instance] = search.roots[number].cuts()
    if search.interrupted:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Cells:
    """Branching for scores of feedforward networks: the convex program of every cell by steps on its dual."""

    method: Branch
    softmax: SoftmaxBounds
    outward: bool = True


@stages.register(Cells)
def _(method: Cells, work: Work) -> Iterator[Any]:
    """The whole regions first, then cells."""
    yield from stages(Programs(Dual(), method.softmax, False, method.outward), work)
    networks, claims = work.problem.networks, work.claims
    assert isinstance(networks, Layered)
    assert isinstance(claims, ScoreClaims)
    planes = CELLS if (method.softmax.lower, method.softmax.upper) == EVERYTHING else method.softmax
    relaxation = relax(networks.stacks, work.problem.region, planes, method.outward)
    _Pieces(claims, relaxation, method.method, work.effort.deadline).search(work.found)


class _Pieces:
    """The pieces of a score as problems of one search: piece k of instance i is a maximum to be bounded."""

    def __init__(self, claims: ScoreClaims, relaxation: Relaxation, method: Branch, deadline: float) -> None:
        self.claims, self.relaxation, self.method, self.deadline = claims, relaxation, method, deadline
        ranges = relaxation.probabilities()
        pieces = claims.score.pieces(claims.label, *ranges)
        planes = [piece.tangent(claims.at) for piece in pieces]
        # What cannot reach the attack need not be bounded further.
        self.known = torch.stack([claims.sum(trivial_bound(relaxation, p.coefficients), p.offset) for p in planes])
        reached = [piece.tangent(claims.at) for piece in claims.score.pieces(claims.label, claims.at, claims.at)]
        self.floor = torch.stack([(p.coefficients * claims.at).sum(1) + p.offset for p in reached]).amax(0)
        self.piece, self.instance = (~(self.known < self.floor)).nonzero(as_tuple=True)

    def search(self, found: Solution) -> None:
        """Cut the regions of what may reach the attack into cells, and keep what that proves."""
        if len(self.piece):
            self._search(found)
        found.raise_to(-self.known.amax(0)[None], positions(self.floor))

    def _search(self, found: Solution) -> None:
        goal = self.floor + self._tolerance()
        start = self.claims.at[self.instance]
        bounds = DualLeaves(self.relaxation, self.instance, self._plane, start)
        target = (-goal)[self.instance].tolist()
        search = Search(bounds, self.method, target, self.instance.tolist(), self.deadline)
        search.run()
        if search.interrupted:
            found.notes |= dict.fromkeys(self.instance.tolist(), "interrupted")
        for problem, (piece, instance) in enumerate(zip(self.piece.tolist(), self.instance.tolist())):
            self.known[piece, instance] = min(float(self.known[piece, instance]), -search.bound(problem))
            if search.left(problem):
                found.notes[instance] = search.described(problem)
        found.choices.append({"trees": search.roots})

    def _plane(self, problems: Tensor, ranges: Interval, at: Tensor) -> tuple[Tensor, Tensor]:
        instance, number = self.instance[problems], self.piece[problems]
        pieces = self.claims.score.pieces(self.claims.label[instance], *ranges)
        planes = [piece.tangent(at) for piece in pieces]
        here = torch.arange(len(problems), device=at.device)
        coefficients = torch.stack([plane.coefficients for plane in planes])[number, here]
        return coefficients, torch.stack([plane.offset for plane in planes])[number, here]

    def _tolerance(self) -> Tensor:
        """The tolerance of the score as one of the pieces: a score may be a steep function of its badness."""
        score, step = self.claims.score, 1e-6
        rise = (score.from_badness(self.floor + step) - score.from_badness(self.floor)).abs() / step
        return self.method.tolerance / rise.clamp(min=1e-6)
