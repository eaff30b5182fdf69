"""What an attacker can make of a data set: several attacks, and everything they met on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from ..regions import Region
from .score import ScoreAttack

Objective = Callable[[Tensor, Tensor], Tensor]  # (probabilities [B, K], labels [B]) -> what is raised [B]


def _own(p: Tensor, label: Tensor) -> Tensor:
    return p.gather(1, label[:, None])[:, 0]


def _rival(p: Tensor, label: Tensor) -> Tensor:
    return p.scatter(1, label[:, None], -1.0).amax(1)


def _brier(p: Tensor, label: Tensor) -> Tensor:
    return (p * p).sum(1) - 2 * _own(p, label) + 1


# Lose the label, spread the error, be sure of a wrong class, be unsure, be sure. The last three are what a calibration
# error is made of: confidence without being right, and being right without confidence.
OBJECTIVES: tuple[Objective, ...] = (
    lambda p, label: -_own(p, label).log(),
    _brier,
    _rival,
    lambda p, label: -p.amax(1),
    lambda p, label: p.amax(1),
)


@dataclass
class Visits:
    """Every distribution the attacks met, sample by sample, summed up; arrays, once found.

    ``points [n, 1 + attacks, K]``: of the input itself and of the best input of every attack. ``nll``, ``brier [n]``:
    the largest met. ``lost [n]``: 1 where a wrong prediction was met. ``sure [n, 2]``: the lowest and the highest
    confidence met. ``table [n, bins, 2, 2]``: the same by bin and by whether the prediction was correct (wrong first);
    an infinite pair where there was none.
    """

    points: np.ndarray
    nll: np.ndarray
    brier: np.ndarray
    lost: np.ndarray
    sure: np.ndarray
    table: np.ndarray

    def take(self, i: int) -> Visits:
        """One of the samples."""
        return Visits(*(getattr(self, each.name)[i : i + 1] for each in fields(self)))


def attack_samples(
    probabilities: Callable[[Tensor], Tensor],
    x: Tensor,
    label: Tensor,
    region: Region,
    edges: np.ndarray,
    attack: ScoreAttack | None,
    deadline: float | None = None,
) -> Visits:
    """Run one attack per objective on a batch and keep what they meet; ``edges [bins + 1]`` of confidences.

    Without an attack only the inputs themselves are met.
    """
    seen = _Seen(label, torch.as_tensor(edges, device=x.device))

    def looked_at(objective: Objective) -> Callable[[Tensor], Tensor]:
        def badness(inputs: Tensor) -> Tensor:
            p = probabilities(inputs)
            seen.look(p.detach())
            return objective(p, label)

        return badness

    found = [probabilities(x)]
    seen.look(found[0])
    for objective in OBJECTIVES:
        if attack is None:
            found.append(found[0])
            continue
        _, worst = attack.run(looked_at(objective), region, [x], deadline)
        found.append(probabilities(worst))
        seen.look(found[-1])
    table = torch.stack((seen.low, seen.high), 3)
    sure = torch.stack((seen.low.amin((1, 2)), seen.high.amax((1, 2))), 1)
    arrays = (torch.stack(found, 1), seen.nll, seen.brier, seen.lost, sure, table)
    return Visits(*(part.detach().cpu().numpy() for part in arrays))


class _Seen:
    def __init__(self, label: Tensor, edges: Tensor) -> None:
        self.label, self.edges = label, edges
        count, bins = len(label), len(edges) - 1
        self.low = edges.new_full((count, bins, 2), torch.inf)
        self.high = edges.new_full((count, bins, 2), -torch.inf)
        self.nll = edges.new_zeros(count)
        self.brier = edges.new_zeros(count)
        self.lost = edges.new_zeros(count)

    def look(self, p: Tensor) -> None:
        confidence, top = p.max(1)
        correct = top == self.label
        self.nll = torch.maximum(self.nll, -_own(p, self.label).log())
        self.brier = torch.maximum(self.brier, _brier(p, self.label))
        self.lost = torch.maximum(self.lost, (~correct).to(p))
        place = (torch.bucketize(confidence, self.edges) - 1).clamp(0, len(self.edges) - 2) * 2 + correct
        for kept, rule in ((self.low, "amin"), (self.high, "amax")):
            kept.flatten(1).scatter_reduce_(1, place[:, None], confidence[:, None], rule)
