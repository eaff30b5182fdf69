"""The uncertainty tables: plain data without the paper's files, and with them the recorded numbers."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from softhull.errors import InvalidInput
from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx
from softhull.paper.uncertainty import COLUMNS, PRINTED, ensemble_files, uncertainty_rows, uncertainty_table
from softhull.propagate.perturbation import Perturbation
from softhull.solve.conic import Conic
from softhull.solve.cutting import CuttingPlanes
from softhull.solve.layers import stack_networks
from softhull.solve.neurons import neuron_bounds
from softhull.solve.relaxation import relax
from softhull.solve.softmax import parse_bounds
from softhull.verify.scores import find_score
from softhull.verify.uncertainty import verify_uncertainty

# One radius is the fixed sample of every run; the others belong to `make paper`.
RADII = (pytest.param(0.008, marks=pytest.mark.slow), 0.012, pytest.param(0.016, marks=pytest.mark.slow))


def test_a_folder_without_networks_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"no mnist-0\.onnx"):
        ensemble_files(tmp_path, "mnist")
    with pytest.raises(InvalidInput, match="unknown dataset 'svhn'; known: mnist"):
        ensemble_files(tmp_path, "svhn")


def test_every_printed_row_has_its_three_columns():
    for cells in PRINTED.values():
        for rows in cells.values():
            assert all(len(columns) == 3 for columns in rows.values())


@pytest.fixture(scope="module")
def paper():
    folder = os.environ.get("SOFTHULL_PAPER_DIR")
    if not folder:
        pytest.skip("SOFTHULL_PAPER_DIR is not set")
    return Path(folder)


@pytest.fixture(scope="module")
def mnist(paper):
    data = load_dataset(paper / "mnist_test_first500.npz")
    networks = [load_onnx(path) for path in ensemble_files(paper, "mnist")]
    return networks, data


def csv_rows(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.paper
@pytest.mark.parametrize("dataset", ["mnist", "mnist-large"])
def test_neuron_bounds_are_those_recorded(paper, dataset):
    name = {"mnist": "mnist", "mnist-large": "robust_mnist-large"}[dataset]
    recorded = np.load(paper / f"deeppoly_bounds_{name}.npz")
    data = load_dataset(paper / "mnist_test_first500.npz")
    images = recorded["logit_l"].shape[1]
    (stack,) = stack_networks([load_onnx(path).graph for path in ensemble_files(paper, dataset)])
    x = torch.from_numpy(data.take(range(images)))
    pairs = ~torch.eye(10, dtype=torch.bool)
    for e, eps in enumerate(recorded["eps"]):
        found = neuron_bounds(stack, Perturbation(float(eps), clip=(0.0, 1.0)).around(x))
        names = [f"pre{i + 1}" for i in range(len(found.intervals) - 1)] + ["logit"]
        for key, interval in zip(names, found.intervals):
            for side, values in zip("lu", interval):
                np.testing.assert_allclose(values.transpose(0, 1), recorded[f"{key}_{side}"][:, :, e], atol=1e-4)
        for side, values in zip("lu", found.differences):
            ours = values.mT[:, :, pairs].transpose(0, 1)
            np.testing.assert_allclose(ours, recorded[f"diff_{side}"][:, :, e], atol=1e-4)


def solved(mnist, method, bound, score, eps, images):
    """Scores of some images by one method, under the paper's rules."""
    networks, data = mnist
    x, y = torch.from_numpy(data.take(images)), torch.from_numpy(data.y[images])
    region = Perturbation(eps, clip=(0.0, 1.0)).around(x)
    relaxation = relax(stack_networks([n.graph for n in networks]), region, parse_bounds(bound))
    rule = find_score(score)
    (piece,) = rule.pieces(y, *relaxation.probabilities())
    plane = piece.tangent(relaxation.probabilities()[0])
    solution = method.solve(relaxation, plane.coefficients)
    return rule.from_badness(solution.bound + plane.offset).numpy(), solution.bound + plane.offset


def accurate(paper, bound, score, eps):
    lower = {"er/lse": "ER", "lse*/lse": "LSE"}[bound]
    return {
        int(row["index"]): float(row["score"])
        for row in csv_rows(paper / "uq_accurate_mnist.csv")
        if (row["lb"], row["scoring"].lower(), float(row["eps"])) == (lower, score, eps) and row["status"] == "optimal"
    }


@pytest.mark.paper
@pytest.mark.parametrize("eps", RADII)
@pytest.mark.parametrize("score", ["nll", "brier"])
@pytest.mark.parametrize("bound", ["er/lse", "lse*/lse"])
def test_lp_reaches_the_accurate_optimum(paper, mnist, bound, score, eps):
    wanted = accurate(paper, bound, score, eps)
    images = sorted(wanted)
    ours, _ = solved(mnist, CuttingPlanes(), bound, score, eps, images)
    np.testing.assert_allclose(ours, [wanted[i] for i in images], rtol=0, atol=2e-5)


@pytest.mark.paper
@pytest.mark.parametrize("eps", RADII)
@pytest.mark.parametrize("score", ["nll", "brier"])
@pytest.mark.parametrize("bound", ["er/lse", "lse*/lse"])
def test_conic_reaches_the_accurate_optimum(paper, mnist, bound, score, eps):
    wanted = accurate(paper, bound, score, eps)
    images = sorted(wanted)
    ours, _ = solved(mnist, Conic(), bound, score, eps, images)
    np.testing.assert_allclose(ours, [wanted[i] for i in images], rtol=0, atol=2e-5)


@pytest.mark.paper
@pytest.mark.parametrize("eps", RADII)
@pytest.mark.parametrize("score", ["nll", "brier"])
def test_linear_bounds_reach_the_recorded_objective(paper, mnist, score, eps):
    """Compared as objectives (for the likelihood: a probability), the quantity the recorded solver worked on."""
    recorded = {
        int(row["index"]): float(row["objective"])
        for row in csv_rows(paper / "uq_recorded.csv")
        if (row["dataset"], row["lb"], row["scoring"].lower(), float(row["eps"])) == ("mnist", "lin", score, eps)
    }
    images = sorted(recorded)
    _, ours = solved(mnist, CuttingPlanes(), "lin/lin", score, eps, images)
    np.testing.assert_allclose(ours, [recorded[i] for i in images], rtol=0, atol=1e-4)


LIMITS = {
    ("nll", 0.008): (0.2491, 0.2015),
    ("nll", 0.012): (0.4139, 0.2845),
    ("nll", 0.016): (0.6830, 0.4070),
    ("brier", 0.008): (0.1291, 0.0970),
    ("brier", 0.012): (0.2301, 0.1425),
    ("brier", 0.016): (0.3975, 0.2115),
}


@pytest.mark.paper
@pytest.mark.parametrize(("score", "eps"), LIMITS)
def test_the_default_relaxation_beats_the_printed_table(mnist, score, eps):
    networks, data = mnist
    result = verify_uncertainty(networks, data.take(range(100)), data.y[:100], Perturbation(eps, clip=(0, 1)), score)
    most, least = LIMITS[score, eps]
    assert result.column("bound").mean() <= most
    assert result.column("attack").mean() >= least
    assert (result.column("attack") <= result.column("bound")).all()


@pytest.mark.paper
@pytest.mark.parametrize("score", ["nll", "brier"])
def test_the_larger_ensemble_is_at_most_as_printed(paper, score):
    data = load_dataset(paper / "mnist_test_first500.npz")
    networks = [load_onnx(path) for path in ensemble_files(paper, "mnist-large")]
    (row,) = uncertainty_rows(networks, data, "mnist-large", columns=["all"], scores=[score], radii=[0.024])
    assert row.bounds["all"].ours <= PRINTED["mnist-large"][score][0.024][1]


@pytest.mark.paper
def test_a_table_is_plain_data(paper):
    data = load_dataset(paper / "mnist_test_first500.npz")
    table = uncertainty_table(paper, data, "mnist", images=3, scores=["nll"], radii=[0.008])
    (row,) = table.to_dict()["rows"]
    assert set(table.to_dict()["cpu_seconds_per_instance"]) == set(COLUMNS)
    assert row["clean"] <= row["attack"] <= row["all"] <= row["lin/lin"] + 1e-4
    assert row["lin/lin printed"] == 0.265
