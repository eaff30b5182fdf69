"""Result files as the competition reads them: the verdict on the first line, below it a witness that it can replay."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from softhull.formats.onnx import load_onnx
from softhull.formats.vnnlib import load_vnnlib
from softhull.runs.vnncomp import breaks

from .campaigns import call, write_network

FIRST = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const X_2 Real) (declare-const X_3 Real)
(declare-const Y_0 Real) (declare-const Y_1 Real) (declare-const Y_2 Real)
{}
(assert (<= Y_0 {}))
"""
SECOND = """
(vnnlib-version <2.0>)
(declare-network N (declare-input image float64 [1,4]) (declare-output scores Real [1,3]))
{}
(assert (<= scores[0,0] {}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_network(tmp_path / "net.onnx", 0)
    return tmp_path


def decide(folder: Path, text: str, variable: str) -> tuple[str, str]:
    """Verdict and witness in the result file on whether the first output can be what it is at 0.1."""
    network = load_onnx(folder / "net.onnx")
    here = float(network.replay(np.full((1, 4), 0.1))[0].reshape(-1)[0])
    box = [f"(assert (>= {variable.format(i)} 0.1)) (assert (<= {variable.format(i)} 0.3))" for i in range(4)]
    (folder / "property.vnnlib").write_text(text.format("\n".join(box), f"{here:.12f}"))
    files = folder / "net.onnx", folder / "property.vnnlib", folder / "result.txt"
    done = call("vnncomp", *files, "--timeout", 20)
    assert done.exit_code == 0, done.output
    verdict, _, witness = (folder / "result.txt").read_text().partition("\n")
    return verdict, witness


def replayed(folder: Path, x: list[float], y: list[float]) -> None:
    """The input lies in the box and leads to the output that stands beside it."""
    assert all(0.1 <= number <= 0.3 for number in x)
    network = load_onnx(folder / "net.onnx")
    np.testing.assert_array_equal(network.replay(np.array([x], network.input_dtype))[0].reshape(-1), y)


def test_version_1_is_a_list_of_pairs(folder: Path) -> None:
    verdict, witness = decide(folder, FIRST, "X_{}")
    assert verdict == "sat"
    content = witness.replace("\n", " ").strip()
    assert (content[:2], content[-2:]) == ("((", "))")
    pairs = re.findall(r"\(([XY])_(\d+) ([^\s()]+)\)", content)
    assert [(kind, int(place)) for kind, place, _ in pairs] == [
        *(("X", i) for i in range(4)),
        *(("Y", i) for i in range(3)),
    ]
    assert re.sub(r"\([XY]_\d+ [^\s()]+\)", "", content).split() == ["(", ")"]
    x, y = ([float(number) for kind, _, number in pairs if kind == which] for which in "XY")
    replayed(folder, x, y)


def test_version_2_repeats_the_declarations(folder: Path) -> None:
    verdict, witness = decide(folder, SECOND, "image[0,{}]")
    assert verdict == "sat"
    lines = witness.splitlines()
    assert lines[0] == "image float64 [1,4]"
    assert lines[5] == "scores real [1,3]"
    assert len(lines) == 9
    replayed(folder, [float(line) for line in lines[1:5]], [float(line) for line in lines[6:]])
    specification = load_vnnlib(folder / "property.vnnlib")
    network = load_onnx(folder / "net.onnx")
    assert breaks(witness, network, specification)
    assert not breaks("\n".join([lines[0], *["0.9"] * 4, *lines[5:]]), network, specification)
    assert not breaks("\n".join(lines[:3]), network, specification)


def test_tables_have_the_columns_of_the_competition(folder: Path) -> None:
    decide(folder, FIRST, "X_{}")
    (folder / "instances.csv").write_text("./net.onnx,./property.vnnlib,20\nnet.onnx,gone.vnnlib,5.5\n")
    done = call("vnncomp", "--instances", folder / "instances.csv", "--out", folder / "results.csv", "--category", "c")
    assert done.exit_code == 0, done.output
    first, second = csv.reader((folder / "results.csv").read_text().splitlines())
    assert [*first[:3], first[4]] == ["c", "./net.onnx", "./property.vnnlib", "sat"]
    assert [*second[:3], second[4]] == ["c", "net.onnx", "gone.vnnlib", "error"]
    assert all(float(line[place]) >= 0 for line in (first, second) for place in (3, 5))


IDENTITY = """
(declare-const X_0 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)
{}
"""


@pytest.mark.parametrize(
    ("conditions", "verdicts"),
    [
        # the outputs are (x, 1): only the end itself would break the property
        ("(assert (>= X_0 0)) (assert (< X_0 1)) (assert (>= Y_0 Y_1))", {"unknown", "unsat", "timeout"}),
        ("(assert (>= X_0 0)) (assert (<= X_0 1)) (assert (>= Y_0 Y_1))", {"sat"}),
        ("(assert (>= X_0 0)) (assert (<= X_0 1)) (assert (> Y_0 Y_1))", {"unknown", "unsat", "timeout"}),
        ("(assert (>= X_0 0)) (assert (< X_0 1)) (assert (>= Y_0 0.5))", {"sat"}),
        ("(assert (>= X_0 0)) (assert (< X_0 1)) (assert (> X_0 2)) (assert (>= Y_0 0))", {"unsat"}),
        ("(assert (or (and (>= X_0 0) (< X_0 1)) (and (> X_0 0.5) (< X_0 1)))) (assert (>= Y_0 1))", None),
        ("(assert (or (and (>= X_0 0) (< X_0 1)) (and (>= X_0 0) (<= X_0 1)))) (assert (>= Y_0 1))", {"sat"}),
    ],
)
def test_witnesses_satisfy_strict_conditions(conditions: str, verdicts: set[str] | None, tmp_path: Path) -> None:
    write_identity(tmp_path / "net.onnx")
    (tmp_path / "property.vnnlib").write_text(IDENTITY.format(conditions))
    done = call("vnncomp", tmp_path / "net.onnx", tmp_path / "property.vnnlib", tmp_path / "r.txt", "--timeout", 20)
    assert done.exit_code == 0, done.output
    verdict, _, witness = (tmp_path / "r.txt").read_text().partition("\n")
    assert verdict in (verdicts or {"unknown", "unsat", "timeout"})
    if verdict == "sat":
        x = float(re.findall(r"\(X_0 ([^\s()]+)\)", witness)[0])
        assert x == float(np.float32(x))
        assert any(
            d.holds(np.array([x]), np.array([x, 1.0])) for d in load_vnnlib(tmp_path / "property.vnnlib").disjuncts
        )
        network, specification = load_onnx(tmp_path / "net.onnx"), load_vnnlib(tmp_path / "property.vnnlib")
        # a number the network cannot take is not what would be replayed
        assert not breaks(witness.replace(f"(X_0 {x!r})", f"(X_0 {x + 1e-12!r})"), network, specification)


def write_identity(path: Path) -> None:
    """A file whose outputs are ``(x, 1)``."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"])]
    held = [
        numpy_helper.from_array(np.array([[1.0, 0.0]], dtype=np.float32), "w"),
        numpy_helper.from_array(np.array([0.0, 1.0], dtype=np.float32), "b"),
    ]
    graph = helper.make_graph(
        nodes,
        "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        held,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
