"""Functions of the input, and the planes that are chosen by them, on encoders with real normalisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.centre import Centre
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.normalize import InverseDeviation, Normalized
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax
from softhull.propagate import contraction, normalize, shadow
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation, Region
from tests.propagate.checks import points_of

TOKENS, WIDTH, HEADS = 4, 6, 2
EPSILON = 1e-5
NORMS = (math.inf, 2, 1)


def encoder(rng: np.random.Generator, depth: int, centred: bool, tokens: int = TOKENS, width: int = WIDTH) -> Graph:
    """Pre-norm layers of attention and rectifiers, a last normalisation, and two logits of the mean of all tokens."""

    def weights(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape) / np.sqrt(shape[0]))

    def normalised(x: int) -> int:
        z = b.add(Centre((1,)), x) if centred else x
        r = b.add(InverseDeviation((1,), EPSILON), z)
        return b.add(Normalized((tokens, width), (tokens, 1), (1,), EPSILON), z, r)

    b = GraphBuilder((tokens, width))
    x = b.scale(-1, 1.0, torch.zeros(width, dtype=torch.float64) + 0.1)
    for _ in range(depth):
        y = normalised(x)
        q, k, v = (b.linear(y, weights(width, width)) for _ in range(3))
        q, k, v = (b.transpose(b.reshape(t, (tokens, HEADS, width // HEADS)), (1, 0, 2)) for t in (q, k, v))
        p = b.elementwise(Softmax(2), b.matmul(q, b.transpose(k, (0, 2, 1))))
        y = b.reshape(b.transpose(b.matmul(p, v), (1, 0, 2)), (tokens, width))
        x = b.sum_of(x, b.linear(y, weights(width, width)))
        y = b.linear(b.elementwise(Relu(), b.linear(normalised(x), weights(width, 8))), weights(8, width))
        x = b.sum_of(x, y)
    return b.finish(b.linear(b.total(normalised(x), (0,), mean=True), weights(width, 2)))


def one_token(rng: np.random.Generator, graph: Graph, eps: float, norm: float, batch: int = 1) -> Region:
    """The first token of random inputs moves."""
    only = np.zeros(graph.input_shape, dtype=bool)
    only[0] = True
    return Perturbation(eps, norm, only=only).around(torch.from_numpy(rng.normal(size=(batch, *graph.input_shape))))


def violations(graph: Graph, region: Region, seed: int, second: bool = True) -> int:
    """How many sampled values lie outside of what is said of intervals, rows and their combinations; no tolerance."""
    bounds, last = LinearBounds(graph, region, Linear()), len(graph.nodes) - 1
    C = torch.randn((4, region.size, *graph.output_shape), dtype=torch.float64)
    low, high = bounds.between(last, C)
    points = points_of(region, seed, 90)
    values = [value.unflatten(0, points.shape[:2]) for value in graph.values(points.flatten(0, 1))]
    count = 0

    def outside(least: Tensor, value: Tensor, most: Tensor) -> int:
        return int((~((least <= value) & (value <= most))).sum())

    for index, value in enumerate(values):
        least, most = bounds.interval(index)
        moving = most > least + 1e-12  # of what does not move the value is as rounded as its bounds
        count += outside(least[moving], value[:, moving], most[moving])
        if shadow.few(bounds, index):
            entries = math.prod(graph.nodes[index].shape)
            lines = torch.arange(entries).reshape(1, -1)
            D = torch.randn((3, 1, 1, entries), dtype=torch.float64)
            least, most = shadow.combined(bounds, index, lines, D)
            met = torch.einsum("sd,pbd->psb", D[:, 0, 0], value.flatten(2))[..., None]
            moving = most > least + 1e-12
            count += outside(least[moving], met[:, moving], most[moving])
    met = torch.einsum("sbk,pbk->psb", C.flatten(2), values[last].flatten(2))
    count += outside(low, met, high)
    if second:
        better = SecondOrderBounds.of(bounds)
        rows, instances = C.flatten(0, 1), torch.arange(region.size).repeat(len(C))
        least = better.lower(rows, instances, 4, torch.full((len(rows),), math.inf, dtype=torch.float64))
        count += int((~(least.reshape(low.shape) <= met)).sum())
    return count


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("centred", [True, False])
def test_encoders_with_normalisation(norm: float, centred: bool) -> None:
    rng = np.random.default_rng(1)
    graph = encoder(rng, 1, centred)
    for eps in (0.003, 0.1, 1.0) if centred and norm == 2 else (0.1,):
        assert violations(graph, one_token(rng, graph, eps, norm), 1) == 0


@pytest.mark.parametrize(("depth", "centred", "norm"), [(2, False, 2), (2, True, 1), (3, True, math.inf)])
def test_deep_encoders_with_normalisation(depth: int, centred: bool, norm: float) -> None:
    rng = np.random.default_rng(depth)
    graph = encoder(rng, depth, centred, *((TOKENS, WIDTH) if depth < 3 else (2, 4)))
    assert violations(graph, one_token(rng, graph, 0.01, norm), depth, second=depth < 3) == 0


@pytest.mark.parametrize("planted", ["function", "mixture", "tangent"])
def test_a_planted_error_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if planted == "function":  # the two sides exchanged

        def exchanged(bounds, found, lines, C):
            return true_function(bounds, shadow.Shadow(*swapped(found)), lines, C)

        def swapped(found):
            return (found.above, found.above_offset, found.below, found.below_offset, found.size, found.moving)

        true_function = shadow.lower_function
        monkeypatch.setattr(shadow, "lower_function", exchanged)
    elif planted == "mixture":  # more of one plane than there is

        def more(*given):
            return true_mixtures(*given) + 0.7

        true_mixtures = contraction._mixtures
        monkeypatch.setattr(contraction, "_mixtures", more)
    else:  # a mean square that is said to be larger than it is

        def larger(operator, bounds, index):
            least, most = true_range(operator, bounds, index)
            return least + 0.7 * (most - least), most

        true_range = normalize.walked_mean_square
        monkeypatch.setattr(normalize, "walked_mean_square", larger)
    rng = np.random.default_rng(5)
    graph = encoder(rng, 1, True)
    assert any(violations(graph, one_token(rng, graph, eps, math.inf), 5, second=False) for eps in (0.1, 0.5))


def test_no_cliff() -> None:
    """The margin of an ever larger region falls to what holds of normalised rows whatever happens, and no further."""
    rng = np.random.default_rng(8)
    graph = encoder(rng, 1, True)
    C = torch.tensor([1.0, -1.0], dtype=torch.float64).reshape(1, 1, *graph.output_shape)
    dense = graph.nodes[-1].operator
    assert isinstance(dense, Dense)
    limit = math.sqrt(WIDTH) * float((dense.matrix @ C.flatten()).norm())
    x = torch.from_numpy(rng.normal(size=(1, TOKENS, WIDTH)))
    for eps in (1.0, 10.0, 1e3, 1e6):
        region = Perturbation(eps).around(x)
        assert float(LinearBounds(graph, region, Linear()).lower(len(graph.nodes) - 1, C)) >= -limit - 1e-9


def test_what_is_said_of_an_instance_does_not_depend_on_its_company() -> None:
    rng = np.random.default_rng(9)
    graph = encoder(rng, 1, True)
    region = one_token(rng, graph, 0.05, math.inf, batch=2)
    C = torch.tensor([1.0, -1.0], dtype=torch.float64).reshape(1, 1, *graph.output_shape)
    last = len(graph.nodes) - 1
    together = LinearBounds(graph, region, Linear()).lower(last, C)[0]
    alone = [LinearBounds(graph, region.take(torch.tensor([i])), Linear()).lower(last, C)[0, 0] for i in range(2)]
    assert torch.allclose(together, torch.stack(alone), atol=1e-6, rtol=0)


def test_the_length_of_vanishing_rows() -> None:
    """Squares of coefficients below 1e-162 vanish, the rows that they are of do not."""
    rng, scale = np.random.default_rng(6), 1e-170
    b = GraphBuilder((1, 4))
    z = b.scale(-1, 1.0, 0.01)
    r = b.add(InverseDeviation((1,), EPSILON), z)
    y = b.add(Normalized((1, 4), (1, 1), (1,), EPSILON), z, r)
    small = b.scale(b.linear(y, torch.from_numpy(rng.normal(size=(4, 3)))), scale, 0.0)
    graph = b.finish(b.scale(b.elementwise(Relu(), small), 1 / scale, 0.0))
    region = Perturbation(1.0).around(torch.zeros(1, 1, 4, dtype=torch.float64))
    x = torch.from_numpy(rng.uniform(-1, 1, size=(200, 1, 4)))
    high = LinearBounds(graph, region, Linear()).interval(len(graph.nodes) - 1)[1]
    assert bool((graph(x) <= high).all())
