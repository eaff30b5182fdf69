"""One loop for every question: the stages of a method, the cheapest first, each on what is still open.

A method is a frozen record of settings. Its stages are registered by its type (``stages``), in the file of what they
are made of: ``walks.py``, ``programs.py``, ``branching.py``, ``enumerate.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ..deadlines import interrupt, passed, why_stopped
from ..propagate.crown import OutOfTime
from ..propagate.knowledge import Knowledge
from ..propagate.structure import positions
from .problem import Effort, Problem, Solution, Tried


def solve(problem: Problem, method: Any, effort: Effort, knowledge: Sequence[Knowledge] = ()) -> Solution:
    """Bounds and attacks on one batch; a deadline or an interrupt leaves the best found so far.

    ``knowledge``: what is proved of the nodes of every graph already, such as that of another solution.
    """
    with torch.no_grad():
        problem = replace(problem, networks=problem.networks.over(problem.region))
    work = Work(problem, effort, knowledge)
    try:
        with torch.no_grad():
            if effort.attack == "always":
                work.attack(work.instances)
            for stage in stages(method, work):
                problem.claims.improve(stage, work.found)
                work.tried(", ".join(stage.ways), stage.instances)
        if passed(effort.deadline):
            work.found.stopped = why_stopped()
    except OutOfTime:
        work.found.stopped = why_stopped()
    except KeyboardInterrupt:
        interrupt()
        work.found.stopped = why_stopped()
    work.found.spent.charge(work.open())  # what was cut short, or done without a stage
    return work.found


class Work:
    """A problem that is being solved: what is found by now, and what is left to do."""

    def __init__(self, problem: Problem, effort: Effort, knowledge: Sequence[Knowledge] = ()) -> None:
        self.problem, self.effort = problem, effort
        self.claims = problem.claims
        with torch.no_grad():
            self.found = problem.nothing_known()
        self.found.knowledge = tuple(knowledge)
        self.instances = positions(problem.start)  # those that a method looks at first
        self.tolerance = 0.0  # a gap of this share of a number is not worth more work

    def open(self, among: Tensor | None = None) -> Tensor:
        """The instances worth more work, all or those of a mask ``[B]``."""
        left = self.claims.open(self.found, self.tolerance)
        return (left if among is None else left & among).nonzero()[:, 0]

    def attack_open(self, restarts: int | None = None) -> None:
        """Attacks what is still undecided, if the effort allows for that, from so many points or as many as it says."""
        if self.effort.attack == "open":
            self.attack(self.open(), restarts)

    def attack(self, instances: Tensor, restarts: int | None = None) -> None:
        """Attacks these instances unless time is up."""
        if len(instances) and not passed(self.effort.deadline):
            effort = self.effort if restarts is None else replace(self.effort, restarts=restarts)
            self.claims.attack(self.problem, effort, self.found, instances)
            self.tried("attack", instances)

    def tried(self, by: str, instances: Tensor) -> None:
        """Charges these instances for the time since the last charge, and writes down what came of it."""
        found = self.found
        found.spent.charge(instances)
        least = self.claims.least(found).tolist()
        for i in instances.tolist():
            steps = found.tried.setdefault(i, [])
            spent = found.spent.of(i)["cpu_seconds"] - sum(step.cpu_seconds for step in steps)
            steps.append(Tried(by, least[i], max(0.0, spent)))

    def note(self, instances: Iterable[int], line: str) -> None:
        """Notes a line for these instances."""
        self.found.notes |= dict.fromkeys(instances, line)


@singledispatch
def stages(method: Any, work: Work) -> Iterator[Any]:
    """The stages of a method on some work, one after the other; each is made when those before it have done theirs."""
    raise TypeError(f"no stages are registered for {type(method).__name__}")
