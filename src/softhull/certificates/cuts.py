"""Proofs with cuts inside a network: the search of a run once more, with the checker as its judge.

A cell of the search counts as proved where the checker proves it with the lines and multipliers that the search found.
What the checker leaves open is cut on, so that the tree may grow larger than that of the run, and ends where all of it
is a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..branch.cut_leaves import CutLeaves
from ..branch.cuts import Cut, Path
from ..branch.loop import Bounds, Cell, Search, Solved
from ..branch.product_leaves import ProductLeaves
from ..checker.balls import Balls
from ..checker.network import Curve, Kink, Softmax, View
from ..checker.positions import Places
from ..checker.replay import Cut as Side
from ..checker.replay import Rule
from ..checker.tree import ALONE, MOST_CELLS
from ..checker.tree import Cell as Part
from ..errors import SofthullError
from ..propagate.crown import LinearBounds
from ..propagate.methods import Branch, Linear
from ..regions import Region
from .gradient import Followed
from .prover import Proof
from .searched import Searched
from .second_order import PASSES, SEARCHED, SecondOrder
from .tree import Tree, check_size

# CPU seconds for one rival.
SECONDS = 120.0


def prove_cuts(
    proof: Proof, followed: Followed, region: Region, view: View, label: int, rivals: Sequence[int], logits: bool
) -> None:
    """Claim the lead over one rival, or over zero where there is none, by cells; SofthullError where they fail.

    ``logits``: cells by second order, whose cuts are of differences of logits, too.
    """
    graph = followed.graph.to(torch.float64)
    row = torch.zeros(1, view.size, dtype=torch.float64)
    row[0, label if rivals else 0] = 1.0 if rivals or label == 1 else -1.0
    row[0, list(rivals)] = -1.0
    rows, offset, whole = row.reshape(1, *graph.output_shape), row.new_zeros(1), torch.zeros(1, dtype=torch.long)
    prove: Callable[[Proof, Any], float]
    if logits:
        bounds = LinearBounds(graph, region, Branch().second_order.linear)
        cells: CutLeaves | ProductLeaves = ProductLeaves(bounds, whole, rows, offset)
        prove = partial(_by_quadratics, followed, view, label, rivals)
    else:
        bounds = LinearBounds(graph, region, Linear(optimize=0, contract=False))
        cells = lines = CutLeaves(bounds, whole, rows, offset)
        prove = partial(_by_lines, followed, lines, view, label, rivals)
    judged = _Judged(proof, followed, cells, prove)
    search = Search(judged, Branch(seconds=SECONDS, nodes=2 * MOST_CELLS), [0.0])
    with torch.no_grad():
        search.run()
    if search.interrupted:
        raise KeyboardInterrupt
    if not search.bound(0) > 0:
        why = "in time" if search.instances[0].stopped else "by cuts"
        raise SofthullError(f"the checker proves {search.bound(0):.3g} {why}, with {search.described(0)}")
    tree, waiting = Tree(proof, view, label, rivals), [search.roots[0]]
    while waiting:
        node = waiting.pop()
        if node.children is None:
            tree.leaf(judged.proved[node.path])
            continue
        below, above = node.children
        assert below.side is not None
        tree.cut(*judged.placed(below.side))
        waiting += [above, below]
    tree.claim()


class _Judged:
    """Cells as a search bounds them, and not above what the checker proves of them."""

    together = 1

    def __init__(self, proof: Proof, followed: Followed, cells: Bounds, prove: Callable[[Proof, Any], float]) -> None:
        self.proof, self.cells, self.prove = proof, cells, prove
        self.proved: dict[Path, Proof] = {}
        # By node and entry of the graph that are cut: where they stand in the networks of the checker.
        self._places: dict[tuple[int, int], tuple[View, int]] = {}
        for index, (twin, order) in followed.twins.items():
            node = proof.networks.nodes[index]
            if isinstance(node, Kink | Curve | Softmax):
                x, before = node.x.flat(), followed.graph.nodes[twin].inputs[0]
                for place, entry in enumerate(order.tolist()):
                    self._places[before, entry] = x, place

    def roots(self) -> list[Solved]:
        """The whole region."""
        return self._judged([Cell(0, ())], self.cells.roots())

    def quick(self, cells: Sequence[Cell]) -> list[float]:
        """Bounds to choose a cut by, which nobody judges."""
        return self.cells.quick(cells)

    def solve(self, cells: Sequence[Cell]) -> list[Solved]:
        """Cells that count as proved where the checker proves them."""
        return self._judged(cells, self.cells.solve(cells))

    def placed(self, cut: Cut) -> tuple[str, int, float, int]:
        """A cut in the language of the checker: tensor, place, value and the place that is taken off."""
        view = self._cut(cut)
        entry, *minus = view.index.flat
        return self.proof.networks.names[view.node], entry, cut.threshold, minus[0] if minus else ALONE

    def _cut(self, cut: Cut) -> View:
        """What is cut, one entry or two."""
        (x, place), *minus = (self._places[cut.node, entry] for entry in (cut.plus, cut.minus) if entry is not None)
        return x.at(Places([place, *(other for _, other in minus)], x.size))

    def _judged(self, cells: Sequence[Cell], found: list[Solved]) -> list[Solved]:
        """What was found of some cells, and no more than the checker proves of those that seem proved."""
        for cell, solved in zip(cells, found):
            if solved.bound > 0:
                sides = [Side(self._cut(cut), cut.threshold, 1 if cut.below else -1) for cut in cell.path]
                part = self.proof.cell(Part(self.proof.known.region, tuple(sides)))
                kept = len(self.proof.arrays)
                margin = self.prove(part, solved.warm)
                if margin > 0:
                    self.proved[cell.path] = part
                    check_size(self.proof, len(self.proved))
                else:
                    self.proof.forget(kept)
                solved.bound = min(solved.bound, margin)
        return found


def _multipliers(part: Proof, on_cuts: Tensor) -> np.ndarray | None:
    """What the search chose for the cuts of a cell."""
    return on_cuts[None].clamp(min=0).numpy() if part.known.cuts else None


def _by_lines(
    followed: Followed, cells: CutLeaves, view: View, label: int, rivals: Sequence[int], part: Proof, warm: Any
) -> float:
    """What the checker proves of a cell with the lines of the search; all else is passed as in the whole region."""
    slopes = cells.slopes(0, warm)

    def choose(index: int, A: Balls) -> Rule | None:
        node = part.networks.nodes[index]
        if index not in followed.twins or not isinstance(node, Kink | Curve):
            return None
        twin, order = followed.twins[index]
        below, above = (side.numpy()[order] for side in slopes[twin])
        if isinstance(node, Kink):
            return {"slope": np.clip((below - node.slope) / ((1 - node.slope) or 1.0), 0.0, 1.0)}
        return {"below": below, "above": above}

    on_cuts = _multipliers(part, warm.on_cuts)
    with part.following(choose):
        if rivals:
            return part.claim_difference(view, label, rivals[0], on_cuts)
        return part.claim_sign(view, label == 1, on_cuts)


def _by_quadratics(followed: Followed, view: View, label: int, rivals: Sequence[int], part: Proof, warm: Any) -> float:
    """What the checker proves of a cell by second order, with fits and multipliers of the search, then with its own."""
    second = SecondOrder.claimed(part, [view], own=True)
    on_cuts, passes = _multipliers(part, warm.on_cuts), PASSES
    if warm.near is not None:
        second.near(warm.near.numpy())
        second.searched, passes = Searched(followed, warm), SEARCHED
    claim = partial(second.lead, view, label, rivals[0]) if rivals else partial(second.sign, view, label == 1)
    return second.first(partial(claim, on_cuts=on_cuts), passes)
