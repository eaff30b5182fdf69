"""No noise, corner or interior, takes a quadratic below its bound; every bound carries a certificate that checks."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softhull
from softhull.errors import InvalidInput
from softhull.propagate.second_order.affine_form import Basis
from softhull.propagate.second_order.blocks import BlockQuadratic
from softhull.propagate.second_order.dual import Pursuit, bound, cost, maximise, minimiser
from softhull.propagate.second_order.low_rank import LowRankQuadratic
from softhull.propagate.second_order.noise_parts import Dense, noise_parts
from softhull.propagate.second_order.quadratic import DenseQuadratic, quadratic_lower_bound

DTYPES = (torch.float64, torch.float32)


def _corners(n, dtype):
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=n)), dtype=dtype)


def _random(rng, n, scale, count=16, dtype=torch.float64):
    linear = torch.from_numpy(rng.normal(size=(count, n))).to(dtype)
    B = torch.from_numpy(scale * rng.normal(size=(count, n, n)) / max(1, n)).to(dtype)
    return linear, B


def _values(linear, B, points):
    return linear @ points.mT + torch.einsum("vi,bij,vj->bv", points, B, points)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_no_corner_and_no_interior_point_is_below(n, scale, dtype):
    rng = np.random.default_rng(n)
    linear, B = _random(rng, n, scale, dtype=dtype)
    found = quadratic_lower_bound(linear, B)
    inside = torch.from_numpy(rng.uniform(-1, 1, size=(2000, n)))
    for points in (_corners(n, torch.float64), inside):
        assert bool((found.value.double()[:, None] <= _values(linear.double(), B.double(), points)).all())


@pytest.mark.parametrize("scale", [0.01, 0.1])
def test_exact_where_the_linear_part_rules(scale):
    linear, B = _random(np.random.default_rng(0), 8, scale)
    linear = linear + linear.sign()
    least = _values(linear, B, _corners(8, torch.float64)).amin(1)
    assert torch.allclose(quadratic_lower_bound(linear, B).value, least, rtol=1e-6)


def test_multipliers_beat_absolute_sums():
    linear, B = _random(np.random.default_rng(1), 30, 1.0)
    sums, multipliers = quadratic_lower_bound(linear, B, steps=0), quadratic_lower_bound(linear, B)
    assert bool((multipliers.value >= sums.value).all())
    assert bool((multipliers.value > 0.7 * sums.value).all())


@given(st.lists(st.floats(-4, 4), min_size=9, max_size=9), st.integers(0, 3))
def test_the_certificate_proves_the_value(entries, zeroed):
    """In exact arithmetic: M is positive semidefinite and the dual value of d is at least the value."""
    numbers = torch.tensor(entries, dtype=torch.float64)
    linear, B = numbers[:3], numbers[[3, 4, 5, 4, 6, 7, 5, 7, 8]].reshape(3, 3)
    B[zeroed:] = 0.0
    B[:, zeroed:] = 0.0
    found = softhull.quadratic_lower_bound(linear, B)
    d = [Fraction(float(x)) for x in found.d]
    M = [[Fraction(float(B[i, j])) + (d[i] if i == j else 0) for j in range(3)] for i in range(3)]
    # l'M^-1 l by elimination; a zero pivot must have a zero row and no linear part.
    rows = [M[i] + [Fraction(float(linear[i]))] for i in range(3)]
    quadratic = Fraction(0)
    for i in range(3):
        pivot = rows[i][i]
        assert pivot >= 0
        if pivot == 0:
            assert not any(rows[i][i:])
            continue
        quadratic += rows[i][3] ** 2 / pivot
        for k in range(i + 1, 3):
            factor = rows[k][i] / pivot
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i])]
    assert Fraction(float(found.value)) <= -sum(d) - quadratic / 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_nothing(dtype):
    found = quadratic_lower_bound(torch.zeros(4, dtype=dtype), torch.zeros(4, 4, dtype=dtype))
    assert -1e-30 <= float(found.value) <= 0
    assert quadratic_lower_bound(torch.zeros(0), torch.zeros(0, 0)).value == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_says_nothing_and_spares_the_others(bad):
    linear, B = _random(np.random.default_rng(2), 4, 0.3)
    good = quadratic_lower_bound(linear, B).value
    linear[3, 1] = bad
    B[5, 2, 2] = bad
    value = quadratic_lower_bound(linear, B).value
    assert value[3] == value[5] == -torch.inf
    kept = [i for i in range(16) if i not in (3, 5)]
    assert torch.allclose(value[kept], good[kept], rtol=1e-6)


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1e150, 1e300])
def test_extreme_sizes(size):
    linear, B = _random(np.random.default_rng(3), 5, 0.5)
    value = quadratic_lower_bound(linear * size, B * size).value
    least = _values(linear * size, B * size, _corners(5, torch.float64)).amin(1)
    assert not value.isnan().any()
    assert bool((value <= least).all())


def test_multipliers_that_leave_a_matrix_singular_are_infeasible_and_spare_the_others():
    linear = torch.ones(2, 2, dtype=torch.float64)
    B = torch.tensor([[[0.0, -1.0], [-1.0, 0.0]], [[0.0, 0.5], [0.5, 0.0]]], dtype=torch.float64)
    d = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)  # the first matrix is singular, to the last digit
    eye = torch.eye(2, dtype=torch.float64)
    for problem in (DenseQuadratic(linear, B), LowRankQuadratic.of(linear, eye.expand(2, 2, 2), B)):
        found = problem.solve(d)
        assert found.feasible.tolist() == [False, True]
        torch.testing.assert_close(found.x[1], torch.linalg.solve(eye + B[1], linear[1]) / 2)


def test_multipliers_next_to_singular_matrices_are_raised_a_little(monkeypatch):
    """The best ones of ``-|eps|^2`` cannot be certified; hardly larger ones can."""
    problem = DenseQuadratic(torch.zeros(2, 3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64).repeat(2, 1, 1))
    best = torch.ones(2, 3, dtype=torch.float64)
    best[0] *= 1 + 1e-3
    monkeypatch.setattr(DenseQuadratic, "improved", lambda self, d, *_: best[-len(d) :])
    value, d = maximise(problem, Pursuit(9, torch.full((2,), 1e9, dtype=torch.float64), hopeless=True))
    assert bool((value >= -3.004).all())
    assert bool((value <= -3).all())
    assert bool((d > 1).all())


def test_minimisers_are_noise_where_matrices_are_next_to_singular():
    linear = torch.tensor([[1e-3, -2e-3], [1.0, -1.0]], dtype=torch.float64)
    problem = DenseQuadratic(linear, -torch.eye(2, dtype=torch.float64).repeat(2, 1, 1))
    found = minimiser(problem, torch.tensor([[1 + 1e-9] * 2, [3.0, 2.0]], dtype=torch.float64))
    torch.testing.assert_close(found[1], torch.tensor([-0.25, 0.5], dtype=torch.float64))
    assert bool((found[0] * linear[0] < 0).all())
    assert bool((found[0].abs() <= 1).all())
    torch.testing.assert_close(found[0, 1], -2 * found[0, 0])  # not each cut off for itself
    assert bool(minimiser(problem, torch.full((2, 2), 0.5, dtype=torch.float64)).isnan().all())


def test_degenerate_matrices():
    rng = np.random.default_rng(4)
    for rank in (1, 2):
        v = torch.from_numpy(rng.normal(size=(8, rank, 12)))
        for sign in (1, -1):
            linear, B = torch.from_numpy(rng.normal(size=(8, 12))), sign * v.mT @ v
            least = _values(linear, B, _corners(12, torch.float64)).amin(1)
            inside = _values(linear, B, torch.from_numpy(rng.uniform(-1, 1, (500, 12)))).amin(1)
            assert bool((quadratic_lower_bound(linear, B).value <= torch.minimum(least, inside)).all())


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_noise_in_a_ball(scale):
    rng = np.random.default_rng(5)
    linear, B = _random(rng, 6, scale)
    ball = torch.tensor([True] * 4 + [False] * 2)
    found = quadratic_lower_bound(linear, B, ball)
    points = torch.from_numpy(rng.normal(size=(4000, 6)))
    points[:, :4] /= points[:, :4].norm(dim=1, keepdim=True)
    points[:, 4:] = points[:, 4:].sign()
    values = _values(linear, B, points)
    assert bool((found.value[:, None] <= values).all())
    assert bool((found.value > quadratic_lower_bound(linear, B).value).all())
    assert bool((found.value >= 1.5 * values.amin(1)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_low_rank_agrees_with_dense(scale, dtype):
    rng = np.random.default_rng(6)
    U = torch.from_numpy(rng.normal(size=(10, 3, 9))).to(dtype)
    C = torch.from_numpy(scale * rng.normal(size=(10, 3, 3)) / 9).to(dtype)
    C = (C + C.mT) / 2
    linear = torch.from_numpy(rng.normal(size=(10, 9))).to(dtype)
    low_rank = LowRankQuadratic.of(linear, U, C)
    value, d = maximise(low_rank, Pursuit(12, torch.full((10,), torch.inf, dtype=dtype)))
    B = U.double().mT @ C.double() @ U.double()
    least = _values(linear.double(), B, _corners(9, torch.float64)).amin(1)
    assert bool((value.double() <= least).all())
    assert bool((value.double() >= 2 * quadratic_lower_bound(linear.double(), B).value).all())
    M = torch.diag_embed(d.double()) + B
    assert bool((torch.linalg.eigvalsh(M) > 0).all())
    dual = -cost(d.double(), None) - (linear.double() * torch.linalg.solve(M, linear.double())).sum(-1) / 4
    assert bool((value.double() <= dual).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_the_matrix_does_not_see_cost_nothing(dtype):
    """The bound is that of the problem without these rows, be they among others or alone with a noise number."""
    rng = np.random.default_rng(7)
    U = torch.zeros(10, 6, 11, dtype=dtype)
    U[:, :4, :9] = torch.from_numpy(rng.normal(size=(10, 4, 9)))
    U[:, 4, 9] = U[:, 5, 10] = 1.0
    seen = torch.tensor([0, 2, 5])
    C = torch.zeros(10, 6, 6, dtype=dtype)
    own = torch.from_numpy(rng.normal(size=(10, 3, 3)) / 9).to(dtype)
    C[:, seen[:, None], seen] = own + own.mT
    linear = torch.from_numpy(rng.normal(size=(10, 11))).to(dtype)
    pursuit = Pursuit(12, torch.full((10,), torch.inf, dtype=dtype))
    value, _ = maximise(LowRankQuadratic.of(linear, U, C), pursuit)
    without, _ = maximise(LowRankQuadratic.of(linear, U[:, seen], C[:, seen[:, None], seen]), pursuit)
    torch.testing.assert_close(value, without, rtol=1e-6 if dtype == torch.float64 else 1e-2, atol=0)
    assert bool((value <= _values(linear, U.mT @ C @ U, _corners(11, dtype)).amin(1)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ball", [None, torch.arange(13) < 6])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_parts_that_share_no_noise_agree_with_the_whole(scale, ball, dtype):
    """Two parts, rows with a noise number of their own, a row without noise and noise without a row, all mixed up."""
    rng = np.random.default_rng(8)
    U = torch.zeros(10, 9, 13, dtype=dtype)
    U[:, :3, :5] = torch.from_numpy(rng.normal(size=(10, 3, 5)))
    U[:, 3:5, 5:8] = torch.from_numpy(rng.normal(size=(10, 2, 3)))
    for row, column in ((5, 8), (6, 9), (7, 11)):
        U[:, row, column] = torch.from_numpy(rng.uniform(0.5, 2, 10))
    rows, columns = (torch.from_numpy(rng.permutation(size)) for size in (9, 13))
    U = U[:, rows][:, :, columns]
    C = torch.from_numpy(scale * rng.normal(size=(10, 9, 9)) / 20).to(dtype)
    C = (C + C.mT) / 2
    linear = torch.from_numpy(rng.normal(size=(10, 13))).to(dtype)
    never = torch.full((10,), torch.inf, dtype=dtype)
    problem = LowRankQuadratic.of(linear, U, C, ball)
    assert sorted(part.count for part in problem.parts) == [2, 3, 3]
    value, d = maximise(problem, Pursuit(12, never))
    everything = Dense(U, torch.arange(13))
    whole, _ = maximise(LowRankQuadratic(linear, [everything], C, ball), Pursuit(12, never))
    if dtype == torch.float64:  # in shorter numbers the way to the best multipliers is another one
        torch.testing.assert_close(value, whole, rtol=1e-6, atol=0)
    B = U.double().mT @ C.double() @ U.double()
    points = torch.from_numpy(rng.uniform(-1, 1, size=(3000, 13)))
    points[:1500] = points[:1500].sign()
    if ball is not None:
        points[:, ball] /= points[:, ball].norm(dim=1, keepdim=True)
    assert bool((value.double()[:, None] <= _values(linear.double(), B, points)).all())
    M = torch.diag_embed(d.double()) + B
    assert bool((torch.linalg.eigvalsh(M) > 0).all())
    dual = -cost(d.double(), ball) - (linear.double() * torch.linalg.solve(M, linear.double())).sum(-1) / 4
    assert bool((value.double() <= dual).all())


def test_rows_that_share_noise_only_through_others_are_one_part():
    U = torch.eye(6, 7, dtype=torch.float64)[None]
    U[0, torch.arange(6), torch.arange(6) + 1] = 1  # a chain
    order, parts = noise_parts(U)
    assert [part.count for part in parts] == [6]
    assert sorted(order.tolist()) == list(range(6))


@pytest.mark.parametrize("ball", [None, torch.arange(14) < 6])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 5.0])
def test_blocks_agree_with_dense(scale, ball):
    """Two bases over parts of the noise that overlap."""
    rng = np.random.default_rng(7)
    numbers = torch.arange(9), torch.tensor([0, 2, 5, 9, 10, 11, 12, 13])
    maps = [torch.from_numpy(rng.normal(size=(10, 6, len(part)))) for part in numbers]
    matrices = [scale * torch.from_numpy(rng.normal(size=(10, 6, 6))) / 30 for _ in numbers]
    matrices = [(C + C.mT) / 2 for C in matrices]
    matrices[1][:, 4:], matrices[1][..., 4:] = 0.0, 0.0  # entries without a part in the quadratic
    linear = torch.from_numpy(rng.normal(size=(10, 14)))
    problem = BlockQuadratic(linear, [Basis(u, part) for u, part in zip(maps, numbers)], matrices, ball)
    value, d = bound(problem, Pursuit(12, torch.full((10,), torch.inf, dtype=torch.float64)))
    B = torch.zeros(10, 14, 14, dtype=torch.float64)
    for u, C, part in zip(maps, matrices, numbers):
        B[:, part[:, None], part] += u.mT @ C @ u
    points = torch.from_numpy(rng.uniform(-1, 1, size=(3000, 14)))
    points[:1500] = points[:1500].sign()
    if ball is not None:
        points[:, ball] /= points[:, ball].norm(dim=1, keepdim=True)
    assert bool((value[:, None] <= _values(linear, B, points)).all())
    dense, _ = bound(DenseQuadratic(linear, B, ball), Pursuit(12, torch.full((10,), torch.inf, dtype=torch.float64)))
    assert scale > 0.1 or bool((value >= 1.1 * dense).all())
    M = torch.diag_embed(d) + B
    assert bool((torch.linalg.eigvalsh(M) > 0).all())
    dual = -cost(d, ball) - (linear * torch.linalg.solve(M, linear)).sum(-1) / 4
    assert bool((value <= dual).all())


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="do not fit"):
        quadratic_lower_bound(torch.zeros(3), torch.zeros(2, 2))
    with pytest.raises(InvalidInput, match="mask of 3"):
        quadratic_lower_bound(torch.zeros(3), torch.zeros(3, 3), torch.ones(2, dtype=torch.bool))


def test_newton_steps_end_next_to_the_maximum_of_the_dual():
    """The dual of a pair of numbers whose product outweighs their linear part by far has no gap."""
    rng = np.random.default_rng(5)
    n = 12
    strength = torch.from_numpy(rng.uniform(0.5, 3, size=(6, n // 2)))
    B = torch.zeros(6, n, n, dtype=torch.float64)
    for pair in range(n // 2):
        B[:, 2 * pair, 2 * pair + 1] = B[:, 2 * pair + 1, 2 * pair] = strength[:, pair]
    linear = torch.from_numpy(rng.uniform(-0.2, 0.2, size=(6, n)))
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    pairs = linear.reshape(6, n // 2, 2) @ corners.T + 2 * strength[..., None] * corners.prod(1)
    least = pairs.amin(-1).sum(-1)
    value, d = maximise(DenseQuadratic(linear, B), Pursuit(25, torch.full((6,), torch.inf, dtype=torch.float64)))
    assert bool((value <= least).all())
    assert bool((value >= least - 3e-3 * least.abs()).all())
    assert bool((d > 0).all())


def test_multipliers_that_are_known_take_few_steps():
    rng = np.random.default_rng(6)
    linear, B = torch.from_numpy(rng.normal(size=(8, 20))), torch.from_numpy(rng.normal(size=(8, 20, 20)))
    never = torch.full((8,), torch.inf, dtype=torch.float64)
    best, d = maximise(DenseQuadratic(linear, B), Pursuit(25, never))
    again, _ = maximise(DenseQuadratic(linear, B), Pursuit(1, never, d))
    assert torch.allclose(again, best, rtol=1e-3)
    unknown = torch.full_like(d, torch.nan)
    assert bool((maximise(DenseQuadratic(linear, B), Pursuit(8, never, unknown))[0] <= best + 1e-9).all())


def test_how_low_a_hopeless_problem_is_may_be_asked():
    rng = np.random.default_rng(7)
    linear, B = torch.from_numpy(rng.normal(size=(4, 20))), torch.from_numpy(rng.normal(size=(4, 20, 20)))
    zero = torch.zeros(4, dtype=torch.float64)
    given_up, _ = maximise(DenseQuadratic(linear, B), Pursuit(12, zero))
    asked, _ = maximise(DenseQuadratic(linear, B), Pursuit(12, zero, hopeless=True))
    assert bool((asked > given_up).all())
