"""The commands that take a network: inspect and verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

import softhull
from softhull.cli.app import app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A network of two classes, the sign of the first input minus the second, and six inputs."""
    weights = np.array([[1.0, -1.0], [-1.0, 1.0]], dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"])],
        "difference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(weights, "W")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx"
    )
    x = np.array([[1.0, 0.0], [0.6, 0.5], [0.0, 1.0], [0.2, 0.9], [0.9, 0.1], [0.5, 0.4]])
    np.savez(tmp_path / "data.npz", x=x, y=np.array([0, 0, 1, 0, 0, 0]))
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_verdicts_add_up_and_are_right(folder: Path) -> None:
    out = folder / "out.json"
    done = run("verify", folder / "net.onnx", "--data", folder / "data.npz", "--eps", 0.2, "--json", out)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    verdicts = [record["verdict"] for record in found["instances"]]
    assert verdicts == ["certified", "falsified", "certified", "misclassified", "certified", "falsified"]
    summary = found["summary"]
    kinds = ("certified", "falsified", "unknown", "misclassified", "error")
    assert sum(summary[kind] for kind in kinds) == summary["total"] == 6
    assert "certified" in done.output


def test_indices_keep_their_numbers(folder: Path) -> None:
    done = run(
        "verify", folder / "net.onnx", "--data", folder / "data.npz", "--eps", 0.1, "--indices", "4,1:3", "--json", "-"
    )
    assert [record["index"] for record in json.loads(done.stdout)["instances"]] == [4, 1, 2]


def test_an_interrupt_ends_the_run_with_what_was_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("softhull.verify.margins.Margins.attack", interrupted)
    monkeypatch.setattr("softhull.verify.robustness._BATCH", 2)
    done = run("verify", folder / "net.onnx", "--data", folder / "data.npz", "--eps", 0.2, "--json", "-")
    assert done.exit_code == 130
    records = json.loads(done.stdout)["instances"]
    assert [record["verdict"] for record in records[:2]] == ["certified", "unknown"]  # the first batch
    assert {record["message"] for record in records[1:] if record["verdict"] == "unknown"} == {"interrupted"}
    assert "certified" not in {record["verdict"] for record in records[2:]}


def test_radius_is_the_distance_to_the_boundary(folder: Path) -> None:
    done = run("verify", folder / "net.onnx", "--data", folder / "data.npz", "--eps", 1, "--radius", "--json", "-")
    radii = [record["radius"] for record in json.loads(done.stdout)["instances"]]
    assert radii[0] == pytest.approx(0.5, abs=2e-3)
    assert radii[0] <= 0.5
    assert radii[3] is None


@pytest.mark.parametrize("command", ["verify", "uncertainty"])
def test_a_radius_for_every_entry(folder: Path, command: str) -> None:
    """From a file or from the command line, and the same as in Python; the certificates are about it."""
    np.save(folder / "eps.npy", np.array([0.3, 0.01]))
    asked = command, folder / "net.onnx", "--data", folder / "data.npz", "--indices", "0:2", "--json", "-"
    typed, read, alike = (
        json.loads(run(*asked, "--eps", eps).stdout)["instances"] for eps in ("0.3,0.01", folder / "eps.npy", "0.3")
    )
    bounds = [[record["bound"] for record in records] for records in (typed, read, alike)]
    assert bounds[0] == bounds[1] != bounds[2]
    questions: dict[str, Any] = {"verify": softhull.verify_robustness, "uncertainty": softhull.verify_uncertainty}
    with np.load(folder / "data.npz") as data:
        given = softhull.load_onnx(folder / "net.onnx"), data["x"][:2], data["y"][:2]
    found = questions[command](*given, softhull.Perturbation([0.3, 0.01]))
    assert [record.bound for record in found.records] == pytest.approx(bounds[0])
    run(*asked, "--eps", folder / "eps.npy", "--certificates", folder / command)
    proof = next((folder / command).glob("*.npz"))
    assert run("check", proof, "--model", folder / "net.onnx").exit_code == 0


def test_certificates_are_about_a_model_with_its_constants_computed_where_the_checker_needs_that(folder: Path) -> None:
    model = onnx.load(folder / "net.onnx")
    model.graph.initializer[0].name = "before"
    norm = helper.make_node("LayerNormalization", ["before", "scale"], ["W"], axis=-1)
    model.graph.node.insert(0, norm)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, dtype=np.float32), "scale"))
    onnx.save(model, folder / "normed.onnx")
    done = run(
        *("verify", folder / "normed.onnx", "--data", folder / "data.npz", "--eps", 0.2),
        *("--indices", "0:1", "--certificates", folder / "proofs"),
    )
    assert "once its constants are computed: certificates are about" in done.stderr
    (made,), (proof,) = (folder / "proofs").glob("*.onnx"), (folder / "proofs").glob("*.npz")
    assert str(made) in done.stderr
    assert run("check", proof, "--model", made).exit_code == 0
    assert run("check", proof, "--model", folder / "net.onnx").exit_code == 1


def test_a_network_inside_a_file_may_be_inspected(folder: Path) -> None:
    """The error about several inputs names --fix: it is there."""
    model = onnx.load(folder / "net.onnx")
    model.graph.input.append(helper.make_tensor_value_info("shift", TensorProto.FLOAT, [1, 2]))
    model.graph.node.append(helper.make_node("Add", ["y", "shift"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 2]))
    onnx.save(model, folder / "two.onnx")
    np.save(folder / "shift.npy", np.ones((1, 2), dtype=np.float32))
    assert run("inspect", folder / "two.onnx").exit_code == 2
    asked = "inspect", folder / "two.onnx", "--fix", f"shift={folder / 'shift.npy'}", "--output", "z", "--json", "-"
    for cut, parameters in (((), 6), (("--perturb", "y"), 3)):  # a bias with one factor is left
        done = run(*asked, *cut)
        assert done.exit_code == 0, done.output
        assert sum(node["parameters"] for node in json.loads(done.stdout)["nodes"]) == parameters


def test_a_mask_of_no_entries_gets_a_word(folder: Path) -> None:
    np.save(folder / "none.npy", np.zeros(2, dtype=bool))
    asked = "verify", folder / "net.onnx", "--data", folder / "data.npz", "--eps", 0.2, "--only", folder / "none.npy"
    done = run(*asked)
    assert done.exit_code == 0
    assert "only names no entry that may move: every region is its input alone" in done.stderr


def test_a_property_file(folder: Path) -> None:
    text = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
    text += "(assert (<= X_0 1))(assert (>= X_0 0.5))(assert (<= X_1 0.4))(assert (>= X_1 0))(assert (<= Y_0 Y_1))"
    (folder / "safe.vnnlib").write_text(text)
    (folder / "unsafe.vnnlib").write_text(text.replace("(<= X_1 0.4)", "(<= X_1 0.9)"))
    assert run("verify", folder / "net.onnx", "--vnnlib", folder / "safe.vnnlib").output.strip() == "unsat"
    assert run("verify", folder / "net.onnx", "--vnnlib", folder / "unsafe.vnnlib").output.strip() == "sat"


def test_inspect_lists_the_nodes(folder: Path) -> None:
    found = json.loads(run("inspect", folder / "net.onnx", "--json").stdout)
    assert found["input_shape"] == [1, 2]
    assert found["nodes"][-1]["shape"] == [1, 2]
    assert "exact" in run("inspect", folder / "net.onnx").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--eps", "-1"), "eps must be a finite number of at least 0"),
        (("--eps", "nan"), "eps must be a finite number of at least 0"),
        (("--eps", "0.1x"), "'0.1x' is neither a number nor an npy file"),
        (("--eps", "none.npy"), "'none.npy' does not exist"),
        (("--eps", "0.1,-1"), "eps must hold finite numbers of at least 0"),
        (("--eps", "0.1,0.2,0.3"), "eps of shape (3,) does not fit inputs of shape"),
        (("--eps", "0.1,0.2", "--norm", "2"), "an array of radii is for the l_inf norm"),
        (("--eps", "0.1,0.2", "--radius"), "this question needs eps as one number"),
        (("--eps", "0.1", "--indices", "3:99"), "not within the 6 inputs"),
        (("--eps", "0.1", "--indices", "a"), "not an index or a range"),
        (("--eps", "0.1", "--bound", "hul"), "unknown bound 'hul'"),
        (("--eps", "0.1", "--property", "targets"), "needs at least one --target"),
        ((), "name --data and --eps, or --vnnlib"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run("verify", folder / "net.onnx", "--data", folder / "data.npz", *arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_bad_input_leaves_earlier_results_alone(folder: Path) -> None:
    out = folder / "out.json"
    out.write_text("earlier results")
    np.savez(folder / "wide.npz", x=np.zeros((2, 7)), y=np.zeros(2, dtype=int))
    done = run("verify", folder / "net.onnx", "--data", folder / "wide.npz", "--eps", 0.1, "--json", out)
    assert done.exit_code == 2
    assert len(done.output.strip().splitlines()) == 1
    assert out.read_text() == "earlier results"


def test_a_file_that_cannot_be_written_is_named_before_the_work_begins(folder: Path) -> None:
    for option in ("--json", "--certificates"):
        out = folder / "net.onnx" / "out"  # below a file
        done = run("verify", folder / "net.onnx", "--data", folder / "data.npz", "--eps", 0.2, option, out)
        assert done.exit_code == 2
        assert "cannot be written" in done.output
        assert "certified" not in done.output
    out = folder / "missing" / "out.json"  # its folder is made
    assert run("verify", folder / "net.onnx", "--data", folder / "data.npz", "--eps", 0.2, "--json", out).exit_code == 0
    assert out.is_file()


def test_certificates_say_first_whether_the_checker_reads_the_model(folder: Path) -> None:
    model = onnx.load(folder / "net.onnx")
    casts = (
        ("x", "wide", TensorProto.DOUBLE),
        ("wide", "narrow", TensorProto.FLOAT),
    )  # not in the checker
    model.graph.node[0].input[0] = "narrow"
    for place, (before, after, kind) in enumerate(casts):
        model.graph.node.insert(place, helper.make_node("Cast", [before], [after], to=kind))
    onnx.save(model, folder / "cast.onnx")
    for command in ("verify", "uncertainty"):
        for name, said in (("net", "the checker reads the model"), ("cast", "no certificates will be written")):
            ask = (folder / f"{name}.onnx", "--data", folder / "data.npz", "--eps", 0.01, "--indices", 0)
            done = run(command, *ask, "--certificates", folder / "proofs")
            assert done.exit_code == 0, done.output
            assert done.stderr.startswith(said)
            assert len(done.stderr.splitlines()) == 1


def test_files_that_are_not_what_they_should_be(folder: Path) -> None:
    (folder / "bad.onnx").write_bytes(b"not a network")
    (folder / "bad.npz").write_bytes(b"PK not really")
    for model, data in (("bad.onnx", "data.npz"), ("net.onnx", "bad.npz"), ("gone.onnx", "data.npz")):
        done = run("verify", folder / model, "--data", folder / data, "--eps", 0.1)
        assert done.exit_code == 2
        assert len(done.output.strip().splitlines()) == 1


@pytest.mark.parametrize("score", ["nll", "brier", "confidence", "error", "margin"])
def test_scores_are_bracketed(folder: Path, score: str) -> None:
    model, data = folder / "net.onnx", folder / "data.npz"
    done = run("uncertainty", model, model, "--data", data, "--eps", 0.05, "--score", score, "--json", "-")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [record["index"] for record in found["instances"]] == list(range(6))
    sign = -1 if score == "margin" else 1
    for record in found["instances"]:
        assert sign * record["bound"] >= sign * record["attack"] >= sign * record["clean"] - 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--eps", "-0.1"), "eps must be"),
        (("--eps", "0.1", "--score", "nil"), "nil"),
        (("--eps", "0.1", "--bound", "hul"), "hul"),
    ],
)
def test_bad_scores_are_one_line(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run("uncertainty", folder / "net.onnx", "--data", folder / "data.npz", *arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_names_from_a_file_are_shown_and_not_obeyed(folder: Path) -> None:
    model = onnx.load(folder / "net.onnx")
    model.graph.node[-1].name = "[red]\x1b[2Kcertified"
    onnx.save(model, folder / "net.onnx")
    shown = run("inspect", folder / "net.onnx").stdout
    assert "\x1b" not in shown
    assert "[red]\\x1b[2Kcertified" in shown
