"""Regions that were cut into cells: what they are, and that nothing is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .balls import Floats
from .certificate import Refused
from .network import Networks, View
from .positions import Indices, Places
from .replay import Cut, Region

LEAF = ALONE = -1
MOST_CELLS = 1 << 12


@dataclass(frozen=True)
class Cell:
    """The part of a region where some entries of tensors, or differences of two, are on one side of a number."""

    region: Region
    cuts: tuple[Cut, ...] = ()


def cells_of(
    networks: Networks,
    region: Region,
    tensors: Sequence[View],
    entries: Indices,
    values: Floats,
    minus: Indices | None = None,
) -> list[Cell]:
    """The leaves of a tree of cuts, in the order in which it names them.

    Every node comes before its children: ``entries`` names the place in its tensor that is cut and ``values`` where,
    or LEAF; ``minus`` a second place, whose number is taken off the first, or ALONE. Theorem: whatever that number x
    for an input of a cell, ``x <= t``, and the input is in the first child, or ``x >= t``, and it is in the second. So
    the leaves cover the region where every cut has both of its children.
    """
    minus = np.full(entries.shape, ALONE) if minus is None else minus
    if entries.ndim != 1 or not values.shape == minus.shape == entries.shape or entries.size >= 2 * MOST_CELLS:
        raise Refused(f"a tree that is no list of cuts with at most {MOST_CELLS} cells")
    if len(tensors) != len(entries):
        raise Refused("a tree that does not name a tensor for every cut")
    found: list[Cell] = []
    waiting = [Cell(region)]
    for tensor, entry, less, value in zip(tensors, entries.tolist(), minus.tolist(), values.tolist()):
        if not waiting:
            raise Refused("a tree with more cells than its cuts have")
        cell = waiting.pop()
        if entry == LEAF:
            found.append(cell)
            continue
        places = [entry] if less == ALONE else [entry, less]
        if not all(0 <= place < tensor.size for place in places) or not math.isfinite(value):
            raise Refused("a cut of an entry that its tensor does not have, or at no number")
        if networks.masked(tensor).any():
            raise Refused("a cut behind a mask")
        waiting += reversed(halves(cell, tensor, places, value))
    if waiting:
        raise Refused("a tree that leaves out a part of its region")
    return found


def halves(cell: Cell, tensor: View, places: Sequence[int], value: float) -> tuple[Cell, Cell]:
    """Both sides of a cut: of an input as smaller regions, of all else as what walks may use."""
    view = tensor.at(Places(places, tensor.size))
    if view.node or len(places) > 1:
        below, above = (replace(cell, cuts=(*cell.cuts, Cut(view, value, sign))) for sign in (1, -1))
        return below, above
    (entry,), region = view.index.flat, cell.region
    if not region.lower[entry] <= value <= region.upper[entry]:
        raise Refused("a cut outside of its cell")
    upper, lower = region.upper.copy(), region.lower.copy()
    upper[entry] = lower[entry] = value
    return replace(cell, region=replace(region, upper=upper)), replace(cell, region=replace(region, lower=lower))
