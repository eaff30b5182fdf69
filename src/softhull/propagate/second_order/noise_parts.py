"""Maps of the noise in parts that share none of it: the patches of an image, tokens, and noise numbers on their own.

``U [r, n]`` takes the noise to the basis. Rows that have no noise in common are parts, each with its rows and columns;
most rows of a deep network are single noise numbers, and together they are one part with a diagonal. What is done to
``U diag(1/d) U'`` is then done part by part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ...graph.rounding import accumulated, underflow

# More parts than these are not worth the calls: the smallest are taken together.
_MOST = 32
# Rounds in which rows that share noise find each other; after these all that is left is one part.
_ROUNDS = 16


class NoisePart(ABC):
    """Some rows of a map, in order, and all the ``columns`` of the noise that they have; ``[P or 1, ...]`` maps."""

    def __init__(self, map_: Tensor, columns: Tensor) -> None:
        self.map, self.columns = map_, columns

    def take(self, which: Tensor) -> NoisePart:
        """The part for some of the problems; a map that all of them share stays one."""
        return self if len(self.map) == 1 else type(self)(self.map[which], self.columns)

    def numbered(self, numbers: Tensor) -> NoisePart:
        """The same with columns that are counted otherwise."""
        return type(self)(self.map, numbers[self.columns])

    def sizes(self) -> NoisePart:
        """The part with the absolute values of its map."""
        return type(self)(self.map.abs(), self.columns)

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.map.shape[1]

    @abstractmethod
    def up(self, e: Tensor) -> Tensor:
        """``U e [P, rows]`` for the noise of its columns."""

    @abstractmethod
    def down(self, z: Tensor) -> Tensor:
        """``U'z [P, columns]``."""

    @abstractmethod
    def over(self, slope: Tensor) -> Tensor:
        """Slopes ``[P or 1, entries, rows]`` over the noise of its columns."""

    @abstractmethod
    def only(self, used: Tensor) -> NoisePart:
        """The part with zeros for the rows outside the mask ``used [P, rows]``."""

    @abstractmethod
    def lengths(self) -> tuple[Tensor, Tensor]:
        """The norms of its columns, and which of these are zero: ``[P or 1, columns]`` each."""

    @abstractmethod
    def gram(self, weights: Tensor) -> Tensor:
        """``U diag(1/weights) U' [P, rows, rows]``."""

    @abstractmethod
    def squares(self, Q: Tensor) -> Tensor:
        """The diagonal ``[P, columns]`` of ``U'Q U`` for ``Q [P, rows, rows]``."""

    @abstractmethod
    def root(self, d: Tensor, seen: Tensor, operations: int) -> Tensor:
        """A factor L with ``L L' >= U diag(1/d) U'``, rounding included; NaN where there is none.

        Rows outside the mask ``seen [P, rows]`` are taken as zero. ``operations``: of the longest sums.
        """

    @abstractmethod
    def times_root(self, X: Tensor, L: Tensor) -> Tensor:
        """``X L`` for ``X [P, m, rows]``."""

    @abstractmethod
    def over_root(self, X: Tensor, L: Tensor) -> Tensor:
        """``X L^-1``."""

    @abstractmethod
    def root_over(self, L: Tensor, z: Tensor) -> Tensor:
        """``L^-1 z`` for ``z [P, rows]``."""


class Dense(NoisePart):
    """A part with a map ``[P or 1, r, n]``."""

    def up(self, e: Tensor) -> Tensor:
        return (self.map @ e[..., None])[..., 0]

    def down(self, z: Tensor) -> Tensor:
        return (self.map.mT @ z[..., None])[..., 0]

    def over(self, slope: Tensor) -> Tensor:
        return slope @ self.map

    def only(self, used: Tensor) -> NoisePart:
        return Dense(self.map * used[..., None], self.columns)

    def lengths(self) -> tuple[Tensor, Tensor]:
        return self.map.norm(dim=1), (self.map == 0).all(1)  # a norm may underflow

    def gram(self, weights: Tensor) -> Tensor:
        return (self.map / weights[:, None]) @ self.map.mT

    def squares(self, Q: Tensor) -> Tensor:
        return (self.map * (Q @ self.map)).sum(1)

    def root(self, d: Tensor, seen: Tensor, operations: int) -> Tensor:
        U = torch.where(seen[..., None], self.map, 0.0) * d.rsqrt()[:, None]
        W = U @ U.mT
        trace = W.diagonal(dim1=-2, dim2=-1).sum(-1)
        # More than the rounding of W and of its factorisation.
        lift = accumulated(operations, W.dtype) * trace + underflow(W.dtype)
        eye = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
        L, info = torch.linalg.cholesky_ex(W + (2 * lift)[:, None, None] * eye)
        return torch.where((info == 0)[:, None, None], L, torch.nan)

    def times_root(self, X: Tensor, L: Tensor) -> Tensor:
        return X @ L

    def over_root(self, X: Tensor, L: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(L, X, upper=False, left=False)

    def root_over(self, L: Tensor, z: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(L, z[..., None], upper=False)[..., 0]


class Single(NoisePart):
    """Rows with one noise number each, which no other row has: a map ``[P or 1, r]``; roots are ``[P, r]``."""

    def up(self, e: Tensor) -> Tensor:
        return self.map * e

    def down(self, z: Tensor) -> Tensor:
        return self.map * z

    def over(self, slope: Tensor) -> Tensor:
        return slope * self.map[:, None]

    def only(self, used: Tensor) -> NoisePart:
        return Single(self.map * used, self.columns)

    def lengths(self) -> tuple[Tensor, Tensor]:
        return self.map.abs(), self.map == 0

    def gram(self, weights: Tensor) -> Tensor:
        return torch.diag_embed(self.map / weights * self.map)

    def squares(self, Q: Tensor) -> Tensor:
        return self.map.square() * Q.diagonal(dim1=-2, dim2=-1)

    def root(self, d: Tensor, seen: Tensor, operations: int) -> Tensor:
        W = (torch.where(seen, self.map, 0.0) * d.rsqrt()).square()
        return (W + 2 * (accumulated(operations, W.dtype) * W + underflow(W.dtype))).sqrt()

    def times_root(self, X: Tensor, L: Tensor) -> Tensor:
        return X * L[:, None]

    def over_root(self, X: Tensor, L: Tensor) -> Tensor:
        return X / L[:, None]

    def root_over(self, L: Tensor, z: Tensor) -> Tensor:
        return z / L


def noise_parts(U: Tensor) -> tuple[Tensor, list[NoisePart]]:
    """The order of the rows of ``U [P, r, n]`` in which its parts follow each other, and the parts.

    Rows of zeros are in none of them: whatever they are multiplied with is zero.
    """
    shared = U[:1] if U.stride(0) == 0 else U
    there = (shared != 0).any(0)
    label = _labels(there)
    single = (there.sum(0) * there).sum(1) == 1  # one noise number, and no other row has it
    several = there.any(1) & ~single
    groups = [((label == number) & several).nonzero()[:, 0] for number in label[several].unique().tolist()]
    groups.sort(key=lambda rows: -len(rows))
    if len(groups) > _MOST:
        groups = [*groups[: _MOST - 1], torch.cat(groups[_MOST - 1 :])]
    parts: list[NoisePart] = []
    for rows in groups:
        columns = there[rows].any(0).nonzero()[:, 0]
        whole = len(rows) == there.shape[0] and len(columns) == there.shape[1]  # nothing to be copied
        parts.append(Dense(shared if whole else shared[:, rows[:, None], columns], columns))
    alone = single.nonzero()[:, 0]
    if len(alone):
        columns = there[alone].to(torch.uint8).argmax(1)
        parts.append(Single(shared[:, alone, columns], columns))
    return torch.cat([*groups, alone]), parts


def with_single(order: Tensor, parts: list[NoisePart], rows: Tensor, columns: Tensor) -> tuple[Tensor, list[NoisePart]]:
    """The same, followed by fresh ``rows`` that are one fresh noise number each."""
    fresh = (parts[0].map if parts else order.new_ones(1, dtype=torch.float64)).new_ones(1, len(rows))
    if parts and isinstance(parts[-1], Single):
        (*parts, last) = parts
        fresh = torch.cat((last.map, fresh.expand(len(last.map), -1)), 1)
        columns = torch.cat((last.columns, columns))
    return torch.cat((order, rows)), [*parts, Single(fresh, columns)]


def _labels(there: Tensor) -> Tensor:
    """One number ``[r]`` for all rows of a mask ``[r, n]`` that are connected by columns."""
    r = len(there)
    label = torch.arange(r, device=there.device)
    nothing = torch.full((), r, device=there.device)
    for _ in range(_ROUNDS if there.numel() else 0):
        least = torch.where(there, label[:, None], nothing).amin(0)  # of every column
        found = torch.minimum(label, torch.where(there, least, nothing).amin(1))
        if torch.equal(found, label):
            return label
        label = found
    return torch.zeros_like(label)
