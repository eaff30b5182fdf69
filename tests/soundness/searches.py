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
SECONDS, SHORT = 5.0, 2.0
NODES = 20_000
# What cuts inside leave of attention cannot be cut further: such searches may end with cells left.
OPEN = {"cuts inside, attention", "cuts of logits"}
WORDS = ("least values known", "proved to 1e-3", "stopped by a limit", "least values not known")


@dataclass
class Searched:
    """What a search came to: ``words`` are what it counts as, ``left`` what is open, ``wrong`` what must not be."""

    kind: str
    words: list[str]
    left: str
    wrong: str


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
    if kind == 3:
        return "cuts inside, feedforward", random_inner(seed, curve, turn % 2 == 1)
    if turn % 2:
        return "cuts inside, attention", random_inner(seed, "attention", turn % 4 == 1)
    return "cuts of logits", random_product(seed)


def one_search(seed: int) -> Searched:
    """A search that aims 1e-3 below the least value, or for a while below the least that is found by sampling.

    Wrong is a cell whose bound is above a value in it, a point in no cell, and an end by itself with cells left.
    """
    kind, problem = problem_of(seed)
    least = problem.least(NEAR / 10)
    known = least.high - least.low <= NEAR / 10
    x = torch.cat((problem.points(seed), least.x[None]))
    target = float(problem.objective(x).min()) - NEAR
    if not isinstance(problem.bounds, DualLeaves | WalkLeaves):
        problem, target = problem.aimed(target), 0.0
    # Where refinement does not find the least value in its time, the network is wild and the search would not end.
    seconds = SECONDS if known and kind not in OPEN else SHORT
    search = Search(problem.bounds, Branch(seconds=seconds, nodes=NODES), [target])
    with torch.no_grad():
        search.run()
    left, stopped = search.left(0), bool(search.instances[0].stopped)
    words = [word for word, holds in zip(WORDS, (known, known and not left, known and stopped, not known)) if holds]
    line = (
        f"{search.described(0)}, {search.bound(0) - target:.2g} from the target, {problem.region.lower.numel()} inputs"
    )
    try:
        check_tree(problem, search.roots[0], x)
        assert not left or stopped or kind in OPEN, f"ended by itself with {line}"
    except AssertionError as wrong:
        return Searched(kind, words, line, str(wrong))
    return Searched(kind, words, line if known and left else "", "")
