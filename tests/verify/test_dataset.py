"""Certified ranges and metrics of data sets: nothing found within the perturbation is worse than what is certified."""

from __future__ import annotations

import math
import os
import signal

import numpy as np
import pytest
import torch

from softhull.attack.score import ScoreAttack
from softhull.attack.visits import attack_samples
from softhull.errors import InvalidInput
from softhull.propagate.methods import Auto, Linear
from softhull.regions import Perturbation
from softhull.solve.dual import Dual
from softhull.verify.calibration import calibration_error, classwise_error
from softhull.verify.dataset import DatasetReport, certify_dataset, pack_samples, unpack_samples
from softhull.verify.ranges import on_the_simplex, water_level
from softhull.verify.uncertainty import verify_uncertainty
from tests.propagate.checks import points_of
from tests.propagate.networks import random_attention
from tests.solve.ensembles import random_graph

QUICK = ScoreAttack(steps=8, restarts=1)
FEW = Dual(steps=8)
ROUNDING = 1e-10  # what is checked is itself evaluated in floating point
LOW = ("accuracy", "confidence_low")


def case(seed: int, samples: int = 5):
    """Two small networks with an input and a softmax each, samples with labels mostly right, a perturbation."""
    generator = torch.Generator().manual_seed(seed)
    graphs = [random_graph(generator, classes=4, scale=1.5) for _ in range(2)]
    x = torch.rand(samples, 1, 4, generator=generator, dtype=torch.float64)
    y = probabilities(graphs, x).argmax(1)
    y[0] = (y[0] + 1) % 4
    perturbation = Perturbation((0.02, 0.1, 0.3)[seed % 3], (math.inf, 2)[seed % 2], (0, 1))
    return graphs, x, y, perturbation


def probabilities(graphs, x):
    return torch.stack([graph(x).flatten(1) for graph in graphs]).mean(0)


def assert_sound(report: DatasetReport, graphs, x, y, perturbation, seed: int) -> None:
    """Points of the regions keep within ranges and metrics."""
    ranges, y = report.ranges, np.asarray(y)
    rows = np.arange(len(y))
    for point in points_of(perturbation.around(x), seed, 30):
        p = probabilities(graphs, point).numpy()
        assert (p >= ranges.least - ROUNDING).all()
        assert (p <= ranges.most + ROUNDING).all()
        assert (p >= ranges.box_least - ROUNDING).all()
        assert (p <= ranges.box_most + ROUNDING).all()
        top = p.argmax(1)
        assert ranges.on_top[rows, top].all()
        assert (p.max(1) >= ranges.low[rows, top] - ROUNDING).all()
        assert (p.max(1) <= ranges.high[rows, top] + ROUNDING).all()
        own = p[rows, y]
        found = {
            "accuracy": (top == y).mean(),
            "nll": -np.log(own).mean(),
            "brier": ((p * p).sum(1) - 2 * own + 1).mean(),
            "confidence_low": p.max(1).mean(),
            "confidence_high": p.max(1).mean(),
            "ece": calibration_error(p.max(1), top == y, report.edges),
            "classwise_ece": classwise_error(p, y, report.edges),
        }
        for name, value in found.items():
            bound = report.metrics[name]["certified"]
            assert value >= bound - ROUNDING if name in LOW else value <= bound + ROUNDING, name


@pytest.mark.parametrize("seed", range(2))
def test_points_keep_within_what_is_certified(seed: int) -> None:
    graphs, x, y, perturbation = case(seed)
    report = certify_dataset(graphs, x, y, perturbation, bins=5, method=FEW, attack=QUICK)
    assert_sound(report, graphs, x, y, perturbation, seed)
    assert (report.ranges.most - report.ranges.least <= report.ranges.box_most - report.ranges.box_least + 1e-12).all()


@pytest.mark.parametrize("seed", range(2))
def test_points_keep_within_what_is_certified_with_attention(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_attention(rng, depth=1)
    x = torch.from_numpy(rng.uniform(0, 1, (3, *graph.input_shape)))
    y = graph(x).flatten(1).argmax(1)
    softmaxed = lambda z: graph(z).flatten(1).softmax(-1)  # noqa: E731
    perturbation = Perturbation(10 ** rng.uniform(-3, -1), clip=(0, 1))
    method = (Auto(optimize=2), Linear(optimize=0))[seed % 2]
    report = certify_dataset(graph, x, y, perturbation, bins=4, method=method, attack=QUICK)
    assert_sound(report, [softmaxed], x, y, perturbation, seed)


@pytest.mark.parametrize("seed", range(2))
def test_attack_lies_between_clean_and_certified(seed: int) -> None:
    graphs, x, y, perturbation = case(seed, 8)
    report = certify_dataset(graphs, x, y, perturbation, bins=6, method=FEW, attack=QUICK)
    for name, triple in report.metrics.items():
        sign = -1 if name in LOW else 1
        assert sign * triple["clean"] <= sign * triple["attack"] + 1e-12, name
        assert sign * triple["attack"] <= sign * triple["certified"], name
    assert report.brier_parts["reliability"]["clean"] <= report.brier_parts["reliability"]["certified"]
    assert report.brier_parts["uncertainty"]["attack"] <= report.brier_parts["uncertainty"]["certified"]


def test_scores_are_those_of_uncertainty_or_better() -> None:
    graphs, x, y, perturbation = case(1)
    report = certify_dataset(graphs, x, y, perturbation, method=FEW, attack=QUICK)
    for score in ("nll", "brier"):
        alone = verify_uncertainty(graphs, x, y, perturbation, score, FEW, attack=QUICK).column("bound").mean()
        assert report.metrics[score]["certified"] <= alone * 1.02


def test_without_perturbation_all_values_meet() -> None:
    graphs, x, y, _ = case(2)
    report = certify_dataset(graphs, x, y, Perturbation(0.0), method=FEW, attack=QUICK)
    for name in ("accuracy", "nll", "confidence_low", "confidence_high", "ece"):
        triple = report.metrics[name]
        assert triple["clean"] == pytest.approx(triple["certified"], abs=1e-9)


def test_samples_survive_packing() -> None:
    graphs, x, y, perturbation = case(1)
    report = certify_dataset(graphs, x, y, perturbation, bins=5, method=FEW, attack=QUICK)
    ranges, visits = unpack_samples(pack_samples(report), 4, 5)
    for name in ("least", "most", "low", "high", "brier"):
        assert np.array_equal(getattr(ranges, name), getattr(report.ranges, name))
    again = DatasetReport(report.eps, report.labels, ranges, visits, report.edges)
    assert again.metrics == report.metrics
    with pytest.raises(InvalidInput, match="rows of"):
        unpack_samples(pack_samples(report), 3, 5)


def test_the_attack_data_set_was_met() -> None:
    """Every confidence of the attack's own data set is one of an input in the ball."""
    graphs, x, y, perturbation = case(0)
    report = certify_dataset(graphs, x, y, perturbation, bins=5, method=FEW, attack=QUICK)
    confidence, correct = report.attacked
    assert calibration_error(confidence, correct, report.edges) == report.metrics["ece"]["attack"]
    assert (confidence >= report.visits.sure[:, 0]).all()
    assert (confidence <= report.visits.sure[:, 1]).all()
    assert not correct[0] or report.clean[0].argmax() != y[0]


def test_auroc_of_confidences() -> None:
    graphs, x, y, perturbation = case(0, 6)
    inside = certify_dataset(graphs, x[:3], y[:3], perturbation, method=FEW, attack=QUICK)
    outside = certify_dataset(graphs, x[3:], y[3:], perturbation, method=FEW, attack=QUICK)
    area = inside.auroc(outside)
    assert area["certified"] <= area["attack"] <= area["clean"]


def test_simplex_cuts_ranges_and_lifts_the_largest() -> None:
    least, most = torch.tensor([[0.1, 0.2, 0.0]]).double(), torch.tensor([[0.3, 0.9, 0.1]]).double()
    low, high = on_the_simplex(least, most)
    assert low[0].tolist() == pytest.approx([0.1, 0.6, 0.0])
    assert high[0].tolist() == pytest.approx([0.3, 0.9, 0.1])
    assert float(water_level(torch.zeros(1, 3).double(), torch.tensor([[0.4, 0.9, 0.2]]).double())) == pytest.approx(
        0.4
    )


def test_an_exhausted_time_limit_leaves_sound_ranges() -> None:
    graphs, x, y, perturbation = case(1)
    report = certify_dataset(graphs, x, y, perturbation, method=FEW, attack=QUICK, timeout=0)
    assert_sound(report, graphs, x, y, perturbation, 1)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_leaves_sound_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, x, y, perturbation = case(2)

    def attack(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return attack_samples(*arguments)

    monkeypatch.setattr("softhull.verify.ranges.attack_samples", attack)
    report = certify_dataset(graphs, x, y, perturbation, method=FEW, attack=QUICK)
    assert report.interrupted
    assert_sound(report, graphs, x, y, perturbation, 1)


def test_bad_arguments_are_refused() -> None:
    graphs, x, y, perturbation = case(0)
    with pytest.raises(InvalidInput, match="timeout"):
        certify_dataset(graphs, x, y, perturbation, timeout=-1)
    with pytest.raises(InvalidInput, match="bins"):
        certify_dataset(graphs, x, y, perturbation, bins=0)
    with pytest.raises(InvalidInput, match="label"):
        certify_dataset(graphs, x, y + 9, perturbation)
