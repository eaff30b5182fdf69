"""Better intervals of what activations take in, and quadratics over l_1 balls: both hold, and both gain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.gather import Gather
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax
from softhull.graph.simplify import simplify
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order.sharpen import sharpened
from softhull.propagate.second_order.specification import SecondOrderBounds, over_pairs
from softhull.regions import Perturbation

NORMS = [math.inf, 2, 1]


def attention(rng: np.random.Generator, tokens: int = 4, width: int = 4) -> Graph:
    """Attention and an MLP with two layers of ReLU, of which one token is read."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape) / math.sqrt(shape[0]))

    b = GraphBuilder((tokens, width))
    q, k, v = (b.linear(-1, normal(width, width)) for _ in range(3))
    x = b.sum_of(-1, b.matmul(b.add(Softmax(1), b.matmul(q, b.transpose(k, (1, 0)))), v))
    x = b.linear(b.elementwise(Relu(), b.linear(x, normal(width, 8))), normal(8, width))
    x = b.linear(b.elementwise(Relu(), x), normal(width, 3))
    return simplify(b.finish(b.add(Gather(0, torch.tensor([0])), x)))


def inside(rng: np.random.Generator, x: Tensor, eps: float, norm: float, count: int = 400) -> Tensor:
    """Points of balls around two centres, ``[count, 2, ...]``, near their surface and near corners of the l_1 ball."""
    draw = rng.normal(size=(count, *x.shape))
    draw[::2] *= rng.uniform(size=draw[::2].shape) < 0.2
    draw[..., 0] += 1e-6
    found = torch.from_numpy(draw)
    lengths = found.flatten(2).norm(norm, dim=2).reshape(count, 2, *(1,) * (x.ndim - 1))
    return x + (eps * (1 - 1e-12)) * found / lengths


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(2, 4))
def test_sharper_intervals_hold_and_are_never_wider(norm, seed):
    rng = np.random.default_rng(seed)
    graph = attention(rng)
    x = torch.from_numpy(rng.normal(size=(2, *graph.input_shape)))
    eps = {math.inf: 0.1, 2: 0.3, 1: 0.5}[norm]
    second = SecondOrderBounds.of(LinearBounds(graph, Perturbation(eps, norm=norm).around(x), SecondOrder().linear))
    rows = torch.tensor([[[1.0, -1, 0]], [[0, 1, -1]]], dtype=torch.float64)
    better = sharpened(second, rows, torch.arange(2))
    assert better is not None
    never = torch.full((2,), math.inf, dtype=torch.float64)
    before, after = (s.lower(rows, torch.arange(2), 6, never) for s in (second, better))
    points = inside(rng, x, eps, norm)
    values = graph.values(points.flatten(0, 1))
    narrower = False
    for node in graph.nodes:
        if not isinstance(node.operator, Relu):
            continue
        (at,) = node.inputs
        old, new = (s.bounds.interval(at) for s in (second, better))
        assert bool((new[0] >= old[0]).all() and (new[1] <= old[1]).all())
        narrower |= bool((new[1] - new[0] < old[1] - old[0]).any())
        seen = values[at].reshape(len(points), 2, *node.shape)
        assert bool((new[0] <= seen.amin(0)).all() and (seen.amax(0) <= new[1]).all())
    assert narrower
    outputs = values[-1].reshape(len(points), 2, -1)
    for s, low in ((0, before), (1, before), (0, after), (1, after)):
        margin = (outputs[:, s] * rows[s].flatten()).sum(-1)
        assert float(low[s]) <= float(margin.min())


@pytest.mark.parametrize("seed", range(20))
def test_pairs_of_corners_bound_quadratics_over_an_l1_ball(seed):
    rng = np.random.default_rng(seed)
    inputs, others = int(rng.integers(1, 6)), int(rng.integers(0, 4))
    n = inputs + others
    linear = torch.from_numpy(rng.normal(size=(3, n)))
    B = torch.from_numpy(rng.normal(size=(3, n, n)) * 10.0 ** rng.uniform(-2, 1))
    B = (B + B.mT) / 2
    low = over_pairs(linear, B, inputs)
    draw = rng.normal(size=(4000, inputs))
    draw[::2] *= rng.uniform(size=draw[::2].shape) < 0.5
    draw /= np.maximum(np.abs(draw).sum(1, keepdims=True), 1e-12) / rng.uniform(0, 1, size=(4000, 1)) ** 0.2
    noise = torch.from_numpy(np.concatenate((draw, np.sign(rng.normal(size=(4000, others)))), 1))
    value = noise @ linear.T + torch.einsum("ni,pij,nj->np", noise, B, noise)
    assert bool((low <= value.amin(0)).all())
    if not others and seed % 2:  # corners themselves are points of the ball
        corner = torch.cat((torch.eye(n), -torch.eye(n), torch.zeros(1, n))).double()
        at = corner @ linear.T + torch.einsum("ni,pij,nj->np", corner, B, corner)
        assert bool((low <= at.amin(0)).all())
