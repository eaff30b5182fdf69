"""What bound propagation reads off a graph once: reordered nodes, rows on the simplex, widths."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cached_property

import torch
from torch import Tensor

from ..graph.graph import Graph
from ..graph.operator import Affine
from ..graph.ops.conv import Conv
from ..graph.ops.gather import Gather
from ..graph.ops.normalize import Normalized
from ..graph.ops.slice import Slice
from ..graph.ops.softmax import Softmax

# Coefficients that the walks of one node may have in all, about a minute's work. Beyond, they end where intervals say
# the rest, so that time is linear in depth.
_WORK = 1 << 31


class Structure:
    """Facts about the nodes of one graph, independent of inputs and methods."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._source: list[int] = []
        self._order: list[Tensor | None] = []
        widest, total = 0, math.prod(graph.input_shape)
        self._width: list[int] = []
        self._volume: list[int] = []
        for index, node in enumerate(graph.nodes):
            widest = max(widest, math.prod(node.shape))
            total += math.prod(node.shape)
            self._width.append(widest)
            self._volume.append(total)
            step = self._permutation(index)
            if step is None:
                self._source.append(index)
                self._order.append(None)
            else:
                before = node.inputs[0]
                self._source.append(self.source(before))
                earlier = self._order[before] if before >= 0 else None
                self._order.append(step if earlier is None else earlier[step])

    @cached_property
    def read(self) -> Tensor:
        """Mask ``[entries]`` of the input: what the graph reads of it."""
        shape = self.graph.input_shape
        entries = torch.arange(math.prod(shape))
        found = torch.zeros(len(entries), dtype=torch.bool)
        for operator in (node.operator for node in self.graph.nodes if -1 in node.inputs):
            picks = isinstance(operator, Slice | Gather)
            picked = operator.to(torch.float64, "cpu").value(entries.reshape(1, *shape)) if picks else entries
            found[picked.flatten()] = True
        return found

    @cached_property
    def stem(self) -> int | None:
        """The node through which alone the graph reads its input, patch by patch; None where there is none."""
        readers = [index for index, node in enumerate(self.graph.nodes) if -1 in node.inputs]
        operator = self.graph.nodes[readers[0]].operator if len(readers) == 1 else None
        patches = isinstance(operator, Conv) and operator.in_patches(self.graph.input_shape)
        return readers[0] if patches else None

    def source(self, index: int) -> int:
        """The node of which this one is a reordering (itself when it is not one)."""
        return self._source[index] if index >= 0 else index

    def order(self, index: int) -> Tensor:
        """Where every entry of a node, in row-major order, is found in its source."""
        order = self._order[index] if index >= 0 else None
        return torch.arange(math.prod(self.graph.shape_of(index))) if order is None else order

    def after(self, index: int) -> set[int]:
        """The nodes that depend on a node."""
        found: set[int] = set()
        for later, node in enumerate(self.graph.nodes[index + 1 :], start=index + 1):
            if any(i == index or i in found for i in node.inputs):
                found.add(later)
        return found

    def width(self, index: int, whole: bool = True) -> int:
        """The largest number of entries of all nodes up to this one and, on the ``whole``, of the input."""
        inputs = math.prod(self.graph.input_shape) if whole or index < 0 else 0
        return max(inputs, self._width[index] if index >= 0 else 0)

    def volume(self, index: int) -> int:
        """The number of entries of the input and all nodes up to this one together."""
        return self._volume[index] if index >= 0 else math.prod(self.graph.input_shape)

    def end(self, index: int, specifications: int) -> int:
        """Where walks of so many specifications on a node end: at the input, or earlier if that is too much work."""
        if specifications * (self.volume(index) - math.prod(self.graph.input_shape)) <= _WORK:
            return -1
        return bisect_left(self._volume, self.volume(index) - _WORK // specifications, hi=index)

    @cached_property
    def reaches_input(self) -> bool:
        """Whether walks for all entries of any node end at the input."""
        return all(self.end(index, math.prod(node.shape)) < 0 for index, node in enumerate(self.graph.nodes))

    def rows_are_softmax(self, index: int, axis: int) -> bool:
        """True when every line of the node along ``axis`` holds exactly one whole softmax row."""
        source = self.source(index)
        if source < 0 or not isinstance(operator := self.graph.nodes[source].operator, Softmax):
            return False
        shape = self.graph.nodes[source].shape
        rows = torch.arange(math.prod(shape)).reshape(shape).movedim(operator.axis, -1)
        row_of = torch.empty(math.prod(shape), dtype=torch.long)
        row_of[rows.flatten()] = torch.arange(rows.numel()) // rows.shape[-1]
        lines = row_of[self.order(index)].reshape(self.graph.shape_of(index)).movedim(axis, -1)
        return lines.shape[-1] == rows.shape[-1] and bool((lines == lines[..., :1]).all())

    def is_normalized(self, index: int) -> bool:
        """Whether rows of a node are normalised."""
        return any(isinstance(node.operator, Normalized) and index in node.inputs for node in self.graph.nodes)

    def masked(self, index: int) -> Tensor | None:
        """Where a node, in its shape, holds probabilities of masked logits; None where it holds none."""
        source = self.source(index)
        if source < 0 or not isinstance(operator := self.graph.nodes[source].operator, Softmax):
            return None
        if operator.masked is None:
            return None
        flat = operator.masked.expand(self.graph.nodes[source].shape).flatten()
        return flat[self.order(index).to(flat.device)].reshape(self.graph.shape_of(index))

    def _permutation(self, index: int) -> Tensor | None:
        """The order in which a node repeats the entries of its input, or None when it does anything else."""
        node = self.graph.nodes[index]
        if not isinstance(node.operator, Affine) or len(node.inputs) != 1 or node.operator.slack:
            return None
        shape = self.graph.shape_of(node.inputs[0])
        count = math.prod(shape)
        if math.prod(node.shape) != count:
            return None
        operator = node.operator.to(torch.float64, "cpu")
        labels = torch.arange(count, dtype=torch.float64).reshape(1, *shape)
        found = operator.value(labels).flatten()
        if not (found == found.round()).all() or not torch.equal(found.sort().values, labels.flatten()):
            return None
        order = found.long()
        # An affine map that agrees with a reordering at random points is that reordering.
        random = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(index))
        return order if torch.equal(operator.value(random).flatten(1), random.flatten(1)[:, order]) else None


def positions(things: Tensor) -> Tensor:
    """0, 1, 2, ...: the place of each."""
    return torch.arange(len(things), device=things.device)


def pieces(numbers: Tensor, size: int) -> tuple[Tensor, ...]:
    """The numbers in groups of at most ``size``; none when there are none."""
    return numbers.split(size) if len(numbers) else ()
