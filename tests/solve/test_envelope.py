"""The exact envelope: known cases, and the inequalities that make it one."""

from __future__ import annotations

import numpy as np
import pytest

import softhull
from softhull.solve.envelope import softmax_envelope

pytest.importorskip("highspy")


def softmax0(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return weights[..., 0] / np.sum(weights, axis=-1)


def random_boxes(size: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(size)
    middle = np.log(rng.dirichlet(np.ones(size), size=count))
    radius = rng.uniform(0.1, 2.0, size=(count, 1)) * rng.uniform(0.5, 1.0, size=(count, size))
    return list(zip(middle - radius, middle + radius))


@pytest.mark.parametrize("width", [0.2, 1.0, 4.0])
def test_two_logits_have_the_envelope_of_the_sigmoid(width: float) -> None:
    lower, upper = np.array([0.0, -width]), np.array([0.0, width])
    t = np.linspace(-width, width, 200_001)
    sigmoid = 1 / (1 + np.exp(t))
    above = t > 0
    # At 0 the convex envelope is the least chord from the left end to a point on the right.
    chords = sigmoid[0] + (sigmoid[above] - sigmoid[0]) * (width / (t[above] + width))
    below = softmax_envelope(lower, upper)
    assert below.value == pytest.approx(np.min(chords), rel=1e-4)
    # The sigmoid is symmetric about (0, 1/2), and so are its envelopes.
    assert softmax_envelope(lower, upper, concave=True).value == pytest.approx(1 - np.min(chords), rel=1e-4)


def test_where_the_function_is_convex_the_envelope_is_the_function() -> None:
    lower, upper, at = np.array([0.0, 1.0]), np.array([0.0, 3.0]), np.array([0.0, 1.7])
    found = softmax_envelope(lower, upper, at)
    assert found.value == pytest.approx(softmax0(at), rel=1e-5)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_no_bound_passes_the_envelope(size: int) -> None:
    for lower, upper in random_boxes(size, 4):
        below, above = (softmax_envelope(lower, upper, concave=side) for side in (False, True))
        middle = (lower + upper) / 2
        gap = above.value - below.value
        assert below.value <= softmax0(middle) * (1 + 1e-9)
        assert above.value >= softmax0(middle) * (1 - 1e-9)
        for name in softhull.BOUNDS:
            if name == "lse2" and size > 2:
                continue
            low, high = softhull.softmax_bounds(middle, lower, upper, name, outputs=0)
            assert low is None or low <= below.value + 1e-7 * gap
            assert high is None or high >= above.value - 1e-7 * gap


def test_a_finer_search_finds_no_better_points() -> None:
    """Weightings of random points with the right centre never come out below the envelope."""
    rng = np.random.default_rng(0)
    for lower, upper in random_boxes(3, 5):
        found = softmax_envelope(lower, upper)
        assert found.error <= 1e-3 * (softmax0(np.array([lower, upper])).max() - found.value)
        middle = (lower + upper) / 2
        step = rng.uniform(-1, 1, size=(20_000, 3)) * (upper - lower) / 2
        pairs = (softmax0(middle + step) + softmax0(middle - step)) / 2
        assert np.min(pairs) >= found.value - found.error


def test_the_answer_does_not_depend_on_a_shift_or_on_the_scale_of_the_probability() -> None:
    lower, upper = np.array([-1.0, 0.0, 0.5]), np.array([0.5, 1.0, 1.0])
    here = softmax_envelope(lower, upper)
    assert softmax_envelope(lower + 50, upper + 50).value == pytest.approx(here.value, rel=1e-6)
    rare = np.array([-20.0, 0.0, 0.0])
    found = softmax_envelope(lower + rare, upper + rare)
    middle = softmax0((lower + upper) / 2 + rare)
    assert 0.5 * middle < found.value <= middle * (1 + 1e-9)


@pytest.mark.parametrize("size", [1.0, 100.0, 1000.0, 1e6])
def test_what_is_rounding_is_not_taken_for_a_bend(size: float) -> None:
    """In a box so small nothing bends; the larger the logits, the more their rounding moves a probability."""
    rng = np.random.default_rng(1)
    for x in size + rng.normal(size=(5, 3)):
        here = softmax0(x)
        for concave in (False, True):
            assert softmax_envelope(x - 1e-9, x + 1e-9, x, concave=concave).value == pytest.approx(
                here, rel=1e-14, abs=0
            )
    bends = softmax_envelope(np.full(3, size) - 0.1, np.full(3, size) + 0.1)
    assert bends.columns > 1
    assert bends.value < 1 / 3 - 1e-4


def test_a_point_box_is_its_own_envelope() -> None:
    x = np.array([0.3, -0.1])
    assert softmax_envelope(x, x).value == softmax0(x)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0.0] * 6, [1.0] * 6), "1 to 5 logits"),
        (([0.0, 2.0], [1.0, 1.0]), "lower <= upper"),
        (([0.0, -np.inf], [1.0, 1.0]), "finite"),
        (([0.0, 0.0], [1.0, 1.0], [2.0, 0.0]), "point of the box"),
        (([0.0, 0.0], [1.0, 1.0], None, 2), "no output 2"),
    ],
)
def test_bad_input_is_refused(arguments: tuple, said: str) -> None:
    with pytest.raises(softhull.InvalidInput, match=said):
        softmax_envelope(*arguments)
