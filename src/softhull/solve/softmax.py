"""Which softmax bounds a relaxation imposes, and their tangent planes for whole batches of boxes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .._arrays import sigmoid
from ..bounds.log_odds import log_odds_range
from ..bounds.table import BOUNDS, Side
from ..boxes import Box, make_box
from ..errors import InvalidInput
from .neurons import NeuronBounds

# All bounds of the table, intersected: the upper hull lies below every other upper bound, and the lower hull above
# every other lower bound but the exponential-reciprocal one of the outputs that are not among the largest.
EVERYTHING = (("hull", "er"), ("hull",))


@dataclass(frozen=True)
class SoftmaxBounds:
    """Names of the bounds imposed, from below on the outputs with the smallest coefficient, from above on the others.

    Wei et al. 2023 do the same; bounding the other side as well changes the optimum by less than one in a thousand.
    """

    lower: tuple[str, ...]
    upper: tuple[str, ...]
    constants_everywhere: bool = False  # constant bounds on both sides of every output, not just where planes are

    def sides(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Masks ``[B, K]``: the outputs bounded from below and from above when ``coefficients . p`` is maximised."""
        above = coefficients > coefficients.amin(-1, keepdim=True)
        return ~above, above

    def constant_sides(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """The same masks for the constant bounds."""
        below, above = self.sides(coefficients)
        return below | self.constants_everywhere, above | self.constants_everywhere


def parse_bounds(name: str) -> SoftmaxBounds:
    """``"all"`` (every bound of the table, intersected), one name, or a pair ``"lower/upper"``."""
    if name == "all":
        return SoftmaxBounds(*EVERYTHING, constants_everywhere=True)
    below, slash, above = name.partition("/")
    above = above if slash else below
    for side, part in (("lower", below), ("upper", above)):
        row = BOUNDS.get(part)
        side_of_row = getattr(row, side, None)
        if row is None or side_of_row is None or side_of_row.tangent is None or side_of_row.only_for is not None:
            usable = [n for n, r in BOUNDS.items() if (s := getattr(r, side)) and s.tangent and s.only_for is None]
            raise InvalidInput(
                f"bound {name!r}: {part!r} is no {side} bound; known: 'all', or a pair lower/upper with {side} one of "
                + ", ".join(usable)
            )
    return SoftmaxBounds((below,), (above,))


@dataclass(frozen=True)
class Planes:
    """``slopes [B, M, P, K, K]`` and ``offsets [B, M, P, K]``: P planes for every output of every network."""

    slopes: Tensor
    offsets: Tensor


class SoftmaxBoxes:
    """The boxes of logits of one stack, ready to be asked for tangent planes.

    The planes are worked out in NumPy: no gradient goes through them, and many small operations cost half as much.
    """

    def __init__(self, bounds: NeuronBounds, chosen: SoftmaxBounds) -> None:
        self.chosen = chosen
        self.lower, self.upper = bounds.logits
        low, high = bounds.differences
        self.box = make_box(self.lower.numpy(), self.upper.numpy(), (low.numpy(), high.numpy()))
        lowest, highest = log_odds_range(self.box)
        self.least, self.most = torch.from_numpy(sigmoid(lowest)), torch.from_numpy(sigmoid(highest))

    def take(self, instances: Tensor) -> SoftmaxBoxes:
        """The boxes of some instances, in the order given."""
        part = object.__new__(SoftmaxBoxes)
        part.chosen = self.chosen
        for name in ("lower", "upper", "least", "most"):
            setattr(part, name, getattr(self, name)[instances])
        known, which = self.box.differences, instances.numpy()
        assert known is not None
        part.box = Box(
            self.box.lower[which],
            self.box.upper[which],
            self.box.shift[which],
            None,
            replace(known, lower=known.lower[which], upper=known.upper[which]),
        )
        return part

    @property
    def midpoint(self) -> Tensor:
        return self.lower + (self.upper - self.lower) / 2

    def planes(self, at: Tensor) -> tuple[Planes, Planes]:
        """Lower and upper tangent planes at logits ``[B, M, K]``, which are moved into the box first."""
        inside = torch.minimum(torch.maximum(at, self.lower), self.upper).numpy()
        below = [(BOUNDS[name].lower, self.least.numpy()) for name in self.chosen.lower]
        above = [(BOUNDS[name].upper, self.most.numpy()) for name in self.chosen.upper]
        return self._side(below, inside, -1.0), self._side(above, inside, 1.0)

    def _side(self, sides: list[tuple[Side | None, np.ndarray]], at: np.ndarray, outward: float) -> Planes:
        slopes, offsets = [], []
        for side, constant in sides:
            assert side is not None
            assert side.tangent is not None
            found = side.tangent(self.box, at - self.box.shift, None)
            rows = found.rows(0, at.shape[-1])
            value = found.value
            if found.steep is not None:  # their rows are zero; only the constant bound holds with them
                value = np.where(found.steep, constant, value)
            slopes.append(rows)
            size = np.abs(value) + (np.abs(rows) @ np.abs(at)[..., None])[..., 0]
            slack = 4 * at.shape[-1] * np.finfo(at.dtype).eps * size  # of the dot product and of the value itself
            offsets.append(value - (rows @ at[..., None])[..., 0] + outward * slack)
        return Planes(torch.from_numpy(np.stack(slopes, 2)), torch.from_numpy(np.stack(offsets, 2)))
