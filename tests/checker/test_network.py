"""The reader of the checker computes what onnxruntime computes, and refuses by name what it does not know."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import softhull.checker
from softhull.checker.network import OPERATORS, Networks
from softhull.data import BUNDLED, bundled
from softhull.errors import ModelError

from .evaluate import random_attention, save, values

F = np.float32


def agrees(path: Path | str, rng: np.random.Generator) -> None:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    declared = session.get_inputs()[0]
    networks = Networks([path])
    shape = [d if isinstance(d, int) else 1 for d in declared.shape]
    for _ in range(3):
        x = rng.uniform(-1, 1, shape).astype(F)
        (expected,) = session.run(None, {declared.name: x})
        found = values(networks, x)
        last = networks.tensors[f"0:{session.get_outputs()[0].name}"]
        np.testing.assert_allclose(last.index.of(found[last.node]).ravel(), expected.ravel(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in BUNDLED if name.endswith(".onnx")])
def test_bundled_networks(name: str) -> None:
    agrees(bundled(name), np.random.default_rng(0))


OPS: dict[str, tuple[str, list[str], dict[str, Any], dict[str, np.ndarray]]] = {
    "add": ("Add", ["x", "c"], {}, {"c": np.arange(3, dtype=F)}),
    "sub": ("Sub", ["c", "x"], {}, {"c": np.arange(3, dtype=F)}),
    "sub itself": ("Sub", ["x", "x"], {}, {}),
    "mul": ("Mul", ["c", "x"], {}, {"c": np.arange(3, dtype=F)}),
    "square": ("Mul", ["x", "x"], {}, {}),
    "div": ("Div", ["x", "c"], {}, {"c": np.array(3, dtype=F)}),
    "matmul": ("MatMul", ["x", "c"], {}, {"c": np.arange(6, dtype=F).reshape(3, 2)}),
    "matmul left": ("MatMul", ["c", "x"], {}, {"c": np.arange(4, dtype=F).reshape(2, 2)}),
    "gemm": ("Gemm", ["x", "c", "b"], {"transB": 1}, {"c": np.ones((4, 3), F), "b": np.arange(4, dtype=F)}),
    "gemm a": ("Gemm", ["x", "c"], {"transA": 1}, {"c": np.arange(4, dtype=F).reshape(2, 2)}),
    "einsum": ("Einsum", ["x", "c"], {"equation": "ij,jkl->ilk"}, {"c": np.arange(12, dtype=F).reshape(3, 2, 2)}),
    "einsum of two": ("Einsum", ["x", "x"], {"equation": "ij,kj->ik"}, {}),
    "relu": ("Relu", ["x"], {}, {}),
    "leaky": ("LeakyRelu", ["x"], {"alpha": 0.3}, {}),
    "clip": ("Clip", ["x", "c"], {}, {"c": np.array(0, F)}),
    "softmax": ("Softmax", ["x"], {"axis": 0}, {}),
    "transpose": ("Transpose", ["x"], {}, {}),
    "flatten": ("Flatten", ["x"], {"axis": 0}, {}),
    "identity": ("Identity", ["x"], {}, {}),
    "gather": ("Gather", ["x", "c"], {"axis": 1}, {"c": np.array([2, -3, 2])}),
    "unsqueeze": ("Unsqueeze", ["x", "c"], {}, {"c": np.array([0, 2])}),
}


@pytest.mark.parametrize("case", OPS)
def test_operators(case: str, tmp_path: Path) -> None:
    operator, inputs, attributes, constants = OPS[case]
    nodes = [
        helper.make_node(operator, inputs, ["z"], **attributes),
        helper.make_node("Reshape", ["z", "flat"], ["y"]),
    ]
    agrees(save(tmp_path / "m.onnx", nodes, constants | {"flat": np.array([1, -1])}, [2, 3]), np.random.default_rng(1))


def test_shapes_computed_on_the_way(tmp_path: Path) -> None:
    """Shape, Gather, ReduceProd, Max and Concat of whole numbers, as exporters write them."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ReduceProd", ["shape"], ["all"], keepdims=1),
        helper.make_node("Gather", ["shape", "first"], ["rows"]),
        helper.make_node("Max", ["rows", "one"], ["most"]),
        helper.make_node("Concat", ["most", "all"], ["wide"], axis=0),
        helper.make_node("Gather", ["wide", "last"], ["count"]),
        helper.make_node("Concat", ["one", "count"], ["flat"], axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["y"]),
    ]
    constants = {"first": np.array([0]), "last": np.array([1]), "one": np.array([1])}
    agrees(save(tmp_path / "m.onnx", nodes, constants, [2, 3]), np.random.default_rng(1))


def test_wide_broadcasts_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Unsqueeze", ["x", "axis"], ["z"]), helper.make_node("Mul", ["x", "z"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"axis": np.array([2])}, [1, 1 << 14])
    with pytest.raises(ModelError, match="larger than"):
        Networks([path])


def test_softmax_of_old_operator_sets_flattens(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["z"], axis=1),
        helper.make_node("Reshape", ["z", "flat"], ["y"]),
    ]
    agrees(save(tmp_path / "m.onnx", nodes, {"flat": np.array([1, -1])}, [2, 2, 2], 9), np.random.default_rng(1))


def test_random_attention(tmp_path: Path) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        agrees(random_attention(tmp_path / "m.onnx", rng), rng)


def test_other_operators_are_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Cosh", ["x"], ["y"], name="curve")], {}, [1, 3])
    with pytest.raises(ModelError, match=r"m\.onnx: node 'curve' \(Cosh\): not covered.*Softmax"):
        Networks([path])
    assert "Cosh" not in OPERATORS


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (helper.make_node("Gemm", ["x", "c"], ["y"], alpha=2.0), {"c": np.ones((3, 2), F)}),
        (helper.make_node("Clip", ["x", "c"], ["y"]), {"c": np.array(1, F)}),
        (helper.make_node("LeakyRelu", ["x"], ["y"], alpha=-0.1), {}),
        (helper.make_node("Div", ["x", "c"], ["y"]), {"c": np.array(0, F)}),
        (helper.make_node("MatMul", ["x", "c"], ["y"]), {"c": np.full((3, 2), np.nan, F)}),
        (helper.make_node("MatMul", ["x", "c"], ["y"]), {"c": np.ones((4, 2), F)}),
        (helper.make_node("Einsum", ["x", "c"], ["y"], equation="ij,ij->i"), {"c": np.ones((1, 3), np.int64)}),
        (helper.make_node("Add", ["c", "c"], ["y"]), {"c": np.ones(3, F)}),
        (helper.make_node("Relu", ["nothing"], ["y"]), {}),
    ],
)
def test_what_cannot_be_exact_is_refused(node: Any, constants: dict[str, np.ndarray], tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node], constants, [1, 3])
    with pytest.raises(ModelError, match=r"m\.onnx"):
        Networks([path])


def test_checker_shares_no_code() -> None:
    """Only the error classes come from outside of its own folder."""
    folder = Path(softhull.checker.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 or node.module == "errors", f"{path.name} imports {node.module}"
            elif isinstance(node, ast.ImportFrom | ast.Import):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                assert not any(name.startswith("softhull") for name in names), path.name
