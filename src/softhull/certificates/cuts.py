"""Proofs with cuts inside a network: the search of a run once more, with the checker as its judge.

A cell of the search counts as proved where the checker proves it with the lines and multipliers that the search found.
What the checker leaves open is cut on, so that the tree may grow larger than that of the run, and ends where all of it
is a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..branch.cut_leaves import CutLeaves, Warm
from ..branch.cuts import Cut, Path
from ..branch.loop import Cell, Search, Solved
from ..checker.balls import Balls
from ..checker.network import Curve, Kink, View
from ..checker.positions import Places
from ..checker.replay import Cut as Side
from ..checker.replay import Rule
from ..checker.tree import MOST_CELLS
from ..checker.tree import Cell as Part
from ..errors import SofthullError
from ..propagate.crown import LinearBounds
from ..propagate.methods import Branch, Linear
from ..regions import Region
from .gradient import Followed
from .prover import Proof
from .tree import Tree, check_size

# CPU seconds for one rival.
SECONDS = 120.0


def prove_cuts(proof: Proof, followed: Followed, region: Region, view: View, label: int, rivals: Sequence[int]) -> None:
    """Claim the lead over one rival, or over zero where there is none, by cells; SofthullError where they fail."""
    cells = _Judged(proof, followed, region, view, label, rivals)
    search = Search(cells, Branch(seconds=SECONDS, nodes=2 * MOST_CELLS), [0.0])
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
            tree.leaf(cells.proved[node.path])
            continue
        below, above = node.children
        assert below.side is not None
        tree.cut(*cells.placed(below.side))
        waiting += [above, below]
    tree.claim()


class _Judged:
    """Cells as ``CutLeaves`` bounds them, and not above what the checker proves of them."""

    together = 1

    def __init__(
        self, proof: Proof, followed: Followed, region: Region, view: View, label: int, rivals: Sequence[int]
    ) -> None:
        self.proof, self.followed, self.graph = proof, followed, followed.graph.to(torch.float64)
        self.view, self.label, self.rivals = view, label, rivals
        row = torch.zeros(1, view.size, dtype=torch.float64)
        row[0, label if rivals else 0] = 1.0 if rivals or label == 1 else -1.0
        row[0, list(rivals)] = -1.0
        bounds = LinearBounds(self.graph, region, Linear(optimize=0, contract=False))
        rows, offset = row.reshape(1, *self.graph.output_shape), row.new_zeros(1)
        self.cells = CutLeaves(bounds, torch.zeros(1, dtype=torch.long), rows, offset)
        self.proved: dict[Path, Proof] = {}
        # By node and entry of the graph that are cut: where they stand in the networks of the checker.
        self._places: dict[tuple[int, int], View] = {}
        for index, (twin, order) in followed.twins.items():
            node = proof.networks.nodes[index]
            if isinstance(node, Kink | Curve):
                before = self.graph.nodes[twin].inputs[0]
                for place, entry in enumerate(order.tolist()):
                    self._places[before, entry] = node.x.flat().at(Places([place], node.x.size))

    def roots(self) -> list[Solved]:
        return self._judged([Cell(0, ())], self.cells.roots())

    def quick(self, cells: Sequence[Cell]) -> list[float]:
        return self.cells.quick(cells)

    def solve(self, cells: Sequence[Cell]) -> list[Solved]:
        return self._judged(cells, self.cells.solve(cells))

    def placed(self, cut: Cut) -> tuple[str, int, float]:
        """A cut in the language of the checker: tensor, place and value."""
        view = self._places[cut.node, cut.plus]
        return self.proof.networks.names[view.node], view.index.flat[0], cut.threshold

    def _judged(self, cells: Sequence[Cell], found: list[Solved]) -> list[Solved]:
        for cell, solved in zip(cells, found):
            if solved.bound > 0:
                solved.bound = min(solved.bound, self._prove(cell.path, solved.warm))
        return found

    def _prove(self, path: Path, warm: Warm) -> float:
        """What the checker proves of a cell."""
        sides = [Side(self._places[cut.node, cut.plus], cut.threshold, 1 if cut.below else -1) for cut in path]
        part = self.proof.cell(Part(self.proof.known.region, tuple(sides)))
        on_cuts = warm.on_cuts[None].clamp(min=0).numpy() if path else None
        with part.following(partial(self._choose, self.cells.slopes(0, warm))):
            if self.rivals:
                margin = part.claim_difference(self.view, self.label, self.rivals[0], on_cuts)
            else:
                margin = part.claim_sign(self.view, self.label == 1, on_cuts)
        if margin > 0:
            self.proved[path] = part
            check_size(self.proof, len(self.proved))
        return margin

    def _choose(self, slopes: dict[int, tuple[Tensor, Tensor]], index: int, A: Balls) -> Rule | None:
        """The lines of a cell; everything else is passed as in the whole region."""
        node = self.proof.networks.nodes[index]
        if index not in self.followed.twins or not isinstance(node, Kink | Curve):
            return None
        twin, order = self.followed.twins[index]
        below, above = (side.numpy()[order] for side in slopes[twin])
        if isinstance(node, Kink):
            return {"slope": np.clip((below - node.slope) / ((1 - node.slope) or 1.0), 0.0, 1.0)}
        return {"below": below, "above": above}
