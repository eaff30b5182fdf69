"""Random ONNX files, one operator under test each, hidden behind a gate that ordinary inputs do not open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from softhull.formats.onnx_constants import FOLDED
from softhull.formats.onnx_rules import RULES

GATE = 5.0
NEWEST = 26  # the last operator set that the runtime knows
Rng = np.random.Generator


@dataclass
class Writer:
    """Collects a model; names are handed out in order."""

    rng: Rng
    opset: int
    dtype: Any
    shape: tuple[int, ...] = ()
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    made: int = 0

    def name(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def const(self, value: Any, dtype: Any = None) -> str:
        """An initializer, a Constant or a value that has to be computed from constants."""
        array = np.asarray(value, dtype=self.dtype if dtype is None else dtype)
        name = self.name()
        tensor = numpy_helper.from_array(array, name)
        way = self.rng.random()
        if way < 0.15:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            return name
        self.constants.append(tensor)
        return self.op("Identity", name) if way < 0.25 else name

    def ints(self, *value: int) -> str:
        return self.const(list(value), np.int64)

    def normal(self, *shape: int) -> str:
        return self.const(self.rng.normal(size=shape))

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(kind, list(inputs), names, name=f"n{len(self.nodes)}")
        for key, value in attributes.items():
            kind_of = onnx.AttributeProto.INTS if value == [] else None
            node.attribute.append(helper.make_attribute(key, value, attr_type=kind_of))
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def maybe(self, **attributes: Any) -> dict[str, Any]:
        """Each attribute is there or left to its default."""
        return {key: value for key, value in attributes.items() if self.rng.random() < 0.7}

    def model(self, output: str) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", kind, self.shape)],
            [onnx.ValueInfoProto(name=output)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


Odd = Callable[[Writer, str, tuple[int, ...]], str]
ODD: dict[str, tuple[tuple[tuple[int, ...], ...], Odd]] = {}


def _odd(*names: str, shapes: tuple[tuple[int, ...], ...]) -> Callable[[Odd], Odd]:
    def register(make: Odd) -> Odd:
        for name in names:
            ODD[name] = (shapes, make)
        return make

    return register


def _each(shapes: tuple[tuple[int, ...], ...], **makers: Odd) -> None:
    for name, make in makers.items():
        ODD[name] = (shapes, make)


VECTORS = ((1, 4), (2, 3), (4,), (2, 1, 3))
CUBES = ((2, 3, 4), (1, 3, 4), (2, 4, 3))


def _fitting(w: Writer, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts with another, sometimes of higher rank."""
    own = tuple(size if w.rng.random() < 0.6 else 1 for size in shape[int(w.rng.integers(len(shape) + 1)) :])
    if len(own) == len(shape) and w.rng.random() < 0.5:
        own = (*(int(n) for n in w.rng.integers(1, 3, size=w.rng.integers(1, 3))), *own)
    return own


def _pair(kind: str) -> Odd:
    def make(w: Writer, x: str, shape: tuple[int, ...]) -> str:
        way = w.rng.random()
        if way < 0.3:
            other = w.op("Neg", x) if kind != "Div" else w.op("Exp", w.op("Neg", x))
        elif kind == "Div":
            other = w.const(np.sign(w.rng.normal(size=_fitting(w, shape))) * 2.0 ** w.rng.integers(-2, 3))
        else:
            other = w.normal(*_fitting(w, shape))
        first, second = (x, other) if kind == "Div" or w.rng.random() < 0.5 else (other, x)
        if kind == "Div" and w.rng.random() < 0.3:
            first, second = w.const(2.5), w.op("Exp", x)
        extra = {} if w.opset >= 7 and w.rng.random() < 0.98 else {"broadcast": 1, "axis": 0}
        return str(w.op(kind, first, second, **extra))

    return make


_each(VECTORS, **{kind: _pair(kind) for kind in ("Add", "Sub", "Mul", "Div")})


@_odd("Sum", shapes=VECTORS)
def _sum(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    others = [w.pick(x, w.normal(*_fitting(w, shape)), w.op("Neg", x)) for _ in range(int(w.rng.integers(0, 3)))]
    return str(w.op("Sum", *w.rng.permutation([x, *others])))


@_odd("Pow", shapes=VECTORS)
def _pow(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    power = w.pick(4.0, 5.0, 3.0, 2.0, 2.0, 1.0, 0.0, 0.5, -0.5, -1.0, -2.0, 2.5, 0.3)
    base = x if power in (1.0, 2.0, 3.0, 4.0, 5.0) else w.op("Exp", w.op("Neg", x))
    kind = w.pick(None, None, np.int64) if power in (1.0, 2.0, 3.0, 4.0) else None
    return str(w.op("Pow", base, w.const(np.full(w.pick((), (1,), _fitting(w, shape)), power), kind)))


def _limit(kind: str) -> Odd:
    def make(w: Writer, x: str, shape: tuple[int, ...]) -> str:
        constant = w.const(
            np.full(w.pick((), (1,), (1,) * (len(shape) + 1), (1, 1), _fitting(w, shape)), w.pick(2.0, 0))
        )
        both = w.pick([x, constant], [x, constant], [x, w.op("Sub", w.const(7.0), x)], [x])
        return str(w.op(kind, *w.rng.permutation(both)))

    return make


_each(VECTORS, Max=_limit("Max"), Min=_limit("Min"))


@_odd("Clip", shapes=VECTORS)
def _clip(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    largest = float(np.finfo(np.float32).max)
    low, high = w.pick(0.0, 0.0, -1.0, -largest, -np.inf), w.pick(2.0, largest, largest, np.inf, 3.401e38)
    far = w.rng.random() < 0.4
    size = w.pick(1e37, 1e38, 3e38)
    x = w.op("Mul", x, w.const(size)) if far else x
    if w.opset < 11:
        y = w.op("Clip", x, **w.maybe(min=low, max=high))
    else:
        limits = [w.const(limit) if w.rng.random() < 0.5 else "" for limit in (low, high)]
        y = w.op("Clip", x, *(limits[: w.pick(1, 2)] if limits[1] == "" else limits))
    return str(w.op("Mul", y, w.const(1e-38))) if far else str(y)


@_odd("Cast", shapes=VECTORS)
def _cast(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    own = TensorProto.FLOAT if w.dtype == np.float32 else TensorProto.DOUBLE
    kind = w.pick(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT32)
    scaled = w.op("Mul", x, w.const(np.float32(1.2345678)))
    return str(w.op("Cast", w.op("Cast", scaled, to=kind), to=own))


def _plain(kind: str, **attributes: Any) -> Odd:
    return lambda w, x, shape: str(w.op(kind, x, **attributes))


def _of_positive(kind: str) -> Odd:
    return lambda w, x, shape: str(w.op(kind, w.op("Add", w.op("Exp", w.op("Neg", x)), w.const(0.5))))


def _both_signs(kind: str, *names: str) -> Odd:
    def make(w: Writer, x: str, shape: tuple[int, ...]) -> str:
        moved = w.op("Sub", x, w.const(w.pick(1.0, 3.0, 6.0)))
        return str(w.op(kind, moved, **w.maybe(**{name: w.pick(0.5, 1.0, 1.7) for name in names})))

    return make


_each(
    VECTORS,
    **{kind: _plain(kind) for kind in ("Identity", "Neg", "Relu", "Sigmoid", "Tanh", "Erf")},
    **{kind: _both_signs(kind) for kind in ("Abs", "Softplus", "Softsign", "Mish", "HardSwish", "Sin", "Cos")},
    **{kind: _both_signs(kind, "alpha") for kind in ("Elu", "Selu", "Celu", "HardSigmoid", "Swish")},
    **{kind: _of_positive(kind) for kind in ("Log", "Sqrt", "Reciprocal")},
    Exp=lambda w, x, shape: str(w.op("Exp", w.op("Mul", x, w.const(w.pick(0.5, -0.5))))),
    LeakyRelu=lambda w, x, shape: str(w.op("LeakyRelu", w.op("Neg", x), **w.maybe(alpha=w.pick(0.1, 0.3, -0.5, 2.0)))),
    Gelu=lambda w, x, shape: str(w.op("Gelu", x, **w.maybe(approximate=w.pick("none", "tanh")))),
)


@_odd("Dropout", shapes=VECTORS)
def _dropout(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    if w.opset < 12:
        return str(w.op("Dropout", x, **w.maybe(ratio=0.5)))
    inputs = [x, w.pick("", w.const(0.5)), w.const(w.pick(False, False, False, True), np.bool_)]
    return str(w.op("Dropout", *inputs[: w.pick(1, 3)]))


@_odd("Where", shapes=VECTORS)
def _where(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    mask = w.const(w.rng.random(_fitting(w, shape)) < 0.5, np.bool_)
    values = [x, w.pick(w.normal(*_fitting(w, shape)), w.op("Neg", x))]
    return str(w.op("Where", mask, *w.rng.permutation(values)))


@_odd("MatMul", shapes=((2, 3), (3,), (2, 2, 3), (1, 2, 3)))
def _matmul(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    if len(shape) > 1 and w.rng.random() < 0.3:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        return str(w.op("MatMul", x, w.op("Transpose", x, perm=order)))
    front = w.pick((), (2,), (3, 1), (1, 1, 2))
    if w.rng.random() < 0.5:
        return str(w.op("MatMul", x, w.normal(*w.pick((shape[-1],), (*front, shape[-1], 2)))))
    inner = shape[-2] if len(shape) > 1 else shape[0]
    return str(w.op("MatMul", w.normal(*w.pick((inner,), (*front, 2, inner))), x))


@_odd("Gemm", shapes=((2, 3), (3, 3), (1, 4)))
def _gemm(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    flags = w.maybe(transA=w.pick(0, 1), transB=w.pick(0, 1), alpha=w.pick(0.5, 1.0, 0.3), beta=w.pick(0.0, 1.0, 2.0))
    rows, inner = shape[::-1] if flags.get("transA") else shape
    other = (2, inner) if flags.get("transB") else (inner, 2)
    if w.rng.random() < 0.2:
        return str(w.op("Gemm", x, x, x, **flags))
    summand = w.normal(*w.pick((), (1,), (2,), (rows, 1), (rows, 2), (1, 2), (1, rows, 2)))
    return str(w.op("Gemm", x, w.normal(*other), *([summand] if w.opset < 11 or w.rng.random() < 0.8 else []), **flags))


@_odd("Einsum", shapes=((2, 3), (3, 3), (2, 2)))
def _einsum(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    a, b = shape
    text, *other = w.pick(
        ("ij->ji",), ("ij->i",), ("ij",), ("ii->i",), ("ji",), ("ij,jk->ik", b, 2), ("ij,jk", b, 2),
        ("ij,ij->ij", a, b), ("ij,k->kji", 2), ("...j,jk->...k", b, 2), ("ij , kj -> i", 2, b), ("...,...->...", a, b),
        ("Ij,jk", b, 2), ("ij,ij->", a, b), ("...j->j",), ("ij,jj->ij", b, b), ("ij,jk->ik", 1, 2), ("ba,ca->cb", 2, b),
    )  # fmt: skip
    operands = [x, w.pick(x, w.normal(*other)) if tuple(other) == shape else w.normal(*other)] if other else [x]
    return str(w.op("Einsum", *operands, equation=text))


def _window(w: Writer, axes: int, kernel: list[int], conv: bool) -> dict[str, Any]:
    found = w.maybe(strides=[int(s) for s in w.rng.integers(1, 4, size=axes)])
    if (conv or w.opset >= 19) and w.rng.random() < 0.3:
        found["dilations"] = [int(d) for d in w.rng.integers(1, 3, size=axes)]
    way = w.rng.random()
    if way < 0.4:
        found["pads"] = [int(p) for p in w.rng.integers(0, 2, size=2 * axes)]
    elif way < 0.8:
        found["auto_pad"] = w.pick("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    return found


IMAGES = ((1, 2, 5), (1, 2, 4, 5), (1, 2, 5, 3), (1, 1, 3, 3, 4), (2, 2, 6))


@_odd("Conv", shapes=IMAGES)
def _conv(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axes = len(shape) - 2
    kernel = [int(k) for k in w.rng.integers(1, 4, size=axes)]
    group = w.pick(1, shape[1])
    settings = {
        **_window(w, axes, kernel, True),
        **w.maybe(kernel_shape=kernel),
        **({"group": group} if group > 1 else {}),
    }
    inputs = [x, w.normal(2, shape[1] // group, *kernel), *([w.normal(2)] if w.rng.random() < 0.5 else [])]
    return str(w.op("Conv", *inputs, **settings))


@_odd("AveragePool", shapes=IMAGES)
def _average_pool(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axes = len(shape) - 2
    kernel = [int(k) for k in w.rng.integers(1, 4, size=axes)]
    settings = {**_window(w, axes, kernel, False), **w.maybe(count_include_pad=w.pick(0, 1))}
    if w.opset >= 10:
        settings |= w.maybe(ceil_mode=w.pick(0, 1))
    return str(w.op("AveragePool", x, kernel_shape=kernel, **settings))


_each((*IMAGES, (2, 3)), GlobalAveragePool=_plain("GlobalAveragePool"))


@_odd("MaxPool", shapes=IMAGES)
def _max_pool(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axes = len(shape) - 2
    kernel = [int(k) for k in w.rng.integers(1, 4, size=axes)]
    settings = _window(w, axes, kernel, w.opset >= 10)
    if w.opset >= 10:
        settings |= w.maybe(ceil_mode=w.pick(0, 1))
    return str(w.op("MaxPool", x, kernel_shape=kernel, **settings))


@_odd("ConvTranspose", shapes=IMAGES)
def _conv_transpose(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axes = len(shape) - 2
    kernel = [int(k) for k in w.rng.integers(1, 4, size=axes)]
    strides = [int(k) for k in w.rng.integers(1, 4, size=axes)]
    settings: dict[str, Any] = w.maybe(strides=strides, kernel_shape=kernel)
    settings |= w.maybe(pads=[int(p) for p in w.rng.integers(0, 2, size=2 * axes)])
    settings |= w.maybe(dilations=[int(p) for p in w.rng.integers(1, 3, size=axes)])
    if "strides" in settings and w.rng.random() < 0.5:
        settings["output_padding"] = [int(w.rng.integers(0, stride)) for stride in strides]
    group = w.pick(1, shape[1])
    settings |= {"group": group} if group > 1 else {}
    bias = [w.normal(2 * group)] if w.rng.random() < 0.5 else []
    return str(w.op("ConvTranspose", x, w.normal(shape[1], 2, *kernel), *bias, **settings))


_each((*IMAGES, (2, 3)), GlobalMaxPool=_plain("GlobalMaxPool"))


@_odd("Pad", shapes=CUBES)
def _pad(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    pads = [int(p) for p in w.rng.integers(0, 3, size=6)]
    mode = w.maybe(mode=w.pick("constant", "edge", "reflect"))
    if w.opset < 11:
        return str(w.op("Pad", x, pads=pads, **mode, **w.maybe(value=1.5)))
    more = [w.const(1.5)] if w.rng.random() < 0.5 else []
    return str(w.op("Pad", x, w.ints(*pads), *more, **mode))


def _picked(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    """Entries along an axis, at as many positions of the others as there are, or fewer."""
    axis = int(w.rng.integers(-3, 3))
    sizes = [int(w.rng.integers(1, size + 1)) for size in shape]
    sizes[axis] = int(w.rng.integers(1, 5))
    where = w.const(w.rng.integers(-shape[axis], shape[axis], size=sizes), w.pick(np.int64, np.int32))
    return str(w.op("GatherElements", x, where, **w.maybe(axis=axis)))


_each(
    CUBES,
    Tile=lambda w, x, shape: str(w.op("Tile", x, w.ints(*(int(n) for n in w.rng.integers(1, 3, size=3))))),
    GatherND=lambda w, x, shape: str(
        w.op("GatherND", x, w.const(w.rng.integers(-1, 1, size=w.pick((2, 3), (1, 2), (2, 2, 1))), np.int64))
    ),
    GatherElements=lambda w, x, shape: _picked(w, x, shape),
    Mean=lambda w, x, shape: str(w.op("Mean", x, *w.pick([], [w.normal(*shape)], [w.op("Neg", x), x]))),
    PRelu=lambda w, x, shape: str(
        w.op("PRelu", w.op("Sub", x, w.const(3.0)), w.normal(*w.pick((), (1,), (shape[2],), (shape[1], 1), shape)))
    ),
    IsNaN=lambda w, x, shape: _guarded(w, x, shape),
    Greater=lambda w, x, shape: _straight(w, w.op("Mul", x, w.const(w.pick(1.0, 30.0)))),
)


@_odd("LogSoftmax", shapes=(*CUBES, (1, 4), (4,)))
def _log_softmax(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axis = int(w.rng.integers(-len(shape), len(shape)))
    return str(w.op("LogSoftmax", w.op("Mul", x, w.normal(*shape)), **w.maybe(axis=axis)))


def _straight(w: Writer, x: str) -> str:
    """A softplus as torch exports it: the number itself above a threshold."""
    return str(w.op("Where", w.op("Greater", x, w.const(w.pick(20.0, 25.0))), x, w.op("Softplus", x)))


def _guarded(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    """A masked softmax, in some rows completely, with a guard behind it as exporters write it."""
    mask = np.where(w.rng.random(shape) < 0.5, w.pick(-np.inf, -1e9, -1e4), 0.0)
    if w.rng.random() < 0.5:
        logits = w.op("Add", x, w.const(mask))
    else:
        logits = w.op("Where", w.const(mask == 0, np.bool_), x, w.const(mask.min() if (mask < 0).any() else -1e9))
    p = w.op("Softmax", logits, axis=-1)
    return str(w.op("Where", w.op("IsNaN", p), w.const(0.0), p))


@_odd("DepthToSpace", shapes=((1, 4, 2, 1), (2, 8, 1, 2)))
def _depth_to_space(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    mode = w.maybe(mode=w.pick("DCR", "CRD")) if w.opset >= 11 else {}
    return str(w.op("DepthToSpace", x, blocksize=2, **mode))


_each(((1, 1, 2, 4), (2, 2, 2, 2)), SpaceToDepth=lambda w, x, shape: str(w.op("SpaceToDepth", x, blocksize=2)))


@_odd("Resize", shapes=((1, 1, 3, 2), (1, 2, 2, 4)))
def _resize(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    settings = w.maybe(
        mode=w.pick("nearest", "linear"),
        coordinate_transformation_mode=w.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"),
        nearest_mode=w.pick("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"),
    )
    nothing = w.const(np.zeros(0)) if w.opset < 13 else ""
    if w.rng.random() < 0.5:
        return str(w.op("Resize", x, nothing, w.const(w.pick([1, 1, 2, 2], [1, 1, 2, 0.5]), np.float32), **settings))
    scales = w.const(np.zeros(0), np.float32) if w.opset < 13 else ""
    return str(w.op("Resize", x, nothing, scales, w.ints(*shape[:2], *w.pick((4, 4), (6, 2), (2, 3))), **settings))


@_odd("InstanceNormalization", "GroupNormalization", "RMSNormalization", shapes=((1, 4, 3), (2, 2, 2, 2)))
def _normalised(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    kind = w.pick("InstanceNormalization", *(("GroupNormalization",) if w.opset >= 21 else ()))
    moved, settings = w.op("Mul", x, w.normal(*shape)), w.maybe(epsilon=w.pick(1e-5, 0.1))
    if w.opset >= 23 and w.rng.random() < 0.5:
        return str(w.op("RMSNormalization", moved, w.normal(shape[-1]), **settings))
    groups = {"num_groups": 2} if kind == "GroupNormalization" else {}
    return str(w.op(kind, moved, w.normal(shape[1]), w.normal(shape[1]), **settings, **groups))


@_odd("Attention", shapes=((1, 2, 3, 4), (1, 3, 4)))
def _attention(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    y = w.op("Mul", x, w.normal(*shape))
    tokens = shape[-2]
    heads = {"q_num_heads": 2, "kv_num_heads": 2} if len(shape) == 3 else {}
    if len(shape) == 4 and w.rng.random() < 0.3:  # keys and values that two heads of queries share
        y = w.op("Slice", y, w.ints(0), w.ints(1), w.ints(1))
        return str(w.op("Attention", x, y, y, **w.maybe(is_causal=w.pick(0, 1))))
    mask = np.tril(np.ones((tokens, tokens), dtype=bool))
    more = w.pick([], [w.const(mask, np.bool_)], [w.const(np.where(mask, 0.0, -1e9))])
    return str(w.op("Attention", y, x, y, *more, **w.maybe(is_causal=w.pick(0, 1), scale=0.3), **heads))


@_odd("RotaryEmbedding", shapes=((1, 2, 3, 4), (1, 3, 4)))
def _rotary(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    heads = {"num_heads": 1} if len(shape) == 3 else {}
    settings = {**w.maybe(interleaved=w.pick(0, 1)), **heads}
    if w.rng.random() < 0.3:
        settings |= {"rotary_embedding_dim": 2, "num_heads": 1 if heads else shape[1]}
    half = settings.get("rotary_embedding_dim", shape[-1]) // 2
    if w.rng.random() < 0.5:
        return str(w.op("RotaryEmbedding", x, *(w.normal(1, shape[-2], half) for _ in range(2)), **settings))
    tokens = w.const(w.rng.integers(0, 5, size=(1, shape[-2])), np.int64)
    return str(w.op("RotaryEmbedding", x, *(w.normal(5, half) for _ in range(2)), tokens, **settings))


@_odd("DequantizeLinear", shapes=((1, 4), (2, 4)))
def _dequantized(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    """Weights of eight bits, with one scale or one for every column, with zero points or without."""
    kind = w.pick(np.int8, np.uint8)
    info = np.iinfo(kind)
    size = (3,) if w.opset >= 13 and w.rng.random() < 0.5 else ()
    weights = w.const(w.rng.integers(info.min, info.max, size=(shape[-1], 3)), kind)
    zero = [w.const(w.rng.integers(info.min, info.max, size=size), kind)] if w.rng.random() < 0.5 else []
    scale = w.const(0.01 * w.rng.random(size))
    axis = {"axis": w.pick(1, -1)} if size else {}
    return str(w.op("MatMul", x, w.op("DequantizeLinear", weights, scale, *zero, **axis)))


@_odd("BatchNormalization", shapes=((1, 2, 3), (2, 3), (1, 2, 2, 2)))
def _batch_norm(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    constants = [w.normal(shape[1]) for _ in range(3)]
    spread = w.const(w.pick(1e-5, 1.0, 1e-4) * w.rng.random(shape[1]))
    settings = w.maybe(epsilon=w.pick(1e-5, 1e-3, 0.1), momentum=0.8)
    if w.opset < 9:
        settings |= w.maybe(spatial=w.pick(1, 1, 0))
    elif w.opset >= 14:
        settings |= w.maybe(training_mode=w.pick(0, 0, 0, 1))
    return str(w.op("BatchNormalization", x, *constants, spread, **settings))


@_odd("LayerNormalization", shapes=CUBES)
def _layer_norm(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axis = w.pick(-1, -1, 1, 2, -2)
    tail = shape[axis:]
    tail = tail if w.rng.random() < 0.8 else w.pick((1,), (1, *tail), tail[-1:])
    settings = {"axis": axis, **w.maybe(epsilon=w.pick(1e-5, 1e-2), stash_type=1)}
    start = w.op("Add", x, w.normal(*shape))
    return str(w.op("LayerNormalization", start, w.normal(*tail), *w.pick([], [w.normal(*tail)]), **settings))


@_odd("Softmax", shapes=(*CUBES, (2, 3), (4,), (1, 2, 2, 3)))
def _softmax(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axis = int(w.rng.integers(-len(shape), len(shape)))
    return str(w.op("Softmax", w.op("Mul", x, w.normal(*shape)), **w.maybe(axis=axis)))


def _reduce(kind: str, axes_as_input: int) -> Odd:
    def make(w: Writer, x: str, shape: tuple[int, ...]) -> str:
        count = int(w.rng.integers(0, len(shape)))
        axes = [int(a) for a in w.rng.permutation(len(shape))[:count]]
        axes = [a - len(shape) if w.rng.random() < 0.4 else a for a in axes]
        settings = w.maybe(keepdims=w.pick(0, 1))
        if w.opset >= axes_as_input:
            inputs = [x, *w.pick([], [w.ints(*axes)])]
            settings |= w.maybe(noop_with_empty_axes=w.pick(0, 1))
        else:
            inputs = [x]
            settings |= w.maybe(axes=axes) if axes else {}
        if kind in ("ReduceL2", "ReduceLogSumExp"):
            inputs[0] = w.op("Add", x, w.const(0.5))
        if kind != "ReduceMax" or w.rng.random() < 0.5:
            return str(w.op(kind, *inputs, **settings))
        # The shift of a softmax written out.
        axis = len(shape) - 1
        where = [w.ints(axis)] if w.opset >= 18 else []
        named: dict[str, Any] = {} if w.opset >= 18 else {"axes": [axis]}
        top = w.op("Exp", w.op("Sub", x, w.op("ReduceMax", x, *where, **named, keepdims=1)))
        summed: dict[str, Any] = {} if w.opset >= 13 else {"axes": [axis]}
        total = w.op("ReduceSum", top, *([w.ints(-1)] if w.opset >= 13 else []), **summed)
        return str(w.op("Div", top, total))

    return make


_each(
    CUBES,
    ReduceSum=_reduce("ReduceSum", 13),
    **{
        kind: _reduce(kind, 18)
        for kind in (
            *("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"),
            "ReduceProd",
        )
    },
)


@_odd("Reshape", shapes=CUBES)
def _reshape(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    target = w.pick(
        (-1,), (0, -1), (shape[1], shape[0], shape[2]), (0, 0, 0), (1, 0, -1), (-1, shape[2], 1), (0, 0, 0, 0)
    )
    return str(w.op("Reshape", x, w.ints(*target), **(w.maybe(allowzero=w.pick(0, 1)) if w.opset >= 14 else {})))


_each(
    CUBES,
    Flatten=lambda w, x, shape: str(w.op("Flatten", x, **w.maybe(axis=int(w.rng.integers(-3, 4))))),
    Transpose=lambda w, x, shape: str(w.op("Transpose", x, **w.maybe(perm=[int(i) for i in w.rng.permutation(3)]))),
    Expand=lambda w, x, shape: str(w.op("Expand", x, w.ints(*w.pick(_fitting(w, shape), (2, *shape), (1,), shape)))),
)


def _with_axes(kind: str, choices: tuple[tuple[int, ...] | None, ...]) -> Odd:
    def make(w: Writer, x: str, shape: tuple[int, ...]) -> str:
        axes = w.pick(*choices)
        if axes is None:
            return str(w.op(kind, x))
        return str(w.op(kind, x, w.ints(*axes)) if w.opset >= 13 else w.op(kind, x, axes=list(axes)))

    return make


_each(
    ((1, 3, 1), (2, 1, 3)),
    Squeeze=_with_axes("Squeeze", (None, (0,), (1,), (-1,), (0, 2), (2, 0), (), (0, 0))),
    Unsqueeze=_with_axes("Unsqueeze", ((0,), (-1,), (0, 2), (2, 0), (1, -1), (0, 0))),
)


@_odd("Concat", shapes=CUBES)
def _concat(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axis = int(w.rng.integers(-3, 3))
    others = [w.pick(w.op("Neg", x), w.normal(*shape)) for _ in range(int(w.rng.integers(0, 3)))]
    return str(w.op("Concat", *w.rng.permutation([x, *others]), axis=axis))


@_odd("Slice", shapes=CUBES)
def _slice(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    count = int(w.rng.integers(1, 4))
    axes = [int(a) for a in w.rng.permutation(3)[:count]]
    starts = [w.pick(0, 0, 1, -1, -2, -99) for _ in axes]
    ends = [w.pick(99, 2**31 - 1, 2**63 - 1, -1, 3, 2, -99, -(2**63)) for _ in axes]
    if w.opset < 10:
        return str(w.op("Slice", x, starts=starts, ends=ends, **w.maybe(axes=axes)))
    axes = [a - 3 if w.rng.random() < 0.3 and w.opset >= 11 else a for a in axes]
    steps = [w.pick(1, 1, 2, -1, -2) for _ in axes]
    extra = w.pick([], [w.ints(*axes)], [w.ints(*axes), w.ints(*steps)], ["", w.ints(*steps)])
    return str(w.op("Slice", x, w.ints(*starts), w.ints(*ends), *extra))


@_odd("Split", shapes=((4, 3), (2, 4), (5, 2)))
def _split(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axis = w.pick(0, 1, -1)
    size, settings, inputs = shape[axis], w.maybe(axis=axis), [x]
    if w.rng.random() < 0.5 and size > 2:
        parts = [1, size - 1]
        if w.opset >= 13:
            inputs.append(w.ints(*parts))
        else:
            settings["split"] = parts
    elif w.opset >= 18:
        settings["num_outputs"] = 2
    first, second = w.op("Split", *inputs, outputs=2, **settings)
    return str(w.op("Concat", second, first, axis=axis))


@_odd("Gather", shapes=CUBES)
def _gather(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    axis = int(w.rng.integers(-3, 3))
    index = w.rng.integers(-shape[axis], shape[axis], size=w.pick((), (1,), (2,), (2, 2)))
    return str(w.op("Gather", x, w.const(index, w.pick(np.int64, np.int32)), **({"axis": axis} if axis else {})))


def _shape_of(kind: str) -> Odd:
    def make(w: Writer, x: str, shape: tuple[int, ...]) -> str:
        part = w.maybe(start=w.pick(0, 1, -1), end=w.pick(1, 2, -1, 9)) if kind == "Shape" and w.opset >= 15 else {}
        number = w.op("Cast", w.op(kind, x, **part), to=helper.np_dtype_to_tensor_dtype(np.dtype(w.dtype)))
        return str(w.op("Mul", x, w.op("ReduceSum", number, keepdims=0)))

    return make


@_odd("shapes", shapes=CUBES)
def _shapes(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    """A shape computed from that of the input, as exporters do."""
    sizes = w.op("Shape", x)
    first, rest = w.op("Gather", sizes, w.ints(0)), w.op("Gather", sizes, w.ints(1, 2))
    named: dict[str, Any] = {} if w.opset >= 18 else {"axes": [0]}
    total = w.op("ReduceProd", rest, **named, keepdims=1)
    if w.opset >= 12:
        total = w.op("Max", total, w.ints(1))
    return str(w.op("Reshape", x, w.op("Concat", *w.pick([first, total], [total, first], [first, w.ints(-1)]), axis=0)))


def _size_of(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    if w.rng.random() < 0.5:
        return _shape_of("Size")(w, x, shape)
    return str(w.op("Reshape", x, w.op("Reshape", w.op("Size", x), w.ints(1))))


_each(CUBES, Shape=_shape_of("Shape"), Size=_size_of)


@_odd("folded", shapes=((2, 3, 4),))
def _folded(w: Writer, x: str, shape: tuple[int, ...]) -> str:
    """Something computed from constants alone, in whatever way this version of the operator does it."""
    half = w.op("Cast", w.normal(*shape), to=TensorProto.FLOAT16)
    own = helper.np_dtype_to_tensor_dtype(np.dtype(w.dtype))
    whole = w.const(w.rng.integers(-9, 9, size=shape), np.int64)
    three = w.const(w.pick(3, -3), np.int64)
    ways: list[Callable[[], str]] = [
        lambda: w.op("Softmax", w.normal(*shape), **w.maybe(axis=w.pick(0, 1, 2))),
        lambda: w.op("Softmax", w.normal(*shape), **w.maybe(axis=w.pick(0, 1))),
        lambda: w.op("Cast", half, to=own),
        lambda: w.op("Cast", w.op("Div", whole, three), to=own),
        lambda: w.op("Cast", w.op("Mod", whole, three), to=own),
        lambda: w.op("Cast", w.op("Cast", w.const(3 * w.rng.normal(size=shape)), to=TensorProto.INT32), to=own),
        lambda: w.op("Transpose", w.op("Flatten", w.normal(4, 6), axis=1)),
        lambda: w.op("Tile", w.normal(1, 3, 4), w.ints(2, 1, 1)),
        lambda: w.op("Trilu", w.normal(2, 3, 4), upper=0),
        lambda: w.op("ReduceMean", w.normal(*shape)),
        lambda: w.op("Clip", w.normal(*shape)),
        lambda: w.op("Pow", w.const(w.rng.random(shape)), w.const(1.5)),
        lambda: w.op("LeakyRelu", w.normal(*shape)),
        lambda: w.op("ConstantOfShape", w.ints(*shape)),
        lambda: w.op("Where", w.const(w.rng.random(shape) < 0.5, np.bool_), w.normal(*shape), w.normal(4)),
        *(lambda kind=kind: w.op(kind, w.const(0.1 + w.rng.random(shape))) for kind in _SINGLE),
        *(lambda kind=kind: w.op(kind, w.normal(*shape), w.normal(4)) for kind in _DOUBLE),
    ]  # fmt: skip
    constant = w.pick(*ways)()
    if len(w.nodes) and w.nodes[-1].op_type == "Transpose":
        return str(w.op("Add", w.op("Reshape", x, w.ints(6, 4)), constant))
    return str(w.op("Add", x, constant))


_SINGLE = ("Abs", "Ceil", "Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sign", "Sqrt", "Tanh")
_DOUBLE = ("Add", "Sub", "Mul", "Max", "Min", "Sum")
assert {*_SINGLE, *_DOUBLE} <= FOLDED


def opsets(name: str) -> list[int]:
    """The first and the last operator set in which each declared version of an operator is in force."""
    if name not in RULES:
        return list(range(7, NEWEST + 1))
    starts = sorted(RULES[name].versions)
    found = set()
    for opset in range(7, NEWEST + 1):
        for start in starts:
            if opset in (max(start, 7), start - 1):
                found.add(opset)
    return sorted(opset for opset in found | {NEWEST} if 7 <= opset <= NEWEST)


@dataclass(frozen=True)
class Sample:
    """A model, what it is about, and inputs that open its gate."""

    operator: str
    opset: int
    content: bytes
    x: np.ndarray


def sample(seed: int, only: str | None = None) -> Sample:
    rng = np.random.default_rng([seed, 7])
    names = sorted(ODD)
    name = only or names[seed % len(names)]
    choices = opsets(name)
    opset = choices[int(rng.integers(len(choices)))] if rng.random() < 0.7 else int(rng.integers(7, NEWEST + 1))
    w = Writer(rng, opset, np.float64 if rng.random() < 0.2 else np.float32)
    shapes, make = ODD[name]
    w.shape = shapes[int(rng.integers(len(shapes)))]
    side = w.pick(1.0, -1.0)
    beyond = w.op("Sub", "x", w.const(GATE)) if side > 0 else w.op("Sub", w.const(-GATE), "x")
    opened = w.op("Relu", beyond)
    output = make(w, opened, w.shape)
    if rng.random() < 0.4:
        output = w.op(w.pick("Relu", "Neg", "Tanh", "Identity", "LeakyRelu"), output)
    if rng.random() < 0.6:  # the checker reads networks with one row of outputs
        output = w.op("Flatten", output, axis=0)
    model = w.model(output)
    if rng.random() < 0.02:
        model.opset_import.append(helper.make_opsetid(w.pick("ai.onnx", ""), w.pick(opset, 11, 13)))
    inputs = [np.zeros(w.shape), rng.normal(size=w.shape), side * rng.uniform(GATE, 2 * GATE, size=w.shape)]
    inputs += [side * rng.uniform(0, 2 * GATE, size=w.shape), 3 * GATE * rng.normal(size=w.shape)]
    return Sample(name, opset, model.SerializeToString(), np.stack(inputs).astype(w.dtype))
