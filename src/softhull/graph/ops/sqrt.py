"""The square root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Concave
from ..domain import refuse


@dataclass(frozen=True)
class Sqrt(Concave):
    """``sqrt(x)`` for ``x > 0``: concave."""

    name: ClassVar[str] = "Sqrt"
    codomain: ClassVar[tuple[float, float]] = (0.0, torch.inf)
    label: str = ""

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].sqrt()

    def derivative(self, x: Tensor) -> Tensor:
        return 0.5 / x.sqrt()

    def check(self, lower: Tensor, upper: Tensor) -> None:
        refuse(~(lower > 0), lower, upper, "the square root", self.label)
