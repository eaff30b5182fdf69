"""Property files of both versions become the same plain data; hostile ones get one line."""

from __future__ import annotations

import gzip
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softhull.errors import SpecificationError
from softhull.formats.vnnlib import Disjunct, Specification, load_vnnlib, parse_vnnlib

from .vnnlib_text import write_vnnlib

DECLARED = """
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(declare-const Y_2 Real)
"""
BOX = """
(assert (>= X_0 -1.0)) (assert (<= X_0 1.0))  ; a comment (with a parenthesis
(assert (and (>= X_1 0) (<= X_1 0.5)))
"""


def test_class_property():
    found = parse_vnnlib(DECLARED + BOX + "(assert (or (and (>= Y_1 Y_0)) (and (>= Y_2 Y_0))))")
    assert (found.inputs, found.outputs, len(found.disjuncts)) == (2, 3, 2)
    first, second = found.disjuncts
    np.testing.assert_array_equal(first.lower, [-1, 0])
    np.testing.assert_array_equal(first.upper, [1, 0.5])
    np.testing.assert_array_equal(first.matrix, [[1, -1, 0]])
    np.testing.assert_array_equal(second.matrix, [[1, 0, -1]])
    np.testing.assert_array_equal(first.offset, [0])
    assert first.lower is second.lower  # large boxes are shared


def test_conjunction_of_output_conditions():
    found = parse_vnnlib(DECLARED + BOX + "(assert (<= Y_0 3.5)) (assert (>= (+ Y_1 (* 2 Y_2)) (- Y_0 1)))")
    (only,) = found.disjuncts
    np.testing.assert_array_equal(only.matrix, [[1, 0, 0], [1, -1, -2]])
    np.testing.assert_array_equal(only.offset, [3.5, 1])


def test_disjunction_of_input_boxes_with_their_own_conditions():
    text = """(assert (or
        (and (<= X_0 -0.5) (>= Y_0 0.0))
        (and (>= X_0 0.5) (or (<= Y_1 1) (<= Y_2 2)))))"""
    found = parse_vnnlib(DECLARED + BOX + text)
    assert [part.upper[0] for part in found.disjuncts] == [-0.5, 1, 1]
    assert [part.lower[0] for part in found.disjuncts] == [-1, 0.5, 0.5]
    assert [part.offset.tolist() for part in found.disjuncts] == [[0], [1], [2]]


def test_an_empty_box_has_no_disjunct():
    assert parse_vnnlib(DECLARED + BOX + "(assert (>= X_0 2)) (assert (<= Y_0 0))").disjuncts == ()


def test_equality_is_two_conditions_and_strict_is_remembered():
    (only,) = parse_vnnlib(DECLARED + BOX + "(assert (= Y_0 1)) (assert (< Y_1 2))").disjuncts
    np.testing.assert_array_equal(only.matrix, [[1, 0, 0], [-1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(only.strict, [False, False, True])


@given(st.decimals(min_value=-10, max_value=10, places=20))
@settings(max_examples=50)
def test_numbers_are_rounded_outward(number):
    text = DECLARED + BOX.replace("0.5", "99") + f"(assert (<= X_1 {abs(number):f}))"
    (only,) = parse_vnnlib(text).disjuncts or (None,)
    exact = Fraction(abs(number))
    assert only is not None
    assert Fraction(float(only.upper[1])) >= exact
    assert Fraction(float(np.nextafter(only.upper[1], -1))) < exact


@st.composite
def specifications(draw) -> Specification:
    inputs, outputs = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        ends = np.array(draw(st.lists(st.tuples(numbers, numbers), min_size=inputs, max_size=inputs)))
        rows = draw(st.integers(1, 3))
        values = draw(st.lists(numbers, min_size=rows * (outputs + 1), max_size=rows * (outputs + 1)))
        table = np.array(values).reshape(rows, outputs + 1)
        strict = np.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
        parts.append(Disjunct(ends.min(1), ends.max(1), table[:, :-1], table[:, -1], strict))
    return Specification(inputs, outputs, tuple(parts))


@pytest.mark.parametrize("version", [1, 2])
@given(specification=specifications())
@settings(max_examples=40, deadline=None)
def test_round_trip(version, specification):
    again = parse_vnnlib(write_vnnlib(specification, version))
    assert (again.inputs, again.outputs) == (specification.inputs, specification.outputs)
    assert len(again.disjuncts) == len(specification.disjuncts)
    for ours, theirs in zip(again.disjuncts, specification.disjuncts):
        for name in ("lower", "upper", "matrix", "offset", "strict"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_version_2_with_shapes():
    text = """(vnnlib-version <2.0>)
    (declare-network N (declare-input X float32 [1,2,2]) (declare-output Y float32 [1,2]))
    (assert (and (>= X[0,0,0] 0.0) (>= X[0,0,1] 0.1) (>= X[0,1,0] 0.2) (>= X[0,1,1] 0.3)))
    (assert (and (<= X[0,0,0] 1.0) (<= X[0,0,1] 1.1) (<= X[0,1,0] 1.2) (<= X[0,1,1] 1.3)))
    (assert (or (<= Y[0,0] Y[0,1]) (> Y[0,0] (+ (* 2.0 Y[0,1]) 1.0))))
    """
    found = parse_vnnlib(text)
    assert (found.inputs, found.outputs) == (4, 2)
    np.testing.assert_allclose(found.disjuncts[0].lower, [0, 0.1, 0.2, 0.3])
    np.testing.assert_array_equal(found.disjuncts[1].matrix, [[-1, 2]])
    np.testing.assert_array_equal(found.disjuncts[1].offset, [-1])
    assert found.disjuncts[1].strict.tolist() == [True]


REFUSED = {
    "": "no inputs",
    "(": "never closed",
    ")": "too many",
    "hello": "outside of all parentheses",
    "(" * 10**6: "nested more than",
    "(vnnlib-version <2.0>)" + "(assert " * 10**5: "nested more than",
    "(vnnlib-version <2.0>) (foo)": "not valid VNN-LIB 2",
    "(define-fun f () Real)": "unknown command",
    "(declare-const Z_0 Real)": "only real constants",
    "(declare-const X_0 Int)": "only real constants",
    "(declare-const X_1 Real) (declare-const Y_0 Real)": "without gaps",
    "(declare-const X_999999999 Real) (declare-const Y_0 Real)": "without gaps",
    DECLARED + "(assert (<= X_0 1))": "X_0 has no lower or no upper bound",
    DECLARED + BOX + "(assert (<= (* X_0 Y_0) 1))": "product of two variables",
    DECLARED + BOX + "(assert (<= X_0 X_1))": "couples several inputs",
    DECLARED + BOX + "(assert (<= X_0 Y_1))": "couples several inputs",
    DECLARED + BOX + "(assert (<= Y_7 1))": "Y_7 is not declared",
    DECLARED + BOX + "(assert (<= Y_0 1e999))": "out of range",
    DECLARED + BOX + "(assert (<= Y_0 1e99999999999))": "neither a variable",
    DECLARED + BOX + "(assert (<= Y_0 nan))": "neither a variable",
    DECLARED + BOX + "(assert (<= Y_0 " + "(* 1e300 " * 50 + "1" + ")" * 50 + "))": "out of range",
    DECLARED + BOX + "(assert (and " + "(or (<= Y_0 1) (>= Y_0 2))" * 60 + "))": "combinations",
    DECLARED + BOX + "(assert (or " + "(<= Y_0 1)" * 20_000 + "))": "more than 10000 alternatives",
    DECLARED + BOX + "(assert Y_0)": "not a condition",
    DECLARED + BOX + "(assert (not (<= Y_0 1)))": "not a condition",
    DECLARED + BOX + "(assert ())": "not a condition",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: REFUSED[text])
def test_refused_in_one_line(text, tmp_path):
    path = tmp_path / "property.vnnlib"
    path.write_text(text)
    with pytest.raises(SpecificationError, match=REFUSED[text]) as caught:
        load_vnnlib(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_unreadable_files(tmp_path):
    with pytest.raises(SpecificationError, match="cannot be read"):
        load_vnnlib(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecificationError, match="not a text file"):
        load_vnnlib(tmp_path / "binary")


def test_unknown_version_to_write():
    with pytest.raises(SpecificationError, match="version 3"):
        write_vnnlib(parse_vnnlib(DECLARED + BOX + "(assert (<= Y_0 1))"), version=3)


def test_packed_files_are_unpacked(tmp_path):
    text = DECLARED + BOX + "(assert (<= Y_0 1))"
    (tmp_path / "p.vnnlib.gz").write_bytes(gzip.compress(text.encode()))
    assert len(load_vnnlib(tmp_path / "p.vnnlib.gz").disjuncts) == 1
    (tmp_path / "p.vnnlib.gz").write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(SpecificationError, match="damaged gzip"):
        load_vnnlib(tmp_path / "p.vnnlib.gz")


def alone(conditions: str, version: int) -> Specification:
    """Two inputs and two outputs with these conditions, in the words of version 1."""
    if version == 1:
        declared = "".join(f"(declare-const {kind}_{i} Real)" for kind in "XY" for i in range(2))
        return parse_vnnlib(declared + conditions)
    declared = (
        "(vnnlib-version <2.0>)\n(declare-network N (declare-input X float64 [2]) (declare-output Y float64 [2]))"
    )
    conditions = conditions.replace("(= ", "(== ")
    for kind in "XY":
        for i in range(2):
            conditions = conditions.replace(f"{kind}_{i}", f"{kind}[{i}]")
    return parse_vnnlib(declared + conditions)


BOUNDED = "(assert (>= X_1 0.0)) (assert (<= X_1 1.0))"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("conditions", "inside", "outside"),
    [
        ("(assert (< X_0 1.0)) (assert (> X_0 0.0))", [np.nextafter(1.0, 0), 5e-324], [1.0, 0.0]),
        ("(assert (<= X_0 1.0)) (assert (>= X_0 0.0))", [1.0, 0.0], [np.nextafter(1.0, 2), -5e-324]),
        ("(assert (> 1.0 X_0)) (assert (< 0.0 X_0))", [0.5], [1.0, 0.0]),
        ("(assert (< (* 2.0 X_0) 1.0)) (assert (> (* 2.0 X_0) -1.0))", [np.nextafter(0.5, 0)], [0.5, -0.5]),
        ("(assert (< X_0 1.0)) (assert (<= X_0 1.0)) (assert (>= X_0 0.0))", [0.0], [1.0]),
        # the double nearest to 0.1 is above it, the one nearest to 0.3 below
        ("(assert (<= X_0 0.1)) (assert (>= X_0 0.0))", [np.nextafter(0.1, 0)], [0.1]),
        ("(assert (>= X_0 0.3)) (assert (<= X_0 1.0))", [np.nextafter(0.3, 1)], [0.3]),
        ("(assert (= X_0 0.5))", [0.5], [np.nextafter(0.5, 1)]),
    ],
)
def test_a_counterexample_satisfies_the_input_conditions_as_written(
    conditions: str, inside: list[float], outside: list[float], version: int
) -> None:
    (only,) = alone(BOUNDED + conditions + "(assert (<= Y_0 Y_1))", version).disjuncts
    for value in inside:
        assert only.holds(np.array([value, 0.5]), np.zeros(2))
    for value in [*outside, np.nan]:
        assert not only.holds(np.array([value, 0.5]), np.zeros(2))
    assert all(only.lower[0] <= value <= only.upper[0] for value in inside)
    (again,) = parse_vnnlib(write_vnnlib(Specification(2, 2, (only,)), version)).disjuncts
    for value in outside:
        assert not again.holds(np.array([value, 0.5]), np.zeros(2))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "conditions",
    [
        "(assert (< X_0 1.0)) (assert (>= X_0 1.0))",
        "(assert (< X_0 1.0)) (assert (> X_0 1.0))",
        "(assert (<= X_0 0.0)) (assert (>= X_0 1.0))",
        "(assert (= X_0 1.0)) (assert (= X_0 2.0))",
        "(assert (= X_0 1.0)) (assert (> X_0 1.0))",
    ],
)
def test_contradictory_inputs_leave_nothing(conditions: str, version: int) -> None:
    assert alone(BOUNDED + conditions + "(assert (<= Y_0 0.0))", version).disjuncts == ()


def test_a_number_between_two_doubles_has_no_counterexample_but_is_not_left_out() -> None:
    (only,) = alone(BOUNDED + "(assert (= X_0 0.1)) (assert (<= Y_0 0.0))", 1).disjuncts
    assert Fraction(float(only.lower[0])) < Fraction("0.1") < Fraction(float(only.upper[0]))
    for value in (only.lower[0], only.upper[0]):
        assert not only.holds(np.array([value, 0.5]), np.zeros(2))


@pytest.mark.parametrize("version", [1, 2])
def test_outputs_are_compared_in_exact_arithmetic(version: int) -> None:
    box = BOUNDED + "(assert (>= X_0 0.0)) (assert (<= X_0 1.0))"
    x = np.full(2, 0.5)
    (closed,) = alone(box + "(assert (<= Y_0 Y_1))", version).disjuncts
    (open_,) = alone(box + "(assert (< Y_0 Y_1))", version).disjuncts
    for tied in (0.0, 0.1, 1e30):
        assert closed.holds(x, np.array([tied, tied], dtype=np.float32))
        assert not open_.holds(x, np.array([tied, tied], dtype=np.float32))
    assert open_.holds(x, np.array([1, np.nextafter(np.float32(1), np.float32(2))], dtype=np.float32))
    for strange in (np.nan, np.inf, -np.inf):
        assert not closed.holds(x, np.array([strange, 0.0]))
    # 0.1 is no double: a double at most it is below it
    (tenth,) = alone(box + "(assert (<= Y_0 0.1))", version).disjuncts
    assert not tenth.holds(x, np.array([0.1, 0.0]))
    assert tenth.holds(x, np.array([np.nextafter(0.1, 0), 0.0]))
    assert tenth.offset[0] >= 0.1
    # and no coefficient either: the whole condition is multiplied by ten
    (scaled,) = alone(box + "(assert (<= (* 0.1 Y_0) (* 0.3 Y_1)))", version).disjuncts
    np.testing.assert_array_equal(scaled.matrix, [[1, -3]])
    assert scaled.holds(x, np.array([3.0, 1.0]))
    assert not scaled.holds(x, np.array([np.nextafter(3.0, 4), 1.0]))
    # a sum that double precision would round to the limit
    (sum_,) = alone(box + "(assert (< (+ Y_0 Y_1) 1.0))", version).disjuncts
    assert sum_.holds(x, np.array([1.0, -1e-30]))
    assert not sum_.holds(x, np.array([1.0, 0.0]))


@given(specification=specifications(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_alternatives_keep_their_own_ends(specification, data):
    """What is written of an alternative decides about it, whatever the others say."""
    part = data.draw(st.sampled_from(specification.disjuncts))
    x = np.array([data.draw(st.sampled_from([low, high])) for low, high in zip(part.lower, part.upper)])
    y = np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=specification.outputs, max_size=8)))
    y = y[: specification.outputs]
    again = parse_vnnlib(write_vnnlib(specification))
    for ours, theirs in zip(again.disjuncts, specification.disjuncts):
        assert ours.holds(x, y) == theirs.holds(x, y)
