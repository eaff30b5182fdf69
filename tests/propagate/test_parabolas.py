"""Parabolas above and below curves, against sixty digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.propagate import parabolas
from softhull.propagate.parabolas import Parabola, Parabolas

EPSILON = 1e-5
Exact = Callable[[Decimal], Decimal]

CURVES: dict[str, tuple[Parabolas, Exact, float, float]] = {
    "exponential": (parabolas.EXPONENTIAL.parabolas, Decimal.exp, -300.0, 300.0),
    "logarithm": (parabolas.LOGARITHM.parabolas, lambda v: (1 + v).ln(), -0.99, 1e3),
    "inverse root": (
        parabolas.inverse_root(EPSILON).parabolas,
        lambda v: 1 / (v + Decimal(EPSILON)).sqrt(),
        0.0,
        1e3,
    ),
    "sigmoid": (parabolas.sigmoid_parabolas, lambda v: 1 / (1 + (-v).exp()), -40.0, 40.0),
    "rectifier": (parabolas.rectifier_parabolas, lambda v: max(v, Decimal(0)), -1e3, 1e3),
}


def ranges(name: str, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centres and both ends: from a point to all of the domain; rectifiers have both signs."""
    rng = np.random.default_rng(seed)
    _, _, least, most = CURVES[name]
    if name == "rectifier":
        low, high = (10.0 ** rng.uniform(-9, 3, count) for _ in range(2))
        low = -low
    else:
        low = rng.uniform(least, most, count)
        width = (most - low) * np.where(rng.random(count) < 0.1, 0.0, 10.0 ** rng.uniform(-12, 0, count))
        high = np.minimum(low + width, most)
        low[:20] = least
    centre = low + (high - low) * rng.uniform(-0.2, 1.2, count)
    return tuple(torch.from_numpy(t) for t in (centre, low, high))  # type: ignore[return-value]


@pytest.mark.parametrize("low", [-800.0, -741.0, -720.0, -690.0])
def test_exponentials_that_vanish_at_an_end(low: float) -> None:
    """Digits that are lost near the least number are charged, however large the other end is."""
    ends = torch.tensor([-700.0, -650.0, -200.0, -60.0, 0.0, 2.0], dtype=torch.float64)
    ends = ends[ends > low]
    start = torch.full_like(ends, low)
    with localcontext(prec=60):
        for centre in (start, ends):
            above, below = parabolas.EXPONENTIAL.parabolas(centre, start, ends, (ends - start) ** 2 / 10, 0 * ends)
            for k in range(len(ends)):
                for way in range(21):
                    point = Decimal(low) + (Decimal(float(ends[k])) - Decimal(low)) * way / 20
                    by, true = point - Decimal(float(centre[k])), point.exp()
                    assert value(below, k, by) <= true <= value(above, k, by)


def value(parabola: Parabola, k: int, by: Decimal) -> Decimal:
    """The exact value of one of the parabolas."""
    terms = (Decimal(float(t[k])) for t in (parabola.value, parabola.slope, parabola.bend))
    start, slope, bend = terms
    return start + slope * by + bend * by * by


@pytest.mark.parametrize("name", list(CURVES))
def test_they_are_on_their_sides(name: str) -> None:
    """At both ends, at the centre, where parabolas touch, and in between; nothing is tolerated."""
    make, exact, _, _ = CURVES[name]
    centre, low, high = ranges(name, 150, 1)
    rng = np.random.default_rng(2)
    squares = (high - low).square() * torch.from_numpy(rng.uniform(0, 0.3, len(low)))
    blur = squares * torch.from_numpy(rng.choice([0.0, 0.1, 1.0, 10.0, np.inf], len(low)))
    above, below = make(centre, low, high, squares, blur)
    with localcontext(prec=60):
        for k in range(len(low)):
            ends = Decimal(float(low[k])), Decimal(float(high[k]))
            ways = [Decimal(way) / 40 for way in range(41)]
            points = [ends[0] + way * (ends[1] - ends[0]) for way in ways] + list(ends)
            if name == "rectifier":
                points.append(Decimal(0))
            for point in points:
                by, true = point - Decimal(float(centre[k])), exact(point)
                assert value(below, k, by) <= true <= value(above, k, by)


@pytest.mark.parametrize("name", [name for name in CURVES if name != "rectifier"])
def test_they_are_close(name: str) -> None:
    """The gap goes with the third power of the width, for a curve that is smooth."""
    make, (centre, width) = CURVES[name][0], (torch.tensor([1.0]).double(), 0.1)
    gaps = []
    for half in (width, width / 2):
        low, high = centre - half, centre + half
        above, below = make(centre, low, high, torch.tensor([half * half / 10]).double(), torch.zeros(1).double())
        by = torch.linspace(-half, half, 101).double()
        gap = [p.value + (p.slope + p.bend * by) * by for p in (above, below)]
        gaps.append(float((gap[0] - gap[1]).amax()))
    assert gaps[0] < 0.01 * width
    assert gaps[1] < gaps[0] / 3


def test_the_bend_of_exponentials_is_on_its_side() -> None:
    """The divided difference against sixty digits."""
    rng = np.random.default_rng(1)
    t = torch.from_numpy(
        np.concatenate((rng.normal(size=200) * 10.0 ** rng.uniform(-12, 1.2, 200), [0.0, 0.01, -0.01]))
    )
    low, high = (parabolas.exponential_bend(t, sign) for sign in (-1, 1))
    with localcontext(prec=60):
        for value, least, most in zip(t.tolist(), low.tolist(), high.tolist()):
            x = Decimal(value)
            true = (x.exp() - 1 - x) / x**2 if value else Decimal("0.5")
            assert least <= true <= most
            assert most - least < 1e-5


def test_a_planted_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parabolas that meet the wrong end are on the wrong side."""
    wrong = replace(parabolas.EXPONENTIAL, third=-1)
    monkeypatch.setitem(CURVES, "exponential", (wrong.parabolas, *CURVES["exponential"][1:]))
    with pytest.raises(AssertionError):
        test_they_are_on_their_sides("exponential")
