"""Every choice of multipliers is a bound; the gradient is that of the bound."""

from __future__ import annotations

import math

import pytest
import torch

from softhull.regions import Perturbation
from softhull.solve.dual import Dual
from softhull.solve.lagrangian import Lagrangian
from softhull.solve.optimum import trivial_bound
from softhull.solve.relaxation import relax
from softhull.solve.softmax_boxes import parse_bounds

from .ensembles import ACTIVATIONS, random_problem, sampled_probabilities

BOUNDS = ["lin/lin", "er/lse", "lse*/lse", "er/er", "hull/hull", "all"]


def neuron_values(stacks, x):
    return [stack.values(x.flatten(1)) for stack in stacks]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("skip", [False, True])
def test_neuron_bounds_hold_at_sampled_inputs(activation, skip):
    stacks, relaxation, _, _ = random_problem(5, activation=activation, skip=skip, hidden=(5, 5), eps=0.3)
    generator = torch.Generator().manual_seed(2)
    for _ in range(100):
        values = neuron_values(stacks, relaxation.region.sample(generator))
        for part, found in zip(relaxation.stacks, values):
            for (lower, upper), z in zip(part.bounds.intervals, found):
                assert (lower <= z).all()
                assert (z <= upper).all()
            low, high = part.bounds.differences
            differences = found[-1][..., :, None] - found[-1][..., None, :]
            assert (low <= differences).all()
            assert (differences <= high).all()


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_random_multipliers_and_tangent_points_never_undercut_the_network(bound, activation):
    stacks, relaxation, _, _ = random_problem(7, bound, activation=activation, eps=0.3, scale=2.0)
    generator = torch.Generator().manual_seed(3)
    p = sampled_probabilities(stacks, relaxation)
    for _ in range(5):
        coefficients = torch.randn(3, 3, generator=generator, dtype=torch.float64)
        whole = Lagrangian(relaxation, coefficients)
        low, high = zip(*(part.bounds.logits for part in relaxation.stacks))
        whole.touch([a + torch.rand(a.shape, generator=generator) * (b - a) for a, b in zip(low, high)])
        flat = whole.start()
        flat = whole.project(flat + torch.randn(flat.shape, generator=generator, dtype=torch.float64))
        attained = (p * coefficients).sum(-1).amax(0)
        assert (whole.value(flat) >= attained - 1e-12).all()
        assert (trivial_bound(relaxation, coefficients) >= attained - 1e-12).all()


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_the_gradient_is_that_of_the_value(activation):
    _, relaxation, _, _ = random_problem(11, "all", activation=activation, skip=True, hidden=(5, 5), eps=0.2)
    generator = torch.Generator().manual_seed(5)
    coefficients = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    whole = Lagrangian(relaxation, coefficients)
    whole.touch(whole.midpoints())
    flat = whole.start()
    flat = whole.project(flat + 0.2 * torch.randn(flat.shape, generator=generator, dtype=torch.float64))
    _, gradient, _, _ = whole.value_and_gradient(flat)
    direction = torch.randn(flat.shape, generator=generator, dtype=torch.float64) * (flat > 0) * (flat < 1)
    h = 1e-7
    difference = (whole.value(flat + h * direction) - whole.value(flat - h * direction)) / (2 * h)
    torch.testing.assert_close((gradient * direction).sum(1) / relaxation.networks, difference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_other_norms_are_bounded_too(norm):
    stacks, _, x, _ = random_problem(13)
    region = Perturbation(0.3, norm=norm, clip=(0.0, 1.0)).around(x)
    relaxation = relax(stacks, region, parse_bounds("er/lse"))
    coefficients = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64).expand(3, 3)
    solution = Dual(steps=60).solve(relaxation, coefficients)
    attained = (sampled_probabilities(stacks, relaxation) * coefficients).sum(-1).amax(0)
    assert (solution.bound >= attained - 1e-12).all()
    assert (solution.bound < trivial_bound(relaxation, coefficients) + 1e-12).all()


def test_more_steps_never_loosen_the_bound():
    _, relaxation, _, _ = random_problem(17)
    coefficients = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64).expand(3, 3)
    few, many = (Dual(steps=40, stages=stages, tolerance=0.0).solve(relaxation, coefficients) for stages in (1, 3))
    assert (many.bound <= few.bound + 1e-15).all()


def test_the_deadline_ends_with_a_bound():
    stacks, relaxation, _, _ = random_problem(19)
    coefficients = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64).expand(3, 3)
    solution = Dual().solve(relaxation, coefficients, deadline=0.0)
    attained = (sampled_probabilities(stacks, relaxation) * coefficients).sum(-1).amax(0)
    assert (solution.bound >= attained).all()
