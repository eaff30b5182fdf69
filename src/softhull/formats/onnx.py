"""ONNX files: read without trust, translated node by node, compared with onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch

from ..errors import DomainError, ModelError, quoted
from ..graph.builder import LARGEST_VALUE, GraphBuilder
from ..graph.graph import Graph, Node
from ..graph.operator import Operator
from ..graph.ops.add import Subtract
from ..graph.ops.clip import Clip
from ..graph.ops.expand import Expand
from ..graph.ops.guard import Above, Guard, Undefined
from ..graph.ops.log_sum_exp import LogSumExp
from ..graph.ops.relu import Relu
from ..graph.ops.reshape import Reshape
from ..graph.ops.scale import Scale
from ..graph.ops.sigmoid import Sigmoid
from ..graph.ops.softmax import Softmax
from ..graph.simplify import simplify
from . import onnx_composed as onnx_composed  # registers its rules
from .agreement import disagreements, probes
from .cut import MOST_CONSTANTS, cut
from .external_data import embed_external_data, model_digest
from .network import LARGEST_INPUT, Network
from .onnx_constants import ConstantFolder
from .onnx_rules import CASES, RULES, Value

LARGEST_FILE = 2 << 30  # protobuf itself reads no more
MOST_NODES = 50_000

OLDEST_OPSET = 7  # before, broadcasting was an attribute; runtimes promise nothing about it
UNUSUAL = 2.0**100  # larger than any limit that is meant
ABSORBING = -(2.0**23)  # a logit added to this leaves no trace in single precision

_LISTED = "`softhull operators` lists those that are"
_JUMPS = "its values jump: leave it out behind the logits, or write it with relu, clip, max or min"
_ADVICE = {
    **{kind: f"write its steps out, with nn.{kind}Cell in a loop" for kind in ("GRU", "LSTM", "RNN")},
    **dict.fromkeys(("ArgMax", "ArgMin", "Ceil", "Floor", "NonZero", "OneHot", "Round", "Sign"), _JUMPS),
    **dict.fromkeys(("Equal", "GreaterOrEqual", "Less", "LessOrEqual"), CASES),
}


def load_onnx(
    path: str | Path,
    fixed: Mapping[str, Any] | None = None,
    perturb: str | None = None,
    output: str | None = None,
    example: Any = None,
) -> Network:
    """Read a network from an ONNX file; raises ModelError with one line when that is impossible.

    Args:
        path: The file; constants in files beside it are found.
        fixed (dict of arrays): Values for all inputs of the model but one, by name.
        perturb: The tensor to perturb instead of the input, by name, or ``"embeddings"`` for the output of an
            embedding table. Inputs are still given as the model takes them; onnxruntime computes the tensor from them.
        output: The output to bound, by name, where the model has several.
        example (array): An input as the model takes it, with ``perturb``: what the output depends on beside the tensor,
            such as a padding mask made from word ids, is what it is for the example; inputs of another are refused.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise ModelError(f"{path}: {size} bytes is more than the 2 GB an ONNX file can hold")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    return parse_onnx(content, str(path), path.parent, fixed, perturb, output, example)


def parse_onnx(
    content: bytes,
    name: str,
    folder: Path | None,
    fixed: Mapping[str, Any] | None = None,
    perturb: str | None = None,
    output: str | None = None,
    example: Any = None,
) -> Network:
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
    external = embed_external_data(model, name, folder)
    digest = model_digest(content, external)
    front, changed = None, bool(fixed) or perturb is not None or output is not None
    if changed:
        try:
            front = cut(model, name, fixed or {}, perturb, output, example)
        except ModelError:
            raise
        except Exception as error:  # whatever a file is made of
            raise ModelError(f"{name}: it cannot be cut: {_reason(error)}") from None
        content = model.SerializeToString(deterministic=True)
        digest = model_digest(content, [])
    graph, input_name, dtype = _translate(model, name)
    graph = _final_last(graph)
    network = Network(
        graph=graph,
        path=name,
        sha256=digest,
        input_name=input_name,
        final=_final(graph),
        model=model.SerializeToString() if external and not changed else content,
        input_dtype=dtype,
        runtime_dtype=_shortest(model, dtype),
        front=front,
        changed=changed,
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
    if isinstance(operator, Softmax) and operator.mask is not None:
        return graph
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
    if isinstance(last.operator, Softmax):
        # A softmax of one entry is 1 whatever its logit is: the sign of that logit is no class. A mask decides, too.
        classes = 1 < last.shape[last.operator.axis] == math.prod(last.shape)
        return "softmax" if classes and last.operator.mask is None else None
    return "log-softmax" if _is_log_softmax(graph, last) else None


def _is_log_softmax(graph: Graph, last: Node) -> bool:
    """``x - log sum exp(x)`` over all entries, and more than one of them."""
    if not isinstance(last.operator, Subtract) or math.prod(last.shape) < 2 or last.inputs[0] < 0:
        return False
    spread = graph.nodes[last.inputs[1]] if last.inputs[1] >= 0 else None
    total = graph.nodes[spread.inputs[0]] if spread is not None and isinstance(spread.operator, Expand) else spread
    if total is None or not isinstance(total.operator, LogSumExp) or total.inputs != last.inputs[:1]:
        return False
    return math.prod(total.shape) == 1


def _translate(model: Any, name: str) -> tuple[Graph, str, str]:
    """The graph of a model, with the names of its input and its output."""
    if len(model.functions) or len(model.graph.sparse_initializer):
        raise ModelError(f"{name}: local functions and sparse constants are not supported; export without them")
    opset = _opset(model, name)
    values: dict[str, Value] = {"": None}  # an input without a name is left out

    def define(key: str, value: Value) -> None:
        if key in values:
            raise ModelError(f"{name}: the name {key!r} is empty or defined twice")
        values[key] = value

    for tensor in model.graph.initializer:
        try:
            define(tensor.name, onnx.numpy_helper.to_array(tensor))
        except ModelError:
            raise
        except Exception:
            raise ModelError(f"{name}: the constant {tensor.name!r} is damaged") from None
    # A constant that is also listed among the inputs could be overridden by a caller; nobody here does.
    inputs = [entry for entry in model.graph.input if entry.name not in values]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        counted = f"{len(inputs)} inputs and {len(model.graph.output)} outputs"
        names = ", ".join(quoted(entry.name) for entry in inputs[:8])
        advice = f"; fix all inputs ({names}) but one, with fixed= or --fix NAME=FILE" if len(inputs) > 1 else ""
        if len(model.graph.output) > 1:
            names = ", ".join(quoted(entry.name) for entry in model.graph.output[:8])
            advice += f"; name one of the outputs ({names}), with output= or --output NAME"
        raise ModelError(f"{name}: {counted}; a network has one of each{advice}")
    shape, dtype = _declared(inputs[0], name)
    size = model.ByteSize()
    builder = GraphBuilder(shape, constants=MOST_CONSTANTS + size)
    constants = ConstantFolder(opset, MOST_CONSTANTS + size)
    dtypes = {inputs[0].type.tensor_type.elem_type}
    define(inputs[0].name, -1)
    for node in model.graph.node:
        label = node.name or (node.output[0] if node.output else "")
        place = f"{name}: node {label!r} ({quoted(node.op_type)[1:-1]})"
        missing = [argument for argument in node.input if argument not in values]
        if missing:
            raise ModelError(f"{place}: its input {missing[0]!r} is not computed before it")
        builder.label = label
        try:
            if node.domain not in ("", "ai.onnx"):
                raise ModelError(f"operators of the domain {node.domain!r} are not supported")
            arguments = [values[argument] for argument in node.input]
            if any(isinstance(argument, int) for argument in arguments):
                if node.op_type not in RULES:
                    raise ModelError(f"this operator is not supported; {_ADVICE.get(node.op_type, _LISTED)}")
                results = RULES[node.op_type].apply(node, arguments, builder, opset, dtypes)
            else:
                results = constants.fold(node, arguments)
        except Exception as error:
            raise ModelError(f"{place}: {_reason(error)}") from None
        for output, result in zip(node.output, results):
            if output:
                define(output, result)
    output = values.get(model.graph.output[0].name)
    if not isinstance(output, int) or output < 0:
        raise ModelError(f"{name}: the output does not depend on the input through any operator")
    try:
        graph = simplify(_without_unreachable_limits(builder.finish(output)))
    except ValueError as error:
        raise ModelError(f"{name}: {_reason(error)}") from None
    for left in graph.nodes:
        if isinstance(left.operator, Above):
            raise ModelError(f"{name}: node {left.label!r} (Greater): {CASES}")
        if isinstance(left.operator, Guard | Undefined):
            place = f"{name}: node {left.label!r} (IsNaN)"
            raise ModelError(f"{place}: supported only as where(isnan(p), 0, p) directly behind a softmax p")
    if not graph.nodes:
        raise ModelError(f"{name}: the output is the input")
    _refuse_empty_rows(graph, name)
    return graph, inputs[0].name, dtype


def _refuse_empty_rows(graph: Graph, name: str) -> None:
    """A row that sees nothing is not a number, or what rounding makes of it where the mask is a finite number.

    Exporters write boolean masks with the lowest number there is: rows that attended to nothing in torch attend to
    everything in the file.
    """
    for node in graph.nodes:
        if not isinstance(node.operator, Softmax):
            continue
        before = graph.nodes[node.inputs[0]].operator if node.inputs[0] >= 0 else None
        shift = before.shift.expand(node.shape) if isinstance(before, Scale) else torch.zeros(node.shape)
        if node.operator.mask is not None:
            shift = shift + node.operator.mask
        if bool((shift.amax(node.operator.axis) <= ABSORBING).any()):
            place = f"{name}: node {node.label!r} (Softmax)"
            raise ModelError(f"{place}: all logits of a row are masked; leave one of every row visible")


def _opset(model: Any, name: str) -> int:
    """The version of the operator set, which must be named once, and be one whose meaning is known."""
    domains = ["" if entry.domain == "ai.onnx" else entry.domain for entry in model.opset_import]
    if len(set(domains)) < len(domains):
        raise ModelError(f"{name}: an operator set is imported twice; runtimes disagree which version counts")
    if "" not in domains:
        raise ModelError(f"{name}: the operator set of the standard is not imported")
    version = int(model.opset_import[domains.index("")].version)
    latest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= version <= latest:
        raise ModelError(f"{name}: version {version} of the operator set; {OLDEST_OPSET} to {latest} are read")
    return version


def _reason(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _without_unreachable_limits(graph: Graph) -> Graph:
    """Exporters write "no limit" as the largest float: dropped where no input of ordinary size gets there.

    Interval arithmetic over all inputs of at most 2^60 proves it. Elsewhere the limit stays: values may pass it, in
    real numbers, in double precision, or as an infinity that the runtime brings back to it.
    """

    def unusual(limit: float) -> bool:
        return UNUSUAL <= abs(limit) < math.inf

    clips = [node.operator for node in graph.nodes if isinstance(node.operator, Clip)]
    if not any(unusual(limit) for clip in clips for limit in (clip.least, clip.most)):
        return graph
    ends = torch.full((1, *graph.input_shape), LARGEST_INPUT, dtype=torch.float64)
    intervals = {-1: (-ends, ends)}
    nodes: list[Node] = []
    for index, node in enumerate(graph.nodes):
        operator: Operator = node.operator
        if isinstance(operator, Clip):
            lower, upper = intervals[node.inputs[0]]
            least, most = operator.least, operator.most
            least = -math.inf if unusual(least) and bool((lower >= least).all()) else least
            most = math.inf if unusual(most) and bool((upper <= most).all()) else most
            if (least, most) == (-math.inf, math.inf):
                operator = Reshape(node.shape)  # which simplification takes out
            else:
                operator = Relu() if (least, most) == (0, math.inf) else Clip(least, most)
        nodes.append(replace(node, operator=operator))
        try:
            intervals[index] = operator.interval(*(intervals[i] for i in node.inputs))
        except DomainError:
            return Graph(graph.input_shape, (*nodes, *graph.nodes[len(nodes) :]))
    return Graph(graph.input_shape, tuple(nodes))


# What the runtime computes in single precision, or with constants of single precision, whatever it is given.
_IN_SINGLE = {"Attention", "Gelu", "GroupNormalization", "HardSwish", "InstanceNormalization", "LayerNormalization"}
_IN_SINGLE |= {"RMSNormalization", "Swish"}


def _shortest(model: Any, dtype: str) -> str:
    """A network of doubles may cast to single precision, and runtimes compute some operators in it."""
    names = [attribute for node in model.graph.node for attribute in node.attribute]
    single = any(attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT for attribute in names)
    single = single or any(node.op_type in _IN_SINGLE for node in model.graph.node)
    return "float32" if single else dtype


def _declared(entry: Any, name: str) -> tuple[tuple[int, ...], str]:
    """Shape and type of the input, a symbolic batch dimension bound to one."""
    kind = entry.type.tensor_type
    types = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.DOUBLE: "float64"}
    if kind.elem_type not in types:
        advice = "name the tensor to perturb (perturb= or --perturb, for example embeddings)"
        if kind.elem_type in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16):
            advice = "export the model in single precision, with module.float()"
        raise ModelError(f"{name}: input {entry.name!r} is not of type float or double; {advice}")
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


def _compare(network: Network) -> None:
    """Raise unless the graph and onnxruntime agree on inputs of many sizes, up to rounding."""
    try:
        apart, explained, overflow = disagreements(network, probes(network.input_shape))
    except ValueError as error:
        raise ModelError(f"{network.path}: {_reason(error)}") from None
    except Exception as error:
        double = network.runtime_dtype == "float64" or network.input_dtype == "float64"
        advice = "; export the model in single precision, with module.float()" if double else ""
        raise ModelError(f"{network.path}: onnxruntime refuses it: {_reason(error)}{advice}") from None
    if overflow.all():
        raise ModelError(f"{network.path}: the output is not finite on any random input")
    wrong = ~(overflow | (apart <= explained))
    if wrong.any():
        found = f"differ by {apart[wrong].max():.2g} on a random input, more than rounding explains"
        raise ModelError(f"{network.path}: the graph and onnxruntime {found}; please report this model")
