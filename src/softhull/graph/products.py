"""Products of intervals, entry by entry."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from .operator import Interval


def product_interval(x: Interval, y: Interval) -> Interval:
    """The range of ``x * y``, each end rounded once; an infinite end means unbounded, so that 0 times it is 0."""
    ends = [_product(a, b) for a in x for b in y]
    return reduce(torch.minimum, ends), reduce(torch.maximum, ends)


def _product(a: Tensor, b: Tensor) -> Tensor:
    y = a * b
    if bool(y.isnan().any()):
        given = a.isnan() | b.isnan()  # what is not a number stays so
        y = torch.where(y.isnan() & ~given, torch.zeros_like(y), y)
    return y
