"""The sigmoid linear unit (swish) and Mish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Valley


@dataclass(frozen=True)
class Silu(Valley):
    """``x / (1 + exp(-x))``."""

    name: ClassVar[str] = "Silu"

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * torch.sigmoid(inputs[0])

    def derivative(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) * (1 + x * torch.sigmoid(-x))

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        return slope.abs() + 1 + x.abs()

    def bends(self) -> tuple[float, float]:
        return -2.3993572805154677, 2.3993572805154677

    def valley(self) -> tuple[float, float, float]:
        return -1.278464543, -1.278464542, -0.27846454277


@dataclass(frozen=True)
class Mish(Valley):
    """``x * tanh(log(1 + exp(x)))``."""

    name: ClassVar[str] = "Mish"

    def value(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))

    def derivative(self, x: Tensor) -> Tensor:
        gate = torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))
        return gate + x * (1 - gate) * (1 + gate) * torch.sigmoid(x)

    def rounding(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * super().rounding(x, y)  # two library functions in a row

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        return slope.abs() + 1 + x.abs()

    def bends(self) -> tuple[float, float]:
        return -2.256376396360793, 1.4905711794854285

    def valley(self) -> tuple[float, float, float]:
        return -1.192431215, -1.192431214, -0.30884341302
