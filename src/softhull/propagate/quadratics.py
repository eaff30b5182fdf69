"""Quadratics of the few inputs t that move, as matrices over ``(1, t)``, and what forms of second order are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Linear functions in some entries times one number, what bounds that, and its largest value.
Group = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Rest:
    """Entries ``[E]`` of a form without their centres: ``a . t + t'H t + noise``, with ``|noise| <= N(t)``.

    ``linear [E, n]``, ``square [E, n, n]``, ``noise [E, q, q]`` over ``(1, t)``; ``beside [E, q, q]`` bounds all but
    the linear part, which is at most ``far [E]``, and ``reach [E]`` bounds that; where there is a ``shift [E]``, they
    bound its distance from that.
    """

    linear: Tensor
    square: Tensor
    noise: Tensor
    beside: Tensor
    far: Tensor
    reach: Tensor
    shift: Tensor | None = None

    def __getitem__(self, entries: Tensor) -> Rest:
        assert self.shift is None
        return Rest(
            *(each[entries] for each in (self.linear, self.square, self.noise, self.beside, self.far, self.reach))
        )

    @property
    def mean(self) -> Tensor:
        """The mean of what bounds all but the linear part, over the corners."""
        return trace(self.beside)

    @property
    def outer(self) -> Tensor:
        """The squares of the linear parts, with what they are shifted by, as matrices over ``(1, t)``."""
        found = products_of(self.linear, self.linear)
        if self.shift is not None:
            found[:, 0, 1:] = found[:, 1:, 0] = self.shift[:, None] * self.linear
            found[:, 0, 0] = self.shift.square()
        return found


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
