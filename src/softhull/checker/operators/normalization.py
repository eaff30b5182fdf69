"""Layers that normalise: by all entries, by groups, by numbers of the file."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb
from onnx import TensorProto

from ...errors import ModelError
from ..balls import Floats, exact
from ..network import Product, View, _axis, _limit, _Reader, _real, _shape, operator
from ..positions import Entries
from .parts import FLOAT, INT, _curve, _linear, _scaled, _view
from .sums import _reduced


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
