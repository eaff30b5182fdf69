"""Quadratics of the few inputs t that move, as matrices over ``(1, t)``, and what forms of second order are made of."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

# Linear functions in some entries times one number, what bounds that, and its largest value.
Group = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Rest:
    """Entries ``[E]`` of a form without their centres: ``a . t + t'H t + noise``, with ``|noise| <= N(t)``.

    ``linear [E, n]``, ``square [E, n, n]``, ``noise [E, q, q]`` over ``(1, t)``; ``curve [E, q, q]`` bounds how far
    ``t'H t`` is from ``shift [E]``. The linear part is at most ``far [E]``, and ``reach [E]`` bounds all else, counted
    from the shift.
    """

    linear: Tensor
    square: Tensor
    noise: Tensor
    curve: Tensor
    shift: Tensor
    far: Tensor
    reach: Tensor

    def __getitem__(self, entries: Tensor) -> Rest:
        return Rest(*(getattr(self, field.name)[entries] for field in fields(self)))

    @property
    def beside(self) -> Tensor:
        """What bounds all but the linear part, counted from the shift."""
        return self.noise + self.curve

    @property
    def mean(self) -> Tensor:
        """The mean of that over the corners."""
        return trace(self.noise) + trace(self.curve)

    @property
    def outer(self) -> Tensor:
        """The squares of the linear parts, as matrices over ``(1, t)``."""
        return products_of(self.linear, self.linear)

    @property
    def outer_shifted(self) -> Tensor:
        """The squares of the linear parts and the shifts together."""
        found = self.outer
        found[:, 0, 1:] = found[:, 1:, 0] = self.shift[:, None] * self.linear
        found[:, 0, 0] = self.shift.square()
        return found

    @property
    def squares(self) -> Tensor:
        """The means of these over the corners."""
        return self.linear.square().sum(-1) + self.shift.square()

    @property
    def span(self) -> Tensor:
        """At most this is a linear part with its shift."""
        return self.far + self.shift.abs()


def trace(matrices: Tensor) -> Tensor:
    """Their traces, which are the means of the quadratics over the corners."""
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def times(weights: Tensor, matrices: Tensor) -> Tensor:
    """Matrices, each times a number."""
    return weights[..., None, None] * matrices


def bordered(square: Tensor) -> Tensor:
    """Quadratics ``[E, n, n]`` of t as such over ``(1, t)``."""
    return torch.nn.functional.pad(square, (1, 0, 1, 0))


def matrix_of(linear: Tensor, square: Tensor) -> Tensor:
    """``linear . t + t' square t`` as matrices ``[E, q, q]`` over ``(1, t)``."""
    found = bordered(square)
    found[:, 0, 1:] = found[:, 1:, 0] = linear / 2
    return found


def products_of(one: Tensor, other: Tensor) -> Tensor:
    """Products of two linear functions ``[E, n]`` as matrices ``[E, q, q]`` over ``(1, t)``."""
    square = one[..., :, None] * other[..., None, :]
    return bordered((square + square.mT) / 2)
