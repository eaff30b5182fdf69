"""Questions that are cut into cells: margins by walks, over boxes of inputs or with cuts inside the network, scores by
the dual with cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..branch.cut_leaves import CutLeaves
from ..branch.dual_leaves import DualLeaves
from ..branch.loop import Bounds, Search
from ..branch.product_leaves import ProductLeaves
from ..branch.walk_leaves import Rows, WalkLeaves
from ..errors import InvalidInput
from ..graph.operator import Bilinear, Elementwise, Interval
from ..graph.ops.softmax import Softmax
from ..propagate.account import account
from ..propagate.crown import LinearBounds
from ..propagate.methods import Branch
from ..propagate.structure import positions
from ..solve.dual import Dual
from ..solve.optimum import trivial_bound
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax_boxes import EVERYTHING, SoftmaxBounds
from .engine import Work, stages
from .ensemble import Layered
from .margins import Margins
from .problem import Solution
from .programs import Members, Programs, taken
from .score_claims import ScoreClaims
from .walk_stages import linear_walks, networks_of, second_order
from .walks import Walks, instances_together

# What excludes a row that cells inside the network prove, by linear walks or by second order.
CUT, CUT_LOGITS = "cuts", "cuts of logits"
# Cells are bounded by second order where so many of them fit at once.
CELLS_OF_PRODUCTS = 8
# Planes of the cells: nearly as tight as all bounds of the table in small boxes, at half the cost.
CELLS = SoftmaxBounds(("er",), ("lse",))
# Cells are boxes of inputs where at most so many move.
BOXES = 32
# Where entries that can be cut have a smaller share of the loss than this, other bounds come first.
HERE = 0.6
# So many cells are cut before them nevertheless, where cells cost next to nothing and entries that can be cut lose more
# than what is missing.
LOOK = 1000
# Steps and restarts of an attack from where the bound of a cell is attained.
STEPS, RESTARTS = 20, 1


Challenge = Callable[[list[int], list[Any]], None]


@stages.register(Branch)
def _(method: Branch, work: Work) -> Iterator[Any]:
    """Boxes of inputs after the method inside; with many inputs, cuts inside the network after linear walks."""
    cutting, networks = _Cutting(method, work), networks_of(work)
    # With few inputs that move, halving them makes every bound tighter.
    region = work.problem.region
    if int((region.upper > region.lower).flatten(1).sum(1).max()) <= BOXES:
        yield from stages(method.inner, work)
        cutting.boxes(work.open())
        return
    walks = linear_walks(work, method.second_order.linear)
    yield walks
    work.attack_open(1)  # the others may take longer than a proof

    done = networks.products and cutting.by_attention(walks)  # second order is then worth more than the first cells
    if done:
        yield from second_order(work, walks, method.second_order)
    work.attack_open()

    def products() -> None:
        """Second order, with fitted rows: they gain more than many cells."""
        if networks.products and not done:
            for stage in second_order(work, walks, method.second_order):
                work.claims.improve(stage, work.found)

    cutting.boxes(cutting.inside(walks.bounds[0], products))


class _Cutting:
    """What is open of a batch of margins, as the problems of one search."""

    def __init__(self, method: Branch, work: Work) -> None:
        assert isinstance(work.claims, Margins)
        self.margins, self.method, self.effort, self.found = work.claims, method, work.effort, work.found
        self.work = work
        self.problem, self.structure = work.problem, networks_of(work).graphs[0].structure

    def _search(self, bounds: Bounds, instance: Tensor) -> Search:
        """A search for margins, one problem for every instance given; what was spent on these counts."""
        self.found.spent.charge(instance.unique())
        before = {i: self.found.spent.of(i)["cpu_seconds"] for i in set(instance.tolist())}
        return Search(bounds, self.method, [0.0] * len(instance), instance.tolist(), self.effort.deadline, before)

    def boxes(self, instances: Tensor) -> None:
        """Cells that are boxes of inputs, bounded by linear walks and second order, all groups together."""
        if not len(instances):
            return
        mine, graph, region = self.margins.take(instances), self.problem.graph, self.problem.region.take(instances)
        rows = Rows(mine.rows.reshape(*mine.offsets.shape, *graph.output_shape), mine.offsets, mine.group)
        effort, method = self.effort, self.method
        bounds = WalkLeaves(graph, self.structure, region, rows, method.second_order, effort.memory, effort.deadline)
        search = self._search(bounds, instances)
        groups = range(self.margins.groups)
        try:
            search.run(self._challenge(search, [groups] * len(instances)))
        finally:
            _, row = self.margins.best_rows(self.found.bounds)
            for problem, instance in enumerate(instances.tolist()):
                # Every group is excluded by this much in every cell, by one row or another.
                self._keep(search, problem, [int(row[group, instance]) for group in groups])
                if search.bound(problem) > 0:
                    self.found.cuts[instance] = search.roots[problem].cuts()
            self.found.spent.charge(search.spent())
        if search.interrupted:
            raise KeyboardInterrupt

    def by_attention(self, walks: Walks) -> bool:
        """Whether attention loses more of the worst open rows than entries that can be cut."""
        row, instance = self.margins.worst_rows(self.found)
        bounds = walks.bounds[0]
        rows = self.margins.rows[row, instance].reshape(-1, *bounds.graph.output_shape)
        found = account(bounds, rows, walks.places(instance))
        return bool((found.lost((Bilinear, Softmax)) > found.lost((Elementwise,))).all())

    def inside(self, bounds: LinearBounds, elsewhere: Callable[[], None]) -> Tensor:
        """Cuts inside the network, for every open group by the row that was best at first.

        Where most of the loss is not that of entries that can be cut, ``elsewhere`` is called for the other one first.
        Returns the instances of which nothing more can be cut.
        """
        group, instance = self.margins.open_groups(self.found).nonzero(as_tuple=True)
        if not len(group):
            return instance
        _, best = self.margins.best_rows(self.found.bounds)
        row = best[group, instance]
        rows = self.margins.rows[row, instance].reshape(-1, *bounds.graph.output_shape)
        offsets = self.margins.offsets[row, instance]
        cells = CutLeaves(bounds, instance, rows, offsets, sharpen=not self.effort.proofs)
        search = self._search(cells, instance)
        challenge = self._challenge(search, [[g] for g in group.tolist()])
        elsewise: set[int] = set()  # instances that another search tells of
        try:
            search.grow()
            if self._elsewhere_first(search, cells, challenge):
                elsewhere()
                for problem, place in enumerate(zip(row.tolist(), instance.tolist())):
                    if self.found.bounds[place] > 0:
                        search.give_up(problem)
                left = [problem for problem in range(len(row)) if search.left(problem)]
                if self.of_products(bounds) and left:
                    some = torch.tensor(left, device=row.device)
                    elsewise = set(instance[some].tolist())
                    self._products(bounds, group[some], row[some], instance[some])
                    return instance[:0]
            search.run(challenge)
        finally:
            for problem, s in enumerate(row.tolist()):
                self._keep(search, problem, [s], search.owner[problem] not in elsewise)
                if search.bound(problem) > 0:
                    self.found.proved_by.setdefault((s, search.owner[problem]), CUT)
            self.found.spent.charge(search.spent())
        if search.interrupted:
            raise KeyboardInterrupt
        return torch.tensor(search.stuck(), dtype=torch.long, device=instance.device)

    def _elsewhere_first(self, search: Search, cells: CutLeaves, challenge: Challenge | None) -> bool:
        """Whether other bounds come before more cuts; where these cost next to nothing, after a look at some."""

        def left() -> list[int]:
            return [problem for problem in range(len(search.roots)) if search.left(problem)]

        share = [cells.shares[problem] for problem in left()]
        if not share or sum(share) / len(share) >= HERE:
            return False
        if cells.short and all(search.bound(problem) + cells.lost[problem] > 0 for problem in left()):
            search.run(challenge, LOOK)
        return bool(left())

    def of_products(self, bounds: LinearBounds) -> bool:
        """Whether cells by second order pay: many of them fit at once."""
        return networks_of(self.work).products and instances_together(bounds) >= CELLS_OF_PRODUCTS

    def _products(self, bounds: LinearBounds, group: Tensor, row: Tensor, instance: Tensor) -> None:
        """Cuts of logits and activations by second order, for some rows of some instances."""
        rows = self.margins.rows[row, instance].reshape(-1, *bounds.graph.output_shape)
        offsets = self.margins.offsets[row, instance]
        cells = ProductLeaves(bounds, instance, rows, offsets, min(64, instances_together(bounds)))
        search = self._search(cells, instance)
        try:
            search.run(self._challenge(search, [[g] for g in group.tolist()]))
        finally:
            for problem, s in enumerate(row.tolist()):
                self._keep(search, problem, [s])
                if search.bound(problem) > 0:
                    self.found.proved_by[s, search.owner[problem]] = CUT_LOGITS
            self.found.spent.charge(search.spent())
        if search.interrupted:
            raise KeyboardInterrupt

    def _keep(self, search: Search, problem: int, rows: list[int], told: bool = True) -> None:
        """What a search proved of a problem; ``told``: it is the one that speaks of its instance."""
        instance = search.owner[problem]
        known = self.found.bounds[rows, instance]
        self.found.bounds[rows, instance] = known.clamp(min=search.bound(problem))
        if not told:
            return
        self.found.notes[instance] = search.described(instance)
        if (cells := search.cells(instance)) is not None:
            self.found.cells[instance] = cells
        if self.effort.proofs and search.roots:
            self.found.grown[instance] = search.grown(instance)

    def _challenge(self, search: Search, groups: Sequence[Sequence[int]]) -> Challenge | None:
        """Attacks from where open cells are worst; what breaks an instance ends the work on it."""
        if self.effort.attack == "never":
            return None

        def challenge(problems: list[int], at: list[Any]) -> None:
            pairs = [(k, problem, group) for k, problem in enumerate(problems) for group in groups[problem]]
            table = torch.tensor([(k, search.owner[problem], group) for k, problem, group in pairs])
            which, instance, group = table.to(self.found.attack.device).T

            start = torch.stack(at).reshape(len(problems), *self.problem.graph.input_shape)[which]
            how = (STEPS, RESTARTS, self.method.seed, self.effort.deadline)
            self.margins.descend(self.problem, self.found, group, instance, start, *how)
            for i in set(instance.tolist()):
                if self.found.attack[i] < 0:
                    search.give_up_all(i)

        return challenge


@dataclass(frozen=True)
class Cells:
    """Branching for scores of feedforward networks: the convex program of every cell by steps on its dual."""

    method: Branch
    softmax: SoftmaxBounds
    outward: bool = True


@taken.register(Branch)
def _(method: Branch, given: Members) -> tuple[Layered, Cells]:
    if given.separate:
        raise InvalidInput("method 'branch' bounds all networks over one input; leave separate out")
    if given.device.type != "cpu":
        raise InvalidInput("method 'branch' bounds scores on the CPU; leave device out")
    return given.layered(), Cells(method, given.softmax, given.outward)


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
        """Branches on all pieces that the attack leaves a gap for, and raises their bounds."""
        goal = self.floor + self._tolerance()
        start = self.claims.at[self.instance]
        bounds = DualLeaves(self.relaxation, self.instance, self._plane, start)
        target = (-goal)[self.instance].tolist()
        search = Search(bounds, self.method, target, self.instance.tolist(), self.deadline)
        search.run()
        found.spent.charge(search.spent())
        left = [not search.roots or search.left(problem) > 0 for problem in range(len(target))]
        for problem, (piece, instance) in enumerate(zip(self.piece.tolist(), self.instance.tolist())):
            self.known[piece, instance] = min(float(self.known[piece, instance]), -search.bound(problem))
        # What is done is done, though the others of the batch may have been cut short.
        found.notes |= dict.fromkeys(self.instance.tolist(), "")
        found.notes |= {i: search.described(i) for i in self.instance[torch.tensor(left)].tolist()}
        cells = {i: search.cells(i) for i in self.instance.tolist()}
        found.cells |= {i: made for i, made in cells.items() if made is not None}
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
