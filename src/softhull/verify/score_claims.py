"""The claims of a score: how bad it gets at worst, piece by piece, over whatever is known of the mean probabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .problem import Effort, Problem, Solution
from .scores import Piece, Score
from .simplex import Relaxed, Simplex


@dataclass(frozen=True)
class ScoreClaims:
    """How bad can a score get? Its badness, negated, is bounded from below.

    ``at [B, K]`` are the probabilities at the worst inputs that an attack found.
    """

    score: Score
    label: Tensor
    at: Tensor
    outward: bool

    ends: ClassVar[bool] = False

    @property
    def classes(self) -> Tensor:
        """The classes ``[B, n]`` that the score is about: the label and the prediction."""
        return torch.stack((self.label, self.at.argmax(1)), 1)

    def take(self, instances: Tensor) -> ScoreClaims:
        """The same of some of the instances."""
        return replace(self, label=self.label[instances], at=self.at[instances])

    def nothing(self) -> Tensor:
        """Bounds from the simplex alone."""
        return -self.highest(Simplex(self.at, self.outward))[0][None]

    def least(self, found: Solution) -> Tensor:
        """The bound of every instance."""
        return found.bounds[0].clone()

    def open(self, found: Solution, tolerance: float) -> Tensor:
        """All whose bound is not yet next to what the attack found."""
        attacked = self.score.value(self.at, self.label)
        left = (self.score.from_badness(-found.bounds[0]) - attacked).abs()
        return ~(left <= tolerance * attacked.abs())

    def improve(self, stage: Any, found: Solution) -> None:
        """Raises the bounds by what a stage knows of the probabilities."""
        mine, here = self.take(stage.instances), stage.instances
        badness, notes, choices = mine.highest(stage.relaxed(mine.at, self.outward))
        found.raise_to(-badness[None], here)
        found.notes |= {int(here[k]): note for k, note in notes.items()}
        found.choices += [part | {"instances": here[part["instances"]]} for part in choices]

    def attack(self, problem: Problem, effort: Effort, found: Solution, instances: Tensor) -> None:
        """There was one before: the pieces of a score start from what it found."""

    def highest(self, relaxed: Relaxed) -> tuple[Tensor, dict[int, str], list[dict[str, Any]]]:
        """The badness ``[B]`` bounded piece by piece, with notes by instance and what was chosen for every row.

        A piece that cannot reach the attack is not bounded further.
        """
        pieces = self.score.pieces(self.label, *relaxed.probabilities())
        floor = self._reached(pieces)
        highest = torch.full_like(floor, -torch.inf)
        notes: dict[int, str] = {}
        choices: list[dict[str, Any]] = []
        for piece in pieces:
            best = torch.full_like(floor, torch.inf)
            point = self.at
            for _ in range(piece.rounds):
                plane = piece.tangent(point)
                trivial = self.sum(relaxed.trivial(plane.coefficients), plane.offset)
                best = torch.minimum(best, trivial)
                open_ = torch.nonzero(~(trivial < floor))[:, 0]
                if not len(open_):
                    break
                solved = relaxed.solve(plane.coefficients[open_], open_)
                best[open_] = torch.minimum(best[open_], self.sum(solved.bound, plane.offset[open_]))
                point = point.index_copy(0, open_, solved.probabilities)
                notes |= {int(open_[k]): note for k, note in solved.notes.items()}
                row = {"coefficients": plane.coefficients[open_], "offset": plane.offset[open_], "instances": open_}
                choices.append(row | solved.certificate)
            highest = torch.maximum(highest, best)
        return highest, notes, choices

    def _reached(self, pieces: list[Piece]) -> Tensor:
        """What the pieces reach at the attacked inputs."""
        planes = [piece.tangent(self.at) for piece in pieces]
        return torch.stack([(plane.coefficients * self.at).sum(1) + plane.offset for plane in planes]).amax(0)

    def sum(self, bound: Tensor, offset: Tensor) -> Tensor:
        """A bound and the offset of its piece, rounded up."""
        total = bound + offset
        return torch.nextafter(total, torch.full_like(total, torch.inf)) if self.outward else total
