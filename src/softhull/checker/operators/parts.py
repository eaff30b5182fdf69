"""What rules of operators are made of: views, curves, scaled sums, rectifiers, rows of places."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb
from onnx import AttributeProto

from ...errors import ModelError
from ..balls import Floats
from ..network import Curve, Emptied, Kink, Matrix, View, _axes, _limit, _list, _Reader, _shape

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
    return reader.networks.add(Matrix(len(weights), x.flat(), weights), shape)


def _rectified(reader: _Reader, x: View, shift: Any = 0.0) -> View:
    """``max(x + shift, 0)``."""
    moved = _scaled(reader, x, arb(1), shift) if np.any(shift) else x
    return reader.networks.add(Kink(x.size, moved.flat(), 0.0), x.shape)


def _combined(reader: _Reader, parts: list[tuple[View, Any]], bias: Any = 0.0) -> View:
    """The sum of views of one shape times scales, and a constant."""
    views = [view for view, _ in parts]
    scales = [np.asarray(scale, dtype=object) for _, scale in parts]
    return reader.sum(views, scales, np.asarray(bias, dtype=np.float64), views[0].shape)


def _reduced_axes(reader: _Reader, operands: Any, attributes: Any) -> tuple[int, ...]:
    """The axes of a reduction: where none are given all of them, or none where the node says so."""
    x, *given = operands
    wanted = _list(given[0]) if given else attributes.get("axes")
    if wanted is None or (given and not wanted):
        return () if attributes.get("noop_with_empty_axes", 0) else tuple(range(len(_shape(x))))
    return tuple(sorted(_axes(reader, wanted, len(_shape(x)))))


def _rows(x: View, axes: tuple[int, ...], keep: bool) -> tuple[np.ndarray, list[int]]:
    """The places that are made one, a row for each result, and the shape of the results."""
    places = np.arange(x.size).reshape(x.shape)
    rows = np.moveaxis(places, axes, range(-len(axes), 0)).reshape(-1, math.prod(x.shape[a] for a in axes))
    return rows, [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]


def _same(a: View | Emptied, b: Any) -> bool:
    if isinstance(a, Emptied) or not isinstance(b, View):
        return a is b
    return a.node == b.node and bool(np.array_equal(a.index.at, b.index.at))
