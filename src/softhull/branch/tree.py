"""The tree of one search: which cells were cut where, and what each of them is known to be worth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .cuts import Cut, Path


@dataclass(frozen=True)
class Moment:
    """An instance after some CPU seconds: its bound, and how many cells were open."""

    seconds: float
    bound: float
    left: int


class Cells(NamedTuple):
    """How many cells an instance was cut into, how many cuts the deepest is below the whole, how many are left."""

    number: int
    depth: int
    left: int


@dataclass(frozen=True)
class Grown:
    """What a search left of one instance, for pictures.

    ``trees``, one per problem: every cell before its two parts, by its bound and the cut that divides it, None for a
    cell that is not divided. ``history``: how the bound rose.
    """

    trees: tuple[tuple[tuple[float, str | None], ...], ...]
    history: tuple[Moment, ...]


@dataclass
class Node:
    """A cell: the part of its parent on one side of a cut. The root has neither."""

    problem: int
    parent: Node | None
    side: Cut | None
    bound: float
    children: tuple[Node, Node] | None = field(default=None, repr=False)

    @property
    def path(self) -> Path:
        """The cuts from the root to here."""
        sides: list[Cut] = []
        node: Node | None = self
        while node is not None and node.side is not None:
            sides.append(node.side)
            node = node.parent
        return tuple(reversed(sides))

    @property
    def depth(self) -> int:
        """How many cuts lead to this cell."""
        return len(self.path)

    def cuts(self) -> tuple[tuple[int, float], ...]:
        """The tree of a search that cuts inputs only: every node before its children, -1 for a leaf."""
        found, waiting = [], [self]
        while waiting:
            node = waiting.pop()
            if node.children is None:
                found.append((-1, 0.0))
                continue
            below, above = sorted(node.children, key=lambda child: not (child.side and child.side.below))
            assert below.side is not None
            found.append((below.side.plus, below.side.threshold))
            waiting += [above, below]
        return tuple(found)

    def described(self) -> tuple[tuple[float, str | None], ...]:
        """Bounds and cuts, every cell before its parts."""
        found: list[tuple[float, str | None]] = []
        waiting = [self]
        while waiting:
            node = waiting.pop()
            first = None if node.children is None else node.children[0].side
            found.append((node.bound, None if first is None else str(first)))
            waiting += reversed(node.children or ())
        return tuple(found)

    def leaves(self) -> list[Node]:
        """The cells that cover this one, left to right."""
        found, waiting = [], [self]
        while waiting:
            node = waiting.pop()
            if node.children is None:
                found.append(node)
            else:
                waiting.extend(reversed(node.children))
        return found
