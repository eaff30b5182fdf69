"""Fits of softmax rows taken over from a region to parts of it, whatever their centres and weights are there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from softhull.propagate.second_order.affine_form import Basis
from softhull.propagate.second_order.fitted_rows import FittedRows, KnownFits, MixedValues
from softhull.propagate.second_order.logits import LogitRows
from softhull.propagate.second_order.specification import Quadratic

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


class Mixing:
    """Rows of logits ``at + reach z + rest``, z in a box, that mix values ``V z``; ``rest`` is a remainder."""

    def __init__(self, K: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.K, self.B, self.R = K, 2, 3
        B, R = self.B, self.R
        self.at, self.own = 2 * self.random(B, R, K) - 1, 4 * self.random(B, R, K) - 2
        self.width, self.rest = 0.3 + self.random(B, K), 0.1
        self.basis = Basis(torch.diag_embed(self.width))
        self.V = 2 * self.random(B, R, K, K) - 1
        self.V[..., 0, :] = 0  # a value that stands for the others
        self.centre = self.random(B, R, K)
        middle = self.at[..., :, None] - self.at[..., None, :]
        wide = (self.width[:, :, None] + self.width[:, None] + 2 * self.rest) * (1 - torch.eye(K, dtype=torch.float64))
        self.low, self.high = middle - wide[:, None], middle + wide[:, None]

    def random(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def values(self) -> MixedValues:
        radius = (self.V.abs() @ self.width[:, None, :, None])[..., 0]
        return MixedValues(self.V, self.centre, radius, torch.full_like(radius, 0.05))

    def fit(self, known: KnownFits | None = None, values: bool = True) -> FittedRows:
        """Near a random place."""
        logits = rows(self.at, self.low, self.high)
        apart = 2 * self.rest * (1 - torch.eye(self.K, dtype=torch.float64)).expand(self.low.shape)
        logits = replace(logits, remainder=(-apart, apart))
        z = self.width * (2 * self.random(self.B, self.K) - 1)
        return FittedRows(self.own, 1, logits, z, known, self.values() if values else None)

    def check(self, fit: FittedRows) -> float:
        """The whole claim, linear and quadratic part, at random places; returns how near it comes."""
        (on_logits,), constant = fit.linear(torch.Size((self.R, self.K)))
        nothing = torch.zeros(self.B, self.K, dtype=torch.float64)
        quadratic = Quadratic(nothing[:, 0], nothing, [self.basis], [torch.zeros_like(self.basis.map)])
        fit.add_to(quadratic, self.basis, 0)
        closest = float("inf")
        for i in range(300):
            e = 2 * self.random(self.B, self.K) - 1
            e, rest = (e.sign() if i % 3 == 0 else e), self.rest * (2 * self.random(self.B, self.R, self.K) - 1)
            z = self.width * e
            d = self.at + z[:, None] + rest
            p = d.softmax(-1)
            mixed = ((p - self.centre) * (self.V @ z[:, None, :, None])[..., 0]).sum(-1)
            truth = ((p * self.own).sum(-1) + mixed).sum(-1)
            own = d.gather(-1, fit.order)
            y = own[..., :-1] - own[..., -1:] - fit.centre
            fresh = (y - (fit.slopes @ z[:, None, :, None])[..., 0]) / fit.radius
            assert float(fresh.abs().max()) <= 1 + 1e-12
            claimed = (on_logits[0] * d).sum((-2, -1)) + constant[0] + quadratic.at(torch.cat((e, fresh.flatten(1)), 1))
            assert bool((claimed <= truth).all())
            closest = min(closest, float((truth - claimed).min()))
        return closest


@pytest.mark.parametrize("K", [2, 3, 4, 5])
def test_rows_are_below_with_the_values_that_they_mix(K: int) -> None:
    mixing = Mixing(K, K)
    first = mixing.fit()
    assert mixing.check(first) < 1.0
    # Values and weights that are a little different, around other places: fits are taken over with their prices.
    mixing.V *= 1 + 1e-3 * mixing.random(*mixing.V.shape)
    mixing.own *= 1 + 1e-5 * mixing.random(*mixing.own.shape)
    mixing.at += 0.01 * mixing.random(*mixing.at.shape)
    mixing.low, mixing.high = mixing.low + 1e-3, mixing.high - 1e-3
    mixing.rest = 0.05
    mixing.low, mixing.high = torch.minimum(mixing.low, -mixing.high.mT), torch.maximum(mixing.high, -mixing.low.mT)
    second = mixing.fit(first.known())
    torch.testing.assert_close(second.matrix, first.matrix, rtol=0, atol=0)
    mixing.check(second)


def test_fits_without_values_are_not_taken_where_values_move() -> None:
    mixing = Mixing(3, 0)
    plain = mixing.fit(values=False)
    both = mixing.fit(plain.known())
    assert bool((both.price[..., 1:] > 0).all())
    mixing.check(both)
    # And the other way round: what was met is not there any more.
    alone = mixing.fit(both.known(), values=False)
    assert not bool(alone.met.any())
    mixing.V.zero_()
    mixing.check(alone)
