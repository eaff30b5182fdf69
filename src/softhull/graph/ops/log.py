"""The natural logarithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..curves import Concave
from ..domain import refuse


@dataclass(frozen=True)
class Log(Concave):
    """``log(x)`` for ``x > 0``: concave."""

    name: ClassVar[str] = "Log"
    label: str = ""

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].log()

    def derivative(self, x: Tensor) -> Tensor:
        return 1 / x

    def check(self, lower: Tensor, upper: Tensor) -> None:
        refuse(~(lower > 0), lower, upper, "the logarithm", self.label)
