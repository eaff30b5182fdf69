"""Questions that are cut into cells: margins by walks, over boxes of inputs or with cuts inside the network, scores by
the dual with cuts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attack.pgd import minimize_margin
from ..branch.cut_leaves import CutLeaves
from ..branch.dual_leaves import DualLeaves
from ..branch.loop import Search
from ..branch.walk_leaves import Rows, WalkLeaves
from ..errors import InvalidInput
from ..graph.graph import Graph
from ..graph.operator import Interval
from ..propagate.crown import LinearBounds
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
# Cells are boxes of inputs where there are at most so many.
BOXES = 32
# Where entries that can be cut have a smaller share of the loss than this, other bounds come first.
HERE = 0.6
# Steps and restarts of an attack from where the bound of a cell is attained.
STEPS, RESTARTS = 20, 1


def by_boxes(graph: Graph) -> bool:
    """Whether cells are boxes of inputs: with few of them, halving them makes every bound tighter."""
    return math.prod(graph.input_shape) <= BOXES


class Margins:
    """What is open of a batch of instances, as the problems of one search. What it finds goes to ``found``."""

    def __init__(self, unsafe: Unsafe, method: Branch, effort: Effort, found: Bracket) -> None:
        self.unsafe, self.method, self.effort, self.found = unsafe, method, effort, found

    def boxes(self, graph: Graph, structure: Structure, region: Region, instances: Tensor) -> None:
        """Cells that are boxes of inputs, bounded by linear walks and second order, all groups together."""
        if not len(instances):
            return
        mine = self.unsafe.take(instances)
        rows = Rows(mine.rows.reshape(*mine.offsets.shape, *graph.output_shape), mine.offsets, mine.group)
        effort, method = self.effort, self.method
        bounds = WalkLeaves(
            graph, structure, region.take(instances), rows, method.second_order, effort.memory, effort.deadline
        )
        search = Search(bounds, method, [0.0] * len(instances), instances.tolist(), effort.deadline)
        groups = range(self.unsafe.groups)
        try:
            search.run(self._challenge(graph, region, search, [groups] * len(instances)))
        finally:
            _, row = self.unsafe.best_rows(self.found.rows)
            for problem, instance in enumerate(instances.tolist()):
                # Every group is excluded by this much in every cell, by one row or another.
                self._keep(search, problem, [int(row[group, instance]) for group in groups])
                if search.bound(problem) > 0:
                    self.found.cuts[instance] = search.roots[problem].cuts()
        if search.interrupted:
            raise KeyboardInterrupt

    def inside(self, bounds: LinearBounds, open_groups: Tensor, elsewhere: Callable[[], None]) -> Tensor:
        """Cuts inside the network, for every open group ``[groups, B]`` by the row that was best at first.

        Where most of the loss is not that of entries that can be cut, ``elsewhere`` is called for the other one first.
        Returns the instances of which nothing more can be cut.
        """
        group, instance = open_groups.nonzero(as_tuple=True)
        if not len(group):
            return instance
        _, best = self.unsafe.best_rows(self.found.rows)
        row = best[group, instance]
        rows = self.unsafe.rows[row, instance].reshape(-1, *bounds.graph.output_shape)
        cells = CutLeaves(bounds, instance, rows, self.unsafe.offsets[row, instance])
        search = Search(cells, self.method, [0.0] * len(row), instance.tolist(), self.effort.deadline)
        challenge = self._challenge(bounds.graph, bounds.region, search, [[g] for g in group.tolist()])
        try:
            search.grow()
            share = [cells.shares[p] for p in range(len(row)) if search.left(p)]
            if share and sum(share) / len(share) < HERE:
                elsewhere()
                for problem, place in enumerate(zip(row.tolist(), instance.tolist())):
                    if self.found.rows[place] > 0:
                        search.give_up(problem)
            search.run(challenge)
        finally:
            for problem, s in enumerate(row.tolist()):
                self._keep(search, problem, [s])
        if search.interrupted:
            raise KeyboardInterrupt
        return torch.tensor(search.stuck(), dtype=torch.long, device=instance.device)

    def _keep(self, search: Search, problem: int, rows: list[int]) -> None:
        instance = search.owner[problem]
        for row in rows:
            self.found.rows[row, instance] = max(float(self.found.rows[row, instance]), search.bound(problem))
        self.found.notes[instance] = search.described(instance)

    def _challenge(
        self, graph: Graph, region: Region, search: Search, groups: Sequence[Sequence[int]]
    ) -> Callable[[list[int], list[Any]], None] | None:
        """Attacks from where open cells are worst; what breaks an instance ends the work on it."""
        if self.effort.attack == "never":
            return None

        def challenge(problems: list[int], at: list[Any]) -> None:
            pairs = [(k, problem, group) for k, problem in enumerate(problems) for group in groups[problem]]
            table = torch.tensor([(k, search.owner[problem], group) for k, problem, group in pairs])
            which, instance, group = table.to(self.found.attack.device).T

            def margin(x: Tensor, some: Tensor) -> Tensor:
                return self.unsafe.margins(graph(x).flatten(1), instance[some], group[some])

            start = torch.stack(at).reshape(len(problems), *graph.input_shape)[which]
            value, x = minimize_margin(
                margin, region.take(instance), start, STEPS, RESTARTS, self.method.seed, deadline=self.effort.deadline
            )
            for k in value.argsort(descending=True).tolist():
                i = int(instance[k])
                if value[k] < self.found.attack[i]:
                    self.found.attack[i], self.found.worst[i] = value[k], x[k]
                if value[k] < 0:
                    search.give_up_all(i)

        return challenge


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
                notes[instance] = search.described(instance)
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
