"""The study of looseness: its mean, its verdict, and that it notices a bound that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from softhull import BOUNDS, InvalidInput
from softhull.bounds.table import Bound, Side
from softhull.study import tightness
from softhull.study.regions import dirichlet_logits
from softhull.study.tightness import SIDES, TightnessStudy, mean_probability, tightness_cells

pytest.importorskip("highspy")


def small_study(seed: int = 0) -> TightnessStudy:
    return TightnessStudy(tightness_cells((2, 3), (1.0,), (0.5, 0.9)), 2, seed)


def test_every_bound_is_measured_and_none_beats_the_hull_or_the_envelope() -> None:
    study = small_study()
    assert len(list(study.run())) == len(study.cells) == 16
    assert study.broken == []
    assert study.regions_checked == 32
    assert study.envelope_error < 2e-3
    for side in SIDES:
        for equal in (True, False):
            summary = study.summary(side, equal)
            assert set(summary) == {name for name, row in BOUNDS.items() if getattr(row, side)}
            assert all(row.mean >= 1 - 1e-6 for row in summary.values())
            assert all(row.mean <= row.worst_cell <= row.worst_region for row in summary.values())
            assert summary["hull"].worst_region <= min(row.worst_region for row in summary.values()) * (1 + 1e-9)


def test_the_same_seed_gives_the_same_numbers_on_any_number_of_processes() -> None:
    one, two, other = small_study(), small_study(), small_study(1)
    list(one.run(workers=1))
    list(two.run(workers=2))
    list(other.run())
    assert one.done == two.done
    assert one.done != other.done


def test_a_bound_that_is_wrong_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(side: Side) -> Side:
        def tangent(*arguments: object, **options: object) -> object:
            planes = side.tangent(*arguments, **options)  # type: ignore[misc]
            return replace(planes, value=planes.value * 1.5)  # type: ignore[type-var]

        return replace(side, tangent=tangent)  # type: ignore[arg-type]

    assert BOUNDS["er"].lower is not None
    wrong = Bound("wrong", raised(BOUNDS["er"].lower), None, "er lower, raised")
    table: Mapping[str, Bound] = {"wrong": wrong, **BOUNDS}
    for module in ("softhull.bounds.table", "softhull.study.tightness"):
        monkeypatch.setattr(f"{module}.BOUNDS", table)
    cell = tightness.Cell(2, 0.2, 0.5, True, True)
    result = tightness._measure(tightness._Task(cell, 3, (0, 0)))
    assert "wrong" in result.looseness["lower"]
    assert any("wrong lower passes the envelope" in sentence for sentence in result.broken)
    assert any("wrong lower is tighter than hull" in sentence for sentence in result.broken)


@pytest.mark.parametrize("half_width", [0.2, 2.0, 6.0])
def test_the_mean_over_a_box_is_exact(half_width: float) -> None:
    middle = np.array([0.3, -1.0])
    lower, upper = middle - half_width, middle + half_width
    # Over the first logit the integral is in closed form; the second is a fine midpoint rule.
    n = 200_000
    t = lower[1] + (np.arange(n) + 0.5) / n * 2 * half_width
    exact = np.mean(np.logaddexp(0, upper[0] - t) - np.logaddexp(0, lower[0] - t)) / (2 * half_width)
    assert mean_probability(lower, upper) == pytest.approx(exact, rel=1e-8)


def test_regions_have_the_mean_that_was_asked_for() -> None:
    rng = np.random.default_rng(0)
    for high in (True, False):
        logits = dirichlet_logits(rng, 20_000, 4, 0.7, high)
        assert np.allclose(np.mean(logits, axis=-1), 0)
        shares = np.exp(logits) / np.sum(np.exp(logits), axis=-1, keepdims=True)
        assert np.mean(shares[:, 0]) == pytest.approx(0.7 if high else 0.1, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (((1,),), "2 to 5 logits"),
        (((6,),), "2 to 5 logits"),
        (((2,), (0.0,)), "half-width"),
        (((2,), (1.0,), (0.4,)), "1/K"),
        (((2,), (1.0,), (1.0,)), "below 1"),
        (((5,), (8.0,)), "too large"),
    ],
)
def test_bad_settings_are_refused(arguments: tuple, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        tightness_cells(*arguments)
