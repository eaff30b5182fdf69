"""Regions of several units, of parts of the input and of alternatives: what they hold, bound and project to."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor

from softhull.certificates.write import _region
from softhull.checker.balls import exact
from softhull.checker.certificate import Refused
from softhull.checker.check import region_of
from softhull.errors import InvalidInput
from softhull.regions import Alternatives, Choices, Perturbation, Region, as_perturbation

SHAPE = (1, 2, 2, 3)


def ball(number: Fraction) -> arb:
    return arb(number.numerator) / arb(number.denominator)


def scalar(a: np.ndarray, b: np.ndarray) -> Fraction:
    """The scalar product of two arrays, exactly."""
    return sum((Fraction(u) * Fraction(v) for u, v in zip(a.ravel().tolist(), b.ravel().tolist())), Fraction(0))


def draw(rng: np.random.Generator, norm: float) -> tuple[Perturbation, Tensor]:
    """A perturbation with some of everything, and two inputs that it takes."""
    pixels = rng.random((2, *SHAPE))
    given: dict[str, Any] = {"eps": float(10 ** rng.uniform(-9, -0.5)), "norm": norm}
    mean, std = rng.random(2), 10 ** rng.uniform(-1, 1, 2)
    if rng.random() < 0.6:
        given["normalize"] = (mean, std)
    else:
        mean, std = np.zeros(2), np.ones(2)
    if rng.random() < 0.5:
        given["only"] = rng.random(SHAPE) < 0.5
    if rng.random() < 0.5:
        given["clip"] = (0.0, 1.0)
    if rng.random() < 0.3:
        given["lower"] = pixels.min(0) - rng.random(SHAPE) * 0.1
    if norm == math.inf and rng.random() < 0.5:
        given["eps"] = rng.random(SHAPE) * given["eps"] if rng.random() < 0.5 else rng.random(2)
    x = (pixels - mean[:, None, None]) / std[:, None, None]
    return Perturbation(**given), torch.from_numpy(x.astype(np.float32).astype(np.float64) if rng.random() < 0.5 else x)


def in_pixels(p: Perturbation, x: np.ndarray) -> tuple[list[Fraction], list[Fraction], list[Fraction]]:
    """Exact units, and limits, of every entry: in pixels per unit of the input."""
    mean, std = p.normalize or (np.zeros(2), np.ones(2))
    means, stds = (np.broadcast_to(part[:, None, None], SHAPE).ravel().tolist() for part in (mean, std))
    return [Fraction(v) for v in means], [Fraction(v) for v in stds], [Fraction(v) for v in x.ravel().tolist()]


def truly_inside(p: Perturbation, x: np.ndarray, at: np.ndarray) -> bool:
    """Membership in rational arithmetic, in pixels."""
    mean, std, centre = in_pixels(p, x)
    point = [Fraction(v) for v in at.ravel().tolist()]
    steps = [abs(a - c) * s for a, c, s in zip(point, centre, std)]
    if p.only is not None and any(step and not moves for step, moves in zip(steps, p.only.ravel().tolist())):
        return False
    for limit, sign in ((p.clip and p.clip[0], 1), (p.clip and p.clip[1], -1), (p.lower, 1)):
        if limit is None:
            continue
        ends = np.broadcast_to(np.asarray(limit, dtype=np.float64), SHAPE).ravel().tolist()
        for a, c, m, s, end in zip(point, centre, mean, std, ends):
            # The input itself belongs to the region, also where rounding put it outside.
            if sign * (m + s * a - Fraction(end)) < min(Fraction(0), sign * (m + s * c - Fraction(end))):
                return False
    if p.norm == math.inf:
        eps = p.eps if isinstance(p.eps, np.ndarray) else np.array(p.eps)
        eps = np.broadcast_to(eps[:, None, None] if eps.ndim == 1 else eps, SHAPE)
        return all(step <= Fraction(e) for step, e in zip(steps, eps.ravel().tolist()))
    return sum(s ** int(p.norm) for s in steps) <= Fraction(p.eps) ** int(p.norm)


def both_minima(region: Region, C: torch.Tensor, seed: int) -> torch.Tensor:
    """The higher of the minimum and, for every other seed, that of the few entries which ``C`` is left with."""
    if seed % 2:
        return region.minimum(C)
    entries = torch.randperm(C[0, 0].numel(), generator=torch.Generator().manual_seed(seed))[:5]
    kept = torch.zeros_like(C.flatten(2))
    kept[..., entries] = C.flatten(2)[..., entries]
    C.copy_(kept.reshape(C.shape))
    along, whole = region.minimum_along(entries, C.flatten(2)[..., entries]), region.minimum(C)
    torch.testing.assert_close(along, whole, rtol=1e-4, atol=1e-4)
    return torch.maximum(along, whole)


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_points_inside_are_bounded_and_points_contained_are_inside(norm: float, dtype: torch.dtype) -> None:
    """``contains`` is never too generous, ``minimum`` never too high, and the checker's region holds the same."""
    contained = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        perturbation, x = draw(rng, norm)
        region = perturbation.around(x, dtype=dtype)
        C = torch.from_numpy(rng.normal(size=(3, 2, *SHAPE))).to(dtype)
        least = both_minima(region, C, seed)
        for b in range(2):
            alone, own = region.take(torch.tensor([b])), x[b].numpy()
            assert alone.contains(x[b])
            with_checker = region_of(own.ravel(), *_region(perturbation, own))
            for _ in range(6):
                wanted = own + rng.normal(size=SHAPE) * rng.choice([1e-9, 1e-3, 1, 10])
                near = alone.project(torch.from_numpy(wanted)[None].to(dtype))[0].double()
                at = (x[b] + (1 - 2.0**-20) * (near - x[b])).numpy()
                if alone.contains(torch.from_numpy(at)):
                    contained += 1
                    assert truly_inside(perturbation, own, at)
                if not truly_inside(perturbation, own, at):
                    continue
                point = [Fraction(v) for v in at.ravel().tolist()]
                for s in range(3):
                    row = [Fraction(v) for v in C[s, b].double().flatten().tolist()]
                    assert Fraction(float(least[s, b])) <= sum(a * v for a, v in zip(row, point))
                low, high = with_checker.lower.tolist(), with_checker.upper.tolist()
                assert all(a <= v <= z for a, v, z in zip(low, at.ravel().tolist(), high))
                rows = C[:, b].double().flatten(1).numpy()
                for row, value in zip(rows.tolist(), with_checker.minimum(exact(rows))):
                    assert not value > ball(sum((Fraction(a) * v for a, v in zip(row, point)), Fraction(0)))
    assert contained > 100


def test_eps_by_entry_by_channel_and_by_mask():
    x = torch.full((1, 2, 2, 3), 0.5, dtype=torch.float64)
    by_channel = Perturbation([0.1, 0.2]).around(x)
    assert torch.allclose(by_channel.upper[0, :, 0, 0], torch.tensor([0.6, 0.7], dtype=torch.float64))
    patch = np.zeros((2, 2, 3))
    patch[:, 0, :2] = 1
    region = Perturbation(0.1, only=patch).around(x)
    moves = (region.upper > region.lower).double()
    assert torch.equal(moves[0], torch.from_numpy(patch))
    word = Perturbation(0.3, 2, only=[0, 1, 0]).around(torch.ones(1, 1, 3, 4, dtype=torch.float64))
    assert word.unit.flatten(2).sum().item() == 4
    box = Perturbation(lower=0.0, upper=np.full((2, 2, 3), 0.75)).around(x)
    assert (float(box.lower.max()), float(box.upper.min())) == (0.0, 0.75)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_one_mean_and_deviation_may_be_numbers(norm):
    x, mean, std = torch.zeros(1, 2, 3, dtype=torch.float64), 0.1307, 0.3081
    one = Perturbation(0.1, norm, (0, 1), normalize=(mean, std)).around(x)
    same = Perturbation(0.1, norm, (0, 1), normalize=([mean] * 2, [std] * 2)).around(x)
    assert torch.equal(one.lower, same.lower)
    assert torch.equal(one.upper, same.upper)


def test_pixels_of_others_may_leave_the_clip_range_by_rounding_only():
    mean, std = np.array([0.485]), np.array([0.229])
    black = torch.from_numpy(((np.zeros((1, 1, 4)) - 0.485) / 0.229).astype(np.float32)).double()
    region = Perturbation(8 / 255, clip=(0.0, 1.0), normalize=(mean, std)).around(black)
    assert region.contains(black[0])
    assert float((region.upper - black).max()) == pytest.approx(8 / 255 / 0.229)
    with pytest.raises(InvalidInput, match="outside the clip range"):
        Perturbation(0.1, clip=(0.0, 1.0), normalize=(mean, std)).around(black - 0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs eps, or a box"),
        ({"eps": [0.1, -1]}, "eps must hold finite"),
        ({"eps": [0.1, 0.2], "norm": 2}, "for the l_inf norm"),
        ({"eps": 0.1, "only": [0.5]}, "true or false"),
        ({"eps": 0.1, "normalize": (0.0, 0.0)}, "std above 0"),
        ({"eps": 0.1, "normalize": ("a", 1.0)}, "must hold numbers"),
        ({"eps": 0.1, "lower": math.nan}, "lower must hold numbers"),
    ],
)
def test_senseless_perturbations_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Perturbation(**given)


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match=r"eps of shape \(5,\) does not fit inputs of shape \(2, 3\)"):
        Perturbation(np.ones(5)).around(torch.zeros(1, 2, 3, dtype=torch.float64))
    with pytest.raises(InvalidInput, match=r"normalize of shape \(5,\) does not fit"):
        Perturbation(0.1, normalize=(np.ones(5), 1.0)).around(torch.zeros(1, 2, 3, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="lower is above upper"):
        Perturbation(lower=np.ones(2), upper=np.zeros((2, 3))).around(torch.zeros(1, 2, 3, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="l_inf norm is needed, not a str"):
        as_perturbation("0.1")  # type: ignore[arg-type]


# Alternatives

GIVEN: dict[str, Any] = {"embeddings": np.eye(3), "words": {0: (1,)}}


def sentences(seed: int, at_most: int | None = None) -> tuple[Alternatives, Tensor, Choices]:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(9, 3)).astype(np.float32)
    words = {w: tuple(rng.choice(9, rng.integers(0, 3), replace=False).tolist()) for w in range(7)}
    ids = rng.integers(0, 9, (2, 4))
    x = torch.from_numpy(table[ids].astype(np.float64))[:, None]
    asked = Alternatives(table, words, at_most)
    return asked, x, asked.around(x)


def members(asked: Alternatives, x: np.ndarray) -> list[np.ndarray]:
    """All texts, by brute force."""
    listed = [list(options) for options in asked.options(x)]
    found = []
    for chosen in itertools.product(*listed):
        changed = sum(not np.array_equal(c, own[0]) for c, own in zip(chosen, listed))
        if asked.at_most is None or changed <= asked.at_most:
            found.append(np.stack(chosen).reshape(x.shape))
    return found


@pytest.mark.parametrize("at_most", [None, 0, 1, 2])
def test_alternatives_are_bounded_exactly_and_never_left(at_most: int | None) -> None:
    for seed in range(12):
        asked, x, region = sentences(seed, at_most)
        generator = torch.Generator().manual_seed(seed)
        C = torch.randn((3, 2, *x.shape[1:]), generator=generator, dtype=torch.float64)
        least = both_minima(region, C, seed)
        for b in range(2):
            alone = region.take(torch.tensor([b]))
            texts = members(asked, x[b].numpy())
            assert alone.contains(x[b])
            distinct = {text.tobytes() for text in texts}
            points = alone.points(10_000)
            assert points is not None
            assert {point.numpy().tobytes() for point in points} == distinct
            assert len(distinct) <= alone.count() == len(points)
            assert alone.points(alone.count() - 1) is None
            for s in range(3):
                best = min(scalar(C[s, b].numpy(), text) for text in texts)
                assert Fraction(float(least[s, b])) <= best
                assert float(least[s, b]) == pytest.approx(float(best), abs=1e-9)
            checked = region_of(x[b].numpy().ravel(), *_region(asked, x[b].numpy()))
            values = checked.minimum(exact(C[:, b].flatten(1).numpy()))
            for s in range(3):
                assert not any(values[s] > ball(scalar(C[s, b].numpy(), text)) for text in texts)
                assert float(values[s].upper()) == pytest.approx(float(least[s, b]), abs=1e-9)
        for moved in (
            region.project(x + torch.randn(x.shape, generator=generator, dtype=torch.float64)),
            region.sample(generator),
            region.descend(x, C[0], 0.5),
        ):
            assert moved.shape == x.shape
            assert all(region.take(torch.tensor([b])).contains(moved[b]) for b in range(2))


def test_what_is_no_word_stays_and_no_other_point_is_contained():
    asked, x, _ = sentences(1)
    x[0, 0, 0] += 0.5
    region = asked.around(x)
    assert torch.equal(region.lower[0, 0, 0], region.upper[0, 0, 0])
    between = (region.lower + region.upper) / 2
    moving = [b for b in range(2) if not torch.equal(region.lower[b], region.upper[b])]
    assert moving
    assert not any(region.take(torch.tensor([b])).contains(between[b]) for b in moving)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": np.ones(3)}, "must be a table"),
        ({"words": {0: (9,)}}, "beyond the 3"),
        ({"words": [(0, 1)]}, "must map a row"),
        ({"at_most": -1}, "at_most must be"),
    ],
)
def test_senseless_alternatives_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Alternatives(**(GIVEN | change))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.1, "inf", None, {"scale": np.ones(3)}), "scale is not one number"),
        ((0.1, "inf", None, {"scale": np.array([1.0, -1.0])}), "a unit that is no finite"),
        ((None, "inf", None, {"low": np.zeros(2)}), "a box of two limits"),
        ((None, "inf", None, {"low": np.zeros(2), "high": np.array([1.0, np.inf])}), "without end"),
        ((None, "2", None, {"low": np.zeros(2), "high": np.ones(2)}), "a box of two limits"),
        ((0.1, "inf", None, {"low": np.array([0.9, 0.0])}), "outside of the clip range"),
        ((0.1, "inf", None, {"low": np.array([np.nan, 0.0])}), "outside of the clip range"),
        ((None, "inf", None, {"options": np.ones((1, 1))}), "rows of options"),
        ((0.1, "inf", None, {"options": np.ones((1, 1)), "positions": np.array([0])}), "with a radius"),
        ((None, "inf", None, {"options": np.ones((1, 1)), "positions": np.array([2])}), "does not have"),
        ((None, "inf", None, {"options": np.ones((1, 1)), "positions": np.array([0]), "at_most": 0.5}), "whole"),
        ((None, "inf", None, {"options": np.full((1, 1), np.nan), "positions": np.array([0])}), "finite rows"),
    ],
)
def test_the_checker_refuses_regions_that_are_none(arguments: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        region_of(np.full(2, 0.5), *arguments)
