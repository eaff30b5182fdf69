"""Operators on constants alone: computed once, at import, by the runtime itself and never without knowing the size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx

from ..errors import ModelError
from .onnx_rules import Value, schema_of

# The list is closed: what is not on it could loop, be random or call something.
FOLDED = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Cos", "CumSum"),
        *("DequantizeLinear", "Div", "Einsum", "GatherElements", "GatherND", "IsInf", "IsNaN", "Pad", "Round", "Sin"),
        *("Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "Gemm", "Greater", "GreaterOrEqual"),
        *("Identity", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or"),
        *("Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
        *("Relu", "Reshape", "Shape", "Sigmoid", "Sign", "Size", "Slice", "Softmax", "Split", "Sqrt", "Squeeze"),
        *("Sub", "Sum", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
        *("Gelu", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "LogSoftmax", "Mish", "ReduceL2"),
        *("RMSNormalization", "Softplus", "Swish"),
        *("ArgMax", "ArgMin", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "ScatterElements", "ScatterND", "Xor"),
    )
)
_GROWING = frozenset(("ConstantOfShape", "Expand", "Pad", "Range", "Tile"))
_SMALL = 1 << 16


class ConstantFolder:
    """Computes constants until they have too many entries together.

    The runtime evaluates them, so that every version of every operator means what it means there: a softmax over
    everything behind its axis, a whole number divided, a float rounded to half precision.
    """

    def __init__(self, opset: int, room: int) -> None:
        self.opset = opset
        self.room = room  # entries that are left

    def fold(self, node: Any, arguments: list[Value]) -> list[Value]:
        """The outputs of a node whose inputs are all constant, computed by onnxruntime."""
        if node.op_type not in FOLDED:
            raise ModelError("this operator is not supported")
        schema_of(node.op_type, self.opset)
        if node.op_type == "Constant":
            return [self._constant(node)]
        feeds = {name: np.asarray(value) for name, value in zip(node.input, arguments) if name}
        self._spend(self._entries(node, feeds))
        _refuse_overflow(node.op_type, list(feeds.values()))
        return [np.asarray(result) for result in self._run(_alone(node, feeds, self.opset), feeds)]

    def _spend(self, entries: float) -> None:
        if not entries <= self.room:
            raise ModelError("a constant it computes is too large, or of unknown size")
        self.room -= int(entries)

    def _constant(self, node: Any) -> np.ndarray:
        """The value of a ``Constant`` node, in whichever attribute it stands."""
        if len(node.attribute) != 1:
            raise ModelError("a constant has one value")
        (attribute,) = node.attribute
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name == "value":
            return onnx.numpy_helper.to_array(value)
        kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
        if attribute.name not in kinds:
            raise ModelError(f"a constant given by {attribute.name!r} is not supported")
        return np.array(value, dtype=kinds[attribute.name])

    def _run(self, model: Any, feeds: dict[str, np.ndarray]) -> list[Any]:
        """Runs one node in onnxruntime, unoptimised; a failure is a ModelError with its first line."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
            found: list[Any] = session.run(None, feeds)
        except Exception as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ModelError(f"onnxruntime cannot compute this constant: {reason}") from None
        return found

    def _entries(self, node: Any, feeds: dict[str, np.ndarray]) -> float:
        """An upper bound on the entries of the outputs, and of what is held to compute them, from shapes alone."""
        sizes = [max(1, feeds[name].size) for name in node.input if name]  # one constant may be given many times
        most = math.prod(sizes) + len(sizes)
        if node.op_type == "Einsum" and most > self.room:
            return math.inf  # whatever the order in which indices are joined
        if most <= _SMALL and node.op_type not in _GROWING:
            return most  # no other operator here makes more entries than all products of those it is given
        inferred = onnx.shape_inference.infer_shapes(_alone(node, feeds, self.opset))
        total = 0.0
        for entry in inferred.graph.output:
            kind = entry.type.tensor_type
            if not kind.HasField("shape") or not all(d.HasField("dim_value") for d in kind.shape.dim):
                return math.inf
            total += math.prod(float(d.dim_value) for d in kind.shape.dim)
        return total


def _refuse_overflow(kind: str, operands: list[np.ndarray]) -> None:
    """The least whole number over -1 has no value: the processor stops the runtime, and Python with it."""
    if kind not in ("Div", "Mod") or len(operands) != 2 or operands[1].dtype.kind != "i":
        return
    dividend, divisor = operands
    if (divisor == -1).any() and (dividend == np.iinfo(divisor.dtype).min).any():
        raise ModelError("a whole number that is divided beyond its range")


def _alone(node: Any, feeds: dict[str, np.ndarray], opset: int) -> Any:
    """A model of one operator; short arguments are known to it, because they may be shapes."""
    kinds = {key: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for key, value in feeds.items()}
    graph = onnx.helper.make_graph(
        [node],
        "constant",
        [onnx.helper.make_tensor_value_info(key, kinds[key], value.shape) for key, value in feeds.items()],
        [onnx.ValueInfoProto(name=key) for key in node.output if key],
        [onnx.numpy_helper.from_array(value, key) for key, value in feeds.items() if value.size <= 64],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
