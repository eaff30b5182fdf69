"""The uncertainty tables: plain data without the paper's files, and with them the recorded numbers."""

from __future__ import annotations

import csv
import itertools
import os
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from softhull.attack.score import ScoreAttack
from softhull.cli.app import app
from softhull.errors import InvalidInput
from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx
from softhull.paper.uncertainty import COLUMNS, PRINTED, UncertaintyTable, data_file, ensemble_files
from softhull.regions import Perturbation
from softhull.solve.conic import Conic
from softhull.solve.cutting import CuttingPlanes
from softhull.solve.dual import Dual
from softhull.solve.layers import stack_networks
from softhull.solve.neurons import neuron_bounds
from softhull.solve.relaxation import relax
from softhull.solve.softmax_boxes import parse_bounds
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
    (cell,) = UncertaintyTable("mnist-large", columns=["all"], scores=[score], radii=[0.024]).run(networks, data)
    assert cell.ours <= PRINTED["mnist-large"][score][0.024][1]


@pytest.mark.paper
def test_a_table_is_plain_data(mnist):
    table = UncertaintyTable("mnist", images=3, scores=["nll"], radii=[0.008])
    assert len(list(table.run(*mnist))) == len(COLUMNS)
    (row,) = table.to_dict()["rows"]
    assert set(table.to_dict()["cpu_seconds_per_instance"]) == set(COLUMNS)
    assert row["clean"] <= row["attack"] <= row["all"] <= row["lin/lin"] + 1e-4
    assert row["lin/lin printed"] == 0.265


@pytest.mark.paper
def test_the_command_finds_the_papers_folder(paper, tmp_path):
    arguments = ["paper", "uncertainty", "--artifact", str(paper), "--dataset", "mnist", "--images", "1"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "24 of 24 cells" in done.output
    assert len(csv_rows(tmp_path / "uncertainty-mnist.csv")) == 6


# An artifact of our own: tiny networks under the names and in the folders of the paper's.


def save_network(path, seed, inputs=4):
    draw = np.random.default_rng(seed)
    weights = {
        "W": draw.normal(size=(inputs, 5)) / inputs**0.5,
        "b": draw.normal(size=5) / 2,
        "V": draw.normal(size=(5, 3)),
        "c": draw.normal(size=3) / 2,
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "W", "b"], ["z"]),
            helper.make_node("Relu", ["z"], ["h"]),
            helper.make_node("Gemm", ["h", "V", "c"], ["y"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def artifact(tmp_path):
    """The folder, and the test inputs in three formats."""
    folder = tmp_path / "artifact"
    for i in range(2):
        save_network(folder / "models" / f"mnist-{i}.onnx", i)
        save_network(folder / "uncertainty_estimation_experiment/networks" / f"robust_cifar10-{i}.onnx", i, 3072)
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (3, 2, 2), dtype=np.uint8), np.array([0, 1, 2], dtype=np.uint8)
    np.savez(folder / "mnist_test_first500.npz", x=x, y=y)
    (folder / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", *x.shape) + x.tobytes())
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 3) + y.tobytes())
    records = np.concatenate((y[:, None], draw.integers(0, 256, (3, 3072), dtype=np.uint8)), 1)
    (folder / "test_batch.bin").write_bytes(records.tobytes())
    return folder


@pytest.fixture
def quick(monkeypatch):
    """A few steps each: what is computed is tested elsewhere."""
    monkeypatch.setattr("softhull.solve.dual.Dual", lambda: Dual(steps=4))  # as the table of methods finds it
    monkeypatch.setattr(
        "softhull.paper.uncertainty.ScoreAttack", lambda restarts, steps=2: ScoreAttack(steps, min(restarts, 2))
    )


def run(*arguments):
    return CliRunner().invoke(app, ["paper", "uncertainty", *map(str, arguments)])


@pytest.mark.usefixtures("quick")
def test_printed_cells_stand_beside_ours(artifact, tmp_path):
    done = run("--artifact", artifact, "--dataset", "mnist", "--images", 2, "--out", tmp_path / "tables")
    assert done.exit_code == 0, done.output
    for piece in ("tab:UQ, tab:UQ_with_attack", "0.265 / ", "tab:runtime", "10.9 / ", "24 of 24 cells"):
        assert piece in done.output
    rows = csv_rows(tmp_path / "tables" / "uncertainty-mnist.csv")
    assert [(row["score"], row["eps"]) for row in rows[:2]] == [("nll", "0.008"), ("nll", "0.012")]
    for row in rows:
        bounds = [float(row[column]) for column in COLUMNS]
        assert float(row["clean"]) <= float(row["attack"]) <= min(bounds)
    seconds = csv_rows(tmp_path / "tables" / "uncertainty-mnist-seconds.csv")
    assert [row["column"] for row in seconds] == list(COLUMNS)


@pytest.mark.usefixtures("quick")
def test_the_idx_files_hold_the_same_inputs(artifact, tmp_path):
    images = artifact / "t10k-images-idx3-ubyte"
    asked = ("--artifact", artifact, "--dataset", "mnist", "--images", 1, "--out", tmp_path)
    read = []
    for more in ((), ("--data", images)):
        assert run(*asked, *more).exit_code == 0
        read.append(csv_rows(tmp_path / "uncertainty-mnist.csv"))
    assert read[0] == read[1]


@pytest.mark.usefixtures("quick")
def test_separate_inputs_have_a_table_of_their_own(artifact, tmp_path):
    done = run("--artifact", artifact, "--dataset", "mnist", "--images", 1, "--separate", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "tab:UQ_separate" in done.output
    assert "43.22 / " in done.output
    assert csv_rows(tmp_path / "uncertainty-mnist-separate.csv")[0]["lin/lin printed"] == "0.27"


@pytest.mark.usefixtures("quick")
def test_cifar_batches_and_the_layout_of_the_artifact(artifact):
    done = run("--artifact", artifact, "--dataset", "cifar10", "--images", 1)
    assert done.exit_code == 0, done.output
    assert "tab:UQ_cifar (cifar10" in done.output
    assert "2.118 / " in done.output


@pytest.mark.usefixtures("quick")
def test_an_interruption_prints_what_is_there(artifact, tmp_path, monkeypatch):
    import softhull.paper.uncertainty as tables

    solved_before = itertools.count()
    original = tables.verify_uncertainty

    def until_the_third(*arguments, **more):
        if next(solved_before) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **more)

    monkeypatch.setattr(tables, "verify_uncertainty", until_the_third)
    done = run("--artifact", artifact, "--dataset", "mnist", "--images", 1, "--out", tmp_path)
    assert done.exit_code == 130
    assert "2 of 24 cells" in done.output
    (row,) = csv_rows(tmp_path / "uncertainty-mnist.csv")
    assert row["er/lse"]
    assert not row["lse*/lse"]


def test_what_is_missing_is_named(artifact):
    empty = artifact / "models"
    for arguments, said in (
        (("--artifact", artifact, "--dataset", "mnist-large"), "no robust_mnist-large-0.onnx"),
        (("--artifact", artifact, "--dataset", "mnist", "--images", 9), "holds 3 inputs"),
        (("--artifact", empty, "--dataset", "mnist"), "name the test inputs with --data"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert said in done.output
        assert len(done.output.strip().splitlines()) == 1
    with pytest.raises(InvalidInput, match=r"no test_batch\.bin"):
        data_file(empty, "cifar10")
