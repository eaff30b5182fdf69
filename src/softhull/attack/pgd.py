"""Projected gradient descent on the margin of a specification, batched, with restarts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..deadlines import passed
from ..regions import Region

Margin = Callable[[Tensor, Tensor], Tensor]  # (inputs [P, *shape], which instances [P]) -> margins [P]


def minimize_margin(
    margin: Margin,
    region: Region,
    start: Tensor,
    steps: int = 40,
    restarts: int = 4,
    seed: int = 0,
    target: float = 0.0,
    deadline: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """The smallest margins found within the region, and where: ``[B]`` and ``[B, *shape]``.

    The first run starts at ``start``, the others at random points. Steps follow the sign of the gradient, or the
    gradient itself for l_2 and l_1 balls, and shrink towards the end. Instances below ``target`` are done. Values are
    upper bounds on the true minimum and prove nothing by their absence.
    """
    generator = torch.Generator().manual_seed(seed)
    best_x = region.project(start)
    with torch.no_grad():
        best = margin(best_x, torch.arange(region.size, device=start.device))
    best = torch.where(best.isnan(), torch.full_like(best, math.inf), best)
    for restart in range(restarts):
        fresh = region.project(start) if restart == 0 else region.sample(generator)
        active = (best >= target).nonzero()[:, 0]
        if not len(active) or passed(deadline):
            break
        here, x = region.take(active), fresh[active]
        for step in range(steps):
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                value = margin(x, active)
                (gradient,) = torch.autograd.grad(value.sum(), x)
            value = value.detach()
            better = value < best[active]
            best[active[better]], best_x[active[better]] = value[better], x.detach()[better]
            still = (best[active] >= target).nonzero()[:, 0]
            if not len(still) or passed(deadline):
                break
            x, gradient = x.detach()[still], gradient[still]
            if len(still) < len(active):
                active, here = active[still], here.take(still)
            gradient = torch.where(gradient.isfinite(), gradient, torch.zeros_like(gradient))  # which give no step
            x = here.descend(x, gradient, 0.5 * (1 - step / steps))
        else:
            with torch.no_grad():
                value = margin(x, active)
            better = value < best[active]
            best[active[better]], best_x[active[better]] = value[better], x[better]
    return best, best_x
