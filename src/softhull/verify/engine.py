"""One loop for every question: the stages of a method, the cheapest first, each on what is still open.

A method is a frozen record of settings. Its stages are registered by its type (``stages``), in the file of what they
are made of: ``walks.py``, ``programs.py``, ``branching.py``, ``enumerate.py``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ..deadlines import interrupt, passed, why_stopped
from ..propagate.crown import OutOfTime
from ..propagate.structure import positions
from .problem import Effort, Problem, Solution, Tried


def solve(problem: Problem, method: Any, effort: Effort) -> Solution:
    """Bounds and attacks on one batch; a deadline or an interrupt leaves the best found so far."""
    work = Work(problem, effort)
    try:
        with torch.no_grad():
            if effort.attack == "always":
                work.attack(work.instances)
            for stage in stages(method, work):
                problem.claims.improve(stage, work.found)
                work.tried(stage)
        if passed(effort.deadline):
            work.found.stopped = why_stopped()
    except OutOfTime:
        work.found.stopped = why_stopped()
    except KeyboardInterrupt:
        interrupt()
        work.found.stopped = why_stopped()
    return work.found


class Work:
    """A problem that is being solved: what is found by now, and what is left to do."""

    def __init__(self, problem: Problem, effort: Effort) -> None:
        self.problem, self.effort = problem, effort
        self.claims = problem.claims
        with torch.no_grad():
            self.found = problem.nothing_known()
        self.instances = positions(problem.start)  # those that a method looks at first
        self.tolerance = 0.0  # a gap of this share of a number is not worth more work
        self._clock = time.process_time()

    def open(self, among: Tensor | None = None) -> Tensor:
        """The instances worth more work, all or those of a mask ``[B]``."""
        left = self.claims.open(self.found, self.tolerance)
        return (left if among is None else left & among).nonzero()[:, 0]

    def attack_open(self) -> None:
        """Attacks what is still undecided, if the effort allows for that."""
        if self.effort.attack == "open":
            self.attack(self.open())

    def attack(self, instances: Tensor) -> None:
        """Attacks these instances unless time is up."""
        if len(instances) and not passed(self.effort.deadline):
            self.claims.attack(self.problem, self.effort, self.found, instances)
            self._spent("attack", instances.tolist())

    def tried(self, stage: Any) -> None:
        """Writes down what a stage has come to, and what it took since the one before."""
        self._spent(", ".join(stage.ways), stage.instances.tolist())

    def _spent(self, by: str, instances: list[int]) -> None:
        least, now = self.claims.least(self.found).tolist(), time.process_time()
        each = (now - self._clock) / max(1, len(instances))
        self._clock = now
        for i in instances:
            self.found.tried.setdefault(i, []).append(Tried(by, least[i], each))

    def note(self, instances: Iterable[int], line: str) -> None:
        """Notes a line for these instances."""
        self.found.notes |= dict.fromkeys(instances, line)


@singledispatch
def stages(method: Any, work: Work) -> Iterator[Any]:
    """The stages of a method on some work, one after the other; each is made when those before it have done theirs."""
    raise TypeError(f"no stages are registered for {type(method).__name__}")
