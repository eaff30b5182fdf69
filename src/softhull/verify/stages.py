"""How a question about scores is answered: by one convex program, or by walks, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..deadlines import why_stopped
from ..devices import moved
from ..graph.operator import Bilinear
from ..propagate.crown import LinearBounds, OutOfTime
from ..propagate.methods import Auto, Linear, SecondOrder
from ..propagate.structure import pieces, positions
from ..solve.layers import Stack
from ..solve.relaxation import relax
from ..solve.softmax import SoftmaxBounds
from .ensemble import Ensemble
from .programs import Programs
from .prove import instances_together
from .question import Highest, ScoreQuestion
from .walks import MEMORY, SecondOrderWalks, Simplex, Walks, mean_probabilities

# A bound is settled where all that is left to gain is this share of the score that the attack reaches: a question about
# classes ends with its proof, but one about a score would go on through every stage for digits that nobody reads.
SETTLED = 1e-3


@dataclass(frozen=True)
class ByPrograms:
    """Feedforward networks: lines around activations, planes around the softmax, all of it one convex program."""

    stacks: list[Stack]
    method: Any
    softmax: SoftmaxBounds
    separate: bool

    @property
    def classes(self) -> int:
        return self.stacks[0].classes

    def to(self, device: torch.device) -> ByPrograms:
        return replace(self, stacks=moved(self.stacks, device))

    def probabilities(self, x: Tensor) -> Tensor:
        """Mean class probabilities ``[B, K]``."""
        logits = torch.cat([stack.values(x.flatten(1))[-1] for stack in self.stacks], 1)
        return logits.softmax(-1).mean(1)

    def highest(self, question: ScoreQuestion) -> Highest:
        """The best that the method finds."""
        relaxation = relax(self.stacks, question.region, self.softmax, question.outward)
        return question.highest(Programs(relaxation, self.method, self.separate, question.deadline))


@dataclass(frozen=True)
class ByWalks:
    """Networks of any kind: linear walks, then second order, then gradient steps where second order gained nothing.

    Every one of the ``ensembles`` has an input of its own.
    """

    ensembles: Sequence[Ensemble]
    method: Linear | SecondOrder | Auto

    @property
    def classes(self) -> int:
        return self.ensembles[0].classes

    def to(self, device: torch.device) -> ByWalks:
        return replace(self, ensembles=[ensemble.to(device) for ensemble in self.ensembles])

    def probabilities(self, x: Tensor) -> Tensor:
        """Mean class probabilities ``[B, K]``."""
        return mean_probabilities(self.ensembles, x)

    def highest(self, question: ScoreQuestion) -> Highest:
        """The best of all stages; a deadline leaves the best found so far."""
        found = question.highest(Simplex(question.at, question.outward))
        for part in pieces(positions(question.label), self._together(question)):
            try:
                for better in self._stages(question.take(part)):
                    found = found.met(better.among(part, len(question.label)))
            except OutOfTime:
                found = replace(found, notes=found.notes | dict.fromkeys(part.tolist(), why_stopped()))
        return found

    def _together(self, question: ScoreQuestion) -> int:
        """How many instances to hold affine forms of at once."""
        bounds = (LinearBounds(e.graph, question.region, Linear(), e.structure, MEMORY) for e in self.ensembles)
        return min(instances_together(each) for each in bounds)

    def _stages(self, question: ScoreQuestion) -> Iterator[Highest]:
        if isinstance(self.method, Linear):
            yield question.highest(self._walks(question, self.method))
            return
        automatic = self.method if isinstance(self.method, Auto) else None
        # Fitted rows gain a few percent of a score at ten times the cost: only for those who ask for them.
        method = (
            self.method if isinstance(self.method, SecondOrder) else replace(self.method.second_order, row_fit=False)
        )
        first = self._walks(question, method.linear)
        before = question.highest(first)
        yield before
        if automatic is None:
            yield from self._after(question, first, before, method, None)
            return
        rest = _unsettled(question, before)
        if not len(rest):
            return
        if len(rest) < len(question.label):
            part = question.take(rest)
            first = self._walks(part, method.linear)
            for better in self._after(part, first, part.highest(first), method, automatic):
                yield better.among(rest, len(question.label))
            return
        yield from self._after(question, first, before, method, automatic)

    def _after(
        self, question: ScoreQuestion, first: Walks, before: Highest, method: SecondOrder, automatic: Auto | None
    ) -> Iterator[Highest]:
        """What second order adds to linear walks, and gradient steps to both where it added nothing."""
        after = before
        if any(isinstance(node.operator, Bilinear) for ensemble in self.ensembles for node in ensemble.graph.nodes):
            classes = torch.stack((question.label, question.at.argmax(1)), 1)
            after = question.highest(SecondOrderWalks.after(first, method, classes))
            yield after
        left = (~(after.badness < before.badness)).nonzero()[:, 0]
        if automatic and len(left):
            left = left[torch.isin(left, _unsettled(question, after))]
        if automatic and automatic.optimize and len(left):
            part = question.take(left)
            yield part.highest(self._walks(part, automatic.linear)).among(left, len(question.label))

    def _walks(self, question: ScoreQuestion, method: Linear) -> Walks:
        return Walks.of(self.ensembles, question.region, method, question.worst, question.deadline)


def _unsettled(question: ScoreQuestion, found: Highest) -> Tensor:
    """The instances whose bound is not yet next to what the attack found."""
    attacked = question.score.value(question.at, question.label)
    left = (question.score.from_badness(found.badness) - attacked).abs()
    return (~(left <= SETTLED * attacked.abs())).nonzero()[:, 0]
