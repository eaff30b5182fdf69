"""A feedforward network as the convex programs see it: affine maps between entrywise activations.

Every tensor is flat per instance. Source 0 is the network input and source ``i + 1`` the output of activation ``i``;
a layer is an affine map of earlier sources, followed by its activation (the last layer is the logits and has none).
Networks of equal architecture are stacked along a leading dimension ``M`` and handled together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from ..errors import ModelError
from ..graph.graph import Graph
from ..graph.operator import Affine, Elementwise
from ..graph.ops.conv import Conv
from ..graph.ops.dense import Dense
from ..graph.ops.reshape import Reshape
from ..graph.ops.slice import Slice
from ..graph.ops.softmax import Softmax
from ..graph.ops.transpose import Transpose
from ..propagate.walk import Claim, Step, Walk

# Entries of one affine map held as a matrix; 2^27 numbers are one gigabyte.
LARGEST_MAP = 1 << 27
# Unit vectors pushed through a network together.
UNITS = 256


@dataclass(frozen=True)
class Layer:
    """``sum_s weights[s] @ source_s + bias``; ``weights[s] [M, out, in]``, ``bias [M, out]``.

    Where several operators of the network were folded into the map, its numbers are sums of ``operations`` products at
    most, and ``terms`` holds the sums of their absolute values: weights by source, and the bias under -1.
    """

    weights: dict[int, Tensor]
    bias: Tensor
    activation: Elementwise | None
    operations: int = 0
    terms: dict[int, Tensor] | None = None

    @property
    def size(self) -> int:
        """The number of neurons."""
        return self.bias.shape[1]

    def value(self, sources: Sequence[Tensor]) -> Tensor:
        """The affine part for sources ``[B, n]`` (the input, shared) or ``[B, M, n]``."""
        total = self.bias
        for s, matrix in self.weights.items():
            if sources[s].ndim == 2:
                M, out, n = matrix.shape
                total = total + (sources[s] @ matrix.reshape(M * out, n).T).reshape(-1, M, out)
            else:
                total = total + (matrix @ sources[s].permute(1, 2, 0)).permute(2, 0, 1)
        return total

    def magnitude(self, sizes: Sequence[Tensor]) -> Tensor:
        """The sum of the absolute values of all terms ``[B, M, out]`` for sources of at most these sizes."""
        terms = self.terms or {s: matrix.abs() for s, matrix in self.weights.items()} | {-1: self.bias.abs()}
        return Layer({s: terms[s] for s in self.weights}, terms[-1], None).value(sizes)

    def activate(self, z: Tensor) -> Tensor:
        """The activation of pre-activations."""
        assert self.activation is not None
        return self.activation.value(z)


@dataclass(frozen=True)
class Stack:
    """Networks of one architecture; ``members`` are their positions in the ensemble."""

    members: tuple[int, ...]
    layers: tuple[Layer, ...]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.layers[-1].size

    def member(self, m: int) -> Stack:
        """One network of the stack alone."""
        one = slice(m, m + 1)
        layers = tuple(
            replace(
                layer,
                weights={s: matrix[one] for s, matrix in layer.weights.items()},
                bias=layer.bias[one],
                terms=layer.terms and {s: part[one] for s, part in layer.terms.items()},
            )
            for layer in self.layers
        )
        return Stack((self.members[m],), layers)

    def values(self, x: Tensor) -> list[Tensor]:
        """What every layer computes before its activation, for inputs ``[B, n]``; the last are the logits."""
        sources, found = [x], []
        for layer in self.layers:
            found.append(layer.value(sources))
            if layer.activation is not None:
                sources.append(layer.activate(found[-1]))
        return found


def stack_networks(graphs: Sequence[Graph], labels: Sequence[str] | None = None) -> list[Stack]:
    """The layered form of an ensemble; a final softmax over the classes is taken off, what remains are the logits."""
    labels = labels or [f"network {i}" for i in range(len(graphs))]
    if not graphs:
        raise ModelError("an ensemble needs at least one network")
    ends = [logits_node(graph, label) for graph, label in zip(graphs, labels)]
    layered = [_layers(graph, end, label) for graph, end, label in zip(graphs, ends, labels)]
    agree(graphs, ends, labels)
    order = sorted(range(len(graphs)), key=lambda i: (repr(_signature(layered[i])), i))
    stacks = []
    for _, group in groupby(order, key=lambda i: repr(_signature(layered[i]))):
        members = tuple(group)
        together = zip(*(layered[i] for i in members))
        stacks.append(Stack(members, tuple(_stack(layers) for layers in together)))
    return sorted(stacks, key=lambda stack: stack.members)


def agree(graphs: Sequence[Graph], ends: Sequence[int], labels: Sequence[str]) -> int:
    """The number of classes of networks that share their input and their classes, whose logits are nodes ``ends``."""
    classes = [math.prod(graph.shape_of(end)) for graph, end in zip(graphs, ends)]
    for size, graph, label in zip(classes, graphs, labels):
        if math.prod(graph.input_shape) != math.prod(graphs[0].input_shape):
            raise ModelError(
                f"{label}: input shape {graph.input_shape}, but {labels[0]} has {graphs[0].input_shape}; "
                "the networks of an ensemble share their input"
            )
        if size != classes[0]:
            raise ModelError(
                f"{label}: {size} classes, but {labels[0]} has {classes[0]}; "
                "the networks of an ensemble share their classes"
            )
    return classes[0]


def _signature(layers: list[Layer]) -> list[tuple[object, ...]]:
    """What networks must have in common to be stacked: activations, shapes, and operations."""
    return [
        (
            repr(layer.activation),
            {s: tuple(w.shape) for s, w in layer.weights.items()},
            layer.size,
            layer.operations,
            layer.terms is None,
        )
        for layer in layers
    ]


def _stack(layers: tuple[Layer, ...]) -> Layer:
    weights = {s: torch.cat([layer.weights[s] for layer in layers]) for s in layers[0].weights}
    terms = {s: torch.cat([(layer.terms or {})[s] for layer in layers]) for s in layers[0].terms or {}}
    bias = torch.cat([layer.bias for layer in layers])
    return replace(layers[0], weights=weights, bias=bias, terms=terms or None)


def logits_node(graph: Graph, label: str) -> int:
    """The node with the logits of a classifier: what a final softmax over the classes is taken of, or the output."""
    last = len(graph.nodes) - 1
    final = graph.nodes[last].operator if last >= 0 else None
    if isinstance(final, Softmax):
        if final.axis != len(graph.nodes[last].shape) - 1:
            raise ModelError(f"{label}: the final softmax must be over the last axis, the classes")
        if final.mask is not None:  # its logits alone say nothing about the classes it hides
            raise ModelError(f"{label}: the final softmax masks some classes; leave them out to bound probabilities")
        (last,) = graph.nodes[last].inputs
    elif isinstance(final, Elementwise):
        raise ModelError(f"{label}: ends in {final.name}; a network that ends in logits or in a softmax is expected")
    shape = graph.shape_of(last)
    classes = math.prod(shape)
    if classes != (shape[-1] if shape else 1) or classes < 2:
        raise ModelError(f"{label}: output of shape {shape}; one row of at least two logits is expected")
    return last


def _layers(graph: Graph, last: int, label: str) -> list[Layer]:
    """The layers of one network (``M`` of 1), found by pushing unit coefficients back to the sources."""
    needed = _needed(graph, last, label)
    source = {-1: 0} | {node: i + 1 for i, node in enumerate(needed)}
    layers = []
    for node in needed:
        operator = graph.nodes[node].operator
        assert isinstance(operator, Elementwise)
        layers.append(_affine(graph, graph.nodes[node].inputs[0], source, operator, label))
    return [*layers, _affine(graph, last, source, None, label)]


def is_feedforward(graph: Graph) -> bool:
    """Whether affine maps and entrywise activations are all there is, but for a final softmax."""
    body = graph.nodes[:-1] if graph.nodes and isinstance(graph.nodes[-1].operator, Softmax) else graph.nodes
    return all(isinstance(node.operator, Affine | Elementwise) for node in body)


def _needed(graph: Graph, last: int, label: str) -> list[int]:
    """The activations that node ``last`` depends on, in order."""
    found, waiting, seen = [], [last], {-1}
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        node = graph.nodes[index]
        if isinstance(node.operator, Elementwise):
            found.append(index)
        elif not isinstance(node.operator, Affine):
            raise ModelError(
                f"{label}: node {node.label} ({node.operator.name}) is neither affine nor entrywise; "
                "this method takes feedforward and convolutional networks, 'auto' and 'second-order' take all"
            )
        waiting.extend(node.inputs)
    return sorted(found)


def _affine(graph: Graph, index: int, source: dict[int, int], activation: Elementwise | None, label: str) -> Layer:
    """Node ``index`` as an affine map of the sources."""
    size = math.prod(graph.shape_of(index))
    widest = max([size, *(math.prod(graph.shape_of(i)) for i in source)])
    if size * widest > LARGEST_MAP:
        raise ModelError(f"{label}: a layer of {size} x {widest} weights is too large for the convex programs")
    units = torch.eye(size, dtype=torch.float64).reshape(size, 1, *graph.shape_of(index))
    walk = _ToSources(graph, source)
    claim = walk.back(Claim.on(index, units))
    found = sorted((source[i], coefficients) for i, coefficients in claim.pending.items())
    weights = {s: coefficients.reshape(1, size, -1).contiguous() for s, coefficients in found}
    layer = Layer(weights, claim.constant.reshape(1, size), activation)
    return layer if _only_placed(graph, walk.passed) else _with_terms(layer, graph, index, source, walk.passed)


class _ToSources(Walk):
    """Through affine operators back to the sources; what rounding costs is known by the layer (``_with_terms``)."""

    def __init__(self, graph: Graph, sources: dict[int, int]) -> None:
        self.graph, self.sources = graph, sources
        self.passed: list[int] = []

    def step(self, index: int, A: Tensor) -> Step:
        node = self.graph.nodes[index]
        assert isinstance(node.operator, Affine)
        self.passed.append(index)
        backs, constant = node.operator.backward(A, tuple(self.graph.shape_of(i) for i in node.inputs))
        return zip(node.inputs, backs), constant


def _only_placed(graph: Graph, passed: list[int]) -> bool:
    """Whether unit coefficients met one weighted sum and rearrangements alone: then nothing was rounded."""
    summing = [i for i in passed if not isinstance(graph.nodes[i].operator, Reshape | Transpose | Slice)]
    chain = all(len(graph.nodes[i].inputs) == 1 for i in passed)
    return chain and (not summing or (len(summing) == 1 and isinstance(graph.nodes[summing[0]].operator, Dense | Conv)))


def _with_terms(layer: Layer, graph: Graph, index: int, source: dict[int, int], passed: list[int]) -> Layer:
    """The layer with the sums of absolute values behind its numbers: magnitudes pushed forward from the sources."""
    operations = 0
    for node in (graph.nodes[i] for i in passed):
        assert isinstance(node.operator, Affine)
        operations += node.operator.terms(*(graph.shape_of(i) for i in node.inputs)) + len(node.inputs)
    sizes = {where: math.prod(graph.shape_of(where)) for where, s in source.items() if s in layer.weights}

    def magnitudes(sources: dict[int, Tensor]) -> Tensor:
        found = dict(sources)
        for i in sorted(passed):
            operator = graph.nodes[i].operator
            assert isinstance(operator, Affine)
            found[i] = operator.magnitude(*(found[j] for j in graph.nodes[i].inputs))
        return found[index].flatten(1)

    terms: dict[int, Tensor] = {}
    for where, size in sizes.items():
        columns = []
        for start in range(0, size, UNITS):
            units = torch.eye(size, dtype=torch.float64)[start : start + UNITS]
            given = {other: torch.zeros(len(units), *graph.shape_of(other), dtype=torch.float64) for other in sizes}
            given[where] = units.reshape(len(units), *graph.shape_of(where))
            columns.append(magnitudes(given))
        # The constants of the operators are in every column: more than needed, and next to nothing.
        terms[source[where]] = torch.cat(columns).T[None].contiguous()
    nothing = {other: torch.zeros(1, *graph.shape_of(other), dtype=torch.float64) for other in sizes}
    terms[-1] = magnitudes(nothing)
    return replace(layer, operations=operations, terms=terms)
