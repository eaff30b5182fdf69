"""ONNX files: read without trust, translated node by node, compared with onnxruntime."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import torch

from ..errors import ModelError
from ..graph.builder import LARGEST_VALUE, GraphBuilder
from ..graph.ops.maximum import Maximum
from ..graph.ops.sigmoid import Sigmoid
from ..graph.ops.softmax import Softmax
from ..graph.simplify import simplify
from .network import Network
from .onnx_rules import RULES, Context, Value

LARGEST_FILE = 2 << 30  # protobuf itself reads no more

# Operators evaluated once at import when all their inputs are constant; the others are refused there.
_FOLDED = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Cast",
        "Ceil",
        "Clip",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Div",
        "Einsum",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Log",
        "MatMul",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Sigmoid",
        "Sign",
        "Size",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tanh",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
    ]
)


def load_onnx(path: str | Path) -> Network:
    """Read a network from an ONNX file; raises ModelError with one line when that is impossible."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise ModelError(f"{path}: {size} bytes is more than the 2 GB an ONNX file can hold")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    return parse_onnx(content, str(path))


def parse_onnx(content: bytes, path: str) -> Network:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:
        raise ModelError(f"{path}: not an ONNX file, or damaged") from None
    if not model.graph.node:
        raise ModelError(f"{path}: not an ONNX file, or a network without operators")
    digest = hashlib.sha256(content)
    graph, input_name = _translate(model, path)
    last = graph.nodes[-1] if graph.nodes else None
    final = None
    if last is not None and isinstance(last.operator, Sigmoid):
        final = "sigmoid"
    elif (
        last is not None and isinstance(last.operator, Softmax) and last.operator.axis == len(last.shape) - 1
    ):
        final = "softmax"
    network = Network(graph, path, digest.hexdigest(), input_name, final, content)
    _compare(network)
    return network


def _translate(model: Any, path: str) -> tuple[Any, str]:
    opset = {entry.domain: entry.version for entry in model.opset_import}
    version = opset.get("", opset.get("ai.onnx", 0))
    values: dict[str, Value] = {"": None}
    for tensor in model.graph.initializer:
        values[tensor.name] = onnx.numpy_helper.to_array(tensor)
    inputs = [entry for entry in model.graph.input if entry.name not in values]
    if len(inputs) != 1:
        raise ModelError(f"{path}: {len(inputs)} inputs; one is needed")
    if len(model.graph.output) != 1:
        raise ModelError(f"{path}: {len(model.graph.output)} outputs; one is needed")
    shape = _input_shape(inputs[0], path)
    builder = GraphBuilder(shape)
    values[inputs[0].name] = -1
    for node in model.graph.node:
        place = f"{path}: node {node.name or node.output[0]!r} ({node.op_type})"
        missing = [name for name in node.input if name not in values]
        if missing:
            raise ModelError(f"{place}: input {missing[0]!r} is defined nowhere before it")
        builder.label = node.name or node.output[0]
        arguments = [values[name] for name in node.input]
        try:
            results = _apply(node, arguments, builder, version)
        except ModelError as error:
            raise ModelError(f"{place}: {error}") from None
        except Exception as error:
            raise ModelError(f"{place}: {error}") from None
        values.update(zip(node.output, results))
    output = values.get(model.graph.output[0].name)
    if not isinstance(output, int):
        raise ModelError(f"{path}: the output does not depend on the input")
    graph = simplify(builder.finish(output))
    for left in graph.nodes:
        if isinstance(left.operator, Maximum):
            raise ModelError(
                f"{path}: node {left.label!r} (ReduceMax): supported only as the shift inside a softmax"
            )
    return graph, inputs[0].name


def _apply(node: Any, arguments: list[Value], builder: GraphBuilder, version: int) -> list[Value]:
    if node.domain not in ("", "ai.onnx"):
        raise ModelError(f"operators of the domain {node.domain!r} are not supported")
    if node.op_type in ("Shape", "Size") and isinstance(arguments[0], int):
        # Static although the value is not: only the shape counts.
        arguments = [np.broadcast_to(np.float32(0), builder.shape(arguments[0]))]
    if not any(isinstance(argument, int) for argument in arguments):
        return _fold(node, arguments, version)
    rule = RULES.get(node.op_type)
    if rule is None:
        raise ModelError("this operator is not supported")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    result = rule(Context(builder, attributes, version, len(node.output)), *arguments)
    return list(result) if isinstance(result, tuple) else [result]


def _fold(node: Any, arguments: list[Value], version: int) -> list[Value]:
    if node.op_type not in _FOLDED | {"Shape"}:
        raise ModelError("this operator is not supported on constants")
    if node.op_type in ("ConstantOfShape", "Expand", "Tile"):
        wanted = np.asarray(arguments[-1]).astype(float).prod()
        if wanted > LARGEST_VALUE:
            raise ModelError(f"a constant of {wanted:.0f} entries is too large")
    feeds = {name: value for name, value in zip(node.input, arguments) if name}
    alone = onnx.helper.make_graph(
        [node],
        "constant",
        [onnx.ValueInfoProto(name=name) for name in feeds],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    opset = [onnx.helper.make_opsetid("", version)]
    evaluator = onnx.reference.ReferenceEvaluator(onnx.helper.make_model(alone, opset_imports=opset))
    return [np.asarray(result) for result in evaluator.run(None, feeds)]


def _input_shape(entry: Any, path: str) -> tuple[int, ...]:
    """The declared shape with the symbolic batch dimension bound to one."""
    kind = entry.type.tensor_type
    if not kind.HasField("shape"):
        raise ModelError(f"{path}: input {entry.name!r} declares no shape; export the model with one")
    sizes = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else 0 for d in kind.shape.dim]
    if any(size == 0 for size in sizes[1:]):
        raise ModelError(
            f"{path}: input {entry.name!r} has a symbolic size besides the batch; export the model with fixed sizes"
        )
    return tuple(size or 1 for size in sizes)


def _compare(network: Network) -> None:
    """Raise unless the graph and onnxruntime agree on a few random inputs."""
    rng = np.random.default_rng(0)
    shape = network.input_shape
    x = np.stack([rng.random(shape), rng.normal(size=shape), 0.1 * rng.normal(size=shape)]).astype(np.float32)
    try:
        theirs = network.replay(x)
    except Exception as error:
        raise ModelError(
            f"{network.path}: onnxruntime refuses the model: {str(error).splitlines()[0]}"
        ) from None
    ours = network.graph(torch.from_numpy(x).double()).numpy()
    if ours.shape != theirs.shape:
        raise ModelError(
            f"{network.path}: output shape {ours.shape[1:]}, but {theirs.shape[1:]} in onnxruntime"
        )
    worst = np.abs(ours - theirs) - 1e-4 * np.abs(theirs)
    if not (worst <= 1e-5).all():
        raise ModelError(
            f"{network.path}: the graph and onnxruntime differ by {np.abs(ours - theirs).max():.2g} on a random input"
        )
