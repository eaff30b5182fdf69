"""The public constraint builders: convex by CVXPY's rules, and true for softmax."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from softhull.cvxpy import softmax_constraints
from softhull.errors import InvalidInput

BOUNDS = ["const", "lin", "er", "lse", "lse*/lse", "hull", "all"]


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


@pytest.mark.parametrize(("bound", "K"), [*((bound, K) for bound in BOUNDS for K in (2, 3, 6)), ("lse2/lse", 2)])
def test_softmax_satisfies_its_constraints(bound, K):
    generator = np.random.default_rng(K)
    lower = generator.normal(size=K) * 2
    upper = lower + generator.uniform(0.05, 3, K)
    x, p = cp.Variable(K), cp.Variable(K)
    constraints = softmax_constraints(x, p, lower, upper, bound=bound)
    assert all(constraint.is_dcp() for constraint in constraints)
    auxiliary = [v for v in cp.Problem(cp.Minimize(0), constraints).variables() if v.id not in (x.id, p.id)]
    for _ in range(3):
        point = generator.uniform(lower, upper)
        fixed = [x == point, p == softmax(point)]
        problem = cp.Problem(cp.Minimize(0), [*constraints, *fixed])
        problem.solve(solver="CLARABEL")
        assert problem.status in ("optimal", "optimal_inaccurate"), (bound, K, len(auxiliary))


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_constraints_bound_every_output_from_both_sides(bound):
    lower, upper = np.array([-1.0, 0.0, -0.5]), np.array([0.5, 1.0, 1.0])
    x, p = cp.Variable(3), cp.Variable(3)
    constraints = [*softmax_constraints(x, p, lower, upper, bound=bound), x >= lower, x <= upper]
    middle = softmax((lower + upper) / 2)
    at = [x == (lower + upper) / 2]
    for k in range(3):
        low = cp.Problem(cp.Minimize(p[k]), constraints + at).solve(solver="CLARABEL")
        high = cp.Problem(cp.Maximize(p[k]), constraints + at).solve(solver="CLARABEL")
        assert low <= middle[k] + 1e-6
        assert high >= middle[k] - 1e-6
        assert 0 < low <= high < 1


def test_one_sided_constraints_leave_the_other_side_free():
    x, p = cp.Variable(2), cp.Variable(2)
    constraints = softmax_constraints(x, p, [0.0, 0.0], [0.1, 0.1], bound="er/lse", below=[0], above=[])
    assert cp.Problem(cp.Maximize(p[0]), [*constraints, p >= 0]).solve(solver="CLARABEL") == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lower": [0.0] * 3, "upper": [1.0] * 3}, "vectors of one length"),
        ({"lower": [0.0, 2.0], "upper": [1.0, 1.0]}, "lower > upper"),
        ({"lower": [0.0, 0.0], "upper": [1.0, 1.0], "bound": "nonsense"}, "nonsense"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        softmax_constraints(cp.Variable(2), cp.Variable(2), **arguments)
