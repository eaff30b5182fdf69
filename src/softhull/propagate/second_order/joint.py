"""Quadratics of the noise with cuts: multipliers of both found together, and what these prove."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.rounding import accumulated
from .central_path import Begun, Cuts, Multipliers, followed
from .quadratic import DenseQuadratic
from .specification import Quadratic, sum_below

# Noise numbers, and cuts of rectifiers, up to which a step for all of them is worth its time.
JOINT, KINKS = 320, 240


def kink_cuts(quadratic: Quadratic) -> Cuts:
    """What is known of the rectifiers that stay in a quadratic; nothing where there are too many."""
    found, n = Cuts.none(quadratic.linear), quadratic.linear.shape[1]
    for kinks, basis in quadratic.kinks.values():
        found = found.and_those(kinks.cuts(basis, n))
    return found if found.constant.shape[1] <= KINKS else Cuts.none(quadratic.linear)


def solved_jointly(
    quadratic: Quadratic,
    cuts: Cuts,
    steps: int,
    target: Tensor,
    enough: float,
    hopeless: float,
    begun: Begun | None = None,
) -> tuple[Tensor, Multipliers]:
    """Lower bounds ``[P]`` on quadratics where all cuts are kept, and their multipliers (``followed``).

    What is proved is the sum of two bounds: that of the quadratic and, times multipliers, those of the cuts.
    """
    B, lost = quadratic.dense()
    P, n = quadratic.linear.shape
    goal = target - quadratic.constant
    goal = goal + 1e-4 * (1 + goal.abs())
    # Noise that enters nowhere needs no steps.
    moving = _moving(quadratic.linear, B, cuts)
    first = None if begun is None else Begun(begun.d[:, moving], begun.b, begun.mu)
    given = quadratic.linear[:, moving], B[:, moving][:, :, moving], goal.new_full((P,), steps), goal, enough
    found = _everywhere(followed(*given, cuts.over(moving), hopeless, first), moving, n)
    b = found.b
    l = quadratic.linear + (b[..., None] * cuts.linear).sum(1)  # noqa: E741
    constant = quadratic.constant + (b * cuts.constant).sum(1)
    sizes = (b * cuts.reach()).sum(1)
    sizes = sizes + quadratic.constant.abs() + quadratic.linear.abs().sum(1) + B.abs().sum((1, 2))
    # Every number of the sum is one of B and, for every cut, a product with b; those of G have two sums before.
    rows = max((part.matrix.shape[-1] for part in cuts.squares), default=0)
    terms = 4 * rows + 2 * b.shape[1] + n + 8
    lost = lost + accumulated(terms, l.dtype) * sizes
    problem = DenseQuadratic(l, B + cuts.total(b))
    d = found.d * (1 + 1e-7) + 1e-7 * found.d.mean(1, keepdim=True)
    value = torch.maximum(problem.certified(d), problem.absolute_sums()[0])
    return sum_below(constant, sum_below(value, -lost)), found


def _moving(linear: Tensor, B: Tensor, cuts: Cuts) -> Tensor:
    """The noise ``[n']`` that any of the problems depends on; all, where there is none."""
    found = (linear != 0).any(0) | (B != 0).any(0).any(0) | (cuts.linear != 0).flatten(0, 1).any(0)
    for part in cuts.squares:
        found |= (part.factors != 0).flatten(0, 2).any(0)
    return found.nonzero()[:, 0] if bool(found.any()) else torch.arange(len(found), device=found.device)


def _everywhere(found: Multipliers, moving: Tensor, n: int) -> Multipliers:
    """Multipliers of some of the noise as those of all: where nothing depends on it, they are zero."""

    def spread(t: Tensor, other: Tensor) -> Tensor:
        return other.expand(len(t), n).clone().index_copy(1, moving, t)

    begun = Begun(spread(found.begun.d, found.begun.d.mean(1, keepdim=True)), found.begun.b, found.begun.mu)
    zero = torch.zeros_like(found.d[:, :1])
    return Multipliers(spread(found.d, zero), found.b, spread(found.x, zero), begun)
