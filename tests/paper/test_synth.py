"""The synthetic study says what the paper says about its figures, on a small run."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from softhull import BOUNDS, InvalidInput, softmax_bounds
from softhull.paper import synth
from softhull.paper.synth import Boxes, Setting, Sweep, SynthStudy, figure_plans

REGIONS, POINTS = 12, 60
SIZES = (2, 3, 16)


@pytest.fixture(scope="module")
def study() -> SynthStudy:
    study = SynthStudy(figure_plans(SIZES), REGIONS, POINTS, seed=1)
    for _ in study.run():
        pass
    return study


def curve(study: SynthStudy, name: str, bound: str, linearised: bool = False) -> dict[float, float]:
    panel = next(panel for panel in study.panels() if panel.name == name)
    assert isinstance(panel, Sweep)
    rows = study.sweep_rows(panel)
    return {row.mu: row.mean for row in rows if row.bound == bound and row.linearised == linearised}


def all_sweeps(study: SynthStudy) -> list[Sweep]:
    return [panel for panel in study.panels() if isinstance(panel, Sweep)]


def test_panels_are_those_of_the_paper(study: SynthStudy) -> None:
    assert {plan.name: len(plan.panels) for plan in study.plans} == {
        "main": 8,
        "linearised": 4,
        "absolute": 4,
        "sizes": 8,
        "width0.2": 8,
        "width2": 8,
    }
    assert synth.SIZES == (2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
    assert len({panel.name for panel in study.panels()}) == 40
    assert all(study.rows(panel) for panel in study.panels())


def test_every_bound_of_the_table_is_a_curve(study: SynthStudy) -> None:
    expected = {name for name, row in BOUNDS.items() if row.lower and not row.lower.parts}
    assert {row.bound for panel in all_sweeps(study) for row in study.rows(panel) if panel.side == "lower"} == expected  # type: ignore[union-attr]


def test_gaps_are_those_of_the_library() -> None:
    """One region, one point at a time, without the shortcut for affine bounds."""
    task = synth._Task(Setting(3, 1.0, 0.6, True), ("const", "lin", "er", "lse*/lse", "hull"), 2, 5, (7,))
    gaps = synth.measure(task)
    rng = np.random.default_rng(task.seed)
    middle = synth.dirichlet_logits(rng, 2, 3, 0.6, True)
    x = rng.uniform(-1.0, 1.0, (2, 5, 3)) + middle[:, None, :]
    for region in range(2):
        lower, upper = middle[region] - 1.0, middle[region] + 1.0
        p = np.exp(x[region, :, 0]) / np.sum(np.exp(x[region]), axis=-1)
        for name in ("const", "lin", "er", "lse*", "hull"):
            low = [softmax_bounds(point, lower, upper, name, outputs=0)[0] for point in x[region]]
            assert gaps[name, "lower", False][region] == pytest.approx(np.mean(p - np.array(low)), rel=1e-9)
        for name in ("const", "lin", "er", "lse", "hull"):
            high = [softmax_bounds(point, lower, upper, name, outputs=0)[1] for point in x[region]]
            assert gaps[name, "upper", False][region] == pytest.approx(np.mean(np.array(high) - p), rel=1e-9, abs=1e-15)


def test_no_gap_is_negative_and_planes_are_no_tighter_than_their_functions(study: SynthStudy) -> None:
    for gaps in study.gaps.values():
        for (name, side, linearised), gap in gaps.items():
            assert np.all(gap >= -1e-15)
            if linearised:
                assert np.all(gap >= gaps[name, side, False] - 1e-12)


def test_upper_lse_is_about_twice_as_good_as_er_for_every_k(study: SynthStudy) -> None:
    for panel in study.panels():
        if isinstance(panel, Boxes) and panel.side == "upper":
            for row in study.box_rows(panel):
                if row.partner == "lse":
                    assert 1.5 < row.median < 2.6
                    assert row.p95 / row.p5 < 2  # "narrow distributions"


def test_upper_lin_is_worse_than_constant_by_an_order_of_magnitude_for_low_probabilities(study: SynthStudy) -> None:
    lin = curve(study, "width1_upper_low", "lin")
    assert min(lin.values()) > 2
    assert np.mean(list(lin.values())) > 10


def test_lower_lin_improves_on_constant_and_er_on_lin_a_little(study: SynthStudy) -> None:
    for level in ("high", "low"):
        lin, er = (curve(study, f"width1_lower_{level}", name) for name in ("lin", "er"))
        for mu in lin:
            assert 0.5 * lin[mu] < er[mu] <= lin[mu] < 1


def test_lse_and_its_star_are_complementary(study: SynthStudy) -> None:
    for level in ("high", "low"):
        lse, star = (curve(study, f"width1_lower_{level}", name) for name in ("lse", "lse*"))
        assert all(lse[mu] < star[mu] for mu in (1 / 16, 0.2, 0.4, 0.6))
        assert all(star[mu] < lse[mu] for mu in (0.95, 0.99))


def test_low_probabilities_gain_a_factor_of_two_and_a_half_over_er(study: SynthStudy) -> None:
    er, lse, star = (curve(study, "width1_lower_low", name) for name in ("er", "lse", "lse*"))
    assert all(er[mu] / min(lse[mu], star[mu]) > 2.2 for mu in er)
    assert er[0.99] / star[0.99] > 10


def test_star_coincides_with_er_where_the_output_dominates(study: SynthStudy) -> None:
    er, star = (curve(study, "width1_lower_high", name) for name in ("er", "lse*"))
    assert star[0.95] == pytest.approx(er[0.95], rel=0.02)
    assert star[0.99] == pytest.approx(er[0.99], rel=1e-6)


def test_two_logits_are_never_worse_with_lse(study: SynthStudy) -> None:
    for panel in study.panels():
        if isinstance(panel, Boxes) and panel.side == "lower":
            rows = [row for row in study.box_rows(panel) if row.size == 2 and row.partner == "lse"]
            assert rows
            assert all(row.below_one == 0 for row in rows)


def test_planes_lose_little_on_one_side_and_much_on_the_other(study: SynthStudy) -> None:
    for side, level, name in (("upper", "high", "er"), ("upper", "high", "lse"), ("lower", "low", "lse*")):
        function = curve(study, f"linear_{side}_{level}", name)
        plane = curve(study, f"linear_{side}_{level}", name, linearised=True)
        assert plane[0.99] > 0.25 > 0.1 > function[0.99]
    for side, level in (("lower", "high"), ("upper", "low")):
        function = curve(study, f"linear_{side}_{level}", "er")
        plane = curve(study, f"linear_{side}_{level}", "er", linearised=True)
        assert all(plane[mu] < 1.4 * function[mu] for mu in plane)


def test_the_alternative_lse_is_never_the_best_of_the_three(study: SynthStudy) -> None:
    for level in ("high", "low"):
        lse, star, alternative = (curve(study, f"k128_lower_{level}", name) for name in ("lse", "lse*", "lse'"))
        assert all(alternative[mu] > 0.98 * min(lse[mu], star[mu]) for mu in alternative)


def test_gaps_shrink_as_the_largest_mean_tends_to_one(study: SynthStudy) -> None:
    for panel in ("absolute_upper_high", "absolute_lower_high", "absolute_upper_low", "absolute_lower_low"):
        er = curve(study, panel, "er")
        assert er[0.99] < er[0.8]


def test_the_hull_is_the_tightest_curve_of_every_panel(study: SynthStudy) -> None:
    for panel in all_sweeps(study):
        rows = [row for row in study.sweep_rows(panel) if not row.linearised]
        for hull in (row for row in rows if row.bound == "hull"):
            assert hull.mean <= min(row.mean for row in rows if row.mu == hull.mu) * (1 + 1e-6) + 1e-15


def test_one_csv_per_panel(study: SynthStudy, tmp_path: Path) -> None:
    written = study.write_csv(tmp_path)
    assert len(written) == 40
    with (tmp_path / "width1_lower_low_boxes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["size"]) for row in rows if row["partner"] == "hull"] == list(SIZES)
    with (tmp_path / "linear_upper_high.csv").open() as file:
        assert {row["linearised"] for row in csv.DictReader(file)} == {"True", "False"}


def test_too_few_regions_are_refused() -> None:
    with pytest.raises(InvalidInput, match="2 regions"):
        SynthStudy(figure_plans(), regions=1)


def test_a_gap_that_may_be_rounding_is_none() -> None:
    """The more logits are added up, the more of a gap may be rounding."""
    gap = 100 * np.finfo(np.float64).eps
    few, many = (synth._ratio(np.array([1.0]), np.array([gap]), size).item() for size in (2, 128))
    assert np.isfinite(few)
    assert np.isinf(many)
