"""Random attention networks and random regions: every operator, mask, normalisation and kind of region there is."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.operator import Operator
from softhull.graph.ops.centre import Centre
from softhull.graph.ops.clip import Clip
from softhull.graph.ops.cube import Cube
from softhull.graph.ops.elu import Elu
from softhull.graph.ops.erf import Erf
from softhull.graph.ops.gelu import Gelu, TanhGelu
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
from softhull.regions import Alternatives, Perturbation, Region

CLASSES = 3
ACTIVATIONS: tuple[Operator, ...] = (
    Relu(),
    Relu(),
    LeakyRelu(0.125),
    Clip(-0.5, 0.75),
    Gelu(),
    TanhGelu(),
    Tanh(),
    Sigmoid(),
    Erf(),
    Silu(),
    Mish(),
    Softplus(),
    Softsign(),
    Elu(),
    Cube(),
)
EPSILON = 1e-5  # of normalisation, in torch
MASKS = (-math.inf, -1e9, -1e5, float(torch.finfo(torch.float32).min))


def _embedded(rng: np.random.Generator, rows: int, features: int, tokens: int, width: int) -> tuple[GraphBuilder, int]:
    """A graph whose tokens are random functions of all inputs."""
    b = GraphBuilder((rows, features))
    flat = b.reshape(-1, (1, rows * features))
    x = b.reshape(b.linear(flat, _normal(rng, rows * features, tokens * width)), (tokens, width))
    x = b.scale(x, 1.0, _normal(rng, tokens, width))
    return b, x


def random_transformer(rng: np.random.Generator, inputs: tuple[int, int] | None = None, depth: int = 0) -> Graph:
    """Layers of attention (``depth``, or one to six) over a few tokens, with all that may stand between them."""
    tokens, heads, size = (int(n) for n in rng.integers((1, 1, 1), (5, 3, 3)))
    rows, features = inputs or (int(rng.integers(1, 3)), int(rng.integers(2, 4)))
    width, scale = heads * size, float(10 ** rng.uniform(-1, 0.7))
    b, x = _embedded(rng, rows, features, tokens, width)
    hidden, norm = _hidden(rng, tokens), int(rng.integers(5))
    before = bool(rng.random() < 0.5)  # normalised before attention, or after it
    for _ in range(depth or int(rng.choice((1, 2, 3, 6), p=(0.6, 0.25, 0.13, 0.02)))):
        y = _attention(b, _normalised(b, x, norm) if before else x, rng, heads, scale, hidden)
        x = b.sum_of(x, y) if rng.random() < 0.6 else y
        x = x if before else _normalised(b, x, norm)
        if rng.random() < 0.7:
            y = b.scale(b.linear(x, _normal(rng, width, width)), 1.0, _normal(rng, width))
            y = b.elementwise(ACTIVATIONS[rng.integers(len(ACTIVATIONS))], y)
            x = b.sum_of(x, y) if rng.random() < 0.5 else y
    x = _pooled(b, x, int(rng.integers(6)))
    y = _classified(b, x, rng)
    if rng.random() < 0.1:  # a log-softmax at the end
        y = b.difference(y, b.elementwise(LogSumExp((1,)), y))
    return b.finish(y)


def random_encoder(rng: np.random.Generator, inputs: tuple[int, int] | None = None, depth: int = 0) -> Graph:
    """One to six layers (or ``depth``) as torch exports them: LayerNorm or RMSNorm, attention, norm, two-layer MLP.

    Normalised before attention and MLP or after their sums, with gains and shifts; epsilon is that of torch.
    """
    depth = depth or int(rng.integers(1, 7))
    # Walks through deep networks take long: the deeper they are, the smaller the rest.
    tokens = int(rng.integers(2, 5)) if depth < 3 else 2 + (depth < 5 and int(rng.integers(2)))
    heads, size = ((1, 4), (2, 2), (2, 3), (2, 4))[rng.integers(4 if depth < 4 else 2)]
    rows, features = inputs or (int(rng.integers(1, 3)), int(rng.integers(2, 4)))
    width, scale = heads * size, float(10 ** rng.uniform(-0.5, 0.4))
    b, x = _embedded(rng, rows, features, tokens, width)
    activation = (Relu(), Gelu(), Silu())[rng.integers(3)]
    kind, before = int(rng.integers(2, 5)), bool(rng.random() < 0.5)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1) if rng.random() < 0.2 else None

    def normal(x: int) -> int:
        gain, shift = 1 + _normal(rng, width) / 2, torch.zeros(()) if kind == 2 else _normal(rng, width)
        return b.scale(_normalised(b, x, kind, EPSILON), gain, shift)

    def perceptron(x: int) -> int:
        y = b.scale(b.linear(x, _normal(rng, width, 2 * width)), 1.0, _normal(rng, 2 * width))
        y = b.linear(b.elementwise(activation, y), _normal(rng, 2 * width, width))
        return b.scale(y, 1.0, _normal(rng, width))

    for _ in range(depth):
        for part in (lambda x: _attention(b, x, rng, heads, scale, hidden), perceptron):
            x = b.sum_of(x, part(normal(x))) if before else normal(b.sum_of(x, part(x)))
    x = _pooled(b, normal(x) if before else x, int(rng.integers(6)))
    return b.finish(_classified(b, x, rng))


def _classified(b: GraphBuilder, x: int, rng: np.random.Generator) -> int:
    count = math.prod(b.shape(x))
    return b.scale(b.linear(b.reshape(x, (1, count)), _normal(rng, count, CLASSES)), 1.0, _normal(rng, CLASSES))


def _normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape) / np.sqrt(shape[0]))


def _attention(
    b: GraphBuilder, x: int, rng: np.random.Generator, heads: int, scale: float, hidden: Tensor | None
) -> int:
    tokens, width = b.shape(x)
    size = width // heads
    q, k, v = (b.linear(x, scale * _normal(rng, width, width)) for _ in range(3))
    q, k, v = (b.transpose(b.reshape(t, (tokens, heads, size)), (1, 0, 2)) for t in (q, k, v))
    factor = torch.tensor(1 / math.sqrt(size), dtype=torch.float64)
    scores = b.matmul(q, b.transpose(k, (0, 2, 1)))
    amount = MASKS[rng.integers(len(MASKS))]
    written = int(rng.integers(3))  # a mask that is added, one that takes the place of a logit, one of the softmax
    operator = Softmax(2)
    if hidden is None:
        scores = b.scale(scores, factor)
    elif written == 2:
        mask = torch.where(hidden, amount, 0.0).to(torch.float64)[None]
        scores, operator = b.scale(scores, factor), Softmax(2, mask, bool(rng.random() < 0.5))
    else:
        factor = torch.where(hidden, 0.0, factor) if written and amount > -math.inf else factor
        scores = b.scale(scores, factor, torch.where(hidden, amount, 0.0).to(torch.float64))
    mixed = b.matmul(b.elementwise(operator, scores), v)
    return b.linear(b.reshape(b.transpose(mixed, (1, 0, 2)), (tokens, width)), _normal(rng, width, width))


def _hidden(rng: np.random.Generator, tokens: int) -> Tensor | None:
    """Which logits a mask hides: none, what comes later, what pads the end, or any, but never a whole row."""
    kind = rng.integers(4)
    if kind == 0 or tokens == 1:
        return None
    if kind == 1:
        return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    hidden = torch.zeros(tokens, tokens, dtype=torch.bool)
    if kind == 2:
        hidden[:, int(rng.integers(1, tokens)) :] = True
        return hidden
    hidden = torch.from_numpy(rng.random((tokens, tokens)) < 0.4)
    hidden[torch.arange(tokens), torch.from_numpy(rng.integers(tokens, size=tokens))] = False
    return hidden


def _normalised(b: GraphBuilder, x: int, kind: int, epsilon: float = 0.1) -> int:
    """As it is, less the mean of the features, or that (LayerNorm) or the features themselves (RMSNorm) as they vary.

    LayerNorm comes as a product with the inverse root or as a quotient by the root.
    """
    if kind == 0:
        return x
    centred = x if kind == 2 else b.elementwise(Centre((1,)), x)
    if kind == 1:
        return centred
    variance = b.scale(b.total(b.elementwise(Square(), centred), (1,), mean=True), 1.0, epsilon)
    if kind == 4:
        return b.product(centred, b.elementwise(Reciprocal(), b.elementwise(Sqrt(), variance)))
    return b.product(centred, b.elementwise(Rsqrt(), variance))


def _pooled(b: GraphBuilder, x: int, kind: int) -> int:
    """All tokens, the first one, their mean, or their maximum (a tournament of rectifiers, as pooling is imported)."""
    tokens, width = b.shape(x)
    if kind == 0:
        return b.total(x, (0,), mean=True)
    if kind > 2:
        return x

    def token(i: int) -> int:
        return b.add(Slice(((i, i + 1, 1), (0, width, 1))), x)

    best = token(0)
    for i in range(1, tokens if kind == 2 else 1):
        best = b.sum_of(best, b.elementwise(Relu(), b.difference(token(i), best)))
    return best


def random_perturbation(rng: np.random.Generator, shape: tuple[int, ...]) -> Perturbation:
    """A region of any kind but alternatives, most of them tiny: norms, clips, parts, units, radii of entries, boxes."""
    size = float(10.0 ** (rng.uniform(-16, -6) if rng.random() < 0.7 else rng.uniform(-6, -0.5)))
    size *= bool(rng.random() < 0.85)
    norm = (math.inf, 2, 1)[rng.integers(3)]
    clip = (0.0, 1.0) if rng.random() < 0.4 else None
    kind = rng.integers(8)
    if kind == 0:
        return Perturbation(size, norm, clip, only=rng.random(shape) < 0.6)
    if kind == 1:
        mean, std = rng.uniform(-0.1, 0, shape[:1]), rng.uniform(1, 3, shape[:1])
        return Perturbation(size, norm, None, normalize=(mean, std), lower=-3.0 if rng.random() < 0.5 else None)
    if kind == 2:
        return Perturbation(size * rng.random(shape), math.inf, clip, only=rng.random(shape) < 0.8)
    if kind == 3:  # inputs are from 0 to 1
        return Perturbation(None, lower=-size * rng.random(shape), upper=1 + size * rng.random(shape))
    if kind == 4:
        return Perturbation(size, norm, clip, lower=-size * rng.random(shape) / 2)
    return Perturbation(size, norm, clip)


def random_alternatives(rng: np.random.Generator, x: Tensor) -> Alternatives:
    """For the words of some inputs ``[B, positions, numbers]`` two others each, near or far."""
    words = x.reshape(-1, x.shape[-1]).numpy()
    others = words[:, None] + 10.0 ** rng.uniform(-9, 0, (len(words), 2, 1)) * rng.normal(size=(len(words), 2, 1))
    table = np.concatenate((words, others.reshape(-1, words.shape[-1])))
    listed = {i: (len(words) + 2 * i, len(words) + 2 * i + 1) for i in range(len(words))}
    return Alternatives(table, listed, at_most=(None, 1)[rng.integers(2)])


def random_region(rng: np.random.Generator, x: Tensor, dtype: torch.dtype) -> Region:
    """Regions of one kind around inputs ``[B, *shape]`` from 0 to 1, alternatives among them."""
    if rng.random() < 0.1:
        return random_alternatives(rng, x).around(x, dtype=dtype)
    return random_perturbation(rng, tuple(x.shape[1:])).around(x, dtype=dtype)
