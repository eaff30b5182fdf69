"""The soft form of the rectifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Convex


@dataclass(frozen=True)
class Softplus(Convex):
    """``log(1 + exp(x))``: convex."""

    name: ClassVar[str] = "Softplus"
    codomain: ClassVar[tuple[float, float]] = (0.0, torch.inf)

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.logaddexp(inputs[0], torch.zeros_like(inputs[0]))

    def derivative(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)
