"""Random attention networks: tokens, heads, depth and scale vary."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax


def random_attention(rng: np.random.Generator, depth: int | None = None, skip: bool = False) -> Graph:
    """A few attention layers between a dense layer and a few logits; ``skip``: these see the input, too."""
    tokens, heads, size = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    scale = float(10 ** rng.uniform(-1, 1))
    inputs, width = int(rng.integers(2, 7)), heads * size
    b = GraphBuilder((1, inputs))
    x = b.elementwise(Relu(), b.linear(-1, _normal(rng, inputs, tokens * width)))
    x = b.reshape(x, (tokens, width))
    for _ in range(depth or int(rng.integers(1, 4))):
        q, k, v = (b.linear(x, scale * _normal(rng, width, width)) for _ in range(3))
        q, k, v = (b.transpose(b.reshape(t, (tokens, heads, size)), (1, 0, 2)) for t in (q, k, v))
        if rng.random() < 0.5:  # scores by query and key, or by key and query as some exporters write them
            p = b.elementwise(Softmax(2), b.matmul(q, b.transpose(k, (0, 2, 1))))
        else:
            p = b.elementwise(Softmax(1), b.matmul(k, b.transpose(q, (0, 2, 1))))
            p = b.transpose(p, (0, 2, 1))
        mixed = b.reshape(b.transpose(b.matmul(p, v), (1, 0, 2)), (tokens, width))
        y = b.linear(mixed, _normal(rng, width, width))
        if rng.random() < 0.5:
            y = b.sum_of(x, y)
        x = b.elementwise(Relu(), y) if rng.random() < 0.5 else y
    if skip:
        x = b.sum_of(x, b.reshape(b.linear(-1, _normal(rng, inputs, tokens * width)), (tokens, width)))
        x = b.product(x, b.elementwise(Relu(), x))
    flat = b.reshape(x, (1, tokens * width))
    return b.finish(b.scale(b.linear(flat, _normal(rng, tokens * width, 3)), 1.0, _normal(rng, 3)))


def _normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape) / np.sqrt(shape[0]))
