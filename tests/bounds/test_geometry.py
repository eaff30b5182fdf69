"""Every bound on every box: sound, of the declared curvature, touching where it must, tangent where it says."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import softhull
from softhull import BOUNDS, Curvature
from softhull.bounds import hull

from ..soundness.planes import compare
from .cases import Case, boxes, exact_softmax, excess

# Rounded to nearest, a violation is allowed up to this many units in the last place of the numbers that enter the
# comparison: the value, the slopes times the differences of logits they are taken at, and the probability times the
# size of the exponents it was computed from; below the smallest normal number, where units no longer shrink, up to it.
# Rounded outward, nothing is allowed.
ULPS = 8


def allowed(size: np.ndarray, dtype: str = "float64") -> np.ndarray:
    return ULPS * np.finfo(dtype).eps * size + np.finfo(dtype).smallest_normal


# What a bound is as a function shows best without the rounding that is charged to it.
softmax_bounds = partial(softhull.softmax_bounds, rounding="nearest")
softmax_planes = partial(softhull.softmax_planes, rounding="nearest")

PAIRS = [(name, label) for name in BOUNDS for label in boxes() if name != "lse2" or boxes()[label].size <= 2]
SIDES = ("lower", "upper")


def exponents(case: Case) -> np.ndarray:
    """How large the arguments of exp get: their rounding is relative to this."""
    finite = np.where(np.isinf(case.lower), np.nan, case.lower)
    return 1 + np.nanmax(case.upper, -1, keepdims=True) - np.nanmin(finite, -1, keepdims=True)


def too_wide(case: Case) -> bool:
    finite = np.isfinite(case.lower)
    return bool((case.upper[finite] - case.lower[finite]).max() > 600)


def steps(case: Case, x: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(case.lower), 0.0, np.where(np.isinf(x), 0.0, x) - at)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def worst_points(case: Case, side: Any, A: np.ndarray, sign: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Points where moving single coordinates to an end or the middle no longer increases the violation of an output."""
    if case.draw is not None or case.size > 16:
        return []
    found = []
    for k in rng.permutation(case.size)[:4]:
        x = np.where(rng.random(case.lower.shape) < 0.5, case.lower, case.upper)
        for _ in range(2):
            for j in range(case.size):
                trials = np.stack([x, x, x])
                trials[..., j] = [case.lower[..., j], case.upper[..., j], 0.5 * (case.lower + case.upper)[..., j]]
                plane = side.value[..., k] + ((trials - side.at) * A[..., k, :]).sum(-1)
                violation = sign * (plane - softmax(trials)[..., k])
                x = np.take_along_axis(trials, violation.argmax(0)[None, ..., None], 0)[0]
        found.append(x)
    return found


@pytest.mark.parametrize(("name", "label"), PAIRS)
def test_functions_never_violate_softmax(name: str, label: str) -> None:
    case, rng = boxes()[label], np.random.default_rng(1)
    for x in case.points(rng, 8 if case.size < 100 else 2):
        exact = exact_softmax(x)
        p = exact.astype(float)
        found = softmax_bounds(x, case.lower, case.upper, name, differences=case.differences)
        for value, sign in zip(found, (1, -1)):
            if value is None:
                continue
            assert np.isfinite(value).all()
            assert (sign * excess(value, exact) <= allowed(np.abs(value) + p * exponents(case))).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "label"), PAIRS)
def test_planes_never_violate_softmax(name: str, label: str, dtype: str) -> None:
    case, rng = boxes()[label], np.random.default_rng(2)
    if dtype == "float32":  # boxes are given in float32; the truth stays at 50 digits
        case = Case(case.lower.astype(dtype), case.upper.astype(dtype), None, case.draw if label == "masked" else None)
    points = case.points(rng, 8 if case.size < 10 else 4 if case.size < 100 else 1)
    points = [np.clip(x.astype(dtype), case.lower, case.upper) for x in points]
    anchors = [None, *points[:2]]  # the middle, a point inside, a vertex
    for at in anchors:
        planes = softmax_planes(case.lower, case.upper, name, at=at, differences=case.differences)
        for side, sign in ((planes.lower, 1), (planes.upper, -1)):
            if side is None:
                continue
            A, b = side.dense()
            assert A.dtype == dtype
            assert np.isfinite(A).all()
            assert np.isfinite(b).all()
            for x in [*points, *worst_points(case, side, A, sign, rng)]:
                exact = exact_softmax(x.astype(np.float64))
                value, step = side(x), steps(case, x, side.at)
                reach = np.abs(step) + exponents(case)
                size = np.abs(side.value) + np.vecdot(np.abs(A), reach[..., None, :])
                level = allowed(size + exact.astype(float) * exponents(case), dtype)
                assert (sign * excess(value, exact) <= level).all(), (at, x)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "label"), PAIRS)
def test_outward_rounding_leaves_no_violation_in_exact_arithmetic(name: str, label: str, dtype: str) -> None:
    case, rng = boxes()[label], np.random.default_rng(12)
    if dtype == "float32":
        case = Case(case.lower.astype(dtype), case.upper.astype(dtype), None, case.draw if label == "masked" else None)
    if case.size > 100:
        case = Case(case.lower[:, :40], case.upper[:, :40])
    shape = (-1, case.size)
    seen = np.isfinite(case.lower.reshape(shape)[0])  # a masked logit has no part in anything
    points = [np.clip(x.astype(dtype), case.lower, case.upper) for x in case.points(rng, 6)]
    every = np.stack([x.reshape(shape)[:, seen] for x in points])
    for at in (None, points[0]):
        planes = softhull.softmax_planes(case.lower, case.upper, name, at=at, differences=case.differences)
        for side, sign in ((planes.lower, 1), (planes.upper, -1)):
            if side is None:
                continue
            A = side.dense()[0].reshape(-1, case.size, case.size)[:, seen][..., seen]
            value, anchor = side.value.reshape(shape)[:, seen], side.at.reshape(shape)[:, seen]
            found = compare(every, value, A, anchor, sign, f"{name} {label}")
            assert not found.violations, found.wrong
    functions = softhull.softmax_bounds(points[1], case.lower, case.upper, name, differences=case.differences)
    for values, sign in zip(functions, (1, -1)):
        if values is not None:
            value, x = values.reshape(shape)[:, seen], every[1:2]
            found = compare(x, value, np.zeros((*value.shape, value.shape[-1])), x[0], sign, f"{name} {label}")
            assert not found.violations, found.wrong


# The hull is a maximum over slopes found by root finding; its value is converged to a relative accuracy, except at
# vertices of boxes wider than 600, where the sum of chords underflows and the bound is sound but not the hull.
CONVERGED = [(name, label) for name, label in PAIRS if name not in ("hull", "best") or not too_wide(boxes()[label])]


@pytest.mark.parametrize(("name", "label"), CONVERGED)
def test_curvature_is_as_declared(name: str, label: str) -> None:
    case, rng = boxes()[label], np.random.default_rng(3)
    relative = 1e-7 if name in ("hull", "best") else 8 * np.finfo(float).eps
    signs = {Curvature.CONVEX: (1,), Curvature.CONCAVE: (-1,), Curvature.AFFINE: (1, -1), Curvature.CONSTANT: (1, -1)}
    points = case.points(rng, 6 if case.size < 100 else 2)
    for x, y in zip(points[::2], points[1::2]):
        middle = np.where(np.isinf(x), x, 0.5 * np.where(np.isinf(x), 0, x) + 0.5 * np.where(np.isinf(y), 0, y))
        at = [softmax_bounds(z, case.lower, case.upper, name, differences=case.differences) for z in (x, middle, y)]
        for i, side in enumerate(SIDES):
            declared = getattr(BOUNDS[name], side)
            if declared is None or (not declared.in_differences and case.differences is not None):
                continue  # the better of two forms is taken at the point: two planes, not one function
            first, inner, last = (a[i] for a in at)
            logits = np.abs(np.where(np.isinf(x), 0, x)).max()  # the point halfway is rounded
            size = np.maximum(np.abs(first), np.abs(last)) * (exponents(case) + logits)
            if declared.curvature is Curvature.AFFINE:  # its values may be negative and far larger than at these points
                size = size + exponents(case) + logits
            for sign in signs[declared.curvature]:
                assert (sign * (inner - 0.5 * (first + last)) <= relative * size + 1e-150).all()


def every_gradient_is_finite(label: str) -> bool:
    """In the widest boxes single gradients overflow, see steep planes."""
    return boxes()[label].size <= 100 and boxes()[label].draw is None and "1000" not in label


SMOOTH = [(name, label) for name, label in PAIRS if every_gradient_is_finite(label)]


@pytest.mark.parametrize(("name", "label"), SMOOTH)
def test_planes_are_the_tangents_of_the_functions(name: str, label: str) -> None:
    case, rng = boxes()[label], np.random.default_rng(4)
    x = case.lower + rng.uniform(0.2, 0.8, case.lower.shape) * (case.upper - case.lower)
    moving = case.upper - case.lower > 1e-9  # along a coordinate that cannot move every slope is right
    planes = softmax_planes(case.lower, case.upper, name, at=x)
    at = torch.tensor(x, requires_grad=True)
    values = softmax_bounds(at, torch.tensor(case.lower), torch.tensor(case.upper), name)
    for side, value in zip((planes.lower, planes.upper), values):
        if side is None:
            assert value is None
            continue
        np.testing.assert_allclose(side(x), value.detach().numpy(), rtol=1e-11, atol=1e-300)
        A, _ = side.dense()
        for k in range(case.size):
            if not value.requires_grad:
                assert not A.any()
                continue
            (gradient,) = torch.autograd.grad(value[..., k].sum(), at, retain_graph=True)
            row = np.where(moving, A[..., k, :], 0.0)
            expected = np.where(moving, gradient.numpy(), 0.0)
            # where the output saturates, automatic differentiation of 1 - tiny gives 0
            np.testing.assert_allclose(row, expected, rtol=2e-5, atol=1e-6 * np.abs(row).max() + 1e-15)


def extreme_vertices(case: Case, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Where output k is smallest and largest."""
    own = np.arange(case.size) == k
    return np.where(own, case.lower, case.upper), np.where(own, case.upper, case.lower)


TOUCHING = ["three logits", "sixteen logits", "half-width 1e-3", "ties", "two logits", "one-hot"]


@pytest.mark.parametrize("label", TOUCHING)
@pytest.mark.parametrize("name", ["er", "lse", "lse'", "hull", "best"])
def test_nonlinear_bounds_touch_softmax_at_both_extreme_vertices(name: str, label: str) -> None:
    case = boxes()[label]
    for k in range(case.size):
        for vertex in extreme_vertices(case, k):
            p = softmax(vertex)[..., k]
            for value in softmax_bounds(vertex, case.lower, case.upper, name, outputs=k):
                if value is not None:
                    np.testing.assert_allclose(value, p, rtol=1e-7 if name in ("hull", "best") else 1e-12)


@pytest.mark.parametrize("label", [label for label, case in boxes().items() if case.draw is None and case.size <= 16])
def test_constant_bounds_are_the_extreme_values(label: str) -> None:
    case = boxes()[label]
    low, high = softmax_bounds(case.lower, case.lower, case.upper, "const")
    for k in range(case.size):
        smallest, largest = extreme_vertices(case, k)
        np.testing.assert_allclose(low[..., k], softmax(smallest)[..., k], rtol=1e-11, atol=1e-300)
        np.testing.assert_allclose(high[..., k], softmax(largest)[..., k], rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("label", [label for label in boxes() if "differences" not in label])
def test_the_chain_of_inequalities(label: str) -> None:
    """Theorems 1 and 2 of the paper, and what the hull adds to both ends."""
    case, rng = boxes()[label], np.random.default_rng(5)
    two = case.size == 2
    below = ["lin", "er"], ["lse*", "hull"], ["lse'", "hull"], ["lse", "hull"]
    for x in case.points(rng, 6 if case.size < 100 else 1):
        bound = {name: softmax_bounds(x, case.lower, case.upper, name) for name in BOUNDS if name != "lse2" or two}
        size = exponents(case) * np.finfo(float).eps * 8

        def at_most(a: np.ndarray, b: np.ndarray, relative: float = 0.0) -> None:
            assert (a <= b + size * np.maximum(np.abs(a), np.abs(b)) + relative * np.abs(b)).all()  # noqa: B023

        for first, second in below:
            if second == "hull" and too_wide(case):
                continue
            at_most(bound[first][0], bound[second][0], 1e-7 if second == "hull" else 0.0)
        if two:
            at_most(bound["er"][0], bound["lse"][0])
            np.testing.assert_array_equal(bound["lse"][0], bound["lse2"][0])
        at_most(bound["hull"][0], softmax(x))
        at_most(softmax(x), bound["hull"][1])
        for first, second in (["hull", "lse"], ["lse", "er"], ["er", "lin"]):
            at_most(bound[first][1], bound[second][1])
        for side, sign in ((0, 1), (1, -1)):
            for name, values in bound.items():
                if values[side] is not None:
                    assert (sign * (bound["best"][side] - values[side]) >= 0).all(), name


def sigmoid_envelope(v: float, low: float, high: float, sign: int) -> float:
    """Envelope of the sigmoid at v by brute force: the best chord through a fine grid on each side of v."""
    left = np.concatenate([np.linspace(low, v, 1001), v - np.geomspace(1e-6, max(v - low, 1e-6), 500)])
    right = np.concatenate([np.linspace(v, high, 1001), v + np.geomspace(1e-6, max(high - v, 1e-6), 500)])
    left, right = left[left >= low], right[right <= high]

    def sigmoid(t: np.ndarray) -> np.ndarray:
        return 0.5 * (1 + np.tanh(t / 2))

    ends = (right[:, None], left[None, :])
    span = np.where(ends[0] > ends[1], ends[0] - ends[1], 1)
    mix = np.where(ends[0] > ends[1], (v - ends[1]) / span, 0)
    values = (1 - mix) * sigmoid(ends[1]) + mix * sigmoid(ends[0])
    return float(sign * (sign * values).min())


@pytest.mark.parametrize(
    ("low", "high"), [(-2.0, 2.0), (-6.0, 1.0), (-0.5, 9.0), (0.5, 3.0), (-4.0, -1.0), (-30.0, 25.0)]
)
def test_hull_of_two_logits_is_the_envelope_of_the_sigmoid(low: float, high: float) -> None:
    lower, upper = np.array([low, 0.0]), np.array([high, 0.0])
    for v in np.linspace(low, high, 5)[1:-1]:
        found = softmax_bounds(np.array([v, 0.0]), lower, upper, "hull", outputs=0)
        assert found[0] == pytest.approx(sigmoid_envelope(v, low, high, 1), abs=2e-5)
        assert found[1] == pytest.approx(sigmoid_envelope(v, low, high, -1), abs=2e-5)


@pytest.mark.parametrize("label", ["differences", "wide differences"])
@pytest.mark.parametrize("name", [n for n in BOUNDS if n != "lse2"])
def test_difference_bounds_never_loosen(name: str, label: str) -> None:
    case, rng = boxes()[label], np.random.default_rng(6)
    for x in case.points(rng, 8):
        known = softmax_planes(case.lower, case.upper, name, at=x, differences=case.differences)
        plain = softmax_planes(case.lower, case.upper, name, at=x)
        for side, sign in (("lower", 1), ("upper", -1)):
            a, b = getattr(known, side), getattr(plain, side)
            if a is not None:
                slack = 1e-6 * np.abs(b.value) if name in ("hull", "best") and side == "lower" else 1e-12
                assert (sign * (a.value - b.value) >= -slack).all()


def test_random_free_parameters_are_sound() -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        K = int(rng.integers(2, 6))
        half = 10 ** rng.uniform(-2, 1.3)
        middle = rng.normal(0, 2, K)
        lower, upper = middle - half * rng.uniform(0.3, 1, K), middle + half * rng.uniform(0.3, 1, K)
        free: dict[str, Any] = {
            "w": rng.normal(0.2, 0.5, K),
            "alpha": rng.uniform(0, 0.25, K),
            "gamma": 10 ** rng.uniform(-3, 1, K),
            "tangent": rng.normal(0, 4, K),
        }
        chosen = {name: value for name, value in free.items() if rng.random() < 0.7}
        planes = softmax_planes(lower, upper, "hull", at=rng.uniform(lower, upper), **chosen)
        points = np.concatenate(
            [rng.uniform(lower, upper, (200, K)), np.where(rng.random((200, K)) < 0.5, lower, upper)]
        )
        p = softmax(points)
        for side, sign in ((planes.lower, 1), (planes.upper, -1)):
            A, _ = side.dense()
            size = np.abs(side.value) + np.abs(A) @ (upper - lower)
            assert (sign * (side(points) - p) <= 1e-13 * (1 + size)).all()


def test_given_slopes_touch_softmax_bound_at_the_best_offset() -> None:
    """With the slopes the search finds, the plane is the one it returns; any other slopes give a lower value there."""
    rng = np.random.default_rng(8)
    lower, upper = np.array([-1.0, 0.0, 0.5]), np.array([1.0, 2.0, 1.5])
    best = softmax_planes(lower, upper, "hull", w=np.zeros(3)).lower.value
    for _ in range(50):
        other = softmax_planes(
            lower, upper, "hull", w=np.zeros(3), alpha=rng.uniform(0, 0.25, 3), gamma=10 ** rng.uniform(-3, 0, 3)
        ).lower.value
        assert (other <= best + 1e-9).all()


def test_planes_compose_from_both_sides() -> None:
    case, rng = boxes()["sixteen logits"], np.random.default_rng(9)
    for name in (n for n in BOUNDS if n != "lse2"):
        planes = softmax_planes(case.lower, case.upper, name, outputs=[3, 0, 7])
        full = softmax_planes(case.lower, case.upper, name)
        c, direction = rng.normal(size=(3, 3)), rng.normal(size=(3, 16))
        for side, whole in ((planes.lower, full.lower), (planes.upper, full.upper)):
            if side is None:
                continue
            A, b = side.dense()
            slope, offset = side.compose_left(c)
            np.testing.assert_allclose(slope, np.einsum("bo,boj->bj", c, A), atol=1e-13)
            np.testing.assert_allclose(offset, (c * b).sum(-1), atol=1e-12)
            np.testing.assert_allclose(side.compose_right(direction), np.einsum("boj,bj->bo", A, direction), atol=1e-13)
            W, d = whole.dense()
            np.testing.assert_allclose(A, W[:, [3, 0, 7]], atol=1e-15)
            np.testing.assert_allclose(b, d[:, [3, 0, 7]], atol=1e-14)


def test_many_logits_take_linear_memory() -> None:
    """A K x K matrix of K = 100,000 logits would take 80 GB; a few outputs of the K x K bounds still work."""
    rng = np.random.default_rng(10)
    middle = rng.normal(0, 1, 100_000)
    lower, upper = middle - 0.1, middle + 0.1
    x = rng.uniform(lower, upper)
    p = softmax(x)
    for name in BOUNDS:
        if name == "lse2":
            continue
        outputs = [0, int(middle.argmax())] if name in ("lin", "er", "best") else None
        planes = softmax_planes(lower, upper, name, outputs=outputs)
        target = p if outputs is None else p[outputs]
        for side, sign in ((planes.lower, 1), (planes.upper, -1)):
            if side is not None:
                assert (sign * (side(x) - target) <= 1e-12 * target).all(), name


@pytest.mark.parametrize("outputs", [None, [1, 3]])
def test_large_batches_are_worked_out_in_pieces(outputs: list[int] | None) -> None:
    """The pieces join to what each box gives alone, at the midpoint and elsewhere, whatever the shift of a box."""
    rng = np.random.default_rng(11)
    middle = rng.normal(0, 2, (3, 8000, 5)) + 100 * rng.normal(size=(3, 8000, 1))
    lower, upper = middle - rng.uniform(0.1, 1, middle.shape), middle + rng.uniform(0.1, 1, middle.shape)
    for at in (None, rng.uniform(lower, upper)):
        whole = softmax_planes(lower, upper, at=at, outputs=outputs).lower
        some = np.s_[2, 7000:7005]
        alone = softmax_planes(lower[some], upper[some], at=None if at is None else at[some], outputs=outputs).lower
        np.testing.assert_allclose(whole.value[some], alone.value, rtol=1e-8)
        np.testing.assert_allclose(whole.dense()[0][some], alone.dense()[0], atol=1e-5)


def test_sides_that_do_not_exist_are_none() -> None:
    planes = softmax_planes([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], "lse*")
    assert planes.upper is None
    assert softhull.BOUNDS["lse*"].upper is None
    mixed = softmax_planes([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], "lse*/lse")
    assert mixed.upper is not None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_envelope_is_a_majorant_wherever_the_interval_starts(dtype: str) -> None:
    """Just left of the bend the tangent point is nearly the start, and must not be taken for anything further out."""
    info = np.finfo(dtype)
    length, highest, share = np.meshgrid(np.geomspace(1e-9, 30, 40), (1e-4, 1e-2, 0.3, 3.0, 40.0), np.linspace(0, 1, 7))
    low, high = (np.stack((end, 0 * end), -1).astype(dtype) for end in (-length, highest))
    x = np.clip((low + share[..., None] * (high - low)).astype(dtype), low, high)
    _, above = softmax_bounds(x, low, high, "hull", outputs=0)
    p = softmax(x.astype(float))[..., 0]
    assert (above >= p - 16 * info.eps).all()
    beyond = (length < 0.3) & (x[..., 0] > length)  # beyond the tangent point the sigmoid is its own envelope
    assert beyond.any()
    assert (above[beyond] <= p[beyond] + 1e-4).all()


@pytest.mark.parametrize("K", [2, 3, 7])
def test_all_references_at_once_give_the_planes_of_one_by_one(K: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(K)
    lower = rng.normal(size=(20, K))
    upper = lower + 10.0 ** rng.uniform(-3, 1, (20, 1)) * rng.random((20, K))
    together = softmax_planes(lower, upper).lower.dense()
    monkeypatch.setattr(hull, "_FEW", 0)
    alone = softmax_planes(lower, upper).lower.dense()
    middle = (lower + upper) / 2
    here, there = (np.einsum("bkj,bj->bk", A, middle) + b for A, b in (together, alone))
    assert np.allclose(here, there, rtol=1e-7, atol=1e-12)
