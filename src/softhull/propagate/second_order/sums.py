"""Sums of quadratics that share the input noise: networks that share their input."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...graph.rounding import share
from .affine_form import Basis
from .specification import Quadratic


def sum_of(parts: Sequence[Quadratic], inputs: int) -> Quadratic:
    """The sum of quadratics of the same instances: the first ``inputs`` noise numbers are shared, all others own."""
    widths = [part.linear.shape[1] - inputs for part in parts]
    first = parts[0].linear
    linear = first.new_zeros(len(first), inputs + sum(widths))
    constant, size = torch.zeros_like(parts[0].constant), torch.zeros_like(parts[0].constant)
    bases, start = [], inputs
    for part, width in zip(parts, widths):
        constant, size = constant + part.constant, size + part.constant.abs()
        linear[:, :inputs] += part.linear[:, :inputs]
        size = size + part.linear[:, :inputs].abs().sum(1)  # noise is at most one
        linear[:, start : start + width] = part.linear[:, inputs:]
        for basis in part.bases:
            numbers = basis.numbered()
            bases.append(Basis(basis.map, torch.where(numbers < inputs, numbers, numbers - inputs + start)))
        start += width
    constant = constant - share(len(parts), first.dtype) * size
    return Quadratic(constant, linear, bases, [matrix for part in parts for matrix in part.matrices])
