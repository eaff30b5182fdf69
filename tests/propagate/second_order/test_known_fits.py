"""Fits of softmax rows taken over from a region to parts of it, whatever their centres and weights are there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softhull.propagate.second_order.fitted_rows import FittedRows, KnownFits
from softhull.propagate.second_order.logits import LogitRows

POINTS = 4000


def rows(at: Tensor, low: Tensor, high: Tensor) -> LogitRows:
    """Logits ``at [B, R, K]`` that each move with a basis entry of their own, with differences within bounds."""
    B, R, K = at.shape
    slope = torch.eye(K, dtype=at.dtype).expand(B, R, K, K)
    nothing = torch.zeros(B, R, K, K, dtype=at.dtype)
    return LogitRows(at, slope, (nothing, nothing), (low, high), 0)


def check(fit: FittedRows, d: Tensor) -> None:
    """The fit is below what it bounds at logits ``d [N, B, R, K]`` whose differences are within its bounds."""
    K = d.shape[-1]
    own = d.gather(-1, fit.order.expand(d.shape))
    y = own[..., :-1] - own[..., -1:] - fit.centre
    low = fit.value + (y * (fit.slope + (fit.matrix @ y[..., None])[..., 0])).sum(-1)
    phi = (d.softmax(-1) * fit.weights).sum(-1)
    apart = d[..., :, None] - d[..., None, :]
    inside = ((apart >= fit.differences[0]) & (apart <= fit.differences[1])).flatten(-2).all(-1)
    assert int(inside.sum()) > 50, K
    assert bool((phi >= low)[inside].all())


@pytest.mark.parametrize("K", [2, 3, 4])
def test_fits_hold_in_parts_of_their_region(K: int) -> None:
    generator = torch.Generator().manual_seed(K)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    B, R = 2, 3
    at, width, weights = 2 * random(B, R, K) - 1, 0.5 + 2 * random(B, R, K), 4 * random(B, R, K) - 2
    middle = at[..., :, None] - at[..., None, :]
    reach = (width[..., :, None] + width[..., None, :]) * (1 - torch.eye(K, dtype=torch.float64))
    z = torch.zeros(B, K, dtype=torch.float64)
    first = FittedRows(weights, 1, rows(at, middle - reach, middle + reach), z)
    d = at + width * (2 * random(POINTS, B, R, K) - 1)
    check(first, d)
    # Nearly the same differences, around another point and with other weights: all fits are taken over.
    low, high = middle - 0.99 * reach, middle + 0.995 * reach
    other = weights * (1 + 1e-4 * random(B, R, K))
    second = FittedRows(other, 1, rows(at + 0.1 * random(B, R, K), low, high), z, first.known())
    torch.testing.assert_close(second.matrix, first.matrix, rtol=0, atol=0)
    check(second, d)
    # One difference of one row halved: that row is fitted again, the others stay.
    high = middle + reach
    high[:, 1, 0, 1] = middle[:, 1, 0, 1]
    low = -high.mT
    third = FittedRows(weights, 1, rows(at, low, high), z, first.known())
    assert bool((third.matrix != first.matrix)[:, 1].any())
    torch.testing.assert_close(third.matrix[:, [0, 2]], first.matrix[:, [0, 2]], rtol=0, atol=0)
    check(third, d)


def test_a_fit_that_ignores_other_weights_is_noticed() -> None:
    at, weights = torch.zeros(1, 1, 3, dtype=torch.float64), torch.tensor([[[1.0, -1.0, 0.5]]], dtype=torch.float64)
    reach = 1.5 * (1 - torch.eye(3, dtype=torch.float64)).expand(1, 1, 3, 3)
    z = torch.zeros(1, 3, dtype=torch.float64)
    known = FittedRows(weights, 1, rows(at, -reach, reach), z).known()
    lower = replace(known, weights=weights - 0.2)  # as if the weights had been these
    taken = FittedRows(weights - 0.2, 1, rows(at, -reach, reach), z, lower)
    generator = torch.Generator().manual_seed(0)
    d = 1.5 * torch.rand(POINTS, 1, 1, 3, generator=generator, dtype=torch.float64) - 0.75
    with pytest.raises(AssertionError):
        check(taken, d)
