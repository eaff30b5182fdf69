"""Intervals of products: exact, also with infinite ends, and computed block by block."""

from __future__ import annotations

import math

import pytest
import torch

from softhull.graph.ops import matmul
from softhull.graph.ops.matmul import MatMul
from softhull.graph.products import product_interval

inf, nan = math.inf, math.nan


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ((-1, 2), (3, 4), (-4, 8)),
        ((-2, -1), (-3, 5), (-10, 6)),
        ((0, 1), (1, inf), (0, inf)),
        ((0, 0), (-inf, inf), (0, 0)),
        ((-1, 0), (-inf, 2), (-2, inf)),
    ],
)
def test_product_of_two_intervals(x, y, expected):
    found = product_interval(*((torch.tensor([float(a)]), torch.tensor([float(b)])) for a, b in (x, y)))
    assert tuple(float(end) for end in found) == expected


def test_what_is_not_a_number_stays_so():
    lower, upper = product_interval(
        (torch.tensor([1.0]), torch.tensor([2.0])), (torch.tensor([nan]), torch.tensor([1.0]))
    )
    assert bool(lower.isnan())
    assert bool(upper.isnan())


def test_blocks_do_not_change_the_result(monkeypatch):
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 7, dtype=torch.float64), torch.randn(2, 7, 4, dtype=torch.float64)
    bounds = (x, x + torch.rand_like(x)), (y - torch.rand_like(y), y)
    operator = MatMul((3, 7), (7, 4))
    whole = operator.interval(*bounds)
    monkeypatch.setattr(matmul, "_BLOCK", 50)
    torch.testing.assert_close(operator.interval(*bounds), whole)
