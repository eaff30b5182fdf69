"""Entries that no output depends on are left out, and nothing else changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.needed import only_needed
from softhull.graph.ops.centre import Centre
from softhull.graph.ops.concat import Concat
from softhull.graph.ops.gather import Gather
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.slice import Slice
from softhull.graph.ops.softmax import Softmax
from softhull.graph.simplify import simplify

from .random_graphs import random_graph

TOKENS, WIDTH, HEADS = 5, 6, 2


def normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.normal(size=shape) / math.sqrt(shape[0]))


def entries(graph: Graph) -> int:
    return sum(math.prod(node.shape) for node in graph.nodes)


def assert_same(graph: Graph, other: Graph, rng: np.random.Generator) -> None:
    x = torch.from_numpy(rng.normal(size=(4, *graph.input_shape)))
    torch.testing.assert_close(other(x), graph(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(100))
def test_what_is_left_computes_the_same(seed):
    rng = np.random.default_rng(seed)
    graph = simplify(random_graph(rng))
    builder = GraphBuilder(graph.input_shape)
    builder.nodes = list(graph.nodes)
    one = builder.add(Gather(1, torch.tensor([int(rng.integers(3))])), len(graph.nodes) - 1)
    picked = builder.finish(one)
    assert_same(picked, only_needed(picked), rng)
    assert entries(only_needed(picked)) <= entries(picked) + math.prod(graph.input_shape)


def encoder(rng: np.random.Generator, fused: bool, class_token: bool) -> Graph:
    """One layer of attention and an MLP, of which the first token is classified."""
    b = GraphBuilder((1, TOKENS, WIDTH))
    x = b.add(Concat(1, (normal(rng, 1, 1, WIDTH), None)), -1) if class_token else -1
    tokens = b.shape(x)[1]
    normed = b.add(Centre((2,)), x)
    if fused:
        three = b.reshape(b.linear(normed, normal(rng, WIDTH, 3 * WIDTH)), (tokens, 3, HEADS, WIDTH // HEADS))
        moved = b.transpose(three, (1, 2, 0, 3))
        ranges = ((0, HEADS, 1), (0, tokens, 1), (0, WIDTH // HEADS, 1))
        parts = [b.add(Slice(((i, i + 1, 1), *ranges)), moved) for i in range(3)]
        q, k, v = (b.reshape(part, b.shape(moved)[1:]) for part in parts)
    else:
        q, k, v = (
            b.transpose(
                b.reshape(b.linear(normed, normal(rng, WIDTH, WIDTH)), (tokens, HEADS, WIDTH // HEADS)), (1, 0, 2)
            )
            for _ in range(3)
        )
    mixed = b.matmul(b.add(Softmax(2), b.matmul(q, b.transpose(k, (0, 2, 1)))), v)
    x = b.sum_of(x, b.reshape(b.transpose(mixed, (1, 0, 2)), (1, tokens, WIDTH)))
    hidden = b.elementwise(Relu(), b.linear(x, normal(rng, WIDTH, 7)))
    x = b.sum_of(x, b.linear(hidden, normal(rng, 7, WIDTH)))
    first = b.reshape(b.add(Gather(1, torch.tensor([0])), x), (1, WIDTH))
    return b.finish(b.linear(first, normal(rng, WIDTH, 3)))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("class_token", [False, True])
def test_one_row_of_queries_probabilities_and_activations_is_left(fused, class_token):
    rng = np.random.default_rng(0)
    graph = encoder(rng, fused, class_token)
    left = simplify(graph)
    assert_same(graph, left, rng)
    tokens = TOKENS + class_token
    sizes = {name: [math.prod(n.shape) for n in left.nodes if n.operator.name == name] for name in ("Softmax", "Relu")}
    assert sizes == {"Softmax": [HEADS * tokens], "Relu": [7]}
    assert entries(only_needed(left)) == entries(left)


def test_equal_sub_graphs_are_one_and_dead_neurons_none():
    rng = np.random.default_rng(1)
    b = GraphBuilder((1, WIDTH))
    matrix, out = normal(rng, WIDTH, 4), normal(rng, 4, 2)
    out[1] = 0
    both = [b.linear(b.elementwise(Relu(), b.linear(-1, matrix)), out) for _ in range(2)]
    graph = b.finish(b.sum_of(*both))
    left = only_needed(graph)
    assert_same(graph, left, rng)
    assert [(node.operator.name, node.shape) for node in left.nodes] == [
        ("Dense", (1, 3)),
        ("Relu", (1, 3)),
        ("Dense", (1, 2)),
        ("Add", (1, 2)),
    ]


def test_an_output_that_is_constant_stays_one():
    rng = np.random.default_rng(2)
    b = GraphBuilder((1, WIDTH))
    joined = b.add(Concat(0, (normal(rng, 1, WIDTH), None)), -1)
    graph = b.finish(b.elementwise(Relu(), b.add(Slice(((0, 1, 1), (0, WIDTH, 1))), joined)))
    assert_same(graph, only_needed(graph), rng)
