"""Cuts in the Lagrangian of stacked networks: ``sign * (z_plus - z_minus) <= threshold`` before an activation.

For any multiplier of at least 0 the maximum over the inputs that keep a cut is at most that of the objective plus the
multiplier times the room the cut leaves. So a walk back subtracts it from the coefficients of the layer it passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cuts:
    """``C`` cuts for each of ``B`` instances, all ``[B, C]``; rows are padded with a ``stack`` of -1.

    ``plus`` and ``minus`` count the entries ``[M, n]`` of the layer row by row; a ``minus`` of -1 leaves it out.
    """

    stack: Tensor
    layer: Tensor
    plus: Tensor
    minus: Tensor
    sign: Tensor
    threshold: Tensor

    @staticmethod
    def none(like: Tensor) -> Cuts:
        """No cuts, for as many instances as ``like`` has rows."""
        whole = torch.zeros((len(like), 0), dtype=torch.long, device=like.device)
        real = like.new_zeros((len(like), 0))
        return Cuts(whole, whole, whole, whole, real, real)

    @property
    def count(self) -> int:
        """How many cuts every instance has."""
        return self.threshold.shape[1]

    def _on(self, position: int, layer: int) -> Tensor | None:
        """Signs of the cuts on one layer, 0 for the others; None where there are none at all."""
        if not self.count:
            return None
        here = (self.stack == position) & (self.layer == layer)
        return self.sign * here if bool(here.any()) else None

    def subtract(self, A: Tensor, position: int, layer: int, multipliers: Tensor) -> Tensor:
        """Coefficients ``[B, M, n]`` on a layer less those of the cuts."""
        sign = self._on(position, layer)
        if sign is None:
            return A
        return A - self._placed(A, sign * multipliers, -sign * multipliers)

    def weight(self, A: Tensor, position: int, layer: int, multipliers: Tensor) -> Tensor:
        """The sums of the absolute values of what ``subtract`` takes off."""
        sign = self._on(position, layer)
        if sign is None:
            return torch.zeros_like(A)
        size = sign.abs() * multipliers.abs()
        return self._placed(A, size, size)

    def value(self, position: int, layer: int, z: Tensor) -> Tensor:
        """``sign * (z_plus - z_minus)`` of the cuts on one layer, 0 for the others; ``z [B, M, n]``."""
        sign = self._on(position, layer)
        if sign is None:
            return torch.zeros_like(self.threshold)
        flat = z.flatten(1)
        inside = self.plus.clamp(max=flat.shape[1] - 1)
        other = self.minus.clamp(0, flat.shape[1] - 1)
        return sign * (flat.gather(1, inside) - torch.where(self.minus >= 0, flat.gather(1, other), 0.0))

    def _placed(self, A: Tensor, at_plus: Tensor, at_minus: Tensor) -> Tensor:
        last = A[0].numel() - 1
        found = torch.zeros_like(A).flatten(1)
        found.scatter_add_(1, self.plus.clamp(max=last), at_plus)
        found.scatter_add_(1, self.minus.clamp(0, last), torch.where(self.minus >= 0, at_minus, 0.0))
        return found.reshape(A.shape)
