"""The logistic function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Elementwise, Interval, Lines


@dataclass(frozen=True)
class Sigmoid(Elementwise):
    """``1 / (1 + exp(-x))``."""

    name: ClassVar[str] = "Sigmoid"

    def value(self, *inputs: Tensor) -> Tensor:
        return torch.sigmoid(inputs[0])

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        return torch.sigmoid(lower), torch.sigmoid(upper)

    def lines(self, lower: Tensor, upper: Tensor, free: Tensor | None = None) -> Lines:
        raise NotImplementedError
