"""The loop: the cell with the worst bound is cut in two, again and again, for many problems at once.

A problem is a number to be bounded from below over a region; its bound is that of its worst cell, at any moment. It is
proved once all its cells are above its target. What a bound is and where it loses is up to ``Bounds``.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from ..deadlines import passed
from ..propagate.methods import Branch
from .cuts import Cut, Path
from .tree import Cells, Grown, Moment, Node

_watcher: Callable[[int, float], None] | None = None


@contextmanager
def watching(tell: Callable[[int, float], None]) -> Iterator[None]:
    """Within, searches of this process tell how many cells are open and the worst of their bounds, round by round."""
    global _watcher
    before, _watcher = _watcher, tell
    try:
        yield
    finally:
        _watcher = before


@dataclass
class Solved:
    """One cell: its bound, where to cut it (best first), how the search for its bound ended, where it is attained.

    ``warm`` takes ``size`` bytes and may be forgotten: then the bounds of the cell's children start from its root.
    """

    bound: float
    cuts: Sequence[Cut] = ()
    warm: Any = field(default=None, repr=False)
    x: Any = field(default=None, repr=False)
    size: int = 0


@dataclass(frozen=True)
class Cell:
    """A cell to be bounded: its problem, the cuts that make it, and what its parent left."""

    problem: int
    path: Path
    warm: Any = None  # of a cell with all cuts but the last


class Bounds(Protocol):
    """How cells are bounded. Every bound is a proof for its cell alone.

    Fewer cells than ``together`` cost about as much as that many: then cells are cut several times at once, untried.
    """

    together: int

    def roots(self) -> list[Solved]:
        """The whole regions, one per problem."""

    def quick(self, cells: Sequence[Cell]) -> list[float]:
        """Cheap bounds, to choose among cuts; they need not be proofs."""

    def solve(self, cells: Sequence[Cell]) -> list[Solved]:
        """Proofs for these cells."""


@dataclass
class Instance:
    """What one instance has used up, ``before`` the search, too."""

    before: float = 0.0
    seconds: float = 0.0
    nodes: int = 0
    stopped: str = ""


class Search:
    """The cells of all problems. ``owner`` is the instance of every problem, ``target`` what a proof must exceed."""

    def __init__(
        self,
        bounds: Bounds,
        settings: Branch,
        target: Sequence[float],
        owner: Sequence[int] | None = None,
        deadline: float = math.inf,
        before: Mapping[int, float] | None = None,
    ) -> None:
        """``before``: CPU seconds that instances have had already; they count towards what they are allowed."""
        self.bounds, self.settings, self.deadline = bounds, settings, deadline
        self.target = list(target)
        self.owner = list(range(len(self.target))) if owner is None else list(owner)
        self.instances = {i: Instance((before or {}).get(i, 0.0)) for i in self.owner}
        self._each = 0.0  # seconds that the last cells took to cut, each
        self.roots: list[Node] = []
        self._open: list[list[tuple[float, int, Node]]] = [[] for _ in self.target]
        self._stuck: list[list[Node]] = [[] for _ in self.target]  # cells that nothing can be cut of
        self._solved: dict[int, Solved] = {}  # by the number of an open cell
        self._kept = 0
        self._numbers = count()
        self.interrupted = False
        self._history: dict[int, list[Moment]] = {i: [] for i in self.owner}

    def run(self, challenge: Callable[[list[int], list[Any]], None] | None = None, most: float = math.inf) -> None:
        """Cut until everything is proved or used up. An interrupt or the deadline leaves the best so far.

        ``most``: so many cells are cut, and a few more.
        ``challenge`` is called now and then with open problems and where their bounds are attained, and may raise
        their targets' attack or give them up (``give_up``).
        """
        try:
            self.grow()
            rounds, cut = 0, 0
            while cut < most and (nodes := self._pick()) and not self._late():
                began = time.process_time()
                self._cut(nodes)
                rounds, cut = rounds + 1, cut + len(nodes)
                seconds = time.process_time() - began
                self._each = seconds / len(nodes)
                self._charge([node.problem for _, node in nodes], seconds)
                self._note({self.owner[node.problem] for _, node in nodes})
                if challenge is not None and rounds & (rounds - 1) == 0:  # after 1, 2, 4, 8, ... rounds
                    self._challenge(challenge)
        except KeyboardInterrupt:
            self.interrupted = True

    def grow(self) -> None:
        """Bound the whole regions, if that has not been done."""
        if self.roots:
            return
        began = time.process_time()
        for problem, found in enumerate(self.bounds.roots()):
            root = Node(problem, None, None, found.bound)
            self.roots.append(root)
            self._keep(root, found)
        self._charge([root.problem for root in self.roots], time.process_time() - began)
        self._note(set(self.owner))

    def grown(self, instance: int) -> Grown:
        """The trees of an instance, and how its bound rose."""
        mine = [problem for problem, owner in enumerate(self.owner) if owner == instance]
        return Grown(tuple(self.roots[p].described() for p in mine if self.roots), tuple(self._history[instance]))

    def _note(self, instances: set[int]) -> None:
        """What is known of some instances now: the worst bound of what is open, or of all cells where nothing is."""
        worst: dict[int, list[float]] = {i: [] for i in instances}
        left = dict.fromkeys(instances, 0)
        for problem, owner in enumerate(self.owner):
            if owner in instances:
                left[owner] += self.left(problem)
                worst[owner] += [heap[0][0] for heap in (self._open[problem],) if heap]
                worst[owner] += [node.bound for node in self._stuck[problem]]
        for i in instances:
            mine = (problem for problem, owner in enumerate(self.owner) if owner == i)
            bound = min(worst[i]) if worst[i] else min(self.bound(problem) for problem in mine)
            self._history[i].append(Moment(self.instances[i].seconds, bound, left[i]))
        if _watcher is not None:
            _watcher(sum(left.values()), min(self._history[i][-1].bound for i in instances))

    def bound(self, problem: int) -> float:
        """What is proved: the bound of the worst cell."""
        if not self.roots:
            return float("-inf")
        return min(leaf.bound for leaf in self.roots[problem].leaves())

    def left(self, problem: int) -> int:
        """How many cells are not proved."""
        return len(self._open[problem]) + len(self._stuck[problem])

    def cells(self, instance: int) -> Cells | None:
        """Those of all problems of an instance; None: nothing was looked at."""
        if not self.roots:
            return None
        mine = [problem for problem, owner in enumerate(self.owner) if owner == instance]
        leaves = [leaf for problem in mine for leaf in self.roots[problem].leaves()]
        return Cells(len(leaves), max(leaf.depth for leaf in leaves), sum(self.left(problem) for problem in mine))

    def described(self, instance: int) -> str:
        """The same in one line, with what may help."""
        cells = self.cells(instance)
        if cells is None:
            return "not branched"
        line = f"{cells.number} cells, {cells.depth} cuts deep, {cells.left or 'none'} left"
        return line + ("; raise seconds or nodes" if cells.left and self.instances[instance].stopped else "")

    def spent(self) -> dict[int, float]:
        """CPU seconds by instance."""
        return {number: instance.seconds for number, instance in self.instances.items()}

    def give_up(self, problem: int) -> None:
        """Cut no more of a problem, because it is settled otherwise."""
        for _, number, _ in self._open[problem]:
            self._forget(number)
        self._open[problem], self._stuck[problem] = [], []

    def stuck(self) -> list[int]:
        """The instances that have cells left, but none that can be cut."""
        found = []
        for instance in self.instances:
            mine = [problem for problem, owner in enumerate(self.owner) if owner == instance]
            if any(self._stuck[problem] for problem in mine) and not any(self._open[problem] for problem in mine):
                found.append(instance)
        return found

    def give_up_all(self, instance: int) -> None:
        """Cut no more of an instance."""
        for problem, owner in enumerate(self.owner):
            if owner == instance:
                self.give_up(problem)

    def _late(self) -> bool:
        return passed(self.deadline)

    def _challenge(self, challenge: Callable[[list[int], list[Any]], None]) -> None:
        worst = [(heap[0][1], problem) for problem, heap in enumerate(self._open) if heap]
        known = [(self._solved[number].x, problem) for number, problem in worst if number in self._solved]
        if known:
            began = time.process_time()
            problems = [problem for _, problem in known]
            challenge(problems, [x for x, _ in known])
            self._charge(problems, time.process_time() - began)

    def _keep(self, node: Node, found: Solved) -> None:
        """A cell that is not proved waits for its turn, the worst first."""
        if node.bound > self.target[node.problem]:
            return
        if not found.cuts:
            self._stuck[node.problem].append(node)
            return
        number = next(self._numbers)
        if self._kept + found.size > self.settings.memory:
            found.warm, found.size = None, 0
        self._kept += found.size
        self._solved[number] = found
        heapq.heappush(self._open[node.problem], (node.bound, number, node))

    def _forget(self, number: int) -> Solved:
        found = self._solved.pop(number)
        self._kept -= found.size
        return found

    def _pick(self) -> list[tuple[int, Node]]:
        """The worst cells, as many of every open instance as fit one batch."""
        waiting: dict[int, list[int]] = {}
        most: dict[int, float] = {}  # cells that the time left of an instance allows for
        for problem, heap in enumerate(self._open):
            while heap and heap[0][0] > self.target[problem]:  # targets may have changed
                self._forget(heapq.heappop(heap)[1])
            instance = self.instances[self.owner[problem]]
            left = self.settings.allowed - instance.before - instance.seconds
            most[self.owner[problem]] = left / self._each if self._each else math.inf
            if left <= 0.5 * self._each or instance.nodes >= self.settings.nodes:
                instance.stopped = instance.stopped or "used up"
            elif heap:
                waiting.setdefault(self.owner[problem], []).append(problem)
        share = max(1, self.settings.cells // max(1, 2 * len(waiting)))
        chosen: list[tuple[int, Node]] = []
        for owner, problems in waiting.items():
            for _ in range(max(1, int(min(share, most[owner])))):
                heaps = [self._open[problem] for problem in problems if self._open[problem]]
                if not heaps or len(chosen) >= self.settings.cells:
                    break
                # the worst of all pieces, measured by what each has to reach
                heap = min(heaps, key=lambda h: (h[0][0] - self.target[h[0][2].problem], h[0][1]))
                _, number, node = heapq.heappop(heap)
                chosen.append((number, node))
        return chosen

    def _cut(self, nodes: list[tuple[int, Node]]) -> None:
        """The children of every cell, by the cut whose worse child gains most, or by several cuts at once."""
        solved = [self._solved[number] for number, _ in nodes]
        times = max(1, int(math.log2(max(1, self.bounds.together / len(nodes)))))
        try:
            several = self.bounds.together > 1
            cuts = [found.cuts[:times] for found in solved] if several else self._choose(nodes, solved)
        except BaseException:
            self._back(nodes)
            raise
        if self._late():  # trying took all of the time that was left
            self._back(nodes)
            return
        grown, leaves, cells = [], [], []
        for (_, node), found, chosen in zip(nodes, solved, cuts):
            copy = Node(node.problem, node.parent, node.side, node.bound)
            ends = [copy]
            for cut in chosen:
                for end in ends:
                    left, right = (Node(end.problem, end, side, end.bound) for side in cut.sides)
                    end.children = (left, right)
                ends = [child for end in ends for child in end.children or ()]
            grown.append(copy)
            leaves += ends
            cells += [Cell(end.problem, end.path, found.warm) for end in ends]
        try:
            children = self.bounds.solve(cells)
        except BaseException:
            self._back(nodes)  # nothing is lost with the work that was interrupted
            raise
        for (number, node), copy in zip(nodes, grown):
            self._forget(number)
            node.children = copy.children
            for child in copy.children or ():
                child.parent = node
            self.instances[self.owner[node.problem]].nodes += len(copy.leaves())
        for leaf, fresh in zip(leaves, children):
            leaf.bound = max(leaf.bound, fresh.bound)
            self._keep(leaf, fresh)

    def _back(self, nodes: list[tuple[int, Node]]) -> None:
        for number, node in nodes:
            heapq.heappush(self._open[node.problem], (node.bound, number, node))

    def _choose(self, nodes: list[tuple[int, Node]], solved: list[Solved]) -> list[Sequence[Cut]]:
        """One cut for every cell: the best of a few that are tried."""
        tries = [found.cuts[: self.settings.tries] for found in solved]
        cells = [
            Cell(node.problem, (*node.path, side), found.warm)
            for (_, node), found, cuts in zip(nodes, solved, tries)
            if len(cuts) > 1
            for cut in cuts
            for side in cut.sides
        ]
        values = iter(self.bounds.quick(cells) if cells else [])
        chosen: list[Sequence[Cut]] = []
        for (_, node), cuts in zip(nodes, tries):
            if len(cuts) == 1:
                chosen.append(cuts)
                continue
            top = self.target[node.problem]
            scores = []
            for _ in cuts:
                # Beyond the target there is nothing to gain.
                low, high = sorted(min(max(next(values), node.bound), top) for _ in range(2))
                scores.append(low + 0.2 * high)
            best = max(range(len(cuts)), key=lambda i: (scores[i], -i))
            chosen.append(cuts[best : best + 1])
        return chosen

    def _charge(self, problems: list[int], seconds: float) -> None:
        for problem in problems:
            self.instances[self.owner[problem]].seconds += seconds / len(problems)
