"""The layered form is the network."""

from __future__ import annotations

import pytest
import torch

from softhull.errors import ModelError
from softhull.graph.graph import Graph, Node
from softhull.graph.ops.conv import Conv
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.reshape import Reshape
from softhull.graph.ops.sigmoid import Sigmoid
from softhull.solve.layers import stack_networks

from .ensembles import ACTIVATIONS, random_graph


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("skip", [False, True])
def test_layers_compute_what_the_graph_computes(activation, skip):
    generator = torch.Generator().manual_seed(0)
    graph = random_graph(generator, hidden=(5, 5), activation=activation, skip=skip)
    x = torch.randn(7, 1, 4, generator=generator, dtype=torch.float64)
    (stack,) = stack_networks([graph])
    torch.testing.assert_close(stack.values(x.flatten(1))[-1].softmax(-1), graph(x))


def test_convolutions_become_matrices():
    generator = torch.Generator().manual_seed(1)
    kernel = torch.randn(2, 1, 3, 3, generator=generator, dtype=torch.float64)
    matrix = torch.randn(18, 3, generator=generator, dtype=torch.float64)
    nodes = (
        Node(
            Conv(kernel, torch.ones(2, dtype=torch.float64), (2, 2), (1, 1, 1, 1), (1, 1)), (-1,), (1, 2, 3, 3), "conv"
        ),
        Node(Relu(), (0,), (1, 2, 3, 3), "relu"),
        Node(Reshape((1, 18)), (1,), (1, 18), "flat"),
        Node(Dense(matrix), (2,), (1, 3), "dense"),
    )
    graph = Graph((1, 1, 5, 5), nodes)
    x = torch.randn(4, 1, 1, 5, 5, generator=generator, dtype=torch.float64)
    (stack,) = stack_networks([graph])
    torch.testing.assert_close(stack.values(x.flatten(1))[-1], graph(x))


def test_equal_architectures_are_stacked_and_others_kept_apart():
    generator = torch.Generator().manual_seed(0)
    graphs = [random_graph(generator, hidden=h) for h in ((6, 5), (4,), (6, 5))]
    assert [stack.members for stack in stack_networks(graphs)] == [(0, 2), (1,)]


def test_a_network_without_its_softmax_means_the_same():
    with_it = random_graph(torch.Generator().manual_seed(3))
    without = random_graph(torch.Generator().manual_seed(3), softmax=False)
    x = torch.rand(2, 4, dtype=torch.float64)
    first, second = (stack_networks([graph])[0].values(x)[-1] for graph in (with_it, without))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        (lambda g: [random_graph(g, inputs=4), random_graph(g, inputs=5)], "share their input"),
        (lambda g: [random_graph(g, classes=3), random_graph(g, classes=4)], "share their classes"),
        (lambda g: [random_graph(g, classes=1)], "at least two logits"),
        (lambda g: [], "at least one network"),
        (lambda g: [_ending_in_sigmoid(g)], "ends in Sigmoid"),
    ],
)
def test_what_is_no_ensemble_of_classifiers_is_refused(graphs, message):
    with pytest.raises(ModelError, match=message):
        stack_networks(graphs(torch.Generator().manual_seed(0)))


def _ending_in_sigmoid(generator: torch.Generator) -> Graph:
    graph = random_graph(generator, softmax=False)
    last = Node(Sigmoid(), (len(graph.nodes) - 1,), graph.output_shape, "sigmoid")
    return Graph(graph.input_shape, (*graph.nodes, last))


def test_affine_maps_in_a_row_keep_the_sizes_of_their_terms():
    """A convolution straight into a dense map: the absolute values are those of convolving absolute values."""
    generator = torch.Generator().manual_seed(2)
    kernel = torch.randn(2, 1, 3, 3, generator=generator, dtype=torch.float64)
    matrix = torch.randn(18, 3, generator=generator, dtype=torch.float64)

    def network(kernel, matrix):
        conv = Conv(kernel, torch.ones(2, dtype=torch.float64), (2, 2), (1, 1, 1, 1), (1, 1))
        nodes = (
            Node(conv, (-1,), (1, 2, 3, 3), "conv"),
            Node(Reshape((1, 18)), (0,), (1, 18), "flat"),
            Node(Dense(matrix), (1,), (1, 3), "dense"),
        )
        return Graph((1, 1, 5, 5), nodes)

    (signed,), (absolute,) = (
        stack_networks([g]) for g in (network(kernel, matrix), network(kernel.abs(), matrix.abs()))
    )
    (layer,), (larger,) = signed.layers, absolute.layers
    assert layer.terms is not None
    assert layer.operations > 18
    assert (layer.terms[0] >= larger.weights[0] * (1 - 1e-12)).all()
    torch.testing.assert_close(layer.terms[-1], larger.bias)
    x = torch.rand(4, 25, generator=generator, dtype=torch.float64)
    assert (layer.magnitude([x]) >= larger.value([x]) * (1 - 1e-12)).all()
