"""Exact extrema of a linear function of softmax over a box."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from flint import arb

from softhull import InvalidInput, softmax_extrema

from .cases import boxes, exact_softmax
from .test_geometry import softmax


@pytest.mark.parametrize("label", [label for label, case in boxes().items() if case.size <= 5 and case.draw is None])
def test_equals_the_best_of_all_vertices(label: str) -> None:
    case, rng = boxes()[label], np.random.default_rng(0)
    for c in (rng.normal(size=case.size), np.eye(case.size)[0], np.zeros(case.size), 1e6 + rng.normal(size=case.size)):
        low, high = softmax_extrema(c, case.lower, case.upper, rounding="nearest")
        values = []
        for ends in itertools.product((0, 1), repeat=case.size):
            vertex = np.where(np.array(ends) > 0, case.upper, case.lower)
            values.append([float(sum(float(a) * p for a, p in zip(c, row))) for row in exact_softmax(vertex)])
        spread = np.ptp(c) + 1e-10 * np.abs(c).max()
        np.testing.assert_allclose(high, np.max(values, 0), rtol=1e-13, atol=1e-13 * spread)
        np.testing.assert_allclose(low, np.min(values, 0), rtol=1e-13, atol=1e-13 * spread)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_vertex_exceeds_the_extrema_in_exact_arithmetic(dtype: str) -> None:
    rng = np.random.default_rng(3)
    for half in (0.0, 1e-6, 1.0, 30.0):
        c = (rng.normal(size=4) + rng.choice([0.0, 1e3])).astype(dtype)
        lower = rng.normal(size=4).astype(dtype)
        upper = lower + np.float32(half).astype(dtype)
        low, high = softmax_extrema(c, lower, upper)
        for ends in itertools.product((0, 1), repeat=4):
            p = exact_softmax(np.where(np.array(ends) > 0, upper, lower).astype(np.float64))
            exact = sum((arb(float(a)) * share for a, share in zip(c, p)), arb(0))
            assert not arb(float(low)) > exact
            assert not arb(float(high)) < exact


def test_masked_logits_have_no_influence() -> None:
    lower, upper = np.array([0.0, -np.inf, 1.0]), np.array([2.0, -np.inf, 1.5])
    found = softmax_extrema(np.array([1.0, 100.0, -2.0]), lower, upper, rounding="nearest")
    expected = softmax_extrema(np.array([1.0, -2.0]), lower[[0, 2]], upper[[0, 2]], rounding="nearest")
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_large_problems_in_one_sort() -> None:
    rng = np.random.default_rng(1)
    middle, c = rng.normal(size=20_000), rng.normal(size=20_000)
    low, high = softmax_extrema(c, middle - 0.5, middle + 0.5)
    for _ in range(20):
        x = rng.uniform(middle - 0.5, middle + 0.5)
        assert low <= c @ softmax(x) <= high


def test_bad_coefficients_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"c must be finite at index \(1,\)"):
        softmax_extrema([0.0, np.nan], [0.0, 0.0], [1.0, 1.0])
    with pytest.raises(InvalidInput, match="shapes do not fit"):
        softmax_extrema([0.0, 1.0, 2.0], [0.0, 0.0], [1.0, 1.0])
