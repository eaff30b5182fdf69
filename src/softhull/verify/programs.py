"""Bounds on the mean class probabilities of feedforward networks, by the convex programs of ``solve``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ..graph.graph import Graph
from ..graph.operator import Interval
from ..propagate.structure import positions
from ..solve.dual import Dual
from ..solve.layers import is_feedforward, stack_networks
from ..solve.optimum import Optimum, trivial_bound
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax_boxes import SoftmaxBounds, parse_bounds
from .engine import Work, stages
from .ensemble import Joined, Layered


@dataclass(frozen=True)
class Members:
    """Networks whose mean probabilities are asked about, and how: what a method needs to take them its own way.

    ``program`` is the method for feedforward networks where the choice is not the caller's.
    """

    graphs: Sequence[Graph]
    labels: Sequence[str]
    bound: str
    separate: bool
    rounding: str
    device: torch.device
    program: Any = field(default_factory=Dual)

    @property
    def softmax(self) -> SoftmaxBounds:
        """The softmax bounds asked for."""
        return parse_bounds(self.bound)

    @property
    def outward(self) -> bool:
        """Whether every rounding error is charged."""
        return self.rounding == "outward"

    @property
    def feedforward(self) -> bool:
        """Whether all networks are feedforward or convolutional, without products of variable tensors."""
        return all(is_feedforward(graph) for graph in self.graphs)

    def layered(self) -> Layered:
        """The networks layer by layer; ModelError where one is not feedforward."""
        return Layered(stack_networks(list(self.graphs), list(self.labels)))


@singledispatch
def taken(method: Any, given: Members) -> tuple[Joined | Layered, Any]:
    """The networks as a method takes them, and the method with all its settings: by default, one convex program."""
    return given.layered().to(given.device), Programs(method, given.softmax, given.separate, given.outward)


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
