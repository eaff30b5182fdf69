"""The interval rule of softmax is exact, and survives masks and saturation."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from softhull.graph.ops.softmax import Softmax


@pytest.mark.parametrize("axis", [0, 1])
def test_interval_is_reached_at_the_corners(axis):
    torch.manual_seed(0)
    lower = torch.randn(2, 3, 3, dtype=torch.float64)
    upper = lower + 3 * torch.rand_like(lower)
    least, most = Softmax(axis).interval((lower, upper))
    corners = []
    for choice in product((False, True), repeat=3):
        up = torch.tensor(choice).reshape((3, 1) if axis == 0 else (1, 3))
        corners.append(Softmax(axis).value(torch.where(up, upper, lower)))
    values = torch.stack(corners)
    torch.testing.assert_close(least, values.amin(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(most, values.amax(0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_saturated_intervals_stay_right(dtype):
    lower = torch.tensor([[-20.0, 0.0], [-100.0, -100.0], [0.0, 500.0]], dtype=dtype)
    upper = torch.tensor([[0.0, 20.0], [0.0, -40.0], [1.0, 900.0]], dtype=dtype)
    least, most = Softmax(0).interval((lower, upper))
    assert float(least[0, 1]) == pytest.approx(0.5, rel=64 * torch.finfo(dtype).eps * 20)
    assert float(most[1, 1]) == pytest.approx(1.0)
    assert bool(((least >= 0) & (most <= 1) & (least <= most)).all())


def test_masked_entries_have_no_share():
    lower = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf, -torch.inf, 2.0]])
    upper = torch.tensor([[1.0, -torch.inf, 2.0], [-torch.inf, -torch.inf, 3.0]])
    least, most = Softmax(0).interval((lower, upper))
    assert bool((most[lower.isinf()] == 0).all())
    assert least[1].tolist() == [0, 0, 1]
    torch.testing.assert_close(least[0, 0], torch.sigmoid(torch.tensor(-2.0)))


def test_one_entry_has_everything():
    least, most = Softmax(0).interval((torch.tensor([[-5.0]]), torch.tensor([[700.0]])))
    assert (float(least), float(most)) == (1.0, 1.0)


def test_an_unbounded_logit_is_not_masked():
    """An end that overflowed on the way is NaN."""
    lower, upper = torch.tensor([[-1.0, torch.nan]]), torch.tensor([[1.0, torch.nan]])
    least, most = Softmax(0).interval((lower, upper))
    assert not bool((least > 0).any())
    assert not bool((most < 1).any())
