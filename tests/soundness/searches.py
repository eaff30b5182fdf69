"""One search by branch and bound on a random small network, against its least value by refinement."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softhull.branch.dual_leaves import DualLeaves
from softhull.branch.loop import Search
from softhull.branch.walk_leaves import WalkLeaves
from softhull.propagate.methods import Branch

from ..branch.cells import Problem, check_tree, random_inner, random_margin, random_product, random_score

NEAR = 1e-3
SECONDS, NODES = 5.0, 20_000
# Cuts inside are for many inputs. With few, and curves, they make so many cells that most time would go there.
INSIDE = 2.0
# What they leave of attention cannot be cut further: such searches may end with cells left.
OPEN = ("cuts inside, attention", "cuts of logits")


@dataclass
class Searched:
    """What a search came to: ``left`` tells of the cells that are open, ``wrong`` of what must not be."""

    kind: str
    stopped: bool
    left: str = ""
    wrong: str = ""


def problem_of(seed: int) -> tuple[str, Problem]:
    """A random small problem with 2 to 6 inputs, and what kind it is."""
    turn, kind = seed // 8, seed % 8
    curve = ("relu", "leaky", "tanh")[turn % 3]
    if kind in (0, 4):
        return "boxes, attention", random_margin(seed)
    if kind in (1, 5):
        return "boxes, feedforward", random_margin(seed, False, curve)
    if kind in (2, 6):
        return "scores", random_score(seed, ("relu", "tanh")[turn % 2])
    if kind == 3 or turn % 2:
        return "cuts inside, feedforward", random_inner(seed, curve, kind == 3)
    if turn % 4:
        return "cuts inside, attention", random_inner(seed, "attention", turn % 8 == 2)
    return "cuts of logits", random_product(seed)


def one_search(seed: int) -> Searched | None:
    """A search that aims 1e-3 below the least value; None where refinement does not find that.

    Wrong is a cell whose bound is above a value in it, a point in no cell, and an end by itself with cells left.
    """
    kind, problem = problem_of(seed)
    least = problem.least(NEAR / 10)
    if least.high - least.low > NEAR / 10:
        return None
    x = torch.cat((problem.points(seed), least.x[None]))
    target = float(problem.objective(x).min()) - NEAR
    seconds = SECONDS
    if not isinstance(problem.bounds, DualLeaves | WalkLeaves):
        problem, target, seconds = problem.aimed(target), 0.0, INSIDE
    search = Search(problem.bounds, Branch(seconds=seconds, nodes=NODES), [target])
    with torch.no_grad():
        search.run()
    left, stopped = search.left(0), bool(search.instances[0].stopped)
    found = Searched(kind, stopped)
    if left:
        short = target - search.bound(0)
        found.left = f"{search.described(0)}, {short:.2g} short, {problem.region.lower.numel()} inputs"
    try:
        check_tree(problem, search.roots[0], x)
        assert not left or stopped or kind in OPEN, f"ended by itself with {found.left}"
    except AssertionError as wrong:
        found.wrong = str(wrong)
    return found
