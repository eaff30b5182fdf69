"""The three methods solve one relaxation; what they certify is safe."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from softhull.solve.conic import Conic
from softhull.solve.cutting import CuttingPlanes
from softhull.solve.dual import Dual
from softhull.solve.safe import Rows, safe_maximum

from .ensembles import random_problem, sampled_probabilities


def nll(y, classes):
    return -torch.nn.functional.one_hot(y, classes).to(torch.float64)


@pytest.mark.parametrize("bound", ["lin/lin", "er/lse", "lse*/lse"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_lp_conic_and_dual_agree(bound, activation):
    stacks, relaxation, _, y = random_problem(23, bound, activation=activation, eps=0.15, instances=2)
    coefficients = nll(y, 3)
    lp = CuttingPlanes().solve(relaxation, coefficients)
    conic = Conic().solve(relaxation, coefficients)
    dual = Dual(steps=300, stages=2, tolerance=0.0).solve(relaxation, coefficients)
    attained = (sampled_probabilities(stacks, relaxation) * coefficients).sum(-1).amax(0)
    assert not lp.notes
    for solution in (lp, conic, dual):
        assert (solution.bound >= attained - 1e-12).all()
    torch.testing.assert_close(conic.bound, lp.bound, rtol=0, atol=2e-5)
    torch.testing.assert_close(dual.bound, lp.bound, rtol=0, atol=2e-4)


def test_networks_of_different_architecture_share_the_input():
    from softhull.regions import Perturbation
    from softhull.solve.layers import stack_networks
    from softhull.solve.relaxation import relax
    from softhull.solve.softmax_boxes import parse_bounds

    from .ensembles import random_graph

    generator = torch.Generator().manual_seed(4)
    graphs = [random_graph(generator, hidden=(6,)), random_graph(generator, hidden=(4, 4), activation="tanh")]
    stacks = stack_networks(graphs)
    x = torch.rand(2, 1, 4, generator=generator, dtype=torch.float64)
    relaxation = relax(stacks, Perturbation(0.1).around(x), parse_bounds("er/lse"))
    coefficients = nll(torch.tensor([0, 2]), 3)
    lp = CuttingPlanes().solve(relaxation, coefficients)
    dual = Dual(steps=300, stages=2).solve(relaxation, coefficients)
    torch.testing.assert_close(dual.bound, lp.bound, rtol=0, atol=2e-4)


@pytest.mark.parametrize("method", [CuttingPlanes(), Conic()])
def test_no_time_left_means_the_best_so_far(method):
    stacks, relaxation, _, y = random_problem(29)
    solution = method.solve(relaxation, nll(y, 3), deadline=0.0)
    attained = (sampled_probabilities(stacks, relaxation) * nll(y, 3)).sum(-1).amax(0)
    assert (solution.bound >= attained).all()
    assert len(solution.notes) == relaxation.size


def test_a_solver_that_gives_up_is_followed_by_others():
    _, relaxation, _, y = random_problem(23, "er/lse", eps=0.15, instances=2)
    coefficients = nll(y, 3)
    patient = Conic().solve(relaxation, coefficients)
    hasty = Conic(options={"max_iter": 2}).solve(relaxation, coefficients)
    assert not hasty.notes
    torch.testing.assert_close(hasty.bound, patient.bound, rtol=0, atol=2e-5)


def test_a_program_nobody_solves_keeps_its_bound_and_says_so(monkeypatch):
    stacks, relaxation, _, y = random_problem(23, "er/lse", eps=0.15, instances=2)
    monkeypatch.setattr("softhull.solve.conic.SECOND_TRIES", {})
    solution = Conic(options={"max_iter": 2}).solve(relaxation, nll(y, 3))
    attained = (sampled_probabilities(stacks, relaxation) * nll(y, 3)).sum(-1).amax(0)
    assert (solution.bound >= attained).all()
    assert all("CLARABEL" in solution.notes[i] for i in range(2))


def random_program(seed):
    generator = np.random.default_rng(seed)
    n, m = 6, 5
    matrix = generator.normal(size=(m, n))
    inside = generator.uniform(-1, 1, n)
    activity = matrix @ inside
    lower = np.where(generator.random(m) < 0.5, activity - generator.random(m), -np.inf)
    upper = np.where(np.isinf(lower) | (generator.random(m) < 0.5), activity + generator.random(m), np.inf)
    rows = Rows(np.arange(0, n * m + 1, n), np.tile(np.arange(n), m), matrix.ravel(), lower, upper, np.zeros(m))
    return generator.normal(size=n), rows, matrix, generator


@pytest.mark.parametrize("seed", range(20))
def test_any_dual_gives_a_safe_value(seed):
    import highspy

    cost, rows, matrix, generator = random_program(seed)
    program = highspy.Highs()
    program.setOptionValue("output_flag", False)
    box = np.ones(len(cost))
    x = [program.addVariable(lb=-1, ub=1, obj=-c) for c in cost]
    for row, low, high in zip(matrix, rows.lower, rows.upper):
        program.addRow(low, high, len(x), np.arange(len(x)), row)
    program.run()
    optimum = -program.getInfo().objective_function_value
    dual = -np.asarray(program.getSolution().row_dual)
    safe = safe_maximum(cost, rows, -box, box, dual)
    assert optimum - 1e-9 <= safe <= optimum + 1e-7
    for size in (1e-6, 1e-2, 10.0):
        wrong = dual + size * generator.normal(size=len(dual))
        assert safe_maximum(cost, rows, -box, box, wrong) >= optimum - 1e-9
    assert safe_maximum(cost, rows, -box, box, np.full(len(dual), np.nan)) >= optimum
