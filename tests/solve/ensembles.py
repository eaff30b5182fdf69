"""Small random ensembles, as graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from softhull.graph.graph import Graph, Node
from softhull.graph.operator import Operator
from softhull.graph.ops.add import Add
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.relu import LeakyRelu, Relu
from softhull.graph.ops.sigmoid import Sigmoid
from softhull.graph.ops.softmax import Softmax
from softhull.graph.ops.tanh import Tanh
from softhull.regions import Perturbation
from softhull.solve.layers import Stack, stack_networks
from softhull.solve.relaxation import Relaxation, relax
from softhull.solve.softmax_boxes import parse_bounds

ACTIVATIONS: dict[str, Operator] = {
    "relu": Relu(),
    "leaky": LeakyRelu(0.1),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
}


def random_graph(
    generator: torch.Generator,
    inputs: int = 4,
    hidden: tuple[int, ...] = (6, 5),
    classes: int = 3,
    activation: str = "relu",
    scale: float = 1.0,
    skip: bool = False,
    softmax: bool = True,
) -> Graph:
    """Dense layers with one activation; ``skip`` adds the first hidden layer to the last (of equal size)."""
    nodes: list[Node] = []
    previous, width = -1, inputs
    after: list[int] = []
    for size in (*hidden, classes):
        matrix = torch.randn(width, size, generator=generator, dtype=torch.float64) * scale * (2 / width) ** 0.5
        bias = torch.randn(size, generator=generator, dtype=torch.float64) * 0.3
        nodes.append(Node(Dense(matrix, bias), (previous,), (1, size), f"dense{len(nodes)}"))
        previous, width = len(nodes) - 1, size
        if len(after) < len(hidden):
            nodes.append(Node(ACTIVATIONS[activation], (previous,), (1, size), f"act{len(nodes)}"))
            previous = len(nodes) - 1
            after.append(previous)
            if skip and len(after) == len(hidden):
                nodes.append(Node(Add(), (after[0], previous), (1, size), "skip"))
                previous = len(nodes) - 1
    if softmax:
        nodes.append(Node(Softmax(1), (previous,), (1, classes), "softmax"))
    return Graph((1, inputs), tuple(nodes))


def random_problem(
    seed: int, bound: str = "all", networks: int = 2, instances: int = 3, eps: float = 0.1, **kind: object
) -> tuple[list[Stack], Relaxation, Tensor, Tensor]:
    """Stacks, their relaxation, the inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    graphs = [random_graph(generator, **kind) for _ in range(networks)]  # type: ignore[arg-type]
    stacks = stack_networks(graphs)
    x = torch.rand(instances, *graphs[0].input_shape, generator=generator, dtype=torch.float64)
    y = torch.randint(graphs[0].output_shape[-1], (instances,), generator=generator)
    return stacks, relax(stacks, Perturbation(eps, clip=(0.0, 1.0)).around(x), parse_bounds(bound)), x, y


def sampled_probabilities(stacks: list[Stack], relaxation: Relaxation, count: int = 300) -> Tensor:
    """Mean probabilities ``[count, B, K]`` at random points and corners of the region."""
    generator = torch.Generator().manual_seed(1)
    region = relaxation.region
    found = []
    for i in range(count):
        x = region.sample(generator)
        if i % 2:
            x = torch.where(torch.rand(x.shape, generator=generator) < 0.5, region.lower, region.upper)
        logits = torch.cat([stack.values(region.project(x).flatten(1))[-1] for stack in stacks], 1)
        found.append(logits.softmax(-1).mean(1))
    return torch.stack(found)
