"""A network as a list of nodes in topological order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .operator import Operator, Shape


@dataclass(frozen=True, eq=False)
class Node:
    """One operator on earlier values: ``inputs`` are positions in ``Graph.nodes``, -1 is the network input."""

    operator: Operator
    inputs: tuple[int, ...]
    shape: Shape
    label: str  # the name in the file it came from, for messages


@dataclass(frozen=True, eq=False)
class Graph:
    """A function of one tensor: ``nodes`` in topological order, the last one is the output."""

    input_shape: Shape
    nodes: tuple[Node, ...]

    @property
    def output_shape(self) -> Shape:
        """The shape of the output of the last node, without the batch."""
        return self.nodes[-1].shape if self.nodes else self.input_shape

    def values(self, x: Tensor) -> list[Tensor]:
        """The value of every node for inputs ``[B, *input_shape]``."""
        found: list[Tensor] = []
        for node in self.nodes:
            found.append(node.operator.value(*(x if i < 0 else found[i] for i in node.inputs)))
        return found

    def evaluate(self, x: Tensor, change: Callable[[Node, list[Tensor], Tensor], Tensor] | None = None) -> Tensor:
        """The output for inputs ``[B, *input_shape]``; values that are no longer needed are dropped on the way.

        ``change`` sees every node with its inputs and its value, and returns what the nodes behind it get instead.
        """
        last = {i: index for index, node in enumerate(self.nodes) for i in node.inputs}
        found = {-1: x}
        for index, node in enumerate(self.nodes):
            inputs = [found[i] for i in node.inputs]
            y = node.operator.value(*inputs)
            found[index] = y if change is None else change(node, inputs, y)
            for i in {i for i in node.inputs if last[i] == index}:
                del found[i]
        return found[len(self.nodes) - 1]

    def __call__(self, x: Tensor) -> Tensor:
        return self.evaluate(x)

    def shape_of(self, index: int) -> Shape:
        """The shape of a node's output without the batch; a negative index is the input of the network."""
        return self.input_shape if index < 0 else self.nodes[index].shape

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Graph:
        """The same network with its constants in another precision or place."""
        moved = (replace(node, operator=node.operator.to(dtype, device)) for node in self.nodes)
        return Graph(self.input_shape, tuple(moved))
