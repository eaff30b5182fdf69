"""The largest and the least."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb

from ...errors import ModelError
from ..network import Kink, Value, View, _add, _limit, _Reader, _real, _whole, operator
from ..positions import Places
from .parts import INT, INTS, MOST_SUMMANDS, _reduced_axes, _rows, _scaled, _view


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
