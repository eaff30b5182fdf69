"""The third power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..curves import Curve, Segment, segment


@dataclass(frozen=True)
class Cube(Curve):
    """``x * x * x``: concave, then convex."""

    name: ClassVar[str] = "Cube"

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * inputs[0] * inputs[0]

    def derivative(self, x: Tensor) -> Tensor:
        return 3 * x * x

    def convex(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, 0.0, torch.inf)

    def concave(self, lower: Tensor, upper: Tensor) -> Segment:
        return segment(lower, -torch.inf, 0.0)
