"""Steps back for coefficients on a few positions of one axis: a row on one token, until attention mixes the tokens.

A row about one token has no coefficients on the others in all that is done token by token, which is most of the way
back to the attention before it. ``Some`` says where coefficients are, which are then kept without the zeros; a step
gives back the same for every input, or all of the coefficients of an input that is mixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import singledispatch
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.operator import Elementwise, Lines, Operator, Shape, constant_part
from ..graph.ops.add import Add, Subtract
from ..graph.ops.dense import Dense
from ..graph.ops.matmul import MatMul
from ..graph.ops.reshape import Reshape
from ..graph.ops.scale import Scale
from ..graph.ops.softmax import Softmax
from ..graph.ops.transpose import Transpose
from . import contraction, products, rules
from . import softmax_steps as softmaxes
from .scalar_products import are_pairs, remainders

if TYPE_CHECKING:
    from .crown import LinearBounds

# Axes shorter than this are not worth the calls; longer ones are walked for so many positions at once.
_SHORTEST, _TOGETHER = 8, 3


@dataclass(frozen=True, eq=False)
class Some:
    """The positions ``at`` along one axis of a node, outside of which coefficients are zero."""

    axis: int
    at: Tensor

    def of(self, t: Tensor, leading: int) -> Tensor:
        """What a tensor ``[..., *shape]`` with so many leading dimensions holds there."""
        return t.index_select(leading + self.axis, self.at)

    def whole(self, A: Tensor, shape: Shape) -> Tensor:
        """Coefficients ``[S, B, ...]`` with their zeros."""
        return A.new_zeros(*A.shape[:2], *shape).index_copy_(2 + self.axis, self.at, A)

    def along(self, axis: int) -> Some:
        """The same positions of another axis."""
        return self if axis == self.axis else Some(axis, self.at)

    def same(self, other: Some | None) -> bool:
        """Whether coefficients of both can be added up as they are."""
        return other is not None and self.axis == other.axis and self.at is other.at


def some(A: Tensor) -> Some | None:
    """Where ``A [S, B, *shape]`` is not zero, if that is a small part of a long axis."""
    long = [axis for axis, size in enumerate(A.shape[2:]) if size >= _SHORTEST]
    there = (A != 0).flatten(0, 1).any(0) if long else A
    best: Some | None = None
    for axis in long:
        at = there.movedim(axis, 0).reshape(there.shape[axis], -1).any(1).nonzero()[:, 0]
        if 0 < len(at) <= there.shape[axis] // 2 and (best is None or len(at) < len(best.at)):
            best = Some(axis, at)
    return best


def by_position(wanted: Tensor, shape: Shape) -> tuple[Tensor, int]:
    """Entries of a node in an order in which those of one token follow each other, and how many to take at once."""
    axis = max(range(len(shape)), key=lambda i: shape[i] if i < len(shape) - 1 else 0)
    if len(shape) < 2 or shape[axis] < _SHORTEST or not len(wanted):
        return wanted, len(wanted)
    place = wanted // math.prod(shape[axis + 1 :]) % shape[axis]
    each = math.ceil(len(wanted) / shape[axis])
    return wanted[place.argsort(stable=True)], _TOGETHER * each


# What is given back: coefficients by input, each with where they are (None: all of them), and the constant.
Found = tuple[list[tuple[Tensor, Some | None]], Tensor]


@singledispatch
def some_step(operator: Operator, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    """One step for coefficients without their zeros; None where an operator has no rule for these."""
    return None


@some_step.register(Add)
def _(operator: Add, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    return [(A, where), (A, where)], A.new_zeros(A.shape[:2])


@some_step.register(Subtract)
def _(operator: Subtract, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    return [(A, where), (-A, where)], A.new_zeros(A.shape[:2])


@some_step.register(Transpose)
def _(operator: Transpose, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    (back,), constant = operator.backward(A, ())
    return [(back, where.along(operator.order[where.axis]))], constant


@some_step.register(Reshape)
def _(operator: Reshape, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    node = bounds.graph.nodes[index]
    shape, axis = bounds.graph.shape_of(node.inputs[0]), where.axis
    before, size = math.prod(node.shape[:axis]), node.shape[axis]
    for i, own in enumerate(shape):
        if own == size and math.prod(shape[:i]) == before:
            kept = (*shape[:i], len(where.at), *shape[i + 1 :])
            return [(A.reshape(*A.shape[:2], *kept), where.along(i))], A.new_zeros(A.shape[:2])
    return None


@some_step.register(Scale)
def _(operator: Scale, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    shape = bounds.graph.nodes[index].shape
    factor, shift = (where.of(t.expand(shape), 0) for t in (operator.factor, operator.shift))
    (back,), constant = Scale(factor, shift).backward(A, ())
    return [(back, where)], constant


@some_step.register(Dense)
def _(operator: Dense, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    shape = bounds.graph.nodes[index].shape
    if operator.left or operator.matrix.ndim > 2 or where.axis == len(shape) - 1:
        return None
    back = A @ operator.matrix.mT
    if operator.bias is None:
        return [(back, where)], A.new_zeros(A.shape[:2])
    return [(back, where)], constant_part(A, where.of(operator.bias.expand(shape), 0))


@some_step.register(Elementwise)
def _(operator: Elementwise, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    lines = rules.lines_of(operator, bounds, index)
    lines = Lines(*(where.of(getattr(lines, f.name), 1) for f in fields(lines)))
    (back,), constant = rules.between_lines(A, lines)
    return [(back, where)], constant


@some_step.register(MatMul)
def _(operator: MatMul, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    inputs, rank, axis = bounds.graph.nodes[index].inputs, len(operator.left), where.axis
    masked = any(bounds.structure.masked(i) is not None for i in inputs)
    plain = rank >= 2 and operator.left[:-2] == operator.right[:-2] and not masked
    if not plain or (bounds.method.simplex and contraction.is_mixed(bounds, index)):
        return None
    most = None
    if bounds.joint:
        if not are_pairs(bounds, index):
            return None
        most = where.of(remainders(bounds, index), 1)
    # Rows are those of the left factor, columns those of the right one, of which all the others are mixed.
    cut = (axis != rank - 1, axis != rank - 2)
    x, y = (
        tuple(where.of(end, 1) for end in bounds.interval(i)) if there else bounds.interval(i)
        for i, there in zip(inputs, cut)
    )
    small = MatMul(tuple(x[0].shape[1:]), tuple(y[0].shape[1:]))
    backs, constant = products.planes_below(small, bounds, index, A, None, (x[0], x[1]), (y[0], y[1]), most)
    return [(back, where if there else None) for back, there in zip(backs, cut)], constant


@some_step.register(Softmax)
def _(operator: Softmax, bounds: LinearBounds, index: int, A: Tensor, where: Some) -> Found | None:
    planes = softmaxes.row_planes(bounds, index)
    if where.axis == operator.axis or not isinstance(planes, softmaxes.DensePlanes):
        return None
    shape = bounds.graph.nodes[index].shape
    others = [size for axis, size in enumerate(shape) if axis != operator.axis]
    rows = torch.arange(math.prod(others), device=A.device).reshape(others)
    rows = where.along(where.axis - (where.axis > operator.axis)).of(rows, 0).flatten()
    (back,), constant = softmaxes.below_rows(bounds, operator.axis, A, planes.of_rows(rows))
    return [(back, where)], constant
