"""One rule per ONNX operator: what it becomes in the graph when at least one input is variable.

Every rule declares the versions of the operator that it implements and the attributes and numbers of inputs and outputs
it understands. Whatever a file uses beyond that is refused, so that nothing is read by the rules of another version.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from ..errors import ModelError
from ..graph.broadcast import broadcast
from ..graph.builder import GraphBuilder, check_size
from ..graph.operator import Operator, Shape
from ..graph.ops.centre import Centre
from ..graph.ops.clip import Clip
from ..graph.ops.concat import Concat
from ..graph.ops.conv import Conv
from ..graph.ops.cube import Cube
from ..graph.ops.erf import Erf
from ..graph.ops.exp import Exp
from ..graph.ops.gather import Gather
from ..graph.ops.gelu import Gelu, TanhGelu
from ..graph.ops.guard import Above, Guard, Undefined
from ..graph.ops.log import Log
from ..graph.ops.power import Power
from ..graph.ops.reciprocal import Reciprocal
from ..graph.ops.relu import LeakyRelu, Relu
from ..graph.ops.rsqrt import Rsqrt
from ..graph.ops.sigmoid import Sigmoid
from ..graph.ops.sine import Cosine, Sine
from ..graph.ops.slice import Slice
from ..graph.ops.softmax import Softmax
from ..graph.ops.softplus import Softplus, StraightSoftplus
from ..graph.ops.sqrt import Sqrt
from ..graph.ops.square import Square
from ..graph.ops.tanh import Tanh

# A variable is a position in the graph, a constant an array, an absent optional input None.
Value = int | np.ndarray | None

_KINDS = onnx.AttributeProto
FLOAT, INT, INTS, STRING = (int(kind) for kind in (_KINDS.FLOAT, _KINDS.INT, _KINDS.INTS, _KINDS.STRING))
MANY = 1 << 31
MOST_AXES = 64


# Attributes that say yes or no. What another number than 0 and 1 says, runtimes do not agree on.
FLAGS = frozenset(
    [
        "allowzero",
        "antialias",
        "ceil_mode",
        "count_include_pad",
        "exclude_outside",
        "interleaved",
        "is_causal",
        "keepdims",
        "noop_with_empty_axes",
        "saturate",
        "spatial",
        "storage_order",
        "training_mode",
        "transA",
        "transB",
    ]
)


@dataclass(frozen=True)
class Context:
    """What a rule works with besides its inputs: attributes hold the defaults of the version in force."""

    graph: GraphBuilder
    attributes: dict[str, Any]
    version: int  # of the operator, not of the operator set
    outputs: int
    dtypes: set[int]  # in which variables have been computed so far

    def shape(self, x: int) -> Shape:
        """The shape of a variable tensor, without the batch."""
        return self.graph.shape(x)

    def axes(self, given: Value) -> list[int] | None:
        """Axes stand in an input or, in older files, in an attribute."""
        if given is not None:
            return integers(given)
        axes = self.attributes.get("axes")
        return None if axes is None else [int(axis) for axis in axes]


Translate = Callable[..., "Value | tuple[Value, ...]"]


@dataclass(frozen=True)
class Rule:
    """An operator as far as it is implemented; ``versions`` are those in which the standard changed it."""

    translate: Translate
    versions: frozenset[int]
    inputs: tuple[int, int]
    outputs: int
    attributes: dict[str, int]

    def apply(
        self, node: Any, arguments: list[Value], graph: GraphBuilder, opset: int, dtypes: set[int]
    ) -> list[Value]:
        """Translates a node; refused where version, attributes or operands are not those of the rule."""
        schema = schema_of(node.op_type, opset)
        if schema.since_version not in self.versions:
            known = ", ".join(map(str, sorted(self.versions)))
            raise ModelError(f"version {schema.since_version} of this operator is not supported, only {known}")
        attributes = self._attributes(node, schema)
        least, most = max(self.inputs[0], schema.min_input), min(self.inputs[1], schema.max_input)
        given = len(arguments)
        if not least <= given <= most or any(value is None for value in arguments[:least]):
            raise ModelError(f"{given} inputs, some perhaps left out; it takes {least} to {most}")
        if not 1 <= len(node.output) <= self.outputs:
            raise ModelError(f"{len(node.output)} outputs; at most {self.outputs} are supported")
        context = Context(graph, attributes, schema.since_version, len(node.output), dtypes)
        result = self.translate(context, *arguments)
        return list(result) if isinstance(result, tuple) else [result]

    def _attributes(self, node: Any, schema: Any) -> dict[str, Any]:
        """Those of the node over the defaults of the standard, which are numbers in single precision."""
        found = {
            name: onnx.helper.get_attribute_value(entry.default_value)
            for name, entry in schema.attributes.items()
            if entry.default_value.name
        }
        given = [attribute.name for attribute in node.attribute]
        for attribute in node.attribute:
            kind = self.attributes.get(attribute.name)
            if kind is None or attribute.name not in schema.attributes or given.count(attribute.name) > 1:
                raise ModelError(f"the attribute {attribute.name!r} is unknown, not supported or given twice")
            if attribute.type != kind or attribute.ref_attr_name:
                raise ModelError(f"the attribute {attribute.name!r} is of the wrong type")
            found[attribute.name] = onnx.helper.get_attribute_value(attribute)
            if attribute.name in FLAGS and found[attribute.name] not in (0, 1):
                raise ModelError(f"the attribute {attribute.name!r} is neither 0 nor 1")
        missing = [name for name, entry in schema.attributes.items() if entry.required and name not in found]
        if missing:
            raise ModelError(f"the attribute {missing[0]!r} is missing")
        return found


def schema_of(operator: str, opset: int) -> Any:
    """What the standard says about an operator in a version of the operator set."""
    try:
        schema = onnx.defs.get_schema(operator, opset, "")
    except Exception:
        raise ModelError(f"the operator set {opset} has no such operator") from None
    if schema.deprecated:
        raise ModelError(f"this operator is deprecated in the operator set {opset}")
    return schema


RULES: dict[str, Rule] = {}


def rule(
    *names: str,
    versions: tuple[int, ...],
    inputs: int | tuple[int, int] = 1,
    outputs: int = 1,
    attributes: dict[str, int] | None = None,
) -> Callable[[Translate], Translate]:
    """Register a rule for operators that are declared alike."""

    def register(translate: Translate) -> Translate:
        numbers = (inputs, inputs) if isinstance(inputs, int) else inputs
        made = Rule(translate, frozenset(versions), numbers, outputs, attributes or {})
        RULES.update(dict.fromkeys(names, made))
        return translate

    return register


def real(value: Value, masks: bool = False) -> Tensor:
    """A constant of finite numbers as float64; with ``masks`` also -inf, which a softmax turns into 0."""
    if not isinstance(value, np.ndarray):
        raise ModelError("an input that must be constant depends on the network input")
    if value.dtype.kind not in "fiub":
        raise ModelError(f"a constant of type {value.dtype} is no number")
    check_size(value.shape)
    return _finite(torch.from_numpy(np.array(value, dtype=np.float64)), masks)


def _finite(constant: Tensor, masks: bool = False) -> Tensor:
    allowed = constant.isfinite() | (constant.isneginf() if masks else False)
    if not bool(allowed.all()):
        raise ModelError("a constant is infinite or not a number")
    return constant


def number(value: Value) -> float:
    """A constant with a single entry, possibly infinite."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub" or value.size != 1:
        raise ModelError("a single constant number is expected")
    found = float(value.reshape(()))
    if math.isnan(found):
        raise ModelError("a constant is not a number")
    return found


def integers(value: Value) -> list[int]:
    """A shape, or axes, or something else with at most one entry per axis."""
    found = positions(value)
    if found.size > MOST_AXES:
        raise ModelError(f"{found.size} sizes or axes; at most {MOST_AXES} are read")
    return [int(item) for item in found.reshape(-1)]


def positions(value: Value) -> np.ndarray:
    """A constant array of whole numbers; refused where it is missing or depends on the input."""
    if not isinstance(value, np.ndarray):
        raise ModelError("a shape, axis or index is missing or depends on the network input")
    if value.dtype.kind not in "iu":
        raise ModelError(f"a shape, axis or index of type {value.dtype}")
    return value


def variable(value: Value) -> int:
    """The index of a tensor that depends on the input; refused where it is constant."""
    if not isinstance(value, int):
        raise ModelError("a constant stands where the variable input is expected")
    return value


def shape_of(graph: GraphBuilder, value: Value) -> Shape:
    """Of a variable or a constant alike."""
    return graph.shape(value) if isinstance(value, int) else tuple(np.asarray(value).shape)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front; refused where there is no such axis."""
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} of a value with {rank} dimensions")
    return axis % rank


def _distinct_axes(axes: list[int], rank: int) -> tuple[int, ...]:
    found = sorted(axis_of(axis, rank) for axis in axes)
    if len(set(found)) < len(found):
        raise ModelError(f"an axis stands twice in {axes}")
    return tuple(found)


@rule("Shape", versions=(1, 13, 15, 19, 21, 23, 24, 25), attributes={"start": INT, "end": INT})
def _shape_of(context: Context, x: Value) -> Value:
    """Static although the value is not."""
    shape = context.shape(variable(x))
    return np.array(
        shape[context.attributes.get("start", 0) : context.attributes.get("end", len(shape))], dtype=np.int64
    )


@rule("Size", versions=(1, 13, 19, 21, 23, 24, 25))
def _size_of(context: Context, x: Value) -> Value:
    return np.array(math.prod(context.shape(variable(x))), dtype=np.int64)


@rule("Identity", versions=(1, 13, 14, 16, 19, 21, 23, 24, 25))
def _identity(context: Context, x: Value) -> Value:
    return variable(x)


@rule("Dropout", versions=(7, 10, 12, 13, 22), inputs=(1, 3), outputs=2, attributes={"ratio": FLOAT, "seed": INT})
def _dropout(context: Context, x: Value, ratio: Value = None, training: Value = None) -> Value:
    """Nothing, where it is not trained; the second output is a mask that nobody may use."""
    if training is not None and (not isinstance(training, np.ndarray) or training.any()):
        raise ModelError("dropout in training mode is random; export the model in evaluation mode")
    return variable(x)


@rule("Cast", versions=(6, 9, 13, 19, 21, 23, 24, 25), attributes={"to": INT, "saturate": INT, "round_mode": STRING})
def _cast(context: Context, x: Value) -> Value:
    """Between single and double precision, which round what the graph says in real numbers; nothing shorter."""
    if context.attributes["to"] not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise ModelError("casting a variable to anything but float and double is not supported")
    context.dtypes.add(context.attributes["to"])
    return variable(x)


@rule("Add", versions=(7, 13, 14), inputs=2)
@rule("Sum", versions=(8, 13), inputs=(1, MANY))
def _add(context: Context, *operands: Value) -> Value:
    first, *others = (v for v in operands if isinstance(v, int))
    total = first
    for variable in others:
        total = context.graph.sum_of(total, variable)
    for constant in (v for v in operands if not isinstance(v, int)):
        total = context.graph.scale(total, 1.0, real(constant, masks=True))
    return total


@rule("Sub", versions=(7, 13, 14), inputs=2)
def _sub(context: Context, a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return context.graph.difference(a, b)
    if isinstance(a, int):
        return context.graph.scale(a, 1.0, -real(b))
    return context.graph.scale(variable(b), -1.0, real(a, masks=True))


@rule("Neg", versions=(6, 13))
def _neg(context: Context, x: int) -> Value:
    return context.graph.scale(x, -1.0)


@rule("Mul", versions=(7, 13, 14), inputs=2)
def _mul(context: Context, a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return context.graph.product(a, b)
    if isinstance(a, int):
        return context.graph.scale(a, real(b))
    return context.graph.scale(variable(b), real(a))


@rule("Div", versions=(7, 13, 14), inputs=2)
def _div(context: Context, a: Value, b: Value) -> Value:
    if not isinstance(b, int):
        divisor = real(b)
        if bool((divisor == 0).any()):
            raise ModelError("division by a constant 0")
        return context.graph.scale(variable(a), _finite(1 / divisor))
    inverse = context.graph.elementwise(Reciprocal(context.graph.label), b)
    return context.graph.product(a, inverse) if isinstance(a, int) else context.graph.scale(inverse, real(a))


@rule("Pow", versions=(7, 12, 13, 15), inputs=2)
def _pow(context: Context, x: Value, exponent: Value) -> Value:
    """A power with one of the exponents that are relaxed."""
    powers = set(real(exponent).reshape(-1).tolist())
    if len(powers) != 1:
        raise ModelError("exponents that differ from entry to entry; only one constant exponent is supported")
    label, power = context.graph.label, powers.pop()
    known: dict[float, Operator] = {
        3.0: Cube(),
        2.0: Square(),
        0.5: Sqrt(label),
        -0.5: Rsqrt(label),
        -1.0: Reciprocal(label),
    }
    y = stretched(context.graph, variable(x), exponent)
    if power in (0.0, 1.0):
        return context.graph.scale(y, power, 1 - power)
    return context.graph.elementwise(known.get(power) or Power(power, label), y)


def stretched(graph: GraphBuilder, x: int, constant: Value) -> int:
    """``x`` in the shape that a constant of a larger shape gives it."""
    return graph.expand(x, broadcast(graph.shape(x), shape_of(graph, constant)))


@rule("Where", versions=(9, 16), inputs=3)
def _where(context: Context, condition: Value, a: Value, b: Value) -> Value:
    """With a constant condition a selection: variables times their mask, plus the constants chosen."""
    if isinstance(condition, int):
        return _guard(context, condition, a, b)
    chosen = real(condition) != 0
    shape = broadcast(tuple(chosen.shape), *(shape_of(context.graph, v) for v in (a, b)))
    context.graph.check_constants(shape)
    shift = torch.zeros(shape, dtype=torch.float64)
    variables = []
    for value, mask in ((a, chosen), (b, ~chosen)):
        if isinstance(value, int):
            variables.append((value, mask.double()))
        else:
            shift = torch.where(mask, real(value, masks=True), shift)
    if len(variables) == 1:  # in one step, so that a mask is seen as what it is
        return context.graph.scale(*variables[0], shift)
    total, other = (context.graph.expand(context.graph.scale(v, mask), shape) for v, mask in variables)
    return context.graph.sum_of(total, other)


@rule("IsNaN", versions=(9, 13, 20))
def _is_nan(context: Context, x: Value) -> Value:
    """Only a guard may ask for it."""
    return context.graph.add(Undefined(), variable(x))


CASES = "it tells cases apart: write them with relu, clip, max or min, and softplus(x) as -logsigmoid(-x)"


@rule("Greater", versions=(7, 9, 13), inputs=2)
def _greater(context: Context, x: Value, threshold: Value) -> Value:
    """Only the two cases of a softplus may ask for it."""
    if not isinstance(x, int) or isinstance(threshold, int) or real(threshold).numel() != 1:
        raise ModelError(CASES)
    return context.graph.add(Above(float(real(threshold))), x)


def _cases(context: Context, above: Above, x: int, a: Value, b: Value) -> Value:
    """``where(x > threshold, x, softplus(x))``, as torch exports it."""
    node = context.graph.nodes[variable(b)]
    if a != x or not isinstance(node.operator, Softplus) or node.inputs != (x,):
        raise ModelError(CASES)
    return context.graph.add(StraightSoftplus(above.threshold), x)


def _guard(context: Context, condition: int, a: Value, b: Value) -> Value:
    """``where(isnan(x), 0, x)``, which a softmax behind it explains, or the two cases of a softplus."""
    node = context.graph.nodes[condition] if condition >= 0 else None
    if node is not None and isinstance(node.operator, Above):
        return _cases(context, node.operator, node.inputs[0], a, b)
    if node is None or not isinstance(node.operator, Undefined) or node.inputs != (b,):
        raise ModelError("its condition depends on the network input; only where(isnan(p), 0, p) is supported")
    shape = context.graph.shape(variable(b))
    if isinstance(a, int) or bool(real(a).any()) or broadcast(shape_of(context.graph, a), shape) != shape:
        raise ModelError("what stands for a missing number must be 0")
    return context.graph.add(Guard(), variable(b))


def _product_of_matrices(g: GraphBuilder, a: Value, b: Value) -> int:
    """A vector counts as a matrix of one row on the left, of one column on the right."""
    a_shape, b_shape = shape_of(g, a), shape_of(g, b)
    if len(a_shape) == 1:
        a = _reshaped(g, a, (1, *a_shape))
    if len(b_shape) == 1:
        b = _reshaped(g, b, (*b_shape, 1))
    if isinstance(a, int) and isinstance(b, int):
        y = g.matmul(a, b)
    elif isinstance(a, int):
        y = g.linear(a, real(b))
    else:
        y = g.linear(variable(b), real(a), left=True)
    shape = g.shape(y)
    if len(b_shape) == 1:
        shape = shape[:-1]
    if len(a_shape) == 1:
        shape = (*shape[: len(g.shape(y)) - 2], *shape[len(g.shape(y)) - 1 :])
    return g.reshape(y, shape)


@rule("MatMul", versions=(1, 9, 13), inputs=2)
def _matmul(context: Context, a: Value, b: Value) -> Value:
    return _product_of_matrices(context.graph, a, b)


def _reshaped(graph: GraphBuilder, value: Value, shape: Shape) -> Value:
    return graph.reshape(value, shape) if isinstance(value, int) else np.reshape(np.asarray(value), shape)


@rule(
    "Gemm",
    versions=(7, 9, 11, 13),
    inputs=(2, 3),
    attributes={"alpha": FLOAT, "beta": FLOAT, "transA": INT, "transB": INT},
)
def _gemm(context: Context, a: Value, b: Value, c: Value = None) -> Value:
    """``alpha A B + beta C`` with optional transposes."""
    g, attributes = context.graph, context.attributes
    alpha, beta = float(attributes["alpha"]), float(attributes["beta"])
    if any(len(shape_of(g, factor)) != 2 for factor in (a, b)):
        raise ModelError("its factors are not matrices")
    if attributes["transA"]:
        a = g.transpose(a, (1, 0)) if isinstance(a, int) else np.asarray(a).T
    if attributes["transB"]:
        b = g.transpose(b, (1, 0)) if isinstance(b, int) else np.asarray(b).T
    y = g.scale(_product_of_matrices(g, a, b), alpha)
    if c is None:
        return y
    if broadcast(g.shape(y), shape_of(g, c)) != g.shape(y):
        raise ModelError(f"a summand of shape {shape_of(g, c)} does not fit a product of shape {g.shape(y)}")
    return g.sum_of(y, g.scale(c, beta)) if isinstance(c, int) else g.scale(y, 1.0, beta * real(c))


@rule("Einsum", versions=(12,), inputs=(1, 26), attributes={"equation": STRING})
def _einsum(context: Context, *operands: Value) -> Value:
    """Transposes and sums bring any two-operand einsum into the form of a batched matrix product."""
    g = context.graph
    text = context.attributes["equation"].decode().replace(" ", "")
    shapes = [shape_of(g, v) for v in operands]
    terms, result = _einsum_terms(text, shapes)
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes):
        for letter, length in zip(term, shape):
            if sizes.setdefault(letter, length) != length:
                raise ModelError(f"einsum {text!r}: index {letter!r} has sizes {sizes[letter]} and {length}")
    values = [v if isinstance(v, int) else real(v).numpy() for v in operands]
    if len(operands) == 1:
        x, term = _sum_letters(g, values[0], terms[0], set(result))
        return g.transpose(variable(x), tuple(term.index(letter) for letter in result))
    left, right = set(terms[0]), set(terms[1])
    a, first = _sum_letters(g, values[0], terms[0], right | set(result))
    b, second = _sum_letters(g, values[1], terms[1], left | set(result))
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
        raise ModelError(f"einsum {text!r} with {len(shapes)} operands; write it as several of two")
    letters = "".join((*terms, result)).replace("...", "")
    if not all(c.isascii() and c.isalpha() for c in letters):
        raise ModelError(f"einsum {text!r}: only letters and ellipses are supported")
    spare = [chr(code) for code in range(0x391, 0x391 + MOST_AXES)]
    widths = {len(shape) - len(term.replace("...", "")) for term, shape in zip(terms, shapes) if "..." in term}
    if len(widths) > 1 or any(not 0 <= width <= len(spare) for width in widths):
        raise ModelError(f"einsum {text!r}: the ellipses stand for different numbers of axes")
    if arrow and ("..." in result) != bool(widths):
        raise ModelError(f"einsum {text!r}: an ellipsis must stand on both sides")
    dots = "".join(spare[: widths.pop()]) if widths else ""
    terms = [term.replace("...", dots) for term in terms]
    if not arrow:
        if not letters.islower() and letters:  # whether A comes before b is a matter of taste among runtimes
            raise ModelError(f"einsum {text!r}: write the result after '->'")
        joined = "".join(terms)
        result = dots + "".join(sorted(k for k in set(joined) - set(dots) if joined.count(k) == 1))
    result = result.replace("...", dots)
    for term, shape in zip(terms, shapes):
        if len(term) != len(shape):
            raise ModelError(f"einsum {text!r}: an operand has {len(shape)} axes and {len(term)} indices")
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


WINDOW = {"kernel_shape": INTS, "strides": INTS, "pads": INTS, "dilations": INTS, "auto_pad": STRING}


@rule("Conv", versions=(1, 11, 22), inputs=(2, 3), attributes={**WINDOW, "group": INT})
def _conv(context: Context, x: Value, kernel: Value, bias: Value = None) -> Value:
    """A convolution with a constant kernel over one to three axes."""
    weights = real(kernel)
    size = tuple(weights.shape[2:])
    if not 1 <= len(size) <= 3:
        raise ModelError(f"convolution over {len(size)} axes")
    if tuple(context.attributes.get("kernel_shape", size)) != size:
        raise ModelError(f"a kernel of shape {size} that declares another one")
    strides, pads, dilations = window(context, context.shape(variable(x))[2:], size)
    groups = int(context.attributes["group"])
    shift = None if bias is None else real(bias)
    if groups < 1 or (shift is not None and tuple(shift.shape) != (weights.shape[0],)):
        raise ModelError(f"{groups} groups, or a bias that does not have one entry per channel")
    return context.graph.add(Conv(weights, shift, strides, pads, dilations, groups), variable(x))


def window(context: Context, space: Shape, kernel: Shape) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, pads (all fronts, then all backs) and dilations of a convolution or pooling."""
    ones = (1,) * len(kernel)
    strides = tuple(int(v) for v in context.attributes.get("strides", ones))
    dilations = tuple(int(v) for v in context.attributes.get("dilations", ones))
    pads = tuple(int(v) for v in context.attributes.get("pads", (0,) * (2 * len(kernel))))
    if len(space) != len(kernel) or not len(strides) == len(dilations) == len(kernel) == len(pads) / 2:
        raise ModelError(f"kernel {kernel}, strides {strides} and pads {pads} do not fit an input {space}")
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise ModelError(f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads} are out of range")
    mode = context.attributes["auto_pad"]
    if mode == b"NOTSET":
        return strides, pads, dilations
    if any(pads):
        raise ModelError(f"auto_pad {mode!r} and pads exclude each other")
    if mode == b"VALID":
        return strides, pads, dilations
    if mode not in (b"SAME_UPPER", b"SAME_LOWER"):
        raise ModelError(f"auto_pad {mode!r} is unknown")
    # Where windows leave gaps or entries between them, runtimes and the standard disagree about the padding.
    if max(dilations) > 1 or any(stride > k for stride, k in zip(strides, kernel)):
        raise ModelError(f"auto_pad {mode!r} with dilations, or with strides larger than the kernel")
    front, back = [], []
    for size, k, stride in zip(space, kernel, strides):
        missing = max(0, (-(-size // stride) - 1) * stride + k - size)
        front.append(missing // 2 if mode == b"SAME_UPPER" else missing - missing // 2)
        back.append(missing - front[-1])
    return strides, (*front, *back), dilations


@rule(
    "AveragePool",
    versions=(7, 10, 11, 19, 22),
    attributes={**WINDOW, "ceil_mode": INT, "count_include_pad": INT},
)
def _average_pool(context: Context, x: Value) -> Value:
    """A convolution with ones, each position divided by the number of entries it averages."""
    g = context.graph
    shape = g.shape(variable(x))
    kernel = tuple(int(v) for v in context.attributes["kernel_shape"])
    if not 1 <= len(kernel) <= 3:
        raise ModelError(f"pooling over {len(kernel)} axes")
    strides, pads, dilations = window(context, shape[2:], kernel)
    rank = len(kernel)
    if max(dilations) > 1:
        raise ModelError("dilated pooling, which runtimes compute in different ways")
    if any(pads[i] >= kernel[i % rank] for i in range(2 * rank)):
        raise ModelError(f"pads {pads} at least as large as the kernel {kernel}")
    steps = []
    for i in range(rank):
        over = shape[2 + i] + pads[i] + pads[rank + i] - kernel[i]
        ceil = bool(context.attributes.get("ceil_mode"))
        step = -(-over // strides[i]) if ceil else over // strides[i]
        if ceil and step * strides[i] >= shape[2 + i] + pads[i]:  # a window may not start in the padding behind
            step -= 1
        if min(over, step) < 0:
            raise ModelError(f"a kernel {kernel} that does not fit into the padded input {shape}")
        steps.append(step + 1)
    # Windows that reach beyond the padding see zeros there, too, which are never counted.
    reach = (max(pads[rank + i], (steps[i] - 1) * strides[i] + kernel[i] - shape[2 + i] - pads[i]) for i in range(rank))
    g.check_constants((shape[1], *kernel))
    ones = torch.ones((shape[1], 1, *kernel), dtype=torch.float64)
    y = g.add(Conv(ones, None, strides, (*pads[:rank], *reach), dilations, shape[1]), variable(x))
    g.check_constants(tuple(steps))
    count = torch.ones(tuple(steps), dtype=torch.float64)
    for i in range(rank):
        starts = torch.arange(steps[i], dtype=torch.float64) * strides[i] - pads[i]
        least, most = 0, shape[2 + i]
        if context.attributes["count_include_pad"]:
            least, most = -pads[i], shape[2 + i] + pads[rank + i]
        along = (starts + kernel[i]).clamp(max=most) - starts.clamp(min=least)
        count = count * along.reshape(-1, *(1,) * (rank - 1 - i))
    return g.scale(y, _finite(1 / count))


@rule("GlobalAveragePool", versions=(1, 22))
def _global_average_pool(context: Context, x: Value) -> Value:
    rank = len(context.shape(variable(x)))
    if rank < 3:
        raise ModelError(f"pooling of a value with {rank} dimensions")
    return context.graph.total(variable(x), tuple(range(2, rank)), mean=True)


@rule(
    "BatchNormalization",
    versions=(7, 9, 14, 15),
    inputs=5,
    attributes={"epsilon": FLOAT, "momentum": FLOAT, "spatial": INT, "training_mode": INT},
)
def _batch_normalization(context: Context, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Value:
    """A batch normalisation in evaluation mode, as two affine steps."""
    if context.attributes.get("training_mode") or not context.attributes.get("spatial", 1):
        raise ModelError("it depends on the batch or on the place; export the model in evaluation mode")
    shape = context.shape(variable(x))
    constants = [real(value) for value in (scale, bias, mean, variance)]
    if len(shape) < 2 or any(tuple(constant.shape) != (shape[1],) for constant in constants):
        raise ModelError(f"its constants do not have one entry for each channel of an input {shape}")
    factor, shift, centre, spread = (c.reshape(-1, *(1,) * (len(shape) - 2)) for c in constants)
    factor = _finite(factor / torch.sqrt(spread + float(context.attributes["epsilon"])))
    # In two steps no constant is off by more than a share of itself; one shift for both could cancel.
    return context.graph.scale(context.graph.scale(variable(x), 1.0, -centre), factor, shift)


@rule(
    "LayerNormalization",
    versions=(17,),
    inputs=(2, 3),
    attributes={"axis": INT, "epsilon": FLOAT, "stash_type": INT},
)
def _layer_normalization(context: Context, x: Value, scale: Value, bias: Value = None) -> Value:
    """Centre, square, mean, reciprocal root, product: the only product of two variables is the last."""
    g = context.graph
    shape = g.shape(variable(x))
    if context.attributes["stash_type"] not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise ModelError("a mean in anything but float or double is not supported")
    axes = tuple(range(axis_of(int(context.attributes["axis"]), len(shape)), len(shape)))
    constants = [real(value) for value in (scale, bias) if value is not None]
    if any(tuple(constant.shape) != shape[axes[0] :] for constant in constants):
        raise ModelError(f"its constants do not have the shape {shape[axes[0] :]} of what it normalises")
    centred = g.add(Centre(axes), variable(x))
    variance = g.total(g.elementwise(Square(), centred), axes, mean=True)
    steadied = g.scale(variance, 1.0, float(context.attributes["epsilon"]))
    y = g.product(centred, g.elementwise(Rsqrt(g.label), steadied))
    return g.scale(y, *constants)


def activation(name: str, versions: tuple[int, ...], make: Callable[[Context], Operator], **attributes: int) -> None:
    """Registers a rule for an operator that acts on single entries."""

    @rule(name, versions=versions, attributes=attributes)
    def translate(context: Context, x: Value) -> Value:
        return context.graph.elementwise(make(context), variable(x))


activation("Relu", (6, 13, 14), lambda context: Relu())
activation("LeakyRelu", (6, 16), lambda context: LeakyRelu(finite_attribute(context, "alpha")), alpha=FLOAT)
activation("Sigmoid", (6, 13), lambda context: Sigmoid())
activation("Tanh", (6, 13), lambda context: Tanh())
activation("Erf", (9, 13), lambda context: Erf())
activation("Sin", (7, 22), lambda context: Sine())
activation("Cos", (7, 22), lambda context: Cosine())
activation("Exp", (6, 13), lambda context: Exp())
activation("Log", (6, 13), lambda context: Log(context.graph.label))
activation("Sqrt", (6, 13), lambda context: Sqrt(context.graph.label))
activation("Reciprocal", (6, 13), lambda context: Reciprocal(context.graph.label))


def finite_attribute(context: Context, name: str) -> float:
    """A real attribute; refused where it is infinite or not a number."""
    value = float(context.attributes[name])
    if not math.isfinite(value):
        raise ModelError(f"the attribute {name!r} is infinite or not a number")
    return value


@rule("Gelu", versions=(20,), attributes={"approximate": STRING})
def _gelu(context: Context, x: Value) -> Value:
    kinds: dict[bytes, Operator] = {b"none": Gelu(), b"tanh": TanhGelu()}
    kind = context.attributes["approximate"]
    if kind not in kinds:
        raise ModelError(f"the approximation {kind!r} is unknown")
    return context.graph.elementwise(kinds[kind], variable(x))


@rule("Clip", versions=(6, 11, 12, 13), inputs=(1, 3), attributes={"min": FLOAT, "max": FLOAT})
def _clip(context: Context, x: Value, low: Value = None, high: Value = None) -> Value:
    least, most = (_limit(context, *limit) for limit in (("min", low, -1), ("max", high, 1)))
    return clipped(context.graph, variable(x), least, most)


def _limit(context: Context, name: str, given: Value, side: int) -> float:
    """A limit that is left out is the largest number of the dtype, and brings an infinity back to it."""
    if given is not None:
        return number(given)
    if name in context.attributes:
        return float(context.attributes[name])
    if len(context.dtypes) > 1:
        raise ModelError("a limit that is left out depends on the dtype, which the network changes; write it out")
    (dtype,) = context.dtypes
    return side * float(np.finfo(onnx.helper.tensor_dtype_to_np_dtype(dtype)).max)


def clipped(graph: GraphBuilder, x: int, least: float, most: float) -> int:
    """Limits are taken as written: the largest float is one, too, and a network may reach it."""
    if not least < most or math.inf in (least, -most):
        raise ModelError(f"the limits {least} and {most} leave nothing")
    if (least, most) == (-math.inf, math.inf):
        return x
    return graph.elementwise(Relu() if (least, most) == (0, math.inf) else Clip(least, most), x)


@rule("Softmax", versions=(1, 11, 13), attributes={"axis": INT})
def _softmax(context: Context, x: Value) -> Value:
    g = context.graph
    shape = g.shape(variable(x))
    axis = axis_of(int(context.attributes["axis"]), len(shape))
    if context.version >= 13 or axis == len(shape) - 1:
        return g.elementwise(Softmax(axis), variable(x))
    # Before version 13 everything from the axis on is one distribution.
    flat = g.reshape(variable(x), (*shape[:axis], math.prod(shape[axis:])))
    return g.reshape(g.elementwise(Softmax(axis), flat), shape)


REDUCTION = {"axes": INTS, "keepdims": INT, "noop_with_empty_axes": INT}


def reduced_axes(context: Context, x: int, given: Value) -> tuple[int, ...]:
    """The axes of a reduction; by default all of them, or none where the node says so."""
    rank = len(context.shape(x))
    chosen = context.axes(given)
    if not chosen:
        return () if context.attributes.get("noop_with_empty_axes") else tuple(range(rank))
    return _distinct_axes(chosen, rank)


@rule("ReduceSum", versions=(1, 11, 13), inputs=(1, 2), attributes=REDUCTION)
def _reduce_sum(context: Context, x: Value, axes: Value = None) -> Value:
    chosen = reduced_axes(context, variable(x), axes)
    return context.graph.total(variable(x), chosen, bool(context.attributes["keepdims"]))


@rule("ReduceMean", versions=(1, 11, 13, 18), inputs=(1, 2), attributes=REDUCTION)
def _reduce_mean(context: Context, x: Value, axes: Value = None) -> Value:
    chosen = reduced_axes(context, variable(x), axes)
    return context.graph.total(variable(x), chosen, bool(context.attributes["keepdims"]), mean=True)


@rule("Reshape", versions=(5, 13, 14, 19, 21, 23, 24, 25), inputs=2, attributes={"allowzero": INT})
def _reshape(context: Context, x: Value, target: Value) -> Value:
    """A reshape to a constant shape, with 0 and -1 as in the standard."""
    shape = context.shape(variable(x))
    sizes = integers(target)
    if not context.attributes.get("allowzero"):
        if any(size == 0 for size in sizes[len(shape) :]):
            raise ModelError(f"a 0 in the shape {sizes} stands for no axis of {shape}")
        sizes = [shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    rest = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and rest > 0:
        sizes[sizes.index(-1)] = math.prod(shape) // rest
    if min(sizes, default=1) < 1:
        raise ModelError(f"cannot reshape {shape} to {sizes}")
    return context.graph.reshape(variable(x), tuple(sizes))


@rule("Flatten", versions=(1, 9, 11, 13, 21, 23, 24, 25), attributes={"axis": INT})
def _flatten(context: Context, x: Value) -> Value:
    shape = context.shape(variable(x))
    axis = int(context.attributes["axis"])
    if axis != len(shape):
        axis = axis_of(axis, len(shape))
    return context.graph.reshape(variable(x), (math.prod(shape[:axis]), math.prod(shape[axis:])))


@rule("Transpose", versions=(1, 13, 21, 23, 24, 25), attributes={"perm": INTS})
def _transpose(context: Context, x: Value) -> Value:
    rank = len(context.shape(variable(x)))
    order = tuple(int(v) for v in context.attributes.get("perm", range(rank - 1, -1, -1)))
    if sorted(order) != list(range(rank)):
        raise ModelError(f"permutation {order} of {rank} axes")
    return context.graph.transpose(variable(x), order)


@rule("Squeeze", versions=(1, 11, 13, 21, 23, 24, 25), inputs=(1, 2), attributes={"axes": INTS})
def _squeeze(context: Context, x: Value, axes: Value = None) -> Value:
    shape = context.shape(variable(x))
    chosen = context.axes(axes)
    if chosen == []:
        raise ModelError("an empty list of axes may mean none or all")
    dropped = tuple(i for i, size in enumerate(shape) if size == 1)
    if chosen is not None:
        dropped = _distinct_axes(chosen, len(shape))
    return context.graph.reshape(variable(x), tuple(size for i, size in enumerate(shape) if i not in dropped))


@rule("Unsqueeze", versions=(1, 11, 13, 21, 23, 24, 25), inputs=(1, 2), attributes={"axes": INTS})
def _unsqueeze(context: Context, x: Value, axes: Value = None) -> Value:
    shape = list(context.shape(variable(x)))
    chosen = context.axes(axes) or []
    for axis in _distinct_axes(chosen, len(shape) + len(chosen)):
        shape.insert(axis, 1)
    return context.graph.reshape(variable(x), tuple(shape))


@rule("Expand", versions=(8, 13), inputs=2)
def _expand(context: Context, x: Value, target: Value) -> Value:
    sizes = integers(target)
    if min(sizes, default=1) < 1:
        raise ModelError(f"cannot expand to the shape {sizes}")
    return context.graph.expand(variable(x), broadcast(context.shape(variable(x)), tuple(sizes)))


@rule("Concat", versions=(4, 11, 13), inputs=(1, MANY), attributes={"axis": INT})
def _concat(context: Context, *operands: Value) -> Value:
    variables = [v for v in operands if isinstance(v, int)]
    axis = axis_of(int(context.attributes["axis"]), len(context.shape(variables[0])))
    parts = tuple(None if isinstance(v, int) else real(v, masks=True) for v in operands)
    return variables[0] if len(operands) == 1 else context.graph.add(Concat(axis, parts), *variables)


@rule(
    "Slice",
    versions=(1, 10, 11, 13),
    inputs=(1, 5),
    attributes={"starts": INTS, "ends": INTS, "axes": INTS},
)
def _slice(
    context: Context,
    x: Value,
    starts: Value = None,
    ends: Value = None,
    axes: Value = None,
    steps: Value = None,
) -> Value:
    """A constant range of entries along some axes."""
    attributes = context.attributes
    shape = context.shape(variable(x))
    first = [int(v) for v in attributes["starts"]] if starts is None else integers(starts)
    last = [int(v) for v in attributes["ends"]] if ends is None else integers(ends)
    chosen = context.axes(axes)
    chosen = list(range(len(first))) if chosen is None else chosen
    stride = [1] * len(first) if steps is None else integers(steps)
    if not len(first) == len(last) == len(chosen) == len(stride):
        raise ModelError("starts, ends, axes and steps have different lengths")
    _distinct_axes(chosen, len(shape))
    y = variable(x)
    ranges = [(0, size, 1) for size in shape]
    for start, stop, axis, step in zip(first, last, chosen, stride):
        if step == 0:
            raise ModelError("a slice with step 0")
        axis = axis_of(axis, len(shape))
        picked = range(*slice(start, stop, step).indices(shape[axis]))
        if not picked:
            raise ModelError(f"the slice {start}:{stop}:{step} of axis {axis} is empty")
        if step > 0:
            ranges[axis] = (picked.start, picked.stop, picked.step)
        else:
            y = context.graph.add(Gather(axis, torch.arange(len(picked)) * picked.step + picked.start), y)
            ranges[axis] = (0, len(picked), 1)
    if all(part == (0, size, 1) for part, size in zip(ranges, context.shape(y))):
        return y
    return context.graph.add(Slice(tuple(ranges)), y)


@rule(
    "Split",
    versions=(2, 11, 13, 18),
    inputs=(1, 2),
    outputs=MANY,
    attributes={"axis": INT, "split": INTS, "num_outputs": INT},
)
def _split(context: Context, x: Value, sizes: Value = None) -> tuple[Value, ...]:
    """Consecutive parts along one axis."""
    shape = context.shape(variable(x))
    axis = axis_of(int(context.attributes["axis"]), len(shape))
    count = context.attributes.get("num_outputs")
    if sizes is not None:
        parts = [int(size) for size in positions(sizes).reshape(-1)[: context.outputs + 1]]
    elif "split" in context.attributes:
        parts = [int(v) for v in context.attributes["split"]]
    else:
        # Up to version 13 equal parts; from then on the last one may be smaller, if their number is given.
        each = -(-shape[axis] // context.outputs)
        parts = [min(each, shape[axis] - i * each) for i in range(context.outputs)]
        if (len(set(parts)) > 1 or context.version >= 18) and count is None:
            raise ModelError(f"cannot split {shape[axis]} entries into {context.outputs} equal parts")
    if count not in (None, context.outputs) or (count is not None and sizes is not None):
        raise ModelError(f"num_outputs is {count}; there are {context.outputs} outputs, or their sizes are given, too")
    if sum(parts) != shape[axis] or min(parts) < 1 or len(parts) != context.outputs:
        raise ModelError(f"cannot split {shape[axis]} entries into {len(parts)} parts as asked")
    results = []
    start = 0
    for size in parts:
        ranges = [(0, full, 1) for full in shape]
        ranges[axis] = (start, start + size, 1)
        results.append(context.graph.add(Slice(tuple(ranges)), variable(x)))
        start += size
    return tuple(results)


@rule("Gather", versions=(1, 11, 13), inputs=2, attributes={"axis": INT})
def _gather(context: Context, x: Value, indices: Value) -> Value:
    shape = context.shape(variable(x))
    axis = axis_of(int(context.attributes["axis"]), len(shape))
    where = positions(indices)
    if where.size and not (-shape[axis] <= where.min() and where.max() < shape[axis]):
        raise ModelError(f"an index is outside the {shape[axis]} entries of axis {axis}")
    check_size((*shape[:axis], *where.shape, *shape[axis + 1 :]))
    picked = torch.from_numpy(where.reshape(-1).astype(np.int64) % shape[axis])
    y = context.graph.add(Gather(axis, picked), variable(x))
    return context.graph.reshape(y, (*shape[:axis], *where.shape, *shape[axis + 1 :]))
