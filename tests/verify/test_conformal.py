"""Conformal sets: bounds on scores against sampled distributions, quantiles, coverage, what is in which set."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.attack.score import ScoreAttack
from softhull.errors import InvalidInput
from softhull.regions import Perturbation
from softhull.solve.dual import Dual
from softhull.verify.conformal import Conformal, ConformalScore, conformal_quantile, study_conformal
from softhull.verify.ranges import on_the_simplex
from tests.propagate.checks import points_of
from tests.verify.test_dataset import case, probabilities

RULES = [ConformalScore("lac"), ConformalScore("aps"), ConformalScore("raps", 0.2, 1)]
FEW = Dual(steps=3)


def ranges_around(rng: np.random.Generator, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranges that hold the distributions, often with an end right at the probability."""
    below, above = rng.random((2, *p.shape)) * rng.choice([0, 0.02, 0.3], (2, *p.shape))
    return np.maximum(p - below, 0), np.minimum(p + above, 1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_scores_of_sampled_distributions_stay_within_their_bounds(rule: ConformalScore) -> None:
    """10,000 random ranges of probabilities for every score."""
    rng = np.random.default_rng(1)
    for classes in (2, 3, 5, 10):
        p = rng.dirichlet(np.full(classes, 0.4), 2500)
        p = np.where(rng.random((2500, 1)) < 0.2, np.round(p * 8) / 8, p)  # ties; then not on the simplex by rounding
        p[:, 0] = 1 - p[:, 1:].sum(1)
        p = p[(p >= 0).all(1)]
        least, most = ranges_around(rng, p)
        u = rng.choice([0.0, 1.0, rng.random()], len(p))
        low, high = rule.bounds(least, most, u)
        value = rule.values(p, u)
        assert (low <= value).all()
        assert (value <= high).all()


def test_the_lower_bound_on_a_score_is_attained() -> None:
    """A fine grid of all distributions of three classes comes close to it."""
    rng, rule, steps = np.random.default_rng(2), ConformalScore("aps"), 400
    first, second = np.meshgrid(np.arange(steps + 1), np.arange(steps + 1))
    grid = np.stack((first, second, steps - first - second), -1).reshape(-1, 3)
    grid = grid[(grid >= 0).all(1)] / steps
    for p in rng.dirichlet(np.ones(3), 25):
        half = rng.random(3) * 0.25 + 0.05
        ends = torch.from_numpy(np.maximum(p - half, 0)[None]), torch.from_numpy(np.minimum(p + half, 1)[None])
        least, most = (end.numpy() for end in on_the_simplex(*ends))
        inside = ((grid >= least) & (grid <= most)).all(1)
        u = rng.random()
        values = rule.values(grid[inside], np.full(inside.sum(), u))
        # A tie breaks the score by a jump that a grid may miss by one step.
        assert values.min(0) == pytest.approx(rule.bounds(least, most, np.array([u]))[0][0], abs=6 / steps)


def test_the_quantile_has_the_correction_for_finite_samples() -> None:
    scores = np.arange(1.0, 10.0)
    assert conformal_quantile(scores, 0.1) == 9
    assert conformal_quantile(scores, 0.5) == 5
    assert conformal_quantile(scores[:8], 0.1) == math.inf


def test_coverage_over_draws() -> None:
    """Exchangeable scores: the mean coverage is what theory says, within four standard errors."""
    rng = np.random.default_rng(3)
    hits = [rng.random() <= conformal_quantile(rng.random(49), 0.1) for _ in range(4000)]
    assert np.mean(hits) >= 0.9 - 4 * math.sqrt(0.09 / 4000)


@pytest.mark.parametrize("score", ["lac", "raps"])
def test_robust_sets_hold_what_any_perturbation_would_put_there(score: str) -> None:
    graphs, x, y, perturbation = case(1, 9)
    wide = Conformal(graphs, x[:6], y[:6], 0.3, score, method=FEW)
    raised = Conformal(graphs, x[:6], y[:6], 0.3, score, perturbation, method=FEW)
    assert (raised.thresholds >= wide.thresholds).all()
    draws = np.random.default_rng(0).random(9)  # the same for all: those of the calibration inputs come first
    robust, plain = wide.sets(x[6:], perturbation), Conformal(graphs, x[:6], y[:6], 0.3, score, method=FEW).sets(x[6:])
    assert (robust.members >= plain.members).all()
    assert (raised.sets(x[6:]).members >= plain.members).all()
    assert robust.from_boxes.sum() >= robust.members.sum()
    rule = ConformalScore(score)
    for point in points_of(perturbation.around(x[6:]), 1, 20):
        p = probabilities(graphs, point).numpy()
        # Everything that the clean input may have had in its set is in the robust set of what was observed.
        assert (robust.members >= (rule.values(p, draws[6:]) <= wide.thresholds)).all()


def test_attacked_calibration_inputs_stay_below_the_raised_threshold() -> None:
    graphs, x, y, perturbation = case(1, 9)
    raised = Conformal(graphs, x, y, 0.2, "lac", perturbation, method=FEW)
    for point in points_of(perturbation.around(x), 2, 20):
        scores = 1 - probabilities(graphs, point).numpy()[np.arange(9), y]
        assert conformal_quantile(scores, 0.2) <= raised.thresholds[0]


def test_class_conditional_thresholds_are_those_of_the_class() -> None:
    rule = ConformalScore("lac")
    p, u = np.array([[0.9, 0.1]] * 4 + [[0.6, 0.4]] * 4), np.zeros(8)
    labels = np.array([0] * 4 + [1] * 4)
    found = rule.thresholds(p, p, u, labels, 0.25, True)
    assert found == pytest.approx([0.1, 0.6])
    assert rule.thresholds(p, p, u, np.zeros(8, dtype=int), 0.25, True)[1] == math.inf


def test_study_covers_and_compares() -> None:
    graphs, x, y, perturbation = case(0, 20)
    found = study_conformal(graphs, x, y, perturbation, 0.25, splits=3, method=FEW, attack=ScoreAttack(8, 1))
    assert set(found.rows) == {"lac", "aps", "raps"}
    rows = found.rows["lac"]
    for name in ("inference", "calibration"):
        assert rows[name]["coverage_attack"] >= rows["none"]["coverage_attack"]
        assert rows[name]["boxes_attack"] >= rows[name]["size_attack"]
    # The clean input lies within the perturbation of the attacked one.
    assert rows["inference"]["coverage_attack"] >= rows["none"]["coverage_clean"]
    assert set(found.to_dict()) >= {"eps", "alpha", "splits", "rows"}


def test_bad_arguments_are_refused() -> None:
    graphs, x, y, _ = case(0)
    with pytest.raises(InvalidInput, match="alpha"):
        Conformal(graphs, x, y, 0.0)
    with pytest.raises(InvalidInput, match="choose lac"):
        Conformal(graphs, x, y, 0.1, "best")
    with pytest.raises(InvalidInput, match="at least 0"):
        ConformalScore("raps", -1.0)
    with pytest.raises(InvalidInput, match="for calibration"):
        study_conformal(graphs, x, y, Perturbation(0.1), calibration=5)
