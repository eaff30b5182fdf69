"""Logits at the ends of a floating-point format: finite planes that hold in exact arithmetic, or one clear line."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flint import arb, ctx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from softhull import BOUNDS, InvalidInput, softmax_bounds, softmax_extrema, softmax_planes

from ..soundness.exact import balls, softmax

jax.config.update("jax_enable_x64", True)
FRAMEWORKS: dict[str, Any] = {
    "numpy": np.asarray,
    "torch": lambda a: torch.from_numpy(np.array(a)),
    "jax": jnp.asarray,
}
DTYPES = ("float64", "float32", "float16")
# All frameworks run one implementation (test_frameworks.py compares them): every format by NumPy, one by the others.
PAIRS = [*(("numpy", d) for d in DTYPES), ("torch", "float32"), ("jax", "float32")]
# enough for sums of the largest and the smallest numbers of a format
DIGITS = {"float64": 650, "float32": 100, "float16": 30}


def numbers(array: Any) -> np.ndarray:
    return np.asarray(array)


def assert_sound(planes: Any, points: list[np.ndarray], sign: int) -> None:
    """``sign * (plane - softmax) <= 0`` at every point, for the plane at its anchor and with its intercept."""
    A, b = (numbers(part) for part in planes.dense())
    at, value = numbers(planes.at), numbers(planes.value)
    assert all(np.isfinite(part).all() for part in (A, b, at, value))
    before, ctx.dps = ctx.dps, DIGITS[str(points[0].dtype)]
    try:
        for x in points:
            seen = np.isfinite(x)
            rows, here = balls(A), balls(np.where(seen, x, 0))
            assert not A[:, ~seen].any()
            p = softmax(balls(x))
            for anchor, level in ((balls(at), balls(value)), (balls(0 * at), balls(b))):
                for k in range(len(x)):
                    plane = level[k] + sum((rows[k] * (here - anchor))[seen], arb(0))
                    assert not (plane > p[k] if sign > 0 else plane < p[k]), (x, k, float(plane), p[k])
    finally:
        ctx.dps = before


def points_of(lower: np.ndarray, upper: np.ndarray, rng: np.random.Generator, count: int) -> list[np.ndarray]:
    found = [lower, upper]
    for _ in range(count):
        up = rng.random(lower.shape) < rng.choice([0.2, 0.5, 0.8])
        found.append(np.where(up, upper, lower))
    share = rng.random(lower.shape)
    seen = np.isfinite(lower)
    low, high = (np.where(seen, end, 0).astype(np.longdouble) for end in (lower, upper))
    inside = (low * (1 - share) + high * share).astype(lower.dtype)
    return [*found, np.where(seen, np.clip(inside, lower, upper), -np.inf).astype(lower.dtype)]


def check_box(lower: np.ndarray, upper: np.ndarray, rng: np.random.Generator, framework: str = "numpy") -> None:
    """All bounds over one box, as planes and as functions, and the extrema of a random mean."""
    convert = FRAMEWORKS[framework]
    low, high = convert(lower), convert(upper)
    points = points_of(lower, upper, rng, 3)
    inside = points[-1]
    for name in BOUNDS:
        if name == "lse2" and len(lower) != 2:
            continue
        for at in (None, convert(inside)):
            planes = softmax_planes(low, high, name, at=at)
            for side, sign in ((planes.lower, 1), (planes.upper, -1)):
                if side is not None:
                    assert_sound(side, points, sign)
                    here = numbers(side(convert(inside)))
                    assert np.isfinite(here).all()
        for x in points:
            p = softmax(balls(x))
            for value, sign in zip(softmax_bounds(convert(x), low, high, name), (1, -1)):
                if value is not None:
                    assert np.isfinite(numbers(value)).all()
                    for v, q in zip(balls(numbers(value)), p):
                        assert not (v > q if sign > 0 else v < q), (name, x, float(v), q)
    c = (rng.normal(size=lower.shape) * 10.0 ** rng.integers(-3, 4)).astype(lower.dtype)
    least, most = (arb(float(numbers(end))) for end in softmax_extrema(convert(c), low, high))
    for x in points:
        mean = sum((a * q for a, q in zip(balls(c), softmax(balls(x)))), arb(0))
        assert not least > mean
        assert not most < mean


@pytest.mark.parametrize(("framework", "dtype"), PAIRS)
def test_masked_logits_have_no_influence_beside_large_ones(dtype: str, framework: str) -> None:
    convert, info = FRAMEWORKS[framework], np.finfo(dtype)
    large = [1.0, 5e3, float(info.max) ** 0.39, float(info.max) ** 0.5, float(info.max) / 2, float(info.max)]
    masks = [-math.inf, -float(info.max), -float(info.max) / 3]
    cases = [(v, mask) for v in [*large, *(-v for v in large[:4])] for mask in masks]
    for v, mask in cases[13:14] if framework == "jax" else cases:
        x = np.array([mask, v, v] if v < 1e3 else [mask, v, mask, v], dtype=dtype)
        a = convert(x)
        half = (x == x.max()) / 2
        for name in ("const", "lse") if framework == "jax" else (n for n in BOUNDS if n != "lse2"):
            for found in softmax_bounds(a, a, a, name):
                if found is not None:
                    np.testing.assert_allclose(numbers(found), half, atol=200 * float(info.eps))
        c = np.where(half > 0, np.arange(len(x)), -7.0).astype(dtype)
        expected = float((c * half).sum())
        for found in softmax_extrema(convert(c), a, a):
            assert float(found) == pytest.approx(expected, abs=1000 * float(info.eps))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_but_one_masked(dtype: str) -> None:
    big = np.finfo(dtype).max
    for v in (0.0, float(big), -float(big)):
        lower = np.array([-np.inf, v, -np.inf], dtype=dtype)
        for upper in (lower, np.array([-np.inf, max(v, float(big)), -np.inf], dtype=dtype)):
            for name in (n for n in BOUNDS if n != "lse2"):
                for found in softmax_bounds(lower, lower, upper, name):
                    if found is not None:
                        np.testing.assert_allclose(found, [0.0, 1.0, 0.0], atol=200 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        ([-math.inf, 0.0], [1e300, 1.0], r"infinite bound .* at index \(0,\)"),
        ([0.0, 0.0], [math.inf, 1.0], r"infinite bound .* at index \(0,\)"),
        ([math.inf, 0.0], [math.inf, 1.0], r"infinite bound .* at index \(0,\)"),
        ([-math.inf] * 2, [-math.inf] * 2, "every logit is masked"),
        (np.zeros(2, dtype=np.longdouble), np.ones(2, dtype=np.longdouble), "at most 64 bits, not"),
    ],
)
def test_what_has_no_softmax_is_refused(lower: Any, upper: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        softmax_planes(lower, upper)
    with pytest.raises(InvalidInput, match=message):
        softmax_extrema(np.zeros(2), lower, upper)


@pytest.mark.parametrize(("framework", "dtype"), PAIRS[:-1])
def test_box_ends_at_the_largest_number(dtype: str, framework: str) -> None:
    rng, big, tiny = np.random.default_rng(0), float(np.finfo(dtype).max), float(np.finfo(dtype).smallest_subnormal)
    ends = [
        ([-big, -big], [big, big]),
        ([big, big, big], [big, big, big]),
        ([-big, 0.0, 1.0], [-big / 2, 1.0, big]),
        ([0.0, 0.0, 0.0], [tiny, 2 * tiny, 0.0]),
        ([-math.inf, big / 2, big / 4], [-math.inf, big, big / 2]),
        ([-1.0, -big], [1.0, 0.5]),
    ]
    for lower, upper in ends:
        check_box(np.array(lower, dtype=dtype), np.array(upper, dtype=dtype), rng, framework)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=875075)  # in half precision, a huge box of several logits whose midpoint overflowed
def test_ends_of_any_magnitude(dtype: str, seed: int) -> None:
    check_box(*random_extreme_box(np.random.default_rng(seed), dtype), np.random.default_rng(seed))


def random_extreme_box(rng: np.random.Generator, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Ends from subnormal numbers to the largest ones, near each other or far apart, some logits masked."""
    info, K = np.finfo(dtype), int(rng.integers(2, 6))
    smallest, largest = np.log10(float(info.smallest_subnormal)), np.log10(float(info.max))
    kind = rng.integers(4)
    if kind == 0:  # every magnitude
        size = 10.0 ** rng.uniform(smallest, largest, (2, K))
    elif kind == 1:  # one magnitude
        size = 10.0 ** rng.uniform(0, largest) * rng.uniform(0.5, 1, (2, K))
    elif kind == 2:  # around the powers where the treatment changes
        size = float(info.max) ** rng.choice([0.1, 0.25, 0.4, 0.5, 1.0], (2, K)) * rng.uniform(0.9, 1, (2, K))
    else:  # a large number and a few units in the last place of it
        size = 10.0 ** rng.uniform(0, largest - 0.5) * (1 + float(info.eps) * rng.integers(0, 9, (2, K)))
    sign = rng.choice([-1, 1], (2, K)) if rng.random() < 0.6 else rng.choice([-1, 1])
    ends = np.clip(size * sign, -float(info.max), float(info.max)).astype(dtype)
    if rng.random() < 0.3:
        ends[rng.random((2, K)) < 0.3] = rng.choice([-float(info.max), float(info.max), 0.0])
    ends[1] = np.where(rng.random(K) < 0.3, ends[0], ends[1])
    ends.sort(axis=0)
    masked = (rng.random(K) < 0.25) & (rng.random() < 0.4)
    masked[rng.integers(K)] = False
    ends[:, masked] = -np.inf
    return ends[0], ends[1]


@pytest.mark.parametrize("outputs", [0.9, [0.9], [0, 1.0], True, [False], "0", np.array([0.5]), np.array([True])])
def test_outputs_are_whole_numbers(outputs: Any) -> None:
    with pytest.raises(InvalidInput, match="outputs must be whole numbers, got"):
        softmax_planes([0.0, 0.0], [1.0, 1.0], outputs=outputs)
    with pytest.raises(InvalidInput, match="outputs must be whole numbers, got"):
        softmax_bounds([0.0, 0.0], [0.0, 0.0], [1.0, 1.0], outputs=outputs)


@pytest.mark.parametrize("outputs", [1, np.int64(1), np.array(1), torch.tensor(1)])
def test_one_output_by_any_whole_number(outputs: Any) -> None:
    found = softmax_bounds([0.0, 0.0], [0.0, 0.0], [1.0, 1.0], outputs=outputs)
    assert all(side.shape == () for side in found)
