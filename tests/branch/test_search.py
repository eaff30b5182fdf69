"""Bounds of cells hold in their cells, cells cover the region, and a search that ends by itself is exact."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from softhull.branch import cut_leaves
from softhull.branch.cut_leaves import CutLeaves, _Batch
from softhull.branch.cuts import Cut
from softhull.branch.loop import Search, watching
from softhull.graph.operator import Lines
from softhull.propagate.methods import Branch

from .cells import KINDS, Problem, check_tree, random_inner, random_margin, random_product, random_score

NEAR = 1e-3
NETWORKS = [
    *(pytest.param(random_score, (seed, kind), id=f"{kind}-{seed}") for seed in range(2) for kind in ("relu", "tanh")),
    *(
        pytest.param(random_margin, (seed, kind), id=f"walk-{kind}-{seed}")
        for seed in range(2)
        for kind in (True, False)
    ),
]


def search(problem: Problem, target: float, **settings: Any) -> Search:
    found = Search(problem.bounds, Branch(seconds=math.inf, **settings), [target])
    with torch.no_grad():
        found.run()
    return found


@pytest.mark.parametrize(("make", "which"), NETWORKS)
def test_search_ends_near_the_minimum_and_never_above_it(make: Any, which: tuple[Any, ...]) -> None:
    problem = make(*which)
    x = problem.points()
    least = float(problem.objective(x).min())
    found = search(problem, least - NEAR, nodes=3000)
    assert found.left(0) == 0
    assert least - NEAR < found.bound(0) <= least
    check_tree(problem, found.roots[0], x)


def test_a_search_tells_how_its_bound_rises() -> None:
    problem, told = random_margin(0, False), []
    least = float(problem.objective(problem.points()).min())
    with watching(lambda left, bound: told.append((left, bound))):
        found = search(problem, least - NEAR, nodes=3000)
    grown = found.grown(0)
    bounds = [moment.bound for moment in grown.history]
    assert told == [(moment.left, moment.bound) for moment in grown.history]
    assert bounds == sorted(bounds)
    assert (grown.history[-1].left, bounds[-1]) == (0, found.bound(0))
    assert [bound for bound, cut in grown.trees[0] if cut is None] == [leaf.bound for leaf in found.roots[0].leaves()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seed", "sharpen"), [(0, True), (1, False)])
def test_cuts_inside_networks_hold_in_their_cells(seed: int, kind: str, sharpen: bool) -> None:
    problem = random_inner(seed, kind, sharpen)
    x = problem.points()
    found = search(problem, float(problem.objective(x).min()), nodes=40, cells=8)
    check_tree(problem, found.roots[0], x)
    assert found.bound(0) >= found.roots[0].bound


@pytest.mark.parametrize("kind", KINDS)
def test_sharpened_intervals_hold_and_are_never_wider(kind: str) -> None:
    gained = 0
    for seed in range(3):
        problem = random_inner(seed, kind)
        assert isinstance(problem.bounds, CutLeaves)
        (root,) = problem.bounds.parts.values()
        lower, upper, x = root.warm.lower.clone(), root.warm.upper.clone(), problem.points()
        with torch.no_grad():
            root.sharpen()
            values = root.graph.values(x)
        assert bool((root.warm.lower >= lower).all() & (root.warm.upper <= upper).all())
        gained += int((root.warm.lower > lower).sum() + (root.warm.upper < upper).sum())
        for part in root.relaxed.values():
            inputs = values[part.before].flatten(1)[:, part.entries]
            assert bool((inputs >= root.warm.lower[part.every]).all() & (inputs <= root.warm.upper[part.every]).all())
    assert gained or kind == "attention"  # whose only activations come first


def test_a_line_that_cuts_into_its_curve_is_noticed_in_sharpened_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = cut_leaves.charged

    def steeper(*given: Any) -> Lines:
        lines = honest(*given)
        return replace(lines, lower_offset=lines.lower_offset + 0.3)

    monkeypatch.setattr(cut_leaves, "charged", steeper)
    with pytest.raises(AssertionError):
        test_sharpened_intervals_hold_and_are_never_wider("relu")


@pytest.mark.parametrize("seed", [0, 3])
def test_cuts_of_logits_hold_in_their_cells(seed: int) -> None:
    """The target is what sampling finds, so that the search goes on until it has no nodes left."""
    problem = random_product(seed)
    x = problem.points()
    found = search(problem, float(problem.objective(x).min()), nodes=24, cells=8, tries=2)
    check_tree(problem, found.roots[0], x)
    assert found.bound(0) >= found.roots[0].bound
    if seed == 0:  # in others an activation gains more
        assert any(leaf.side is not None and leaf.side.minus is not None for leaf in found.roots[0].leaves())


@pytest.mark.parametrize("sharpen", [False, True])
@pytest.mark.parametrize("seed", [5, 8, 10])
def test_cuts_of_activations_close_the_gap_of_a_small_network(seed: int, sharpen: bool) -> None:
    """With every kink on one side the network is affine in its cells, and multipliers are all that is missing."""
    problem = random_inner(seed, sharpen=sharpen)
    least = float(problem.objective(problem.points()).min())
    found = search(problem, least - NEAR, nodes=300, cells=8)
    assert found.roots[0].bound < least - 3 * NEAR
    assert found.left(0) == 0
    assert least - NEAR < found.bound(0) <= least


def test_multipliers_close_what_no_cut_can() -> None:
    """Two cells of this network have all kinks on one side, and multipliers far from where they start."""
    problem = random_inner(500483, "leaky", sharpen=True)
    least = problem.least(NEAR / 10).high
    found = search(problem.aimed(least - NEAR), 0.0, nodes=300)
    assert found.left(0) == 0


@pytest.mark.parametrize("sharpen", [False, True])
def test_a_multiplier_of_a_cut_inside_of_the_wrong_sign_is_noticed(
    sharpen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_inner(7, sharpen=sharpen)
    x, honest = problem.points(), _Batch._place
    assert float(problem.objective(x).min()) < 0  # so that multipliers are moved

    def turned(batch: _Batch) -> None:
        honest(batch)
        batch.sign.neg_()

    monkeypatch.setattr(_Batch, "_place", turned)
    found = search(problem, math.inf, nodes=20)
    with pytest.raises(AssertionError, match="bound of cell"):
        check_tree(problem, found.roots[0], x)


@pytest.mark.parametrize("kind", ["relu", "tanh", "attention"])
def test_the_account_of_losses_adds_up(kind: str) -> None:
    """Every affine step cancels: a bound loses what its relaxed entries lose where it is attained."""
    problem = random_inner(8, kind)
    assert isinstance(problem.bounds, CutLeaves)
    with torch.no_grad():
        problem.bounds.roots()
    share = problem.bounds.shares[0]
    if kind == "attention":
        assert 0 <= share < 1
    else:
        assert share == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("make", "which"), NETWORKS[::3])
def test_what_cannot_be_proved_is_not(make: Any, which: tuple[Any, ...]) -> None:
    problem = make(*which)
    x = problem.points()
    found = search(problem, float(problem.objective(x).min()) + NEAR, nodes=60, cells=8)
    assert found.bound(0) <= float(problem.objective(x).min())
    check_tree(problem, found.roots[0], x)


@pytest.mark.parametrize("make", [random_score, random_margin])
def test_children_that_do_not_cover_their_parent_are_noticed(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make(1)
    x = problem.points()
    honest = Cut.sides.fget  # type: ignore[attr-defined]

    def gap(cut: Cut) -> tuple[Cut, Cut]:
        left, right = honest(cut)
        return left, Cut(right.node, right.plus, right.minus, right.threshold + 0.002, False)

    monkeypatch.setattr(Cut, "sides", property(gap))
    found = search(problem, math.inf, nodes=8)
    with pytest.raises(AssertionError, match="no cell"):
        check_tree(problem, found.roots[0], x)


def test_a_multiplier_of_the_wrong_sign_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from softhull.solve.lagrangian import Lagrangian

    problem = random_score(2)
    x = problem.points()
    honest = Lagrangian.project
    monkeypatch.setattr(
        Lagrangian,
        "project",
        lambda self, flat: torch.cat(
            (honest(self, flat)[:, : flat.shape[1] - self.cuts.count], self.of_cuts(flat) - 0.3), 1
        ),
    )
    found = search(problem, math.inf, nodes=12)
    with pytest.raises(AssertionError, match="bound of cell"):
        check_tree(problem, found.roots[0], x)


def test_searches_repeat_themselves_and_forget_within_their_memory() -> None:
    first, again = (search(random_score(3), math.inf, nodes=40) for _ in range(2))
    assert [leaf.path for leaf in first.roots[0].leaves()] == [leaf.path for leaf in again.roots[0].leaves()]
    assert first.bound(0) == again.bound(0)
    problem = random_score(3)
    forgetful = search(problem, math.inf, nodes=40, memory=0)
    check_tree(problem, forgetful.roots[0], problem.points())
    assert forgetful.bound(0) >= forgetful.roots[0].bound


def test_an_interrupt_leaves_the_best_so_far() -> None:
    problem = random_score(2)
    honest, calls = problem.bounds.solve, []

    def interrupted(cells: Any) -> Any:
        calls.append(len(cells))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return honest(cells)

    problem.bounds.solve = interrupted  # type: ignore[method-assign]
    found = search(problem, math.inf, nodes=100)
    assert found.interrupted
    assert found.left(0) >= 2
    check_tree(problem, found.roots[0], problem.points())


def test_what_an_instance_has_had_before_counts_towards_what_it_may_take() -> None:
    problem = random_margin(0, False)
    target = [float(problem.objective(problem.points()).min()) - NEAR]
    late, early = (Search(problem.bounds, Branch(seconds=600.0), target, before={0: spent}) for spent in (600.0, 0.0))
    with torch.no_grad():
        late.run()
        early.run()
    assert len(late.roots[0].leaves()) == 1
    assert late.described(0).endswith("raise seconds or nodes")
    assert early.left(0) == 0
    assert 0 < late.spent()[0] < 600


def test_a_time_limit_is_what_a_search_may_take_unless_seconds_are_given() -> None:
    assert (Branch().allowed, Branch().within(3.0).allowed, Branch().within(None).allowed) == (10.0, 3.0, 10.0)
    assert Branch(seconds=1.0).within(3.0).allowed == 1.0
