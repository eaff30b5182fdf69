"""Metrics in exact arithmetic: the truth by brute force, what was certified, and files that ask for too much."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from flint import ctx

from softhull.checker.balls import PRECISION
from softhull.checker.certificate import Refused
from softhull.checker.metrics import (
    GRID,
    LOWEST,
    Sample,
    above,
    below,
    check_edges,
    gains,
    metrics_of,
    worst_sum,
)
from softhull.verify.calibration import Options, bin_edges, worst_calibration_error
from softhull.verify.ranges import on_the_simplex, water_level


def random_sample(rng: np.random.Generator, K: int) -> tuple[Sample, np.ndarray]:
    """Ranges around a random distribution, and distributions within them: classes on top are those that come up."""
    centre = rng.dirichlet(np.full(K, rng.choice([0.2, 1.0, 5.0])))
    points = 0.5 * (centre + rng.dirichlet(np.full(K, 0.5), 6)) if rng.random() < 0.7 else centre[None]
    least, most = points.min(0), points.max(0)
    wider = 1 + 1e-12  # floats of a distribution do not add up to 1 exactly
    least, most = least * rng.choice([1.0, 0.5]) / wider, np.minimum(most * rng.choice([1.0, 1.5]) * wider, 1)
    on_top = [k in set(points.argmax(1).tolist()) or rng.random() < 0.2 for k in range(K)]
    label = int(rng.integers(K))
    brier = ((points - np.eye(K)[label]) ** 2).sum(1).max() * (1 + 1e-12)
    return Sample(label, least.tolist(), most.tolist(), on_top, float(brier)), points


def metrics_at(p: np.ndarray, labels: np.ndarray, edges: np.ndarray) -> dict[str, float]:
    """The metrics of distributions ``[n, K]``."""
    own = p[np.arange(len(p)), labels]
    confidence, right = p.max(1), p.argmax(1) == labels
    bins = np.clip(np.searchsorted(edges, confidence) - 1, 0, len(edges) - 2)
    gaps = [abs(math.fsum((right - confidence)[bins == b])) for b in range(len(edges) - 1)]
    brier = ((p - np.eye(p.shape[1])[labels]) ** 2).sum(1)
    nll = -np.log(own)
    return {
        "accuracy": right.mean(),
        "nll": nll.mean(),
        "nll_worst": nll.max(),
        "brier": brier.mean(),
        "brier_worst": brier.max(),
        "confidence_low": confidence.mean(),
        "confidence_high": confidence.mean(),
        "ece": math.fsum(gaps) / len(p),
    }


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_distributions_passes_the_metrics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K, n = int(rng.integers(2, 6)), int(rng.integers(1, 12))
    made = [random_sample(rng, K) for _ in range(n)]
    labels = np.array([sample.label for sample, _ in made])
    edges = bin_edges(int(rng.integers(1, 8)))
    with ctx.workprec(PRECISION):
        bounds = metrics_of([sample for sample, _ in made], edges.tolist())
    for _ in range(50):
        p = np.stack([points[rng.integers(len(points))] for _, points in made])
        for name, value in metrics_at(p, labels, edges).items():
            sign = -1 if name in LOWEST else 1
            assert sign * value <= sign * bounds[name] + 1e-12, name  # the truth is rounded here, the bound is not


@pytest.mark.parametrize("seed", range(30))
def test_signs_by_branches_are_all_signs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = bin_edges(int(rng.integers(1, 7))).tolist()
    found = [gains(random_sample(rng, 3)[0], edges) for _ in range(int(rng.integers(1, 9)))]
    every = [
        sum(max(pair[signs[b]] for b, pair in gain.items()) for gain in found)
        for signs in product((0, 1), repeat=len(edges) - 1)
    ]
    assert worst_sum(found) == max(every)


@pytest.mark.parametrize("seed", range(20))
def test_the_error_is_the_one_that_is_certified(seed: int) -> None:
    """Two programs without a common line, in exact and in floating-point arithmetic."""
    rng = np.random.default_rng(seed)
    samples = [random_sample(rng, 4)[0] for _ in range(20)]
    edges = bin_edges(9)
    least, most = (torch.tensor([getattr(s, side) for s in samples], dtype=torch.float64) for side in ("least", "most"))
    least, most = on_the_simplex(least, most)
    low = torch.maximum(least, water_level(least, most)[:, None]).numpy()
    on_top = np.array([s.on_top for s in samples])
    correct = np.array([s.label for s in samples])[:, None] == np.arange(4)
    options = Options(low, np.where(on_top, most.numpy(), -1.0), correct)
    stated = [Sample(s.label, a, b, s.on_top, s.brier) for s, a, b in zip(samples, least.tolist(), most.tolist())]
    exact = Fraction(worst_sum([gains(s, edges.tolist()) for s in stated]), len(samples) * GRID)
    certified = worst_calibration_error(options, edges).exact
    assert exact <= certified
    assert float(certified - exact) < 1e-12


def test_a_range_that_is_open_below_approaches_the_edge() -> None:
    half = Sample(0, [0.25, 0.25], [0.75, 0.75], [True, False], 1.0)
    # Right with confidence above .5, as near to it as one likes: the gap is .5 in the bin above and at .5 below.
    assert gains(half, [0.0, 0.5, 1.0]) == {0: (GRID // 2, -GRID // 2), 1: (GRID // 2, -GRID // 4)}


def test_nothing_known_allows_everything() -> None:
    samples = [Sample.unknown(0, 3), Sample(1, [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [False, True, False], 0.0)]
    with ctx.workprec(PRECISION):
        found = metrics_of(samples, [0.0, 0.5, 1.0])
    assert found["accuracy"] == 0.5
    assert found["nll"] == found["nll_worst"] == math.inf
    assert found["brier"] == 1.0
    assert found["ece"] == 0.5  # wrong with full confidence
    assert below(Fraction(2, 3)) <= found["confidence_low"] <= above(Fraction(2, 3))  # (1/3 + 1) / 2


def test_too_many_patterns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softhull.checker.metrics.MOST_PATTERNS", 3)
    rng = np.random.default_rng(0)
    with pytest.raises(Refused, match="fewer bins"):
        worst_sum([gains(random_sample(rng, 3)[0], bin_edges(12).tolist()) for _ in range(30)])


@pytest.mark.parametrize(
    "edges",
    [None, [], [0.0], [0.0, "1"], [0.0, 0.5], [0.5, 1.0], [0.0, 0.7, 0.3, 1.0], [0.0, math.nan, 1.0],
     [0.0, 0.5, 0.5, 1.0], np.linspace(0, 1, 26).tolist()],
)  # fmt: skip
def test_bins_are_checked(edges: object) -> None:
    with pytest.raises(Refused, match="bins"):
        check_edges(edges)
