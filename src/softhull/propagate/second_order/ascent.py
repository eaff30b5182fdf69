"""Gradient steps on everything that is free in a quadratic: slopes, bends and planes on the way, then its multipliers.

For fixed multipliers the dual bound is a smooth function of the parameters of the walk, and nearly best multipliers
follow by a step or two from those before. Whatever was found, the bound in the end is one of ``bound_quadratic``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import softmax_steps as softmaxes
from ..free import Free
from ..optimize import Chosen
from ..structure import pieces, positions
from .affine_form import Noise
from .dual import Pursuit, cost, fixed_point, levelled, maximise
from .specification import Quadratic, SecondOrderBounds, bound_quadratic, over_pairs

# The size of matrices up to which a step, some ten factorisations, is worth its time.
LARGEST = 512
# After so many steps the bound is taken, which may be the proof.
_OFTEN = 10


def ascended_lower(
    second: SecondOrderBounds,
    rows: Tensor,
    instances: Tensor,
    steps: int,
    rate: float,
    target: Tensor,
    kept: list[Chosen] | None = None,
) -> Tensor:
    """Lower bounds ``[P]`` on ``<rows, output>`` of some instances; work on one ends when it exceeds its target.

    ``kept`` is told what was chosen for the best bound on every row, part by part.
    """
    for index in second.forms.errors:  # found once here, taken along by every walk
        softmaxes.row_planes(second.bounds, index, 1, Free())
    together = max(1, second.together() // 4)
    found = [
        _ascended(second, rows[part], instances[part], steps, rate, target[part], kept)
        for part in pieces(positions(rows), together)
    ]
    return torch.cat(found) if found else rows.new_zeros(0)


def _ascended(
    second: SecondOrderBounds,
    rows: Tensor,
    instances: Tensor,
    steps: int,
    rate: float,
    target: Tensor,
    kept: list[Chosen] | None,
) -> Tensor:
    """The same for as many rows as are worked on together."""
    noise, free, d, chosen = second.forms.noise, Free(), None, Chosen(rows[None])
    if kept is not None:
        kept.append(chosen)
    best = rows.new_full((len(rows),), -math.inf)
    for step in range(steps + 1):
        second.bounds.check_time()
        with torch.enable_grad():
            quadratic = second.quadratic(rows, instances, free=free)
            if step % _OFTEN == 0 or step == steps:
                with torch.no_grad():
                    low = bound_quadratic(quadratic.detached(), noise, 12, target)
                    if kept is not None:
                        chosen.see(free, (low > best)[None], positions(rows), len(rows))
                    best = torch.maximum(best, low)
                if step == steps or bool((best > target).all()) or quadratic.dimension > LARGEST:
                    break
            value, d = _value(quadratic, noise, d)
            free.ascend(torch.where(value.isfinite(), value, 0.0).sum(), rate * (1 - step / steps))
    return best


def _value(found: Quadratic, noise: Noise, d: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The dual bound ``[P]`` at multipliers near the best ones, as a function of the parameters, and these."""
    if noise.norm == 1:
        return found.constant + over_pairs(found.linear, found.dense()[0], noise.inputs, noise.held), None
    ball = noise.ball(found.linear.shape[1], found.linear.device)
    with torch.no_grad():
        problem, _ = found.detached().problem(ball)
        never = found.constant.new_full(found.constant.shape, math.inf)
        d = maximise(problem, Pursuit(12, never))[1] if d is None else d
        d = torch.where(d.isfinite(), d, problem.row_sums() + found.linear.abs())
        for _ in range(6):
            solved = problem.solve(d)
            if bool(solved.feasible.all()):
                break
            d = torch.where(solved.feasible[:, None], d, levelled(1.3 * d + 0.02 * problem.row_sums(), ball))
        d = fixed_point(problem, d, solved)
        solved = problem.solve(d)
        # The bound is the least Lagrangian; what moves its minimiser does not change it.
        at = -solved.x
    value = found.at(at) + (d * at.square()).sum(-1) - cost(d, ball)
    return torch.where(solved.feasible, value, -math.inf), d
