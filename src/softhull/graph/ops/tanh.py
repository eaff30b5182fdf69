"""The hyperbolic tangent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Sshaped


@dataclass(frozen=True)
class Tanh(Sshaped):
    """``tanh(x)``: convex, then concave."""

    name: ClassVar[str] = "Tanh"
    codomain: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.tanh(inputs[0])

    def derivative(self, x: Tensor) -> Tensor:
        return 4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x)  # 1 - tanh(x)**2 would cancel
