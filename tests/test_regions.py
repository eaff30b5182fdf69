"""Regions: exact minima over boxes, sound ones over balls, projections that land inside."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from softhull.errors import InvalidInput
from softhull.regions import Perturbation


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_region_holds_the_real_ball_and_its_inner_box_stays_inside(dtype):
    x = _points(4)
    eps = 0.016
    region = Perturbation(eps).around(x, dtype=dtype)
    assert region.inner is not None
    least, most = region.inner
    for i, centre in enumerate(x.flatten().tolist()):
        low, high = Fraction(centre) - Fraction(eps), Fraction(centre) + Fraction(eps)
        assert Fraction(float(region.lower.flatten()[i])) <= low <= Fraction(float(least.flatten()[i]))
        assert Fraction(float(most.flatten()[i])) <= high <= Fraction(float(region.upper.flatten()[i]))
        # and not a number further than necessary
        assert math.nextafter(float(least.flatten()[i]), -math.inf) < low
        assert math.nextafter(float(most.flatten()[i]), math.inf) > high


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_membership_is_decided_in_exact_arithmetic(norm):
    """Points one unit in the last place inside and outside of the ball; sums in floating point cannot tell them."""
    seen = set()
    for seed in range(40):
        x = _points(seed)[:1]
        region = Perturbation(0.1, norm).around(x)
        step = torch.zeros_like(x)
        if norm == math.inf:
            step[...] = 0.1
        else:
            step[0, 0] = 0.1 / (4 if norm == 1 else 2)
        point = (x + step)[0]
        for moved in (point, torch.nextafter(point, x[0]), torch.nextafter(point, torch.full_like(point, 9.0))):
            apart = [abs(Fraction(a) - Fraction(b)) for a, b in zip(moved.flatten().tolist(), x.flatten().tolist())]
            size = max(apart) if norm == math.inf else sum(a ** int(norm) for a in apart)
            inside = size <= (Fraction(0.1) if norm == math.inf else Fraction(0.1) ** int(norm))
            assert region.contains(moved) == inside
            seen.add(inside)
    assert seen == {True, False}


def test_the_minimum_is_below_the_real_one():
    """Cancelling coefficients: the computed value alone is sometimes above."""
    above = 0
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand((1, 60), generator=generator, dtype=torch.float64)
        region = Perturbation(0.0 if seed % 2 else 1e-9).around(x)
        C = torch.randn((1, 1, 60), generator=generator, dtype=torch.float64)
        corner = torch.where(C[0] >= 0, region.lower, region.upper)
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(C.flatten().tolist(), corner.flatten().tolist()))
        assert Fraction(float(region.minimum(C))) <= exact
        above += Fraction(float(region.minimum(C, outward=False))) > exact
    assert above


def test_settings_tell_regions_apart():
    """They are part of the key of a stored answer: equal for equal regions, and plain values for every kind."""
    kinds = [
        Perturbation(0.1),
        Perturbation(np.array([0.1, 0.2])),
        Perturbation(np.array([0.1, 0.3])),
        Perturbation(lower=0.0, upper=np.array([0.5, 1.0])),
        Perturbation(0.1, only=np.array([True, False])),
        Perturbation(0.1, normalize=(np.array([0.5, 0.4]), 0.2)),
    ]
    found = [json.dumps(kind.settings(), sort_keys=True) for kind in kinds]
    assert len(set(found)) == len(kinds)


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_projected_points_have_the_precision_of_the_region(norm):
    x = torch.rand(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    region = Perturbation(0.1, norm).around(x, dtype=torch.float32)
    y = region.project(x.float() + 1)
    assert y.dtype == torch.float32
    assert bool(((region.lower <= y) & (y <= region.upper)).all())


def test_a_ball_is_not_lost_with_its_squares():
    """Squares of its radius, or of coefficients, are less than any number of the format."""
    region = Perturbation(1e-24, 2).around(torch.zeros(1, 4))
    assert float(region.project(torch.full((1, 4), 1e-24)).double().norm()) <= 1e-24 * (1 + 1e-6)
    least = Perturbation(1.0, 2).around(torch.zeros(1, 4)).minimum(torch.full((1, 1, 4), 1e-24))
    assert float(least) <= -2e-24


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [2, 1])
def test_a_centre_at_an_end_of_the_box_goes_one_way(norm, dtype):
    """The minimum over such a ball is never above what points of it have, exactly, and is next to the best of them."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand((1, 40), generator=generator, dtype=torch.float64)
        x = torch.where(x < 0.4, 0.0, torch.where(x > 0.6, 1.0, x)).to(dtype)
        region = Perturbation(0.1, norm, (0.0, 1.0)).around(x, dtype=dtype)
        C = torch.randn((1, 1, 40), generator=generator, dtype=dtype)
        free = ((C[0] < 0) & (x < 1)) | ((C[0] > 0) & (x > 0))
        slope = torch.where(free, C[0], 0.0).double()
        corner = torch.where(slope.abs() == slope.abs().amax(), slope.sign(), 0.0)
        step = slope / slope.norm() if norm == 2 else corner
        best = region.project(x - 0.1 * (1 - 1e-5) * step.to(dtype))
        assert region.contains(best[0])
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(C.flatten().tolist(), best.flatten().tolist()))
        assert Fraction(float(region.minimum(C))) <= exact
        assert float(region.minimum(C)) > float(exact) - 1e-4 * float(slope.norm())
