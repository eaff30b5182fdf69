"""Tensors, some of them constant, joined along one axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Monotone, Shape, sum_per_instance


@dataclass(frozen=True)
class Concat(Monotone):
    """``parts`` in order: a constant of one instance, or None for the next variable input."""

    name: ClassVar[str] = "Concat"
    axis: int
    parts: tuple[Tensor | None, ...]

    def shape(self, *shapes: Shape) -> Shape:
        variable = iter(shapes)
        joined = [next(variable) if part is None else tuple(part.shape) for part in self.parts]
        rests = {(*shape[: self.axis], *shape[self.axis + 1 :]) for shape in joined}
        if len(rests) > 1 or len({len(shape) for shape in joined}) > 1:
            raise ValueError(f"cannot join shapes {' and '.join(map(str, joined))} along axis {self.axis}")
        total = sum(shape[self.axis] for shape in joined)
        return (*joined[0][: self.axis], total, *joined[0][self.axis + 1 :])

    def value(self, *inputs: Tensor) -> Tensor:
        batch = inputs[0].shape[0]
        variable = iter(inputs)
        pieces = [
            next(variable) if part is None else part.to(inputs[0]).expand((batch, *part.shape)) for part in self.parts
        ]
        return torch.cat(pieces, dim=self.axis + 1)

    def magnitude(self, *sizes: Tensor) -> Tensor:
        # A mask of -inf is exact.
        parts = (part if part is None else part.abs().masked_fill(part.isinf(), 0.0) for part in self.parts)
        return replace(self, parts=tuple(parts)).value(*sizes)

    def terms(self, *shapes: Shape) -> int:
        return 0 if all(part is None for part in self.parts) else 1  # a constant may have been rounded to the format

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        constant = coefficients.new_zeros(coefficients.shape[:2])
        variable = iter(shapes)
        back = []
        start = 0
        for part in self.parts:
            size = (next(variable) if part is None else part.shape)[self.axis]
            piece = coefficients.narrow(self.axis + 2, start, size)
            start += size
            if part is None:
                back.append(piece)
            else:
                constant = constant + sum_per_instance(piece * part)
        return tuple(back), constant
