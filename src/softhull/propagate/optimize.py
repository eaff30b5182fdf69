"""Gradient steps on the free parameters of a walk: every iterate is sound, the best is kept."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .crown import LinearBounds
from .free import Free
from .softmax import better_differences


def optimized_lower(
    bounds: LinearBounds, index: int, coefficients: Tensor, steps: int, rate: float, target: Tensor
) -> Tensor:
    """Lower bounds ``[S, B]`` on ``<coefficients, node>`` after ``steps`` projected gradient steps.

    Instances stop once all their specifications exceed their ``target [B]``.
    """
    best = coefficients.new_full((coefficients.shape[0], bounds.size), -torch.inf)
    active = torch.arange(bounds.size, device=coefficients.device)
    free = Free()
    for step in range(steps + 1):
        bounds.check_time()
        with torch.enable_grad():
            value = bounds.lower(index, coefficients, bounds.method.contract, free)
            objective = torch.where(value.isfinite(), value, torch.zeros_like(value)).sum()
        best[:, active] = torch.maximum(best[:, active], value.detach())
        still_open = (best[:, active] <= target[active]).any(0).nonzero()[:, 0]
        if step == steps or not len(still_open):
            break
        free.ascend(objective, rate * (1 - step / steps))
        if len(still_open) < len(active):
            active, bounds = active[still_open], bounds.take(still_open)
            coefficients = coefficients[:, still_open] if coefficients.shape[1] > 1 else coefficients
            free.take(still_open)
    return best


def with_better_differences(bounds: LinearBounds, steps: int, rate: float) -> LinearBounds:
    """Bounds with better differences for every softmax met so far, first to last, by gradient steps on each."""
    never = torch.full((bounds.size,), torch.inf, dtype=bounds.region.lower.dtype, device=bounds.region.lower.device)
    for index in sorted(bounds.knowledge.known("differences")):
        lower = partial(optimized_lower, bounds, steps=steps, rate=rate, target=never)
        found = better_differences(bounds, index, lower)
        if found is not None:
            bounds = bounds.knowing(bounds.knowledge.with_differences(index, found))
    return bounds
