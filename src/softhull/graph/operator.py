"""The four kinds of operators that bound propagation tells apart.

Shapes are those of one instance. Tensors carry one leading dimension more: ``[B, *shape]`` with ``B``
instances. Backward coefficients carry two: ``[S, B, *shape]`` with ``S`` specifications per instance.
Axes held by an operator count the dimensions of one instance, from 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..devices import moved
from .rounding import largest, overflown, share, underflow

Shape = tuple[int, ...]
Interval = tuple[Tensor, Tensor]


class Operator(ABC):
    """A function of one or more tensors; implementations are frozen dataclasses holding their constants."""

    name: ClassVar[str]

    @abstractmethod
    def value(self, *inputs: Tensor) -> Tensor:
        """The output for concrete inputs ``[B, *shape]``."""

    @abstractmethod
    def interval(self, *inputs: Interval) -> Interval:
        """Bounds that hold for all inputs within the given intervals."""

    def shape(self, *shapes: Shape) -> Shape:
        """Output shape of one instance, computed without a tensor; ValueError where the inputs do not fit."""
        return shapes[0]

    def work(self, *shapes: Shape) -> int:
        """How many entries an evaluation holds besides its inputs and its output, for one instance."""
        return 0

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Self:
        """The same operator with its real constants in another precision, all of them in another place."""
        return moved(self, device, dtype)

    def parameters(self) -> int:
        """How many real constants the operator holds."""
        held = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return sum(_count(item) for item in held)


def _count(item: Any) -> int:
    if isinstance(item, Tensor):
        return item.numel() if item.is_floating_point() else 0
    return sum(_count(part) for part in item) if isinstance(item, tuple) else 0


def sum_per_instance(x: Tensor) -> Tensor:
    """The sum of the entries of every instance: ``[S, B, *shape]`` to ``[S, B]``, also where there are none."""
    return x.sum(tuple(range(2, x.ndim))) if x.ndim > 2 else x


def constant_part(coefficients: Tensor, constant: Tensor) -> Tensor:
    """``<A [S, B, *shape], constant>`` as ``[S, B]``, for a finite constant that broadcasts to the shape."""
    entries = constant.expand(coefficients.shape[2:]).reshape(-1)
    return coefficients.reshape(*coefficients.shape[:2], len(entries)) @ entries


class Affine(Operator):
    """Exact for linear bounds: the output is affine in all inputs jointly.

    ``exact_backward``: what ``backward`` returns is placed, never added up or multiplied, so that nothing is rounded.
    ``slack``: how far the true output may be from the affine function, besides rounding.
    """

    exact_backward: ClassVar[bool] = False
    slack: float = 0.0

    @abstractmethod
    def range(self, *inputs: Interval) -> Interval:
        """The interval rule as computed: off by the rounding of one sum per entry."""

    @abstractmethod
    def magnitude(self, *sizes: Tensor) -> Tensor:
        """The sum of the absolute values of all terms of every output entry, for inputs of at most these sizes."""

    @abstractmethod
    def terms(self, *shapes: Shape) -> int:
        """How many operations make one output entry at most; 0 where entries are only placed."""

    def interval(self, *inputs: Interval) -> Interval:
        lower, upper = self.range(*inputs)
        terms = self.terms(*(tuple(low.shape[1:]) for low, _ in inputs))
        if not terms:
            return lower, upper
        below, above = self._errors(share(terms, lower.dtype), *inputs)
        if not bool((below + above).isfinite().all()):  # an end that is infinite is so exactly, or has overflown
            least, most = overflown(lower, upper)
            masked = any(bool((high == -math.inf).any()) for _, high in inputs)
            lower, upper = least, upper if masked else torch.where(above.isinf(), most, upper)
            below, above = (torch.where(end.isinf(), 0.0, e) for end, e in ((lower, below), (upper, above)))
        return lower - below, upper + above

    def _errors(self, cost: float, *inputs: Interval) -> Interval:
        error = cost * self.magnitude(*(largest(*pair) for pair in inputs)) + underflow(inputs[0][0].dtype)
        return error, error

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Push ``<coefficients, output>`` to the inputs.

        Returns one coefficient tensor ``[S, B, *shape]`` per input and the constant ``[S, B]`` such that
        ``<coefficients, value(x_1, ...)> = sum_i <returned_i, x_i> + constant`` exactly.
        The default transposes ``value`` by automatic differentiation; hot operators override it.
        """
        S, B = coefficients.shape[0], coefficients.shape[1]
        flat = coefficients.reshape((S * B, *coefficients.shape[2:]))
        zeros = tuple(flat.new_zeros(1).expand((S * B, *shape)) for shape in shapes)
        at_zero, transpose = torch.func.vjp(self.value, *zeros)[:2]
        constant = sum_per_instance((flat * at_zero).reshape(coefficients.shape))
        back = tuple(g.reshape((S, B, *shape)) for g, shape in zip(transpose(flat), shapes))
        return back, constant


class Monotone(Affine):
    """An affine operator that never decreases when an input entry grows: no negative weight, no constant."""

    def range(self, *inputs: Interval) -> Interval:
        return self.value(*(lower for lower, _ in inputs)), self.value(*(upper for _, upper in inputs))

    def magnitude(self, *sizes: Tensor) -> Tensor:
        return self.value(*sizes)

    def terms(self, *shapes: Shape) -> int:
        return 0

    def _errors(self, cost: float, *inputs: Interval) -> Interval:
        # Either end is made of ends of one kind alone, so that an unbounded one does not spoil the other.
        below, above = (self.magnitude(*(pair[end].abs() for pair in inputs)) for end in (0, 1))
        tiny = underflow(below.dtype)
        return cost * below + tiny, cost * above + tiny


@dataclass(frozen=True)
class Lines:
    """Two lines per entry: ``lower_slope*x + lower_offset <= f(x) <= upper_slope*x + upper_offset``."""

    lower_slope: Tensor
    lower_offset: Tensor
    upper_slope: Tensor
    upper_offset: Tensor

    def take(self, instances: Tensor) -> Lines:
        """The lines of some instances, in the order given."""
        return Lines(*(getattr(self, f.name)[instances] for f in fields(self)))


class Elementwise(Operator):
    """``y_i = f(x_i)`` with a scalar ``f``: relaxed entry by entry between two lines."""

    @abstractmethod
    def lines(self, lower: Tensor, upper: Tensor, free: Tensor | None = None) -> Lines:
        """Sound lines over ``[lower, upper]``.

        ``free`` in ``[0, 1]`` (one number per entry and line, shape ``[2, *lower.shape]``) moves the choice
        among the sound lines (a slope, a tangent point); any value is sound, ``None`` is the default choice.
        """

    def start(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The ``free`` that reproduces the default lines: where an optimiser starts."""
        return lower.new_full((2, *lower.shape), 0.5)


class Bilinear(Operator):
    """A product of two variable tensors: linear in each of its two inputs."""

    @abstractmethod
    def contract(self, coefficients: Tensor, side: int, other: Tensor) -> Tensor:
        """The gradient of ``<coefficients, value(x, y)>`` in input ``side`` (0: x, 1: y), given the other.

        ``coefficients [S, B, *out]`` and ``other [S, B, *shape]`` (broadcastable) give ``[S, B, *shape]`` of
        that side.
        """
