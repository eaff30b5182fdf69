"""Gradient steps on the free parameters of a walk: every iterate is sound, the best is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from .crown import LinearBounds
from .free import Free
from .softmax_steps import better_differences


@dataclass
class Chosen:
    """What the best walk for every specification and instance chose, by node and name: ``[..., S, B, ...]``.

    ``rows [S, B or 1, *shape]`` are the specifications. Each tensor comes with the axis that counts instances.
    """

    rows: Tensor
    held: dict[tuple[int, str], tuple[Tensor, int]] = field(default_factory=dict)

    def see(self, free: Free, better: Tensor, active: Tensor, size: int) -> None:
        """Keep the choices of a walk on some instances ``active`` of ``size`` where it is ``better [S, active]``."""
        for key, (value, axis) in free.held.items():
            shape = (*value.shape[: axis - 1], *better.shape, *value.shape[axis + 1 :])
            value = value.expand(shape)
            if key not in self.held:
                self.held[key] = value.new_zeros((*shape[:axis], size, *shape[axis + 1 :])), axis
            kept = self.held[key][0]
            mask = better.reshape(*better.shape, *(1,) * (value.ndim - axis - 1))
            kept.index_copy_(axis, active, torch.where(mask, value, kept.index_select(axis, active)))

    def of(self, instance: int) -> Chosen:
        """The choices for one instance, which keeps its dimension."""
        held = {key: (value.narrow(axis, instance, 1).clone(), axis) for key, (value, axis) in self.held.items()}
        return Chosen(self.rows.narrow(1, instance % self.rows.shape[1], 1), held)


Apart = dict[int, list[Chosen]]  # for logit differences, by softmax


def optimized_lower(
    bounds: LinearBounds,
    index: int,
    coefficients: Tensor,
    steps: int,
    rate: float,
    target: Tensor,
    chosen: Chosen | None = None,
) -> Tensor:
    """Lower bounds ``[S, B]`` on ``<coefficients, node>`` after ``steps`` projected gradient steps.

    Instances stop once all their specifications exceed their ``target [B]``. ``chosen`` is told what
    the best walks chose.
    """
    best = coefficients.new_full((coefficients.shape[0], bounds.size), -torch.inf)
    active = torch.arange(bounds.size, device=coefficients.device)
    free = Free()
    for step in range(steps + 1):
        bounds.check_time()
        with torch.enable_grad():
            value = bounds.lower(index, coefficients, bounds.method.contract, free)
            objective = torch.where(value.isfinite(), value, torch.zeros_like(value)).sum()
        if chosen is not None:
            chosen.see(free, value.detach() > best[:, active], active, best.shape[1])
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


def with_better_differences(bounds: LinearBounds, steps: int, rate: float, chosen: Apart | None = None) -> LinearBounds:
    """Bounds with better differences for every softmax met so far, first to last, by gradient steps on each.

    ``chosen`` receives by softmax what the best walks chose.
    """
    never = torch.full((bounds.size,), torch.inf, dtype=bounds.region.lower.dtype, device=bounds.region.lower.device)

    def lower(known: LinearBounds, softmax: int, index: int, rows: Tensor) -> Tensor:
        seen = None if chosen is None else Chosen(rows)
        found = optimized_lower(known, index, rows, steps, rate, never, seen)
        if chosen is not None and seen is not None:
            chosen.setdefault(softmax, []).append(seen)
        return found

    for index in sorted(bounds.knowledge.known("differences")):
        found = better_differences(bounds, index, partial(lower, bounds, index))
        if found is not None:
            bounds = bounds.knowing(bounds.knowledge.with_differences(index, found))
    return bounds
