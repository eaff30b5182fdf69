"""No point of a region of several units, of a part of the input or of alternatives violates a bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.propagate.methods import Linear
from softhull.regions import Alternatives, Perturbation
from tests.propagate.checks import assert_claims_hold
from tests.propagate.networks import random_attention
from tests.propagate.second_order.claims import assert_claims_hold as assert_second_order_holds


@pytest.mark.parametrize("seed", range(6))
def test_balls_of_several_units(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_attention(rng, depth=1)
    shape = graph.input_shape
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *shape)))
    std, only = 10 ** rng.uniform(-1, 0.5, shape), rng.random(shape) < 0.7
    asked = Perturbation(10 ** rng.uniform(-3, -1), (2, 1, math.inf)[seed % 3], normalize=(0.0, std), only=only)
    region = asked.around(x)
    assert_claims_hold(graph, region, Linear(), seed)
    if seed < 3:
        assert assert_second_order_holds(graph, region, seed) == 6


@pytest.mark.parametrize("seed", range(3))
def test_alternatives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_attention(rng, depth=1)
    d = graph.input_shape[-1]
    table = rng.uniform(0, 1, size=(8, d))
    ids = rng.integers(0, 8, (2, math.prod(graph.input_shape) // d))
    asked = Alternatives(table, {k: rng.integers(0, 8, 2).tolist() for k in range(8)}, (None, 1, 2)[seed])
    x = torch.from_numpy(table[ids].reshape(2, *graph.input_shape))
    assert_claims_hold(graph, asked.around(x), Linear(), seed)
