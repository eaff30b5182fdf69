"""The natural logarithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..curves import Curve, Segment, everywhere, nowhere
from ..domain import refuse
from ..operator import Interval


@dataclass(frozen=True)
class Log(Curve):
    """``log(x)`` for ``x > 0``: concave."""

    name: ClassVar[str] = "Log"
    label: str = ""

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].log()

    def derivative(self, x: Tensor) -> Tensor:
        return 1 / x

    def _check(self, lower: Tensor, upper: Tensor) -> None:
        refuse(~(lower > 0), lower, upper, "the logarithm", self.label)

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        self._check(lower, upper)
        return lower.log(), upper.log()

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return nowhere(lower, upper)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return everywhere(lower, upper)
