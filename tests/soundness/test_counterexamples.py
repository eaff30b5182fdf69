"""Counterexamples lie in the original ball: exact arithmetic decides, in the format of the model file."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from softhull.regions import Perturbation
from softhull.verify.robustness import _rounded_inside


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_points_are_rounded_into_the_real_ball(norm: float, dtype: str) -> None:
    generator = torch.Generator().manual_seed(1)
    moved = 0
    for _ in range(30):
        x = torch.rand((1, 20), generator=generator, dtype=torch.float64)
        region = Perturbation(0.016, norm, (0.0, 1.0)).around(x)
        # the outermost point of the region as propagation sees it: outward of the real ball
        corner = torch.where(torch.rand(x.shape, generator=generator) < 0.5, region.lower, region.upper)
        wanted = region.project(corner)[0]
        point = _rounded_inside(wanted, region, np.dtype(dtype))
        assert point is not None
        assert point.dtype == dtype
        apart = [abs(Fraction(float(a)) - Fraction(b)) for a, b in zip(point, x[0].tolist())]
        eps = Fraction(0.016)
        if norm == math.inf:
            assert max(apart) <= eps
        else:
            assert sum(a ** int(norm) for a in apart) <= eps ** int(norm)
        assert all(0 <= float(a) <= 1 for a in point)
        assert np.abs(point - wanted.numpy()).max() < 1e-5
        moved += not np.array_equal(point.astype(np.float64), wanted.numpy())
    assert moved
