"""The least value of a small network over a box, by cutting the box ever finer; no bound of the library is used.

Boxes are bounded by the mean value form with intervals of the Jacobian, and fall onto a face where a derivative keeps
its sign. Intervals are not rounded outwards: what is found is a yardstick, not a proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softhull.graph.graph import Graph
from softhull.graph.operator import Operator
from softhull.graph.ops.add import Add
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.expand import Expand
from softhull.graph.ops.matmul import MatMul
from softhull.graph.ops.relu import LeakyRelu, Relu
from softhull.graph.ops.reshape import Reshape
from softhull.graph.ops.scale import Scale
from softhull.graph.ops.softmax import Softmax
from softhull.graph.ops.tanh import Tanh
from softhull.graph.ops.transpose import Transpose

TOGETHER = 1024  # boxes
MOST = 2e7  # numbers that are bounded

Parts = Sequence[tuple[Graph, Tensor]]
Interval = tuple[Tensor, Tensor]


@dataclass
class Least:
    """A least value lies between ``low`` and ``high``, which is attained at ``x``."""

    low: float
    high: float
    x: Tensor


def least(parts: Parts, lower: Tensor, upper: Tensor, near: float) -> Least:
    """The least sum of ``<row, graph(x)>`` over a box, to within ``near`` unless that takes too many boxes."""
    low, high = lower.flatten()[None], upper.flatten()[None]
    found = Least(torch.inf, torch.inf, low[0])  # low: of what is settled
    each = low.shape[1] * sum(math.prod(node.shape) for graph, _ in parts for node in graph.nodes)
    done = 0
    while True:
        ends = zip(low.split(TOGETHER), high.split(TOGETHER))
        bounds, *slopes = (torch.cat(some) for some in zip(*(_bound(parts, a, b) for a, b in ends)))
        down = slopes[0] + slopes[1] > 0
        points = torch.cat(((low + high) / 2, torch.where(down, low, high)))
        values = sum_of(parts, points)
        if float(values.min()) < found.high:
            found.high, found.x = float(values.min()), points[values.argmin()]
        done += each * len(low)
        left = bounds < found.high - near
        if not bool(left.any()) or done > MOST:
            found.low = min(found.low, float(bounds.min()))
            found.x = found.x.reshape(lower.shape)
            return found
        found.low = min([found.low, *bounds[~left].tolist()])
        low, high, slopes = low[left], high[left], [slope[left] for slope in slopes]
        rises, falls = slopes[0] >= 0, slopes[1] <= 0
        low, high = torch.where(falls & ~rises, high, low), torch.where(rises, low, high)
        widest = (torch.maximum(slopes[1], -slopes[0]) * (high - low)).argmax(1, keepdim=True)
        half = (low + high).gather(1, widest) / 2
        low, high = torch.cat((low, low.scatter(1, widest, half))), torch.cat((high.scatter(1, widest, half), high))


def sum_of(parts: Parts, x: Tensor) -> Tensor:
    """The sum of ``<row, graph(x)>`` at points ``[B, n]``."""
    outputs = [(graph(x.reshape(-1, *graph.input_shape)).flatten(1), row.flatten()) for graph, row in parts]
    return torch.stack([y @ row for y, row in outputs]).sum(0)


def _bound(parts: Parts, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the sum is at least over boxes ``[B, n]``, and the ranges ``[B, n]`` of its derivatives."""
    half = (high - low) / 2
    rough, middle, slopes = low.new_zeros(len(low)), low.new_zeros(len(low)), [torch.zeros_like(low)] * 2
    for graph, row in parts:
        last = _ranges(graph, low, high)
        plus, minus = row.flatten().clamp(min=0), row.flatten().clamp(max=0)
        (a, b), (da, db) = ([t.flatten(k) for t in ends] for k, ends in ((1, last.value), (2, last.slope)))
        rough = rough + a @ plus + b @ minus
        middle = middle + last.middle.flatten(1) @ row.flatten()
        slopes = [slopes[0] + da @ plus + db @ minus, slopes[1] + db @ plus + da @ minus]
    away = (torch.maximum(slopes[1], -slopes[0]) * half).sum(1)
    return torch.maximum(rough, middle - away), slopes[0], slopes[1]


@dataclass
class _Range:
    """What a node is over boxes: its values, its value in the middle ``[B, ...]``, its derivatives ``[B, n, ...]``."""

    value: Interval
    middle: Tensor
    slope: Interval


def _ranges(graph: Graph, low: Tensor, high: Tensor) -> _Range:
    B, n = low.shape
    shape = graph.input_shape
    unit = torch.eye(n, dtype=low.dtype).reshape(1, n, *shape).expand(B, n, *shape)
    low, high = (end.reshape(B, *shape) for end in (low, high))
    half = ((high - low) / 2).reshape(B, n)
    found = {-1: _Range((low, high), (low + high) / 2, (unit, unit))}
    for index, node in enumerate(graph.nodes):
        inputs = [found[i] for i in node.inputs]
        middle = node.operator.value(*(given.middle for given in inputs))
        value, slope = _through(node.operator, inputs)
        steep = torch.maximum(slope[1].abs(), slope[0].abs())
        away = (steep * half.reshape(B, n, *[1] * (steep.dim() - 2))).sum(1)
        value = torch.maximum(value[0], middle - away), torch.minimum(value[1], middle + away)
        found[index] = _Range(value, middle, slope)
    return found[len(graph.nodes) - 1]


def _through(operator: Operator, inputs: list[_Range]) -> tuple[Interval, Interval]:
    """The ranges of values and derivatives of a node."""
    x = inputs[0]
    match operator:
        case Dense() | Scale() | Reshape() | Transpose() | Expand():
            return _affine(operator, x.value, True), _affine(operator, x.slope, False)
        case Add():
            (a, b), (c, d) = zip(*(given.value for given in inputs)), zip(*(given.slope for given in inputs))
            return (sum(a), sum(b)), (sum(c), sum(d))  # type: ignore[return-value]
        case MatMul():
            y = inputs[1]
            one, other = _product(x.slope, _wide(y.value)), _product(_wide(x.value), y.slope)
            return _product(x.value, y.value), (one[0] + other[0], one[1] + other[1])
        case Softmax():
            return _softmax(operator.axis, x)
    low, high = x.value
    match operator:
        case Relu():
            steep = (low > 0).to(low), (high > 0).to(low)
        case LeakyRelu():
            steep = tuple(torch.where(end > 0, 1.0, operator.slope).to(low) for end in (low, high))  # type: ignore
        case Tanh():
            flat = 1 - torch.maximum(low.abs(), high.abs()).tanh() ** 2
            steep = flat, 1 - torch.minimum(high, torch.maximum(low, torch.zeros_like(low))).tanh() ** 2
        case _:
            raise NotImplementedError(operator.name)
    return (operator.value(low), operator.value(high)), _times(_wide(steep), x.slope)


def _affine(operator: Operator, ends: Interval, constant: bool) -> Interval:
    """An affine operator on ranges of values or of derivatives."""
    low, high = ends
    match operator:
        case Dense():
            assert not operator.left
            plus, minus = operator.matrix.clamp(min=0), operator.matrix.clamp(max=0)
            shift = operator.bias if constant and operator.bias is not None else 0.0
            return low @ plus + high @ minus + shift, high @ plus + low @ minus + shift
        case Scale():
            one, other = low * operator.factor, high * operator.factor
            shift = operator.shift if constant else 0.0
            return torch.minimum(one, other) + shift, torch.maximum(one, other) + shift
    if constant:
        return operator.value(low), operator.value(high)
    return tuple(operator.value(end.flatten(0, 1)).unflatten(0, end.shape[:2]) for end in ends)  # type: ignore


def _product(a: Interval, b: Interval) -> Interval:
    """Matrices times matrices, by middle and radius."""
    (p, q), (r, s) = (((low + high) / 2, (high - low) / 2) for low, high in (a, b))
    middle, away = p @ r, p.abs() @ s + q @ (r.abs() + s)
    return middle - away, middle + away


def _times(weight: Interval, x: Interval) -> Interval:
    """Weights, none of them negative, times ranges."""
    return torch.minimum(weight[0] * x[0], weight[1] * x[0]), torch.maximum(weight[0] * x[1], weight[1] * x[1])


def _wide(ends: Interval) -> Interval:
    """For all derivatives: ``[B, ...]`` as ``[B, 1, ...]``."""
    return ends[0][:, None], ends[1][:, None]


def _softmax(axis: int, x: _Range) -> tuple[Interval, Interval]:
    """``dp_i`` is the sum of ``p_i p_j (dx_i - dx_j)`` over the rivals j."""
    low, high = (end.movedim(axis + 1, -1) for end in x.value)
    least, most = (end.movedim(axis + 2, -1) for end in x.slope)
    own = torch.eye(low.shape[-1], dtype=torch.bool)
    rivals = (ends[0][..., None, :] - ends[1][..., :, None] for ends in ((high, low), (low, high)))  # x_j - x_i
    p_low, p_high = (1 / rival.masked_fill(own, 0.0).exp().sum(-1) for rival in rivals)
    pairs = p_low[..., :, None] * p_low[..., None, :], p_high[..., :, None] * p_high[..., None, :]
    apart = least[..., :, None] - most[..., None, :], most[..., :, None] - least[..., None, :]
    slope = [end.masked_fill(own, 0.0).sum(-1).movedim(-1, axis + 2) for end in _times(_wide(pairs), apart)]
    return (p_low.movedim(-1, axis + 1), p_high.movedim(-1, axis + 1)), (slope[0], slope[1])
