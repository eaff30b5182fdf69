"""Softmax inside a walk: logit differences, planes by output, the simplex multiplier.

Planes hold as they are given; combining them rounds. The coefficients of a combination are off by a share of the
slopes, which matters over the reach of the logits around the anchor, and its constant by a share of the values and of
the slopes times the anchor. All planes that may be mixed with each other are moved apart by that much beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..bounds.planes import Planes
from ..bounds.questions import softmax_bounds, softmax_planes
from ..bounds.table import find_bound
from ..graph.operator import Elementwise, Interval
from ..graph.ops.softmax import Softmax
from ..graph.rounding import outward, ulps
from ..regions import inner
from .free import Free
from .rules import Backs, step, tightest
from .structure import pieces, positions

if TYPE_CHECKING:
    from .crown import LinearBounds


# Planes of longer rows are kept in their compact form; for shorter ones one batched matrix product is faster.
_DENSE_UP_TO = 128
# Rows up to this length get further tangent planes to mix when parameters are optimised.
_MIXED_UP_TO = 32
# More logit differences than this in one softmax are left to box subtraction: without contracted products a walk
# gains little on it (0.03 % of the margin for 6936 differences of a vision transformer, at three times the cost).
_PAIRS = 4096
# More than this are not worth contracted products or gradient steps of their own.
_FEW_PAIRS = 1000


@dataclass(frozen=True)
class DensePlanes:
    """Planes below and above every probability of every row: ``value + slope @ (x - at)``.

    ``at [B, rows, K]``, values ``[B, rows, K]``, slopes ``[B, rows, K, K]``.
    """

    at: Tensor
    below: Tensor
    above: Tensor
    below_slope: Tensor
    above_slope: Tensor

    def combine(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """``<up, planes below> + <down, planes above>`` for coefficients ``[S, B, rows, K]``: slope and constant."""
        if self.below_slope.ndim == 5:  # planes of their own for every specification
            slope = (up[..., None, :] @ self.below_slope + down[..., None, :] @ self.above_slope)[..., 0, :]
            constant = up * self.below + down * self.above - slope * self.at
            return slope, constant.flatten(2).sum(-1)
        slope = up.permute(1, 2, 0, 3) @ self.below_slope + down.permute(1, 2, 0, 3) @ self.above_slope
        slope = slope.permute(2, 0, 1, 3)
        parts = ((up, self.below), (down, self.above), (slope, -self.at))
        return slope, torch.stack([inner(A.flatten(2), x.flatten(1)) for A, x in parts]).sum(0)

    def sizes(self, reach: Tensor) -> Interval:
        """How large the numbers get that make the planes within ``reach [B, rows, K]``: ``[B, rows, K]`` each."""
        below, above = ((slope.abs() @ reach[..., None])[..., 0] for slope in (self.below_slope, self.above_slope))
        return 1 + self.below.abs() + below, 1 + self.above.abs() + above

    def moved(self, below: Tensor, above: Tensor) -> DensePlanes:
        """The planes with their values changed by so much."""
        return replace(self, below=self.below + below, above=self.above + above)

    def of_rows(self, rows: Tensor) -> DensePlanes:
        """The planes of some of the rows, shared by all specifications."""
        return DensePlanes(*(getattr(self, f.name)[:, rows] for f in fields(self)))

    def take(self, instances: Tensor) -> DensePlanes:
        """The planes of some of the instances."""
        return DensePlanes(*(getattr(self, f.name)[instances] for f in fields(self)))


@dataclass(frozen=True)
class CompactPlanes:
    """The same for long rows, without forming slopes."""

    lower: Planes
    upper: Planes

    @property
    def below(self) -> Tensor:
        """Values of the lower planes at the point where they touch."""
        return self.lower.value

    @property
    def above(self) -> Tensor:
        """Values of the upper planes at the point where they touch."""
        return self.upper.value

    @property
    def at(self) -> Tensor:
        """The point where the planes touch."""
        return self.lower.at

    def sizes(self, reach: Tensor) -> Interval:
        """The size of the terms of the lower and the upper planes within ``reach``, which rounding is charged by."""
        below, above = (planes.value.abs() + planes.size_within(reach) for planes in (self.lower, self.upper))
        return 1 + below, 1 + above

    def moved(self, below: Tensor, above: Tensor) -> CompactPlanes:
        """The planes with their values changed by so much."""
        lower, upper = self.lower, self.upper
        return CompactPlanes(
            lower.at_value(lower.value + below, lower.side), upper.at_value(upper.value + above, upper.side)
        )

    def combine(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of the logits and constants, from coefficients of the lower and of the upper planes."""
        (rise, constant), (fall, rest) = self.lower.compose_left(up), self.upper.compose_left(down)
        return rise + fall, (constant + rest).sum(-1)


PlanesOfRows = DensePlanes | CompactPlanes


@step.register(Softmax)
def _(operator: Softmax, bounds: LinearBounds, index: int, A: Tensor, contract: bool, free: Free | None) -> Backs:
    return below_rows(bounds, operator.axis, A, row_planes(bounds, index, A.shape[0], free), index, free)


def below_rows(
    bounds: LinearBounds, axis: int, A: Tensor, planes: PlanesOfRows, index: int = -1, free: Free | None = None
) -> Backs:
    """What planes make of coefficients ``[S, B, ...]`` on rows of probabilities along an axis, which sum to one."""
    rows = A.movedim(axis + 2, -1)
    leading = rows.shape
    # Every instance has planes of its own, whether the coefficients differ between instances or not.
    rows = rows.reshape(*A.shape[:2], -1, leading[-1]).expand(-1, bounds.size, -1, -1)
    constant = A.new_zeros(())
    if bounds.method.simplex:
        multiplier = _multiplier(rows, planes)
        if free is not None:
            multiplier = multiplier + free(
                index, "multiplier", torch.zeros_like(multiplier), low=-math.inf, high=math.inf
            )
            free.note(index, "simplex", multiplier)
        rows = rows - multiplier
        constant = multiplier.flatten(2).sum(-1)
        constant = constant - bounds.share(rows.shape[2]) * multiplier.detach().abs().flatten(2).sum(-1)
    slope, value = planes.combine(rows.clamp(min=0), rows.clamp(max=0))
    constant = constant + value
    constant = constant - bounds.share(1) * (constant.detach().abs() + value.detach().abs())
    back = slope.reshape(slope.shape[:2] + leading[2:]).movedim(-1, axis + 2)
    return (back,), constant


@tightest.register(Softmax)
def _(operator: Softmax, bounds: LinearBounds, index: int, consumer: Elementwise | None) -> Interval:
    """Exact extrema of every probability, given the logit box and the logit differences."""
    lower, upper = operator.interval(bounds.interval(bounds.graph.nodes[index].inputs[0]))
    low, high, known = _logits(bounds, index)
    if known is None:
        return lower, upper
    axis = operator.axis
    shape = lower.movedim(axis + 1, -1).shape
    least, most = softmax_bounds(low, low, high, "const", differences=known, rounding=bounds.method.rounding)
    assert least is not None
    assert most is not None
    leak = _leak(bounds, index)
    if leak is not None:
        least, most = least - leak, most + leak
    least, most = (end.reshape(shape).movedim(-1, axis + 1) for end in (least, most))
    return torch.maximum(lower, least), torch.minimum(upper, most)


def differences(bounds: LinearBounds, index: int) -> Interval | None:
    """Bounds on ``x_j - x_k`` by walks on the differences, met with the box."""
    method = bounds.method
    if not method.differences or _pairs(bounds, index) > _PAIRS:
        return None
    node = bounds.graph.nodes[index]
    axis = _axis(bounds, index)
    lower, upper = (_rows(end, axis) for end in bounds.interval(node.inputs[0]))
    low, high = lower[..., :, None] - upper[..., None, :], upper[..., :, None] - lower[..., None, :]
    found = outward(low, high) if bounds.outward else (low, high)
    contract = method.contract and _pairs(bounds, index) <= _FEW_PAIRS
    return _tighten(bounds, index, found, lambda i, C: bounds.between(i, C, contract))


def _logits(bounds: LinearBounds, index: int) -> tuple[Tensor, Tensor, Interval | None]:
    """The box of the logits ``[B, rows, K]`` and what is known of their differences."""
    axis = _axis(bounds, index)
    lower, upper = (_rows(end, axis) for end in bounds.interval(bounds.graph.nodes[index].inputs[0]))
    found = bounds.differences(index)
    visible = _visible(bounds, index)
    if visible is not None:
        lower, upper = (end.masked_fill(~visible, -math.inf) for end in (lower, upper))
    if found is None:
        return lower, upper, None
    if visible is not None:  # differences are those of the logits before the mask
        pairs = visible[..., :, None] & visible[..., None, :]
        found = found[0].masked_fill(~pairs, math.nan), found[1].masked_fill(~pairs, math.nan)
    # Rounding of later subtractions must not make the box and its differences contradict each other.
    low, high = _unmasked(lower, upper)
    slack = ulps(8, lower.dtype) * (low.abs() + high.abs()).amax(-1)[..., None, None]
    least = torch.minimum(found[0], high[..., :, None] - low[..., None, :]) - slack
    most = torch.maximum(found[1], low[..., :, None] - high[..., None, :]) + slack
    least, most = torch.minimum(least, most), torch.maximum(least, most)
    return lower, upper, (_known(least, -math.inf), _known(most, math.inf))


def _visible(bounds: LinearBounds, index: int) -> Tensor | None:
    """Which logits ``[rows, K]`` of a softmax its mask leaves; None without one."""
    node = bounds.graph.nodes[index]
    assert isinstance(node.operator, Softmax)
    if node.operator.masked is None:
        return None
    return ~_rows(node.operator.masked.expand(1, *node.shape), node.operator.axis)[0]


def _leak(bounds: LinearBounds, index: int) -> Tensor | None:
    """At least the masked probabilities ``[B, rows, 1]`` of every row together; None without a mask."""
    node = bounds.graph.nodes[index]
    assert isinstance(node.operator, Softmax)
    if node.operator.mask is None:
        return None
    return _rows(node.operator.leak(*bounds.interval(node.inputs[0])), node.operator.axis)


def _unmasked(lower: Tensor, upper: Tensor) -> Interval:
    """The box with logits of -inf, which have probability 0 whatever the others do, put at 0."""
    masked = upper == -math.inf
    return lower.masked_fill(masked, 0.0), upper.masked_fill(masked, 0.0)


def _known(bound: Tensor, nothing: float) -> Tensor:
    """Differences with a masked logit are NaN: nothing is known of them."""
    return torch.where(bound.isnan(), torch.full_like(bound, nothing), bound)


def better_differences(
    bounds: LinearBounds, index: int, lower_bound: Callable[[int, Tensor], Tensor]
) -> Interval | None:
    """The known differences of one softmax met with those by other lower bounds; None where there are too many."""
    found = bounds.differences(index)
    if found is None or _pairs(bounds, index) > _FEW_PAIRS:
        return None

    def between(node: int, C: Tensor) -> Interval:
        both = lower_bound(node, torch.cat((C, -C)))
        return both[: len(C)], -both[len(C) :]

    return _tighten(bounds, index, found, between)


def _pairs(bounds: LinearBounds, index: int) -> int:
    """How many differences of visible logits there are in all rows."""
    shape = bounds.graph.nodes[index].shape
    visible = _visible(bounds, index)
    if visible is None:
        return math.prod(shape) * (shape[_axis(bounds, index)] - 1) // 2
    counts = visible.sum(-1)
    return int((counts * (counts - 1) // 2).sum())


def _tighten(bounds: LinearBounds, index: int, found: Interval, between: Callable[[int, Tensor], Interval]) -> Interval:
    """Bounds ``[B, rows, K, K]`` on all differences met with those that ``between`` gives."""
    node = bounds.graph.nodes[index]
    low, high = (end.clone() for end in found)
    B, R, K, _ = low.shape
    size = math.prod(node.shape)
    first, second = torch.triu_indices(K, K, 1, device=low.device)
    entries = torch.arange(size, device=low.device).reshape(node.shape).movedim(_axis(bounds, index), -1).reshape(R, K)
    plus, minus = entries[:, first].flatten(), entries[:, second].flatten()  # all pairs of row 0, then of row 1, ...
    visible = _visible(bounds, index)
    wanted = positions(plus)
    if visible is not None:
        wanted = (visible[:, first] & visible[:, second]).flatten().nonzero()[:, 0]
        plus, minus = plus[wanted], minus[wanted]
    parts = []
    for part in pieces(positions(plus), bounds.chunk(node.inputs[0])):
        bounds.check_time()
        C = low.new_zeros(len(part), 1, size)
        C[positions(part), 0, plus[part]] = 1
        C[positions(part), 0, minus[part]] = -1
        parts.append(between(node.inputs[0], C.reshape(len(part), 1, *node.shape)))
    if not parts:
        return found

    def table(ends: tuple[Tensor, ...], nothing: float) -> Tensor:
        every = low.new_full((B, R * len(first)), nothing)
        every[:, wanted] = torch.cat(ends).T
        return every.reshape(B, R, -1)

    least, most = (table(ends, nothing) for ends, nothing in zip(zip(*parts), (-math.inf, math.inf)))
    low[..., first, second] = torch.maximum(low[..., first, second], least)
    high[..., first, second] = torch.minimum(high[..., first, second], most)
    low[..., second, first] = torch.maximum(low[..., second, first], -most)
    high[..., second, first] = torch.minimum(high[..., second, first], -least)
    return low, high


def row_planes(bounds: LinearBounds, index: int, specifications: int = 1, free: Free | None = None) -> PlanesOfRows:
    """Planes of all rows of one softmax; free parameters mix them with others."""
    knowledge = bounds.knowledge
    planes = knowledge.find("planes", index, lambda: _charged(bounds, index, [_tangent_planes(bounds, index)])[0])
    if free is None or planes.below.shape[-1] > _MIXED_UP_TO:
        return planes

    def to_mix() -> list[Any]:
        further = _further_planes(bounds, index)
        # Only planes of one anchor may be mixed.
        first = planes if torch.equal(planes.at, further[0].at) else _tangent_planes(bounds, index)
        return _charged(bounds, index, [first, *further])

    planes, *further = knowledge.find("mixed planes", index, to_mix)
    start = planes.at.new_zeros(2, specifications, *planes.at.shape, len(further))
    shares = free(index, "planes", start, axis=2)
    for i, other in enumerate(further):
        low, high = shares[..., i]
        planes = DensePlanes(
            planes.at,
            planes.below + low * (other.below - planes.below),
            planes.above + high * (other.above - planes.above),
            planes.below_slope + low[..., None] * (other.below_slope - planes.below_slope),
            planes.above_slope + high[..., None] * (other.above_slope - planes.above_slope),
        )
    return planes


def touching(bounds: LinearBounds, index: int, at: Tensor) -> LinearBounds:
    """Bounds whose planes of one softmax are tangent at logits ``[B, rows, K]``, moved into their box, if not too long.

    Where parameters are optimised, planes tangent at the middle are mixed with others, as ever.
    """
    if at.shape[-1] > _DENSE_UP_TO:
        return bounds
    with torch.no_grad():
        lower, upper, known = _logits(bounds, index)
        at = torch.minimum(torch.maximum(at, lower), upper)
        (planes,) = _charged(bounds, index, [_dense(*_both_sides(bounds, lower, upper, at, known))])
    return bounds.knowing(bounds.knowledge.with_planes(index, planes))


def meeting(bounds: LinearBounds, index: int, other: DensePlanes) -> LinearBounds:
    """Bounds whose planes of one softmax are, output by output, those of ``other`` where these are surely closer.

    Both sides of ``other`` are parallel, so that it is nowhere off by more than the distance between them. The planes
    there are give way where they are off by as much at their best, the anchor.
    """
    planes = row_planes(bounds, index)
    if not isinstance(planes, DensePlanes):
        return bounds
    moved = planes.at - other.at
    cost = bounds.share(moved.shape[-1])
    size = planes.at.abs() + other.at.abs()

    def at_anchor(value: Tensor, slope: Tensor, side: int) -> Tensor:
        return value + (slope @ moved[..., None])[..., 0] + side * cost * (slope.abs() @ size[..., None])[..., 0]

    below = at_anchor(other.below, other.below_slope, -1)
    above = at_anchor(other.above, other.above_slope, 1)
    (new,) = _charged(bounds, index, [DensePlanes(planes.at, below, above, other.below_slope, other.above_slope)])
    apart = new.above - new.below
    low, high = new.below - planes.below >= apart, planes.above - new.above >= apart
    if not bool(low.any() | high.any()):
        return bounds
    found = DensePlanes(
        planes.at,
        torch.where(low, new.below, planes.below),
        torch.where(high, new.above, planes.above),
        torch.where(low[..., None], new.below_slope, planes.below_slope),
        torch.where(high[..., None], new.above_slope, planes.above_slope),
    )
    return bounds.knowing(bounds.knowledge.with_planes(index, found))


def _tangent_planes(bounds: LinearBounds, index: int) -> PlanesOfRows:
    """The planes of the method's bound at the midpoint of the logit box."""
    lower, upper, known = _logits(bounds, index)
    if bounds.method.pad_pairs and lower.shape[-1] == 2:
        masked = lower.new_full((*lower.shape[:-1], 1), -math.inf)
        low, high = (torch.cat((end, masked), -1) for end in (lower, upper))
        planes = _dense(*_both_sides(bounds, low, high, None, None, outputs=(0, 1)))
        return DensePlanes(
            planes.at[..., :2],
            planes.below,
            planes.above,
            planes.below_slope[..., :2],
            planes.above_slope[..., :2],
        )
    below, above = _both_sides(bounds, lower, upper, _centre(lower, upper, known), known)
    return CompactPlanes(below, above) if lower.shape[-1] > _DENSE_UP_TO else _dense(below, above)


def _charged(bounds: LinearBounds, index: int, planes: list[Any]) -> list[Any]:
    """Planes of one anchor moved apart by what mixing them and combining them with coefficients may cost."""
    leak = _leak(bounds, index)
    if leak is not None:
        planes = [some.moved(-leak, leak) for some in planes]
    if not bounds.outward:
        return planes
    low, high = _unmasked(*_logits(bounds, index)[:2])
    at = planes[0].at
    reach = 1 + 2 * (torch.maximum(high - at, at - low) + at.abs())
    # Sums over the outputs for a slope, over all of them and their rows for the constant; mixing takes a few more.
    cost = bounds.share(3 * math.prod(at.shape[1:]) + 32)
    below, above = (torch.stack(sizes).amax(0) for sizes in zip(*(some.sizes(reach) for some in planes)))
    return [some.moved(-cost * below, cost * above) for some in planes]


def _centre(lower: Tensor, upper: Tensor, known: Interval | None) -> Tensor:
    """A point of the box whose differences are, in the least squares sense, in the middle of their intervals."""
    low, high = _unmasked(lower, upper)
    middle = low + (high - low) / 2
    if known is None:
        return middle
    visible = (upper > -math.inf).to(middle)
    share = visible / visible.sum(-1, keepdim=True).clamp(min=1)  # the mean over what is visible
    apart = known[0] + (known[1] - known[0]) / 2
    apart = torch.where(apart.isfinite(), apart, middle[..., :, None] - middle[..., None, :])
    apart = (apart * share[..., None, :]).sum(-1)
    level = ((middle - apart) * share).sum(-1, keepdim=True)
    return torch.minimum(torch.maximum(apart + level, low), high)


def _further_planes(bounds: LinearBounds, index: int) -> list[DensePlanes]:
    """Constant planes, and for every output tangent planes where its own logit is low and where it is high."""
    lower, upper, known = _logits(bounds, index)
    anchor, mode = _centre(lower, upper, known), bounds.method.rounding
    constant = softmax_planes(lower, upper, "const", anchor, known, rounding=mode)
    found = [_dense(constant.lower, constant.upper)]
    at = found[0].at
    K = lower.shape[-1]
    least, most = _unmasked(lower, upper)
    towards = (2 * torch.eye(K, dtype=lower.dtype, device=lower.device) - 1) * (most - least)[..., None, :] / 4
    anchors = at[..., None, :] + torch.stack((-towards, towards))  # [2, B, rows, K outputs, K]

    def repeated(t: Tensor) -> Tensor:
        return t.unsqueeze(2).expand(2, *t.shape[:2], K, *t.shape[2:])

    anchors = torch.minimum(torch.maximum(anchors, repeated(least)), repeated(most))
    apart = known and (repeated(known[0]), repeated(known[1]))
    below, above = _both_sides(bounds, repeated(lower), repeated(upper), anchors, apart)
    values, slopes = [], []
    for planes in (below, above):
        slopes.append(planes.rows(0, K).diagonal(dim1=-3, dim2=-2).mT)  # every output at its own anchors
        own = planes.value.diagonal(dim1=-2, dim2=-1)
        values.append(own + (slopes[-1] * (at[..., None, :] - anchors)).sum(-1))
    for side in range(2):
        found.append(DensePlanes(at, values[0][side], values[1][side], slopes[0][side], slopes[1][side]))
    return found


def _both_sides(
    bounds: LinearBounds,
    lower: Tensor,
    upper: Tensor,
    at: Tensor | None,
    known: Interval | None,
    outputs: Any = None,
) -> tuple[Planes, Planes]:
    """Planes below and above; a bound that lacks one side borrows that of ``lse``."""
    name, mode = bounds.method.bound, bounds.method.rounding
    row = find_bound(name)
    found = softmax_planes(lower, upper, name, at, known, outputs, rounding=mode)
    other = found
    if not (row.lower and row.upper):
        other = softmax_planes(lower, upper, "lse", at, known, outputs, rounding=mode)
    return found.lower or other.lower, found.upper or other.upper


def _dense(lower: Planes, upper: Planes) -> DensePlanes:
    K = lower.value.shape[-1]
    return DensePlanes(lower.at, lower.value, upper.value, lower.rows(0, K), upper.rows(0, K))


def _multiplier(rows: Tensor, planes: PlanesOfRows) -> Tensor:
    """The multiplier of ``sum_k p_k = 1`` that is best for the planes at their anchor; one of the coefficients.

    The bound is concave and piecewise linear in the multiplier; its slope after the t smallest coefficients is
    ``1 - sum of their upper values - sum of the lower values of the others``, and the optimum is where it turns.
    """
    ascending, order = rows.sort(-1)
    apart = (planes.above - planes.below).expand(rows.shape).gather(-1, order)
    slope = 1 - planes.below.sum(-1, keepdim=True) - apart.cumsum(-1)
    turn = (slope <= 0).to(torch.int8)
    turn[..., -1] = 1
    return ascending.gather(-1, turn.argmax(-1, keepdim=True))


def _axis(bounds: LinearBounds, index: int) -> int:
    operator = bounds.graph.nodes[index].operator
    assert isinstance(operator, Softmax)
    return operator.axis


def _rows(t: Tensor, axis: int) -> Tensor:
    """``[B, *shape]`` as ``[B, rows, K]``."""
    moved = t.movedim(axis + 1, -1)
    return moved.reshape(moved.shape[0], -1, moved.shape[-1])
