"""The Gaussian error linear unit, exact and in its approximation by tanh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Valley


@dataclass(frozen=True)
class Gelu(Valley):
    """``x/2 * (1 + erf(gain*x))``; the gelu of the literature has gain 1/sqrt(2).

    The gain is kept as it stands in the file, so that a constant rounded there is not replaced by another.
    """

    name: ClassVar[str] = "Gelu"
    gain: float = math.sqrt(0.5)

    def value(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        return 0.5 * x * torch.erfc(-self.gain * x)  # 1 + erf would cancel on the left

    def derivative(self, x: Tensor) -> Tensor:
        y = self.gain * x
        return 0.5 * torch.erfc(-y) + y * torch.exp(-y * y) / math.sqrt(math.pi)

    def rounding(self, x: Tensor, y: Tensor) -> Tensor:
        # The tail of erfc multiplies the relative error of its argument by twice the argument squared.
        return super().rounding(x, y) * (1 + (self.gain * x).square())

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        return slope.abs() + 1 + (self.gain * x).square()  # the factors of its terms, magnified by the tails

    def bends(self) -> tuple[float, float]:
        return -1 / self.gain, 1 / self.gain

    def valley(self) -> tuple[float, float, float]:
        stretch = math.sqrt(0.5) / self.gain
        return -0.7517915247 * stretch, -0.7517915246 * stretch, -0.1699712075 * stretch


@dataclass(frozen=True)
class TanhGelu(Valley):
    """``x/2 * (1 + tanh(rate * (x + cubic*x**3)))`` with the two constants as they stand in the file."""

    name: ClassVar[str] = "TanhGelu"
    rate: float = math.sqrt(2 / math.pi)
    cubic: float = 0.044715

    def _argument(self, x: Tensor) -> Tensor:
        return 2 * self.rate * x * (1 + self.cubic * x * x)

    def value(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        return x * torch.sigmoid(self._argument(x))  # 1 + tanh would cancel on the left

    def derivative(self, x: Tensor) -> Tensor:
        y = self._argument(x)
        rise = 2 * self.rate * (1 + 3 * self.cubic * x * x)
        return torch.sigmoid(y) + x * rise * torch.sigmoid(y) * torch.sigmoid(-y)

    def rounding(self, x: Tensor, y: Tensor) -> Tensor:
        # The exponential inside turns the absolute error of its argument into a relative one.
        return super().rounding(x, y) * (1 + self._argument(x).abs())

    def steepness(self, x: Tensor, slope: Tensor) -> Tensor:
        return slope.abs() + 1 + x.square()  # the factors of its terms, magnified by the tails

    def bends(self) -> tuple[float, float]:
        bend = _turn(self.rate, self.cubic, 2, 0.5, 3.0)
        return -bend, bend

    def valley(self) -> tuple[float, float, float]:
        at = _turn(self.rate, self.cubic, 1, -1.2, -0.4)
        depth = at / (1 + math.exp(-2 * self.rate * at * (1 + self.cubic * at * at)))
        return at - 1e-9, at + 1e-9, depth - 1e-12


@lru_cache
def _turn(rate: float, cubic: float, order: int, left: float, right: float) -> float:
    """Where the derivative of this order changes its sign between two points, to the last digits."""

    def derivative(x: float) -> float:
        y = 2 * rate * x * (1 + cubic * x * x)
        first, second = 2 * rate * (1 + 3 * cubic * x * x), 12 * rate * cubic * x
        s = 1 / (1 + math.exp(-y))
        bell = s * (1 - s)
        if order == 1:
            return s + x * first * bell
        return bell * (2 * first + x * second + x * first * first * (1 - 2 * s))

    rising = derivative(right) > 0
    for _ in range(64):
        middle = (left + right) / 2
        left, right = (left, middle) if (derivative(middle) > 0) == rising else (middle, right)
    return (left + right) / 2
