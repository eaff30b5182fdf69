"""Quadratics of few combinations of a basis: where few products are met, a matrix over all of it is never formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .affine_form import Basis

# A quadratic that sees at most this share of the entries of its basis is kept by its factors.
THIN = 0.4


@dataclass(frozen=True)
class Term:
    """``z'V'C V z`` of basis entries z: ``V [P, m, r]`` over the first r of them, symmetric ``C [P, m, m]``."""

    factors: Tensor
    matrix: Tensor

    @property
    def rows(self) -> int:
        """The number of combinations it sees."""
        return self.factors.shape[1]

    def over(self, size: int) -> Tensor:
        """The symmetric matrix ``[P, size, size]`` over a basis of that size."""
        found = self.factors.mT @ (self.matrix @ self.factors)
        missing = size - found.shape[-1]
        return torch.nn.functional.pad((found + found.mT) / 2, (0, missing, 0, missing))


def together(basis: Basis, terms: Sequence[Term]) -> tuple[Basis, Tensor]:
    """What terms of one basis see of the noise, as a basis of its own, and the matrix ``[P, r, r]`` over it."""
    rows = torch.cat([basis.over_noise(term.factors) for term in terms], 1)
    matrix = rows.new_zeros(len(rows), rows.shape[1], rows.shape[1])
    start = 0
    for term in terms:
        end = start + term.rows
        matrix[:, start:end, start:end] = term.matrix
        start = end
    return Basis(rows, basis.numbers), matrix
