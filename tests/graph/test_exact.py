"""Constants are joined only where nothing is rounded."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from softhull.graph.builder import GraphBuilder
from softhull.graph.exact import exact_product, exact_sum
from softhull.graph.simplify import simplify


def _numbers(rng: np.random.Generator, count: int) -> list[float]:
    single = float(np.float32(rng.normal()))
    kinds = (rng.normal(), single, rng.integers(-8, 9) / 4, 10.0 ** rng.uniform(-320, 300), 0.0, 1.0, -1.0)
    return [float(kinds[rng.integers(len(kinds))]) for _ in range(count)]


def test_sums_and_products_are_exact_or_refused() -> None:
    rng = np.random.default_rng(0)
    accepted = 0
    for _ in range(3000):
        a, b = _numbers(rng, 2)
        for combine, exact in ((exact_product, Fraction(a) * Fraction(b)), (exact_sum, Fraction(a) + Fraction(b))):
            found = combine(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
            if found is not None:
                accepted += 1
                assert Fraction(float(found)) == exact
    assert accepted > 1000


def test_products_of_single_precision_constants_are_joined() -> None:
    rng = np.random.default_rng(1)
    a, b = (torch.from_numpy(rng.normal(size=(50, 50)).astype(np.float32)).double() for _ in range(2))
    assert exact_product(a, b) is not None


def test_a_scale_that_would_round_the_weights_stays_behind_the_layer() -> None:
    for factor, nodes in ((0.1, 2), (0.125, 1)):
        b = GraphBuilder((1, 3))
        matrix = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 3)))
        graph = simplify(b.finish(b.scale(b.linear(-1, matrix), factor)))
        assert len(graph.nodes) == nodes
