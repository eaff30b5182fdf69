"""The reciprocal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Curve, Segment, segment
from ..domain import refuse
from ..operator import Interval


@dataclass(frozen=True)
class Reciprocal(Curve):
    """``1 / x`` on intervals without 0: convex where positive, concave where negative."""

    name: ClassVar[str] = "Reciprocal"
    label: str = ""

    def value(self, *inputs: Tensor) -> Tensor:
        return 1 / inputs[0]

    def derivative(self, x: Tensor) -> Tensor:
        return -1 / (x * x)

    def check(self, lower: Tensor, upper: Tensor) -> None:
        refuse(~((lower > 0) | (upper < 0)), lower, upper, "the reciprocal", self.label)

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        self.check(lower, upper)
        return self.at_least(upper, 1 / upper), self.at_most(lower, 1 / lower)

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, 0.0, torch.inf)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, -torch.inf, 0.0)
