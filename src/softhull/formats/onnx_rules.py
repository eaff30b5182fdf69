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
from ..graph.builder import GraphBuilder
from ..graph.ops.relu import Relu
from ..graph.ops.softmax import Softmax

# A variable is a position in the graph, a constant an array, an absent optional input None.
Value = int | np.ndarray | None


@dataclass(frozen=True)
class Context:
    """What a rule works with besides its inputs."""

    graph: GraphBuilder
    attributes: dict[str, Any]
    opset: int
    outputs: int


Rule = Callable[..., "Value | tuple[Value, ...]"]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _real(value: Value) -> Tensor:
    """A constant as float64."""
    return torch.from_numpy(np.array(value, dtype=np.float64))


def _integers(value: Value) -> list[int]:
    if not isinstance(value, np.ndarray):
        raise ModelError("a shape, axis or index depends on the input")
    return [int(item) for item in value.reshape(-1)]


def _variable(value: Value) -> int:
    if not isinstance(value, int):
        raise ModelError("the first input must be variable, the others constant")
    return value


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} of a value with {rank} dimensions")
    return axis % rank


@_rule("Identity", "Dropout", "Cast")
def _identity(context: Context, x: int, *rest: Value) -> Value:
    return x


@_rule("Gemm")
def _gemm(context: Context, a: Value, b: Value, c: Value = None) -> Value:
    g, at = context.graph, context.attributes
    alpha, beta = float(at.get("alpha", 1.0)), float(at.get("beta", 1.0))
    if at.get("transA"):
        a = g.transpose(a, (1, 0)) if isinstance(a, int) else np.asarray(a).T
    if at.get("transB"):
        b = g.transpose(b, (1, 0)) if isinstance(b, int) else np.asarray(b).T
    y = _matmul(context, a, b)
    y = g.scale(y, alpha)
    if c is None or beta == 0:
        return y
    if isinstance(c, int):
        return g.sum_of(y, g.scale(c, beta))
    return g.scale(y, 1.0, beta * _real(c))


@_rule("MatMul")
def _matmul(context: Context, a: Value, b: Value) -> int:
    g = context.graph
    if isinstance(a, int) and isinstance(b, int):
        return g.matmul(a, b)
    if isinstance(a, int):
        return g.linear(a, _real(b))
    return g.linear(_variable(b), _real(a), left=True)


@_rule("Add")
def _add(context: Context, a: Value, b: Value) -> int:
    g = context.graph
    if isinstance(a, int) and isinstance(b, int):
        return g.sum_of(a, b)
    if isinstance(a, int):
        return g.scale(a, 1.0, _real(b))
    return g.scale(_variable(b), 1.0, _real(a))


@_rule("Mul")
def _mul(context: Context, a: Value, b: Value) -> int:
    g = context.graph
    if isinstance(a, int) and isinstance(b, int):
        return g.product(a, b)
    if isinstance(a, int):
        return g.scale(a, _real(b))
    return g.scale(_variable(b), _real(a))


@_rule("Relu")
def _relu(context: Context, x: int) -> Value:
    return context.graph.add(Relu(), x, shape=context.graph.shape(x))


@_rule("Clip")
def _clip(context: Context, x: int, low: Value = None, high: Value = None) -> Value:
    at = context.attributes
    least = float(np.asarray(low)) if low is not None else float(at.get("min", -math.inf))
    most = float(np.asarray(high)) if high is not None else float(at.get("max", math.inf))
    if least == 0 and most == math.inf:
        return context.graph.add(Relu(), x, shape=context.graph.shape(x))
    raise ModelError("not supported yet")


@_rule("Softmax")
def _softmax(context: Context, x: int) -> Value:
    g = context.graph
    shape = g.shape(x)
    axis = _axis(int(context.attributes.get("axis", -1 if context.opset >= 13 else 1)), len(shape))
    if context.opset >= 13 or axis == len(shape) - 1:
        return g.add(Softmax(axis), x, shape=shape)
    # Before opset 13 everything from the axis on is one distribution.
    flat = g.reshape(x, (*shape[:axis], math.prod(shape[axis:])))
    return g.reshape(g.add(Softmax(axis), flat, shape=g.shape(flat)), shape)


@_rule("Reshape")
def _reshape(context: Context, x: int, target: Value = None) -> Value:
    shape = context.graph.shape(x)
    sizes = _integers(target) if target is not None else list(context.attributes["shape"])
    if not context.attributes.get("allowzero"):
        sizes = [shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = math.prod(shape) // known if known else 0
    return context.graph.reshape(x, tuple(sizes))


@_rule("Flatten")
def _flatten(context: Context, x: int) -> Value:
    shape = context.graph.shape(x)
    axis = int(context.attributes.get("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return context.graph.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))


@_rule("Transpose")
def _transpose(context: Context, x: int) -> Value:
    rank = len(context.graph.shape(x))
    order = tuple(context.attributes.get("perm", range(rank - 1, -1, -1)))
    if sorted(order) != list(range(rank)):
        raise ModelError(f"permutation {order} of {rank} axes")
    return context.graph.transpose(x, order)


def _axes(context: Context, given: Value) -> list[int] | None:
    if given is not None:
        return _integers(given)
    axes = context.attributes.get("axes")
    return None if axes is None else [int(axis) for axis in axes]


@_rule("Squeeze")
def _squeeze(context: Context, x: int, axes: Value = None) -> Value:
    shape = context.graph.shape(x)
    chosen = _axes(context, axes)
    dropped = {i for i, size in enumerate(shape) if size == 1}
    if chosen is not None:
        dropped = {_axis(axis, len(shape)) for axis in chosen}
    return context.graph.reshape(x, tuple(size for i, size in enumerate(shape) if i not in dropped))


@_rule("Unsqueeze")
def _unsqueeze(context: Context, x: int, axes: Value = None) -> Value:
    shape = list(context.graph.shape(x))
    chosen = _axes(context, axes) or []
    rank = len(shape) + len(chosen)
    for axis in sorted(_axis(axis, rank) for axis in chosen):
        shape.insert(axis, 1)
    return context.graph.reshape(x, tuple(shape))
