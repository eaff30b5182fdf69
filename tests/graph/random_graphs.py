"""Random small networks over all operators, for suites that try to break bounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.operator import Operator
from softhull.graph.ops.centre import Centre
from softhull.graph.ops.clip import Clip
from softhull.graph.ops.concat import Concat
from softhull.graph.ops.conv import Conv
from softhull.graph.ops.cube import Cube
from softhull.graph.ops.elu import Elu
from softhull.graph.ops.erf import Erf
from softhull.graph.ops.exp import Exp
from softhull.graph.ops.gather import Gather
from softhull.graph.ops.gelu import Gelu, TanhGelu
from softhull.graph.ops.log import Log
from softhull.graph.ops.log_sum_exp import LogSumExp
from softhull.graph.ops.reciprocal import Reciprocal
from softhull.graph.ops.relu import LeakyRelu, Relu
from softhull.graph.ops.rsqrt import Rsqrt
from softhull.graph.ops.sigmoid import Sigmoid
from softhull.graph.ops.silu import Mish, Silu
from softhull.graph.ops.slice import Slice
from softhull.graph.ops.softmax import Softmax
from softhull.graph.ops.softplus import Softplus
from softhull.graph.ops.softsign import Softsign
from softhull.graph.ops.sqrt import Sqrt
from softhull.graph.ops.square import Square
from softhull.graph.ops.tanh import Tanh

# Every block maps a matrix of tokens and features to another one, so that any sequence of them is a network.
Block = Callable[[GraphBuilder, int, np.random.Generator], int]


def random_graph(rng: np.random.Generator, blocks: int = 4) -> Graph:
    """A network of a few random blocks on a random input shape, ending in a few outputs."""
    tokens, features = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    builder = GraphBuilder((1, tokens, features))
    x = builder.reshape(-1, (tokens, features))
    for block in rng.choice(len(BLOCKS), size=blocks):
        x = BLOCKS[block](builder, x, rng)
        if rng.random() < 0.7:  # keeps the scale of the values, and mixes them
            x = _linear(builder, x, rng)
    flat = builder.reshape(x, (1, int(np.prod(builder.shape(x)))))
    x = builder.linear(flat, _normal(rng, builder.shape(flat)[1], 3))
    return builder.finish(builder.scale(x, 1.0, _normal(rng, 3)))


def _normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape) / np.sqrt(shape[0]))


def _linear(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    return b.linear(x, _normal(rng, b.shape(x)[-1], int(rng.integers(2, 6))))


def _mixing(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    return b.linear(x, _normal(rng, b.shape(x)[0], b.shape(x)[0]), left=True)


def _scale(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    return b.scale(x, _normal(rng, b.shape(x)[-1]), _normal(rng, *b.shape(x)))


def _activation(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    choices: list[Operator] = [
        Relu(),
        LeakyRelu(0.125),
        Clip(-0.5, 0.75),
        Sigmoid(),
        Tanh(),
        Erf(),
        Gelu(),
        TanhGelu(),
        Square(),
        Cube(),
        Silu(),
        Mish(),
        Softplus(),
        Softsign(),
        Elu(),
    ]
    return b.elementwise(choices[rng.integers(len(choices))], x)


def _positive_only(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    """Functions defined for positive numbers, fed with such."""
    positive = b.scale(b.elementwise(Sigmoid(), x), 1.0, 0.5)
    choices: list[Operator] = [Log(), Sqrt(), Rsqrt(), Reciprocal()]
    return b.elementwise(choices[rng.integers(len(choices))], positive)


def _exponential(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    return b.elementwise(Exp(), b.elementwise(Tanh(), x))


def _residual(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    y = b.elementwise(Relu(), b.linear(x, _normal(rng, b.shape(x)[-1], b.shape(x)[-1])))
    return b.sum_of(x, y) if rng.random() < 0.5 else b.difference(x, y)


def _gate(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    size = b.shape(x)[-1] if rng.random() < 0.5 else 1
    return b.product(x, b.elementwise(Sigmoid(), b.linear(x, _normal(rng, b.shape(x)[-1], size))))


def _attention(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    size = b.shape(x)[-1]
    q, k, v = (b.linear(x, _normal(rng, size, size)) for _ in range(3))
    scores = b.matmul(q, b.transpose(k, (1, 0)))
    operator = Softmax(1)
    if rng.random() < 0.5:
        tokens, amount = b.shape(x)[0], float(rng.choice((-np.inf, -1e9, -1e4)))
        mask = torch.full((tokens, tokens), amount, dtype=torch.float64).triu(1)
        if rng.random() < 0.5:
            scores = b.scale(scores, 1.0, mask)
        else:
            operator = Softmax(1, mask, replaced=bool(rng.random() < 0.5))
    return b.matmul(b.elementwise(operator, scores), v)


def _log_softmax(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    return b.difference(x, b.add(LogSumExp((int(rng.integers(2)),)), x))


def _maximum(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    """Of neighbours, as pooling is imported: one plus what another has more."""
    rows, columns = b.shape(x)
    if columns < 2:
        return x
    first = b.add(Slice(((0, rows, 1), (0, columns - 1, 1))), x)
    second = b.add(Slice(((0, rows, 1), (1, columns, 1))), x)
    return b.sum_of(first, b.elementwise(Relu(), b.difference(second, first)))


def _layer_norm(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    """LayerNorm, or RMSNorm: without subtracting the mean."""
    centred = b.add(Centre((1,)), x) if rng.random() < 0.6 else x
    variance = b.scale(b.total(b.elementwise(Square(), centred), (1,), mean=True), 1.0, 0.1)
    return b.product(centred, b.elementwise(Rsqrt(), variance))


def _convolution(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    rows, columns = b.shape(x)
    image = b.reshape(x, (1, 1, rows, columns))
    kernel = _normal(rng, 1, 1, 2, 2) / 2
    y = b.add(Conv(kernel, _normal(rng, 1), (1, 1), (1, 0, 0, 1), (1, 1)), image)
    return b.reshape(y, b.shape(y)[2:])


def _pieces(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    rows, columns = b.shape(x)
    first = b.add(Slice(((0, rows, 1), (0, columns, 2))), x)
    second = b.add(Gather(1, torch.from_numpy(rng.integers(0, columns, size=2))), x)
    constant = _normal(rng, rows, 1)
    return b.add(Concat(1, (None, constant, None)), first, second)


def _spread(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    mean = b.total(x, (0,), mean=True)
    return b.expand(mean, b.shape(x))


BLOCKS: tuple[Block, ...] = (
    _activation,
    _activation,
    _positive_only,
    _exponential,
    _mixing,
    _scale,
    _residual,
    _gate,
    _attention,
    _attention,
    _layer_norm,
    _log_softmax,
    _maximum,
    _convolution,
    _pieces,
    _spread,
)
