"""Multipliers along the central path: every bound they give holds at every point that keeps the cuts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from softhull.propagate.second_order.central_path import Cuts, Multipliers, followed
from softhull.propagate.second_order.quadratic import DenseQuadratic

POINTS = 20_000


def problems(seed: int, n: int, count: int) -> tuple[Tensor, Tensor, Cuts]:
    """Random quadratics, and cuts that about half of all points keep."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    B, S = normal(4, n, n), normal(4, count, 3, 3)
    cuts = Cuts.of(0.3 * normal(4, count), normal(4, count, n), normal(4, count, 3, n), 0.2 * (S + S.mT) / 2)
    return normal(4, n), (B + B.mT) / 2, cuts


def values(linear: Tensor, B: Tensor, cuts: Cuts, e: Tensor) -> tuple[Tensor, Tensor]:
    """The quadratics ``[P, N]`` at points ``[N, n]``, and which of these keep all cuts."""
    value = linear @ e.T + ((e @ B) * e).sum(-1)
    found = cuts.constant[..., None] + cuts.linear @ e.T
    for part in cuts.squares:
        met = part.factors[:, :, None] @ e[..., None]  # [P, c, N, r, 1]
        found[:, part.cuts] += (met.mT @ part.matrix[:, :, None] @ met)[..., 0, 0]
    return value, (found <= 0).all(1)


def bound(linear: Tensor, B: Tensor, cuts: Cuts, found: Multipliers) -> Tensor:
    """What the multipliers prove."""
    given = linear + (found.b[..., None] * cuts.linear).sum(1)
    return DenseQuadratic(given, B + cuts.total(found.b)).certified(found.d) + (found.b * cuts.constant).sum(1)


@pytest.mark.parametrize(("n", "count"), [(3, 0), (3, 1), (5, 2), (12, 3)])
def test_bounds_hold_where_cuts_are_kept_and_gain_by_them(n: int, count: int) -> None:
    for seed in range(6):
        linear, B, cuts = problems(seed, n, count)
        generator = torch.Generator().manual_seed(seed + 100)
        e = 2 * torch.rand(POINTS, n, generator=generator, dtype=torch.float64) - 1
        e[: POINTS // 2] = e[: POINTS // 2].sign()
        steps, never = torch.full((4,), 60.0), torch.full((4,), math.inf, dtype=torch.float64)
        found = followed(linear, B, steps, never, 1e-4, cuts)
        assert bool((found.b >= 0).all())
        proved = bound(linear, B, cuts, found)
        value, kept = values(linear, B, cuts, e)
        assert bool((torch.where(kept, value, math.inf).amin(1) >= proved).all())
        alone = bound(linear, B, Cuts.none(linear), followed(linear, B, steps, never, 1e-4))
        assert bool((proved >= alone - 0.05 * alone.abs()).all())


def test_a_path_that_has_begun_ends_where_others_do() -> None:
    linear, B, cuts = problems(1, 12, 2)
    steps, never = torch.full((4,), 60.0), torch.full((4,), math.inf, dtype=torch.float64)
    first = followed(linear, B, steps, never, 1e-4, cuts)
    again = followed(linear, B, steps, never, 1e-4, cuts, begun=first.begun)
    known, proved = bound(linear, B, cuts, first), bound(linear, B, cuts, again)
    assert bool(((known - proved).abs() <= 2e-2 * known.abs()).all())


def test_groups_do_not_change_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from softhull.propagate.second_order import central_path

    linear, B, cuts = problems(2, 6, 1)
    steps, never = torch.full((4,), 20.0), torch.full((4,), math.inf, dtype=torch.float64)
    whole = followed(linear, B, steps, never, 1e-3, cuts)
    monkeypatch.setattr(central_path, "_CACHE", 1)
    torch.testing.assert_close(followed(linear, B, steps, never, 1e-3, cuts).d, whole.d, rtol=1e-6, atol=1e-9)
