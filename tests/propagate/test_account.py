"""What a bound loses is accounted for node by node, and nothing is gained anywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.graph.operator import Affine, Elementwise, Operator
from softhull.propagate.account import account
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.regions import Perturbation
from tests.propagate.networks import random_attention


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("seed", range(3))
def test_losses_add_up_to_what_is_missing(norm, seed):
    rng = np.random.default_rng(seed)
    graph = random_attention(rng)
    x = torch.from_numpy(rng.uniform(size=(2, *graph.input_shape)))
    bounds = LinearBounds(graph, Perturbation(0.05, norm).around(x), SecondOrder().linear)
    instances = torch.tensor([0, 1, 1])
    rows = torch.from_numpy(rng.normal(size=(3, *graph.output_shape)))
    with torch.no_grad():
        found = account(bounds, rows, instances)
        low = bounds.take(instances).lower(len(graph.nodes) - 1, rows[None])[0]
    assert torch.equal(found.bound, low)
    assert set(found.losses) <= {i for i, n in enumerate(graph.nodes) if not isinstance(n.operator, Affine)}
    losses = torch.stack(list(found.losses.values()))
    size, total = 1 + found.value.abs() + losses.abs().sum(0), losses.sum(0)
    assert bool((losses >= -1e-9 * size).all())  # values of the network are rounded
    assert bool(((found.value - found.bound - total).abs() <= 1e-8 * size).all())
    parts = found.lost((Elementwise,)) + found.lost((Operator,), (Elementwise,))
    torch.testing.assert_close(parts, total)
    assert found.dearest(0)[1] <= float(total[0]) + 1e-9 * float(size[0])
