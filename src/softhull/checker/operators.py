"""Operators that are made of others, in exact arithmetic: normalisation, windows, curves, what moves entries.

Every rule returns the very function that the standard defines. Weights that are no numbers of a float, as 1/n, are
scales of a sum, which are balls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from flint import arb
from onnx import AttributeProto, TensorProto

from ..errors import ModelError
from .balls import Floats, exact
from .network import (
    NODE,
    Curve,
    Emptied,
    Kink,
    Matrix,
    Product,
    Softmax,
    Value,
    View,
    _add,
    _axes,
    _axis,
    _divide,
    _kink,
    _limit,
    _list,
    _moved,
    _multiply,
    _Reader,
    _real,
    _rows_softmax,
    _shape,
    _whole,
    operator,
)
from .positions import Entries, Places

MOST_SUMMANDS = 1 << 10
LARGEST_POWER = 64
UNSURE = Fraction(1, 1000)  # how far the coordinates of a runtime may be from the true ones
INT, INTS, FLOAT, STRING = AttributeProto.INT, AttributeProto.INTS, AttributeProto.FLOAT, AttributeProto.STRING


def _view(value: Any) -> View:
    if not isinstance(value, View):
        raise ModelError("an operand that is constant")
    return value


def _curve(reader: _Reader, value: Any, kind: str) -> View:
    x = _view(value)
    return reader.networks.add(Curve(x.size, x.flat(), kind), x.shape)


def _scaled(reader: _Reader, x: View, scale: Any, bias: Any = 0.0) -> View:
    """``scale x + bias`` with balls and floats that broadcast to the shape of x."""
    return reader.sum([x], [np.asarray(scale, dtype=object)], np.asarray(bias, dtype=np.float64), x.shape)


def _linear(reader: _Reader, x: View, weights: Floats, shape: Any) -> View:
    _limit(weights.size)
    return reader.networks.add(Matrix(len(weights), x.flat(), weights), shape)


# Curves

for _name, _since, _kind in (
    ("Exp", 6, "exp"),
    ("Log", 6, "log"),
    ("Sqrt", 6, "sqrt"),
    ("Reciprocal", 6, "reciprocal"),
    ("Sigmoid", 6, "sigmoid"),
    ("Tanh", 6, "tanh"),
    ("Erf", 9, "erf"),
    ("Sin", 7, "sin"),
    ("Cos", 7, "cos"),
    ("Softplus", 1, "softplus"),
    ("Softsign", 1, "softsign"),
    ("Mish", 18, "mish"),
):

    @operator(_name, since=_since)
    def _entrywise(reader: _Reader, operands: Any, attributes: Any, kind: str = _kind) -> View:
        return _curve(reader, operands[0], kind)


@operator("Gelu", since=20, approximate=STRING)
def _gelu(reader: _Reader, operands: Any, attributes: Any) -> View:
    kinds = {b"none": "gelu", b"tanh": "tanh gelu"}
    return _curve(reader, operands[0], kinds[attributes.get("approximate", b"none")])


@operator("Pow", since=7, operands=(2, 2))
def _power(reader: _Reader, operands: Any, attributes: Any) -> View:
    """A power with one constant exponent, as the curve that it is."""
    x, exponent = operands
    if isinstance(exponent, View) or len(np.unique(exponent)) != 1:
        raise ModelError("an exponent that is not one constant number")
    shape = np.broadcast_shapes(_shape(x), exponent.shape)
    _limit(math.prod(shape))
    x = _view(x).moved(lambda index: np.broadcast_to(index, shape))
    kinds = {2.0: "square", 3.0: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    power = float(exponent.flat[0])
    if power in (0, 1):  # the standard has 0 ** 0 = 1, as runtimes do
        return x if power else _scaled(reader, x, arb(0), 1.0)
    if not math.isfinite(power) or abs(power) > LARGEST_POWER:
        raise ModelError(f"the power {power}")
    return _curve(reader, x, kinds.get(power, f"power {power!r}"))


def _rectified(reader: _Reader, x: View, shift: Any = 0.0) -> View:
    """``max(x + shift, 0)``."""
    moved = _scaled(reader, x, arb(1), shift) if np.any(shift) else x
    return reader.networks.add(Kink(x.size, moved.flat(), 0.0), x.shape)


def _combined(reader: _Reader, parts: list[tuple[View, Any]], bias: Any = 0.0) -> View:
    """The sum of views of one shape times scales, and a constant."""
    views = [view for view, _ in parts]
    scales = [np.asarray(scale, dtype=object) for _, scale in parts]
    return reader.sum(views, scales, np.asarray(bias, dtype=np.float64), views[0].shape)


def _elu(reader: _Reader, value: Any, alpha: arb, outer: arb) -> View:
    """``outer (alpha elu(x) + (1 - alpha) max(x, 0))`` with the elu of slope 1 at 0."""
    x = _view(value)
    return _combined(
        reader, [(_curve(reader, x, "elu"), outer * alpha), (_rectified(reader, x), outer * (arb(1) - alpha))]
    )


def _setting(attributes: Any, name: str, default: float) -> arb:
    return arb(float(attributes.get(name, float(np.float32(default)))))


@operator("Elu", since=6, alpha=FLOAT)
def _elu_of(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _elu(reader, operands[0], _setting(attributes, "alpha", 1.0), arb(1))


@operator("Selu", since=6, alpha=FLOAT, gamma=FLOAT)
def _selu(reader: _Reader, operands: Any, attributes: Any) -> View:
    alpha = _setting(attributes, "alpha", 1.67326319217681884765625)
    return _elu(reader, operands[0], alpha, _setting(attributes, "gamma", 1.05070102214813232421875))


@operator("Celu", since=12, alpha=FLOAT)
def _celu(reader: _Reader, operands: Any, attributes: Any) -> View:
    alpha = _setting(attributes, "alpha", 1.0)
    if not alpha > 0:
        raise ModelError("an alpha that is not positive")
    return _scaled(reader, _curve(reader, _scaled(reader, _view(operands[0]), arb(1) / alpha), "elu"), alpha)


@operator("Abs", since=6)
def _absolute(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``|x| = 2 max(x, 0) - x``."""
    x = _view(operands[0])
    return _combined(reader, [(_rectified(reader, x), arb(2)), (x, arb(-1))])


@operator("PRelu", since=7, operands=(2, 2))
def _prelu(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``max(x, 0) + s min(x, 0) = s x + (1 - s) max(x, 0)``."""
    x, slope = _view(operands[0]), np.asarray(exact(_real(operands[1])), dtype=object)
    if np.broadcast_shapes(x.shape, slope.shape) != x.shape:
        raise ModelError("slopes of a larger shape")
    return _combined(reader, [(x, slope), (_rectified(reader, x), arb(1) - slope)])


@operator("HardSigmoid", since=6, alpha=FLOAT, beta=FLOAT)
def _hard_sigmoid(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``min(max(y, 0), 1) = max(y, 0) - max(y - 1, 0)``."""
    beta = float(attributes.get("beta", 0.5))
    y = _scaled(reader, _view(operands[0]), _setting(attributes, "alpha", 0.2), beta)
    return _combined(reader, [(_rectified(reader, y), arb(1)), (_rectified(reader, y, -1.0), arb(-1))])


@operator("HardSwish", since=14)
def _hard_swish(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: with c the input clipped to -3 and 3 it is ``(c^2 + 3 c) / 6 + max(x - 3, 0)``."""
    x = _view(operands[0])
    beyond = _rectified(reader, x, -3.0)
    c = _combined(reader, [(_rectified(reader, x, 3.0), arb(1)), (beyond, arb(-1))], -3.0)
    return _combined(reader, [(_curve(reader, c, "square"), arb(1) / 6), (c, arb(1) / 2), (beyond, arb(1))])


@operator("Clip", since=6, until=10, min=FLOAT, max=FLOAT)
@operator("Clip", since=11, operands=(1, 3))
def _clip(reader: _Reader, operands: Any, attributes: Any) -> View:
    """A limit that is left out is the least or the largest number of the dtype, one of -inf is none.

    As an attribute it is the least or the largest single float, of whatever dtype the operand is.
    """
    x, *given = operands
    largest = float(np.finfo(reader.real if reader.opset >= 11 else np.float32).max)
    least, most = (
        np.array(attributes.get(name, default)) if limit is None else _real(limit, masks=True)
        for name, limit, default in zip(("min", "max"), (*given, None, None), (-largest, largest))
    )
    if least.shape != () or most.shape != () or not least < most:
        raise ModelError("limits that are no numbers, or leave nothing")
    if least == 0:
        return _kink(reader, x, 0.0, float(most))
    return _clipped(reader, _view(x), float(least), float(most))


def _clipped(reader: _Reader, x: View, least: float, most: float) -> View:
    """Theorem: ``min(max(x, a), b) = x + max(a - x, 0) - max(x - b, 0)`` for a < b.

    A limit that is not reached adds 0, however large its number.
    """
    parts = [(x, arb(1)), (_rectified(reader, x, -most), arb(-1))]
    if least > -math.inf:
        parts.append((_rectified(reader, _scaled(reader, x, arb(-1), least)), arb(1)))
    return _combined(reader, parts)


@operator("Neg", since=6)
def _negative(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _scaled(reader, _view(operands[0]), arb(-1))


@operator("Swish", since=24, alpha=FLOAT)
def _swish(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``x sigmoid(a x) = silu(a x) / a``, and half of x where a is 0."""
    alpha = _setting(attributes, "alpha", 1.0)
    if alpha == 0:
        return _scaled(reader, _view(operands[0]), arb(0.5))
    return _scaled(reader, _curve(reader, _scaled(reader, _view(operands[0]), alpha), "silu"), arb(1) / alpha)


# Sums and means


def _reduced(reader: _Reader, x: View, axes: tuple[int, ...], keep: bool, mean: bool) -> View:
    """Theorem: the mean of n numbers is their sum times 1/n."""
    places = np.arange(x.size).reshape(x.shape)
    count = math.prod(x.shape[a] for a in axes)
    rows = np.moveaxis(places, axes, range(-len(axes), 0)).reshape(-1, count)
    _limit(len(rows) * x.size)
    weights = np.zeros((len(rows), x.size))
    weights[np.arange(len(rows))[:, None], rows] = 1.0
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]
    found = _linear(reader, x, weights, shape)
    return _scaled(reader, found, arb(1) / count) if mean else found


def _reduction(reader: _Reader, operands: Any, attributes: Any, mean: bool, kind: str = "") -> View:
    """The sum or the mean over axes, of a curve of the entries where a kind is given."""
    x = operands[0]
    axes = _reduced_axes(reader, operands, attributes)
    if not axes and kind:
        raise ModelError("no axes, of which it is not clear what is left to do")
    y = _curve(reader, x, kind) if kind else _view(x)
    return _reduced(reader, y, axes, bool(attributes.get("keepdims", 1)), mean) if axes else y


def _reduced_axes(reader: _Reader, operands: Any, attributes: Any) -> tuple[int, ...]:
    """The axes of a reduction: where none are given all of them, or none where the node says so."""
    x, *given = operands
    wanted = _list(given[0]) if given else attributes.get("axes")
    if wanted is None or (given and not wanted):
        return () if attributes.get("noop_with_empty_axes", 0) else tuple(range(len(_shape(x))))
    return tuple(sorted(_axes(reader, wanted, len(_shape(x)))))


@operator("ReduceSumSquare", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceSumSquare", since=18, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_sum_square(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _reduction(reader, operands, attributes, False, "square")


@operator("ReduceL2", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceL2", since=18, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_l2(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _curve(reader, _reduction(reader, operands, attributes, False, "square"), "sqrt")


@operator("ReduceLogSumExp", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceLogSumExp", since=18, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_log_sum_exp(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _curve(reader, _reduction(reader, operands, attributes, False, "exp"), "log")


@operator("ReduceL1", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceL1", since=18, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_l1(reader: _Reader, operands: Any, attributes: Any) -> View:
    if not _reduced_axes(reader, operands, attributes):
        raise ModelError("no axes, of which it is not clear what is left to do")
    return _reduction(reader, [_absolute(reader, operands[:1], {}), *operands[1:]], attributes, False)


@operator("ReduceProd", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceProd", since=18, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_product(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """Of whole numbers, of which shapes are made, at once; of real ones pair by pair."""
    x, keep = operands[0], bool(attributes.get("keepdims", 1))
    axes = _reduced_axes(reader, operands, attributes)
    if not isinstance(x, View):
        return np.asarray(np.prod(_whole(x), axis=axes, keepdims=keep))
    if not axes:
        return x
    rows, shape = _rows(x, axes, keep)
    if rows.shape[1] > MOST_SUMMANDS:
        raise ModelError(f"a product of more than {MOST_SUMMANDS} numbers")
    flat = x.flat()
    factors = [flat.at(Places(column, x.size)) for column in rows.T]
    while len(factors) > 1:
        pairs, left = zip(factors[::2], factors[1::2]), factors[len(factors) // 2 * 2 :]
        factors = [_multiply(reader, [a, b], {}) for a, b in pairs] + left
    return factors[0].moved(lambda index: index.reshape(shape))


def _rows(x: View, axes: tuple[int, ...], keep: bool) -> tuple[np.ndarray, list[int]]:
    """The places that are made one, a row for each result, and the shape of the results."""
    places = np.arange(x.size).reshape(x.shape)
    rows = np.moveaxis(places, axes, range(-len(axes), 0)).reshape(-1, math.prod(x.shape[a] for a in axes))
    return rows, [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]


@operator("ReduceMean", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceMean", since=18, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_mean(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _reduction(reader, operands, attributes, True)


@operator("ReduceSum", since=1, until=12, axes=INTS, keepdims=INT)
@operator("ReduceSum", since=13, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_sum(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _reduction(reader, operands, attributes, False)


@operator("GlobalAveragePool", since=1)
def _global_average(reader: _Reader, operands: Any, attributes: Any) -> View:
    x = _view(operands[0])
    if len(x.shape) < 3:
        raise ModelError("a tensor without space to average over")
    return _reduced(reader, x, tuple(range(2, len(x.shape))), True, True)


# Normalisation


@operator("LayerNormalization", since=17, operands=(2, 3), axis=INT, epsilon=FLOAT, stash_type=INT)
def _layer_normalization(reader: _Reader, operands: Any, attributes: Any) -> View:
    """``(x - mean) / sqrt(variance + epsilon)``, scaled and shifted; n times a deviation has whole weights."""
    x, scale, *bias = operands
    x = _view(x)
    first = _axis(reader, attributes.get("axis", -1), len(x.shape))
    if attributes.get("stash_type", 1) not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        raise ModelError("a mean in anything but float or double")
    if any(_shape(constant) != x.shape[first:] for constant in (scale, *bias)):
        raise ModelError("constants of another shape than what is normalised")
    axes = tuple(range(first, len(x.shape)))
    epsilon = attributes.get("epsilon", float(np.float32(1e-5)))
    y = _steadied(reader, _centred(reader, x, first), axes, epsilon)
    shift = _real(bias[0]) if bias else 0.0
    return _scaled(reader, y, exact(_real(scale)), shift)


def _centred(reader: _Reader, x: View, first: int) -> View:
    """``x`` less its mean over the axes from ``first`` on. Theorem: n times a deviation is ``n x_i - sum_j x_j``."""
    count, rows = math.prod(x.shape[first:]), math.prod(x.shape[:first])
    _limit(x.size**2)
    weights: Floats = np.kron(np.eye(rows), count * np.eye(count) - np.ones((count, count))).astype(np.float64)
    return _scaled(reader, _linear(reader, x, weights, x.shape), arb(1) / count)


def _steadied(reader: _Reader, x: View, axes: tuple[int, ...], epsilon: float) -> View:
    """``x / sqrt(mean of x^2 + epsilon)`` over axes."""
    if not epsilon > 0:
        raise ModelError("an epsilon that is not positive")
    mean = _reduced(reader, _curve(reader, x, "square"), axes, True, True)
    inverse = _curve(reader, _scaled(reader, mean, arb(1), epsilon), "rsqrt")
    spread = inverse.moved(lambda index: np.broadcast_to(index, x.shape).ravel())
    flat, every = x.flat(), Entries(np.arange(x.size), x.size)
    return reader.networks.add(Product(x.size, flat, spread, every, flat.places(), spread.places()), x.shape)


@operator("RMSNormalization", since=23, operands=(2, 2), axis=INT, epsilon=FLOAT, stash_type=INT)
def _rms_normalization(reader: _Reader, operands: Any, attributes: Any) -> View:
    x, scale = _view(operands[0]), operands[1]
    first = _axis(reader, attributes.get("axis", -1), len(x.shape))
    fits = np.broadcast_shapes(_shape(scale), x.shape[first:]) == x.shape[first:]
    if not fits or attributes.get("stash_type", 1) not in (1, 11):
        raise ModelError("constants of another shape, or a mean in anything but float or double")
    epsilon = attributes.get("epsilon", float(np.float32(1e-5)))
    return _scaled(reader, _steadied(reader, x, tuple(range(first, len(x.shape))), epsilon), exact(_real(scale)))


@operator("BatchNormalization", since=7, until=8, operands=(5, 5), epsilon=FLOAT, momentum=FLOAT, spatial=INT)
@operator("BatchNormalization", since=9, operands=(5, 5), epsilon=FLOAT, momentum=FLOAT, training_mode=INT)
def _batch_normalization(reader: _Reader, operands: Any, attributes: Any) -> View:
    """``(x - mean) scale / sqrt(variance + epsilon) + bias``: two sums, since the shift must be a float."""
    x, constants = _view(operands[0]), [_real(value) for value in operands[1:]]
    if not attributes.get("spatial", 1):
        raise ModelError("constants for every place")
    if attributes.get("training_mode", 0) or any(c.shape != (x.shape[1],) for c in constants):
        raise ModelError("training, or constants that do not have one entry per channel")
    scale, bias, mean, variance = (c.reshape(-1, *(1 for _ in x.shape[2:])) for c in constants)
    epsilon = attributes.get("epsilon", float(np.float32(1e-5)))
    steadied = exact(variance) + arb(epsilon)
    if not all(v > 0 for v in steadied.ravel()):
        raise ModelError("a variance that is not positive")
    rate = exact(scale) * np.frompyfunc(lambda v: v.rsqrt(), 1, 1)(steadied)
    return _scaled(reader, _scaled(reader, x, arb(1), -mean), rate, bias)


# Windows

_WINDOW: dict[str, int] = {"kernel_shape": INTS, "strides": INTS, "pads": INTS, "dilations": INTS, "auto_pad": STRING}


def _windows(x: View, size: list[int], attributes: Any) -> tuple[np.ndarray, list[int]]:
    """For every space axis, in one array ``[*steps, *size]`` of places of one channel, -1 in the padding, -2 beyond."""
    space = list(x.shape[2:])
    rank = len(size)
    automatic = attributes.get("auto_pad", b"NOTSET")
    if automatic != b"NOTSET" and "pads" in attributes:
        raise ModelError("pads beside automatic ones")
    strides, dilations = (list(attributes.get(key, [1] * rank)) for key in ("strides", "dilations"))
    pads = list(attributes.get("pads", [0] * (2 * rank)))
    lengths = {len(space), len(strides), len(dilations), rank, len(pads) // 2}
    if len(lengths) > 1 or len(pads) % 2 or min(*size, *strides, *dilations) < 1 or min(pads) < 0:
        raise ModelError("a window that does not fit its operand")
    _limit(max(*strides, *dilations, *pads))  # places are whole numbers of 64 bits
    if automatic not in (b"NOTSET", b"VALID"):
        pads = _automatic_pads(space, size, strides, dilations, automatic)
    found, steps = np.zeros((1,) * (2 * rank), dtype=np.int64), []
    outside, beyond = np.zeros((2, *(1,) * (2 * rank)), dtype=bool)
    for i in range(rank):
        over = space[i] + pads[i] + pads[rank + i] - dilations[i] * (size[i] - 1) - 1
        if over < 0:
            raise ModelError("a window larger than its operand")
        up = bool(attributes.get("ceil_mode", 0))
        if up and automatic == b"VALID" and over % strides[i]:  # runtimes do what the standard does not say
            raise ModelError("windows that are rounded up, with automatic pads that leave no room for them")
        steps.append((-(-over // strides[i]) if up else over // strides[i]) + 1)
        if up and (steps[i] - 1) * strides[i] >= space[i] + pads[i]:  # no window starts in the padding behind
            steps[i] -= 1
        _limit(math.prod(steps) * math.prod(size))
        at = np.arange(steps[i])[:, None] * strides[i] - pads[i] + np.arange(size[i]) * dilations[i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = at.shape
        at = at.reshape(shape)
        found = found * space[i] + np.clip(at, 0, space[i] - 1)
        outside = outside | (at < 0) | (at >= space[i])
        beyond = beyond | (at >= space[i] + pads[rank + i])
    found, outside, beyond = np.broadcast_arrays(found, outside, beyond)
    return np.where(beyond, -2, np.where(outside, -1, found)), steps


def _automatic_pads(space: list[int], size: list[int], strides: list[int], dilations: list[int], how: bytes) -> list:
    """Pads by which there is a window for every stride, at both ends alike or one more behind or before."""
    if how not in (b"SAME_UPPER", b"SAME_LOWER"):
        raise ModelError("automatic pads of another kind")
    if max(dilations) > 1 or any(stride > k for stride, k in zip(strides, size)):  # runtimes do not agree
        raise ModelError("automatic pads with gaps in or between windows")
    missing = [max(0, (-(-n // stride) - 1) * stride + k - n) for n, k, stride in zip(space, size, strides)]
    less, more = [m // 2 for m in missing], [m - m // 2 for m in missing]
    return less + more if how == b"SAME_UPPER" else more + less


@operator("Conv", since=1, operands=(2, 3), group=INT, **_WINDOW)
def _convolution(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: a convolution is a matrix that holds the kernel in every row, each number of it once."""
    x, kernel, *bias = operands
    x, kernel = _view(x), _real(kernel)
    size, groups = list(kernel.shape[2:]), attributes.get("group", 1)
    if list(attributes.get("kernel_shape", size)) != size or len(x.shape) != kernel.ndim:
        raise ModelError("a kernel of another shape than declared")
    if groups < 1 or kernel.shape[0] % groups or kernel.shape[1] * groups != x.shape[1]:
        raise ModelError("a kernel that does not fit the channels")
    where, steps = _windows(x, size, attributes)
    where = where.reshape(math.prod(steps), -1)
    one = math.prod(x.shape[2:])
    outputs, fan = kernel.shape[:2]
    _limit(outputs * len(where) * x.shape[0] * x.size)
    weights = np.zeros((outputs, len(where), x.size // x.shape[0]))
    row, column = np.nonzero(where >= 0)
    for out in range(outputs):
        for i in range(fan):
            channel = out // (outputs // groups) * fan + i
            weights[out, row, channel * one + where[row, column]] = kernel[out, i].ravel()[column]
    return _for_pictures(reader, x, weights, (outputs, *steps), bias)


def _for_pictures(reader: _Reader, x: View, weights: Floats, shape: tuple[int, ...], bias: Any) -> View:
    """One matrix for every picture of a batch, and a bias for every channel of the results."""
    count = x.shape[0]
    each = weights.reshape(-1, x.size // count)
    found = _linear(reader, x, np.kron(np.eye(count), each).astype(np.float64), (count, *shape))
    if not bias:
        return found
    if _real(bias[0]).shape != shape[:1]:
        raise ModelError("a bias that does not have one entry per channel")
    return _scaled(reader, found, arb(1), bias[0].reshape(-1, *(1 for _ in shape[1:])))


@operator("ConvTranspose", since=1, operands=(2, 3), group=INT, output_padding=INTS, **_WINDOW)
def _transposed_convolution(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: entry p of the input adds its kernel to the output from ``p stride - pad`` on."""
    x, kernel, *bias = operands
    x, kernel = _view(x), _real(kernel)
    size, groups = list(kernel.shape[2:]), attributes.get("group", 1)
    rank = len(size)
    if list(attributes.get("kernel_shape", size)) != size or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ModelError("a kernel of another shape than declared, or automatic pads")
    if groups < 1 or len(x.shape) != kernel.ndim or x.shape[1] != kernel.shape[0] or x.shape[1] % groups:
        raise ModelError("a kernel that does not fit the channels")
    strides, dilations = (list(attributes.get(key, [1] * rank)) for key in ("strides", "dilations"))
    extra, pads = list(attributes.get("output_padding", [0] * rank)), list(attributes.get("pads", [0] * (2 * rank)))
    if {len(strides), len(dilations), len(extra), len(pads) // 2} != {rank} or min(*strides, *dilations) < 1:
        raise ModelError("a window that does not fit its operand")
    space = list(x.shape[2:])
    grown = [
        (space[i] - 1) * strides[i] + dilations[i] * (size[i] - 1) + 1 - pads[i] - pads[rank + i] + extra[i]
        for i in range(rank)
    ]
    if min(grown) < 1 or min(*extra, *pads) < 0:
        raise ModelError("pads that leave nothing")
    _limit(max(*strides, *dilations, *pads, *extra))  # places are whole numbers of 64 bits
    each, outputs = kernel.shape[1], kernel.shape[1] * groups
    _limit(outputs * math.prod(grown) * x.shape[0] * x.size)
    _limit(x.size * math.prod(size))
    reader.networks.spend(x.size * math.prod(size))  # what is looked at here
    place, offset = (np.indices(n).reshape(rank, -1) for n in (space, size))
    at = [
        place[i] * strides[i] - pads[i] + offset[i][:, None] * dilations[i] for i in range(rank)
    ]  # [offsets, places] of the output
    inside = np.all([(a >= 0) & (a < n) for a, n in zip(at, grown)], axis=0)
    turn, entry = np.nonzero(inside)
    to = np.ravel_multi_index([a[inside] for a in at], grown)
    channels = np.arange(x.shape[1])[:, None]
    out = channels // (x.shape[1] // groups) * each + np.arange(each)
    weights = np.zeros((outputs, math.prod(grown), x.shape[1], math.prod(space)))
    weights[out[:, :, None], to, channels[:, :, None], entry] = kernel.reshape(x.shape[1], each, -1)[:, :, turn]
    return _for_pictures(reader, x, weights, (outputs, *grown), bias)


@operator("MaxPool", since=1, until=7, operands=(1, 1), **_WINDOW)
@operator("MaxPool", since=8, until=9, operands=(1, 1), storage_order=INT, **_WINDOW)
@operator("MaxPool", since=10, operands=(1, 1), storage_order=INT, ceil_mode=INT, **_WINDOW)
def _max_pool(reader: _Reader, operands: Any, attributes: Any) -> View:
    """The largest of every window; the padding is not part of it."""
    x = _view(operands[0])
    size = list(attributes["kernel_shape"])
    where, steps = _windows(x, size, attributes)
    where = where.reshape(math.prod(steps), -1)
    best = where.max(1)
    if (best < 0).any():
        raise ModelError("a window in the padding alone")
    where = np.where(where < 0, best[:, None], where)
    channels, one = x.shape[0] * x.shape[1], math.prod(x.shape[2:])
    places = (np.arange(channels)[:, None, None] * one + where).reshape(-1, where.shape[1])
    return _largest(reader, x, places, (*x.shape[:2], *steps))


@operator("GlobalMaxPool", since=1)
def _global_max(reader: _Reader, operands: Any, attributes: Any) -> View:
    x = _view(operands[0])
    if len(x.shape) < 3:
        raise ModelError("a tensor without space to search")
    rows, shape = _rows(x, tuple(range(2, len(x.shape))), True)
    return _largest(reader, x, rows, shape)


@operator("AveragePool", since=7, until=9, operands=(1, 1), count_include_pad=INT, **_WINDOW)
@operator("AveragePool", since=10, operands=(1, 1), count_include_pad=INT, ceil_mode=INT, **_WINDOW)
def _average_pool(reader: _Reader, operands: Any, attributes: Any) -> View:
    """The sum of every window by the number of its entries, those of the padding counted or not.

    What a window that is rounded up sees beyond the padding is never counted.
    """
    x, size = _view(operands[0]), list(attributes["kernel_shape"])
    where, steps = _windows(x, size, attributes)
    where = where.reshape(math.prod(steps), -1)
    inside = where >= 0
    if max(attributes.get("dilations", [1])) > 1 or not inside.any(1).all():
        raise ModelError("a dilated window, or one in the padding alone")
    channels, one = x.shape[0] * x.shape[1], math.prod(x.shape[2:])
    _limit(channels * len(where) * x.size)
    weights = np.zeros((channels, len(where), x.size))
    row, column = np.nonzero(inside)
    for channel in range(channels):
        weights[channel, row, channel * one + where[row, column]] = 1.0
    total = _linear(reader, x, weights.reshape(-1, x.size), (*x.shape[:2], *steps))
    count = (where >= -1 if attributes.get("count_include_pad", 0) else inside).sum(1)
    return _scaled(reader, total, (arb(1) / exact(count.astype(np.float64))).reshape(steps))


def _largest(reader: _Reader, x: View, places: np.ndarray, shape: Any) -> View:
    """The largest of every row of places. Theorem: ``max(a, b) = a + max(b - a, 0)``."""
    if places.shape[1] > MOST_SUMMANDS:
        raise ModelError(f"the largest of more than {MOST_SUMMANDS} numbers")
    _limit(places.size)
    flat = x.flat()
    rivals = [flat.at(Places(column, x.size)) for column in places.T]
    while len(rivals) > 1:
        pairs, left = zip(rivals[::2], rivals[1::2]), rivals[len(rivals) // 2 * 2 :]
        rivals = [_greater(reader, a, b) for a, b in pairs] + left
    return rivals[0].moved(lambda index: index.reshape(shape))


def _greater(reader: _Reader, a: View, b: Value) -> View:
    apart = _add(reader, [b, a], {}, -1)
    return _add(reader, [a, reader.networks.add(Kink(apart.size, apart.flat(), 0.0), apart.shape)], {})


@operator("Max", since=8, operands=(1, MOST_SUMMANDS))
def _maximum(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """Of whole numbers, of which shapes are made, at once; of real ones pair by pair."""
    if not any(isinstance(part, View) for part in operands):
        parts = [_whole(part) for part in operands]
        _limit(math.prod(np.broadcast_shapes(*(part.shape for part in parts))) * len(parts))
        return np.asarray(np.maximum.reduce(np.broadcast_arrays(*parts)))
    return _extreme(reader, operands, 1)


@operator("Min", since=8, operands=(1, MOST_SUMMANDS))
def _minimum(reader: _Reader, operands: Any, attributes: Any) -> Value:
    return _extreme(reader, operands, -1)


def _extreme(reader: _Reader, operands: Any, sign: int) -> View:
    """Theorem: the least of some numbers is minus the largest of their negatives."""

    def turned(value: Any) -> Any:
        if sign > 0:
            return value
        return _scaled(reader, value, arb(-1)) if isinstance(value, View) else -_real(value)

    views = [turned(part) for part in operands if isinstance(part, View)]
    found = views[0]
    for other in (*views[1:], *(turned(part) for part in operands if not isinstance(part, View))):
        found = _greater(reader, found, other)
    return _view(turned(found))


@operator("ReduceMax", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceMax", since=18, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_max(reader: _Reader, operands: Any, attributes: Any, sign: int = 1) -> View:
    """The largest entry along axes; with ``sign`` -1 the smallest."""
    x, axes = _view(operands[0]), _reduced_axes(reader, operands, attributes)
    if not axes:
        return x
    rows, shape = _rows(x, axes, bool(attributes.get("keepdims", 1)))
    turned = x if sign > 0 else _scaled(reader, x, arb(-1))
    found = _largest(reader, turned, rows, shape)
    return found if sign > 0 else _scaled(reader, found, arb(-1))


@operator("ReduceMin", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceMin", since=18, operands=(1, 2), keepdims=INT, noop_with_empty_axes=INT)
def _reduce_min(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _reduce_max(reader, operands, attributes, -1)


@operator("Sum", since=8, operands=(1, MOST_SUMMANDS))
def _sum(reader: _Reader, operands: Any, attributes: Any) -> View:
    found, *others = sorted(operands, key=lambda part: not isinstance(part, View))  # two constants are not added
    for other in others:
        found = _add(reader, [found, other], {})
    return _view(found)


@operator("Mean", since=8, operands=(1, MOST_SUMMANDS))
def _mean(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _scaled(reader, _sum(reader, operands, attributes), arb(1) / len(operands))


@operator("InstanceNormalization", since=6, operands=(3, 3), epsilon=FLOAT)
def _instance_normalization(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _grouped(reader, operands, _view(operands[0]).shape[1], attributes)


@operator("GroupNormalization", since=21, operands=(3, 3), epsilon=FLOAT, num_groups=INT, stash_type=INT)
def _group_normalization(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _grouped(reader, operands, attributes["num_groups"], attributes)


def _grouped(reader: _Reader, operands: Any, groups: int, attributes: Any) -> View:
    """Channels in groups, each centred and divided by its deviation; a scale and a shift for every channel."""
    x, scale, bias = operands
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups or attributes.get("stash_type", 1) not in (1, 11):
        raise ModelError("groups that do not fit the channels")
    if any(_real(c).shape != (x.shape[1],) for c in (scale, bias)):
        raise ModelError("constants that do not have one entry per channel")
    flat = x.moved(lambda index: index.reshape(x.shape[0], groups, -1))
    epsilon = attributes.get("epsilon", float(np.float32(1e-5)))
    y = _steadied(reader, _centred(reader, flat, 2), (2,), epsilon).moved(lambda index: index.reshape(x.shape))
    wide = (-1, *(1 for _ in x.shape[2:]))
    return _scaled(reader, y, exact(scale.reshape(wide)), bias.reshape(wide))


# Logarithms of probabilities


@operator("LogSoftmax", since=1, until=12, axis=INT)
def _log_softmax_of_the_rest(reader: _Reader, operands: Any, attributes: Any) -> Any:
    """Before operator set 13: over all dimensions from the axis on."""
    shape = _shape(operands[0])
    axis = _axis(reader, attributes.get("axis", 1), len(shape))
    return _log_probabilities(reader, operands[0], tuple(range(axis, len(shape))))


@operator("LogSoftmax", since=13, axis=INT)
def _log_softmax(reader: _Reader, operands: Any, attributes: Any) -> Any:
    axis = _axis(reader, attributes.get("axis", -1), len(_shape(operands[0])))
    return _log_probabilities(reader, operands[0], (axis,))


def _log_probabilities(reader: _Reader, x: Value, axes: tuple[int, ...]) -> Any:
    """``x - log(sum of exp(x))``; at the end of a network as a softmax.

    Theorem: the logarithm keeps the order, and softmax(log p) is p. But the one entry of a row of one is 0, and not 1:
    such rows have no order and are refused.
    """
    if not reader.final:
        total = _reduced(reader, _curve(reader, x, "exp"), axes, True, False)
        return _add(reader, [x, _curve(reader, total, "log")], {}, -1)
    count = math.prod(_shape(x)[axis] for axis in axes)
    if count < 2:
        raise ModelError("the logarithm of rows of one probability")
    return _rows_softmax(reader, x, lambda p: np.moveaxis(p, axes, range(-len(axes), 0)).reshape(-1, count))


# Operators that move entries


@operator("Slice", since=1, until=9, starts=INTS, ends=INTS, axes=INTS)
@operator("Slice", since=10, operands=(3, 5))
def _slice(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """A range of entries along some axes."""
    x, *more = operands
    first, last = (list(attributes[key]) if key in attributes else _list(more.pop(0)) for key in ("starts", "ends"))
    axes = _list(more[0]) if more and more[0] is not None else list(attributes.get("axes", range(len(first))))
    steps = _list(more[1]) if len(more) > 1 and more[1] is not None else [1] * len(first)
    if not len(first) == len(last) == len(axes) == len(steps) or 0 in steps:
        raise ModelError("starts, ends, axes and steps that do not fit each other")
    chosen = _axes(reader, axes, len(_shape(x)))
    where = [slice(None)] * len(_shape(x))
    for axis, start, end, step in zip(chosen, first, last, steps):
        picked = range(*slice(start, end, step).indices(_shape(x)[axis]))
        if not picked:
            raise ModelError("a slice that is empty")
        stop: int | None = picked.stop if picked.stop >= 0 else None
        where[axis] = slice(picked.start, stop, picked.step)
    return _moved(lambda t: t[tuple(where)], x)


@operator("Split", since=2, until=12, axis=INT, split=INTS)
@operator("Split", since=13, until=17, operands=(1, 2), axis=INT)
@operator("Split", since=18, operands=(1, 2), axis=INT, num_outputs=INT)
def _split(reader: _Reader, operands: Any, attributes: Any) -> list[Value]:
    """Consecutive parts along one axis."""
    x, *given = operands
    axis = _axis(reader, attributes.get("axis", 0), len(_shape(x)))
    size, count = _shape(x)[axis], reader.outputs
    if given or "split" in attributes:
        parts = _list(given[0]) if given else list(attributes["split"])
    elif (size % count and "num_outputs" not in attributes) or attributes.get("num_outputs", count) != count:
        raise ModelError(f"{size} entries in {count} parts of unknown size")
    else:  # with their number given, the last one may be smaller
        each = -(-size // count)
        parts = [min(each, size - each * i) for i in range(count)]
    if sum(parts) != size or min(parts) < 1 or len(parts) != count:
        raise ModelError(f"{size} entries in parts of {parts}")
    stops = np.cumsum(parts)
    ranges = [slice(int(stop) - n, int(stop)) for n, stop in zip(parts, stops)]
    return [_moved(partial(_part, axis=axis, chosen=chosen), x) for chosen in ranges]


def _part(t: Any, axis: int, chosen: slice) -> Any:
    return t[(slice(None),) * axis + (chosen,)]


@operator("Expand", since=8, operands=(2, 2))
def _expand(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, wanted = operands
    shape = np.broadcast_shapes(_shape(x), tuple(_list(wanted)))
    _limit(math.prod(shape))
    return _moved(lambda t: np.broadcast_to(t, shape), x)


@operator("GatherND", since=11, until=11, operands=(2, 2))
@operator("GatherND", since=12, operands=(2, 2), batch_dims=INT)
def _gather_nd(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """Entries at constant index tuples."""
    x, where = operands
    if attributes.get("batch_dims", 0):
        raise ModelError("batched indices")
    if isinstance(where, View) or where.dtype != np.int64 or not 1 <= where.shape[-1] <= len(_shape(x)):
        raise ModelError("indices that are not constant whole numbers, or of too many axes")
    sizes = np.array(_shape(x)[: where.shape[-1]])
    if ((where < -sizes) | (where >= sizes)).any():
        raise ModelError("an index out of range")
    _limit(where.size * math.prod(_shape(x)))
    return _moved(lambda t: t[tuple(np.moveaxis(where, -1, 0))], x)


@operator("GatherElements", since=11, operands=(2, 2), axis=INT)
def _gather_elements(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """For every position of constant indices, the entry that they name along one axis."""
    x, where = operands
    shape = _shape(x)
    axis = _axis(reader, attributes.get("axis", 0), len(shape))
    if isinstance(where, View) or where.dtype not in (np.int64, np.int32) or where.ndim != len(shape):
        raise ModelError("indices that are not constant whole numbers, or of other axes than the operand")
    if any(n > most for place, (n, most) in enumerate(zip(where.shape, shape)) if place != axis):
        raise ModelError("indices of a shape that the operand does not hold")
    if ((where < -shape[axis]) | (where >= shape[axis])).any():
        raise ModelError("an index out of range")
    _limit(where.size)
    chosen = list(np.indices(where.shape, sparse=True))
    chosen[axis] = where
    return _moved(lambda t: t[tuple(chosen)], x)


@operator("Cast", since=6, to=INT)
def _cast(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """To the type of the input, which a variable has."""
    if attributes["to"] != {np.float32: 1, np.float64: 11}[reader.real.type]:
        raise ModelError("another type than that of the input")
    return _view(operands[0])


@operator("Dropout", since=7, until=11, ratio=FLOAT)
@operator("Dropout", since=12, operands=(1, 3), seed=INT)
def _dropout(reader: _Reader, operands: Any, attributes: Any) -> list[Value]:
    """What goes in, outside of training; the mask that it has beside is kept from everybody."""
    if reader.outputs > 2:
        raise ModelError("more than a result and a mask")
    if len(operands) > 2 and operands[2] is not None and (isinstance(operands[2], View) or operands[2].any()):
        raise ModelError("training")
    return [_view(operands[0])]


@operator("Tile", since=6, operands=(2, 2))
def _tile(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, times = operands[0], _list(operands[1])
    if len(times) != len(_shape(x)) or min(times, default=1) < 1:
        raise ModelError("repeats that do not fit the operand")
    _limit(math.prod(_shape(x)) * math.prod(times))
    return _moved(lambda t: np.tile(t, times), x)


@operator("DepthToSpace", since=1, until=10, blocksize=INT)
@operator("DepthToSpace", since=11, blocksize=INT, mode=STRING)
def _depth_to_space(reader: _Reader, operands: Any, attributes: Any) -> Value:
    n, c, h, w = _view(operands[0]).shape
    size = attributes["blocksize"]
    inner, outer = (n, size, size, c // size**2, h, w), (n, c // size**2, h * size, w * size)
    if attributes.get("mode", b"DCR") == b"DCR":
        return _moved(lambda t: t.reshape(inner).transpose(0, 3, 4, 1, 5, 2).reshape(outer), operands[0])
    if attributes["mode"] != b"CRD":
        raise ModelError("another order than DCR and CRD")
    inner = (n, c // size**2, size, size, h, w)
    return _moved(lambda t: t.reshape(inner).transpose(0, 1, 4, 2, 5, 3).reshape(outer), operands[0])


@operator("SpaceToDepth", since=1, blocksize=INT)
def _space_to_depth(reader: _Reader, operands: Any, attributes: Any) -> Value:
    n, c, h, w = _view(operands[0]).shape
    size = attributes["blocksize"]
    inner, outer = (n, c, h // size, size, w // size, size), (n, c * size**2, h // size, w // size)
    return _moved(lambda t: t.reshape(inner).transpose(0, 3, 5, 1, 2, 4).reshape(outer), operands[0])


@operator("Size", since=1)
def _size(reader: _Reader, operands: Any, attributes: Any) -> Value:
    return np.array(math.prod(_shape(operands[0])), dtype=np.int64)


@operator("Pad", since=2, until=10, mode=STRING, pads=INTS, value=FLOAT)
@operator("Pad", since=11, until=17, operands=(2, 3), mode=STRING)
@operator("Pad", since=18, operands=(2, 4), mode=STRING)
def _pad(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Entries repeated, or a constant where the padding is: a sum in which they have no part."""
    x, *more = operands
    x, sizes = _view(x), list(attributes["pads"]) if "pads" in attributes else _list(more.pop(0))
    fill = float(_real(more[0]).reshape(())) if more and more[0] is not None else attributes.get("value", 0.0)
    rank = len(x.shape)
    axes = list(range(rank)) if len(more) < 2 else list(_axes(reader, _list(more[1]), rank))
    if len(sizes) != 2 * len(axes) or min(sizes, default=0) < 0:
        raise ModelError("pads that do not fit the operand, or negative ones")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        widths[axis] = sizes[i], sizes[len(axes) + i]
    _limit(math.prod(n + before + behind for n, (before, behind) in zip(x.shape, widths)))
    mode = attributes.get("mode", b"constant")
    if mode == b"edge":
        return x.moved(lambda index: np.pad(index, widths, mode="edge"))
    if mode == b"reflect" and all(max(pair) < n for pair, n in zip(widths, x.shape)):
        return x.moved(lambda index: np.pad(index, widths, mode="reflect"))
    if mode != b"constant":
        raise ModelError("padding by another mode, or of more than is reflected")
    inside = np.pad(np.ones(x.shape), widths)
    spread = x.moved(lambda index: np.pad(index, widths, mode="edge"))
    return reader.sum([spread], [exact(inside)], np.where(inside, 0.0, fill), inside.shape)


_RESIZED = {"mode": STRING, "coordinate_transformation_mode": STRING, "nearest_mode": STRING, "cubic_coeff_a": FLOAT}
_RESIZED |= {"exclude_outside": INT, "extrapolation_value": FLOAT}  # of modes that are refused


@operator("Resize", since=11, until=17, operands=(1, 4), **_RESIZED)
@operator("Resize", since=18, operands=(1, 4), **_RESIZED, antialias=INT, keep_aspect_ratio_policy=STRING)
def _resize(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Axis by axis the nearest entry, or a mean of two neighbours with weights that are balls."""
    if attributes.get("antialias", 0) or attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise ModelError("antialiasing, or a policy on the aspect ratio")
    x, _, scales, sizes = (*operands, None, None, None)[:4]
    x = _view(x)
    given = scales is not None and scales.size > 0
    if given == (sizes is not None and sizes.size > 0):
        raise ModelError("neither scales nor sizes, or both")
    wanted = [] if given else _list(sizes)
    rates = [Fraction(float(r)) for r in _real(scales)] if given else [Fraction(*pair) for pair in zip(wanted, x.shape)]
    if len(rates) != len(x.shape) or min(rates) <= 0 or (wanted and len(wanted) != len(x.shape)):
        raise ModelError("scales that do not fit the operand")
    targets = wanted or [
        _agreed(math.floor, n * rate, np.float32(n) * np.float32(rate)) for n, rate in zip(x.shape, rates)
    ]
    for axis, (target, rate) in enumerate(zip(targets, rates)):
        if target < 1:
            raise ModelError("a size of 0")
        if rate != 1:
            _limit(x.size // x.shape[axis] * target)
            _limit(NODE * target)  # exact positions take more room than numbers
            x = _resized(reader, x, axis, target, rate, attributes)
    return x


def _agreed(rounded: Callable[[Any], int], at: Fraction, single: Any) -> int:
    """A number rounded to a whole one, where the runtime, which has it in single precision, comes to the same."""
    if rounded(at) != rounded(Fraction(float(single))):
        raise ModelError("a size or a nearest entry that rounding changes")
    return rounded(at)


def _coordinate(at: Any, size: int, target: int, rate: Any, half: Any, how: bytes) -> Any:
    """Where an entry of the result stands in the operand, in the arithmetic of the numbers given."""
    if how == b"half_pixel" or (how == b"pytorch_half_pixel" and target > 1):
        return (at + half) / rate - half
    if how == b"align_corners" and target > 1:
        return at * (size - 1) / (target - 1)
    if how == b"asymmetric":
        return at / rate
    if how in (b"align_corners", b"pytorch_half_pixel"):
        return 0 * at
    raise ModelError("coordinates of another kind")


_NEAREST: dict[bytes, Callable[[Fraction], int]] = {
    b"round_prefer_floor": lambda at: math.ceil(at - Fraction(1, 2)),
    b"round_prefer_ceil": lambda at: math.floor(at + Fraction(1, 2)),
    b"floor": math.floor,
    b"ceil": math.ceil,
}


def _resized(reader: _Reader, x: View, axis: int, target: int, rate: Fraction, attributes: Any) -> View:
    """A tensor resampled along one axis at exact positions, which the runtime may compute in floating point."""
    how = attributes.get("coordinate_transformation_mode", b"half_pixel")
    size = x.shape[axis]
    at = [_coordinate(Fraction(t), size, target, rate, Fraction(1, 2), how) for t in range(target)]

    def taken(entries: list[int]) -> View:
        chosen = np.clip(entries, 0, size - 1)
        return x.moved(lambda index: np.take(index, chosen, axis))

    mode = attributes.get("mode", b"nearest")
    if mode == b"nearest":
        nearest = _NEAREST[attributes.get("nearest_mode", b"round_prefer_floor")]
        if any(nearest(a - UNSURE) != nearest(a + UNSURE) and Fraction(float(np.float32(a))) != a for a in at):
            raise ModelError("two entries that are equally near up to rounding")
        single = _coordinate(np.arange(target, dtype=np.float32), size, target, np.float32(rate), np.float32(0.5), how)
        return taken([_agreed(nearest, a, b) for a, b in zip(at, single)])
    if mode != b"linear":
        raise ModelError("interpolation of another kind")
    low = [math.floor(a) for a in at]
    wide = (-1, *(1 for _ in x.shape[axis + 1 :]))
    part = np.array([arb(a.numerator) / a.denominator - n for a, n in zip(at, low)], dtype=object).reshape(wide)
    return _combined(reader, [(taken(low), arb(1) - part), (taken([n + 1 for n in low]), part)])


@operator("DequantizeLinear", since=10, until=12, operands=(2, 3))
@operator("DequantizeLinear", since=13, operands=(2, 3), axis=INT)
def _dequantize(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """Weights of 8 bits, ``(x - zero) scale``: one product of floats of the type of the file, as in runtimes."""
    x, scale, *zero = operands
    if isinstance(x, View) or x.dtype not in (np.int8, np.uint8) or (zero and zero[0].dtype != x.dtype):
        raise ModelError("anything but constants of 8 bits")
    scale = _real(scale)
    base = zero[0].astype(np.int64) if zero else np.zeros(scale.shape, dtype=np.int64)
    if scale.ndim > (reader.opset >= 13) or base.shape != scale.shape:
        raise ModelError("scales in blocks, or of another shape than the zero points")
    if scale.ndim == 1:
        axis = _axis(reader, attributes.get("axis", 1), x.ndim)
        wide = (-1, *(1 for _ in x.shape[axis + 1 :]))
        if len(scale) != x.shape[axis]:
            raise ModelError("scales that do not fit the axis")
        scale, base = scale.reshape(wide), base.reshape(wide)
    found = (x.astype(np.int64) - base).astype(reader.real) * scale.astype(reader.real)
    if not np.isfinite(found).all():
        raise ModelError("a weight that is not finite")
    return found.astype(np.float64)


@operator("RotaryEmbedding", since=23, operands=(3, 4), interleaved=INT, num_heads=INT, rotary_embedding_dim=INT)
def _rotary_embedding(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Pairs of entries turned by constant angles: ``(c a - s b, c b + s a)``; entries behind them stay as they are."""
    x, cosines, sines, *tokens = operands
    flat = len(x.shape) == 3
    y = _heads(_view(x), attributes.get("num_heads", 0)) if flat else _view(x)
    batch, _, count, width = y.shape
    turning = attributes.get("rotary_embedding_dim", 0) or width
    if turning % 2 or not 0 < turning <= width:
        raise ModelError("a rotation of more entries than there are, or of an odd number")
    first = np.arange(0, turning, 2) if attributes.get("interleaved", 0) else np.arange(turning // 2)
    second = first + 1 if attributes.get("interleaved", 0) else first + turning // 2
    partner = np.arange(width)
    partner[first], partner[second] = second, first
    own = np.ones((batch, 1, count, width))
    other = np.zeros_like(own)
    for table, full, sign in ((_real(cosines), own, 1.0), (_real(sines), other, -1.0)):
        if tokens:
            if _whole(tokens[0]).min(initial=0) < 0:
                raise ModelError("a token before the first")
            table = table[tokens[0]]
        if table.shape != (batch, count, turning // 2):
            raise ModelError("angles that do not fit the tokens")
        full[..., first], full[..., second] = sign * table[:, None], table[:, None]
    turned = y.moved(lambda index: index[..., partner])
    y = reader.sum([y, turned], [exact(own), exact(other)], 0.0, y.shape)
    return y.moved(lambda index: index.transpose(0, 2, 1, 3).reshape(x.shape)) if flat else y


def _heads(x: View, heads: int) -> View:
    batch, tokens, width = x.shape
    if heads < 1 or width % heads:
        raise ModelError("heads that do not fit the width")
    return x.moved(lambda index: index.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3))


_ATTENTION = {"is_causal": INT, "q_num_heads": INT, "kv_num_heads": INT, "scale": FLOAT, "softcap": FLOAT}
_ATTENTION |= {"qk_matmul_output_mode": INT, "softmax_precision": INT}


@operator("Attention", since=23, operands=(3, 4), **_ATTENTION)
def _attention(reader: _Reader, operands: Any, attributes: Any) -> View:
    """``softmax(scale q k' + mask) v`` by heads; fewer heads of keys are shared by neighbouring queries.

    What an output that is not there would hold, and how exactly the runtime computes, is no matter here.
    """
    if attributes.get("softcap", 0.0) or attributes.get("softmax_precision", 1) not in (1, 11):
        raise ModelError("capped logits, or a softmax in anything but float or double")
    flat = len(operands[0].shape) == 3
    names = ("q_num_heads", "kv_num_heads", "kv_num_heads")
    q, k, v = (_heads(_view(x), attributes.get(name, 0)) if flat else _view(x) for x, name in zip(operands, names))
    (batch, heads, tokens, width), (_, shared, keys, _) = q.shape, k.shape
    named = attributes.get("q_num_heads", heads), attributes.get("kv_num_heads", shared)
    if named != (heads, shared) or heads % shared or v.shape[:3] != k.shape[:3]:
        raise ModelError("heads of queries, keys and values that do not fit each other")
    each = np.arange(heads) // (heads // shared)
    k, v = (t.moved(lambda index: index[:, each]) for t in (k, v))
    scale = arb(float(attributes["scale"])) if "scale" in attributes else arb(1) / arb(width).sqrt()
    if not scale > 0:
        raise ModelError("a scale that is not positive")
    mask = np.zeros((tokens, keys))
    if len(operands) > 3:
        mask = operands[3]
        mask = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else _real(mask, masks=True)
        if not 2 <= mask.ndim <= 4 or mask.shape[-2:] != (tokens, keys):
            raise ModelError("a mask of another shape than tokens by keys")
    if attributes.get("is_causal", 0):
        mask = mask + np.where(np.arange(keys) > np.arange(tokens)[:, None], -np.inf, 0.0)
    logits = reader.einsum(q, k, [0, 1, 2, 4], [0, 1, 3, 4], [0, 1, 2, 3])
    hidden = reader.sum([logits], [np.array(scale, dtype=object)], mask, logits.shape)
    p = _rows_softmax(reader, hidden, lambda places: places.reshape(-1, keys))
    y = reader.einsum(p, v, [0, 1, 2, 3], [0, 1, 3, 4], [0, 1, 2, 4])
    return y.moved(lambda index: index.transpose(0, 2, 1, 3).reshape(batch, tokens, -1)) if flat else y


# Masks


@operator("Where", since=9, operands=(3, 3))
def _where(reader: _Reader, operands: Any, attributes: Any) -> View:
    """A constant choice between variables and constants; or a guard behind a softmax, or the cases of a softplus.

    Theorem: probabilities are numbers where a row has a visible logit, and in other rows the guard makes them 0.
    """
    condition, a, b = operands
    if isinstance(condition, Above):
        return _straight(reader, condition, a, b)
    if isinstance(condition, Undefined):
        if not _same(condition.view, b) or isinstance(a, View) or _real(a).any():
            raise ModelError("anything but 0 where a softmax is not a number")
        if np.broadcast_shapes(_shape(a), b.shape) != b.shape:
            raise ModelError("a constant of a larger shape")
        if isinstance(b, View):
            return b
        return reader.sum([b.view], [exact((~b.empty).astype(np.float64))], 0.0, b.shape)
    if isinstance(condition, View) or condition.dtype != np.bool_ or not (isinstance(a, View) or isinstance(b, View)):
        raise ModelError("anything but a constant choice")
    shape = np.broadcast_shapes(condition.shape, _shape(a), _shape(b))
    if isinstance(a, View) and isinstance(b, View):
        return reader.sum([a, b], [exact(c.astype(np.float64)) for c in (condition, ~condition)], 0.0, shape)
    chosen = np.broadcast_to(condition if isinstance(a, View) else ~condition, shape)
    x, constant = (a, b) if isinstance(a, View) else (b, a)
    bias = np.where(chosen, 0.0, np.broadcast_to(_real(constant, masks=True), shape))
    return reader.sum([x], [exact(chosen.astype(np.float64))], bias, shape)


class Undefined:
    """Whether the entries of a tensor are numbers; only a guard may ask."""

    def __init__(self, view: View | Emptied) -> None:
        self.view, self.shape, self.size = view, view.shape, view.size


class Above:
    """Whether the entries of a tensor are above a threshold; only the cases of a softplus may ask."""

    def __init__(self, view: View, threshold: float) -> None:
        self.view, self.threshold, self.shape, self.size = view, threshold, view.shape, view.size


@operator("Greater", since=7, operands=(2, 2))
def _is_above(reader: _Reader, operands: Any, attributes: Any) -> Any:
    x, threshold = operands
    if isinstance(threshold, View) or threshold.size != 1 or threshold.ndim > len(_view(x).shape):
        raise ModelError("a comparison with anything but one constant")
    return Above(x, float(_real(threshold).ravel()[0]))


def _straight(reader: _Reader, above: Above, x: Any, curve: Any) -> View:
    """``where(x > t, x, softplus(x))``.

    Theorem: for t > 0 it is ``c softplus(x)`` with ``1 - log(1 + exp(-t)) / t <= c <= 1``, because above t it is less
    than softplus by ``log(1 + exp(-x))``, and softplus is more than t. From t = 1 on, c is above 2/3.
    """
    node = reader.networks.nodes[curve.node] if isinstance(curve, View) else None
    if not isinstance(node, Curve) or node.kind != "softplus" or not isinstance(x, View) or not above.threshold >= 1:
        raise ModelError("other cases than those of a softplus with a threshold of 1 or more")
    if curve.shape != x.shape or curve.index.flat != list(range(curve.size)):
        raise ModelError("a softplus whose entries are in another order")
    if not _same(above.view, x) or above.shape != x.shape or not _same(node.x, x.flat()):
        raise ModelError("a softplus of another value than the one that is compared")
    t = arb(above.threshold)
    return _scaled(reader, curve, arb(1).union(1 - (-t).exp().log1p() / t))


@operator("IsNaN", since=9)
def _is_nan(reader: _Reader, operands: Any, attributes: Any) -> Any:
    x = operands[0]
    if not isinstance(x, Emptied) and not isinstance(reader.networks.nodes[_view(x).node], Softmax):
        raise ModelError("a question about anything but a softmax")
    return Undefined(x)


def _same(a: View | Emptied, b: Any) -> bool:
    if isinstance(a, Emptied) or not isinstance(b, View):
        return a is b
    return a.node == b.node and bool(np.array_equal(a.index.at, b.index.at))


# Products that are curves


@operator("Mul", since=7, operands=(2, 2))
def _product_or_curve(reader: _Reader, operands: Any, attributes: Any) -> View:
    """``x sigmoid(x)`` is one curve; all else is a product."""
    for gate, x in (operands, operands[::-1]):
        if isinstance(gate, View) and isinstance(x, View):
            node = reader.networks.nodes[gate.node]
            if not (isinstance(node, Curve) and node.kind == "sigmoid" and gate.shape == x.shape):  # nothing broadcasts
                continue
            if gate.index.flat == list(range(gate.size)) and _same(node.x, x.flat()):
                return _curve(reader, x, "silu")
    return _multiply(reader, operands, attributes)


@operator("Div", since=7, operands=(2, 2))
def _quotient(reader: _Reader, operands: Any, attributes: Any) -> View:
    """By a variable: times its reciprocal."""
    x, y = operands
    if not isinstance(y, View):
        return _divide(reader, operands, attributes)
    return _product_or_curve(reader, [x, _curve(reader, y, "reciprocal")], attributes)
