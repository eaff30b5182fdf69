"""Putting a graph together: broadcasting made explicit, trivial operators left out, neighbours merged."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .broadcast import broadcast
from .graph import Graph, Node
from .operator import Operator, Shape
from .ops.add import Add, Subtract
from .ops.dense import Dense
from .ops.expand import Expand
from .ops.matmul import MatMul
from .ops.product import Product
from .ops.reshape import Reshape
from .ops.scale import Scale
from .ops.sum import Sum
from .ops.transpose import Transpose

# More entries than these for one instance are a mistake or an attack, not a network: in one value, or in what an
# operator holds to compute it; and in all values together. Shapes are known before any of them is computed.
LARGEST_VALUE = 1 << 25
LARGEST_NETWORK = 1 << 26


class GraphBuilder:
    """Grows a graph node by node; every method takes and returns positions (-1 is the network input)."""

    def __init__(self, input_shape: Shape, constants: float = math.inf) -> None:
        self.input_shape = input_shape
        self.constants = constants  # entries that constants may still have
        self.nodes: list[Node] = []
        self.label = ""  # given to the nodes that follow
        self._entries = 0

    def shape(self, index: int) -> Shape:
        """The shape of a node's output; a negative index is the input of the network."""
        return self.input_shape if index < 0 else self.nodes[index].shape

    def add(self, operator: Operator, *inputs: int) -> int:
        """Append an operator; ValueError where its inputs do not fit or its output would be too large."""
        shapes = [self.shape(i) for i in inputs]
        shape = operator.shape(*shapes)
        check_size(shape)
        if operator.work(*shapes) > LARGEST_VALUE:
            raise ValueError(f"it needs more than {LARGEST_VALUE} entries for a value of shape {shape}")
        self._entries += math.prod(shape)
        if self._entries > LARGEST_NETWORK:
            raise ValueError(f"all values up to here have more than {LARGEST_NETWORK} entries together")
        self.check_constants((operator.parameters(),))
        self.constants -= operator.parameters()
        self.nodes.append(Node(operator, inputs, shape, self.label))
        return len(self.nodes) - 1

    def check_constants(self, shape: Shape) -> None:
        """Raise ValueError where there is no room for a constant of this shape."""
        if math.prod(shape) > self.constants:
            raise ValueError(f"a constant of shape {shape} is too large for what the file holds")

    def reshape(self, x: int, shape: Shape) -> int:
        """Adds a reshape unless the shape is already right; returns the index of the result."""
        if math.prod(shape) != math.prod(self.shape(x)):
            raise ValueError(f"cannot reshape {self.shape(x)} to {shape}")
        return x if self.shape(x) == shape else self.add(Reshape(shape), x)

    def transpose(self, x: int, order: tuple[int, ...]) -> int:
        """Adds a permutation of the axes unless it changes nothing; returns the index of the result."""
        if order == tuple(range(len(order))):
            return x
        return self.add(Transpose(order), x)

    def expand(self, x: int, shape: Shape) -> int:
        """Adds a broadcast to ``shape`` unless it changes nothing; returns the index of the result."""
        return x if self.shape(x) == shape else self.add(Expand(shape), x)

    def scale(self, x: int, factor: Tensor | float = 1.0, shift: Tensor | float = 0.0) -> int:
        """``factor * x + shift`` with constants that may stretch ``x``."""
        factor = torch.as_tensor(factor, dtype=torch.float64)
        shift = torch.as_tensor(shift, dtype=torch.float64)
        x = self.expand(x, broadcast(self.shape(x), tuple(factor.shape), tuple(shift.shape)))
        if bool((factor == 1).all()) and bool((shift == 0).all()):
            return x
        return self.add(Scale(factor, shift), x)

    def linear(self, x: int, matrix: Tensor, left: bool = False) -> int:
        """Product of ``x`` with a constant matrix (or stack of them) on its right, or on its left."""
        return self.add(Dense(matrix, None, left), x)

    def matmul(self, x: int, y: int) -> int:
        """Adds the matrix product of two variable tensors; returns its index."""
        return self.add(MatMul(self.shape(x), self.shape(y)), x, y)

    def product(self, x: int, y: int) -> int:
        """Adds the entrywise product of two variable tensors; returns its index."""
        return self.add(Product(self.shape(x), self.shape(y)), x, y)

    def elementwise(self, operator: Operator, x: int) -> int:
        """Adds a function of single entries; returns its index."""
        return self.add(operator, x)

    def total(self, x: int, axes: tuple[int, ...], keep: bool = True, mean: bool = False) -> int:
        """Sum or mean over ``axes``, which stay with size one if ``keep``."""
        shape = self.shape(x)
        count = math.prod(shape[axis] for axis in axes)
        y = self.add(Sum(axes, count if mean else 1), x) if axes else x
        return y if keep else self.reshape(y, tuple(s for i, s in enumerate(shape) if i not in axes))

    def sum_of(self, x: int, y: int) -> int:
        """Adds ``x + y`` of two variable tensors, broadcast to a common shape; returns its index."""
        shape = broadcast(self.shape(x), self.shape(y))
        return self.add(Add(), self.expand(x, shape), self.expand(y, shape))

    def difference(self, x: int, y: int) -> int:
        """Adds ``x - y`` of two variable tensors, broadcast to a common shape; returns its index."""
        shape = broadcast(self.shape(x), self.shape(y))
        return self.add(Subtract(), self.expand(x, shape), self.expand(y, shape))

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


def check_size(shape: Shape) -> None:
    """Raise ValueError for a shape of too many entries."""
    if math.prod(shape) > LARGEST_VALUE:
        raise ValueError(f"a value of shape {shape} is larger than {LARGEST_VALUE} entries")
