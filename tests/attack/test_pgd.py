"""The attack: it stays inside, it never invents, it repeats itself, and it finds what is easy to find."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.attack.pgd import minimize_margin
from softhull.regions import Perturbation
from tests.propagate.networks import random_attention


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_linear_margins_are_minimised(norm):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((4, 3), generator=generator, dtype=torch.float64)
    C = torch.randn((4, 3), generator=generator, dtype=torch.float64)
    region = Perturbation(0.2, norm).around(x)
    found, where = minimize_margin(lambda y, which: (C[which] * y).sum(1), region, x, steps=60, target=-math.inf)
    assert torch.allclose(found, region.minimum(C[None])[0], atol=2e-2)
    assert torch.allclose(found, (C * where).sum(1))


def test_points_found_lie_inside_and_have_the_margin_reported():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        graph = random_attention(rng)
        x = torch.from_numpy(rng.uniform(0, 1, size=(6, *graph.input_shape)))
        region = Perturbation(0.1, clip=(0, 1)).around(x)

        def margin(y, which, graph=graph):
            outputs = graph(y).flatten(1)
            return outputs[:, 0] - outputs[:, 1]

        found, where = minimize_margin(margin, region, x, steps=10, restarts=2, seed=seed)
        again, _ = minimize_margin(margin, region, x, steps=10, restarts=2, seed=seed)
        assert torch.equal(found, again)
        assert bool(((where >= region.lower) & (where <= region.upper)).all())
        assert torch.allclose(margin(where, torch.arange(6)), found)
        assert bool((found <= margin(x, torch.arange(6)) + 1e-12).all())


def test_margins_of_nan_are_not_findings():
    region = Perturbation(0.1).around(torch.zeros(2, 3, dtype=torch.float64))
    found, _ = minimize_margin(lambda y, which: y.sum(1) * math.nan, region, region.lower)
    assert bool((found == math.inf).all())
