"""Bounds on the mean class probabilities of feedforward networks, by the convex programs of ``solve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.operator import Interval
from ..solve.relaxation import Relaxation
from ..solve.solution import Solution, trivial_bound


@dataclass(frozen=True)
class Programs:
    """One relaxation and a method that solves it; ``separate`` lets every network choose its own input."""

    relaxation: Relaxation
    method: Any
    separate: bool
    deadline: float

    @property
    def together(self) -> int:
        """How many rows may be solved for at once, whatever the number of instances."""
        return 128

    def probabilities(self) -> Interval:
        """Ranges ``[B, K]`` of the mean probabilities."""
        return self.relaxation.probabilities()

    def logits(self) -> list[Interval]:
        """Ranges ``[B, K]`` of the logits of every network."""
        boxes = [part.bounds.logits for part in self.relaxation.stacks]
        return [(low[:, m], high[:, m]) for low, high in boxes for m in range(low.shape[1])]

    def trivial(self, coefficients: Tensor) -> Tensor:
        """Bounds ``[B]`` on the maximum of ``coefficients . p`` by constant bounds and simplex alone."""
        return trivial_bound(self.relaxation, coefficients)

    def solve(self, coefficients: Tensor, instances: Tensor) -> Solution:
        """Bounds ``[b]`` on the maximum of ``coefficients . p`` for some of the instances."""
        relaxation = self.relaxation.take(instances)
        if not self.separate:
            return self.method.solve(relaxation, coefficients, self.deadline)
        alone = [self.method.solve(part, coefficients, self.deadline) for part in relaxation.networks_alone()]
        bounds = torch.stack([solution.bound for solution in alone])
        return Solution(
            bounds.mean(0) + relaxation.share(len(alone)) * bounds.abs().mean(0),
            torch.stack([solution.probabilities for solution in alone]).mean(0),
            alone[0].x,
            {"networks": [solution.certificate for solution in alone]},
            {k: note for solution in alone for k, note in solution.notes.items()},
        )
