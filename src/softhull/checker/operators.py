"""Operators that are made of others, in exact arithmetic: normalisation, windows, curves, what moves entries.

Every rule returns the very function that the standard defines. Weights that are no numbers of a float, as 1/n, are
scales of a sum, which are balls.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from flint import arb
from onnx import AttributeProto, TensorProto

from ..errors import ModelError
from .balls import Floats, exact
from .network import (
    Curve,
    Kink,
    Linear,
    Product,
    Softmax,
    Value,
    View,
    _add,
    _axes,
    _axis,
    _divide,
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
    return reader.networks.add(Linear(len(weights), x.flat(), weights), shape)


# Curves

for _name, _since, _kind in (
    ("Exp", 6, "exp"),
    ("Log", 6, "log"),
    ("Sqrt", 6, "sqrt"),
    ("Reciprocal", 6, "reciprocal"),
    ("Sigmoid", 6, "sigmoid"),
    ("Tanh", 6, "tanh"),
    ("Erf", 9, "erf"),
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
    x, exponent = operands
    if isinstance(exponent, View) or exponent.size != 1 or np.broadcast_shapes(_shape(x), exponent.shape) != _shape(x):
        raise ModelError("an exponent that is not one constant number")
    kinds = {2.0: "square", 3.0: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    power = float(exponent.reshape(()))
    if power not in kinds:
        raise ModelError(f"powers other than {sorted(kinds)}")
    return _curve(reader, x, kinds[power])


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


@operator("PRelu", since=9, operands=(2, 2))
def _prelu(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``max(x, 0) + s min(x, 0) = s x + (1 - s) max(x, 0)``."""
    x, slope = _view(operands[0]), exact(_real(operands[1]))
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


@operator("Neg", since=6)
def _negative(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _scaled(reader, _view(operands[0]), arb(-1))


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


def _reduction(reader: _Reader, operands: Any, attributes: Any, mean: bool) -> View:
    x, *given = operands
    if attributes.get("noop_with_empty_axes", 0):
        raise ModelError("no axes that mean none")
    wanted = _list(given[0]) if given else attributes.get("axes", range(len(_shape(x))))
    axes = tuple(sorted(_axes(reader, wanted, len(_shape(x)))))
    return _reduced(reader, _view(x), axes, bool(attributes.get("keepdims", 1)), mean)


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
    if _shape(scale) != x.shape[first:] or attributes.get("stash_type", 1) not in (1, 11):
        raise ModelError("constants of another shape, or a mean in anything but float or double")
    epsilon = attributes.get("epsilon", float(np.float32(1e-5)))
    return _scaled(reader, _steadied(reader, x, tuple(range(first, len(x.shape))), epsilon), exact(_real(scale)))


@operator("BatchNormalization", since=9, operands=(5, 5), epsilon=FLOAT, momentum=FLOAT, training_mode=INT)
def _batch_normalization(reader: _Reader, operands: Any, attributes: Any) -> View:
    """``(x - mean) scale / sqrt(variance + epsilon) + bias``: two sums, since the shift must be a float."""
    x, constants = _view(operands[0]), [_real(value) for value in operands[1:]]
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
    """For every space axis, in one array ``[*steps, *size]`` of places of one channel, -1 in the padding."""
    space = list(x.shape[2:])
    rank = len(size)
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or attributes.get("ceil_mode", 0):
        raise ModelError("automatic pads or windows that are rounded up")
    if attributes.get("auto_pad", b"NOTSET") == b"VALID" and "pads" in attributes:
        raise ModelError("pads beside automatic ones")
    strides, dilations = (list(attributes.get(key, [1] * rank)) for key in ("strides", "dilations"))
    pads = list(attributes.get("pads", [0] * (2 * rank)))
    lengths = {len(space), len(strides), len(dilations), rank, len(pads) // 2}
    if len(lengths) > 1 or len(pads) % 2 or min(*size, *strides, *dilations) < 1 or min(pads) < 0:
        raise ModelError("a window that does not fit its operand")
    found, steps = np.zeros((1,) * (2 * rank), dtype=np.int64), []
    outside = np.zeros((1,) * (2 * rank), dtype=bool)
    for i in range(rank):
        over = space[i] + pads[i] + pads[rank + i] - dilations[i] * (size[i] - 1) - 1
        if over < 0:
            raise ModelError("a window larger than its operand")
        steps.append(over // strides[i] + 1)
        _limit(math.prod(steps) * math.prod(size))
        at = np.arange(steps[i])[:, None] * strides[i] - pads[i] + np.arange(size[i]) * dilations[i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = at.shape
        at = at.reshape(shape)
        found = found * space[i] + np.clip(at, 0, space[i] - 1)
        outside = outside | (at < 0) | (at >= space[i])
    found, outside = np.broadcast_arrays(found, outside)
    return np.where(outside, -1, found), steps


@operator("Conv", since=1, operands=(2, 3), group=INT, **_WINDOW)
def _convolution(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: a convolution is a matrix that holds the kernel in every row, each number of it once."""
    x, kernel, *bias = operands
    x, kernel = _view(x), _real(kernel)
    size, groups = list(kernel.shape[2:]), attributes.get("group", 1)
    if list(attributes.get("kernel_shape", size)) != size or len(x.shape) != kernel.ndim or x.shape[0] != 1:
        raise ModelError("a kernel of another shape than declared, or several pictures at once")
    if groups < 1 or kernel.shape[0] % groups or kernel.shape[1] * groups != x.shape[1]:
        raise ModelError("a kernel that does not fit the channels")
    where, steps = _windows(x, size, attributes)
    where = where.reshape(math.prod(steps), -1)
    one = math.prod(x.shape[2:])
    outputs, fan = kernel.shape[:2]
    _limit(outputs * len(where) * x.size)
    weights = np.zeros((outputs, len(where), x.size))
    row, column = np.nonzero(where >= 0)
    for out in range(outputs):
        for i in range(fan):
            channel = out // (outputs // groups) * fan + i
            weights[out, row, channel * one + where[row, column]] = kernel[out, i].ravel()[column]
    found = _linear(reader, x, weights.reshape(-1, x.size), (1, outputs, *steps))
    if not bias:
        return found
    if _real(bias[0]).shape != (outputs,):
        raise ModelError("a bias that does not have one entry per channel")
    return _scaled(reader, found, arb(1), bias[0].reshape(-1, *(1 for _ in steps)))


@operator("ConvTranspose", since=1, operands=(2, 3), group=INT, output_padding=INTS, **_WINDOW)
def _transposed_convolution(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: entry p of the input adds its kernel to the output from ``p stride - pad`` on."""
    x, kernel, *bias = operands
    x, kernel = _view(x), _real(kernel)
    size, groups = list(kernel.shape[2:]), attributes.get("group", 1)
    rank = len(size)
    if list(attributes.get("kernel_shape", size)) != size or attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ModelError("a kernel of another shape than declared, or automatic pads")
    if groups < 1 or len(x.shape) != kernel.ndim or x.shape[:2] != (1, kernel.shape[0]) or x.shape[1] % groups:
        raise ModelError("a kernel that does not fit the channels, or several pictures at once")
    strides, dilations = (list(attributes.get(key, [1] * rank)) for key in ("strides", "dilations"))
    extra, pads = list(attributes.get("output_padding", [0] * rank)), list(attributes.get("pads", [0] * (2 * rank)))
    if {len(strides), len(dilations), len(extra), len(pads) // 2} != {rank} or min(*strides, *dilations) < 1:
        raise ModelError("a window that does not fit its operand")
    space = list(x.shape[2:])
    grown = [
        (space[i] - 1) * strides[i] + dilations[i] * (size[i] - 1) + 1 - pads[i] - pads[rank + i] + extra[i]
        for i in range(rank)
    ]
    if min(*grown) < 1 or min(*extra, *pads) < 0:
        raise ModelError("pads that leave nothing")
    each, outputs = kernel.shape[1], kernel.shape[1] * groups
    _limit(outputs * math.prod(grown) * x.size)
    _limit(x.size * math.prod(size))
    weights = np.zeros((outputs, *grown, x.shape[1], *space))
    for place in np.ndindex(*space):
        for offset in np.ndindex(*size):
            at = tuple(p * s - a + o * d for p, s, a, o, d in zip(place, strides, pads, offset, dilations))
            if not all(0 <= a < n for a, n in zip(at, grown)):
                continue
            for channel in range(x.shape[1]):
                group = channel // (x.shape[1] // groups)
                weights[(slice(group * each, (group + 1) * each), *at, channel, *place)] = kernel[
                    (channel, slice(None), *offset)
                ]
    found = _linear(reader, x, weights.reshape(-1, x.size), (1, outputs, *grown))
    if not bias:
        return found
    if _real(bias[0]).shape != (outputs,):
        raise ModelError("a bias that does not have one entry per channel")
    return _scaled(reader, found, arb(1), bias[0].reshape(-1, *(1 for _ in grown)))


@operator("MaxPool", since=8, operands=(1, 1), storage_order=INT, ceil_mode=INT, **_WINDOW)
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
@operator("ReduceMax", since=18, operands=(1, 2), keepdims=INT)
def _reduce_max(reader: _Reader, operands: Any, attributes: Any, sign: int = 1) -> View:
    x, *given = operands
    x = _view(x)
    wanted = _list(given[0]) if given else attributes.get("axes", range(len(x.shape)))
    axes = tuple(sorted(_axes(reader, wanted, len(x.shape))))
    places = np.arange(x.size).reshape(x.shape)
    rows = np.moveaxis(places, axes, range(-len(axes), 0)).reshape(-1, math.prod(x.shape[a] for a in axes))
    keep = bool(attributes.get("keepdims", 1))
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]
    turned = x if sign > 0 else _scaled(reader, x, arb(-1))
    found = _largest(reader, turned, rows, shape)
    return found if sign > 0 else _scaled(reader, found, arb(-1))


@operator("ReduceMin", since=1, until=17, axes=INTS, keepdims=INT)
@operator("ReduceMin", since=18, operands=(1, 2), keepdims=INT)
def _reduce_min(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _reduce_max(reader, operands, attributes, -1)


@operator("Sum", since=8, operands=(1, MOST_SUMMANDS))
def _sum(reader: _Reader, operands: Any, attributes: Any) -> View:
    found = operands[0]
    for other in operands[1:]:
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


# The end of a network


@operator("LogSoftmax", since=13, axis=INT)
def _log_softmax(reader: _Reader, operands: Any, attributes: Any) -> View:
    """As a softmax, at the end only. Theorem: the logarithm keeps the order, and softmax(log p) is p.

    The one entry of a row of one is 0, and not 1: such rows have no order and are refused.
    """
    axis = _axis(reader, attributes.get("axis", -1), len(_shape(operands[0])))
    if _shape(operands[0])[axis] < 2:
        raise ModelError("the logarithm of rows of one probability")
    return _rows_softmax(reader, operands[0], lambda p: np.moveaxis(p, axis, -1).reshape(-1, p.shape[axis]))


# Operators that move entries


@operator("Slice", since=10, operands=(3, 5))
def _slice(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, starts, ends, *more = operands
    first, last = _list(starts), _list(ends)
    axes = _list(more[0]) if more and more[0] is not None else list(range(len(first)))
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
    x, *given = operands
    axis = _axis(reader, attributes.get("axis", 0), len(_shape(x)))
    size, count = _shape(x)[axis], reader.outputs
    if given or "split" in attributes:
        parts = _list(given[0]) if given else list(attributes["split"])
    elif size % count or attributes.get("num_outputs", count) != count:
        raise ModelError(f"{size} entries in {count} parts of unknown size")
    else:
        parts = [size // count] * count
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


@operator("GatherND", since=12, operands=(2, 2), batch_dims=INT)
def _gather_nd(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, where = operands
    if attributes.get("batch_dims", 0):
        raise ModelError("batched indices")
    if isinstance(where, View) or where.dtype.kind != "i" or not 1 <= where.shape[-1] <= len(_shape(x)):
        raise ModelError("indices that are not constant whole numbers, or of too many axes")
    sizes = np.array(_shape(x)[: where.shape[-1]])
    if ((where < -sizes) | (where >= sizes)).any():
        raise ModelError("an index out of range")
    _limit(where.size * math.prod(_shape(x)))
    return _moved(lambda t: t[tuple(np.moveaxis(where, -1, 0))], x)


@operator("Cast", since=6, to=INT)
def _cast(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """To the type of the input, which a variable has."""
    if attributes["to"] != {np.float32: 1, np.float64: 11}[reader.real.type]:
        raise ModelError("another type than that of the input")
    return _view(operands[0])


@operator("Dropout", since=7)
def _dropout(reader: _Reader, operands: Any, attributes: Any) -> Value:
    return _view(operands[0])


@operator("Tile", since=6, operands=(2, 2))
def _tile(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, times = operands[0], _list(operands[1])
    if len(times) != len(_shape(x)) or min(times, default=1) < 1:
        raise ModelError("repeats that do not fit the operand")
    _limit(math.prod(_shape(x)) * math.prod(times))
    return _moved(lambda t: np.tile(t, times), x)


@operator("DepthToSpace", since=11, blocksize=INT, mode=STRING)
def _depth_to_space(reader: _Reader, operands: Any, attributes: Any) -> Value:
    n, c, h, w = _view(operands[0]).shape
    size = attributes["blocksize"]
    inner, outer = (n, size, size, c // size**2, h, w), (n, c // size**2, h * size, w * size)
    if attributes.get("mode", b"DCR") == b"DCR":
        return _moved(lambda t: t.reshape(inner).transpose(0, 3, 4, 1, 5, 2).reshape(outer), operands[0])
    inner = (n, c // size**2, size, size, h, w)
    return _moved(lambda t: t.reshape(inner).transpose(0, 1, 4, 2, 5, 3).reshape(outer), operands[0])


# Masks


@operator("Where", since=9, operands=(3, 3))
def _where(reader: _Reader, operands: Any, attributes: Any) -> View:
    """A constant choice between a variable and a constant; or a guard behind a softmax, which has nothing to do.

    Theorem: probabilities are numbers where a row has a visible logit, and other rows are refused.
    """
    condition, a, b = operands
    if isinstance(condition, Undefined):
        if not isinstance(b, View) or not _same(condition.view, b) or isinstance(a, View) or _real(a).any():
            raise ModelError("anything but 0 where a softmax is not a number")
        if np.broadcast_shapes(_shape(a), b.shape) != b.shape:
            raise ModelError("a constant of a larger shape")
        return b
    if isinstance(condition, View) or condition.dtype != np.bool_ or isinstance(a, View) == isinstance(b, View):
        raise ModelError("anything but a constant choice between a variable and a constant")
    shape = np.broadcast_shapes(condition.shape, _shape(a), _shape(b))
    chosen = np.broadcast_to(condition if isinstance(a, View) else ~condition, shape)
    x, constant = (a, b) if isinstance(a, View) else (b, a)
    bias = np.where(chosen, 0.0, np.broadcast_to(_real(constant, masks=True), shape))
    return reader.sum([x], [exact(chosen.astype(np.float64))], bias, shape)


class Undefined:
    """Whether the entries of a tensor are numbers; only a guard may ask."""

    def __init__(self, view: View) -> None:
        self.view, self.shape, self.size = view, view.shape, view.size


@operator("IsNaN", since=9)
def _is_nan(reader: _Reader, operands: Any, attributes: Any) -> Any:
    x = _view(operands[0])
    if not isinstance(reader.networks.nodes[x.node], Softmax):
        raise ModelError("a question about anything but a softmax")
    return Undefined(x)


def _same(a: View, b: View) -> bool:
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
