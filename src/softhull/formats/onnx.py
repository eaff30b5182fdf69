"""ONNX files: read without trust, translated node by node, compared with onnxruntime."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import torch

from ..errors import ModelError
from ..graph.builder import LARGEST_VALUE, GraphBuilder
from ..graph.graph import Graph, Node
from ..graph.ops.maximum import Maximum
from ..graph.ops.reshape import Reshape
from ..graph.ops.sigmoid import Sigmoid
from ..graph.ops.softmax import Softmax
from ..graph.simplify import simplify
from .external_data import embed_external_data
from .network import Network
from .onnx_rules import RULES, Context, Value

LARGEST_FILE = 2 << 30  # protobuf itself reads no more
MOST_NODES = 50_000

# Evaluated once at import when all inputs are constant. The list is closed: what is not on it could loop, be random
# or call something.
_FOLDED = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Div", "Einsum"),
        *("Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "Gemm", "Greater", "GreaterOrEqual"),
        *("Identity", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or"),
        *("Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        *("Relu", "Reshape", "Shape", "Sigmoid", "Sign", "Size", "Slice", "Softmax", "Split", "Sqrt", "Squeeze"),
        *("Sub", "Sum", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
    )
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
    return parse_onnx(content, str(path), path.parent)


def parse_onnx(content: bytes, name: str, folder: Path | None) -> Network:
    """Read a network from the bytes of an ONNX file that lies, or does not lie, in a folder."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:
        raise ModelError(f"{name}: not an ONNX file, or damaged") from None
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"{name}: not an ONNX file, or a network without operators")
    if len(model.graph.node) > MOST_NODES:
        raise ModelError(f"{name}: {len(model.graph.node)} operators; at most {MOST_NODES} are read")
    digest = hashlib.sha256(content)
    external = embed_external_data(model, name, folder)
    for part in external:
        digest.update(part)
    graph, input_name, dtype = _translate(model, name)
    graph = _final_last(graph)
    network = Network(
        graph=graph,
        path=name,
        sha256=digest.hexdigest(),
        input_name=input_name,
        final=_final(graph),
        model=model.SerializeToString() if external else content,
        input_dtype=dtype,
    )
    _compare(network)
    return network


def _final_last(graph: Graph) -> Graph:
    """A reshape behind the final probabilities moves in front of them, where it does not hide them."""
    if len(graph.nodes) < 2:
        return graph
    before, last = graph.nodes[-2:]
    if not isinstance(last.operator, Reshape):
        return graph
    shape = last.shape
    operator = before.operator
    if isinstance(operator, Softmax) and max(shape, default=1) == math.prod(shape) == before.shape[operator.axis]:
        operator = Softmax(shape.index(max(shape)))
    elif not isinstance(operator, Sigmoid):
        return graph
    position = len(graph.nodes) - 2
    moved = (
        Node(last.operator, before.inputs, shape, last.label),
        Node(operator, (position,), shape, before.label),
    )
    return Graph(graph.input_shape, (*graph.nodes[:-2], *moved))


def _final(graph: Graph) -> str | None:
    last = graph.nodes[-1]
    if isinstance(last.operator, Sigmoid):
        return "sigmoid"
    classes = isinstance(last.operator, Softmax) and last.shape[last.operator.axis] == math.prod(last.shape)
    return "softmax" if classes else None


def _translate(model: Any, name: str) -> tuple[Graph, str, str]:
    if len(model.functions) or len(model.graph.sparse_initializer):
        raise ModelError(f"{name}: local functions and sparse constants are not supported; export without them")
    versions = {entry.domain: entry.version for entry in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 0))
    values: dict[str, Value] = {"": None}
    for tensor in model.graph.initializer:
        try:
            values[tensor.name] = onnx.numpy_helper.to_array(tensor)
        except Exception:
            raise ModelError(f"{name}: the constant {tensor.name!r} is damaged") from None
    inputs = [entry for entry in model.graph.input if entry.name not in values]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        counted = f"{len(inputs)} inputs and {len(model.graph.output)} outputs"
        raise ModelError(f"{name}: {counted}; a network has one of each")
    shape, dtype = _declared(inputs[0], name)
    builder = GraphBuilder(shape)
    values[inputs[0].name] = -1
    for node in model.graph.node:
        label = node.name or (node.output[0] if node.output else "")
        place = f"{name}: node {label!r} ({node.op_type})"
        missing = [argument for argument in node.input if argument not in values]
        if missing:
            raise ModelError(f"{place}: its input {missing[0]!r} is not computed before it")
        builder.label = label
        try:
            results = _apply(node, [values[argument] for argument in node.input], builder, version)
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            raise ModelError(f"{place}: {reason.splitlines()[0]}") from None
        values.update((output, result) for output, result in zip(node.output, results) if output)
    output = values.get(model.graph.output[0].name)
    if not isinstance(output, int) or output < 0:
        raise ModelError(f"{name}: the output does not depend on the input through any operator")
    graph = simplify(builder.finish(output))
    for left in graph.nodes:
        if isinstance(left.operator, Maximum):
            place = f"{name}: node {left.label!r} (ReduceMax)"
            raise ModelError(f"{place}: a maximum is supported only as the shift inside a softmax")
    if not graph.nodes:
        raise ModelError(f"{name}: the output is the input")
    return graph, inputs[0].name, dtype


def _declared(entry: Any, name: str) -> tuple[tuple[int, ...], str]:
    """Shape and type of the input, a symbolic batch dimension bound to one."""
    kind = entry.type.tensor_type
    types = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64"}
    if kind.elem_type not in types:
        raise ModelError(f"{name}: input {entry.name!r} is not of type float or double; convert the model")
    if not kind.HasField("shape"):
        raise ModelError(f"{name}: input {entry.name!r} declares no shape; export the model with one")
    sizes = [max(0, d.dim_value) if d.HasField("dim_value") else 0 for d in kind.shape.dim]
    if any(size == 0 for size in sizes[1:]):
        place = f"{name}: input {entry.name!r}"
        raise ModelError(f"{place}: a size besides the batch is symbolic; export the model with fixed sizes")
    shape = tuple(size or 1 for size in sizes)
    if math.prod(shape) > LARGEST_VALUE:
        raise ModelError(f"{name}: input {entry.name!r} of shape {shape} is too large")
    return shape, types[kind.elem_type]


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
    """The outputs of an operator on constants, refused beforehand where they would be huge."""
    if node.op_type not in _FOLDED:
        raise ModelError("this operator is not supported")
    feeds = {name: np.asarray(value) for name, value in zip(node.input, arguments) if name}
    if _entries(node, feeds, version) > LARGEST_VALUE:
        raise ModelError("a constant it computes is too large, or of unknown size")
    evaluator = onnx.reference.ReferenceEvaluator(_alone(node, feeds, version))
    return [np.asarray(result) for result in evaluator.run(None, feeds)]


def _alone(node: Any, feeds: dict[str, np.ndarray], version: int) -> Any:
    """A model of one operator; short arguments are known to it, because they may be shapes."""
    kinds = {key: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for key, value in feeds.items()}
    graph = onnx.helper.make_graph(
        [node],
        "constant",
        [onnx.helper.make_tensor_value_info(key, kinds[key], value.shape) for key, value in feeds.items()],
        [onnx.ValueInfoProto(name=key) for key in node.output if key],
        [onnx.numpy_helper.from_array(value, key) for key, value in feeds.items() if value.size <= 64],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])


def _entries(node: Any, feeds: dict[str, np.ndarray], version: int) -> float:
    """An upper estimate of the entries of the outputs, before they are computed."""
    if all(value.size <= 1024 for value in feeds.values()) and node.op_type not in _GROWING:
        return 0.0
    inferred = onnx.shape_inference.infer_shapes(_alone(node, feeds, version), data_prop=True)
    total = 0.0
    for entry in inferred.graph.output:
        kind = entry.type.tensor_type
        if not kind.HasField("shape") or not all(d.HasField("dim_value") for d in kind.shape.dim):
            return math.inf
        total += math.prod(float(d.dim_value) for d in kind.shape.dim)
    return total


_GROWING = frozenset(("ConstantOfShape", "Einsum", "Expand", "Range", "Tile"))


def _compare(network: Network) -> None:
    """Raise unless the graph and onnxruntime agree on a few random inputs."""
    rng = np.random.default_rng(0)
    shape = network.input_shape
    x = np.stack([rng.random(shape), rng.normal(size=shape), 0.1 * rng.normal(size=shape)])
    x = x.astype(network.input_dtype)
    try:
        theirs = network.replay(x)
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise ModelError(f"{network.path}: onnxruntime refuses it: {reason.splitlines()[0]}") from None
    ours = network.graph(torch.from_numpy(x).double()).numpy()
    if ours.shape != theirs.shape:
        found = f"{ours.shape[1:]} here, {theirs.shape[1:]} in onnxruntime"
        raise ModelError(f"{network.path}: the output has the shape {found}")
    usable = [i for i in range(len(x)) if np.isfinite(theirs[i]).all()]
    if not usable:
        raise ModelError(f"{network.path}: the output is not finite on any random input")
    for i in usable:
        worst = float(np.abs(ours[i] - theirs[i]).max())
        if not worst <= 1e-5 + 1e-4 * float(np.abs(theirs[i]).max()):
            found = f"differ by {worst:.2g} on a random input"
            raise ModelError(f"{network.path}: the graph and onnxruntime {found}; please report this model")
