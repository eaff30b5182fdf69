"""Planes around log-sum-exp hold on every box, in both precisions, and touch where they should."""

from __future__ import annotations

import pytest
import torch

from softhull.graph.ops.log_sum_exp import LogSumExp


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0.0, 1e-12, 1e-6, 1e-3, 1.0, 30.0, 1e3, 1e6])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 100.0, 1e5])
def test_planes_and_intervals_hold(dtype, width, scale):
    torch.manual_seed(0)
    operator = LogSumExp((1,))
    lower = (scale * torch.randn(4, 3, 5)).to(dtype)
    upper = torch.maximum(lower, (lower + width * torch.rand(4, 3, 5).to(dtype)))
    planes, (least, most) = operator.planes(lower, upper), operator.interval((lower, upper))
    for _ in range(40):
        part = torch.rand(4, 3, 5).to(dtype) if torch.rand(()) < 0.5 else torch.randint(0, 2, (4, 3, 5)).to(dtype)
        x = (lower + part * (upper - lower)).clamp(lower, upper).double()
        y = operator.value(x)
        below = (planes.below.double() * x).sum(2, keepdim=True) + planes.below_offset.double()
        above = (planes.above.double() * x).sum(2, keepdim=True) + planes.above_offset.double()
        for low, high in ((below, above), (least.double(), most.double())):
            assert bool((low <= y).all())
            assert bool((y <= high).all())


def test_planes_are_tight_on_narrow_boxes():
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    planes = LogSumExp((1,)).planes(x - 1e-4, x + 1e-4)
    y = LogSumExp((1,)).value(x)
    torch.testing.assert_close((planes.below * x).sum(2, keepdim=True) + planes.below_offset, y, rtol=0, atol=1e-8)
    torch.testing.assert_close((planes.above * x).sum(2, keepdim=True) + planes.above_offset, y, rtol=0, atol=1e-8)
