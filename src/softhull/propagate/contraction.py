"""Contract before relaxing: matrix products met with coefficients C.

``<C, X @ Y> = sum_ij C_ij sum_k X_ik Y_kj`` is a sum of products of linear functions of X and of Y that belong to this
specification. Bounding those functions by walks of their own and relaxing their few products loses less than relaxing
every scalar product. Three ways to write the sum:

- keep X: ``sum_ik X_ik u_ik`` with ``u = C @ Y'``;
- keep X whose rows are probabilities: ``sum_ik r_ik u_ik + sum_ik X_ik (u_ik - sum_m r_im u_im)`` for any reference
  weights r that sum to one, so that only differences of values are multiplied;
- keep neither: with orthonormal columns V, ``C = (C V) V' + rest``, and the sum is
  ``sum_rk ((C V)' X)_rk (Y V)_kr + <rest, X @ Y>``; for singular vectors V of C the rest is rounding.

The numbers C, r, V and C V are taken as they were computed; only ``rest`` and the coefficients that go back are charged
for their rounding, in terms of the largest absolute values of X and Y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.broadcast import align, broadcast
from ..graph.operator import Interval
from ..graph.ops.matmul import MatMul
from ..graph.rounding import largest, share
from .free import Free
from .shadow import MIXTURES, Function, Shadow, clearly_above, combined, few, lower_function, shadow, together
from .structure import pieces, positions

if TYPE_CHECKING:
    from .crown import LinearBounds

# Coefficients on both factors, constant, and what is left of C to be relaxed otherwise.
Found = tuple[tuple[Tensor, Tensor], Tensor, Tensor | None]

# Singular values below this share of the largest are left to the rest.
_NEGLIGIBLE = 1e-9


def contract(bounds: LinearBounds, index: int, C: Tensor, free: Free | None) -> Found | None:
    """A lower bound on ``<C, product>`` from contracted factors, or None where they would be too many."""
    node = bounds.graph.nodes[index]
    operator = node.operator
    if not isinstance(operator, MatMul) or len(operator.left) < 2 or operator.left[:-2] != operator.right[:-2]:
        return None
    left, right = node.inputs
    rank = len(node.shape)
    for kept, axis, flipped in ((left, rank - 1, False), (right, rank - 2, True)):
        if bounds.structure.rows_are_softmax(kept, axis):
            return _keep_one(bounds, index, C, flipped, bounds.method.simplex, free)
    # A choice by the batch size would give one instance other bounds alone than among others.
    used = (C != 0).any(1)
    rows, columns = used.any(-1).sum(-1), used.any(-2).sum(-1)
    if bool(((rows > 1) & (columns > 1)).any()):
        return _keep_neither(bounds, index, C, free)
    return _keep_one(bounds, index, C, int(columns.sum()) < int(rows.sum()), False, free)


def mixed(bounds: LinearBounds, index: int, C: Tensor) -> Found | None:
    """The same without a walk, for values mixed by probabilities, from what the values are as functions of the input.

    None where these are too many: their walks are then better spent otherwise.
    """
    flipped = _mixing(bounds, index)
    return None if flipped is None else _keep_one(bounds, index, C, flipped, False, None, True)


def is_mixed(bounds: LinearBounds, index: int) -> bool:
    """Whether that is how a product is taken."""
    return _mixing(bounds, index) is not None


def _mixing(bounds: LinearBounds, index: int) -> bool | None:
    """Whether it is the right factor that holds the probabilities; None where walks are better spent otherwise."""
    node = bounds.graph.nodes[index]
    operator = node.operator
    if not isinstance(operator, MatMul) or len(operator.left) < 2 or operator.left[:-2] != operator.right[:-2]:
        return None
    rank = len(node.shape)
    for (kept, inner), axis, flipped in ((node.inputs, rank - 1, False), (node.inputs[::-1], rank - 2, True)):
        if bounds.structure.rows_are_softmax(kept, axis):
            return flipped if few(bounds, inner) and few(bounds, kept) and inner >= 0 else None
    return None


def _keep_one(
    bounds: LinearBounds,
    index: int,
    C: Tensor,
    flipped: bool,
    simplex: bool,
    free: Free | None,
    shadowed: bool = False,
) -> Found | None:
    """The left factor is kept and the right one contracted; ``flipped`` exchanges them by transposing everything.

    ``shadowed``: the contracted factor is bounded by combining functions of the input, not by walks.
    """
    node = bounds.graph.nodes[index]
    kept, inner = reversed(node.inputs) if flipped else node.inputs
    lower, upper = (end.mT if flipped else end for end in bounds.interval(kept))
    leading, inner_size = lower.shape[1:-1], lower.shape[-1]
    groups = math.prod(leading[:-1])
    lower, upper = (end.reshape(-1, groups, leading[-1], inner_size) for end in (lower, upper))
    rows = (C.mT if flipped else C).reshape(*C.shape[:2], groups, leading[-1], -1)
    seen = torch.ones(1, 1, inner_size, dtype=torch.bool, device=lower.device)
    if (masked := bounds.structure.masked(kept)) is not None:
        seen = ~(masked.mT if flipped else masked).reshape(groups, leading[-1], inner_size)
        lower, upper = lower * seen, upper * seen
    reference = _reference(lower, upper) if simplex else None

    def bound_rows() -> Interval | None:
        return _bound_rows(bounds, inner, rows, seen, reference, flipped)

    share: Tensor | None = None
    found: Interval | None
    if shadowed:
        by_shadow = _shadowed_rows(bounds, kept, inner, rows, (lower, upper), flipped)
        found, share = (by_shadow.low, by_shadow.high), by_shadow.share
    else:
        found = bound_rows() if free is None or rows.requires_grad else free.remember(index, "rows", bound_rows)
    if found is None:
        return None
    on_kept, on_rows, constant = _relax_products(bounds, index, (lower, upper), found, leading[-1], free, share)
    if free is not None:
        free.note(index, "kept", torch.full((1, 1), int(flipped)))
    weights = on_rows.detach().abs()
    if reference is not None:
        on_rows = on_rows + reference * (1 - on_rows.sum(-1, keepdim=True))
        weights = weights + reference * (1 + weights.sum(-1, keepdim=True))
    if bounds.outward:
        sizes = bounds.sizes(inner).mT if flipped else bounds.sizes(inner)
        sizes = sizes.reshape(-1, groups, inner_size, rows.shape[-1])
        lines = rows.detach().abs() @ sizes.mT  # the size of every inner line combined by every row
        cost = bounds.share(leading[-1] + inner_size)
        constant = constant - cost * _bounded_sum(weights, lines)
    if masked is not None:
        on_kept = on_kept * seen
        constant = constant - cost_of_masked(bounds, index, int(flipped), C)
    S, B = on_kept.shape[:2]
    back_kept = on_kept.reshape(S, B, *leading, inner_size)
    back_inner = (on_rows.mT @ rows).reshape(S, B, *leading[:-1], inner_size, -1)
    pair = (back_inner.mT, back_kept.mT) if flipped else (back_kept, back_inner)
    return pair, constant, None


def cost_of_masked(bounds: LinearBounds, index: int, side: int, C: Tensor) -> Tensor:
    """What leaving out the masked probabilities of one side costs ``<C, product>`` at most, ``[S, B]``.

    Those of a row together, t, meet lines of at most s: without them the product misses ``t s``, and another ``t s``
    where the rest of the row is taken to add up to one.
    """
    operator, inputs = bounds.graph.nodes[index].operator, bounds.graph.nodes[index].inputs
    assert isinstance(operator, MatMul)
    masked = bounds.structure.masked(inputs[side])
    assert masked is not None
    rank = max(len(operator.left), len(operator.right))
    sizes, masked = [align(bounds.sizes(i), rank, 1) for i in inputs], align(masked[None], rank, 1)
    total = (sizes[side] * masked).sum(-1 - side, keepdim=True)
    most = sizes[1 - side].amax(side - 2, keepdim=True)
    lost = total @ most if side == 0 else most @ total
    lost = torch.where(total == 0, 0.0, lost)  # whatever the lines are, also where they are unbounded
    return bounds.charge(C, 2 * lost * (1 + share(masked.shape[-1 - side] + 8, lost.dtype)))


def _keep_neither(bounds: LinearBounds, index: int, C: Tensor, free: Free | None) -> Found | None:
    """Both factors contracted with singular vectors of C."""
    node = bounds.graph.nodes[index]
    left, right = node.inputs
    left_shape, right_shape = (bounds.graph.shape_of(i) for i in node.inputs)
    S, B = C.shape[:2]
    inner_size = left_shape[-1]
    matrices = C.reshape(S, B, -1, *C.shape[-2:])
    if not matrices.isfinite().all():
        return None
    _, sizes, vectors = torch.linalg.svd(matrices.detach(), full_matrices=False)
    rank = max(1, int((sizes > _NEGLIGIBLE * sizes[..., :1]).flatten(0, 2).any(0).sum()))
    if S * matrices.shape[2] * rank * inner_size > bounds.method.contract_limit:
        return None
    basis = vectors[..., :rank, :].mT
    amounts = matrices @ basis  # [S, B, groups, I, R]
    rest = (matrices - amounts @ basis.mT).reshape(C.shape)
    x = _bound_combinations(bounds, left, amounts, inner_size, transposed=True)
    y = _bound_combinations(bounds, right, basis, inner_size, transposed=False)
    on_x, on_y, constant = _relax_products(bounds, index, x, y, sizes.shape[-1], free)
    if free is not None:
        free.note(index, "basis", vectors.mT)
    back_left = (amounts @ on_x).reshape(S, B, *left_shape)
    back_right = (basis @ on_y).mT.reshape(S, B, *right_shape)
    if bounds.outward:
        with torch.no_grad():
            # What the decomposition misses of C, and the coefficients that go back.
            missed = (matrices.abs() + amounts.abs() @ basis.abs().mT).reshape(C.shape)
            cost = bounds.share(rank + 2) * (
                bounds.charge(missed, _sizes_of_terms(bounds, index))
                + bounds.charge((amounts.abs() @ on_x.abs()).reshape(back_left.shape), bounds.sizes(left))
                + bounds.charge((basis.abs() @ on_y.abs()).mT.reshape(back_right.shape), bounds.sizes(right))
            )
        constant = constant - cost
    return (back_left, back_right), constant, rest


def _sizes_of_terms(bounds: LinearBounds, index: int) -> Tensor:
    """The sum of the absolute values of the scalar products that make every entry, at most."""
    node = bounds.graph.nodes[index]
    return node.operator.value(*(bounds.sizes(i) for i in node.inputs))


def _bounded_sum(weights: Tensor, sizes: Tensor) -> Tensor:
    """The sum of all products of two arrays of absolute values; 0 times unbounded is 0."""
    return torch.where(weights == 0, 0.0, weights * sizes).flatten(2).sum(-1)


def _relax_products(
    bounds: LinearBounds,
    index: int,
    x: Interval,
    y: Interval,
    rows: int,
    free: Free | None,
    share: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients on x and on y and the constant ``[S, B]`` of a plane below the sum of all ``x * y``.

    ``share``: the weights of the planes through the lower ends, by default those of the method.
    The last but one dimension counts up to ``rows``; a rank may use fewer of them in one gradient step than in another.
    """
    (lx, ux), (ly, uy) = x, y
    whole = broadcast(lx.shape, ly.shape)
    *leading, used, inner_size = whole
    low = ly.new_full((*leading, rows, inner_size), bounds.method.mixture) if share is None else share
    if free is not None:
        low = free(index, "product", low)
    low = low[..., :used, :]
    high = 1 - low
    constant = -(low * lx * ly + high * ux * uy).flatten(2).sum(-1)
    if bounds.outward:  # the weights add up to one up to rounding, as do all that is made with them
        with torch.no_grad():
            size = _bounded_sum(largest(lx, ux), largest(ly, uy))
        constant = constant - 4 * bounds.share(math.prod(whole[2:])) * size
    return low * ly + high * uy, low * lx + high * ux, constant


def _reference(lower: Tensor, upper: Tensor) -> Tensor:
    """Reference weights: the value whose probability moves most stands for all."""
    return torch.nn.functional.one_hot((upper - lower).argmax(-1), lower.shape[-1]).to(lower)


def _bound_rows(
    bounds: LinearBounds, inner: int, rows: Tensor, seen: Tensor, reference: Tensor | None, flipped: bool
) -> Interval | None:
    """Bounds ``[S, B, groups, rows, inner_size]`` on what every row of coefficients makes of every inner line.

    Rows of zeros cost nothing, equal rows are bounded once, and lines that a row does not see, by
    ``seen [groups or 1, rows or 1, inner_size]``, are 0. With reference weights it is the difference to the weighted
    mean of the lines that is bounded.
    """
    inner_size = seen.shape[-1]
    S, _, groups, count, width = rows.shape
    where = (rows != 0).any(1).any(-1).nonzero()
    picked = rows.permute(0, 2, 3, 1, 4)[tuple(where.T)]  # [N, B or 1, width]
    group, line = where[:, 1], where[:, 2]
    repeated = positions(where)
    met = seen.expand(groups, count, inner_size)[group, line]  # [N, lines]
    if picked.shape[1] == 1 and reference is None and not picked.requires_grad:
        tagged = torch.cat((group[:, None].to(picked), picked[:, 0]), 1)
        distinct, repeated = torch.unique(tagged, dim=0, return_inverse=True)
        group, picked = distinct[:, 0].long(), distinct[:, None, 1:]
        none = torch.zeros(len(group), inner_size, dtype=torch.long, device=met.device)
        met = none.index_add(0, repeated, met.long()) > 0
    number, inner_line = met.nonzero(as_tuple=True)
    if len(number) > bounds.method.contract_limit:
        return None
    if not bounds.remembers(inner, len(number)):
        picked = picked.detach()  # the bounds stay true; only their part in the gradient is left out
    unit = torch.eye(inner_size, dtype=rows.dtype, device=rows.device)[:, None]
    ends: list[Interval] = []
    for part in pieces(positions(number), bounds.chunk(inner)):
        bounds.check_time()
        row = number[part]
        weights = unit[inner_line[part]]  # [pairs, B or 1, lines]: which lines enter
        if reference is not None:
            weights = weights - reference[:, group[row], line[row]].transpose(0, 1)
        block = weights[..., None] * picked[row][:, :, None]
        spread = block.new_zeros(*block.shape[:2], groups, inner_size, width)
        spread[positions(part), :, group[row]] = block
        ends.append(_bound_spread(bounds, inner, spread[None], flipped, len(number)))
    if not ends:
        nothing = rows.new_zeros(S, bounds.size, groups, count, inner_size)
        return nothing, nothing

    def gathered(found: list[Tensor]) -> Tensor:
        table = rows.new_zeros(len(group), inner_size, bounds.size)
        table = table.index_put((number, inner_line), torch.cat(found, 1)[0])
        full = rows.new_zeros(S, groups, count, inner_size, bounds.size)
        full = full.index_put((where[:, 0], where[:, 1], where[:, 2]), table[repeated])
        return full.permute(0, 4, 1, 2, 3)

    return gathered([low for low, _ in ends]), gathered([high for _, high in ends])


@dataclass(frozen=True)
class _Shadowed:
    """What every row of coefficients makes of every inner line, from functions of the input.

    ``low`` and ``high`` are bounds ``[S, B, groups, rows, inner_size]``, ``share`` the weight of the plane through the
    lower ends of a probability and of what it is multiplied by.
    """

    low: Tensor
    high: Tensor
    share: Tensor


def _shadowed_rows(
    bounds: LinearBounds, kept: int, inner: int, rows: Tensor, between: Interval, flipped: bool
) -> _Shadowed:
    """Of the three mixtures of both planes that one is taken which is highest where it is least.

    ``between``: the range ``[B, groups, rows, inner_size]`` of the probabilities.
    """
    S, _, groups, count, _ = rows.shape
    B = bounds.size

    def numbered(index: int) -> Tensor:
        shape = bounds.graph.shape_of(index)
        entries = torch.arange(math.prod(shape), device=rows.device).reshape(shape)
        return (entries.mT if flipped else entries).reshape(groups, -1, shape[-2 if flipped else -1])

    lines, probabilities = numbered(inner), numbered(kept)
    where = (rows != 0).any(1).any(-1).nonzero()
    picked = rows.permute(0, 2, 3, 1, 4)[tuple(where.T)][:, :, None]  # [N, B or 1, 1, width]
    low, high, share = (rows.new_zeros(S, groups, count, lines.shape[1], B) for _ in range(3))
    share += bounds.method.mixture
    values, own = shadow(bounds, inner), shadow(bounds, kept)
    assert values is not None
    moves = ((values.below != 0) | (values.above != 0)).any(-1).any(0)
    for group in range(groups):
        chosen = (where[:, 1] == group).nonzero()[:, 0]
        moved = moves[lines[group]].any(-1).nonzero()[:, 0]  # any plane is exact for a line that does not
        for part in pieces(chosen, together(bounds, lines.shape[1])):
            bounds.check_time()
            s, _, i = where[part].T
            u = combined(bounds, inner, lines[group], picked[part])  # [N, B, inner_size]
            p = between[0][:, group, i].transpose(0, 1), between[1][:, group, i].transpose(0, 1)
            low[s, group, i], high[s, group, i] = u[0].transpose(1, 2), u[1].transpose(1, 2)
            if own is None or not len(moved):
                continue
            value = lower_function(bounds, values, lines[group, moved], picked[part])
            u, p = ((low_end[..., moved], high_end[..., moved]) for low_end, high_end in (u, p))
            weights = _mixtures(bounds, value, own, probabilities[group, i][:, moved], u, p)
            share[s[:, None], group, i[:, None], moved] = weights.transpose(1, 2)
    return _Shadowed(*(t.permute(0, 4, 1, 2, 3) for t in (low, high, share)))


def _mixtures(bounds: LinearBounds, value: Function, own: Shadow, entry: Tensor, u: Interval, p: Interval) -> Tensor:
    """The weights ``[N, B, inner_size]`` with which the plane below every product is highest where it is least."""
    best = torch.full_like(u[0], -math.inf)
    weights = torch.full_like(best, bounds.method.mixture)
    for weight in MIXTURES:
        on_p, on_u = (weight * low + (1 - weight) * high for low, high in (u, p))
        found = value.times(on_u).plus(_scaled(own, entry, on_p)).least(bounds)
        found = found - weight * u[0] * p[0] - (1 - weight) * u[1] * p[1]
        better = clearly_above(found, best)
        best, weights = torch.where(better, found, best), torch.where(better, weight, weights)
    return weights


def _scaled(own: Shadow, entry: Tensor, factor: Tensor) -> Function:
    """A function below entries ``[N, m]`` of a node, each times a ``factor [N, B, m]``."""
    rising = factor >= 0
    below, above = (t[:, entry].transpose(0, 1) for t in (own.below, own.above))  # [N, B or 1, m, n]
    low, high = (t[:, entry].transpose(0, 1) for t in (own.below_offset, own.above_offset))
    slope = torch.where(rising[..., None], below, above)
    return Function(slope, torch.where(rising, low, high), own.moving).times(factor)


def _bound_combinations(
    bounds: LinearBounds, factor: int, weights: Tensor, inner_size: int, transposed: bool
) -> Interval:
    """Bounds ``[S, B, groups, R, inner_size]`` on a factor combined by ``weights [S, B, groups, n, R]``."""
    S, B, groups, width, R = weights.shape
    columns = weights.permute(0, 2, 4, 1, 3).reshape(S * groups * R, B, width)
    if not bounds.remembers(factor, len(columns) * inner_size):
        columns = columns.detach()
    group = torch.arange(groups, device=weights.device).repeat_interleave(R).repeat(S)
    lines = torch.arange(inner_size, device=weights.device)
    ends: list[Interval] = []
    for part in pieces(positions(group), max(1, bounds.chunk(factor) // inner_size)):
        bounds.check_time()
        spread = weights.new_zeros(inner_size, len(part), B, groups, inner_size, width)
        number = positions(part)
        # Advanced indices around a slice: the indexed dimensions (lines, columns) come first.
        spread[lines[:, None], number, :, group[part], lines[:, None]] = columns[part]
        ends.append(_bound_spread(bounds, factor, spread, transposed, len(columns) * inner_size))

    def gathered(found: Tensor) -> Tensor:
        return found.reshape(inner_size, S, groups, R, -1).permute(1, 4, 2, 3, 0)

    return gathered(torch.cat([low for low, _ in ends], 1)), gathered(torch.cat([high for _, high in ends], 1))


def _bound_spread(bounds: LinearBounds, factor: int, spread: Tensor, transposed: bool, together: int) -> Interval:
    """Bounds ``[lines, N, B]`` for coefficients ``[lines, N, B or 1, groups, inner_size, width]`` on one factor.

    ``together``: how many such lines there are in all.
    """
    shaped = (spread.mT if transposed else spread).reshape(-1, spread.shape[2], *bounds.graph.shape_of(factor))
    low, high = bounds.between(factor, shaped, together=together)
    return low.reshape(*spread.shape[:2], -1), high.reshape(*spread.shape[:2], -1)
