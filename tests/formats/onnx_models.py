"""Small ONNX models, one per operator and spelling, built node by node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Builder:
    """Collects nodes and constants; every method returns the name of a value."""

    opset: int = 17
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def const(self, value: Any, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def ints(self, *value: int) -> str:
        return self.const(list(value), np.int64)

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"n{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def model(self, output: str, shape: tuple[int | str, ...], dtype: int = TensorProto.FLOAT) -> Any:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", dtype, shape)],
            [helper.make_tensor_value_info(output, dtype, None)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def build(
    shape: tuple[int | str, ...], make: Callable[[Builder], str], opset: int = 17, dtype: int = TensorProto.FLOAT
) -> bytes:
    builder = Builder(opset)
    output = make(builder)
    model: onnx.ModelProto = builder.model(output, shape, dtype)
    return model.SerializeToString()


rng = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return rng.normal(size=shape)


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple[int | str, ...]
    make: Callable[[Builder], str]
    operators: str | None = None  # the graph expected, where simplification matters
    opset: int = 17


def _softmax_by_hand(b: Builder) -> str:
    shifted = b.op("Sub", "x", b.op("ReduceMax", "x", axes=[-1], keepdims=1))
    top = b.op("Exp", shifted)
    return b.op("Div", top, b.op("ReduceSum", top, b.ints(-1), keepdims=1))


def _gelu_by_hand(b: Builder) -> str:
    gate = b.op("Add", b.op("Erf", b.op("Div", "x", b.const(np.sqrt(2)))), b.const(1.0))
    return b.op("Mul", b.op("Mul", "x", gate), b.const(0.5))


def _gelu_scaled_first(b: Builder) -> str:
    gate = b.op("Add", b.const(1.0), b.op("Erf", b.op("Mul", "x", b.const(np.sqrt(0.5)))))
    return b.op("Mul", gate, b.op("Mul", b.const(0.5), "x"))


def _layer_norm_by_hand(b: Builder) -> str:
    centred = b.op("Sub", "x", b.op("ReduceMean", "x", axes=[-1]))
    variance = b.op("ReduceMean", b.op("Pow", centred, b.const(2.0)), axes=[-1])
    normal = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, b.const(1e-5))))
    return b.op("Add", b.op("Mul", normal, b.const(weights(4))), b.const(weights(4)))


def _attention(b: Builder) -> str:
    q = b.op("MatMul", "x", b.const(weights(4, 4)))
    k = b.op("Transpose", b.op("MatMul", "x", b.const(weights(4, 4))), perm=[0, 2, 1])
    scores = b.op("Mul", b.op("MatMul", q, k), b.const(0.5))
    return b.op("MatMul", b.op("Softmax", scores, axis=-1), "x")


def _masked_softmax(b: Builder) -> str:
    mask = np.triu(np.ones((3, 3), dtype=bool), 1)
    return b.op("Softmax", b.op("Where", b.const(mask, np.bool_), b.const(-np.inf), "x"), axis=-1)


def _guarded_softmax(b: Builder) -> str:
    p = _masked_softmax(b)
    return b.op("Where", b.op("IsNaN", p), b.const(0.0), p)


def _tanh_gelu_by_hand(b: Builder) -> str:
    cubed = b.op("Mul", b.op("Pow", "x", b.const(3.0)), b.const(0.044715))
    gate = b.op("Tanh", b.op("Mul", b.op("Add", "x", cubed), b.const(0.7978846)))
    return b.op("Mul", b.op("Mul", "x", b.const(0.5)), b.op("Add", gate, b.const(1.0)))


def _added_mask(b: Builder, number: float = -np.inf) -> str:
    mask = np.where(np.triu(np.ones((3, 3)), 1) > 0, number, 0.0)
    return b.op("Softmax", b.op("Add", "x", b.const(mask)), axis=-1)


def _dynamic_shape(b: Builder) -> str:
    size = b.op("Gather", b.op("Shape", "x"), b.ints(0))
    target = b.op("Concat", size, b.ints(-1), axis=0)
    zeros = b.op("ConstantOfShape", target_of(b, size))
    return b.op("Concat", b.op("Reshape", "x", target), zeros, axis=1)


def target_of(b: Builder, size: str) -> str:
    return b.op("Concat", size, b.ints(2), axis=0)


def _split(b: Builder) -> str:
    first, second = b.op("Split", "x", b.ints(1, 2), outputs=2, axis=1)
    return b.op("Concat", second, b.const(weights(1, 1, 4)), first, axis=1)


def _einsum(equation: str, *shape: int) -> Callable[[Builder], str]:
    return lambda b: b.op("Einsum", "x", b.const(weights(*shape)), equation=equation)


def _one(kind: str, **attributes: Any) -> Callable[[Builder], str]:
    return lambda b: b.op(kind, "x", **attributes)


CASES = (
    Case("gemm", ("N", 4), lambda b: b.op("Gemm", "x", b.const(weights(3, 4)), b.const(weights(3)), transB=1), "Dense"),
    Case(
        "gemm alpha beta",
        (2, 4),
        lambda b: b.op("Gemm", "x", b.const(weights(4, 3)), b.const(weights(2, 3)), alpha=0.5, beta=2.0),
        "Dense",
    ),
    Case("gemm constant first", (2, 4), lambda b: b.op("Gemm", b.const(weights(3, 2)), "x"), "Dense"),
    Case("gemm of two variables", (3, 3), lambda b: b.op("Gemm", "x", "x", "x", transA=1, alpha=0.5)),
    Case(
        "matmul then add",
        (1, 4),
        lambda b: b.op("Add", b.const(weights(3)), b.op("MatMul", "x", b.const(weights(4, 3)))),
        "Dense",
    ),
    Case("matmul with a stack", (3, 4), lambda b: b.op("MatMul", "x", b.const(weights(2, 4, 5)))),
    Case("stack times matrix", (4, 3), lambda b: b.op("MatMul", b.const(weights(2, 5, 4)), "x")),
    Case("matmul with a vector", (2, 4), lambda b: b.op("MatMul", "x", b.const(weights(4)))),
    Case("vector times matrix", (4, 2), lambda b: b.op("MatMul", b.const(weights(4)), "x")),
    Case("matmul of two variables", (2, 3, 4), lambda b: b.op("MatMul", "x", b.op("Transpose", "x", perm=[0, 2, 1]))),
    Case(
        "matmul that broadcasts",
        (3, 4),
        lambda b: b.op("MatMul", b.op("Reshape", "x", b.ints(3, 1, 4)), b.op("Transpose", "x", perm=[1, 0])),
    ),
    Case("sum and difference", (2, 3), lambda b: b.op("Sub", b.op("Add", "x", b.op("Relu", "x")), b.op("Tanh", "x"))),
    Case(
        "difference with a constant", (2, 3), lambda b: b.op("Sub", b.const(weights(3)), b.op("Sub", "x", b.const(1.5)))
    ),
    Case("sum that broadcasts", (2, 3), lambda b: b.op("Add", "x", b.op("ReduceMean", "x", axes=[0]))),
    Case("three summands", (2, 3), lambda b: b.op("Sum", "x", b.const(weights(3)), b.op("Relu", "x"))),
    Case("constant factor", (2, 3), lambda b: b.op("Mul", b.const(weights(2, 1, 3)), "x")),
    Case("product of two variables", (2, 3), lambda b: b.op("Mul", "x", b.op("Sigmoid", "x"))),
    Case("product that broadcasts", (2, 3), lambda b: b.op("Mul", "x", b.op("ReduceSum", "x", b.ints(1), keepdims=1))),
    Case(
        "product with an expanded factor",
        (2, 3),
        lambda b: b.op("Mul", "x", b.op("Expand", b.op("ReduceSum", "x", b.ints(1), keepdims=1), b.ints(2, 3))),
        "Sum Product",
    ),
    Case("square as product", (2, 3), lambda b: b.op("Mul", "x", "x"), "Square"),
    Case("division by a constant", (2, 3), lambda b: b.op("Div", "x", b.const([2.0, -4.0, 0.5]))),
    Case("division by a variable", (2, 3), lambda b: b.op("Div", "x", b.op("Exp", "x"))),
    Case("constant over variable", (2, 3), lambda b: b.op("Div", b.const(3.0), b.op("Exp", "x"))),
    Case("negative denominator", (2, 3), lambda b: b.op("Reciprocal", b.op("Neg", b.op("Exp", "x")))),
    Case("neg", (2, 3), _one("Neg")),
    Case("power 2", (2, 3), lambda b: b.op("Pow", "x", b.const(2.0)), "Square"),
    Case("power 1", (2, 3), lambda b: b.op("Neg", b.op("Pow", "x", b.const(1.0))), "Scale"),
    Case("power 0.5", (2, 3), lambda b: b.op("Pow", b.op("Exp", "x"), b.const(0.5)), "Exp Sqrt"),
    Case("power -0.5", (2, 3), lambda b: b.op("Pow", b.op("Exp", "x"), b.const(-0.5)), "Exp Rsqrt"),
    Case("reciprocal root", (2, 3), lambda b: b.op("Reciprocal", b.op("Sqrt", b.op("Exp", "x"))), "Exp Rsqrt"),
    Case("root of the reciprocal", (2, 3), lambda b: b.op("Sqrt", b.op("Reciprocal", b.op("Exp", "x"))), "Exp Rsqrt"),
    Case("exp", (2, 3), _one("Exp")),
    Case("log", (2, 3), lambda b: b.op("Log", b.op("Exp", "x"))),
    Case("relu", (2, 3), _one("Relu")),
    Case("leaky relu", (2, 3), _one("LeakyRelu", alpha=0.1)),
    Case("clip", (2, 3), lambda b: b.op("Clip", "x", b.const(0.2), b.const(0.7)), "Clip"),
    Case("clip below", (2, 3), lambda b: b.op("Clip", "x", b.const(0.0)), "Relu"),
    Case("clip above", (2, 3), lambda b: b.op("Clip", "x", "", b.const(0.5)), "Clip"),
    Case("clip by attributes", (2, 3), _one("Clip", min=0.25, max=0.5), "Clip", opset=7),
    Case("max with a constant", (2, 3), lambda b: b.op("Max", "x", b.const(0.4)), "Clip"),
    Case("min with a constant", (2, 3), lambda b: b.op("Min", b.const(0.4), "x"), "Clip"),
    Case("sigmoid", (2, 3), _one("Sigmoid")),
    Case("tanh", (2, 3), _one("Tanh")),
    Case("erf", (2, 3), _one("Erf")),
    Case("gelu", (2, 3), _one("Gelu"), "Gelu", opset=20),
    Case("gelu approximated by tanh", (2, 3), _one("Gelu", approximate="tanh"), "TanhGelu", opset=20),
    Case("gelu by hand", (2, 3), _gelu_by_hand, "Gelu"),
    Case("gelu scaled first", (2, 3), _gelu_scaled_first, "Gelu"),
    Case("softmax", (2, 3), _one("Softmax", axis=-1), "Softmax"),
    Case("softmax along the first axis", (3, 2), _one("Softmax", axis=0), "Softmax"),
    Case("softmax of everything behind", (2, 3, 2), _one("Softmax", axis=1), "Reshape Softmax Reshape", opset=11),
    Case("softmax by hand", (2, 3), _softmax_by_hand, "Softmax"),
    Case("softmax masked by a large number", (3, 3), lambda b: _added_mask(b, -1e9), "Softmax"),
    Case("softmax with a guard", (3, 3), _guarded_softmax, "Softmax"),
    Case("log softmax", (2, 3), _one("LogSoftmax", axis=-1), "LogSumExp Expand Subtract"),
    Case("max pool", (1, 1, 4, 4), _one("MaxPool", kernel_shape=[2, 2], strides=[2, 2])),
    Case("largest entry", (2, 5), _one("ReduceMax")),
    Case("transposed convolution", (1, 2, 3, 3), lambda b: b.op("ConvTranspose", "x", b.const(weights(2, 3, 2, 2)))),
    Case("silu written out", (2, 3), lambda b: b.op("Mul", "x", b.op("Sigmoid", "x")), "Silu"),
    Case("mish written out", (2, 3), lambda b: b.op("Mul", "x", b.op("Tanh", b.op("Softplus", "x"))), "Mish"),
    Case("gelu by tanh written out", (2, 3), _tanh_gelu_by_hand, "TanhGelu"),
    Case("hard swish", (2, 3), _one("HardSwish")),
    Case("selu", (2, 3), lambda b: b.op("Selu", b.op("Neg", "x"))),
    Case("absolute value", (2, 3), lambda b: b.op("Abs", b.op("Neg", "x"))),
    Case("softmax masked by where", (3, 3), _masked_softmax, "Softmax"),
    Case("softmax masked by a sum", (3, 3), _added_mask, "Softmax"),
    Case(
        "where between variables",
        (2, 2),
        lambda b: b.op("Where", b.const([[True, False], [False, True]], np.bool_), "x", b.op("Neg", "x")),
    ),
    Case("attention", (1, 3, 4), _attention, "Dense Transpose Dense MatMul Softmax MatMul"),
    Case(
        "layer normalisation",
        (2, 4),
        lambda b: b.op("LayerNormalization", "x", b.const(weights(4)), b.const(weights(4))),
        "Centre InverseDeviation Normalized Scale",
    ),
    Case(
        "layer normalisation over two axes",
        (2, 3, 4),
        lambda b: b.op("LayerNormalization", "x", b.const(weights(3, 4)), axis=1),
    ),
    Case("layer normalisation by hand", (2, 4), _layer_norm_by_hand, "Centre InverseDeviation Normalized Scale"),
    Case(
        "batch normalisation",
        (1, 3, 2),
        lambda b: b.op(
            "BatchNormalization", "x", *(b.const(w) for w in (weights(3), weights(3), weights(3), np.ones(3) * 0.7))
        ),
        "Scale Scale",
    ),
    Case(
        "convolution with batch normalisation",
        (1, 2, 5, 5),
        lambda b: b.op(
            "BatchNormalization",
            b.op("Conv", "x", b.const(weights(3, 2, 3, 3))),
            *(b.const(w) for w in (weights(3), weights(3), weights(3), np.ones(3) * 0.7)),
        ),
        "Conv Scale",
    ),
    Case(
        "convolution",
        (1, 2, 6, 5),
        lambda b: b.op(
            "Conv", "x", b.const(weights(4, 2, 3, 2)), b.const(weights(4)), strides=[2, 1], pads=[1, 0, 2, 1]
        ),
        "Conv",
    ),
    Case(
        "grouped dilated convolution",
        (2, 4, 7, 8),
        lambda b: b.op("Conv", "x", b.const(weights(6, 2, 2, 2)), group=2, dilations=[2, 3], strides=[1, 2]),
    ),
    Case(
        "convolution that pads itself",
        (1, 1, 5, 6),
        lambda b: b.op("Conv", "x", b.const(weights(1, 1, 2, 3)), auto_pad="SAME_UPPER", strides=[2, 2]),
    ),
    Case(
        "convolution in one dimension", (1, 2, 7), lambda b: b.op("Conv", "x", b.const(weights(3, 2, 3)), pads=[1, 1])
    ),
    Case(
        "convolution in three dimensions", (1, 1, 3, 4, 3), lambda b: b.op("Conv", "x", b.const(weights(2, 1, 2, 2, 2)))
    ),
    Case("average pool", (1, 2, 6, 6), _one("AveragePool", kernel_shape=[2, 3], strides=[2, 2], pads=[1, 1, 0, 1])),
    Case(
        "average pool counting pads",
        (1, 2, 5, 5),
        _one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    ),
    Case(
        "average pool rounding up", (1, 1, 6, 7), _one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    ),
    Case("global average pool", (1, 2, 3, 4), _one("GlobalAveragePool")),
    Case("sine", (2, 3), _one("Sin"), "Sine"),
    Case("cosine", (2, 3), _one("Cos"), "Cosine"),
    Case("fourth power", (2, 3), lambda b: b.op("Pow", "x", b.const(4.0)), "Power"),
    Case("power of a positive number", (2, 3), lambda b: b.op("Pow", b.op("Exp", "x"), b.const(1.7)), "Exp Power"),
    Case("product of entries", (2, 5), _one("ReduceProd", axes=[1])),
    Case(
        "attention with shared keys",
        (1, 2, 3, 4),
        lambda b: b.op("Attention", "x", *[b.op("Slice", "x", b.ints(1), b.ints(2), b.ints(1))] * 2),
        opset=25,
    ),
    Case(
        "rotation of some entries",
        (1, 2, 3, 4),
        lambda b: b.op(
            "RotaryEmbedding",
            "x",
            b.const(weights(9, 1)),
            b.const(weights(9, 1)),
            b.const([[3, 0, 8]], np.int64),
            rotary_embedding_dim=2,
            num_heads=2,
        ),
        opset=23,
    ),
    Case(
        "weights of eight bits",
        (2, 3),
        lambda b: b.op(
            "MatMul", "x", b.op("DequantizeLinear", b.const([[1, -3], [7, 100], [0, 5]], np.int8), b.const(0.1))
        ),
        "Dense",
    ),
    Case("mean", (2, 3, 4), _one("ReduceMean", axes=[0, -1], keepdims=0)),
    Case("mean of all", (2, 3), _one("ReduceMean")),
    Case("mean with axes as input", (2, 3), lambda b: b.op("ReduceMean", "x", b.ints(1)), opset=18),
    Case("sum of all", (2, 3), _one("ReduceSum", keepdims=0)),
    Case("sum with axes as attribute", (2, 3), _one("ReduceSum", axes=[1]), opset=11),
    Case("einsum matmul", (2, 3, 4), _einsum("abc,cd->abd", 4, 5)),
    Case("einsum with heads", (1, 3, 4), _einsum("abc,cde->abde", 4, 2, 5)),
    Case("einsum attention output", (1, 3, 2, 4), _einsum("abcd,cde->abe", 2, 4, 5)),
    Case("einsum with a lone index", (2, 3), _einsum("ab,cb->ac", 4, 3)),
    Case("einsum with an ellipsis", (2, 3, 4), _einsum("...a,ab->...b", 4, 5)),
    Case("einsum summing an index away", (2, 3), _einsum("ab,cd->a", 4, 2)),
    Case(
        "einsum of two variables",
        (1, 3, 2, 4),
        lambda b: b.op("Einsum", "x", b.op("Relu", "x"), equation="aecd,abcd->acbe"),
    ),
    Case("einsum of one operand", (2, 3, 4), _one("Einsum", equation="abc->ca")),
    Case("einsum with an implied result", (2, 3), _einsum("ab,bc", 3, 4)),
    Case("reshape", (2, 6), lambda b: b.op("Reshape", "x", b.ints(0, 3, -1)), "Reshape"),
    Case("flatten", (2, 3, 4), _one("Flatten", axis=2), "Reshape"),
    Case("transpose", (2, 3, 4), _one("Transpose", perm=[2, 0, 1]), "Transpose"),
    Case(
        "transposes in a row",
        (2, 3, 4),
        lambda b: b.op("Transpose", b.op("Transpose", "x"), perm=[1, 2, 0]),
        "Transpose",
    ),
    Case(
        "transpose of axes of size one",
        (1, 3, 1),
        lambda b: b.op("Relu", b.op("Transpose", "x", perm=[1, 0, 2])),
        "Reshape Relu",
    ),
    Case(
        "squeeze and unsqueeze",
        (2, 1, 3),
        lambda b: b.op("Neg", b.op("Unsqueeze", b.op("Squeeze", "x", b.ints(1)), b.ints(0, -1))),
    ),
    Case(
        "unsqueeze by attribute",
        (2, 3),
        lambda b: b.op("Squeeze", b.op("Neg", b.op("Unsqueeze", "x", axes=[0]))),
        "Scale",
        opset=11,
    ),
    Case(
        "concat with a constant",
        (1, 3, 4),
        lambda b: b.op("Concat", b.const(weights(1, 2, 4)), "x", b.op("Relu", "x"), axis=1),
    ),
    Case("slice", (4, 6), lambda b: b.op("Slice", "x", b.ints(1, -5), b.ints(9, -1), b.ints(0, 1), b.ints(2, 3))),
    Case(
        "slice backward",
        (4, 6),
        lambda b: b.op("Slice", "x", b.ints(-1, 1), b.ints(-99, 4), b.ints(0, 1), b.ints(-2, 1)),
    ),
    Case("slice by attributes", (4, 6), _one("Slice", starts=[1], ends=[3], axes=[1]), opset=9),
    Case("split", (1, 3, 4), _split),
    Case("split evenly", (4, 3), lambda b: b.op("Mul", *b.op("Split", "x", outputs=2, axis=0))),
    Case(
        "split by attribute",
        (4, 3),
        lambda b: b.op("Sub", *b.op("Split", "x", outputs=2, axis=0, split=[2, 2])),
        opset=11,
    ),
    Case("gather", (4, 3), lambda b: b.op("Gather", "x", b.const([[0, -1], [2, 2]], np.int64), axis=0)),
    Case("gather one", (4, 3), lambda b: b.op("Gather", "x", b.const(1, np.int64), axis=1)),
    Case("expand", (1, 3), lambda b: b.op("Expand", "x", b.ints(2, 4, 1)), "Expand"),
    Case("shapes computed from the input", ("N", 2, 3), _dynamic_shape),
    Case(
        "identity, cast and dropout",
        (2, 3),
        lambda b: b.op("Relu", b.op("Dropout", b.op("Cast", b.op("Identity", "x"), to=1))),
        "Relu",
    ),
    Case(
        "constants folded",
        (2, 3),
        lambda b: b.op("Add", "x", b.op("Sqrt", b.op("Mul", b.const(2.0), b.const(8.0)))),
        "Scale",
    ),
)
