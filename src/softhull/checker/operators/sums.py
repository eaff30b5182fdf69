"""Sums, means, norms and products along axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb

from ...errors import ModelError
from ..network import Value, View, _add, _limit, _multiply, _Reader, _whole, operator
from ..positions import Places
from .curves import _absolute
from .parts import INT, INTS, MOST_SUMMANDS, _curve, _linear, _reduced_axes, _rows, _scaled, _view


def _reduced(reader: _Reader, x: View, axes: tuple[int, ...], keep: bool, mean: bool) -> View:
    """Theorem: the mean of n numbers is their sum times 1/n."""
    rows, shape = _rows(x, axes, keep)
    _limit(len(rows) * x.size)
    weights = np.zeros((len(rows), x.size))
    weights[np.arange(len(rows))[:, None], rows] = 1.0
    found = _linear(reader, x, weights, shape)
    return _scaled(reader, found, arb(1) / rows.shape[1]) if mean else found


def _reduction(reader: _Reader, operands: Any, attributes: Any, mean: bool, kind: str = "") -> View:
    """The sum or the mean over axes, of a curve of the entries where a kind is given."""
    x = operands[0]
    axes = _reduced_axes(reader, operands, attributes)
    if not axes and kind:
        raise ModelError("no axes, of which it is not clear what is left to do")
    y = _curve(reader, x, kind) if kind else _view(x)
    return _reduced(reader, y, axes, bool(attributes.get("keepdims", 1)), mean) if axes else y


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


@operator("Sum", since=8, operands=(1, MOST_SUMMANDS))
def _sum(reader: _Reader, operands: Any, attributes: Any) -> View:
    found, *others = sorted(operands, key=lambda part: not isinstance(part, View))  # two constants are not added
    for other in others:
        found = _add(reader, [found, other], {})
    return _view(found)


@operator("Mean", since=8, operands=(1, MOST_SUMMANDS))
def _mean(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _scaled(reader, _sum(reader, operands, attributes), arb(1) / len(operands))
