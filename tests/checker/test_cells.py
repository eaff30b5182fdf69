"""Quadratics below softmax rows: what is proved holds everywhere, what is false is not proved."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb

from softhull.checker import cells
from softhull.checker.balls import Floats, exact
from softhull.checker.cells import Lines, RowQuadratic, below
from softhull.checker.session import exactly
from softhull.checker.softmax_planes import Logits


def make_row(rng: np.random.Generator, K: int, width: float) -> tuple[Logits, int, Floats]:
    """What is known of a row of logits, a reference, and many differences to it that are possible."""
    low = rng.normal(size=K)
    high = low + width * rng.random(K)
    x = rng.uniform(low, high, (5000, K))
    apart = (x[:, :, None] - x[:, None]).min(0)
    np.fill_diagonal(apart, 0.0)
    J = int(rng.integers(K))
    return Logits(low, high, apart), J, np.delete(x - x[:, J : J + 1], J, 1)


def make_lines(rng: np.random.Generator, m: int) -> tuple[Floats, Floats, Floats]:
    """Prices, levels and slopes of lines beside m probabilities."""
    return 10 ** rng.uniform(-1, 1, m), rng.random(m), 0.2 * rng.normal(size=(m, m))


def excess(f: RowQuadratic, d: Floats) -> Floats:
    """``phi - q`` in floating point."""
    weights, origin, slope, H = (part.astype(np.float64) for part in (f.weights, f.origin, f.slope, f.H))
    e, y = np.exp(d), d - origin
    p = e / (1 + e.sum(1, keepdims=True))
    cost = 0.0
    if f.lines is not None:
        price, level, lines = (part.astype(np.float64) for part in (f.lines.price, f.lines.level, f.lines.slope))
        cost = (p - level - y @ lines.T) ** 2 @ price
    return np.asarray(float(f.base) + p @ weights - cost - y @ slope - ((y @ H) * y).sum(1))


@pytest.mark.parametrize("lined", [False, True])
@pytest.mark.parametrize("seed", range(12))
@exactly
def test_proved_where_true_and_only_there(seed: int, lined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MOST_CELLS", 1000)
    rng = np.random.default_rng(seed)
    K = 2 + seed % 3
    x, J, d = make_row(rng, K, [0.3, 2.0, 5.0][seed % 3])
    H = rng.normal(size=(K - 1, K - 1))
    f = RowQuadratic.of(
        exact(rng.normal(size=K) * 3),
        J,
        exact(rng.normal(size=K - 1)),
        exact(rng.normal(size=K - 1)),
        exact((H + H.T) / 2),
        Lines(*(exact(part) for part in make_lines(rng, K - 1))) if lined else None,
    )
    least = float(excess(f, d).min())
    assert not below(f, x, J, arb(least + 1e-9))
    assert below(f, x, J, arb(least - 1.0 - abs(least)))
    corners = [x.apart[np.arange(K) != J, J], -x.apart[J, np.arange(K) != J]]
    centre, half = (corners[0] + corners[1]) / 2, (corners[1] - corners[0]) / 2
    for shrink in (1.0, 0.5, 0.1, 1e-3):
        _, bound = f.least(exact(centre), exact(shrink * half))
        inside = centre + shrink * half * rng.uniform(-1, 1, (5000, K - 1))
        assert float(bound) <= excess(f, inside).min() + 1e-12


@exactly
def test_nothing_is_proved_of_unknown_differences_or_in_too_many_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, J, d = make_row(rng, 3, 2.0)
    f = RowQuadratic.of(exact(rng.normal(size=3)), J, exact(np.zeros(2)), exact(np.zeros(2)), exact(np.zeros((2, 2))))
    value = arb(float(excess(f, d).min()) - 0.05)
    assert below(f, x, J, value)
    monkeypatch.setattr(cells, "MOST_CELLS", 1)
    assert not below(f, x, J, value)
    apart = x.apart.copy()
    apart[J] = -np.inf
    assert not below(f, Logits(x.low, x.high, apart), J, value)
