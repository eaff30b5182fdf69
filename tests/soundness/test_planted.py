"""Networks whose margin is negative by about one unit in the last place at one corner of the ball."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.relu import Relu
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.regions import Perturbation, Region


def planted(rng: np.random.Generator, x: torch.Tensor, region: Region, inputs: int, hidden: int) -> Graph:
    """A network with active rectifiers whose exact minimum over the ball is not positive, by less than an ulp."""
    first = rng.normal(size=(inputs, hidden))
    bias = np.abs(first).sum(0) * 2  # keeps every rectifier active
    last = rng.normal(size=hidden)

    def exact(v: float) -> Fraction:
        return Fraction(float(v))

    weight = [sum((exact(first[i, j]) * exact(last[j]) for j in range(hidden)), Fraction(0)) for i in range(inputs)]
    constant = sum((exact(bias[j]) * exact(last[j]) for j in range(hidden)), Fraction(0))
    least, most = (end[0].flatten().tolist() for end in region.inner or (region.lower, region.upper))
    minimum = constant + sum(
        (w * (exact(least[i]) if w > 0 else exact(most[i])) for i, w in enumerate(weight)), Fraction(0)
    )
    shift = float(-minimum)
    while Fraction(shift) + minimum > 0:
        shift = math.nextafter(shift, -math.inf)
    b = GraphBuilder((1, inputs))
    h = b.scale(b.linear(-1, torch.from_numpy(first)), 1.0, torch.from_numpy(bias))
    y = b.linear(b.elementwise(Relu(), h), torch.from_numpy(last)[:, None])
    return b.finish(b.scale(y, 1.0, shift))


@pytest.mark.parametrize(("inputs", "hidden"), [(3, 2), (20, 8), (200, 16)])
def test_no_planted_counterexample_is_certified(inputs: int, hidden: int) -> None:
    fooled = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = torch.from_numpy(rng.uniform(0, 1, (1, 1, inputs)))
        region = Perturbation(0.0 if seed % 5 == 0 else 10 ** rng.uniform(-8, -1)).around(x)
        graph = planted(rng, x, region, inputs, hidden)
        C = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        bound = LinearBounds(graph, region, Linear()).lower(len(graph.nodes) - 1, C)
        assert float(bound) <= 0
        assert float(bound) > -1e-9
        fooled += float(LinearBounds(graph, region, Linear(rounding="nearest")).lower(len(graph.nodes) - 1, C)) > 0
    assert fooled  # without charged rounding some of them are "proved"
