"""Affine bounds on softmax outputs, one plane per output, without a K x K matrix wherever there need not be one.

Planes promise ``p_k >= value_k + gradient_k . (x - at)`` (or ``<=``) for every output ``k`` they cover. Keeping
the value at the anchor ``at`` instead of the intercept saves the digits that subtracting ``gradient . at`` would
cost; ``dense()`` gives the intercept to those who need it. Shapes: ``at [..., K]``, ``value [..., O]`` with O
covered outputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .._arrays import Array, device, in_chunks, namespace


def restrict(array: Array, outputs: Array | None) -> Array:
    """Some entries of the last axis (an index array), or all of them (None)."""
    return array if outputs is None else namespace(array).take(array, outputs, axis=-1)


class Planes(ABC):
    """One plane per covered output.

    ``at`` is finite; ``masked`` marks the logits that no plane depends on, ``steep`` the outputs whose gradient would
    overflow: it is stored as zero, and their plane is the constant bound (None in both cases: there are none).
    ``terms [..., O]``: the sum of the absolute values of what the value was added up from (None: its own). ``side``:
    -1 below and 1 above softmax when rounding is directed outward, 0 when it is to nearest.
    """

    at: Array
    value: Array
    masked: Array | None
    steep: Array | None = None
    terms: Array | None = None
    side: int = 0

    @abstractmethod
    def rows(self, start: int, stop: int) -> Array:
        """Gradients of the covered outputs ``start:stop`` as an array ``[..., stop - start, K]``."""

    def compose_right(self, direction: Array) -> Array:
        """``A @ direction`` for a direction ``[..., K]``: how fast every plane rises along it."""
        xp = namespace(direction)
        return xp.concat(self._chunks(lambda i, j: xp.vecdot(self.rows(i, j), direction[..., None, :])), axis=-1)

    def compose_left(self, coefficients: Array) -> tuple[Array, Array]:
        """``(c @ A, c . b)`` for coefficients ``c [..., O]``: the combination of the planes, one affine function."""
        xp = namespace(coefficients)
        pieces = self._chunks(lambda i, j: xp.matmul(coefficients[..., None, i:j], self.rows(i, j)))
        slope = pieces[0][..., 0, :]
        for piece in pieces[1:]:
            slope = slope + piece[..., 0, :]
        return slope, xp.vecdot(coefficients, self.value) - xp.vecdot(slope, self.at)

    def size_within(self, reach: Array) -> Array:
        """``sum_j |A_j| reach_j`` for every output, each slope counted with all its parts."""
        xp = namespace(reach)
        return xp.concat(self._chunks(lambda i, j: xp.vecdot(xp.abs(self.rows(i, j)), reach[..., None, :])), axis=-1)

    def at_value(self, value: Array, side: int) -> Planes:
        """The same planes through other values at the anchor."""
        return replace(self, value=value, side=side)  # type: ignore[type-var]

    def __call__(self, x: Array) -> Array:
        """The value of every plane at ``x [..., K]``, to nearest; entries of masked logits are ignored."""
        xp = namespace(x)
        if self.masked is not None:  # before the difference: it may overflow
            x = xp.where(self.masked, self.at, x)
        return self.value + self.compose_right(x - self.at)

    def dense(self) -> tuple[Array, Array]:
        """``(A, b)`` with ``A [..., O, K]`` and ``b [..., O]``: the planes are ``A @ x + b``, rounded as they are."""
        A = self.rows(0, int(self.value.shape[-1]))
        xp = namespace(A)
        intercept = self.value - xp.vecdot(A, self.at[..., None, :])
        if self.side:
            info = xp.finfo(A.dtype)
            size = xp.abs(self.value) + xp.vecdot(xp.abs(A), xp.abs(self.at)[..., None, :])
            lost = float(info.eps) * (int(A.shape[-1]) + 4) * size + float(info.smallest_normal) * int(A.shape[-1])
            intercept = intercept + self.side * xp.where(size > 0, lost, xp.zeros_like(lost))
        return A, intercept

    def _chunks(self, work: Callable[[int, int], Array]) -> list[Array]:
        leading = math.prod(self.value.shape[:-1])
        return in_chunks(int(self.value.shape[-1]), leading * int(self.at.shape[-1]), work)


@dataclass(frozen=True)
class LowRankPlanes(Planes):
    """Gradient = diagonal + left @ right: O(K) memory for all K outputs of a softmax.

    ``diagonal [..., O]``, ``left [..., O, r]``, ``right [..., r, K]``; covered output ``o`` is logit ``outputs[o]``
    (an integer array; None: all logits in order).
    """

    at: Array
    value: Array
    diagonal: Array
    left: Array
    right: Array
    masked: Array | None = None
    outputs: Array | None = None
    steep: Array | None = None
    terms: Array | None = None
    side: int = 0

    def select(self, outputs: Array) -> LowRankPlanes:
        """The same planes for some outputs (an index array)."""
        xp = namespace(self.right)
        return replace(
            self,
            value=xp.take(self.value, outputs, axis=-1),
            diagonal=xp.take(self.diagonal, outputs, axis=-1),
            left=xp.take(self.left, outputs, axis=-2),
            steep=None if self.steep is None else xp.take(self.steep, outputs, axis=-1),
            terms=None if self.terms is None else xp.take(self.terms, outputs, axis=-1),
            outputs=outputs,
        )

    def size_within(self, reach: Array) -> Array:
        xp = namespace(reach)
        own = reach if self.outputs is None else xp.take(reach, self.outputs, axis=-1)
        along = xp.matmul(xp.abs(self.right), reach[..., None])
        return xp.abs(self.diagonal) * own + xp.matmul(xp.abs(self.left), along)[..., 0]

    def rows(self, start: int, stop: int) -> Array:
        xp = namespace(self.right)
        own = self.diagonal[..., start:stop, None]
        low_rank = xp.matmul(self.left[..., start:stop, :], self.right)
        return low_rank + xp.where(self._own()[start:stop, :], own, xp.zeros_like(own))

    def compose_right(self, direction: Array) -> Array:
        xp = namespace(direction)
        own = direction if self.outputs is None else xp.take(direction, self.outputs, axis=-1)
        along = xp.matmul(self.right, direction[..., None])
        return self.diagonal * own + xp.matmul(self.left, along)[..., 0]

    def compose_left(self, coefficients: Array) -> tuple[Array, Array]:
        xp = namespace(coefficients)
        slope = xp.matmul(xp.matmul(coefficients[..., None, :], self.left), self.right)[..., 0, :]
        own = coefficients * self.diagonal
        if self.outputs is not None:
            own = xp.sum(xp.where(self._own(), own[..., None], xp.zeros_like(own[..., None])), axis=-2)
        slope = slope + own
        return slope, xp.vecdot(coefficients, self.value) - xp.vecdot(slope, self.at)

    def _own(self) -> Array:
        """Mask ``[O, K]``: which logit a covered output belongs to."""
        xp = namespace(self.right)
        logits = xp.arange(int(self.right.shape[-1]), dtype=xp.int64, device=device(self.right))
        return logits == (logits if self.outputs is None else self.outputs)[:, None]


@dataclass(frozen=True)
class RowPlanes(Planes):
    """Planes whose gradients have no structure: ``gradient(start, stop)`` computes some rows, nothing is stored."""

    at: Array
    value: Array
    gradient: Callable[[int, int], Array]
    masked: Array | None = None
    steep: Array | None = None
    terms: Array | None = None
    slopes: Array = 0.0  # size_within of one more than how far the box reaches, known as long as the rows are at hand
    side: int = 0

    def rows(self, start: int, stop: int) -> Array:
        return self.gradient(start, stop)


@dataclass(frozen=True)
class ChosenPlanes(Planes):
    """For every output one of several planes: ``choice [..., O]`` is the position in ``parts``."""

    parts: Sequence[Planes]
    choice: Array
    at: Array
    value: Array
    masked: Array | None = None
    side: int = 0

    def rows(self, start: int, stop: int) -> Array:
        xp = namespace(self.value)
        chosen = self.parts[0].rows(start, stop)
        for position, part in enumerate(self.parts[1:], start=1):
            chosen = xp.where(self.choice[..., start:stop, None] == position, part.rows(start, stop), chosen)
        return chosen


@dataclass(frozen=True)
class SinglePlane:
    """The plane of one output, without the output axis."""

    planes: Planes

    @property
    def at(self) -> Array:
        """Where the plane touches the bound it came from."""
        return self.planes.at

    @property
    def value(self) -> Array:
        """The value of the plane at that point."""
        return self.planes.value[..., 0]

    def __call__(self, x: Array) -> Array:
        return self.planes(x)[..., 0]

    def dense(self) -> tuple[Array, Array]:
        """``(a, b)`` with ``a [..., K]`` and ``b [...]``: the plane is ``a . x + b``."""
        A, b = self.planes.dense()
        return A[..., 0, :], b[..., 0]


def choose(parts: Sequence[Planes], largest: bool) -> Planes:
    """For every output the plane with the largest (or smallest) value at the common anchor."""
    if len(parts) == 1:
        return parts[0]
    xp = namespace(parts[0].value)
    values = xp.stack([part.value for part in parts], axis=0)
    choice = xp.argmax(values if largest else -values, axis=0)
    best = xp.max(values, axis=0) if largest else xp.min(values, axis=0)
    return ChosenPlanes(parts, choice, parts[0].at, best, parts[0].masked, parts[0].side)
