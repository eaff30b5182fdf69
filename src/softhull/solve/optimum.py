"""What a method returns: a certified bound, where it is attained in the relaxation, and the proof's numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..devices import moved
from .relaxation import Relaxation

S = TypeVar("S")


@dataclass(frozen=True)
class Optimum:
    """``bound [B]`` is certified; ``probabilities [B, K]`` and ``x [B, n]`` are where the relaxation is worst, roughly.

    ``certificate`` holds the multipliers from which the bound follows; ``notes`` one line per instance that did not
    go as planned (a time limit, a solver status).
    """

    bound: Tensor
    probabilities: Tensor
    x: Tensor
    certificate: dict[str, Any] = field(repr=False)
    notes: dict[int, str] = field(default_factory=dict)


def on_the_processor(solve: Callable[[S, Relaxation, Tensor, float | None], Optimum]) -> Callable[..., Optimum]:
    """For solvers that know arrays of the processor alone: the relaxation is brought there, the solution back."""

    @wraps(solve)
    def moving(self: S, relaxation: Relaxation, coefficients: Tensor, deadline: float | None = None) -> Optimum:
        if coefficients.is_cpu:
            return solve(self, relaxation, coefficients, deadline)
        return moved(solve(self, moved(relaxation, "cpu"), coefficients.cpu(), deadline), coefficients.device)

    return moving


def trivial_bound(relaxation: Relaxation, coefficients: Tensor) -> Tensor:
    """The bound ``[B]`` from the constant bounds imposed and the simplex."""
    least, most = relaxation.probabilities()
    low, high = relaxation.softmax.constant_sides(coefficients)
    least, most = torch.where(low, least, 0.0), torch.where(high, most, 1.0)
    return simplex_bound(coefficients, least, most, relaxation.share(coefficients.shape[1] + 4))


def simplex_bound(coefficients: Tensor, least: Tensor, most: Tensor, cost: float) -> Tensor:
    """A bound ``[B]`` on ``c.p`` over ``least <= p <= most`` on the simplex; ``cost``: what its operations may cost.

    ``c.p = t + (c - t).p`` for any t on the simplex; the best t is 0 (which keeps the digits of tiny probabilities) or
    one of the coefficients.
    """
    candidates = torch.cat((torch.zeros_like(coefficients[:, :1]), coefficients), 1)
    left = coefficients[:, None] - candidates[:, :, None]
    terms = torch.where(left > 0, left * most[:, None], left * least[:, None])
    # A difference that was rounded multiplies a probability; 0 leaves the coefficients as they are.
    rounded = (candidates != 0)[:, :, None] * left.abs() * most[:, None]
    return (candidates + terms.sum(2) + cost * (candidates.abs() + (terms.abs() + rounded).sum(2))).amin(1)
