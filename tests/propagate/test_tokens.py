"""Rows on a few tokens without the zeros of the others: the same bounds, and sound ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.add import Subtract
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.matmul import MatMul
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.scale import Scale
from softhull.graph.ops.softmax import Softmax
from softhull.graph.ops.tanh import Tanh
from softhull.graph.ops.transpose import Transpose
from softhull.propagate import crown
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.tokens import Some, by_position, some
from softhull.regions import Region

TOKENS, WIDTH, HEADS = 9, 4, 2


def transformer(rng: np.random.Generator, layers: int = 2) -> Graph:
    """Attention of two heads and an MLP, with sums and a difference around them; softmax along either axis."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape)) / math.sqrt(shape[0])

    b = GraphBuilder((TOKENS, WIDTH))
    x = b.add(Dense(normal(WIDTH, WIDTH), normal(WIDTH)), -1)
    for layer in range(layers):
        scaled = b.add(Scale(normal(TOKENS, 1), normal(WIDTH)), x)
        q, k, v = (
            b.add(
                Transpose((1, 0, 2)),
                b.reshape(b.add(Dense(normal(WIDTH, WIDTH)), scaled), (TOKENS, HEADS, WIDTH // HEADS)),
            )
            for _ in range(3)
        )
        shape = (HEADS, TOKENS, WIDTH // HEADS)
        turned = (HEADS, WIDTH // HEADS, TOKENS)
        if layer % 2:  # rows of the right factor hold the queries
            logits = b.add(MatMul(shape, turned), k, b.add(Transpose((0, 2, 1)), q))
            p = b.add(Transpose((0, 2, 1)), b.add(Softmax(1), logits))
        else:
            p = b.add(Softmax(2), b.add(MatMul(shape, turned), q, b.add(Transpose((0, 2, 1)), k)))
        mixed = b.add(Transpose((1, 0, 2)), b.add(MatMul((HEADS, TOKENS, TOKENS), shape), p, v))
        x = b.sum_of(b.reshape(mixed, (TOKENS, WIDTH)), x)
        inside = b.add(Relu() if layer else Tanh(), b.add(Dense(normal(WIDTH, 6), normal(TOKENS, 6)), x))
        x = b.add(Subtract(), x, b.add(Dense(normal(6, WIDTH)), inside))
    return Graph((TOKENS, WIDTH), tuple(b.nodes))


def box(rng: np.random.Generator, eps: float, dtype: torch.dtype) -> Region:
    x = torch.from_numpy(rng.normal(size=(2, TOKENS, WIDTH)))
    return Region((x - eps).to(dtype), (x + eps).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("differences", "mixture"), [(False, 0.5), (True, 0.5), (False, 1.0)])
@pytest.mark.parametrize("eps", [1e-3, 0.1])
def test_bounds_are_those_of_whole_walks(monkeypatch, dtype, differences, mixture, eps):
    rng = np.random.default_rng(4)
    graph, region = transformer(rng).to(dtype, "cpu"), box(rng, eps, dtype)
    monkeypatch.setattr("softhull.propagate.shadow._FEW", 0)  # functions of the input would need no walks
    method = Linear(optimize=0, contract=False, differences=differences, mixture=mixture)
    found = LinearBounds(graph, region, method)
    last = len(graph.nodes) - 1
    seen: set[int] = set()
    step = crown.some_step

    def watched(operator, bounds, index, A, where):
        seen.add(index)
        return step(operator, bounds, index, A, where)

    monkeypatch.setattr(crown, "some_step", watched)
    ends = found.interval(last)
    kinds = {type(graph.nodes[i].operator) for i in seen}
    assert {Dense, Scale, MatMul, Softmax, Tanh, Relu, Subtract, Transpose} <= kinds
    # Planes may depend on the last digit of an interval: both kinds of walks start from the same ones.
    close = 1e-12 if dtype == torch.float64 else 1e-3
    for index in (18, 21, 33, 40, last):
        shape = graph.nodes[index].shape
        rows = torch.eye(math.prod(shape), dtype=dtype).reshape(-1, 1, *shape)[: 2 * math.prod(shape[1:])]
        with monkeypatch.context() as patch:
            few = found.between(index, rows)
            patch.setattr(crown, "some", lambda A: None)
            for end, known in zip(few, found.between(index, rows)):
                assert torch.allclose(end, known, rtol=close, atol=close * max(1.0, float(known.abs().max())))
    exact = graph.to(torch.float64, "cpu")
    for _ in range(200):
        share = torch.from_numpy(rng.choice([0.0, 1.0, rng.uniform()], size=region.lower.shape))
        x = region.lower.double() + share * (region.upper.double() - region.lower.double())
        y = exact(torch.minimum(x, region.upper.double()))
        assert bool(((ends[0].double() <= y) & (y <= ends[1].double())).all())


def test_where_coefficients_are():
    A = torch.zeros(5, 2, 3, 12, 4)
    assert some(A) is None
    A[:, 1, :, 3], A[2, 0, 1, 7, 2] = 1, math.nan
    where = some(A)
    assert where is not None
    assert (where.axis, where.at.tolist()) == (1, [3, 7])
    assert torch.equal(where.whole(where.of(A, 2), A.shape[2:]).nan_to_num(5.0), A.nan_to_num(5.0))
    assert where.same(where.along(1))
    assert not where.same(where.along(0))
    assert not where.same(Some(1, torch.tensor([3, 7])))
    assert some(torch.ones(5, 2, 3, 12, 4)) is None
    for shape in ((), (3,), (12,)):
        assert some(torch.ones(5, 2, *shape)) is None
    alone = some(torch.eye(12)[:3].reshape(3, 1, 12))
    assert alone is not None
    assert alone.at.tolist() == [0, 1, 2]


def test_every_entry_is_walked_for_once():
    for shape in ((3, 12, 4), (2, 5), (40,), (12, 3, 9)):
        wanted = torch.arange(math.prod(shape))[torch.rand(math.prod(shape)) < 0.7]
        ordered, together = by_position(wanted, shape)
        assert torch.equal(ordered.sort().values, wanted)
        assert together >= 1
