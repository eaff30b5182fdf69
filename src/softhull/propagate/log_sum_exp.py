"""How walks pass operators with one plane below and one above every output, as a log-sum-exp has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.ops.log_sum_exp import LogSumExp, Support
from .free import Free
from .rules import Backs, step

if TYPE_CHECKING:
    from .crown import LinearBounds


@step.register(LogSumExp)
def _(operator: LogSumExp, bounds: LinearBounds, index: int, A: Tensor, contract: bool, free: Free | None) -> Backs:
    before = bounds.graph.nodes[index].inputs[0]
    return by_planes(bounds, index, A, operator.axes, lambda: operator.planes(*bounds.interval(before)))


def by_planes(bounds: LinearBounds, index: int, A: Tensor, axes: tuple[int, ...], find: Callable[[], Support]) -> Backs:
    """The step of an operator with planes around every output, whose inputs lie along some axes."""
    planes = planes_of(bounds, index, axes, find)
    rising = A >= 0
    slope = torch.where(rising, planes.below, planes.above)
    offset = torch.where(rising, planes.below_offset, planes.above_offset)
    return (A * slope,), (A * offset).flatten(2).sum(-1)


def planes_of(bounds: LinearBounds, index: int, axes: tuple[int, ...], find: Callable[[], Support]) -> Support:
    """The planes around every output, which pay for being multiplied and added up."""
    return bounds.knowledge.find("lines", index, lambda: _charged(bounds, index, axes, find()))


def _charged(bounds: LinearBounds, index: int, axes: tuple[int, ...], planes: Support) -> Support:
    """Planes moved apart by what multiplying them with coefficients and adding up their offsets may cost."""
    node = bounds.graph.nodes[index]
    if not bounds.outward:
        return planes
    dims = tuple(axis + 1 for axis in axes)
    size = bounds.sizes(node.inputs[0])
    along, up = bounds.share(1), bounds.share(math.prod(node.shape))

    def cost(slope: Tensor, offset: Tensor) -> Tensor:
        return along * (slope.abs() * size).sum(dims, keepdim=True) + up * offset.abs()

    below, above = cost(planes.below, planes.below_offset), cost(planes.above, planes.above_offset)
    return replace(planes, below_offset=planes.below_offset - below, above_offset=planes.above_offset + above)
