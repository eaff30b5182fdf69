"""Where numbers stand: a *place* in a view and an *entry* of a node both count from 0, and are never the same thing.

A view may hold one entry at several places. So coefficients on places become coefficients on entries by addition, here
and nowhere else, and neither kind of position is an index for NumPy: an array is asked through ``of``, which checks
that it has a number for every place, or for every entry.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from .balls import Balls, zeros

Indices = np.ndarray[Any, np.dtype[np.int64]]
Scalar = TypeVar("Scalar", bound=np.generic)


class _Positions:
    """Positions ``at``, an array of any shape, each among the first ``among`` whole numbers."""

    def __init__(self, at: Any, among: int) -> None:
        found = np.asarray(at)
        if found.size and (found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= among):
            raise IndexError(f"positions that are not whole numbers from 0 to {among - 1}")
        self.at: Indices = found.astype(np.int64, copy=False)
        self.among = among

    @property
    def size(self) -> int:
        return self.at.size

    @property
    def shape(self) -> tuple[int, ...]:
        return self.at.shape

    @cached_property
    def flat(self) -> list[int]:
        found: list[int] = self.at.ravel().tolist()
        return found

    @cached_property
    def distinct(self) -> bool:
        return len(set(self.flat)) == self.size

    def of(self, numbers: np.ndarray[Any, np.dtype[Scalar]], axis: int = -1) -> np.ndarray[Any, np.dtype[Scalar]]:
        """What stands at the positions, along the first (0) or the last (-1) axis of an array."""
        if numbers.shape[axis] != self.among:
            raise TypeError(f"{numbers.shape[axis]} numbers, not one for each of {self.among} positions")
        return numbers[self.at] if axis == 0 else numbers[..., self.at]

    def add(self, total: Balls, rows: Balls) -> None:
        """Add ``rows [S, positions]`` to ``total [S, among]``; where a position repeats, all of its numbers count."""
        if total.shape != (len(rows), self.among) or rows.shape[1:] != (self.size,):
            raise TypeError(f"rows of shape {rows.shape} on {self.size} positions, into {total.shape}")
        if self.distinct:
            total[:, self.at.ravel()] += rows
        else:
            np.add.at(total.T, self.at.ravel(), rows.T)

    def spread(self, rows: Balls) -> Balls:
        """Rows over the positions as rows over everything they are among."""
        total = zeros(len(rows), self.among)
        self.add(total, rows)
        return total


class Places(_Positions):
    """Places in a view."""


class Entries(_Positions):
    """Entries of a node."""
