"""The error function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Sshaped


@dataclass(frozen=True)
class Erf(Sshaped):
    """``erf(x)``: convex, then concave."""

    name: ClassVar[str] = "Erf"
    codomain: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.erf(inputs[0])

    def derivative(self, x: Tensor) -> Tensor:
        return 2 / math.sqrt(math.pi) * torch.exp(-x * x)
