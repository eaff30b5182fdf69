"""Only what reaches the answer: entries that no output depends on are never computed, equal sub-graphs only once.

A network that classifies its class token needs one query, and one row of its last MLP, not all of them. What is asked
of a value is one set of positions per axis; every operator says what it asks of its inputs in turn, so that slices and
gathers move up to where their input is computed. Keys that a mask of -inf hides from every query that is asked for have
probability 0: neither they nor their values are computed. What is left has the values that it had before: nothing is
multiplied or added up, rows and columns are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from .builder import GraphBuilder
from .graph import Graph
from .operator import Affine, Elementwise, Operator, Shape
from .ops.add import Add, Subtract
from .ops.centre import Centre
from .ops.concat import Concat
from .ops.dense import Dense
from .ops.expand import Expand
from .ops.gather import Gather
from .ops.log_sum_exp import LogSumExp
from .ops.matmul import MatMul
from .ops.near import Near
from .ops.normalize import InverseDeviation, Normalized
from .ops.product import Product
from .ops.reshape import Reshape
from .ops.scale import Scale
from .ops.slice import Slice
from .ops.softmax import Softmax
from .ops.sum import Sum
from .ops.transpose import Transpose

# The positions that are asked for along every axis, in ascending order.
Part = tuple[tuple[int, ...], ...]

# A value is computed in so many separate pieces at most, where they have little in common.
_PIECES = 4


@dataclass(frozen=True)
class Piece:
    """A part of the output of an operator, what it needs of each input, and how it is computed from that."""

    part: Part
    needs: tuple[Part, ...]
    build: Callable[..., int]  # of the builder and the positions of the inputs


def only_needed(graph: Graph) -> Graph:
    """The same function without the entries that its output does not depend on."""
    last = len(graph.nodes) - 1
    asked: dict[int, list[Part]] = {last: [whole(graph.output_shape)]}
    pieces: dict[int, list[Piece]] = {}
    support = _support(graph)
    for index in range(last, -1, -1):
        node = graph.nodes[index]
        shapes = tuple(graph.shape_of(i) for i in node.inputs)
        pieces[index] = []
        for part in _apart(asked.get(index, []), isinstance(node.operator, Affine)):
            piece = restrict(node.operator, part, node.shape, *shapes)
            if isinstance(node.operator, MatMul):
                piece = _without_zeros(piece, *(support.get(i) for i in node.inputs))
            pieces[index].append(piece)
            for i, need in zip(node.inputs, piece.needs):
                asked.setdefault(i, []).append(need)
    builder = _Sharing(graph.input_shape)
    at: dict[int, list[tuple[Part, int]]] = {-1: [(whole(graph.input_shape), -1)]}
    for index, node in enumerate(graph.nodes):
        at[index] = []
        builder.label = node.label
        for piece in pieces[index]:
            inputs = [builder.pick(at[i], need) for i, need in zip(node.inputs, piece.needs)]
            at[index].append((piece.part, piece.build(builder, *inputs)))
    return builder.finish(at[last][0][1])


def _support(graph: Graph) -> dict[int, Tensor]:
    """Where probabilities may be other than 0, for those that a mask of -inf makes 0 somewhere, wherever they move."""
    found: dict[int, Tensor] = {}
    for index, node in enumerate(graph.nodes):
        operator = node.operator
        if isinstance(operator, Softmax) and operator.mask is not None and bool(operator.mask.isneginf().any()):
            seen = ~operator.mask.isneginf().expand(node.shape)
            found[index] = seen | ~seen.any(operator.axis, keepdim=True)  # a row without any is not a number
        elif node.inputs and node.inputs[0] in found and keeps_zeros(operator):
            found[index] = operator.value(found[node.inputs[0]][None].to(torch.float64))[0] != 0
    return found


def keeps_zeros(operator: Operator) -> bool:
    """Whether every entry of the output is a multiple of one entry of the only input."""
    if isinstance(operator, Scale):
        return bool((operator.shift == 0).all())
    return isinstance(operator, Reshape | Transpose | Slice | Gather | Expand)


def _without_zeros(piece: Piece, left: Tensor | None, right: Tensor | None) -> Piece:
    """A part of a matrix product without the terms of which a factor is 0, in all entries of the part."""
    (*stacks, rows, inner), (*others, _, columns) = piece.needs
    read = torch.ones(len(inner), dtype=torch.bool)
    for support, need, axis in ((left, piece.needs[0], -1), (right, piece.needs[1], -2)):
        if support is not None:
            read &= _of(support, need).movedim(axis, 0).flatten(1).any(1)
    kept = tuple(k for k, there in zip(inner, read.tolist()) if there) or inner[:1]
    first, second = (*stacks, rows, kept), (*others, kept, columns)
    return _simple(MatMul(_shape(first), _shape(second)), piece.part, first, second)


def whole(shape: Shape) -> Part:
    """All entries of a tensor of this shape."""
    return tuple(tuple(range(size)) for size in shape)


def _size(part: Part) -> int:
    return math.prod(len(positions) for positions in part)


def _around(first: Part, second: Part) -> Part:
    return tuple(tuple(sorted({*a, *b})) for a, b in zip(first, second))


def _apart(asked: list[Part], separable: bool) -> list[Part]:
    """Parts that cover what is asked for; those stay separate that together are smaller than one around them."""
    found: list[Part] = []
    for part in asked:
        while True:
            near = (p for p in found if not separable or _size(_around(p, part)) <= _size(p) + _size(part))
            other = next(near, None)
            if other is None:
                break
            found.remove(other)
            part = _around(other, part)
        found.append(part)
    return found if len(found) <= _PIECES else _apart(asked, False)


class _Sharing(GraphBuilder):
    """Grows a graph in which no operator is applied twice to the same inputs."""

    def __init__(self, input_shape: Shape) -> None:
        super().__init__(input_shape)
        self._known: dict[tuple[Any, ...], list[int]] = {}

    def add(self, operator: Operator, *inputs: int) -> int:
        if isinstance(operator, Reshape | Expand) and operator.target == self.shape(inputs[0]):
            return inputs[0]
        known = self._known.setdefault((type(operator), inputs), [])
        for index in known:
            if _equal(self.nodes[index].operator, operator):
                return index
        known.append(super().add(operator, *inputs))
        return known[-1]

    def pick(self, available: list[tuple[Part, int]], need: Part) -> int:
        """What is needed, out of the piece that has it."""
        have, index = next(
            (part, index) for part, index in available if all(set(n) <= set(p) for n, p in zip(need, part))
        )
        for axis, (wanted, there) in enumerate(zip(need, have)):
            if wanted != there:
                place = [there.index(position) for position in wanted]
                index = self.add(_along(axis, place, self.shape(index)), index)
        return index


def _along(axis: int, place: list[int], shape: Shape) -> Operator:
    """What takes some positions of one axis: a slice where they are regular."""
    step = place[1] - place[0] if len(place) > 1 else 1
    if step >= 1 and place == list(range(place[0], place[-1] + 1, step)):
        ranges = tuple((place[0], place[-1] + 1, step) if i == axis else (0, n, 1) for i, n in enumerate(shape))
        return Slice(ranges)
    return Gather(axis, torch.tensor(place))


def _equal(first: Operator, second: Operator) -> bool:
    """Whether two operators of one class are the same function, whatever they are called."""
    pairs = (
        (getattr(first, f.name), getattr(second, f.name))
        for f in fields(first)  # type: ignore[arg-type]
        if f.name != "label"
    )
    return all(_same(a, b) for a, b in pairs)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return bool(a == b)


def _of(constant: Tensor, part: Part) -> Tensor:
    """The entries of a constant that broadcasts to the shape of which a part is asked for."""
    for axis, positions in enumerate(part[len(part) - constant.ndim :]):
        if constant.shape[axis] > 1 and len(positions) < constant.shape[axis]:
            constant = constant.index_select(axis, torch.tensor(positions, device=constant.device))
    return constant


def _stretched(part: Part, shape: Shape) -> Part:
    """What a part of a value asks of an input of this shape that broadcasts to it."""
    own = part[len(part) - len(shape) :]
    return tuple(positions if size > 1 else (0,) for positions, size in zip(own, shape))


def _simple(operator: Operator, part: Part, *needs: Part) -> Piece:
    return Piece(part, needs, lambda builder, *inputs: builder.add(operator, *inputs))


# What is needed for a part of an output of this shape; shapes are those of the inputs.


@singledispatch
def restrict(operator: Operator, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    """Operators without a rule compute all of their output from all of their inputs."""
    return _simple(operator, whole(shape), *(whole(s) for s in shapes))


@restrict.register(Elementwise)
@restrict.register(Add)
@restrict.register(Subtract)
@restrict.register(Near)
def _(operator: Operator, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    return _simple(operator, part, *(part for _ in shapes))


@restrict.register
def _(operator: Scale, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    return _simple(Scale(_of(operator.factor, part), _of(operator.shift, part)), part, part)


@restrict.register
def _(operator: Expand, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    return _simple(Expand(tuple(map(len, part))), part, _stretched(part, shapes[0]))


@restrict.register
def _(operator: Transpose, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    return _simple(operator, part, tuple(part[operator.order.index(axis)] for axis in range(len(part))))


@restrict.register
def _(operator: Slice, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    ranges = (range(size)[slice(*r)] for size, r in zip(shapes[0], operator.ranges))
    need = tuple(tuple(r[i] for i in positions) for r, positions in zip(ranges, part))
    return Piece(part, (need,), lambda builder, x: x)


@restrict.register
def _(operator: Gather, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    chosen = [int(operator.positions[i]) for i in part[operator.axis]]
    distinct = tuple(sorted(set(chosen)))
    need = (*part[: operator.axis], distinct, *part[operator.axis + 1 :])
    place = [distinct.index(position) for position in chosen]
    if place == list(range(len(distinct))):
        return Piece(part, (need,), lambda builder, x: x)
    return _simple(replace(operator, positions=torch.tensor(place)), part, need)


@restrict.register
def _(operator: Concat, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    axis, variable, start = operator.axis, iter(shapes), 0
    parts: list[Tensor | None] = []
    needs: list[Part] = []
    used: list[bool] = []
    for constant in operator.parts:
        size = (next(variable) if constant is None else constant.shape)[axis]
        inside = tuple(i - start for i in part[axis] if start <= i < start + size)
        need = (*part[:axis], inside, *part[axis + 1 :])
        start += size
        if constant is None:
            used.append(bool(inside))
            needs.append(need if inside else _one(part))
        if inside:
            parts.append(None if constant is None else _of(constant, need))

    def build(builder: GraphBuilder, *inputs: int) -> int:
        left = [i for i, there in zip(inputs, used) if there]
        if not left:  # a constant: nothing of the first input, and the constant added to it
            constants = torch.cat([p for p in parts if p is not None], axis)
            spread = builder.expand(inputs[0], tuple(constants.shape))
            return builder.add(Scale(torch.zeros((), dtype=constants.dtype), constants), spread)
        return left[0] if len(parts) == 1 else builder.add(Concat(axis, tuple(parts)), *left)

    return Piece(part, tuple(needs), build)


def _one(part: Part) -> Part:
    return tuple((0,) for _ in part)


@restrict.register
def _(operator: Dense, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    stacks, (rows, columns) = part[:-2], part[-2:]
    every = range(operator.matrix.shape[-1 if operator.left else -2])
    ends = (rows, tuple(every)) if operator.left else (tuple(every), columns)
    matrix = _of(operator.matrix, (*_stretched(stacks, tuple(operator.matrix.shape[:-2])), *ends))
    nonzero = (matrix != 0).reshape(-1, *matrix.shape[-2:]).any(0).any(0 if operator.left else 1)
    inner = tuple(nonzero.nonzero()[:, 0].tolist()) or (0,)  # the others are multiplied with nothing but zeros
    matrix = matrix.index_select(-1 if operator.left else -2, torch.tensor(inner, device=matrix.device))
    lines = (inner, columns) if operator.left else (rows, inner)
    need = (*_stretched(stacks, shapes[0][:-2]), *lines)
    bias = None if operator.bias is None else _of(operator.bias, part)
    return _simple(Dense(matrix, bias, operator.left), part, need)


@restrict.register
def _(operator: MatMul, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    stacks = [_stretched(part[:-2], own[:-2]) for own in (operator.left, operator.right)]
    inner = tuple(range(operator.left[-1]))
    left, right = (*stacks[0], part[-2], inner), (*stacks[1], inner, part[-1])
    return _simple(MatMul(_shape(left), _shape(right)), part, left, right)


@restrict.register
def _(operator: Product, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    left, right = (_stretched(part, own) for own in shapes)
    return _simple(Product(_shape(left), _shape(right)), part, left, right)


@restrict.register
def _(operator: Normalized, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    rows = _along_all(part, shape, operator.axes)
    other = _stretched(rows, shapes[1])
    return _simple(replace(operator, left=_shape(rows), right=_shape(other)), rows, rows, other)


def _shape(part: Part) -> Shape:
    return tuple(map(len, part))


@restrict.register
def _(operator: Softmax, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    axis, rows = operator.axis, _along_all(part, shape, (operator.axis,))
    if operator.mask is None:
        return _simple(operator, rows, rows)
    shut = _of(operator.mask, rows).isneginf().expand(_shape(rows)).movedim(axis, 0).flatten(1)
    seen = tuple((~shut.all(1)).nonzero()[:, 0].tolist())
    if not bool(shut.all(0).any()) and {*part[axis]} <= {*seen}:  # the others are 0, and nobody asks for them
        rows = (*rows[:axis], seen, *rows[axis + 1 :])
    mask = _of(operator.mask, rows)
    return _simple(replace(operator, mask=mask) if bool((mask < 0).any()) else Softmax(axis), rows, rows)


@restrict.register
def _(operator: Centre, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    rows = _along_all(part, shape, operator.axes)
    return _simple(operator, rows, rows)


@restrict.register(Sum)
@restrict.register(LogSumExp)
@restrict.register(InverseDeviation)
def _(operator: Sum | LogSumExp | InverseDeviation, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    return _simple(operator, part, _along_all(part, shapes[0], operator.axes))


def _along_all(part: Part, shape: Shape, axes: tuple[int, ...]) -> Part:
    return tuple(tuple(range(shape[axis])) if axis in axes else own for axis, own in enumerate(part))


@restrict.register
def _(operator: Reshape, part: Part, shape: Shape, *shapes: Shape) -> Piece:
    """The smallest part of the output that is also a part of the input: row-major order is the same in both."""
    need = _inside(part, shape, shapes[0])
    while _size(need) != _size(part):
        part = _inside(need, shapes[0], shape)
        need = _inside(part, shape, shapes[0])
    return _simple(Reshape(_shape(part)), part, need)


def _inside(part: Part, shape: Shape, other: Shape) -> Part:
    """The part of another shape of as many entries that holds those of a part of this one."""
    if part == whole(shape):
        return whole(other)
    flat = torch.zeros((), dtype=torch.long)
    for positions, size in zip(part, shape):
        flat = flat[..., None] * size + torch.tensor(positions)
    found, rest = [], flat.flatten()
    for size in reversed(other):
        found.append(tuple((rest % size).unique().tolist()))
        rest = rest // size
    return tuple(reversed(found))
