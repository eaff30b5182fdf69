"""Sums and products of constants that may replace them: only where nothing is rounded."""

from __future__ import annotations

import torch
from torch import Tensor

_SPLITTER = 2.0**27 + 1  # cuts a double into two halves whose products are exact
_LARGEST, _SMALLEST = 2.0**500, 2.0**-450  # between these no half of a product over- or underflows


def exact_sum(a: Tensor, b: Tensor) -> Tensor | None:
    """``a + b`` in double precision, or None where an entry would be rounded."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)
    masked = a.isinf() | b.isinf()  # minus infinity is exact
    return total if bool(((error == 0) | masked).all()) else None


def exact_product(a: Tensor, b: Tensor) -> Tensor | None:
    """``a * b`` in double precision, or None where an entry would be rounded, or might be."""
    product = a * b
    plain = (a == 0) | (b == 0) | (a.abs() == 1) | (b.abs() == 1)
    sizes = torch.stack(torch.broadcast_tensors(a.abs(), b.abs(), product.abs()))
    safe = ((sizes < _LARGEST) & (sizes > _SMALLEST)).all(0)
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product if bool((plain | (safe & (error == 0))).all()) else None


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    lifted = _SPLITTER * x
    high = lifted - (lifted - x)
    return high, x - high
