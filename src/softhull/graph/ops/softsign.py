"""A sigmoid without exponentials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..curves import Sshaped


@dataclass(frozen=True)
class Softsign(Sshaped):
    """``x / (1 + |x|)``: convex, then concave."""

    name: ClassVar[str] = "Softsign"
    codomain: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] / (1 + inputs[0].abs())

    def derivative(self, x: Tensor) -> Tensor:
        return (1 + x.abs()).square().reciprocal()
