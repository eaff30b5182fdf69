"""Models of several inputs, or whose perturbed tensor lies inside: cut into an ONNX model with that one input.

What comes out is a model file of its own. Bounds, replay, run stores and certificates speak about it alone, and the
*front* computes what goes into it from what the original takes.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import InvalidInput, ModelError, quoted
from ..graph.builder import LARGEST_VALUE
from ..graph.operator import Shape
from .onnx_constants import FOLDED, ConstantFolder
from .onnx_rules import RULES
from .runtime import Session

MOST_CONSTANTS = 1 << 23  # entries that constants may have beyond the bytes of the file
EMBEDDINGS = "embeddings"  # a word for the tensor that a table of embeddings gives, whatever its name
_SHAPES = ("Shape", "Size")  # what they give does not depend on values
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)


@dataclass(frozen=True, eq=False)
class Front:
    """The part of a model before the tensor that is perturbed: from what the file takes to that tensor."""

    path: str
    input_name: str
    shape: Shape
    dtype: str
    model: bytes = field(repr=False)
    # What else the output depends on, such as a padding mask, and what it is for the inputs that the model is about.
    beside: tuple[tuple[str, np.ndarray], ...] = field(default=(), repr=False)

    @cached_property
    def _session(self) -> Session:
        return Session(self.model)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_session"}

    def compute(self, x: np.ndarray) -> np.ndarray:
        """The tensor in float64 for inputs ``[B, *shape]`` of the original; InvalidInput where it takes them not."""
        rows = np.asarray(x).reshape((-1, *self.shape))
        taken = rows.astype(self.dtype)
        if not (self.dtype.startswith("float") or np.array_equal(taken, rows)):
            raise InvalidInput(f"{self.path}: the input {self.input_name!r} takes whole numbers ({self.dtype})")
        try:
            found = [self._session.run_all(None, {self.input_name: row}) for row in taken]
        except Exception as problem:
            reason = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
            raise InvalidInput(f"{self.path}: onnxruntime cannot compute the perturbed tensor: {reason}") from None
        for place, (_, *values) in enumerate(found):
            for (name, wanted), value in zip(self.beside, values):
                if not np.array_equal(value, wanted, equal_nan=True):
                    raise InvalidInput(
                        f"{self.path}: {name!r} (a mask?) of input {place} is not that of the first one, or of the "
                        "example; it does not move: ask about inputs with the same one together, the others apart"
                    )
        return np.stack([tensor for tensor, *_ in found]).astype(np.float64)


def cut(
    model: Any,
    name: str,
    fixed: Mapping[str, Any],
    perturb: str | None,
    output: str | None = None,
    example: Any = None,
) -> Front | None:
    """Change a model (without external data) in place into one with a single input; its front where it has one.

    ``fixed``: inputs by name that become constants. ``perturb``: the tensor that becomes the input. ``output``: the
    only output that is kept. ``example``: an input of the original; what the output depends on beside the tensor is a
    constant, computed from it.
    """
    if output is not None:
        _keep(model, name, output)
    _fix(model, name, fixed)
    _fold(model)
    inputs = _inputs(model)
    if perturb is None:
        return None
    if len(inputs) != 1:
        return None  # which the translation refuses
    tensor = _find(model, name, perturb, inputs[0].name)
    if tensor == inputs[0].name:
        return None
    before, after = _ancestors(model, [tensor]), _ancestors(model, [o.name for o in model.graph.output], tensor)
    front = _front(model, name, inputs[0], [tensor], before)
    (value,) = front.run_once([tensor])
    if value.dtype not in (np.float32, np.float64):
        raise ModelError(f"{name}: the tensor {tensor!r} holds {value.dtype}; only real numbers can be perturbed")
    if tensor not in {argument for node in after for argument in node.input}:
        raise ModelError(f"{name}: the output does not depend on the tensor {tensor!r}")
    after = _without_shapes(model, name, inputs[0], tensor, after)
    after, beside = _without_rest(model, name, inputs[0], tensor, after, example)
    if beside:
        names = [tensor, *beside]
        front = _front(model, name, inputs[0], names, _ancestors(model, names))
        for key, found in beside.items():
            model.graph.initializer.append(numpy_helper.from_array(found, key))
    nodes, used = list(after), {argument for node in after for argument in node.input}
    kept = [constant for constant in model.graph.initializer if constant.name in used and constant.name != tensor]
    made = front.proto.SerializeToString(deterministic=True)
    entry = helper.make_tensor_value_info(tensor, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
    _replace(model.graph, nodes, kept, [entry])
    return Front(name, inputs[0].name, front.shape, front.dtype, made, tuple(beside.items()))


def with_constants(content: bytes) -> bytes:
    """A model file without external data in which what depends on no input is computed, as the runtime computes it."""
    model = onnx.ModelProto()
    model.ParseFromString(content)
    _fold(model)
    return bytes(model.SerializeToString(deterministic=True))


def _replace(graph: Any, nodes: Sequence[Any], constants: Sequence[Any], inputs: Sequence[Any]) -> None:
    copies = [[_copy(entry) for entry in part] for part in (nodes, constants, inputs)]
    for name, part in zip(("node", "initializer", "input", "value_info"), (*copies, [])):
        graph.ClearField(name)
        getattr(graph, name).extend(part)


def _copy(entry: Any) -> Any:
    made = type(entry)()
    made.CopyFrom(entry)
    return made


def _inputs(model: Any) -> list[Any]:
    """The inputs that are no constants."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [entry for entry in model.graph.input if entry.name not in constants]


def _keep(model: Any, name: str, output: str) -> None:
    """One of the outputs, and what computes it."""
    kept = [_copy(entry) for entry in model.graph.output if entry.name == output]
    if len(kept) != 1:
        names = ", ".join(quoted(entry.name) for entry in model.graph.output[:8])
        raise ModelError(f"{name}: there is no output {output!r}; outputs: {names}")
    model.graph.ClearField("output")
    model.graph.output.extend(kept)
    nodes = _ancestors(model, [output])
    used = {argument for node in nodes for argument in node.input} | {output}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in used]
    _replace(model.graph, nodes, constants, list(model.graph.input))


def _fix(model: Any, name: str, fixed: Mapping[str, Any]) -> None:
    """Inputs become constants of the type and the shape that the file declares; a batch that is open is one."""
    known = {entry.name: entry for entry in _inputs(model)}
    for key, given in fixed.items():
        if key not in known:
            names = ", ".join(quoted(entry) for entry in known) or "none"
            raise ModelError(f"{name}: there is no input {key!r} to fix; inputs: {names}")
        kind = known[key].type.tensor_type
        value, dtype = np.asarray(given), helper.tensor_dtype_to_np_dtype(kind.elem_type)
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        sizes = [1 if size is None and axis == 0 else size for axis, size in enumerate(sizes)]
        if value.ndim == len(sizes) - 1 and sizes[0] == 1:
            value = value[None]
        if value.ndim != len(sizes) or any(size not in (None, n) for size, n in zip(sizes, value.shape)):
            wanted = tuple("any" if size is None else size for size in sizes)
            raise ModelError(f"{name}: input {key!r} takes the shape {wanted}, not {value.shape}")
        if value.dtype.kind not in "fiub" or dtype.kind not in "fiub":
            raise ModelError(f"{name}: input {key!r} cannot be fixed to {value.dtype}; it takes {dtype}")
        made = value.astype(dtype)
        if dtype.kind != "f" and not np.array_equal(made, value):
            raise ModelError(f"{name}: input {key!r} takes {dtype}, which does not hold the numbers given")
        model.graph.initializer.append(numpy_helper.from_array(made, key))
    kept = [_copy(entry) for entry in model.graph.input if entry.name not in fixed]
    model.graph.ClearField("input")
    model.graph.input.extend(kept)


def _fold(model: Any) -> None:
    """What constants alone compute becomes constants, where they stay small; checkers have less to know then."""
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    folder = ConstantFolder(opset, MOST_CONSTANTS + model.ByteSize())
    known: dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer} | {"": None}
    kept, made = [], []
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or any(argument not in known for argument in node.input):
            kept.append(node)
            continue
        arguments = [value if value is None else numpy_helper.to_array(value) for value in map(known.get, node.input)]
        try:
            results = folder.fold(node, arguments)
        except Exception:  # whoever translates the node says what is wrong with it
            kept.append(node)
            continue
        for output, result in zip(node.output, results):
            if output:
                known[output] = numpy_helper.from_array(np.asarray(result), output)
                made.append(known[output])
    used = {argument for node in kept for argument in node.input} | {entry.name for entry in model.graph.output}
    constants = [tensor for tensor in (*model.graph.initializer, *made) if tensor.name in used]
    _replace(model.graph, kept, constants, list(model.graph.input))


def _find(model: Any, name: str, perturb: str, input_name: str) -> str:
    """The tensor of this name, or the one that a table of embeddings gives where that is asked for."""
    made = [output for node in model.graph.node for output in node.output if output]
    if perturb in made or perturb == input_name:
        return perturb
    if perturb != EMBEDDINGS:
        near = difflib.get_close_matches(perturb, made, 3) or made[:3]
        raise ModelError(f"{name}: there is no tensor {perturb!r}; near it: {', '.join(map(quoted, near))}")
    tables = {tensor.name for tensor in model.graph.initializer if tensor.data_type in _FLOATS}
    moving = {output for node in _descendants(model, input_name) for output in node.output}
    found = [
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[0] in tables and node.input[1] in moving | {input_name}
    ]
    if len(found) != 1:
        several = f"{len(found)} tables are ({', '.join(map(quoted, found[:8]))})" if found else "no table is"
        raise ModelError(
            f"{name}: embeddings: {several} looked up by the input {input_name!r}; name the tensor to perturb"
        )
    return found[0]


def _descendants(model: Any, tensor: str) -> list[Any]:
    """The nodes whose values depend on a tensor, in order."""
    reached, found = {tensor}, []
    for node in model.graph.node:
        if node.op_type not in _SHAPES and reached & set(node.input):
            reached |= set(node.output)
            found.append(node)
    return found


def _ancestors(model: Any, wanted: Iterable[str], stop: str | None = None) -> list[Any]:
    """The nodes that some tensors are computed by, in order, as far back as one where they end."""
    needed, found = set(wanted) - {stop}, []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            needed |= {argument for argument in node.input if argument and argument != stop}
            found.append(node)
    return found[::-1]


def _without_shapes(model: Any, name: str, entry: Any, tensor: str, nodes: list[Any]) -> list[Any]:
    """The nodes behind the cut, where shapes of what lies before it are constants."""
    behind = {tensor}  # what depends on the tensor
    for node in nodes:
        if behind & set(node.input):
            behind |= set(node.output)
    shapes = [node for node in nodes if node.op_type in _SHAPES and not behind & set(node.input)]
    if shapes:
        outputs = [node.output[0] for node in shapes]
        values = _front(model, name, entry, outputs, _ancestors(model, outputs)).run_once(outputs)
        for output, value in zip(outputs, values):
            model.graph.initializer.append(numpy_helper.from_array(value, output))
        constants = set(outputs)
        nodes = [node for node in nodes if node.output[0] not in constants]
    pruned = onnx.GraphProto(node=nodes)
    holder = onnx.ModelProto(graph=pruned)
    return _ancestors(holder, [output.name for output in model.graph.output], tensor)


def _without_rest(
    model: Any, name: str, entry: Any, tensor: str, nodes: list[Any], example: Any
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """The nodes that depend on the tensor, and what else they take, by name, computed from the example."""
    direct = next((node for node in nodes if entry.name in node.input), None)
    if direct is None:
        return nodes, {}
    if example is None:
        raise ModelError(
            f"{name}: the output depends on the input {entry.name!r} beside the tensor {tensor!r}, through node "
            f"{direct.name or direct.output[0]!r}; give an example, which says what that is, or perturb a later tensor"
        )
    behind, kept = {tensor}, []
    for node in nodes:
        if behind & set(node.input):
            behind |= set(node.output)
            kept.append(node)
    computed = {output for node in nodes for output in node.output} | {entry.name}
    taken = [argument for node in kept for argument in node.input if argument in computed - behind]
    wanted = list(dict.fromkeys(taken))
    return kept, dict(
        zip(wanted, _front(model, name, entry, wanted, _ancestors(model, wanted)).run_once(wanted, example))
    )


@dataclass(frozen=True)
class _Part:
    """A part of a model that ends in some tensors, and how its input is declared."""

    proto: Any
    input_name: str
    shape: Shape
    dtype: str
    name: str

    def run_once(self, outputs: Sequence[str], example: Any = None) -> list[np.ndarray]:
        """The values for an example, or for an input of zeros, on which shapes and types do not depend."""
        self._refuse_costly()
        given = np.zeros(self.shape, self.dtype) if example is None else np.asarray(example)
        if given.size != math.prod(self.shape):
            raise ModelError(f"{self.name}: the example has the shape {given.shape}, the input takes {self.shape}")
        try:
            session = Session(self.proto.SerializeToString())
            return session.run_all(outputs, {self.input_name: given.reshape(self.shape).astype(self.dtype)})
        except Exception as problem:
            reason = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
            raise ModelError(f"{self.name}: onnxruntime cannot compute it up to {outputs[0]!r}: {reason}") from None

    def _refuse_costly(self) -> None:
        """ModelError before anything is run that could loop, draw numbers, call something or fill the memory."""
        for node in self.proto.graph.node:
            if node.op_type not in FOLDED | RULES.keys() or node.domain not in ("", "ai.onnx"):
                label = node.name or (node.output[0] if node.output else "")
                raise ModelError(
                    f"{self.name}: node {label!r} ({quoted(node.op_type)[1:-1]}) before the perturbed tensor: "
                    "this operator is not supported; perturb an earlier tensor"
                )
        inferred = onnx.shape_inference.infer_shapes(self.proto, data_prop=True)
        for entry in inferred.graph.value_info:
            if math.prod(d.dim_value for d in entry.type.tensor_type.shape.dim) > LARGEST_VALUE:
                raise ModelError(f"{self.name}: the tensor {entry.name!r} before the perturbed one is too large")


def _front(model: Any, name: str, entry: Any, outputs: Sequence[str], nodes: Sequence[Any]) -> _Part:
    """The part of a model before a cut, which computes the perturbed tensors from one input."""
    kind = entry.type.tensor_type
    sizes = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim]
    if any(size < 1 for size in sizes[1:]):
        place = f"{name}: input {entry.name!r}"
        raise ModelError(f"{place}: a size besides the batch is symbolic; export the model with fixed sizes")
    shape, dtype = tuple(max(1, size) for size in sizes), helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype.kind not in "fiub" or math.prod(shape) > LARGEST_VALUE:
        raise ModelError(
            f"{name}: input {entry.name!r} of shape {shape} holds {dtype}; that is too large, or no number"
        )
    part = onnx.ModelProto()
    part.CopyFrom(model)
    known = {constant.name for constant in model.graph.initializer}  # shapes became some
    nodes = [node for node in nodes if not known & set(node.output)]
    used = {argument for node in nodes for argument in node.input} | set(outputs)
    kept = [constant for constant in model.graph.initializer if constant.name in used]
    declared = helper.make_tensor_value_info(entry.name, kind.elem_type, shape)
    _replace(part.graph, nodes, kept, [declared])
    part.graph.ClearField("output")
    part.graph.output.extend(onnx.ValueInfoProto(name=output) for output in outputs)
    return _Part(part, entry.name, shape, dtype.name, name)
