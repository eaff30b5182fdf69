"""The exponential linear unit with slope 1 at 0, of which the others are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Convex


@dataclass(frozen=True)
class Elu(Convex):
    """``x`` for positive ``x``, ``exp(x) - 1`` otherwise: convex."""

    name: ClassVar[str] = "Elu"
    codomain: ClassVar[tuple[float, float]] = (-1.0, torch.inf)

    def value(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        return torch.where(x > 0, x, torch.expm1(x.clamp(max=0)))

    def derivative(self, x: Tensor) -> Tensor:
        return torch.exp(x.clamp(max=0))
