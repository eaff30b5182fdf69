"""Regions that were cut into cells: what they are, and that nothing is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .balls import Floats
from .certificate import Refused
from .network import Networks, View
from .positions import Indices, Places
from .replay import Cut, Region

LEAF = -1
MOST_CELLS = 1 << 12


@dataclass(frozen=True)
class Cell:
    """The part of a region where some entries of tensors are on one side of a number."""

    region: Region
    cuts: tuple[Cut, ...] = ()


def cells_of(
    networks: Networks, region: Region, tensors: Sequence[View], entries: Indices, values: Floats
) -> list[Cell]:
    """The leaves of a tree of cuts, in the order in which it names them.

    Every node comes before its children: ``entries`` names the place in its tensor that is cut and ``values`` where,
    or LEAF. Theorem: whatever the number x that stands there for an input of a cell, ``x <= t``, and the input is in
    the first child, or ``x >= t``, and it is in the second. So the leaves cover the region where every cut has both of
    its children.
    """
    if entries.ndim != 1 or values.shape != entries.shape or entries.size >= 2 * MOST_CELLS:
        raise Refused(f"a tree that is no list of cuts with at most {MOST_CELLS} cells")
    if len(tensors) != len(entries):
        raise Refused("a tree that does not name a tensor for every cut")
    found: list[Cell] = []
    waiting = [Cell(region)]
    for tensor, entry, value in zip(tensors, entries.tolist(), values.tolist()):
        if not waiting:
            raise Refused("a tree with more cells than its cuts have")
        cell = waiting.pop()
        if entry == LEAF:
            found.append(cell)
            continue
        if not 0 <= entry < tensor.size or not math.isfinite(value) or networks.masked(tensor).any():
            raise Refused("a cut of an entry that its tensor does not have, at no number, or behind a mask")
        waiting += reversed(halves(cell, tensor, entry, value))
    if waiting:
        raise Refused("a tree that leaves out a part of its region")
    return found


def halves(cell: Cell, tensor: View, place: int, value: float) -> tuple[Cell, Cell]:
    """Both sides of a cut: of the input as smaller regions, of other nodes as what walks may use."""
    view = tensor.at(Places([place], tensor.size))
    if view.node:
        below, above = (replace(cell, cuts=(*cell.cuts, Cut(view, value, sign))) for sign in (1, -1))
        return below, above
    (entry,), region = view.index.flat, cell.region
    if not region.lower[entry] <= value <= region.upper[entry]:
        raise Refused("a cut outside of its cell")
    upper, lower = region.upper.copy(), region.lower.copy()
    upper[entry] = lower[entry] = value
    return replace(cell, region=replace(region, upper=upper)), replace(cell, region=replace(region, lower=lower))
