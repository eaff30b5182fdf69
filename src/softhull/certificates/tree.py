"""Proofs of regions that were cut into cells: one proof for every cell, and the tree that shows that they cover all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..checker.replay import Region
from ..checker.tree import LEAF, MOST_CELLS
from ..errors import SofthullError
from .prover import Proof

# Bytes of arrays beyond which a tree has no certificate.
LARGEST = 1 << 26

Cuts = Sequence[tuple[int, float]]


def prove_cells(root: Proof, cuts: Cuts, prove: Callable[[Proof], str]) -> dict[str, Any]:
    """The tree of ``cuts`` (every node before its children, LEAF for a cell) with the steps of its cells.

    ``prove`` returns why a cell is not proved. Such a cell is cut again: the rules of the checker may need smaller
    ones than the search did. Raises SofthullError when they become too many.
    """
    given = iter(cuts)
    entries, values, cells = [], [], []
    waiting = [(root.known.region, True)]
    while waiting:
        region, from_search = waiting.pop()
        entry, value = next(given) if from_search else (LEAF, 0.0)
        reason = ""
        if entry == LEAF:
            cell = root.cell(region)
            reason = prove(cell)
            if not reason:
                cells.append(cell.steps)
            else:
                entry, value, from_search = *_halves(region, root.known.region, reason), False
        entries.append(entry)
        values.append(value)
        if len(entries) > 2 * MOST_CELLS or sum(array.nbytes for array in root.arrays.values()) > LARGEST:
            raise SofthullError(f"no certificate of more than {MOST_CELLS} cells or {LARGEST >> 20} MB; {reason}")
        if entry != LEAF:
            below, above = region.upper.copy(), region.lower.copy()
            below[entry] = above[entry] = value
            for lower, upper in ((above, region.upper), (region.lower, below)):
                waiting.append((replace(region, lower=lower, upper=upper), from_search))
    tree = {"entries": np.array(entries, dtype=np.int64), "values": np.array(values)}
    return {name: root.keep(array) for name, array in tree.items()} | {"cells": cells}


def _halves(cell: Region, root: Region, reason: str) -> tuple[int, float]:
    """Where a cell is widest, relative to the region it is a part of."""
    whole = root.upper - root.lower
    width = np.where(whole > 0, (cell.upper - cell.lower) / np.where(whole > 0, whole, 1), 0)
    entry = int(width.argmax())
    value = float(cell.lower[entry] + (cell.upper[entry] - cell.lower[entry]) / 2)
    if not cell.lower[entry] < value < cell.upper[entry]:
        raise SofthullError(reason)
    return entry, value
