"""Proofs of regions that were cut into cells: one proof for every cell, and the tree that shows that they cover all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..checker.network import View
from ..checker.positions import Places
from ..checker.replay import Region
from ..checker.tree import ALONE, LEAF, MOST_CELLS, Cell
from ..errors import SofthullError
from .prover import Proof

# Bytes of arrays beyond which a tree has no certificate.
LARGEST = 1 << 26

Cuts = Sequence[tuple[int, float]]


class Tree:
    """Cuts and cells under construction, every cut before its two parts, and the lead that all cells prove."""

    def __init__(self, root: Proof, view: View, label: int, rivals: Sequence[int]) -> None:
        self.root, self.view, self.label, self.rivals = root, view, label, rivals
        self.cuts: list[tuple[str | None, int, int, float]] = []
        self.cells: list[list[dict[str, Any]]] = []
        self.lead = np.full(max(1, len(rivals)), np.inf)

    def cut(self, tensor: str | None, entry: int, value: float, minus: int = ALONE) -> None:
        """A cut at an entry of a tensor, or at its difference to another; None is the input."""
        self.cuts.append((tensor, entry, minus, value))

    def leaf(self, cell: Proof) -> None:
        """A cell that is proved; SofthullError where the tree becomes too large."""
        self.cuts.append((None, LEAF, ALONE, 0.0))
        self.cells.append(cell.steps)
        self.lead = np.minimum(self.lead, lead(cell, self.view, self.label, self.rivals))
        check_size(self.root, len(self.cells))

    def claim(self) -> None:
        """What the cells prove together, as one step of the root."""
        names, entries, minus, values = (list(part) for part in zip(*self.cuts))
        arrays = {"entries": np.array(entries, dtype=np.int64), "values": np.array(values)}
        arrays |= {"minus": np.array(minus, dtype=np.int64)} if max(minus) > ALONE else {}
        tree: dict[str, Any] = {name: self.root.keep(array) for name, array in arrays.items()}
        tree |= {"tensors": names} if any(names) else {}
        beyond = np.full(len(self.lead), np.inf)
        places = Places([(self.label, k) for k in self.rivals] or [0], self.view.size)
        positive = self.rivals or self.label == 1
        ends = (self.lead, beyond) if positive else (-beyond, -self.lead)
        self.root.claim(self.view, places, *ends, {"tree": tree | {"cells": self.cells}})


def lead(cell: Proof, view: View, label: int, rivals: Sequence[int]) -> np.ndarray:
    """By how much the label is known to be ahead of its rivals, or of nothing but zero."""
    if rivals:
        return np.array([cell.known.difference(view, label, k) for k in rivals])
    lower, upper = cell.known.box(view)
    return lower.ravel() if label == 1 else -upper.ravel()


def check_size(root: Proof, cells: int, reason: str = "") -> None:
    """Raise where a tree is too large for a certificate."""
    if cells > MOST_CELLS or sum(array.nbytes for array in root.arrays.values()) > LARGEST:
        why = f"; {reason}" if reason else ""
        raise SofthullError(f"no certificate of more than {MOST_CELLS} cells or {LARGEST >> 20} MB{why}")


def prove_boxes(
    root: Proof, cuts: Cuts, view: View, label: int, rivals: Sequence[int], prove: Callable[[Proof], str]
) -> None:
    """Claim a lead by the tree of ``cuts`` of inputs (every node before its children, LEAF for a cell).

    ``prove`` returns why a cell is not proved. Such a cell is cut again: the rules of the checker may need smaller
    ones than the search did. Raises SofthullError when they become too many.
    """
    given, tree = iter(cuts), Tree(root, view, label, rivals)
    waiting = [(root.known.region, True)]
    while waiting:
        region, from_search = waiting.pop()
        entry, value = next(given) if from_search else (LEAF, 0.0)
        if entry == LEAF:
            cell = root.cell(Cell(region))
            reason = prove(cell)
            if not reason:
                tree.leaf(cell)
                continue
            check_size(root, len(tree.cells) + len(waiting), reason)
            entry, value, from_search = *_halves(region, root.known.region, reason), False
        tree.cut(None, entry, value)
        below, above = region.upper.copy(), region.lower.copy()
        below[entry] = above[entry] = value
        for lower, upper in ((above, region.upper), (region.lower, below)):
            waiting.append((replace(region, lower=lower, upper=upper), from_search))
    tree.claim()


def _halves(cell: Region, root: Region, reason: str) -> tuple[int, float]:
    """Where a cell is widest, relative to the region it is a part of."""
    whole = root.upper - root.lower
    width = np.where(whole > 0, (cell.upper - cell.lower) / np.where(whole > 0, whole, 1), 0)
    entry = int(width.argmax())
    value = float(cell.lower[entry] + (cell.upper[entry] - cell.lower[entry]) / 2)
    if not cell.lower[entry] < value < cell.upper[entry]:
        raise SofthullError(reason)
    return entry, value
