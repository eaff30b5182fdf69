"""Scores of a predicted distribution: what is certified about uncertainty.

A score says how bad a distribution ``p`` is for a label. For certification it is written as a *badness*, large when
bad, that is at most the largest of a few affine or concave pieces in ``p``, with a way back from badness to score.
To add one, subclass ``Score``, give the pieces, and pass an instance as ``score=``. Pieces and the way back are rounded
outward here: their coefficients and offsets are taken as the exact numbers they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import InvalidInput, unknown
from ..graph.rounding import share, ulps

# Units in the last place that a logarithm may be off.
LOGARITHM = 4


@dataclass(frozen=True)
class AffinePiece:
    """``coefficients . p + offset`` with one row ``[B, K]`` and one number ``[B]`` per instance."""

    coefficients: Tensor
    offset: Tensor

    def tangent(self, at: Tensor) -> AffinePiece:
        """Itself."""
        return self

    rounds: ClassVar[int] = 1


@dataclass(frozen=True)
class ConcavePiece:
    """A concave differentiable function of ``p [B, K]``; every tangent is an affine bound from above."""

    function: Callable[[Tensor], Tensor]
    rounds: ClassVar[int] = 3  # tangents tried, each at the worst point of the one before

    def tangent(self, at: Tensor) -> AffinePiece:
        """The tangent at distributions ``at [B, K]``, raised by what rounding may have cost."""
        # Inside the simplex, where the derivative of an entropy still exists.
        at = at.detach().clamp(min=1e-9).requires_grad_(True)
        with torch.enable_grad():
            value = self.function(at)
            (slope,) = torch.autograd.grad(value.sum(), at)
        value, at = value.detach(), at.detach()
        # Value and slope are accurate to a few dozen units; a slope that is off moves the tangent by as much at most.
        size = value.abs() + (slope.abs() * (1 + at)).sum(1)
        return AffinePiece(slope, value - (slope * at).sum(1) + share(64 + at.shape[1], at.dtype) * size)


Piece = AffinePiece | ConcavePiece


class Score(ABC):
    """A score, its direction, its pieces and the way back from badness."""

    name: ClassVar[str]
    worst_when: ClassVar[str] = "high"

    @abstractmethod
    def value(self, p: Tensor, label: Tensor) -> Tensor:
        """The score ``[B]`` of distributions ``[B, K]``, exactly."""

    @abstractmethod
    def pieces(self, label: Tensor, least: Tensor, most: Tensor) -> list[Piece]:
        """Pieces whose maximum is at least the badness wherever ``least <= p <= most`` (``[B, K]``) on the simplex."""

    def from_badness(self, badness: Tensor) -> Tensor:
        """The score that belongs to a badness; monotone."""
        return badness if self.worst_when == "high" else -badness

    def badness(self, p: Tensor, label: Tensor) -> Tensor:
        """What an attack maximises: grows with how bad the score is."""
        return self.value(p, label) if self.worst_when == "high" else -self.value(p, label)


@dataclass(frozen=True)
class NegativeLogLikelihood(Score):
    """``-log p_y`` in nats; its badness for certification is ``-p_y``."""

    name: ClassVar[str] = "nll"

    def value(self, p: Tensor, label: Tensor) -> Tensor:
        return -_own(p, label).log()

    def pieces(self, label: Tensor, least: Tensor, most: Tensor) -> list[Piece]:
        return [AffinePiece(-_unit(label, least), least.new_zeros(len(label)))]

    def from_badness(self, badness: Tensor) -> Tensor:
        found = -(-badness).clamp(min=0).log()
        return found + ulps(LOGARITHM, found.dtype) * found.abs()


@dataclass(frozen=True)
class Brier(Score):
    """``sum_k (p_k - [k = y])^2``, bounded by the chords of its squares over the range of every ``p_k``."""

    name: ClassVar[str] = "brier"

    def value(self, p: Tensor, label: Tensor) -> Tensor:
        return ((p - _unit(label, p)) ** 2).sum(1)

    def pieces(self, label: Tensor, least: Tensor, most: Tensor) -> list[Piece]:
        coefficients = least + most - 2 * _unit(label, least)
        # The rounding of the coefficients multiplies probabilities, that of the offset counts as it is.
        lost = share(least.shape[1], least.dtype) * (3 + (most * (2 + most)).sum(1))
        return [AffinePiece(coefficients, 1 - (least * most).sum(1) + lost)]


@dataclass(frozen=True)
class Confidence(Score):
    """The largest probability of any class, or that of one named class."""

    name: ClassVar[str] = "confidence"
    of: int | None = None

    def value(self, p: Tensor, label: Tensor) -> Tensor:
        return p.amax(1) if self.of is None else p[:, self._class(p)]

    def pieces(self, label: Tensor, least: Tensor, most: Tensor) -> list[Piece]:
        classes = range(least.shape[1]) if self.of is None else [self._class(least)]
        return [AffinePiece(_unit(torch.full_like(label, k), least), least.new_zeros(len(label))) for k in classes]

    def _class(self, p: Tensor) -> int:
        assert self.of is not None
        if not 0 <= self.of < p.shape[1]:
            raise InvalidInput(f"confidence of class {self.of}: there are {p.shape[1]} classes")
        return self.of


@dataclass(frozen=True)
class ErrorProbability(Score):
    """``1 - p_y``, the probability given to wrong classes."""

    name: ClassVar[str] = "error"

    def value(self, p: Tensor, label: Tensor) -> Tensor:
        return 1 - _own(p, label)

    def pieces(self, label: Tensor, least: Tensor, most: Tensor) -> list[Piece]:
        return [AffinePiece(-_unit(label, least), least.new_ones(len(label)))]


@dataclass(frozen=True)
class Margin(Score):
    """``p_y`` minus the best other probability; bad when low, negative when the class is lost."""

    name: ClassVar[str] = "margin"
    worst_when: ClassVar[str] = "low"

    def value(self, p: Tensor, label: Tensor) -> Tensor:
        others = p.masked_fill(_unit(label, p).bool(), -torch.inf)
        return _own(p, label) - others.amax(1)

    def pieces(self, label: Tensor, least: Tensor, most: Tensor) -> list[Piece]:
        K, zero = least.shape[1], least.new_zeros(len(label))
        return [AffinePiece(_unit((label + step) % K, least) - _unit(label, least), zero) for step in range(1, K)]


@dataclass(frozen=True)
class Entropy(Score):
    """``-sum_k p_k log p_k`` in nats: concave, so its own tangents bound it."""

    name: ClassVar[str] = "entropy"

    def value(self, p: Tensor, label: Tensor) -> Tensor:
        return torch.special.entr(p).sum(1)

    def pieces(self, label: Tensor, least: Tensor, most: Tensor) -> list[Piece]:
        return [ConcavePiece(lambda p: torch.special.entr(p).sum(1))]


SCORES: dict[str, Score] = {
    score.name: score
    for score in (NegativeLogLikelihood(), Brier(), Confidence(), ErrorProbability(), Margin(), Entropy())
}


def find_score(score: str | Score) -> Score:
    """A score by name (``"confidence:3"`` is the confidence in class 3), or the score itself."""
    if isinstance(score, Score):
        return score
    name, colon, of = score.partition(":")
    if name == Confidence.name and of.isdecimal():
        return Confidence(int(of))
    if colon or name not in SCORES:
        raise InvalidInput(unknown("score", score, SCORES, ", or confidence:3 for one class"))
    return SCORES[name]


def worst_when(name: str) -> str:
    """Whether a score is bad when ``high`` or ``low``; one that is not known by its name counts as bad when high."""
    try:
        return find_score(name).worst_when
    except InvalidInput:
        return Score.worst_when


def _unit(label: Tensor, like: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(label, like.shape[1]).to(like)


def _own(p: Tensor, label: Tensor) -> Tensor:
    return p.gather(1, label[:, None])[:, 0]
