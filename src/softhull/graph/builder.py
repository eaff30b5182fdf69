"""Putting a graph together: broadcasting made explicit, trivial operators left out, neighbours merged."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .broadcast import broadcast
from .graph import Graph, Node
from .operator import Operator, Shape
from .ops.add import Add, Subtract
from .ops.expand import Expand
from .ops.linear import Linear
from .ops.matmul import MatMul
from .ops.product import Product
from .ops.reshape import Reshape
from .ops.scale import Scale
from .ops.sum import Sum
from .ops.transpose import Transpose

# A value of one instance with more entries than this is a mistake or an attack, not a network.
LARGEST_VALUE = 1 << 27


class GraphBuilder:
    """Grows a graph node by node; every method takes and returns positions (-1 is the network input)."""

    def __init__(self, input_shape: Shape) -> None:
        self.input_shape = input_shape
        self.nodes: list[Node] = []
        self.label = ""  # given to the nodes that follow

    def shape(self, index: int) -> Shape:
        return self.input_shape if index < 0 else self.nodes[index].shape

    def add(self, operator: Operator, *inputs: int, shape: Shape | None = None) -> int:
        """Append an operator; its output shape is found by running it unless it is given."""
        if shape is None:
            shape = operator.shape(*(self.shape(i) for i in inputs))
        if math.prod(shape) > LARGEST_VALUE:
            raise ValueError(f"a value of shape {shape} is larger than {LARGEST_VALUE} entries")
        self.nodes.append(Node(operator, inputs, shape, self.label))
        return len(self.nodes) - 1

    def reshape(self, x: int, shape: Shape) -> int:
        if math.prod(shape) != math.prod(self.shape(x)):
            raise ValueError(f"cannot reshape {self.shape(x)} to {shape}")
        return x if self.shape(x) == shape else self.add(Reshape(shape), x, shape=shape)

    def transpose(self, x: int, order: tuple[int, ...]) -> int:
        if order == tuple(range(len(order))):
            return x
        return self.add(Transpose(order), x, shape=tuple(self.shape(x)[axis] for axis in order))

    def expand(self, x: int, shape: Shape) -> int:
        if self.shape(x) == shape:
            return x
        if math.prod(shape) > LARGEST_VALUE:
            raise ValueError(f"a value of shape {shape} is larger than {LARGEST_VALUE} entries")
        return self.add(Expand(shape), x, shape=shape)

    def scale(self, x: int, factor: Tensor | float = 1.0, shift: Tensor | float = 0.0) -> int:
        """``factor * x + shift`` with constants that may stretch ``x``."""
        factor = torch.as_tensor(factor, dtype=torch.float64)
        shift = torch.as_tensor(shift, dtype=torch.float64)
        x = self.expand(x, broadcast(self.shape(x), tuple(factor.shape), tuple(shift.shape)))
        if bool((factor == 1).all()) and bool((shift == 0).all()):
            return x
        return self.add(Scale(factor, shift), x, shape=self.shape(x))

    def linear(self, x: int, matrix: Tensor, left: bool = False) -> int:
        """Product of ``x`` with a constant matrix (or stack of them) on its right, or on its left."""
        shape = _matmul_shape(*((tuple(matrix.shape), self.shape(x)) if left else (self.shape(x), tuple(matrix.shape))))
        return self.add(Linear(matrix, None, left), x, shape=shape)

    def matmul(self, x: int, y: int) -> int:
        shape = _matmul_shape(self.shape(x), self.shape(y))
        return self.add(MatMul(self.shape(x), self.shape(y)), x, y, shape=shape)

    def product(self, x: int, y: int) -> int:
        shape = broadcast(self.shape(x), self.shape(y))
        return self.add(Product(self.shape(x), self.shape(y)), x, y, shape=shape)

    def elementwise(self, operator: Operator, x: int) -> int:
        return self.add(operator, x, shape=self.shape(x))

    def total(self, x: int, axes: tuple[int, ...], keep: bool = True, mean: bool = False) -> int:
        """Sum or mean over ``axes``, which stay with size one if ``keep``."""
        shape = self.shape(x)
        count = math.prod(shape[axis] for axis in axes)
        y = self.add(Sum(axes, count if mean else 1), x) if axes else x
        return y if keep else self.reshape(y, tuple(s for i, s in enumerate(shape) if i not in axes))

    def sum_of(self, x: int, y: int) -> int:
        shape = broadcast(self.shape(x), self.shape(y))
        return self.add(Add(), self.expand(x, shape), self.expand(y, shape), shape=shape)

    def difference(self, x: int, y: int) -> int:
        shape = broadcast(self.shape(x), self.shape(y))
        return self.add(Subtract(), self.expand(x, shape), self.expand(y, shape), shape=shape)

    def finish(self, output: int) -> Graph:
        """The graph that computes ``output``, without the nodes it does not need."""
        needed = {output}
        for index in range(output, -1, -1):
            if index in needed:
                needed.update(self.nodes[index].inputs)
        position = {-1: -1}
        kept: list[Node] = []
        for index in sorted(needed - {-1}):
            node = self.nodes[index]
            position[index] = len(kept)
            kept.append(Node(node.operator, tuple(position[i] for i in node.inputs), node.shape, node.label))
        return Graph(self.input_shape, tuple(kept))


def _matmul_shape(left: Shape, right: Shape) -> Shape:
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise ValueError(f"cannot multiply matrices of shape {left} and {right}")
    return (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])
