"""Bounds on the mean class probabilities of feedforward networks, by the convex programs of ``solve``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.operator import Interval
from ..propagate.structure import positions
from ..solve.optimum import Optimum, trivial_bound
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax_boxes import SoftmaxBounds
from .engine import Work, stages
from .ensemble import Layered


@dataclass(frozen=True)
class Programs:
    """Lines around activations, planes around the softmax, all of it one convex program for a method of ``solve``.

    ``separate`` lets every network choose its own input.
    """

    method: Any
    softmax: SoftmaxBounds
    separate: bool = False
    outward: bool = True


@stages.register(Programs)
def _(method: Programs, work: Work) -> Iterator[Program]:
    assert isinstance(work.problem.networks, Layered)
    relaxation = relax(work.problem.networks.stacks, work.problem.region, method.softmax, method.outward)
    yield Program(positions(work.problem.start), relaxation, method.method, method.separate, work.effort.deadline)


@dataclass(frozen=True)
class Program:
    """One relaxation of all ``instances``, and a method that solves it."""

    instances: Tensor
    relaxation: Relaxation
    method: Any
    separate: bool
    deadline: float

    ways = ("program",)
    together = 128  # rows solved for at once, whatever the number of instances

    def relaxed(self, at: Tensor, outward: bool) -> Program:
        """Itself: its softmax planes follow the solution."""
        return self

    def probabilities(self) -> Interval:
        """Ranges of the mean probabilities."""
        return self.relaxation.probabilities()

    def logits(self) -> list[Interval]:
        """Ranges of the logits, one pair per network."""
        boxes = [part.bounds.logits for part in self.relaxation.stacks]
        return [(low[:, m], high[:, m]) for low, high in boxes for m in range(low.shape[1])]

    def trivial(self, coefficients: Tensor) -> Tensor:
        """Bounds on ``coefficients . p`` from the ranges of the probabilities alone."""
        return trivial_bound(self.relaxation, coefficients)

    def solve(self, coefficients: Tensor, instances: Tensor) -> Optimum:
        """Bounds on the maximum of ``coefficients . p``, over one shared input or an input for each network."""
        relaxation = self.relaxation.take(instances)
        if not self.separate:
            found: Optimum = self.method.solve(relaxation, coefficients, self.deadline)
            return found
        alone = [self.method.solve(part, coefficients, self.deadline) for part in relaxation.networks_alone()]
        bounds = torch.stack([solution.bound for solution in alone])
        return Optimum(
            bounds.mean(0) + relaxation.share(len(alone)) * bounds.abs().mean(0),
            torch.stack([solution.probabilities for solution in alone]).mean(0),
            alone[0].x,
            {"networks": [solution.certificate for solution in alone]},
            {k: note for solution in alone for k, note in solution.notes.items()},
        )
