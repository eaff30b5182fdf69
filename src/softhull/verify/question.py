"""The worst score of one batch of instances, piece by piece, over whatever is known of the mean probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..graph.operator import Interval
from ..regions import Region
from ..solve.solution import Solution
from .scores import Piece, Score


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

    def solve(self, coefficients: Tensor, instances: Tensor) -> Solution:
        """Better bounds ``[b]`` for some of the instances."""


# What proves the bound on one instance: the rows bounded (``coefficients [K]``), each with what was chosen for it.
Proof = tuple[dict[str, Tensor], ...]


@dataclass(frozen=True)
class Highest:
    """Bounds ``[B]`` on the badness of a score, one line for every instance that did not go as planned, the proof."""

    badness: Tensor
    notes: dict[int, str] = field(default_factory=dict)
    certificates: tuple[dict[str, Any], ...] = ()

    def met(self, other: Highest) -> Highest:
        """The better of two bounds on the same instances."""
        lowest = torch.minimum(self.badness, other.badness)
        return Highest(lowest, self.notes | other.notes, self.certificates + other.certificates)

    def among(self, instances: Tensor, size: int) -> Highest:
        """The same for a batch of ``size`` of which these are some; nothing is known of the others."""
        badness = self.badness.new_full((size,), torch.inf).index_copy(0, instances, self.badness)
        notes = {int(instances[k]): note for k, note in self.notes.items()}
        proofs = tuple(proof | {"instances": instances[proof["instances"]]} for proof in self.certificates)
        return Highest(badness, notes, proofs)

    def proof(self, instance: int) -> Proof:
        """What was chosen for one instance, row by row, as far as it is kept by instance."""
        found = []
        for part in self.certificates:
            kept = {name: value for name, value in part.items() if isinstance(value, Tensor)}
            places = (kept["instances"] == instance).nonzero()[:, 0].tolist() if "instances" in kept else ()
            for place in places:
                found.append({name: value[place] for name, value in kept.items()})
        return tuple(found)


@dataclass(frozen=True)
class ScoreQuestion:
    """How bad can a score get within the regions? ``worst`` are attacked inputs, ``at [B, K]`` what they give."""

    score: Score
    region: Region
    label: Tensor
    worst: Tensor
    at: Tensor
    outward: bool
    deadline: float

    def take(self, instances: Tensor) -> ScoreQuestion:
        """The same question about some of the instances."""
        label, worst, at = (t[instances] for t in (self.label, self.worst, self.at))
        return replace(self, region=self.region.take(instances), label=label, worst=worst, at=at)

    def highest(self, relaxed: Relaxed) -> Highest:
        """The badness bounded piece by piece; a piece that cannot reach the attack is not bounded further."""
        pieces = self.score.pieces(self.label, *relaxed.probabilities())
        floor = self._reached(pieces)
        highest = torch.full_like(floor, -torch.inf)
        notes: dict[int, str] = {}
        certificates: list[dict[str, Any]] = []
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
                solution = relaxed.solve(plane.coefficients[open_], open_)
                best[open_] = torch.minimum(best[open_], self.sum(solution.bound, plane.offset[open_]))
                point = point.index_copy(0, open_, solution.probabilities)
                notes |= {int(open_[k]): note for k, note in solution.notes.items()}
                proof = {"coefficients": plane.coefficients[open_], "offset": plane.offset[open_], "instances": open_}
                certificates.append(proof | solution.certificate)
            highest = torch.maximum(highest, best)
        return Highest(highest, notes, tuple(certificates))

    def _reached(self, pieces: list[Piece]) -> Tensor:
        """What the pieces reach at the attacked inputs."""
        planes = [piece.tangent(self.at) for piece in pieces]
        return torch.stack([(plane.coefficients * self.at).sum(1) + plane.offset for plane in planes]).amax(0)

    def sum(self, bound: Tensor, offset: Tensor) -> Tensor:
        """A bound and the offset of its piece, rounded up."""
        total = bound + offset
        return torch.nextafter(total, torch.full_like(total, torch.inf)) if self.outward else total
