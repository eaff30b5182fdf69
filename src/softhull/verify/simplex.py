"""What is known of the mean class probabilities of networks: ranges, the simplex, and whatever a stage bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..graph.operator import Interval
from ..graph.rounding import share
from ..solve.optimum import Optimum, simplex_bound

if TYPE_CHECKING:
    from .walks import Walks


class Relaxed(Protocol):
    """Something known of the mean class probabilities of networks over the regions of a batch."""

    @property
    def together(self) -> int:
        """How many rows may be solved for at once, whatever the number of instances."""

    def probabilities(self) -> Interval:
        """Ranges ``[B, K]``."""

    def logits(self) -> list[Interval]:
        """Ranges ``[B, K]`` of the logits of every network; empty where nothing is known of them."""

    def trivial(self, coefficients: Tensor) -> Tensor:
        """Bounds ``[B]`` on the maximum of ``coefficients . p``, at next to no cost."""

    def solve(self, coefficients: Tensor, instances: Tensor) -> Optimum:
        """Better bounds ``[b]`` for some of the instances."""


class Simplex:
    """What is known of any distributions: probabilities are at least 0 and sum to one. ``at [B, K]`` are some."""

    together = 1

    def __init__(self, at: Tensor, outward: bool) -> None:
        self.at, self.outward = at, outward

    def probabilities(self) -> Interval:
        """Probabilities are from 0 to 1."""
        return torch.zeros_like(self.at), torch.ones_like(self.at)

    def logits(self) -> list[Interval]:
        """Nothing is known of logits."""
        return []

    def trivial(self, coefficients: Tensor) -> Tensor:
        """Bounds on ``coefficients . p`` from the ranges of the probabilities."""
        return simplex_bound(coefficients, *self.probabilities(), self._share(coefficients.shape[1] + 4))

    def solve(self, coefficients: Tensor, instances: Tensor) -> Optimum:
        """The largest ``coefficients . p`` over the simplex within the ranges."""
        least, most = (end[instances] for end in self.probabilities())
        bound = simplex_bound(coefficients, least, most, self._share(coefficients.shape[1] + 4))
        return self._optimum(bound, coefficients, instances)

    def _optimum(self, bound: Tensor, coefficients: Tensor, instances: Tensor) -> Optimum:
        """The bound, and as a place where it is attained the middle between the attack and the worst of the ranges."""
        least, most = (end[instances] for end in self.probabilities())
        order = coefficients.argsort(-1, descending=True)
        room = (most - least).gather(-1, order)
        taken = (1 - least.sum(-1, keepdim=True) - room.cumsum(-1) + room).clamp(min=0)
        worst = least.scatter_add(-1, order, torch.minimum(room, taken))
        return Optimum(bound, (self.at[instances] + worst) / 2, self.at[instances, :0], {})

    def _share(self, operations: int) -> float:
        return share(operations, self.at.dtype) if self.outward else 0.0


class MeanProbabilities(Simplex):
    """What walks through networks say of the mean of their probabilities."""

    def __init__(self, at: Tensor, outward: bool, walks: Walks) -> None:
        super().__init__(at, outward)
        self.walks = walks

    def probabilities(self) -> Interval:
        """Ranges of the mean probabilities."""
        return self.walks.probabilities(self.outward)

    def logits(self) -> list[Interval]:
        """Ranges of the logits, one pair per network."""
        return self.walks.logits()

    def solve(self, coefficients: Tensor, instances: Tensor) -> Optimum:
        """Bounds on the maximum of ``coefficients . p`` by walks through every network."""
        graphs = self.walks.graphs
        low = torch.stack([self.walks.best(number, -coefficients, instances) for number in range(len(graphs))])
        bound = -low.sum(0) + self._share(len(graphs)) * low.abs().sum(0)
        bound = bound / sum(each.networks for each in graphs)
        bound = bound + self._share(2) * bound.abs()
        # Where a walk overflowed, nothing is known.
        found = self._optimum(torch.where(bound.isfinite(), bound, math.inf), coefficients, instances)
        return replace(found, certificate=self.walks.choices(instances))
