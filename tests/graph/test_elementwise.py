"""Lines and intervals of the elementwise operators hold in exact arithmetic, and are as tight as they can be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb, ctx

from softhull.errors import DomainError
from softhull.graph.curves import Curve
from softhull.graph.operator import Lines
from softhull.graph.ops.exp import Exp
from softhull.graph.ops.log import Log
from softhull.graph.ops.reciprocal import Reciprocal
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.sqrt import Sqrt

from .elementwise_cases import CASES, Case, intervals

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
both = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@pytest.fixture(autouse=True)
def _precision():
    before, ctx.prec = ctx.prec, 200
    yield
    ctx.prec = before


def _free_choices(case: Case, lower: torch.Tensor, upper: torch.Tensor, rng: np.random.Generator):
    shape = (2, *lower.shape)
    yield None
    yield torch.zeros(shape, dtype=lower.dtype)
    yield torch.ones(shape, dtype=lower.dtype)
    yield torch.from_numpy(rng.random(shape)).to(lower.dtype)


@both
@by_name
def test_lines_hold_in_exact_arithmetic(case, dtype):
    rng = np.random.default_rng(7)
    lower, upper = intervals(case, rng, 60, dtype)
    for free in _free_choices(case, lower, upper, rng):
        lines = case.operator.lines(lower, upper, free)
        for i in range(lower.numel()):
            _assert_between(case, lines, i, float(lower[i]), float(upper[i]), rng)


def _assert_between(case: Case, lines: Lines, i: int, low: float, high: float, rng: np.random.Generator) -> None:
    points = {low, high, *(low + (high - low) * t for t in (*np.linspace(0, 1, 9), *rng.random(8)))}
    below = arb(float(lines.lower_slope[i])), arb(float(lines.lower_offset[i]))
    above = arb(float(lines.upper_slope[i])), arb(float(lines.upper_offset[i]))
    for point in points:
        x = arb(min(max(point, low), high))
        y = case.exact(x)
        assert not below[0] * x + below[1] > y, f"above f at {float(x)} of [{low}, {high}]"
        assert not above[0] * x + above[1] < y, f"below f at {float(x)} of [{low}, {high}]"


@both
@by_name
def test_intervals_hold_in_exact_arithmetic(case, dtype):
    rng = np.random.default_rng(11)
    lower, upper = intervals(case, rng, 200, dtype)
    least, most = case.operator.interval((lower, upper))
    for share in (0.0, 1.0, *rng.random(20)):
        x = (lower + share * (upper - lower)).clamp(lower, upper)
        for i in range(lower.numel()):
            y = case.exact(arb(float(x[i])))
            assert not arb(float(least[i])) > y
            assert not arb(float(most[i])) < y


@by_name
def test_start_reproduces_the_default_lines(case):
    lower, upper = intervals(case, np.random.default_rng(3), 200, torch.float64)
    default = case.operator.lines(lower, upper)
    started = case.operator.lines(lower, upper, case.operator.start(lower, upper))
    middle = lower + (upper - lower) / 2
    for slope, offset in (("lower_slope", "lower_offset"), ("upper_slope", "upper_offset")):
        ours = getattr(default, slope) * middle + getattr(default, offset)
        theirs = getattr(started, slope) * middle + getattr(started, offset)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", [case for case in CASES if case.widest], ids=lambda case: case.name)
def test_default_lines_touch_the_envelope_over_the_midpoint(case):
    """The best line has the largest value at the midpoint: no chord of the graph around it may pass between."""
    rng = np.random.default_rng(5)
    scale = 3.0
    centre = torch.from_numpy(rng.normal(size=16) * scale)
    lower, upper = (
        centre - torch.from_numpy(rng.random(16)) * case.widest / 2,
        centre + torch.from_numpy(rng.random(16)) * case.widest / 2,
    )
    if case.domain != "all":
        lower, upper = lower.abs() + 0.1, lower.abs() + 0.1 + (upper - lower)
    lines = case.operator.lines(lower, upper)
    middle = (lower + upper) / 2
    grid = lower + (upper - lower) * torch.linspace(0, 1, 801, dtype=torch.float64)[:, None]
    y = case.operator.value(grid)
    # The envelope at the midpoint: the best chord between one point left and one right of it.
    left, right = slice(0, 401), slice(400, 801)
    for side, slope, offset in (
        (1, lines.lower_slope, lines.lower_offset),
        (-1, lines.upper_slope, lines.upper_offset),
    ):
        reached = side * (slope * middle + offset)
        for i in range(middle.numel()):
            a, b = grid[left, i], grid[right, i]
            fa, fb = side * y[left, i], side * y[right, i]
            weight = (b[None] - middle[i]) / (b[None] - a[:, None]).clamp(min=1e-300)
            chords = torch.where(a[:, None] < b[None], weight * fa[:, None] + (1 - weight) * fb[None], fa[-1])
            assert reached[i] <= chords.min() + 1e-9
            missed = 3e-5 if isinstance(case.operator, Curve) else 1e-2  # the grid misses the kinks
            assert reached[i] >= chords.min() - missed * (1 + chords.min().abs())


@by_name
def test_lines_are_differentiable_in_the_free_choice(case):
    lower, upper = intervals(case, np.random.default_rng(13), 100, torch.float64)
    free = torch.full((2, *lower.shape), 0.3, dtype=torch.float64, requires_grad=True)
    lines = case.operator.lines(lower, upper, free)
    total = lines.lower_slope.sum() + lines.lower_offset.sum() + lines.upper_slope.sum() + lines.upper_offset.sum()
    if not total.requires_grad:  # there is nothing to choose
        other = case.operator.lines(lower, upper, torch.full_like(free, 0.7).detach())
        assert all(torch.equal(a, b) for a, b in zip(vars(lines).values(), vars(other).values()))
        return
    total.backward()
    assert free.grad is not None
    assert bool(free.grad.isfinite().all())


def test_an_exponential_that_overflows_keeps_a_finite_line_below():
    lower, upper = torch.tensor([0.0]), torch.tensor([1000.0])
    free = torch.full((2, 1), 0.5, requires_grad=True)
    lines = Exp().lines(lower, upper, free)
    assert float(lines.upper_offset.detach()) == float("inf")
    assert bool(lines.lower_slope.isfinite().all())
    (lines.lower_slope + lines.lower_offset).sum().backward()
    assert free.grad is not None
    assert not bool(free.grad.isnan().any())


def test_relu_is_exact_where_the_sign_is_known():
    lines = Relu().lines(torch.tensor([-3.0, 0.5, 0.0, -2.0]), torch.tensor([-1.0, 2.0, 1.0, 0.0]))
    expected = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert bool((lines.lower_slope == expected).all())
    assert bool((lines.upper_slope == expected).all())
    assert not bool(lines.lower_offset.any())
    assert not bool(lines.upper_offset.any())


@pytest.mark.parametrize("operator", [Log("here"), Sqrt("here"), Reciprocal("here")], ids=lambda o: o.name)
def test_leaving_the_domain_names_the_node(operator):
    bounds = torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0, 1.0]])
    with pytest.raises(DomainError, match=r"node 'here'.*\[-1, 1\] at index \(0, 1\)"):
        operator.interval(bounds)
    with pytest.raises(DomainError, match="'here'"):
        operator.lines(*bounds)
