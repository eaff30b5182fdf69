"""The exponential."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Convex


@dataclass(frozen=True)
class Exp(Convex):
    """``exp(x)``: convex."""

    name: ClassVar[str] = "Exp"
    codomain: ClassVar[tuple[float, float]] = (0.0, torch.inf)

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].exp()

    def derivative(self, x: Tensor) -> Tensor:
        return x.exp()
