"""Cuts seen from the input: half-spaces that sharpen what is known of other nodes.

A walk turns a cut ``g <= t`` into a half-space of the input that holds wherever the cut is kept: from
``-g <= slopes . s + constant`` follows ``slopes . s + constant + t >= 0``. Any multiple of it may be added to the
linear bound of another function before its maximum over the box is taken. So a cut in one network of an ensemble
narrows the ranges in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.rounding import share
from ..propagate.structure import pieces, positions

# Numbers of one tensor of slopes: small enough to stay in the processor's cache between two operations.
CHUNK = 1 << 18
# Multiples tried, in units of the one that makes both forms equally large.
MULTIPLES = (0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Forms:
    """``R`` linear functions of the noise ``s`` of ``B`` boxes, all ``|s_i| <= 1``.

    Slopes ``[B, R, n]``, constants ``[B, R]``, and the sizes of the numbers the constants were made of ``[B, R]``.
    """

    slopes: Tensor
    constants: Tensor
    sizes: Tensor

    def take(self, instances: Tensor) -> Forms:
        """The forms of some of the instances."""
        return Forms(self.slopes[instances], self.constants[instances], self.sizes[instances])

    @property
    def reach(self) -> Tensor:
        """How much each function varies over the box ``[B, R]``."""
        return torch.linalg.vector_norm(self.slopes, ord=1, dim=-1)


def largest_values(
    forms: Forms, half_spaces: Forms, multipliers: Tensor, fresh: list[Tensor], outward: bool
) -> tuple[Tensor, Tensor]:
    """Upper bounds ``[B, R]`` on the forms where all half-spaces are at least 0, and the multipliers ``[B, R, C]``.

    Starts from multipliers that were good before; those of the half-spaces numbered in each tensor of ``fresh [B]`` are
    searched for, one after the other (-1: none).
    """
    parts = [
        _largest_values(forms.take(here), half_spaces.take(here), multipliers[here], [f[here] for f in fresh], outward)
        for here in pieces(positions(multipliers), max(1, CHUNK // forms.slopes[0].numel()))
    ]
    return torch.cat([best for best, _ in parts]), torch.cat([found for _, found in parts])


def _largest_values(
    forms: Forms, half_spaces: Forms, multipliers: Tensor, fresh: list[Tensor], outward: bool
) -> tuple[Tensor, Tensor]:
    """Bounds on forms where half-spaces hold too, with multipliers improved along the new half-spaces."""
    cost = share(forms.slopes.shape[-1] + half_spaces.slopes.shape[1], forms.slopes.dtype) if outward else 0.0
    reach, unit = forms.reach, half_spaces.reach
    slopes = forms.slopes + multipliers @ half_spaces.slopes
    constants = forms.constants + (multipliers @ half_spaces.constants[..., None])[..., 0]
    size = torch.linalg.vector_norm(slopes, ord=1, dim=-1)
    best = constants + size
    for which in fresh:
        there = which >= 0
        place = which.clamp(min=0)[:, None]
        slope = half_spaces.slopes.gather(1, place[..., None].expand(-1, -1, slopes.shape[-1]))
        constant = torch.where(there[:, None], half_spaces.constants.gather(1, place), torch.inf)
        length = unit.gather(1, place)
        once = torch.where(length > 0, size / torch.where(length > 0, length, 1.0), 0.0)
        taken = torch.zeros_like(best)
        for multiple in MULTIPLES:
            step = multiple * once
            value = constants + step * constant
            value = value + torch.linalg.vector_norm(slopes + step[..., None] * slope, ord=1, dim=-1)
            better = value < best
            best, taken = torch.where(better, value, best), torch.where(better, step, taken)
        slopes = slopes + taken[..., None] * slope
        constants = constants + torch.where(taken > 0, taken * constant, 0.0)
        size = torch.linalg.vector_norm(slopes, ord=1, dim=-1)
        multipliers = multipliers.scatter_add(2, place[:, None].expand(-1, taken.shape[1], 1), taken[..., None])
    if not outward:
        return best, multipliers
    # Sums over cuts for slopes and constants, over entries for the norm: a share of everything that was added up.
    total = forms.sizes + reach + (multipliers @ (half_spaces.sizes + unit)[..., None])[..., 0]
    return constants + size + 2 * cost * total, multipliers
