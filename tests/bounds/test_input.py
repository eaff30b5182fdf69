"""Bad input gets one clear line that names the argument, the first offending index and its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from softhull import SofthullError, softmax_bounds, softmax_planes

GOOD = np.array([[0.0, 1.0], [2.0, 3.0]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lower": [[0.0, 1.0], [2.0, np.nan]]}, r"NaN in the box at index \(1, 1\): lower = nan, upper = 4.0"),
        ({"lower": [[0.0, 1.0], [2.0, 5.5]]}, r"lower > upper at index \(1, 1\): lower = 5.5, upper = 4.0"),
        ({"lower": np.zeros((2, 3))}, r"shapes do not fit together: lower \(2, 3\), upper \(2, 2\)"),
        ({"lower": np.zeros((2, 0)), "upper": np.zeros((2, 0))}, "at least one logit"),
        ({"bound": "hul"}, "unknown bound 'hul'; did you mean hull"),
        ({"bound": "lse/none"}, "unknown bound 'lse/none'"),
        ({"bound": 3}, "bound must be a name, not int"),
        ({"bound": "lse2", "lower": np.zeros(3), "upper": np.ones(3)}, "defined for K = 2 only"),
        (
            {"at": [[0.0, 1.0], [9.0, 3.0]]},
            r"at lies outside the box at index \(1, 0\): at = 9.0, lower = 2.0, upper = 3.0",
        ),
        ({"at": [0.0, 1.0, 2.0]}, "at must have 2 entries"),
        ({"at": [[0.0, np.nan], [2.0, 3.0]]}, "NaN in at"),
        ({"lower": np.array([[0, 1], [2, 3]])}, "lower must be a floating-point array, not int64"),
        ({"lower": [[-np.inf, 1.0], [2.0, 3.0]]}, r"infinite bound .* at index \(0, 0\)"),
        ({"upper": [[np.inf, 2.0], [3.0, 4.0]]}, r"infinite bound .* at index \(0, 0\)"),
        ({"lower": [-np.inf, -np.inf], "upper": [-np.inf, -np.inf]}, "every logit is masked"),
        ({"outputs": 2}, "there is no output 2 among 2"),
        ({"outputs": [0, -3]}, "there is no output -3 among 2"),
        ({"lower": "a"}, "lower must be an array or a list of numbers, not str"),
        ({"upper": torch.ones(2, 2)}, "arrays of one framework"),
        ({"differences": (np.zeros((2, 2)),)}, "must be a pair"),
        ({"differences": (np.zeros((3, 3)), np.zeros((3, 3)))}, r"must have shape \(..., 2, 2\), got \(3, 3\)"),
        ({"differences": (np.full((2, 2), 50.0), np.full((2, 2), 60.0))}, "contradict each other or the box"),
        ({"alpha": [0.1, 0.1], "bound": "er"}, "bound 'er' has no free parameter 'alpha'"),
        ({"beta": [0.1, 0.1]}, "has no free parameter 'beta'; it has"),
    ],
)
def test_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    call = {"lower": GOOD, "upper": GOOD + 1} | arguments
    with pytest.raises(SofthullError, match=message) as caught:
        softmax_planes(call.pop("lower"), call.pop("upper"), **call)
    assert "\n" not in str(caught.value)


def test_points_outside_the_box_are_refused_by_name() -> None:
    with pytest.raises(SofthullError, match=r"x lies outside the box at index \(0,\)"):
        softmax_bounds([5.0, 0.0], [0.0, 0.0], [1.0, 1.0])


def test_lists_and_mixed_precision_are_welcome() -> None:
    low, high = softmax_bounds([0, 1], [0, 0], [1, 2])
    assert low.dtype == np.float64
    mixed = softmax_planes(np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float64))
    assert mixed.lower.value.dtype == np.float64
    assert (low <= high).all()


def test_masked_logits_get_probability_zero_and_have_no_influence() -> None:
    lower, upper = np.array([0.0, -np.inf, 1.0]), np.array([1.0, -np.inf, 2.5])
    masked, plain = softmax_planes(lower, upper), softmax_planes(lower[[0, 2]], upper[[0, 2]])
    for side, other in ((masked.lower, plain.lower), (masked.upper, plain.upper)):
        (A, b), (C, _) = side.dense(), other.dense()
        assert not A[1].any()
        assert not A[:, 1].any()
        assert b[1] == 0
        np.testing.assert_allclose(side(np.array([0.5, -np.inf, 1.5])), np.insert(other(np.array([0.5, 1.5])), 1, 0.0))
        assert A.shape == (3, 3)
        assert C.shape == (2, 2)


def test_one_output_drops_its_axis() -> None:
    planes = softmax_planes(GOOD, GOOD + 1, outputs=1)
    a, b = planes.lower.dense()
    assert a.shape == (2, 2)
    assert b.shape == (2,)
    low, high = softmax_bounds(GOOD, GOOD, GOOD + 1, outputs=-1)
    assert low.shape == high.shape == (2,)
    np.testing.assert_allclose(planes.lower(GOOD + 0.5), planes.lower.value)
