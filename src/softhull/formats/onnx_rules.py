"""One rule per ONNX operator: what it becomes in the graph when at least one input is variable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError
from ..graph.broadcast import broadcast
from ..graph.builder import GraphBuilder
from ..graph.operator import Operator, Shape
from ..graph.ops.centre import Centre
from ..graph.ops.clip import Clip
from ..graph.ops.concat import Concat
from ..graph.ops.conv import Conv
from ..graph.ops.erf import Erf
from ..graph.ops.exp import Exp
from ..graph.ops.gather import Gather
from ..graph.ops.gelu import Gelu, TanhGelu
from ..graph.ops.log import Log
from ..graph.ops.maximum import Maximum
from ..graph.ops.reciprocal import Reciprocal
from ..graph.ops.relu import LeakyRelu, Relu
from ..graph.ops.rsqrt import Rsqrt
from ..graph.ops.sigmoid import Sigmoid
from ..graph.ops.slice import Slice
from ..graph.ops.softmax import Softmax
from ..graph.ops.sqrt import Sqrt
from ..graph.ops.square import Square
from ..graph.ops.tanh import Tanh

# A variable is a position in the graph, a constant an array, an absent optional input None.
Value = int | np.ndarray | None


@dataclass(frozen=True)
class Context:
    """What a rule works with besides its inputs."""

    graph: GraphBuilder
    attributes: dict[str, Any]
    opset: int
    outputs: int

    def shape(self, x: int) -> Shape:
        return self.graph.shape(x)

    def axes(self, given: Value) -> list[int] | None:
        """Axes stand in an input or, in older files, in an attribute."""
        if given is not None:
            return _integers(given)
        axes = self.attributes.get("axes")
        return None if axes is None else [int(axis) for axis in axes]


Rule = Callable[..., "Value | tuple[Value, ...]"]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _real(value: Value) -> Tensor:
    """A constant as float64."""
    if not isinstance(value, np.ndarray):
        raise ModelError("an input that must be constant depends on the network input")
    if value.dtype.kind not in "fiub":
        raise ModelError(f"a constant of type {value.dtype} is no number")
    return torch.from_numpy(np.array(value, dtype=np.float64))


def _integers(value: Value) -> list[int]:
    if not isinstance(value, np.ndarray):
        raise ModelError("a shape, axis or index depends on the network input")
    return [int(item) for item in value.reshape(-1)]


def _variable(value: Value) -> int:
    if not isinstance(value, int):
        raise ModelError("a constant stands where the variable input is expected")
    return value


def _shape(graph: GraphBuilder, value: Value) -> Shape:
    """Of a variable or a constant alike."""
    return graph.shape(value) if isinstance(value, int) else tuple(np.asarray(value).shape)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} of a value with {rank} dimensions")
    return axis % rank


@_rule("Identity", "Dropout")
def _identity(context: Context, x: Value, *rest: Value) -> Value:
    if any(isinstance(value, np.ndarray) and bool(value) for value in rest[1:2]):
        raise ModelError("dropout in training mode is random; export the model in evaluation mode")
    return _variable(x)


@_rule("Cast")
def _cast(context: Context, x: Value) -> Value:
    if int(context.attributes["to"]) not in (1, 10, 11, 16):  # float, half, double, bfloat16
        raise ModelError("casting a variable to integers or booleans is not supported")
    return _variable(x)


@_rule("Add", "Sum")
def _add(context: Context, a: Value, *others: Value) -> Value:
    total = a
    for b in others:
        if isinstance(total, int) and isinstance(b, int):
            total = context.graph.sum_of(total, b)
        elif isinstance(total, int):
            total = context.graph.scale(total, 1.0, _real(b))
        elif isinstance(b, int):
            total = context.graph.scale(b, 1.0, _real(total))
        else:
            total = np.asarray(total) + np.asarray(b)
    return total


@_rule("Sub")
def _sub(context: Context, a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return context.graph.difference(a, b)
    if isinstance(a, int):
        return context.graph.scale(a, 1.0, -_real(b))
    return context.graph.scale(_variable(b), -1.0, _real(a))


@_rule("Neg")
def _neg(context: Context, x: int) -> Value:
    return context.graph.scale(x, -1.0)


@_rule("Mul")
def _mul(context: Context, a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return context.graph.product(a, b)
    if isinstance(a, int):
        return context.graph.scale(a, _real(b))
    return context.graph.scale(_variable(b), _real(a))


@_rule("Div")
def _div(context: Context, a: Value, b: Value) -> Value:
    if not isinstance(b, int):
        divisor = _real(b)
        if bool((divisor == 0).any()):
            raise ModelError("division by a constant 0")
        return context.graph.scale(_variable(a), 1 / divisor)
    inverse = context.graph.elementwise(Reciprocal(context.graph.label), b)
    return context.graph.product(a, inverse) if isinstance(a, int) else context.graph.scale(inverse, _real(a))


@_rule("Pow")
def _pow(context: Context, x: Value, exponent: Value) -> Value:
    powers = set(_real(exponent).reshape(-1).tolist())
    label = context.graph.label
    known: dict[float, Operator] = {
        2.0: Square(),
        0.5: Sqrt(label),
        -0.5: Rsqrt(label),
        -1.0: Reciprocal(label),
    }
    power = powers.pop() if len(powers) == 1 else math.nan
    if power == 1:
        return _variable(x)
    if power not in known or len(_shape(context.graph, exponent)) > len(context.shape(_variable(x))):
        raise ModelError("only the powers 2, 1, 0.5, -0.5 and -1 are supported")
    return context.graph.elementwise(known[power], _variable(x))


@_rule("Where")
def _where(context: Context, condition: Value, a: Value, b: Value) -> Value:
    """With a constant condition a selection: variables times their mask, plus the constants chosen."""
    chosen = _real(condition) != 0
    shape = broadcast(tuple(chosen.shape), *(_shape(context.graph, v) for v in (a, b)))
    total: Value = None
    shift = torch.zeros(shape, dtype=torch.float64)
    for value, mask in ((a, chosen), (b, ~chosen)):
        if isinstance(value, int):
            part = context.graph.expand(context.graph.scale(value, mask.double()), shape)
            total = context.graph.sum_of(total, part) if isinstance(total, int) else part
        else:
            shift = torch.where(mask, _real(value), shift)
    return context.graph.scale(_variable(total), 1.0, shift)


def _product_of_matrices(g: GraphBuilder, a: Value, b: Value) -> int:
    """A vector counts as a matrix of one row on the left, of one column on the right."""
    a_shape, b_shape = _shape(g, a), _shape(g, b)
    if len(a_shape) == 1:
        a = _reshaped(g, a, (1, *a_shape))
    if len(b_shape) == 1:
        b = _reshaped(g, b, (*b_shape, 1))
    if isinstance(a, int) and isinstance(b, int):
        y = g.matmul(a, b)
    elif isinstance(a, int):
        y = g.linear(a, _real(b))
    else:
        y = g.linear(_variable(b), _real(a), left=True)
    shape = g.shape(y)
    if len(b_shape) == 1:
        shape = shape[:-1]
    if len(a_shape) == 1:
        shape = (*shape[: len(g.shape(y)) - 2], *shape[len(g.shape(y)) - 1 :])
    return g.reshape(y, shape)


@_rule("MatMul")
def _matmul(context: Context, a: Value, b: Value) -> Value:
    return _product_of_matrices(context.graph, a, b)


def _reshaped(graph: GraphBuilder, value: Value, shape: Shape) -> Value:
    return graph.reshape(value, shape) if isinstance(value, int) else np.reshape(np.asarray(value), shape)


@_rule("Gemm")
def _gemm(context: Context, a: Value, b: Value, c: Value = None) -> Value:
    g, attributes = context.graph, context.attributes
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))
    if attributes.get("transA"):
        a = g.transpose(a, (1, 0)) if isinstance(a, int) else np.asarray(a).T
    if attributes.get("transB"):
        b = g.transpose(b, (1, 0)) if isinstance(b, int) else np.asarray(b).T
    y = g.scale(_product_of_matrices(g, a, b), alpha)
    if c is None or beta == 0:
        return y
    return g.sum_of(y, g.scale(c, beta)) if isinstance(c, int) else g.scale(y, 1.0, beta * _real(c))


@_rule("Einsum")
def _einsum(context: Context, *operands: Value) -> Value:
    """Transposes and sums bring any two-operand einsum into the form of a batched matrix product."""
    g = context.graph
    equation = context.attributes["equation"]
    text = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    shapes = [_shape(g, v) for v in operands]
    terms, result = _einsum_terms(text, shapes)
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes):
        for letter, length in zip(term, shape):
            if sizes.setdefault(letter, length) != length:
                raise ModelError(f"einsum {text!r}: index {letter!r} has sizes {sizes[letter]} and {length}")
    if len(operands) == 1:
        x, term = _sum_letters(g, operands[0], terms[0], set(result))
        return g.transpose(_variable(x), tuple(term.index(letter) for letter in result))
    left, right = set(terms[0]), set(terms[1])
    a, first = _sum_letters(g, operands[0], terms[0], right | set(result))
    b, second = _sum_letters(g, operands[1], terms[1], left | set(result))
    batch = [k for k in first if k in second and k in result]
    inner = [k for k in first if k in second and k not in result]
    rows = [k for k in first if k not in second]
    columns = [k for k in second if k not in first]

    def size(letters: list[str]) -> int:
        return math.prod(sizes[k] for k in letters)

    front = tuple(sizes[k] for k in batch)
    a = _moved(g, a, first, batch + rows + inner, (*front, size(rows), size(inner)))
    b = _moved(g, b, second, batch + inner + columns, (*front, size(inner), size(columns)))
    y = g.reshape(_product_of_matrices(g, a, b), tuple(sizes[k] for k in batch + rows + columns))
    return g.transpose(y, tuple((batch + rows + columns).index(letter) for letter in result))


def _einsum_terms(text: str, shapes: list[Shape]) -> tuple[list[str], str]:
    """Letters per operand and of the result, an ellipsis spelled out in letters of its own."""
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes) or len(terms) > 2:
        raise ModelError(f"einsum {text!r} with {len(shapes)} operands; one or two are supported")
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    widths = {len(shape) - len(term.replace("...", "")) for term, shape in zip(terms, shapes) if "..." in term}
    if len(widths) > 1 or any(width < 0 for width in widths):
        raise ModelError(f"einsum {text!r}: the ellipses stand for different numbers of axes")
    dots = "".join(spare[: widths.pop()]) if widths else ""
    terms = [term.replace("...", dots) for term in terms]
    if not arrow:
        joined = "".join(terms)
        result = dots + "".join(sorted(k for k in set(joined) - set(dots) if joined.count(k) == 1))
    result = result.replace("...", dots)
    for term, shape in zip(terms, shapes):
        if len(term) != len(shape):
            raise ModelError(f"einsum {text!r}: operand {term!r} has {len(shape)} axes")
        if len(set(term)) != len(term):
            raise ModelError(f"einsum {text!r}: a repeated index in one operand is not supported")
    if not set(result) <= set("".join(terms)) or len(set(result)) != len(result):
        raise ModelError(f"einsum {text!r}: the result has an index of no operand, or one twice")
    return terms, result


def _sum_letters(graph: GraphBuilder, value: Value, term: str, kept: set[str]) -> tuple[Value, str]:
    axes = tuple(i for i, letter in enumerate(term) if letter not in kept)
    if axes:
        value = graph.total(value, axes, keep=False) if isinstance(value, int) else np.asarray(value).sum(axis=axes)
    return value, "".join(letter for letter in term if letter in kept)


def _moved(graph: GraphBuilder, value: Value, term: str, order: list[str], shape: Shape) -> Value:
    permutation = tuple(term.index(letter) for letter in order)
    if isinstance(value, int):
        return graph.reshape(graph.transpose(value, permutation), shape)
    return np.asarray(value).transpose(permutation).reshape(shape)


@_rule("Conv")
def _conv(context: Context, x: Value, kernel: Value, bias: Value = None) -> Value:
    weights = _real(kernel)
    size = tuple(weights.shape[2:])
    if not 1 <= len(size) <= 3:
        raise ModelError(f"convolution over {len(size)} axes")
    strides, pads, dilations = _window(context, context.shape(_variable(x))[2:], size)
    operator = Conv(
        weights,
        None if bias is None else _real(bias),
        strides,
        pads,
        dilations,
        int(context.attributes.get("group", 1)),
    )
    return context.graph.add(operator, _variable(x))


def _window(context: Context, space: Shape, kernel: Shape) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, pads (all fronts, then all backs) and dilations of a convolution or pooling."""
    ones = (1,) * len(kernel)
    strides = tuple(int(v) for v in context.attributes.get("strides", ones))
    dilations = tuple(int(v) for v in context.attributes.get("dilations", ones))
    pads = tuple(int(v) for v in context.attributes.get("pads", (0,) * (2 * len(kernel))))
    if len(space) != len(kernel) or not len(strides) == len(dilations) == len(kernel) == len(pads) / 2:
        raise ModelError(f"kernel {kernel}, strides {strides} and pads {pads} do not fit an input {space}")
    if min(*strides, *dilations) < 1 or min(pads) < 0:
        raise ModelError(f"strides {strides}, dilations {dilations}, pads {pads} are out of range")
    mode = context.attributes.get("auto_pad", b"NOTSET")
    if mode == b"VALID":
        pads = (0,) * len(pads)
    elif mode in (b"SAME_UPPER", b"SAME_LOWER"):
        front, back = [], []
        for size, k, stride, dilation in zip(space, kernel, strides, dilations):
            missing = max(0, (-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size)
            front.append(missing // 2 if mode == b"SAME_UPPER" else missing - missing // 2)
            back.append(missing - front[-1])
        pads = (*front, *back)
    elif mode != b"NOTSET":
        raise ModelError(f"auto_pad {mode!r} is unknown")
    return strides, pads, dilations


@_rule("AveragePool")
def _average_pool(context: Context, x: Value) -> Value:
    """A convolution with ones, each position divided by the number of entries it averages."""
    g = context.graph
    shape = g.shape(_variable(x))
    kernel = tuple(int(v) for v in context.attributes["kernel_shape"])
    strides, pads, dilations = _window(context, shape[2:], kernel)
    rank = len(kernel)
    real_pads = pads
    if context.attributes.get("ceil_mode"):
        back = list(pads[rank:])
        for i in range(rank):
            reach = dilations[i] * (kernel[i] - 1) + 1
            padded = shape[2 + i] + pads[i] + pads[rank + i]
            steps = -(-(padded - reach) // strides[i])
            if steps * strides[i] >= shape[2 + i] + pads[i]:  # a window may not start in the padding behind
                steps -= 1
            back[i] += max(0, steps * strides[i] + reach - padded)
        pads = (*pads[:rank], *back)
    ones = torch.ones((1, 1, *kernel), dtype=torch.float64)
    counted = torch.ones((1, 1, 1, *shape[2:]), dtype=torch.float64)
    extra = pads
    if context.attributes.get("count_include_pad"):
        pairs = [p for i in reversed(range(rank)) for p in (real_pads[i], real_pads[rank + i])]
        counted = torch.nn.functional.pad(counted, pairs, value=1.0)
        extra = (*(0,) * rank, *(pads[rank + i] - real_pads[rank + i] for i in range(rank)))
    count = Conv(ones, None, strides, extra, dilations).value(counted)[0]
    channels = ones.expand((shape[1], 1, *kernel)).contiguous()
    y = g.add(Conv(channels, None, strides, pads, dilations, shape[1]), _variable(x))
    return g.scale(y, 1 / count)


@_rule("GlobalAveragePool")
def _global_average_pool(context: Context, x: Value) -> Value:
    rank = len(context.shape(_variable(x)))
    return context.graph.total(_variable(x), tuple(range(2, rank)), mean=True)


@_rule("BatchNormalization")
def _batch_normalization(context: Context, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Value:
    if context.attributes.get("training_mode") or context.outputs > 1:
        raise ModelError("training mode depends on the batch; export the model in evaluation mode")
    factor = _real(scale) / torch.sqrt(_real(variance) + float(context.attributes.get("epsilon", 1e-5)))
    spread = (-1, *(1,) * (len(context.shape(_variable(x))) - 2))
    # In two steps no constant is off by more than a share of itself; one shift for both could cancel.
    centred = context.graph.scale(_variable(x), 1.0, -_real(mean).reshape(spread))
    return context.graph.scale(centred, factor.reshape(spread), _real(bias).reshape(spread))


@_rule("LayerNormalization")
def _layer_normalization(context: Context, x: Value, scale: Value, bias: Value = None) -> Value:
    """Centre, square, mean, reciprocal root, product: the only product of two variables is the last."""
    if context.outputs > 1:
        raise ModelError("only the first output of a layer normalisation is supported")
    g = context.graph
    shape = g.shape(_variable(x))
    axes = tuple(range(_axis(int(context.attributes.get("axis", -1)), len(shape)), len(shape)))
    centred = g.add(Centre(axes), _variable(x), shape=shape)
    variance = g.total(g.elementwise(Square(), centred), axes, mean=True)
    steadied = g.scale(variance, 1.0, float(context.attributes.get("epsilon", 1e-5)))
    y = g.product(centred, g.elementwise(Rsqrt(g.label), steadied))
    return g.scale(y, _real(scale), 0.0 if bias is None else _real(bias))


def _activation(make: Callable[[Context], Operator]) -> Rule:
    def rule(context: Context, x: Value) -> Value:
        return context.graph.elementwise(make(context), _variable(x))

    return rule


RULES["Relu"] = _activation(lambda context: Relu())
RULES["LeakyRelu"] = _activation(lambda context: LeakyRelu(float(context.attributes.get("alpha", 0.01))))
RULES["Sigmoid"] = _activation(lambda context: Sigmoid())
RULES["Tanh"] = _activation(lambda context: Tanh())
RULES["Erf"] = _activation(lambda context: Erf())
RULES["Exp"] = _activation(lambda context: Exp())
RULES["Log"] = _activation(lambda context: Log(context.graph.label))
RULES["Sqrt"] = _activation(lambda context: Sqrt(context.graph.label))
RULES["Reciprocal"] = _activation(lambda context: Reciprocal(context.graph.label))


@_rule("Gelu")
def _gelu(context: Context, x: Value) -> Value:
    kinds: dict[bytes, Operator] = {b"none": Gelu(), b"tanh": TanhGelu()}
    kind = context.attributes.get("approximate", b"none")
    if kind not in kinds:
        raise ModelError(f"the approximation {kind!r} is unknown")
    return context.graph.elementwise(kinds[kind], _variable(x))


@_rule("Clip")
def _clip(context: Context, x: Value, low: Value = None, high: Value = None) -> Value:
    least, most = (
        float(context.attributes.get(name, default)) if given is None else float(_real(given).reshape(()))
        for given, name, default in ((low, "min", -math.inf), (high, "max", math.inf))
    )
    # Exporters write "no limit" as the largest float32.
    least = -math.inf if least <= -3.4e38 else least
    most = math.inf if most >= 3.4e38 else most
    if (least, most) == (0, math.inf):
        return context.graph.elementwise(Relu(), _variable(x))
    if (least, most) == (-math.inf, math.inf):
        return _variable(x)
    if not least < most:
        raise ModelError(f"the limits {least} and {most} leave nothing")
    return context.graph.elementwise(Clip(least, most), _variable(x))


@_rule("Max")
def _max(context: Context, *operands: Value) -> Value:
    x, limit = _against_number(operands)
    return context.graph.elementwise(Relu() if limit == 0 else Clip(limit, math.inf), x)


@_rule("Min")
def _min(context: Context, *operands: Value) -> Value:
    x, limit = _against_number(operands)
    return context.graph.elementwise(Clip(-math.inf, limit), x)


def _against_number(operands: tuple[Value, ...]) -> tuple[int, float]:
    variables = [v for v in operands if isinstance(v, int)]
    constants = [v for v in operands if not isinstance(v, int)]
    if len(variables) != 1 or len(constants) != 1 or _real(constants[0]).numel() != 1:
        raise ModelError("supported only between a variable and one constant number")
    return variables[0], float(_real(constants[0]).reshape(()))


@_rule("Softmax")
def _softmax(context: Context, x: Value) -> Value:
    g = context.graph
    shape = g.shape(_variable(x))
    axis = _axis(int(context.attributes.get("axis", -1 if context.opset >= 13 else 1)), len(shape))
    if context.opset >= 13 or axis == len(shape) - 1:
        return g.elementwise(Softmax(axis), _variable(x))
    # Before opset 13 everything from the axis on is one distribution.
    flat = g.reshape(_variable(x), (*shape[:axis], math.prod(shape[axis:])))
    return g.reshape(g.elementwise(Softmax(axis), flat), shape)


def _reduced_axes(context: Context, x: int, given: Value) -> tuple[int, ...]:
    rank = len(context.shape(x))
    chosen = context.axes(given)
    if not chosen:
        return () if context.attributes.get("noop_with_empty_axes") else tuple(range(rank))
    return tuple(sorted({_axis(axis, rank) for axis in chosen}))


@_rule("ReduceSum")
def _reduce_sum(context: Context, x: Value, axes: Value = None) -> Value:
    chosen = _reduced_axes(context, _variable(x), axes)
    return context.graph.total(_variable(x), chosen, bool(context.attributes.get("keepdims", 1)))


@_rule("ReduceMean")
def _reduce_mean(context: Context, x: Value, axes: Value = None) -> Value:
    chosen = _reduced_axes(context, _variable(x), axes)
    return context.graph.total(_variable(x), chosen, bool(context.attributes.get("keepdims", 1)), mean=True)


@_rule("ReduceMax")
def _reduce_max(context: Context, x: Value, axes: Value = None) -> Value:
    chosen = _reduced_axes(context, _variable(x), axes)
    y = context.graph.add(Maximum(chosen), _variable(x))
    if context.attributes.get("keepdims", 1):
        return y
    kept = tuple(size for i, size in enumerate(context.shape(_variable(x))) if i not in chosen)
    return context.graph.reshape(y, kept)


@_rule("Reshape")
def _reshape(context: Context, x: Value, target: Value = None) -> Value:
    shape = context.shape(_variable(x))
    sizes = [int(v) for v in context.attributes["shape"]] if target is None else _integers(target)
    if not context.attributes.get("allowzero"):
        sizes = [shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = math.prod(shape) // known if known else 0
    return context.graph.reshape(_variable(x), tuple(sizes))


@_rule("Flatten")
def _flatten(context: Context, x: Value) -> Value:
    shape = context.shape(_variable(x))
    axis = int(context.attributes.get("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return context.graph.reshape(_variable(x), (math.prod(shape[:axis]), math.prod(shape[axis:])))


@_rule("Transpose")
def _transpose(context: Context, x: Value) -> Value:
    rank = len(context.shape(_variable(x)))
    order = tuple(int(v) for v in context.attributes.get("perm", range(rank - 1, -1, -1)))
    if sorted(order) != list(range(rank)):
        raise ModelError(f"permutation {order} of {rank} axes")
    return context.graph.transpose(_variable(x), order)


@_rule("Squeeze")
def _squeeze(context: Context, x: Value, axes: Value = None) -> Value:
    shape = context.shape(_variable(x))
    chosen = context.axes(axes)
    dropped = {i for i, size in enumerate(shape) if size == 1}
    if chosen is not None:
        dropped = {_axis(axis, len(shape)) for axis in chosen}
    return context.graph.reshape(_variable(x), tuple(size for i, size in enumerate(shape) if i not in dropped))


@_rule("Unsqueeze")
def _unsqueeze(context: Context, x: Value, axes: Value = None) -> Value:
    shape = list(context.shape(_variable(x)))
    chosen = context.axes(axes) or []
    rank = len(shape) + len(chosen)
    for axis in sorted(_axis(axis, rank) for axis in chosen):
        shape.insert(axis, 1)
    return context.graph.reshape(_variable(x), tuple(shape))


@_rule("Expand")
def _expand(context: Context, x: Value, target: Value) -> Value:
    shape = broadcast(context.shape(_variable(x)), tuple(_integers(target)))
    return context.graph.expand(_variable(x), shape)


@_rule("Concat")
def _concat(context: Context, *operands: Value) -> Value:
    variables = [v for v in operands if isinstance(v, int)]
    rank = len(context.shape(variables[0]))
    axis = _axis(int(context.attributes.get("axis", 1)), rank)
    parts = tuple(None if isinstance(v, int) else _real(v) for v in operands)
    return variables[0] if len(operands) == 1 else context.graph.add(Concat(axis, parts), *variables)


@_rule("Slice")
def _slice(
    context: Context,
    x: Value,
    starts: Value = None,
    ends: Value = None,
    axes: Value = None,
    steps: Value = None,
) -> Value:
    attributes = context.attributes
    shape = context.shape(_variable(x))
    first = [int(v) for v in attributes["starts"]] if starts is None else _integers(starts)
    last = [int(v) for v in attributes["ends"]] if ends is None else _integers(ends)
    chosen = context.axes(axes)
    chosen = list(range(len(first))) if chosen is None else chosen
    stride = [1] * len(first) if steps is None else _integers(steps)
    if not len(first) == len(last) == len(chosen) == len(stride):
        raise ModelError("starts, ends, axes and steps have different lengths")
    y = _variable(x)
    ranges = [(0, size, 1) for size in shape]
    for start, stop, axis, step in zip(first, last, chosen, stride):
        if step == 0:
            raise ModelError("a slice with step 0")
        axis = _axis(axis, len(shape))
        picked = range(*slice(start, stop, step).indices(shape[axis]))
        if not picked:
            raise ModelError(f"the slice {start}:{stop}:{step} of axis {axis} is empty")
        if step > 0:
            ranges[axis] = (picked.start, picked.stop, picked.step)
        else:
            y = context.graph.add(Gather(axis, torch.tensor(list(picked))), y)
    if all(part == (0, size, 1) for part, size in zip(ranges, shape)):
        return y
    # A reversed axis has already been picked from; its range covers what is left of it.
    sizes = context.shape(y)
    ranges = [part if part != (0, old, 1) else (0, new, 1) for part, old, new in zip(ranges, shape, sizes)]
    return context.graph.add(Slice(tuple(ranges)), y)


@_rule("Split")
def _split(context: Context, x: Value, sizes: Value = None) -> tuple[Value, ...]:
    shape = context.shape(_variable(x))
    axis = _axis(int(context.attributes.get("axis", 0)), len(shape))
    if sizes is not None:
        parts = _integers(sizes)
    elif "split" in context.attributes:
        parts = [int(v) for v in context.attributes["split"]]
    else:
        each = -(-shape[axis] // context.outputs)
        parts = [min(each, shape[axis] - i * each) for i in range(context.outputs)]
    if sum(parts) != shape[axis] or min(parts) < 1 or len(parts) != context.outputs:
        raise ModelError(f"cannot split {shape[axis]} entries into {parts}")
    results = []
    start = 0
    for size in parts:
        ranges = [(0, full, 1) for full in shape]
        ranges[axis] = (start, start + size, 1)
        results.append(context.graph.add(Slice(tuple(ranges)), _variable(x)))
        start += size
    return tuple(results)


@_rule("Gather")
def _gather(context: Context, x: Value, indices: Value) -> Value:
    shape = context.shape(_variable(x))
    axis = _axis(int(context.attributes.get("axis", 0)), len(shape))
    positions = _integers(indices)
    if any(not -shape[axis] <= i < shape[axis] for i in positions):
        raise ModelError(f"an index is outside the {shape[axis]} entries of axis {axis}")
    picked = context.graph.add(Gather(axis, torch.tensor([i % shape[axis] for i in positions])), _variable(x))
    return context.graph.reshape(picked, (*shape[:axis], *_shape(context.graph, indices), *shape[axis + 1 :]))
