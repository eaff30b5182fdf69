"""``softhull uncertainty``: what it prints, what it writes, and one clear line for what cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from softhull.cli.app import app


def save_network(path: Path, inputs: int = 4, classes: int = 3, last: str | None = None) -> None:
    weights = np.random.default_rng(0).normal(size=(inputs, classes)).astype(np.float32)
    nodes = [helper.make_node("Gemm", ["x", "W"], ["z" if last else "y"])]
    if last:
        nodes.append(helper.make_node(last, ["z"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "affine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])],
        [numpy_helper.from_array(weights, "W")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Networks and data, good and bad, in the folder the command is run in."""
    monkeypatch.chdir(tmp_path)
    save_network(tmp_path / "net.onnx")
    save_network(tmp_path / "softmax.onnx", last="Softmax")
    save_network(tmp_path / "five-inputs.onnx", inputs=5)
    save_network(tmp_path / "two-classes.onnx", classes=2)
    save_network(tmp_path / "one-output.onnx", classes=1)
    save_network(tmp_path / "sigmoid.onnx", last="Sigmoid")
    (tmp_path / "text.onnx").write_bytes(b"not a network")
    (tmp_path / "empty.onnx").write_bytes(b"")
    x, y = np.random.default_rng(0).random((3, 4)), np.array([0, 1, 2])
    np.savez(tmp_path / "data.npz", x=x, y=y)
    np.savez(tmp_path / "label.npz", x=x, y=np.array([0, 1, 7]))
    np.savez(tmp_path / "outside.npz", x=x + 1, y=y)
    np.savez(tmp_path / "nan.npz", x=np.where(x > 0.5, np.nan, x), y=y)
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 9)), y=y)
    return tmp_path


def run(arguments: str) -> Result:
    return CliRunner().invoke(app, ["uncertainty", *arguments.split()])


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "net.onnx five-inputs.onnx --data data.npz --eps 0.1",
            "five-inputs.onnx: input shape (1, 5), but net",
        ),
        ("net.onnx two-classes.onnx --data data.npz --eps 0.1", "two-classes.onnx: 2 classes, but net.onnx has 3"),
        (
            "net.onnx --data label.npz --eps 0.1",
            "label 7 of instance 2 is out of range",
        ),
        ("net.onnx --data data.npz --eps -0.1", "eps must be a finite number of at least 0, got -0.1"),
        ("net.onnx --data data.npz --eps nan", "eps must be a finite number of at least 0, got nan"),
        ("net.onnx --data data.npz --eps inf", "eps must be a finite number of at least 0, got inf"),
        ("net.onnx --data outside.npz --eps 0.1 --clip 0 1", "lies outside the clip range (0.0, 1.0)"),
        ("net.onnx --data data.npz --eps 0.1 --clip 1 0", "clip must be (low, high)"),
        ("net.onnx --data nan.npz --eps 0.1", "nan.npz: input 0 holds NaN"),
        ("net.onnx --data wide.npz --eps 0.1", "x of shape (3, 9)"),
        ("text.onnx --data data.npz --eps 0.1", "text.onnx: not an ONNX file, or damaged"),
        ("empty.onnx --data data.npz --eps 0.1", "empty.onnx: not an ONNX file"),
        ("data.npz --data data.npz --eps 0.1", "data.npz: not an ONNX file, or damaged"),
        ("gone.onnx --data data.npz --eps 0.1", "'gone.onnx' does not exist"),
        ("net.onnx --data text.onnx --eps 0.1", "text.onnx: neither npz, IDX nor a CIFAR-10 batch"),
        ("sigmoid.onnx --data data.npz --eps 0.1", "sigmoid.onnx: ends in Sigmoid; a network that ends in logits"),
        ("one-output.onnx --data data.npz --eps 0.1", "one-output.onnx: output of shape (1, 1)"),
        ("net.onnx --data data.npz --eps 0.1 --score confidence:3", "confidence of class 3: there are 3 classes"),
        ("net.onnx --data data.npz --eps 0.1 --timeout nan", "timeout must be a number"),
        ("net.onnx --data data.npz --eps 0.1 --indices 5", "not within the 3 inputs"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments: str, said: str) -> None:
    done = run(arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_logits_and_probabilities_mean_the_same(folder: Path) -> None:
    for name in ("net", "softmax"):
        assert run(f"{name}.onnx --data data.npz --eps 0.05 --json {name}.json").exit_code == 0
    bounds = [
        [record["bound"] for record in json.loads((folder / f"{name}.json").read_text())["instances"]]
        for name in ("net", "softmax")
    ]
    np.testing.assert_allclose(bounds[0], bounds[1])


@pytest.mark.usefixtures("folder")
def test_a_file_that_cannot_be_written_is_named_before_the_work_begins() -> None:
    done = run("net.onnx --data data.npz --eps 0.05 --json net.onnx/out.json")
    assert done.exit_code == 2
    assert "cannot be written" in done.output
    assert "certified at most" not in done.output


@pytest.mark.usefixtures("folder")
def test_what_is_rounded_to_nearest_says_so() -> None:
    asked = "net.onnx --data data.npz --eps 0.05 --indices 0"
    assert "not proved for the real-valued networks" in run(f"{asked} --rounding nearest").output
    assert json.loads(run(f"{asked} --rounding nearest --json -").stdout)["rounding"] == "nearest"
    assert json.loads(run(f"{asked} --json -").stdout)["rounding"] == "outward"
