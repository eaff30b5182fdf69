"""What a method returns: a certified bound, where it is attained in the relaxation, and the proof's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .relaxation import Relaxation


@dataclass(frozen=True)
class Solution:
    """``bound [B]`` is certified; ``probabilities [B, K]`` and ``x [B, n]`` are where the relaxation is worst, roughly.

    ``certificate`` holds the multipliers from which the bound follows; ``notes`` one line per instance that did not
    go as planned (a time limit, a solver status).
    """

    bound: Tensor
    probabilities: Tensor
    x: Tensor
    certificate: dict[str, Any] = field(repr=False)
    notes: dict[int, str] = field(default_factory=dict)


def trivial_bound(relaxation: Relaxation, coefficients: Tensor) -> Tensor:
    """The bound ``[B]`` from the constant bounds imposed and the simplex: fill the largest coefficients first."""
    least, most = relaxation.probabilities()
    low, high = relaxation.softmax.constant_sides(coefficients)
    least, most = torch.where(low, least, 0.0), torch.where(high, most, 1.0)
    box = torch.where(coefficients > 0, coefficients * most, coefficients * least).sum(1)
    order = coefficients.argsort(1, descending=True)
    room = (most - least).gather(1, order)
    before = room.cumsum(1) - room
    left = (1 - least.sum(1, keepdim=True)).clamp(min=0)
    taken = torch.minimum((left - before).clamp(min=0), room)
    filled = (coefficients * least).sum(1) + (coefficients.gather(1, order) * taken).sum(1)
    # What is left is a difference of numbers near 1: its rounding is charged, which the box alone does not need.
    slack = 8 * coefficients.shape[1] * torch.finfo(coefficients.dtype).eps * coefficients.abs().sum(1)
    return torch.minimum(box, filled + slack)
