"""Which softmax bounds a relaxation imposes, and their tangent planes for whole batches of boxes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..bounds.questions import tangent_planes
from ..bounds.table import BOUNDS, Side
from ..boxes import Box, make_box
from ..errors import InvalidInput, unknown
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
            if row is None:
                raise InvalidInput(unknown("bound", part, ("all", *usable), ", or a pair lower/upper"))
            raise InvalidInput(
                f"bound {name!r}: {part!r} is no {side} bound; known: 'all', or a pair lower/upper with {side} one of "
                + ", ".join(usable)
            )
    return SoftmaxBounds((below,), (above,))


@dataclass(frozen=True)
class PlaneStack:
    """``slopes [B, M, P, K, K]`` and ``offsets [B, M, P, K]``: P planes for every output of every network."""

    slopes: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class SoftmaxBoxes:
    """The boxes of logits of one stack, ready to be asked for tangent planes; constant bounds ``least``, ``most``.

    The planes are worked out in NumPy, on whatever device the rest is: no gradient goes through them, and many small
    operations cost half as much.
    """

    chosen: SoftmaxBounds
    outward: bool
    lower: Tensor
    upper: Tensor
    least: Tensor
    most: Tensor
    box: Box

    @staticmethod
    def of(bounds: NeuronBounds, chosen: SoftmaxBounds, outward: bool = True) -> SoftmaxBoxes:
        """The boxes of logits behind neuron bounds, with the constant bounds on every probability."""
        lower, upper = bounds.logits
        low, high, *differences = (side.cpu().numpy() for side in (*bounds.logits, *bounds.differences))
        box = make_box(low, high, (differences[0], differences[1]))
        found = SoftmaxBoxes(chosen, outward, lower, upper, lower, upper, box)
        constant = BOUNDS["const"]
        least = found._tangent(constant.lower, box.lower, True).value
        most = found._tangent(constant.upper, box.lower, False).value
        return replace(found, least=_tensor(least, lower), most=_tensor(most, lower))

    def take(self, instances: Tensor) -> SoftmaxBoxes:
        """The boxes of some instances, in the order given."""
        known, which = self.box.differences, instances.cpu().numpy()
        assert known is not None
        box = Box(
            self.box.lower[which],
            self.box.upper[which],
            self.box.shift[which],
            None,
            replace(known, lower=known.lower[which], upper=known.upper[which]),
        )
        lower, upper, least, most = (side[instances] for side in (self.lower, self.upper, self.least, self.most))
        return SoftmaxBoxes(self.chosen, self.outward, lower, upper, least, most, box)

    @property
    def midpoint(self) -> Tensor:
        """The midpoints of the boxes."""
        return self.lower + (self.upper - self.lower) / 2

    def planes(self, at: Tensor) -> tuple[PlaneStack, PlaneStack]:
        """Lower and upper tangent planes at logits ``[B, M, K]``, which are moved into the box first."""
        inside = torch.minimum(torch.maximum(at, self.lower), self.upper).cpu().numpy()
        below = [BOUNDS[name].lower for name in self.chosen.lower]
        above = [BOUNDS[name].upper for name in self.chosen.upper]
        return self._side(below, inside, True), self._side(above, inside, False)

    def _tangent(self, side: Side | None, at: np.ndarray, from_below: bool) -> Any:
        """Planes of one bound at a point of the shifted box, in the form that differences give: the better of two forms
        would take twice as long."""
        assert side is not None
        return tangent_planes(replace(side, in_differences=True), self.box, at, from_below, self.outward)

    def _side(self, sides: list[Side | None], at: np.ndarray, from_below: bool) -> PlaneStack:
        slopes, offsets = [], []
        for side in sides:
            found = self._tangent(side, at - self.box.shift, from_below)
            rows, offset = replace(found, at=at).dense()
            slopes.append(rows)
            offsets.append(offset)
        return PlaneStack(_tensor(np.stack(slopes, 2), self.lower), _tensor(np.stack(offsets, 2), self.lower))


def _tensor(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)
