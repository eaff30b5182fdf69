"""Questions that are cut into cells: margins by walks over boxes of inputs, scores by the dual with cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attack.pgd import minimize_margin
from ..branch.dual_leaves import DualLeaves
from ..branch.loop import Search
from ..branch.walk_leaves import Rows, WalkLeaves
from ..errors import InvalidInput
from ..graph.graph import Graph
from ..graph.operator import Interval
from ..propagate.methods import Branch
from ..propagate.structure import Structure
from ..regions import Region
from ..solve.dual import Dual
from ..solve.layers import Stack
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax import EVERYTHING, SoftmaxBounds
from .bracket import Bracket, Effort
from .programs import Programs
from .question import Highest, ScoreQuestion
from .unsafe import Unsafe

# Planes of the cells: nearly as tight as all bounds of the table in small boxes, at half the cost.
CELLS = SoftmaxBounds(("er",), ("lse",))
# Steps and restarts of an attack from where the bound of a cell is attained.
STEPS, RESTARTS = 20, 1


def branch_margins(
    graph: Graph,
    structure: Structure,
    region: Region,
    unsafe: Unsafe,
    method: Branch,
    effort: Effort,
    found: Bracket,
    instances: Tensor,
) -> None:
    """Cut the regions of some instances into cells; what that proves or breaks is written into ``found``."""
    if not len(instances):
        return
    here, mine = region.take(instances), unsafe.take(instances)
    rows = Rows(mine.rows.reshape(*mine.offsets.shape, *graph.output_shape), mine.offsets, mine.group)
    bounds = WalkLeaves(graph, structure, here, rows, method.second_order, effort.memory, effort.deadline)
    search = Search(bounds, method, [0.0] * len(instances), deadline=effort.deadline)

    def challenge(problems: list[int], at: list[Any]) -> None:
        which = torch.tensor(problems, device=instances.device)
        groups = torch.arange(unsafe.groups, device=which.device).repeat_interleave(len(which))
        place = which.repeat(unsafe.groups)

        def margin(x: Tensor, some: Tensor) -> Tensor:
            return mine.margins(graph(x).flatten(1), place[some], groups[some])

        start = (
            torch.stack(at).reshape(len(which), *graph.input_shape).repeat(unsafe.groups, *[1] * len(graph.input_shape))
        )
        value, x = minimize_margin(margin, here.take(place), start, STEPS, RESTARTS, method.seed)
        for k in value.argsort(descending=True).tolist():
            instance = int(instances[place[k]])
            if value[k] < found.attack[instance]:
                found.attack[instance], found.worst[instance] = value[k], x[k]
            if value[k] < 0:
                search.give_up(int(place[k]))

    try:
        search.run(None if effort.attack == "never" else challenge)
    finally:
        _, row = unsafe.best_rows(found.rows)
        for problem, instance in enumerate(instances.tolist()):
            # Every group is excluded by this much in every cell, by one row or another.
            low = search.bound(problem)
            for group in range(unsafe.groups):
                place = int(row[group, instance]), instance
                found.rows[place] = max(float(found.rows[place]), low)
            found.notes[instance] = search.described(problem)
            if low > 0:
                found.cuts[instance] = search.roots[problem].cuts()
    if search.interrupted:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class ByBranching:
    """Feedforward networks: the convex program of every cell by gradient steps on its dual."""

    stacks: list[Stack]
    method: Branch
    softmax: SoftmaxBounds

    @property
    def classes(self) -> int:
        return self.stacks[0].classes

    def to(self, device: torch.device) -> ByBranching:
        if device.type != "cpu":
            raise InvalidInput("method 'branch' bounds scores on the CPU; leave device out")
        return self

    def probabilities(self, x: Tensor) -> Tensor:
        """Mean class probabilities ``[B, K]``."""
        logits = torch.cat([stack.values(x.flatten(1))[-1] for stack in self.stacks], 1)
        return logits.softmax(-1).mean(1)

    def highest(self, question: ScoreQuestion) -> Highest:
        """The whole regions first, then cells; the better of the two."""
        relaxation = relax(self.stacks, question.region, self.softmax, question.outward)
        first = question.highest(Programs(relaxation, Dual(), False, question.deadline))
        if (self.softmax.lower, self.softmax.upper) == EVERYTHING:
            relaxation = relax(self.stacks, question.region, CELLS, question.outward)
        return first.met(_Pieces(question, relaxation, self.method).highest())


class _Pieces:
    """The pieces of a score as problems of one search: piece k of instance i is a maximum to be bounded."""

    def __init__(self, question: ScoreQuestion, relaxation: Relaxation, method: Branch) -> None:
        self.question, self.relaxation, self.method = question, relaxation, method
        ranges = relaxation.probabilities()
        pieces = question.score.pieces(question.label, *ranges)
        planes = [piece.tangent(question.at) for piece in pieces]
        whole = Programs(relaxation, None, False, question.deadline)
        # What cannot reach the attack need not be bounded further.
        self.known = torch.stack([question.sum(whole.trivial(p.coefficients), p.offset) for p in planes])
        reached = [
            piece.tangent(question.at) for piece in question.score.pieces(question.label, question.at, question.at)
        ]
        self.floor = torch.stack([(p.coefficients * question.at).sum(1) + p.offset for p in reached]).amax(0)
        self.piece, self.instance = (~(self.known < self.floor)).nonzero(as_tuple=True)

    def highest(self) -> Highest:
        if not len(self.piece):
            return Highest(self.known.amax(0))
        goal = self.floor + self._tolerance()
        start = self.question.at[self.instance]
        bounds = DualLeaves(self.relaxation, self.instance, self._plane, start)
        target = (-goal)[self.instance].tolist()
        search = Search(bounds, self.method, target, self.instance.tolist(), self.question.deadline)
        search.run()
        notes: dict[int, str] = {}
        for problem, (piece, instance) in enumerate(zip(self.piece.tolist(), self.instance.tolist())):
            self.known[piece, instance] = min(float(self.known[piece, instance]), -search.bound(problem))
            if search.left(problem):
                notes[instance] = search.described(problem)
        if search.interrupted:
            notes = dict.fromkeys(self.instance.tolist(), "interrupted") | notes
        return Highest(self.known.amax(0), notes, ({"trees": search.roots},))

    def _plane(self, problems: Tensor, ranges: Interval, at: Tensor) -> tuple[Tensor, Tensor]:
        instance, number = self.instance[problems], self.piece[problems]
        pieces = self.question.score.pieces(self.question.label[instance], *ranges)
        planes = [piece.tangent(at) for piece in pieces]
        here = torch.arange(len(problems), device=at.device)
        coefficients = torch.stack([plane.coefficients for plane in planes])[number, here]
        return coefficients, torch.stack([plane.offset for plane in planes])[number, here]

    def _tolerance(self) -> Tensor:
        """The tolerance of the score as one of the pieces: a score may be a steep function of its badness."""
        score, step = self.question.score, 1e-6
        rise = (score.from_badness(self.floor + step) - score.from_badness(self.floor)).abs() / step
        return self.method.tolerance / rise.clamp(min=1e-6)
