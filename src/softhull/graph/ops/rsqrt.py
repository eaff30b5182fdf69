"""The reciprocal of the square root: one operator, because two relaxations in a row lose more than one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Convex
from ..domain import refuse
from ..operator import Interval


@dataclass(frozen=True)
class Rsqrt(Convex):
    """``1 / sqrt(x)`` for ``x > 0``: convex."""

    name: ClassVar[str] = "Rsqrt"
    codomain: ClassVar[tuple[float, float]] = (0.0, torch.inf)
    label: str = ""

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].rsqrt()

    def derivative(self, x: Tensor) -> Tensor:
        return -0.5 * x.rsqrt() / x

    def check(self, lower: Tensor, upper: Tensor) -> None:
        refuse(~(lower > 0), lower, upper, "the reciprocal square root", self.label)

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        self.check(lower, upper)
        return self.at_least(upper, upper.rsqrt()), self.at_most(lower, lower.rsqrt())
