"""How bounds move through one kind of operator: a rule each for walks and for intervals, registered by its class.

Affine and entrywise operators are here; ``products.py`` and ``softmax_steps.py`` register the others. An operator of
one of these kinds needs no rule of its own.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.operator import Affine, Elementwise, Interval, Lines, Operator
from .free import Free

if TYPE_CHECKING:
    from .crown import LinearBounds

Backs = tuple[tuple[Tensor, ...], Tensor]


@singledispatch
def step(operator: Operator, bounds: LinearBounds, index: int, A: Tensor, contract: bool, free: Free | None) -> Backs:
    """Coefficients on the inputs of a node, and the constant, that bound ``<A, node>`` from below."""
    raise NotImplementedError(f"no linear relaxation for {operator.name} at {bounds.graph.nodes[index].label}")


@singledispatch
def tightest(operator: Operator, bounds: LinearBounds, index: int, consumer: Elementwise | None) -> Interval:
    """The best bounds on a node that can be had: by walks, unless the rule of the operator is as good."""
    return bounds.walked(index, consumer)


@step.register(Affine)
def _(operator: Affine, bounds: LinearBounds, index: int, A: Tensor, contract: bool, free: Free | None) -> Backs:
    return operator.backward(A, tuple(bounds.graph.shape_of(i) for i in bounds.graph.nodes[index].inputs))


@step.register(Elementwise)
def _(operator: Elementwise, bounds: LinearBounds, index: int, A: Tensor, contract: bool, free: Free | None) -> Backs:
    return between_lines(A, lines_of(operator, bounds, index, A.shape[0], free))


def between_lines(A: Tensor, lines: Lines) -> Backs:
    """What lines make of coefficients ``[S, B, ...]``: the lower ones where these are positive."""
    rising = A >= 0
    slope = torch.where(rising, lines.lower_slope, lines.upper_slope)
    offset = torch.where(rising, lines.lower_offset, lines.upper_offset)
    return (A * slope,), (A * offset).flatten(2).sum(-1)


@tightest.register(Elementwise)
def _(operator: Elementwise, bounds: LinearBounds, index: int, consumer: Elementwise | None) -> Interval:
    return operator.interval(bounds.interval(bounds.graph.nodes[index].inputs[0], operator))


def lines_of(
    operator: Elementwise, bounds: LinearBounds, index: int, specifications: int = 1, free: Free | None = None
) -> Lines:
    """The lines around a node, moved apart by what rounding costs; free parameters move them."""
    before = bounds.graph.nodes[index].inputs[0]
    if free is None:
        return bounds.knowledge.find(
            "lines", index, lambda: charged(bounds, index, operator.lines(*bounds.interval(before, operator)))
        )
    lower, upper = (end.expand(specifications, *end.shape) for end in bounds.interval(before, operator))
    lines = operator.lines(lower, upper, free(index, "line", operator.start(lower, upper), 2))
    free.note(index, "slopes", torch.stack((lines.lower_slope, lines.upper_slope)), 2)
    return charged(bounds, index, lines)


def charged(bounds: LinearBounds, index: int, lines: Lines, entries: Tensor | None = None) -> Lines:
    """Lines moved apart by what multiplying them with coefficients and adding up their offsets may cost.

    They are those of all entries of a node, or of some, counted row by row.
    """
    if not bounds.outward:
        return lines
    node = bounds.graph.nodes[index]

    def some(t: Tensor) -> Tensor:
        return t if entries is None else t.flatten(1)[:, entries]

    size = some(bounds.sizes(node.inputs[0]))
    slopes, offsets = (lines.lower_slope, lines.upper_slope), (lines.lower_offset, lines.upper_offset)
    with torch.no_grad():
        along, up = bounds.share(1), bounds.share(math.prod(node.shape))
        below, above = (along * slope.abs() * size + up * offset.abs() for slope, offset in zip(slopes, offsets))
    offsets = offsets[0] - below, offsets[1] + above
    if not bool(size.isfinite().all()):  # no slope is worth its rounding where the node is unbounded
        bounded = size.isfinite()
        ends = [some(end) for end in node.operator.interval(bounds.interval(node.inputs[0]))]
        slopes = slopes[0].where(bounded, 0.0), slopes[1].where(bounded, 0.0)
        offsets = offsets[0].where(bounded, ends[0]), offsets[1].where(bounded, ends[1])
    return Lines(slopes[0], offsets[0], slopes[1], offsets[1])
