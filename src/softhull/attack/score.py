"""Projected gradient ascent on a score of an ensemble: the other side of a certified bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..deadlines import passed
from ..regions import Region


@dataclass(frozen=True)
class ScoreAttack:
    """Settings of the attack on a score: signed gradient steps of falling size.

    Args:
        steps: Steps of a run.
        restarts: Runs from random starts.
        first: The first step size, as a multiple of the radius.
        last: The last step size, as a multiple of the radius.
        seed: Of the starts.
    """

    steps: int = 40
    restarts: int = 4
    first: float = 1.0
    last: float = 0.05
    seed: int = 0

    def run(
        self,
        badness: Callable[[Tensor], Tensor],
        region: Region,
        starts: list[Tensor],
        deadline: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The largest badness ``[B]`` found and its inputs ``[B, *shape]``.

        ``badness`` maps inputs to one number per instance, gradients included. The given starting points come first,
        random ones fill up to ``restarts``. A value that is not a number never counts as found.
        """
        generator = torch.Generator().manual_seed(self.seed)
        best, worst = None, None
        for restart in range(max(self.restarts, len(starts))):
            x = region.project(starts[restart]) if restart < len(starts) else region.sample(generator)
            radius = (region.upper - region.lower) / 2 if region.centre is None else region.eps * region.unit
            for step in range(self.steps + 1):
                x = x.detach().requires_grad_(True)
                value = badness(x)
                found = value.detach()
                if best is None or worst is None:
                    best, worst = found.clone(), x.detach().clone()
                better = (found > best) | (best.isnan() & ~found.isnan())
                best = torch.where(better, found, best)
                worst = torch.where(better.reshape(-1, *([1] * (x.ndim - 1))), x.detach(), worst)
                if step == self.steps or passed(deadline):
                    break
                (slope,) = torch.autograd.grad(value.sum(), x)
                size = self.first * (self.last / self.first) ** (step / max(1, self.steps - 1))
                if region.finite:
                    x = region.descend(x.detach(), -slope, size)
                    continue
                slope = slope if region.reach is None else slope * region.unit
                x = region.project(x.detach() + size * radius * _direction(slope, region.norm))
            if passed(deadline):
                break
        assert best is not None
        assert worst is not None
        return best, worst


def _direction(slope: Tensor, norm: float) -> Tensor:
    """The step of unit norm that gains most: signs, the normalised gradient, or the steepest entries."""
    if norm == 2:
        length = slope.flatten(1).norm(dim=1).reshape(-1, *([1] * (slope.ndim - 1)))
        return torch.where(length > 0, slope / torch.where(length > 0, length, 1.0), 0.0)
    if norm == 1:
        flat = slope.flatten(1)
        few = max(1, flat.shape[1] // 50)
        threshold = flat.abs().topk(few, dim=1).values[:, -1:]
        chosen = flat.sign() * (flat.abs() >= threshold)
        return (chosen / chosen.abs().sum(1, keepdim=True).clamp(min=1)).reshape(slope.shape)
    return slope.sign()
