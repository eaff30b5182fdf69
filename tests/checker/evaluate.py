"""The networks of the checker evaluated in floating point, and models built from single operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from flint import arb
from onnx import TensorProto, helper, numpy_helper

from softhull.checker.curves import function_of
from softhull.checker.network import Curve, Input, Kink, Matrix, Networks, Product, Sum


def values(networks: Networks, x: np.ndarray) -> list[np.ndarray]:
    """The entries of every node for one input."""
    found: list[np.ndarray] = []
    for node in networks.nodes:

        def of(view: Any) -> np.ndarray:
            return view.index.of(found[view.node])

        if isinstance(node, Input):
            found.append(np.asarray(x, dtype=np.float64).ravel())
        elif isinstance(node, Sum):
            parts = (of(v) * s.astype(np.float64) for v, s in zip(node.views, node.scales))
            found.append(sum(parts, start=node.bias))
        elif isinstance(node, Matrix):
            found.append(node.weights @ of(node.x))
        elif isinstance(node, Kink):
            found.append(np.minimum(np.where(of(node.x) > 0, of(node.x), node.slope * of(node.x)), node.limit))
        elif isinstance(node, Product):
            total = np.zeros(node.size)
            np.add.at(total, node.out.at, node.left.of(of(node.x)) * node.right.of(of(node.y)))
            found.append(total)
        elif isinstance(node, Curve):
            function = function_of(node.kind).value
            found.append(np.array([float(function(arb(float(x)))) for x in of(node.x)]))
        else:
            logits = of(node.x).copy()
            if node.hidden is not None and node.behind is not None:
                logits[node.hidden.at] = of(node.behind)[node.hidden.at]
            rows = node.rows.of(logits)
            shares = np.exp(rows - rows.max(1, keepdims=True))
            result = np.zeros(node.size)
            result[node.outputs.at] = shares / shares.sum(1, keepdims=True)
            found.append(result)
    return found


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    shape: Sequence[int],
    opset: int = 13,
) -> Path:
    """A model from input ``x`` to output ``y``."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path))
    return path


def random_attention(
    path: Path, rng: np.random.Generator, tokens: int = 3, width: int = 4, scale: float = 0.7, layers: int = 1
) -> Path:
    """Blocks of attention over ``tokens`` rectified tokens, each with a residual connection, and three logits."""

    def weights(*shape: int) -> np.ndarray:
        return (scale * rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    constants = {
        "w0": weights(6, tokens * width),
        "b0": weights(tokens * width),
        "s0": np.array([1, tokens, width]),
        "s1": np.array([1, tokens * width]),
        "w1": weights(tokens * width, 3),
        "b1": weights(3),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Reshape", ["r", "s0"], ["t0"]),
    ]
    for i in range(layers):
        constants |= {f"wq{i}": 2 * weights(width, width), f"wk{i}": 2 * weights(width, width)}
        constants[f"wv{i}"] = weights(width, width)
        nodes += [
            *(helper.make_node("MatMul", [f"t{i}", f"w{part}{i}"], [f"{part}{i}"]) for part in "qkv"),
            helper.make_node("Transpose", [f"k{i}"], [f"kt{i}"], perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"q{i}", f"kt{i}"], [f"scores{i}"]),
            helper.make_node("Softmax", [f"scores{i}"], [f"p{i}"], axis=-1),
            helper.make_node("MatMul", [f"p{i}", f"v{i}"], [f"mixed{i}"]),
            helper.make_node("Add", [f"mixed{i}", f"t{i}"], [f"t{i + 1}"]),
        ]
    nodes += [
        helper.make_node("Reshape", [f"t{layers}", "s1"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w1", "b1"], ["y"]),
    ]
    return save(path, nodes, constants, [1, 6])
