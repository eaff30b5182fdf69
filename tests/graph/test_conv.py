"""Convolutions: what goes back through them is the transposed map, also where kernels do not overlap."""

from __future__ import annotations

import pytest
import torch

from softhull.graph.ops.conv import Conv

CASES = {
    "patches": ((3, 2), (3, 2), (0, 0, 0, 0), (1, 1), 1),
    "patches with pads and a rest": ((3, 2), (3, 2), (1, 0, 0, 1), (1, 1), 1),
    "patches in groups": ((3, 2), (3, 2), (0, 0, 0, 0), (1, 1), 2),
    "overlapping": ((3, 2), (2, 1), (1, 1, 0, 0), (1, 1), 1),
    "with holes": ((2, 2), (2, 2), (0, 0, 0, 0), (2, 1), 1),
    "a line": ((4,), (4,), (1, 2), (1,), 1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_coefficients_go_back_by_the_transposed_map(case, dtype):
    lengths, strides, pads, dilations, groups = CASES[case]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    conv = Conv(normal(6, 4 // groups, *lengths), normal(6), strides, pads, dilations, groups)
    shape = (1, 4, *(11, 9)[: len(lengths)])
    x, C = normal(3, *shape), normal(5, 3, *conv.shape(shape))
    (back,), constant = conv.backward(C, (shape,))
    forward = (C * conv.value(x)).flatten(2).sum(2)
    assert back.shape == (5, 3, *shape)
    torch.testing.assert_close((back * x).flatten(2).sum(2) + constant, forward, rtol=1e-4, atol=1e-4)
    if dtype == torch.float64:
        torch.testing.assert_close((back * x).flatten(2).sum(2) + constant, forward, rtol=1e-12, atol=1e-12)
