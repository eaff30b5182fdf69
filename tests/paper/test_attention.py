"""The attention tables: on a generated network without the paper's files, and with them cell by cell."""

from __future__ import annotations

import csv
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from softhull.cli.app import INTERRUPTED, app
from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx
from softhull.paper import attention
from softhull.paper.attention import ALL_COLUMNS, COLUMNS, MNIST, PAPER_COLUMNS, SST, AttentionStudy
from softhull.propagate.methods import Auto, Linear, Paper
from softhull.regions import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from tests.formats.onnx_models import Builder, build

IMAGES, SIDE, CLASSES = 24, 4, 3


def _attention_network(seed: int, outputs: int) -> bytes:
    rng = np.random.default_rng(seed)

    def make(b: Builder) -> str:
        tokens = b.op("Reshape", "x", b.ints(SIDE, SIDE))
        q, k, v = (b.op("MatMul", tokens, b.const(rng.normal(size=(SIDE, SIDE)))) for _ in range(3))
        p = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[1, 0])), axis=1)
        flat = b.op("Reshape", b.op("Relu", b.op("MatMul", p, v)), b.ints(1, SIDE * SIDE))
        return b.op("MatMul", flat, b.const(rng.normal(size=(SIDE * SIDE, outputs))))

    return build((1, SIDE * SIDE), make)


@pytest.fixture
def folder(tmp_path):
    """A folder as people lay it out: models/ with the small network, and images, most of them classified correctly."""
    (tmp_path / "models").mkdir()
    small = tmp_path / "models" / MNIST.files["small"]
    small.write_bytes(_attention_network(0, CLASSES))
    x = np.random.default_rng(1).uniform(0.1, 0.9, size=(IMAGES, SIDE * SIDE)).astype(np.float32)
    y = load_onnx(small).replay(x).reshape(IMAGES, CLASSES).argmax(1)
    y[:2] = (y[:2] + 1) % CLASSES
    np.savez(tmp_path / MNIST.data, x=x, y=y)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def _rows(folder, *options):
    done = run("paper", "attention", "--artifact", folder, "--json", "-", *options)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["rows"]


def test_columns_are_what_single_questions_answer(folder):
    rows = _rows(folder, "--networks", "small", "--eps", "0.005,0.03")
    assert [(row["eps"], row["property"]) for row in rows] == [
        (0.005, "all"), (0.005, "runner-up"), (0.03, "all"), (0.03, "runner-up"),
    ]  # fmt: skip
    network, data = load_onnx(folder / "models" / MNIST.files["small"]), load_dataset(folder / MNIST.data)
    for row in rows:
        assert (row["images"], row["correct"], row["failed"]) == (IMAGES, IMAGES - 2, 0)
        region = Perturbation(row["eps"], clip=(0, 1))
        for column in PAPER_COLUMNS:
            alone = verify_robustness(network, data.x, data.y, region, row["property"], Paper(column.lower()))
            assert row[column] == pytest.approx(100 * alone.count(Verdict.CERTIFIED) / IMAGES)
        alone = verify_robustness(network, data.x, data.y, region, row["property"], Linear())
        assert row["hull + opt"] == pytest.approx(100 * alone.count(Verdict.CERTIFIED) / IMAGES)
        alone = verify_robustness(network, data.x, data.y, region, row["property"], Auto())
        assert row["auto"] == pytest.approx(100 * alone.count(Verdict.CERTIFIED) / IMAGES)
        assert row["hull"] <= row["hull + opt"] <= row["portfolio"] <= row["ceiling"] <= 100 * row["correct"] / IMAGES
    assert 0 < rows[2]["lin"] < rows[0]["lin"]


def test_certified_images_are_never_broken(folder):
    network, data = load_onnx(folder / "models" / MNIST.files["small"]), load_dataset(folder / MNIST.data)
    study = AttentionStudy(MNIST, {"small": network}, data, radii=(0.05, 0.2), optimize=2)
    assert sum(1 for _ in study.run()) == len(study) == 2
    assert any(row.broken for row in study.rows)
    for row in study.rows:
        for column in COLUMNS:
            assert not row.certified[column] & (row.broken | row.misclassified)
    for strong, weak in zip(study.rows[::2], study.rows[1::2]):
        assert all(strong.certified[column] <= weak.certified[column] for column in COLUMNS)


def test_the_table_shows_printed_cells_and_names_what_is_left_out(folder):
    out = folder / "rows.csv"
    done = run("paper", "attention", "--artifact", folder, "--images", 5, "--eps", 0.016, "--out", out)
    assert done.exit_code == 0, done.output
    assert "(74.0)" in done.stdout
    assert "cells are equal" not in done.stdout  # five images are not the five hundred of the paper
    left_out = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(left_out) == 2
    assert MNIST.files["medium"] in left_out[0]
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["property"] for row in rows] == ["all", "runner-up"]
    assert rows[1]["lin printed"] == "74.0"
    assert set(ALL_COLUMNS) <= set(rows[0])


def test_any_other_network_by_path_alone(folder):
    other = folder / "other.onnx"
    other.write_bytes(_attention_network(5, CLASSES))
    done = run("paper", "attention", "--networks", other, "--data", folder / MNIST.data, "--images", 4, "--eps", 0.01)
    assert done.exit_code == 0, done.output
    assert "other" in done.stdout


def test_one_logit_has_one_property(folder):
    (folder / "models" / SST.files["sst"]).write_bytes(_attention_network(2, 1))
    x = np.random.default_rng(3).normal(size=(6, SIDE * SIDE)).astype(np.float32)
    np.savez(folder / SST.data, x=x, y=(load_onnx(folder / "models" / SST.files["sst"]).replay(x).ravel() > 0))
    done = run("paper", "sst", "--artifact", folder, "--json", "-", "--eps", "0.02,0.16")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [(row["network"], row["property"], row["lin printed"]) for row in rows] == [
        ("sst", "all", 68.8),
        ("sst", "all", 26.4),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--artifact", "no-such-folder"], "no-such-folder"),
        (["--artifact", "."], "name --data"),
        ([], "name --data"),
        (["--data", "{data}", "--networks", "small"], "name the folder"),
        (["--data", "{data}", "--networks", "no.onnx"], "neither a file nor one of small"),
        (["--data", "{data}", "--artifact", "{empty}"], "no self-attention-mnist-pgd-small-sim.onnx in"),
        (["--data", "{data}", "--artifact", "{folder}", "--eps", "nan"], "not a number"),
    ],
)
def test_bad_input_is_one_line(folder, arguments, words):
    (folder / "empty").mkdir()
    places = {"data": folder / MNIST.data, "folder": folder, "empty": folder / "empty"}
    done = run("paper", "attention", *(a.format(**places) for a in arguments))
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert words in done.stderr


def test_a_damaged_network_does_not_take_the_others_with_it(folder):
    (folder / "models" / MNIST.files["medium"]).write_bytes(b"not a network")
    done = run("paper", "attention", "--artifact", folder, "--networks", "medium,small", "--images", 3, "--eps", 0.01)
    assert done.exit_code == 0, done.output
    assert MNIST.files["medium"] in done.stderr
    assert "small" in done.stdout


def test_an_interrupt_prints_what_was_done(folder, monkeypatch):
    monkeypatch.setattr(attention, "BATCH", 4)
    calls = []

    def interrupted_later(*arguments, **named):
        calls.append(1)
        if len(calls) > 2 * len(COLUMNS) * 2:  # two whole batches, both properties, and a part of the third
            raise KeyboardInterrupt
        return verify_robustness(*arguments, **named)

    monkeypatch.setattr(attention, "verify_robustness", interrupted_later)
    done = run("paper", "attention", "--artifact", folder, "--networks", "small", "--eps", 0.2, "--json", "-")
    assert done.exit_code == INTERRUPTED
    rows = json.loads(done.stdout)["rows"]
    assert {row["images"] for row in rows} <= {8, 12}
    assert all(row["images"] == rows[0]["images"] for row in rows)


FOLDER = Path(os.environ.get("SOFTHULL_PAPER_DIR", "no-such-folder"))


@pytest.fixture(scope="module")
def paper():
    if not FOLDER.is_dir():
        pytest.skip("SOFTHULL_PAPER_DIR does not name the folder with the paper's networks")
    return FOLDER


@cache
def _inputs(experiment_data, name, file):
    return load_onnx(FOLDER / "models" / file), load_dataset(FOLDER / experiment_data)


def _certified(experiment, name, eps, column):
    network, data = _inputs(experiment.data, name, experiment.files[name])
    region = Perturbation(eps, clip=experiment.clip)
    kind = experiment.printed_property
    result = verify_robustness(network, data.x, data.y, region, kind, Paper(column.lower()), attack=False)
    assert not result.count(Verdict.ERROR)
    return result.count(Verdict.CERTIFIED)


def _cells(experiment, *names):
    return [
        pytest.param(name, eps, column, round(5 * cell), id=f"{name}-{eps}-{column}")
        for name in names
        for eps, cells in experiment.printed[name].items()
        for column, cell in zip(PAPER_COLUMNS, cells)
    ]


@pytest.mark.paper
@pytest.mark.usefixtures("paper")
@pytest.mark.parametrize(("name", "eps", "column", "printed"), _cells(SST, "sst"))
def test_sst_cells(name, eps, column, printed):
    assert _certified(SST, name, eps, column) == printed


@pytest.mark.paper
@pytest.mark.slow
@pytest.mark.usefixtures("paper")
@pytest.mark.parametrize(("name", "eps", "column", "printed"), _cells(MNIST, "medium"))
def test_medium_cells(name, eps, column, printed):
    assert _certified(MNIST, name, eps, column) == printed


@pytest.mark.paper
@pytest.mark.slow
@pytest.mark.usefixtures("paper")
@pytest.mark.parametrize(("name", "eps", "column", "printed"), _cells(MNIST, "small"))
def test_small_cells_within_two_images(name, eps, column, printed):
    assert abs(_certified(MNIST, name, eps, column) - printed) <= 2


@pytest.mark.paper
def test_printed_cells_are_those_of_the_paper(paper):
    tables = json.loads((paper / "tables.json").read_text())
    for name, rows in MNIST.printed.items():
        (printed,) = (cells for title, cells in tables[MNIST.name].items() if title.startswith(name))
        assert {float(eps): tuple(cells) for eps, cells in printed.items()} == rows
    printed = {float(eps): tuple(cells) for eps, cells in tables[SST.name].items() if eps != "cols"}
    assert printed == SST.printed["sst"]


@pytest.mark.paper
def test_the_command_on_the_paper_networks(paper):
    rows = _rows(paper, "--networks", "small,medium", "--images", "20", "--eps", "0.016")
    assert [row["network"] for row in rows] == ["small", "small", "medium", "medium"]
    for row in rows:
        assert row["failed"] == 0
        best = max(row[column] for column in PAPER_COLUMNS)
        assert best <= row["hull"] <= row["hull + opt"] <= row["portfolio"] <= row["ceiling"]
        assert row["hull"] <= row["auto"] <= row["portfolio"]
