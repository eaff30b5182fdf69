"""Networks that share their input: as one graph, the sum of their class probabilities, or as stacks of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..devices import moved
from ..graph.builder import GraphBuilder
from ..graph.graph import Graph
from ..graph.masks import Hidden
from ..graph.operator import Bilinear, Shape
from ..graph.ops.add import Add
from ..graph.ops.softmax import Softmax
from ..propagate.structure import Structure
from ..regions import Region
from ..solve.layers import Stack, agree, logits_node


@dataclass(frozen=True, eq=False)
class Ensemble:
    """``graph`` maps inputs to the sum of the class probabilities ``[K]`` of all networks, ``softmaxes`` its terms.

    The sum and not the mean: there is no exact third among the coefficients of a graph. ``members`` are the networks
    alone, where there are several. A network that is asked about its logits has no softmaxes here.
    """

    graph: Graph
    softmaxes: tuple[int, ...] = ()
    members: tuple[Ensemble, ...] = ()

    @property
    def alone(self) -> tuple[Ensemble, ...]:
        """Every network as an ensemble of one."""
        return self.members or (self,)

    @property
    def networks(self) -> int:
        """The number of networks."""
        return len(self.softmaxes)

    @property
    def logits(self) -> tuple[int, ...]:
        """The nodes that hold the logits of every network."""
        return tuple(self.graph.nodes[i].inputs[0] for i in self.softmaxes)

    @cached_property
    def structure(self) -> Structure:
        """What is known of the joint graph, worked out once."""
        return Structure(self.graph)

    @cached_property
    def products(self) -> bool:
        """Whether variable tensors are multiplied, so that there is something of second order."""
        return any(isinstance(node.operator, Bilinear) for node in self.graph.nodes)

    @cached_property
    def hidden(self) -> Hidden | None:
        """The joint graph without what finite masks hide; None where they hide nothing."""
        return Hidden.of(self.graph)

    @cached_property
    def visible(self) -> Ensemble:
        """The same networks without what finite masks hide, for regions where that is negligible."""
        members = tuple(member.visible for member in self.members)
        if self.hidden is None:
            return replace(self, members=members)
        graph = self.hidden.graph
        return Ensemble(graph, _terms(graph, len(graph.nodes) - 1) if self.softmaxes else (), members)

    def to(self, device: torch.device) -> Ensemble:
        """The ensemble on a device, in double precision."""
        members = tuple(member.to(device) for member in self.members)
        return Ensemble(self.graph.to(torch.float64, device), self.softmaxes, members)


@dataclass(frozen=True, eq=False)
class Joined:
    """Networks of any kind, which walks go back through; every one of the ``graphs`` has an input of its own."""

    graphs: tuple[Ensemble, ...]

    @property
    def networks(self) -> int:
        """The number of networks."""
        return sum(each.networks for each in self.graphs)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.graphs[0].graph.output_shape[0]

    @property
    def products(self) -> bool:
        """Whether any of the networks multiplies variable tensors."""
        return any(each.products for each in self.graphs)

    def hides(self, region: Region) -> Tensor:
        """Mask ``[B]`` of the instances over which all that finite masks hide is negligible, if they hide anything."""
        found = [each.hidden.negligible(region.lower, region.upper) for each in self.graphs if each.hidden is not None]
        none = torch.zeros(region.size, dtype=torch.bool, device=region.lower.device)
        return torch.stack(found).all(0) if found else none

    def alike(self, region: Region) -> list[Tensor]:
        """The instances in groups, each bounded on one form of the networks: what masks hide is negligible, or not."""
        hides = self.hides(region)
        return [part for part in (hides.nonzero()[:, 0], (~hides).nonzero()[:, 0]) if len(part)]

    @cached_property
    def visible(self) -> Joined:
        """The networks without what finite masks hide."""
        return Joined(tuple(each.visible for each in self.graphs))

    def over(self, region: Region) -> Joined:
        """The networks without what masks hide, where that is negligible over all of these regions."""
        return self.visible if bool(self.hides(region).all()) else self

    def to(self, device: torch.device) -> Joined:
        """The same on another device."""
        return Joined(tuple(each.to(device) for each in self.graphs))

    def probabilities(self, x: Tensor) -> Tensor:
        """Mean class probabilities ``[B, K]``."""
        return torch.stack([each.graph(x) for each in self.graphs]).sum(0) / self.networks


def _terms(graph: Graph, index: int) -> tuple[int, ...]:
    """The softmaxes that a node is the sum of, in the order in which they were added up."""
    node = graph.nodes[index]
    return tuple(i for j in node.inputs for i in _terms(graph, j)) if isinstance(node.operator, Add) else (index,)


@dataclass(frozen=True, eq=False)
class Layered:
    """Feedforward networks, which convex programs take layer by layer."""

    stacks: list[Stack]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.stacks[0].classes

    def alike(self, region: Region) -> list[Tensor]:
        """The instances in groups that are bounded alike: all of them."""
        return [torch.arange(region.size, device=region.lower.device)]

    def over(self, region: Region) -> Layered:
        """Itself: there are no masks."""
        return self

    def to(self, device: torch.device) -> Layered:
        """The same on another device."""
        return replace(self, stacks=moved(self.stacks, device))

    def probabilities(self, x: Tensor) -> Tensor:
        """Mean class probabilities ``[B, K]``."""
        logits = torch.cat([stack.values(x.flatten(1))[-1] for stack in self.stacks], 1)
        return logits.softmax(-1).mean(1)


def join(graphs: Sequence[Graph], labels: Sequence[str], input_shape: Shape | None = None) -> Ensemble:
    """One graph for all networks, whose input has the shape of the first one; a final softmax is theirs or added."""
    ends = [logits_node(graph, label) for graph, label in zip(graphs, labels)]
    classes = agree(graphs, ends, labels)
    builder = GraphBuilder(input_shape or graphs[0].input_shape)
    logits = []
    for graph, end in zip(graphs, ends):
        position = {-1: builder.reshape(-1, graph.input_shape)}
        for i, node in enumerate(graph.nodes[: end + 1]):
            builder.label = node.label
            position[i] = builder.add(node.operator, *(position[j] for j in node.inputs))
        logits.append(builder.reshape(position[end], (classes,)))
    builder.label = "probabilities"
    softmaxes = tuple(builder.add(Softmax(0), z) for z in logits)
    total = softmaxes[0]
    for p in softmaxes[1:]:
        total = builder.sum_of(total, p)
    alone = [join([graph], [label], builder.input_shape) for graph, label in zip(graphs, labels) if len(graphs) > 1]
    return Ensemble(Graph(builder.input_shape, tuple(builder.nodes)), softmaxes, tuple(alone))
