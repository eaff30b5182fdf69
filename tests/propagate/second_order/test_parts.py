"""Bases in parts that share no noise, and forms that begin with the patches of an image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.conv import Conv
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.matmul import MatMul
from softhull.graph.ops.softmax import Softmax
from softhull.graph.ops.transpose import Transpose
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.second_order.affine_form import Basis, Noise
from softhull.propagate.second_order.remainders import Gauge
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation


def _blocks(rng: np.random.Generator) -> Basis:
    """Two blocks of noise, a row of zeros, and fresh noise; two instances."""
    U = torch.zeros(2, 6, 9, dtype=torch.float64)
    U[:, :2, :4], U[:, 2:5, 4:] = (torch.from_numpy(rng.normal(size=s)) for s in ((2, 2, 4), (2, 3, 5)))
    U[1, 1, 2] = 0
    return Basis(U).in_parts().extended(3, 9).extended(2, 12)


def test_a_basis_in_parts_is_the_same_basis():
    rng = np.random.default_rng(0)
    basis = _blocks(rng)
    assert basis.parts is not None
    plain = Basis(basis.map, basis.numbers)
    for B, r in ((2, 11), (1, 11), (2, 7), (1, 4)):
        slope = torch.from_numpy(rng.normal(size=(B, 5, r)))
        assert torch.allclose(basis.over_noise(slope), plain.over_noise(slope), rtol=1e-14, atol=1e-14)
    again = basis.take(torch.tensor([1, 0, 1]))
    slope = torch.from_numpy(rng.normal(size=(3, 5, 11)))
    assert torch.allclose(again.over_noise(slope), slope @ again.map, rtol=1e-14, atol=1e-14)
    order, parts = basis.parts
    known_order, known_parts = plain.in_parts().parts or (order, parts)
    assert sorted(order.tolist()) == sorted(known_order.tolist())
    assert sorted(part.count for part in parts) == sorted(part.count for part in known_parts)


@pytest.mark.parametrize("norm", [math.inf, 2])
@pytest.mark.parametrize("some", [False, True])
def test_ranges_of_products_are_those_without_parts(norm, some):
    rng = np.random.default_rng(2)
    basis, noise = _blocks(rng), Noise(9, norm)
    used = torch.from_numpy(rng.uniform(size=(2, 11)) < 0.6) if some else None
    found, plain = Gauge(basis, noise, used), Gauge(Basis(basis.map), noise, used)
    assert torch.allclose(found.gram, plain.gram, rtol=1e-13, atol=1e-14)
    assert torch.allclose(found.cost, plain.cost, rtol=1e-13)
    P, R = (torch.from_numpy(rng.normal(size=(2, 3, 2, 11))) for _ in range(2))
    if used is not None:
        P, R = P * used[:, None, None], R * used[:, None, None]
    low, high = found.between(found.inner(P, P), found.inner(P, R), found.inner(R, R))
    for _ in range(200):
        eps = torch.from_numpy(rng.uniform(-1, 1, size=(2, 14))).sign()
        if norm == 2:
            eps[:, :9] /= 3
        z = basis.values(eps)[:, None, :, None]
        product = ((P @ z) * (R @ z)).sum((-2, -1))
        assert bool(((low <= product) & (product <= high)).all())


def _patches_with_attention(rng: np.random.Generator) -> Graph:
    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape)) / math.sqrt(shape[0])

    builder = GraphBuilder((1, 2, 4, 6))
    seen = builder.add(Conv(normal(3, 2, 2, 3), normal(3), (2, 3), (0, 0, 0, 0), (1, 1)), -1)
    tokens = builder.add(Transpose((1, 0)), builder.reshape(seen, (3, 4)))
    q, k, v = (builder.add(Dense(normal(3, 3)), tokens) for _ in range(3))
    logits = builder.add(MatMul((4, 3), (3, 4)), q, builder.add(Transpose((1, 0)), k))
    mixed = builder.add(MatMul((4, 4), (4, 3)), builder.add(Softmax(1), logits), v)
    builder.add(Dense(normal(12, 3)), builder.reshape(mixed, (1, 12)))
    return Graph((1, 2, 4, 6), tuple(builder.nodes))


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("eps", [1e-3, 0.3])
def test_second_order_holds_behind_patches(norm, eps):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        graph = _patches_with_attention(rng)
        x = torch.from_numpy(rng.uniform(size=(2, 1, 2, 4, 6)))
        region = Perturbation(eps, norm, only=rng.uniform(size=(1, 2, 4, 6)) < 0.8).around(x)
        second = SecondOrderBounds.of(LinearBounds(graph, region, Linear(optimize=0, contract=False)))
        assert second.forms.bounds.structure.stem == 0
        rows = torch.from_numpy(rng.normal(size=(4, 1, 3)))
        instances = torch.tensor([0, 1, 0, 1])
        low = second.lower(rows, instances, 6, torch.full((4,), math.inf, dtype=torch.float64))
        assert bool(low.isfinite().all())
        generator = torch.Generator().manual_seed(seed)
        points = torch.stack([region.sample(generator) for _ in range(200)])
        corners = (points - x).sign() * (eps if norm == math.inf else 0) + x
        for y in (*points, *(region.project(c) for c in corners)):
            assert bool(((rows.flatten(1) * graph(y).flatten(1)[instances]).sum(1) >= low).all())
