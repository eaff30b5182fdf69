"""Convolutions and pools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb

from ...errors import ModelError
from ..balls import Floats, exact
from ..network import View, _limit, _Reader, _real, operator
from .extremes import _largest
from .parts import INT, INTS, STRING, _linear, _rows, _scaled, _view

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
