"""Regions: exact minima over boxes, sound ones over balls, projections that land inside."""

from __future__ import annotations

import math

import pytest
import torch

from softhull.errors import InvalidInput
from softhull.propagate.perturbation import Perturbation


def _points(seed: int = 0) -> torch.Tensor:
    return torch.rand((3, 2, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("clip", [None, (0.0, 1.0)])
def test_projected_points_lie_inside_and_never_beat_the_minimum(norm, clip):
    x = _points()
    region = Perturbation(0.3, norm, clip).around(x)
    generator = torch.Generator().manual_seed(1)
    C = torch.randn((5, 3, 2, 4), generator=generator, dtype=torch.float64)
    least = region.minimum(C)
    for _ in range(50):
        y = region.project(x + torch.randn(x.shape, generator=generator, dtype=torch.float64))
        assert bool(((y >= region.lower) & (y <= region.upper)).all())
        assert bool(((y - x).flatten(1).norm(p=norm, dim=1) <= 0.3 + 1e-12).all())
        assert bool(((C * y).flatten(2).sum(-1) >= least - 1e-12).all())


def test_the_minimum_over_a_clipped_box_is_attained():
    x = _points()
    region = Perturbation(0.4, clip=(0.0, 1.0)).around(x)
    C = torch.randn((5, 3, 2, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    corner = torch.where(C >= 0, region.lower, region.upper)
    assert torch.allclose((C * corner).flatten(2).sum(-1), region.minimum(C))


def test_shared_coefficients_mean_the_same_as_repeated_ones():
    region = Perturbation(0.2, 2).around(_points())
    C = torch.randn((5, 1, 2, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(region.minimum(C), region.minimum(C.expand(-1, 3, -1, -1)))


def test_instances_may_have_radii_of_their_own():
    x = _points()
    eps = torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64)
    for norm in (math.inf, 2, 1):
        region = Perturbation(0.3, norm).around(x, eps)
        for i in range(3):
            alone = Perturbation(float(eps[i]), norm).around(x[i : i + 1])
            C = torch.ones((1, 1, 2, 4), dtype=torch.float64)
            assert torch.allclose(region.minimum(C)[:, i], alone.minimum(C)[:, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eps": -1.0}, "eps"),
        ({"eps": math.nan}, "eps"),
        ({"eps": 0.1, "norm": 3}, "norm"),
        ({"eps": 0.1, "clip": (1.0, 0.0)}, "clip"),
    ],
)
def test_senseless_perturbations_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Perturbation(**arguments)


def test_an_input_outside_the_clip_range_is_refused():
    with pytest.raises(InvalidInput, match="clip range"):
        Perturbation(0.1, clip=(0.0, 0.5)).around(torch.ones(1, 2, dtype=torch.float64))
