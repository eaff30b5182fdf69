"""Products of two variable tensors: McCormick planes, term by term or on contracted factors.

The planes are exact for the numbers they are made of: with any middle ``m`` and any weights the remainder is bounded
by the ends of the intervals. What rounding adds to a coefficient or a constant is a share of the product of the largest
absolute values of the two factors, and is charged with it to the constant.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.operator import Bilinear, Interval
from ..graph.ops.matmul import MatMul
from ..graph.ops.softmax import Softmax
from ..graph.rounding import largest
from . import contraction
from .free import Free
from .rules import Backs, step
from .scalar_products import are_pairs, remainders
from .spread import spread

if TYPE_CHECKING:
    from .crown import LinearBounds


@step.register(Bilinear)
def _(operator: Bilinear, bounds: LinearBounds, index: int, C: Tensor, contract: bool, free: Free | None) -> Backs:
    found = None
    if contract:
        found = contraction.contract(bounds, index, C, free)
    elif free is None and bounds.method.simplex:
        found = contraction.mixed(bounds, index, C)
    if found is None:
        return _term_by_term(operator, bounds, index, C, free)
    coefficients, constant, rest = found
    if rest is None:
        return coefficients, constant
    backs, more = _term_by_term(operator, bounds, index, rest, None)
    sums = tuple(ours + theirs for ours, theirs in zip(coefficients, backs))
    constant = constant + more
    if bounds.outward:
        for i, total in zip(bounds.graph.nodes[index].inputs, sums):
            constant = constant - bounds.share(1) * bounds.charge(total, bounds.sizes(i))
        constant = constant - bounds.share(1) * (constant.detach().abs() + more.detach().abs())
    return sums, constant


def prepare_jointly(bounds: LinearBounds) -> None:
    """Find what walks that take factors together need, first to last and once for all rows that are walked later."""
    for index, node in enumerate(bounds.graph.nodes):
        if isinstance(node.operator, Softmax):
            bounds.interval(index)
            bounds.differences(index)
        elif are_pairs(bounds, index):
            remainders(bounds, index)
        elif not contraction.is_mixed(bounds, index) and (side := _probabilities(bounds, index)) is not None:
            masked = bounds.structure.masked(node.inputs[side]) is not None
            if not masked:
                spread(bounds, node.inputs[1 - side], flipped=side == 1)


def _probabilities(bounds: LinearBounds, index: int) -> int | None:
    """Which factor of a product holds probabilities, row by row, that mix the lines of the other; None: neither."""
    node = bounds.graph.nodes[index]
    operator, rank = node.operator, len(node.shape)
    if not isinstance(operator, MatMul) or len(operator.left) < 2 or operator.left[:-2] != operator.right[:-2]:
        return None
    for side, axis in ((0, rank - 1), (1, rank - 2)):
        if bounds.structure.rows_are_softmax(node.inputs[side], axis) and node.inputs[1 - side] >= 0:
            return side
    return None


def _term_by_term(operator: Bilinear, bounds: LinearBounds, index: int, C: Tensor, free: Free | None) -> Backs:
    """Masked probabilities are left out, for what they may cost, so that nothing behind a mask is walked."""
    node = bounds.graph.nodes[index]
    intervals = [bounds.interval(i) for i in node.inputs]
    shut = [bounds.structure.masked(i) if isinstance(operator, MatMul) else None for i in node.inputs]
    for side, masked in enumerate(shut):
        if masked is not None:
            lower, upper = intervals[side]
            intervals[side] = lower * ~masked, upper * ~masked
    mixing = _probabilities(bounds, index) if bounds.joint and free is None else None
    if mixing is not None and shut[mixing] is None:
        return _mixed_lines(operator, bounds, index, C, mixing, *intervals)
    together = bounds.joint and free is None and are_pairs(bounds, index)
    most = remainders(bounds, index) if together else None
    x, y = intervals
    backs, constant = planes_below(operator, bounds, index, C, free, x, y, most)
    for side, masked in enumerate(shut):
        if masked is not None:
            backs = tuple(back * ~masked if i == side else back for i, back in enumerate(backs))
            constant = constant - contraction.cost_of_masked(bounds, index, side, C)
    return backs, constant


def _mixed_lines(
    operator: Bilinear, bounds: LinearBounds, index: int, C: Tensor, side: int, x: Interval, y: Interval
) -> Backs:
    """The tangent of a product at the centres of its factors, ``side`` of which holds probabilities.

    It leaves out ``sum_ij dp_ij du_ij``, where u_ij is what row i of the coefficients makes of line j of the other one.
    That is bounded by how far the entries of a line move together, or one by one where that is better.
    """
    node = bounds.graph.nodes[index]
    lines = spread(bounds, node.inputs[1 - side], flipped=side == 1)

    def turned(t: Tensor) -> Tensor:
        return t.mT if side == 1 else t

    (least, most), (low, high) = (x, y) if side == 0 else (y, x)
    radius = (most - least) / 2
    away = torch.maximum(turned(high) - lines.middle, lines.middle - turned(low))
    rows = turned(C).expand(-1, bounds.size, *C.shape[2:])
    reach = torch.minimum(lines.reach(rows), rows.abs() @ away.mT)
    centres = [least + radius, turned(lines.middle)]
    sizes = [largest(least, most), torch.maximum(largest(low, high), turned(lines.middle).abs())]
    if side == 1:
        centres.reverse()
        sizes.reverse()
    constant = torch.einsum("sbn,bn->sb", C.flatten(2).expand(-1, bounds.size, -1), operator.value(*centres).flatten(1))
    constant = constant + (reach * turned(radius)).flatten(2).sum(-1)
    if bounds.outward:
        # Sums over the entries of the product and the inner dimension, for the tangent and for what it leaves out.
        with torch.no_grad():
            terms = math.prod(node.shape) + radius.shape[-1] + radius.shape[-2] + 16
            constant = constant + bounds.charge(C, 8 * bounds.share(terms) * operator.value(*sizes))
    on_x, on_y = (operator.contract(C, k, centres[1 - k].unsqueeze(0)) for k in (0, 1))
    return (on_x, on_y), -constant


def planes_below(
    operator: Bilinear,
    bounds: LinearBounds,
    index: int,
    C: Tensor,
    free: Free | None,
    x: Interval,
    y: Interval,
    most: Tensor | None = None,
) -> Backs:
    """One pair of McCormick planes per scalar product, mixed per output entry and shared along the inner dimension.

    ``most``: at most how far every entry is from its tangent at the centres, which is what equal weights make of them.
    """
    node = bounds.graph.nodes[index]
    (lx, ux), (ly, uy) = x, y

    def pull(coefficients: Tensor, side: int, other: Tensor) -> Tensor:
        return operator.contract(coefficients, side, other.unsqueeze(0))

    def inner(coefficients: Tensor, x: Tensor, y: Tensor) -> Tensor:
        value = operator.value(x, y).flatten(1)
        return torch.einsum("sbn,bn->sb", coefficients.flatten(2).expand(-1, value.shape[0], -1), value)

    def charge() -> Tensor | float:
        if not bounds.outward:
            return 0.0
        # Sums over the entries of the product for coefficients, over these and the inner dimension for the constant.
        terms = math.prod(node.shape) + lx.shape[-1] + 16
        with torch.no_grad():
            return bounds.charge(C, 4 * bounds.share(terms) * operator.value(largest(lx, ux), largest(ly, uy)))

    if free is None and bounds.method.mixture == 0.5:
        # Equal weights: the tangent of the product at the centre, and the product of the half-widths as remainder.
        rx, ry = (ux - lx) / 2, (uy - ly) / 2
        mx, my = lx + rx, ly + ry
        constant = inner(C, mx, my) + charge()
        if most is None:
            constant = constant + inner(C.abs(), rx, ry)
        else:
            constant = constant + bounds.charge(C, torch.minimum(operator.value(rx, ry), most))
        return (pull(C, 0, my), pull(C, 1, mx)), -constant
    default = C.new_full((2, C.shape[0], bounds.size, *C.shape[2:]), bounds.method.mixture)
    # below: weight of the lower plane through (lx, ly); above: weight of the upper plane through (lx, uy).
    below, above = default if free is None else free(index, "mixture", default, axis=2)
    up, down = C.clamp(min=0), C.clamp(max=0)
    up_low, up_high, down_low, down_high = up * below, up * (1 - below), down * above, down * (1 - above)
    on_x = pull(up_low + down_high, 0, ly) + pull(up_high + down_low, 0, uy)
    on_y = pull(up_low + down_low, 1, lx) + pull(up_high + down_high, 1, ux)
    constant = inner(up_low, lx, ly) + inner(up_high, ux, uy) + inner(down_low, lx, uy) + inner(down_high, ux, ly)
    return (on_x, on_y), -(constant + charge())
