"""The reader of the checker computes what onnxruntime computes, and refuses by name what it does not know."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

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
    "gemm alpha": ("Gemm", ["x", "c"], {"alpha": 0.3}, {"c": np.ones((3, 2), F)}),
    "gemm beta": ("Gemm", ["x", "c", "b"], {"alpha": 2.0, "beta": 0.3}, {"c": np.ones((3, 2), F), "b": np.ones(2, F)}),
    "gemm no summand": ("Gemm", ["x", "c", "b"], {"beta": 0.0}, {"c": np.ones((3, 2), F), "b": np.ones(2, F)}),
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


def test_a_part_of_a_shape(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["some"], start=1, end=-1),
        helper.make_node("Concat", ["some", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["y"]),
    ]
    agrees(save(tmp_path / "m.onnx", nodes, {"rest": np.array([-1])}, [2, 1, 3], 15), np.random.default_rng(1))


def test_the_mask_of_a_dropout_is_for_nobody(tmp_path: Path) -> None:
    nodes = [helper.make_node("Dropout", ["x"], ["h", "mask"]), helper.make_node("Relu", ["h"], ["y"])]
    agrees(save(tmp_path / "m.onnx", nodes, {}, [1, 3]), np.random.default_rng(1))
    nodes += [helper.make_node("Where", ["mask", "y", "x"], ["z"])]
    with pytest.raises(ModelError, match="there is no tensor 'mask' before it"):
        Networks([save(tmp_path / "m.onnx", nodes, {}, [1, 3])])


@pytest.mark.parametrize("outputs", [("h", "h"), ("h", "x"), ("h", "y"), ("h", "c"), ("h", "mask", "more")])
def test_an_output_that_nobody_reads_has_a_name_of_its_own(outputs: tuple[str, ...], tmp_path: Path) -> None:
    """Two readers could otherwise take the mask of a Dropout for another tensor, or for none."""
    nodes = [helper.make_node("Dropout", ["x"], outputs), helper.make_node("Add", ["h", "c"], ["y"])]
    with pytest.raises(ModelError, match=r"there are two tensors|more than a result"):
        Networks([save(tmp_path / "m.onnx", nodes, {"c": np.ones(3, F)}, [1, 3])])


@pytest.mark.parametrize("opset", [6, 10, 11, 13])
def test_the_least_and_the_largest_number_of_a_clip(opset: int, tmp_path: Path) -> None:
    """Attributes are single floats, and so are their defaults where the operand is double."""
    path = save(tmp_path / "m.onnx", [helper.make_node("Clip", ["x"], ["y"])], {}, [2], opset)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    onnx.save(model, path)
    networks, x = Networks([path]), np.array([-1e39, 0.5])
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    np.testing.assert_allclose(values(networks, x)[networks.tensors["0:y"].node], expected)


def test_windows_have_places_of_64_bits(tmp_path: Path) -> None:
    """The last place of the second window is 2^64 + 4, not 4."""
    largest = 2**63 - 1
    window: dict[str, Any] = {"kernel_shape": [5], "dilations": [2**62 + 1], "pads": [largest] * 2, "ceil_mode": 1}
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], strides=[largest], **window)]
    with pytest.raises(ModelError, match="larger than"):
        Networks([save(tmp_path / "m.onnx", nodes, {}, [1, 1, 16])])


def test_many_parts_are_counted(tmp_path: Path) -> None:
    """A tensor of many parts has a scale for every entry of each: files of a few bytes would take gigabytes."""
    nodes = [helper.make_node("Concat", ["x"] * 2000, [f"z{i}"], axis=0) for i in range(6)]
    with pytest.raises(ModelError, match="numbers in all"):
        Networks([save(tmp_path / "m.onnx", [*nodes, helper.make_node("Relu", ["x"], ["y"])], {}, [1])])
    nodes = [helper.make_node("Resize", ["x", "", "", "c"], ["y"], mode="linear")]
    with pytest.raises(ModelError, match="larger than"):
        Networks([save(tmp_path / "m.onnx", nodes, {"c": np.array([1 << 20])}, [2])])


def test_uneven_parts(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    ]
    agrees(save(tmp_path / "m.onnx", nodes, {}, [1, 5], 18), np.random.default_rng(1))


@pytest.mark.parametrize("opset", [11, 13])
def test_logarithms_of_probabilities_inside_a_network(opset: int, tmp_path: Path) -> None:
    """As the end they are the probabilities themselves, in the middle of a network they are logarithms."""
    nodes = [
        helper.make_node("LogSoftmax", ["x"], ["p"], axis=1),
        helper.make_node("Mul", ["p", "c"], ["y"]),
    ]
    agrees(save(tmp_path / "m.onnx", nodes, {"c": np.array([1, -2, 3], F)}, [1, 3], opset), np.random.default_rng(1))


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


LIMITS = {"a": np.array(-0.5, F), "b": np.array(0.25, F), "c": np.array(0.125, F), "d": np.array(1e12, F)}
LIMITS |= {"least": np.array(np.finfo(F).min), "most": np.array(np.finfo(F).max), "none": np.array(-np.inf, F)}
CEIL: dict[str, Any] = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
SAME: dict[str, Any] = {"kernel_shape": [2], "strides": [2]}
SAME_SIDES = ("SAME_UPPER", "SAME_LOWER")
EQUATIONS = ("ab...,...->a...", "abc,c", "...c,c->...", "abc,d->ab")

# What every operator means in the operator sets in which it changed: (operator set, operator, operands, attributes,
# constants) on an input of shape [2, 1, 3]. The runtime is the judge.
VERSIONS: list[tuple[int, str, list[str], dict[str, Any], dict[str, np.ndarray]]] = [
    *((v, "Softmax", ["x"], {}, {}) for v in (7, 11, 12, 13, 20)),
    *((v, "Softmax", ["x"], {"axis": a}, {}) for v in (7, 12, 13) for a in (0, 1, 2)),
    *((v, "Softmax", ["x"], {"axis": a}, {}) for v in (11, 12, 13) for a in (-1, -2, -3)),
    *((v, "Squeeze", ["x"], {"axes": [1]}, {}) for v in (7, 11, 12)),
    *((v, "Squeeze", ["x", "c"], {}, {"c": np.array([-2])}) for v in (13, 21)),
    *((v, "Unsqueeze", ["x"], {"axes": [0, 2]}, {}) for v in (7, 11, 12)),
    (11, "Unsqueeze", ["x"], {"axes": [-1, 0]}, {}),
    *((v, "Unsqueeze", ["x", "c"], {}, {"c": np.array([0, -1])}) for v in (13, 21)),
    *((v, "Unsqueeze", ["x", "c"], {}, {"c": np.array(-1)}) for v in (13, 21)),
    *((v, "Flatten", ["x"], {"axis": a}, {}) for v in (9, 11, 21) for a in (0, 1, 2, 3)),
    *((v, "Flatten", ["x"], {"axis": a}, {}) for v in (11, 21) for a in (-1, -2, -3)),
    *((v, "Flatten", ["x"], {}, {}) for v in (7, 21)),
    *((v, "Reshape", ["x", "c"], {}, {"c": np.array([0, -1])}) for v in (7, 13, 14, 21)),
    (14, "Reshape", ["x", "c"], {"allowzero": 1}, {"c": np.array([3, -1])}),
    (14, "Reshape", ["x", "c"], {"allowzero": 0}, {"c": np.array([0, 3, -1])}),
    *((v, "Transpose", ["x"], {"perm": [2, 0, 1]}, {}) for v in (7, 13, 21)),
    *((v, "Transpose", ["x"], {}, {}) for v in (7, 21)),
    *((v, "Gather", ["x", "c"], {"axis": 2}, {"c": np.array([[2, 0], [0, 0]])}) for v in (7, 11, 13)),
    *((v, "Gather", ["x", "c"], {"axis": -1}, {"c": np.array(-1)}) for v in (11, 13)),
    (13, "Gather", ["x", "c"], {}, {"c": np.array([1, 1], np.int32)}),
    *((v, "LeakyRelu", ["x"], {}, {}) for v in (7, 16)),
    *((v, "Clip", ["x", "c"], {}, {"c": np.array(0, F)}) for v in (11, 12, 13)),
    (13, "Clip", ["x", "c", ""], {}, {"c": np.array(0, F)}),
    (13, "Clip", ["x", "c", "d"], {}, {"c": np.array(0, F), "d": np.array(np.finfo(F).max)}),
    (13, "Clip", ["x", "c", "d"], {}, {"c": np.array(0, F), "d": np.array(0.25, F)}),
    *((v, "Add", ["x", "c"], {}, {"c": np.arange(6, dtype=F).reshape(2, 3)}) for v in (7, 13, 14)),
    *((v, "Sub", ["c", "x"], {}, {"c": np.arange(2, dtype=F).reshape(2, 1, 1)}) for v in (7, 14)),
    *((v, "Mul", ["x", "x"], {}, {}) for v in (7, 14)),
    *((v, "Div", ["x", "c"], {}, {"c": np.array([3, 5, 7], F)}) for v in (7, 14)),
    *((v, "MatMul", ["x", "c"], {}, {"c": np.arange(12, dtype=F).reshape(2, 3, 2)}) for v in (7, 13)),
    *((v, "Einsum", ["x", "c"], {"equation": "abc, ca -> ba"}, {"c": np.ones((3, 2), F)}) for v in (12, 21)),
    *((v, "Identity", ["x"], {}, {}) for v in (7, 13, 16, 21)),
    *((v, "Relu", ["x"], {}, {}) for v in (7, 13, 14, 26)),
    *((v, "Squeeze", ["x"], {}, {}) for v in (7, 13, 21)),
    *((v, "Clip", ["x"], a, {}) for v in (6, 10) for a in ({}, {"min": 0.0}, {"min": -0.5, "max": 0.25})),
    *((13, "Clip", ["x", *limits], {}, LIMITS) for limits in ("", "c", "b", ["", "b"], "ab", "ac", "cd", ["least"])),
    (13, "Clip", ["x", "least", "most"], {}, LIMITS),
    (13, "Clip", ["x", "none", "b"], {}, LIMITS),
    *((v, "LeakyRelu", ["x"], {"alpha": a}, {}) for v in (7, 16) for a in (-0.5, 3.0)),
    *((v, "PRelu", ["x", "c"], {}, {"c": np.array(0.25, F)}) for v in (9, 16)),
    *((v, "LogSoftmax", ["x"], {"axis": a}, {}) for v in (7, 12, 13) for a in (0, 2)),
    *((9, "Slice", ["x"], {"starts": [s], "ends": [9], "axes": [2]}, {}) for s in (1, -2)),
    *((v, "Pad", ["x"], {"pads": [0, 1, 2, 0, 0, 1], "value": 0.5}, {}) for v in (7, 10)),
    (7, "Pad", ["x"], {"pads": [1, 0, 2, 0, 0, 1], "mode": "reflect"}, {}),
    *((v, "BatchNormalization", ["x", *"cccc"], {}, {"c": np.array([2.0], F)}) for v in (7, 9)),
    *((v, "MaxPool", ["x"], {"kernel_shape": [2]}, {}) for v in (7, 8, 22)),
    *((13, n, ["x"], CEIL, {}) for n in ("MaxPool", "AveragePool")),
    *((19, "AveragePool", ["x"], CEIL | {"count_include_pad": c, "pads": [1, 1]}, {}) for c in (0, 1)),
    *((13, n, ["x"], SAME | {"auto_pad": a}, {}) for n in ("MaxPool", "AveragePool") for a in SAME_SIDES),
    *((13, "Conv", ["x", "c"], {"auto_pad": a}, {"c": np.ones((2, 1, 2), F)}) for a in SAME_SIDES),
    *(
        (13, n, ["x", "c", "b"], {}, {"c": np.arange(4, dtype=F).reshape(1, 2, 2), "b": np.ones(2, F)})
        for n in ["ConvTranspose"]
    ),
    *((v, "Dropout", ["x"], {"ratio": 0.5}, {}) for v in (7, 10)),
    *((v, "Dropout", ["x", "c", "t"], {}, {"c": np.array(0.5, F), "t": np.array(False)}) for v in (12, 22)),
    *(
        (18, f"Reduce{n}", ["x"], {"noop_with_empty_axes": f}, {})
        for n in ("Sum", "Mean", "Max", "Min", "Prod")
        for f in (0, 1)
    ),
    *(
        (18, f"Reduce{n}", ["x", "c"], {"noop_with_empty_axes": 1}, {"c": np.array([2])})
        for n in ("Sum", "L1", "L2", "Max")
    ),
    *((13, "ReduceSum", ["x", "c"], {"noop_with_empty_axes": f}, {"c": np.array([], np.int64)}) for f in (0, 1)),
    (13, "MatMul", ["x", "c"], {}, {"c": np.arange(3, dtype=F)}),
    (13, "MatMul", ["c", "x"], {}, {"c": np.ones(1, F)}),
    *((13, "Pow", ["x", "c"], {}, {"c": np.full((2, 1), p, F)}) for p in (0, 1, 2, 4)),
    *((24, "Swish", ["x"], {"alpha": a}, {}) for a in (0.0, 0.5)),
    (13, "Sum", ["c", "d", "x"], {}, {"c": np.ones(3, F), "d": np.ones(1, F)}),
    *((13, "Einsum", ["x", "c"], {"equation": e}, {"c": np.arange(3, dtype=F)}) for e in EQUATIONS),
    *((13, "Einsum", ["x"], {"equation": e}, {}) for e in ("abc->cab", "a...->...", "cba", "abc->")),
]


@pytest.mark.parametrize("version", sorted({case[0] for case in VERSIONS}))
def test_versions(version: int, tmp_path: Path) -> None:
    for number, (v, name, inputs, attributes, constants) in enumerate(VERSIONS):
        if v == version:
            nodes = [
                helper.make_node(name, inputs, ["z"], **attributes),
                helper.make_node("Reshape", ["z", "flat"], ["y"]),
            ]
            path = save(tmp_path / "m.onnx", nodes, constants | {"flat": np.array([1, -1])}, [2, 1, 3], version)
            agrees(path, np.random.default_rng(number))


REFUSED: list[tuple[int, str, list[str], dict[str, Any], dict[str, np.ndarray]]] = [
    (6, "Add", ["x", "c"], {"broadcast": 1, "axis": 0}, {"c": np.ones(2, F)}),
    (6, "Add", ["x", "x"], {}, {}),
    (13, "Add", ["x", "x"], {"broadcast": 1}, {}),
    (13, "Add", ["x"], {}, {}),
    (13, "Add", ["x", "x", "x"], {}, {}),
    (13, "Add", ["x", ""], {}, {}),
    (6, "Gemm", ["q", "c", "b"], {"broadcast": 1}, {"c": np.ones((3, 2), F), "b": np.ones(2, F)}),
    (9, "Gemm", ["q", "c"], {}, {"c": np.ones((3, 2), F)}),
    (13, "Gemm", ["q", "c", "b"], {}, {"c": np.ones((3, 2), F), "b": np.ones((4, 2, 2), F)}),
    (13, "Gemm", ["q", "c", "b"], {"beta": 0.0}, {"c": np.ones((3, 2), F), "b": np.full(2, -np.inf, F)}),
    *((13, n, ["x"], CEIL | {"auto_pad": "VALID"}, {}) for n in ("MaxPool", "AveragePool")),
    (13, "Softmax", ["x"], {"axis": 3}, {}),
    (12, "Softmax", ["x"], {"axis": 3}, {}),
    (9, "Softmax", ["x"], {"axis": -1}, {}),
    (13, "Softmax", ["x"], {"axis": 1.0}, {}),
    (13, "Squeeze", ["x"], {"axes": [1]}, {}),
    (12, "Squeeze", ["x", "c"], {}, {"c": np.array([1])}),
    (13, "Squeeze", ["x", "c"], {}, {"c": np.array([], np.int64)}),
    (9, "Squeeze", ["x"], {"axes": [-2]}, {}),
    (13, "Unsqueeze", ["x", "c"], {}, {"c": np.array([1, 1])}),
    (13, "Reshape", ["x", "c"], {"allowzero": 1}, {"c": np.array([6])}),
    (13, "Reshape", ["x", "c"], {}, {"c": np.array([-2, 3])}),
    (13, "Reshape", ["x", "c"], {}, {"c": np.array([2, 3], np.int32)}),
    (14, "Reshape", ["x", "c"], {"allowzero": 1}, {"c": np.array([0, 2, 3])}),
    (4, "Reshape", ["x"], {"shape": [6]}, {}),
    (13, "Transpose", ["x"], {"perm": [0, -1, 1]}, {}),
    (13, "Transpose", ["x"], {"perm": [0, 1]}, {}),
    (9, "Flatten", ["x"], {"axis": -1}, {}),
    (13, "Flatten", ["x"], {"axis": 4}, {}),
    (9, "Gather", ["x", "c"], {"axis": 2}, {"c": np.array([-1])}),
    (13, "Gather", ["x", "c"], {"axis": 3}, {"c": np.array([0])}),
    (13, "Gather", ["x", "c"], {"axis": 2}, {"c": np.array([3])}),
    (13, "Gather", ["x", "c"], {"axis": 2}, {"c": np.array([], np.int64)}),
    (6, "Clip", ["x", "c"], {}, {"c": np.array(0, F)}),
    (13, "Clip", ["x"], {"min": 0.0}, {}),
    (13, "Clip", ["x", "c"], {}, {"c": np.zeros(3, F)}),
    (13, "Clip", ["x", "c", "d"], {}, {"c": np.array(1, F), "d": np.array(1, F)}),
    (13, "Clip", ["x", "c", "d"], {}, {"c": np.array(1, F), "d": np.array(-1, F)}),
    (13, "Clip", ["x", "c", "d"], {}, {"c": np.array(1, F), "d": np.array(-np.inf, F)}),
    (13, "Clip", ["x", "c", "x"], {}, {"c": np.array(1, F)}),
    (15, "Reshape", ["x", "s"], {}, {"s": np.array([6.0], F)}),
    (13, "Identity", ["x"], {"odd": 1}, {}),
    (27, "Relu", ["x"], {}, {}),
    (13, "LeakyRelu", ["x"], {"alpha": 1}, {}),
    (14, "Shape", ["x"], {"start": 1}, {}),
    (9, "Slice", ["x"], {"starts": [0], "ends": [1], "axes": [-1]}, {}),
    (9, "Slice", ["x"], {"starts": [0]}, {}),
    (10, "Slice", ["x"], {"starts": [0], "ends": [1]}, {}),
    (10, "Pad", ["x"], {"pads": [0, 0, 1]}, {}),
    (11, "Pad", ["x"], {"pads": [0, 0, 1, 0, 0, 1]}, {}),
    (8, "BatchNormalization", ["x", *"cccc"], {"spatial": 0}, {"c": np.ones(1, F)}),
    (9, "BatchNormalization", ["x", *"cccc"], {"spatial": 1}, {"c": np.ones(1, F)}),
    (9, "MaxPool", ["x"], {"kernel_shape": [2], "ceil_mode": 1}, {}),
    (13, "MaxPool", ["x"], {"kernel_shape": [2], "auto_pad": "SAME"}, {}),
    (13, "MaxPool", ["x"], {"kernel_shape": [2], "auto_pad": "SAME_UPPER", "strides": [3]}, {}),
    (13, "MaxPool", ["x"], {"kernel_shape": [2], "auto_pad": "SAME_UPPER", "dilations": [2]}, {}),
    (13, "MaxPool", ["x"], {"kernel_shape": [2], "auto_pad": "SAME_UPPER", "pads": [0, 1]}, {}),
    (13, "Dropout", ["x", "c", "t"], {}, {"c": np.array(0.5, F), "t": np.array(True)}),
    (13, "Dropout", ["x"], {"ratio": 0.5}, {}),
    (18, "ReduceSumSquare", ["x"], {"noop_with_empty_axes": 1}, {}),
    (18, "ReduceL1", ["x", "c"], {"noop_with_empty_axes": 1}, {"c": np.array([], np.int64)}),
    (13, "MatMul", ["x", "c"], {}, {"c": np.array(1, F)}),
    (13, "Pow", ["x", "c"], {}, {"c": np.array([1, 1, 2], F)}),
    (13, "Add", ["x", "c"], {}, {"c": np.ones(3)}),
    (13, "Add", ["x", "c"], {}, {"c": np.ones(3, np.float16)}),
    (13, "Mul", ["x", "c"], {}, {"c": np.ones(3, np.int64)}),
    (13, "Einsum", ["x", "c"], {"equation": "a...,...->a..."}, {"c": np.ones(3, F)}),
    (13, "Einsum", ["x", "c"], {"equation": "ab...,b->a"}, {"c": np.ones(1, F)}),
    (13, "Einsum", ["x", "c"], {"equation": "ab...,...->a"}, {"c": np.ones(3, F)}),
    (13, "Einsum", ["x", "c"], {"equation": "abc,c->a..."}, {"c": np.ones(3, F)}),
    (13, "Einsum", ["x", "c"], {"equation": "Abc,c"}, {"c": np.ones(3, F)}),
    (13, "Einsum", ["x", "c"], {"equation": "abc,d->abe"}, {"c": np.ones(3, F)}),
    (13, "Einsum", ["x"], {"equation": "abb->ab"}, {}),
    (13, "Einsum", ["x"], {"equation": "ab->ab"}, {}),
    (13, "Einsum", ["x"], {"equation": "a....->a..."}, {}),
    (13, "Einsum", ["x", "c", "c"], {"equation": "abc,c,c->ab"}, {"c": np.ones(3, F)}),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_all_else_is_refused(case: int, tmp_path: Path) -> None:
    version, name, inputs, attributes, constants = REFUSED[case]
    shape = [2, 3] if "q" in inputs else [2, 1, 3]
    nodes = [
        helper.make_node(name, ["x" if i == "q" else i for i in inputs], ["z"], **attributes),
        helper.make_node("Reshape", ["z", "flat"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, constants | {"flat": np.array([1, -1])}, shape, version)
    with pytest.raises(ModelError, match=rf"m\.onnx: (node|tensor) .*({name}|tensor|holds)"):
        Networks([path])


@pytest.mark.parametrize(
    ("threshold", "compared", "chosen", "curved"),
    [(0.5, "x", "x", "x"), (20.0, "n", "x", "x"), (20.0, "x", "n", "x"), (20.0, "x", "x", "n")],
)
def test_only_the_cases_of_a_softplus_may_be_told_apart(
    threshold: float, compared: str, chosen: str, curved: str, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Greater", [compared, "t"], ["above"]),
        helper.make_node("Softplus", [curved], ["s"]),
        helper.make_node("Where", ["above", chosen, "s"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"t": np.array(threshold, F)}, [1, 3], 16)
    with pytest.raises(ModelError, match=r"softplus"):
        Networks([path])


def _changed(change: Any, folder: Path) -> Path:
    nodes = [helper.make_node("Add", ["x", "c"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    path = save(folder / "m.onnx", nodes, {"c": np.ones((1, 3), F)}, [1, 3])
    model = onnx.load(str(path))
    change(model)
    onnx.save(model, str(path))
    return path


def _subgraph(model: Any) -> None:
    model.graph.node[1].attribute.append(helper.make_attribute("body", model.graph))


def _both_contents(model: Any) -> None:
    model.graph.initializer[0].float_data.extend([5.0, 5.0, 5.0])


def _import(*imports: tuple[str, int]) -> Any:
    def change(model: Any) -> None:
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid(*pair) for pair in imports)

    return change


CHANGES: dict[str, Any] = {
    "constant twice": lambda m: m.graph.initializer.append(m.graph.initializer[0]),
    "output like a constant": lambda m: setattr(m.graph.initializer.add(), "name", "s"),
    "output like the input": lambda m: m.graph.node[0].output.__setitem__(0, "x"),
    "output twice": lambda m: m.graph.node[0].output.__setitem__(0, "y"),
    "second output": lambda m: m.graph.node[0].output.append("t"),
    "no output": lambda m: m.graph.node[0].output.pop(),
    "unnamed output": lambda m: m.graph.node[0].output.__setitem__(0, ""),
    "later tensor": lambda m: m.graph.node[0].input.__setitem__(0, "y"),
    "input of whole numbers": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 7),
    "input of halves": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 10),
    "input of doubles": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 11),
    "input without shape": lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"),
    "empty dimension": lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 0),
    "subgraph": _subgraph,
    "contents twice": _both_contents,
    "strings": lambda m: m.graph.initializer.append(helper.make_tensor("t", 8, [1], [b"x"])),
    "sparse tensors": lambda m: m.graph.sparse_initializer.add(),
    "functions": lambda m: m.functions.add(),
    "attribute twice": lambda m: m.graph.node[0].attribute.extend([helper.make_attribute("a", 1)] * 2),
    "no import": _import(("ai.onnx.ml", 2)),
    "two imports": _import(("", 13), ("", 9)),
    "two equal imports": _import(("", 13), ("", 13)),
    "both spellings": _import(("", 13), ("ai.onnx", 12)),
    "another domain twice": _import(("", 13), ("ai.onnx.ml", 2), ("ai.onnx.ml", 3)),
    "the future": _import(("", 99)),
    "the past": _import(("", 1)),
    "no version": _import(("", 0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_that_can_be_read_in_two_ways(name: str, tmp_path: Path) -> None:
    path = _changed(CHANGES[name], tmp_path)
    with pytest.raises(ModelError, match=r"m\.onnx: "):
        Networks([path])


@pytest.mark.parametrize("imports", [[("ai.onnx", 13)], [("ai.onnx.ml", 2), ("", 13)]])
def test_one_import_in_either_spelling(imports: list[tuple[str, int]], tmp_path: Path) -> None:
    agrees(_changed(_import(*imports), tmp_path), np.random.default_rng(0))


def test_constants_may_be_listed_as_inputs(tmp_path: Path) -> None:
    listed = helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [1, 3])
    path = _changed(lambda model: model.graph.input.append(listed), tmp_path)
    assert Networks([path]).input_size == 3


def test_views_count_towards_the_size(tmp_path: Path) -> None:
    """Every Gather makes millions of entries out of few; memory is limited by their sum."""
    nodes = [helper.make_node("Gather", ["x", "i"], [f"g{k}"], axis=1) for k in range(20)]
    nodes.append(helper.make_node("Relu", ["x"], ["y"]))
    path = save(tmp_path / "m.onnx", nodes, {"i": np.zeros(1 << 20, np.int64)}, [1, 3])
    with pytest.raises(ModelError, match="numbers in all"):
        Networks([path])


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
