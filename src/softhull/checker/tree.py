"""Regions that were cut into cells: which boxes they are, and that nothing is left out."""

from __future__ import annotations

from dataclasses import replace

from .balls import Floats
from .certificate import Refused
from .positions import Indices
from .replay import Region

LEAF = -1
MOST_CELLS = 1 << 12


def cells_of(region: Region, entries: Indices, values: Floats) -> list[Region]:
    """The leaves of a tree of cuts, in the order in which it names them.

    Every node comes before its children: ``entries`` names the input that is cut and ``values`` where, or LEAF.
    Theorem: a point of a cell has ``x_e <= t``, and lies in the first child, or ``x_e >= t``, and lies in the second.
    So the leaves cover the region where every cut has both of its children.
    """
    if entries.ndim != 1 or values.shape != entries.shape or (entries == LEAF).sum() > MOST_CELLS:
        raise Refused(f"a tree that is no list of cuts with at most {MOST_CELLS} cells")
    found: list[Region] = []
    waiting = [(region.lower, region.upper)]
    for entry, value in zip(entries.tolist(), values.tolist()):
        if not waiting:
            raise Refused("a tree with more cells than its cuts have")
        lower, upper = waiting.pop()
        if entry == LEAF:
            found.append(replace(region, lower=lower, upper=upper))
            continue
        if not 0 <= entry < len(lower) or not lower[entry] <= value <= upper[entry]:
            raise Refused("a cut outside of its cell")
        below, above = upper.copy(), lower.copy()
        below[entry] = above[entry] = value
        waiting += [(above, upper), (lower, below)]
    if waiting:
        raise Refused("a tree that leaves out a part of its region")
    return found
