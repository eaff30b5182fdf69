"""Conditions that exporters write: ``where(isnan(p), 0, p)`` behind a softmax, ``where(x > t, x, softplus(x))``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..operator import Interval, Operator


@dataclass(frozen=True)
class Undefined(Operator):
    """``isnan(x)``: serves to recognise a guard and is in no finished graph."""

    name: ClassVar[str] = "Undefined"

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].isnan().to(inputs[0])

    def interval(self, *inputs: Interval) -> Interval:
        raise NotImplementedError("a network that asks whether a value is a number")


@dataclass(frozen=True)
class Above(Operator):
    """``x > threshold``: serves to recognise cases and is in no finished graph."""

    name: ClassVar[str] = "Above"
    threshold: float

    def value(self, *inputs: Tensor) -> Tensor:
        return (inputs[0] > self.threshold).to(inputs[0])

    def interval(self, *inputs: Interval) -> Interval:
        raise NotImplementedError("a network that tells cases apart")


@dataclass(frozen=True)
class Guard(Operator):
    """0 instead of what is not a number; simplification removes it behind a softmax, and nothing else has it."""

    name: ClassVar[str] = "Guard"

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].nan_to_num(0.0)

    def interval(self, *inputs: Interval) -> Interval:
        raise NotImplementedError("a guard that is not behind a softmax")
