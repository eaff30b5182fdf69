"""Lines beside curves: never on the wrong side of a sampled value, and close to the best line."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import arb

from softhull.certificates.curves import KINDS
from softhull.checker.curves import CURVES, function_of, least_above
from softhull.checker.session import exactly

POWERS = ("power 4.0", "power 5.0", "power -2.0", "power -3.0", "power 2.4", "power -1.7")
POSITIVE = {"log", "sqrt", "reciprocal", "rsqrt", *POWERS[2:]}


def test_the_writer_knows_every_curve_of_the_checker():
    assert set(KINDS) == set(CURVES)


@pytest.mark.parametrize("kind", [*CURVES, *POWERS])
@exactly
def test_offsets_hold_and_are_tight(kind):
    rng = np.random.default_rng(0)
    value = function_of(kind).value
    for _ in range(12):
        width = 10.0 ** rng.uniform(-8, 1.3)
        low = 10.0 ** rng.uniform(-3, 1) if kind in POSITIVE else rng.normal() * 10.0 ** rng.uniform(-2, 1)
        high = low + width
        slope = float(rng.normal())
        for side in (1, -1):
            bound = least_above(kind, arb(slope), low, high, side)
            points = [low, high, *(low + width * t for t in rng.random(30))]
            found = [side * (value(arb(min(x, high))) - arb(slope) * arb(min(x, high))) for x in points]
            assert not any(v < bound for v in found)
            grid = [low + (high - low) * t for t in np.linspace(0, 1, 200)]
            best = min(float(side * (value(arb(x)) - arb(slope) * arb(x))) for x in grid)
            assert float(bound) >= best - 1e-3 * (1 + abs(best)) - 0.02 * width * (abs(slope) + 1) or math.isinf(best)


@exactly
def test_an_interval_outside_the_domain_has_no_bound():
    assert not least_above("log", arb(0), -1.0, 1.0) > -1e300
    assert not least_above("rsqrt", arb(0), -1.0, 1.0) > -1e300
    assert not least_above("power 0.3", arb(0), -1.0, 1.0) > -1e300
    assert not least_above("power -2.0", arb(0), -1.0, 1.0, -1) > -1e300
    assert not least_above("power -3.0", arb(0), -1.0, 1.0) > -1e300


@exactly
def test_whole_powers_of_both_signs_and_of_intervals_around_zero_are_bounded():
    for kind in ("square", "power 4.0"):
        for low, high in ((-1.0, 2.0), (-0.001, 0.003), (-1e6, 1.0)):
            largest = max(float(function_of(kind).value(arb(end))) for end in (low, high))
            assert -1e-9 * largest <= float(least_above(kind, arb(0), low, high)) <= 0
    assert -1.01 < float(least_above("power 5.0", arb(0), -1.0, 2.0)) <= -1
    assert function_of("power 3.0").value(arb(-2)) == -8
    assert function_of("power -3.0").value(arb(-2)) == arb(-1) / 8


@pytest.mark.parametrize("kind", [*CURVES, *POWERS])
@exactly
def test_derivatives_are_those_of_the_functions(kind):
    for x in (0.3, 1.7, *(() if kind in POSITIVE else (-0.4, -2.2))):
        step = arb(2) ** -24
        chord = (function_of(kind).value(arb(x) + step) - function_of(kind).value(arb(x) - step)) / (2 * step)
        assert abs(float(chord - function_of(kind).derivative(arb(x)))) < 1e-9
