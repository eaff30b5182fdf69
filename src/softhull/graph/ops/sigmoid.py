"""The logistic function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Sshaped


@dataclass(frozen=True)
class Sigmoid(Sshaped):
    """``1 / (1 + exp(-x))``: convex, then concave."""

    name: ClassVar[str] = "Sigmoid"
    codomain: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.sigmoid(inputs[0])

    def derivative(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * torch.sigmoid(-x)
