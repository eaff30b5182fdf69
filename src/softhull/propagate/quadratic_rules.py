"""Rules of quadratic forms: the form of a node from those of its inputs, by the operator.

What multiplies one fresh number, or a whole row, is added up before it is bounded: a normalised row is a row times one
number, and the mean square of a row meets each number once, with a linear function of the inputs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.operator import Bilinear, Operator
from ..graph.ops.matmul import MatMul
from ..graph.ops.normalize import InverseDeviation, Normalized
from ..graph.ops.product import Product
from ..graph.ops.relu import Relu
from ..graph.ops.softmax import Softmax
from ..graph.rounding import euclidean, largest, underflow
from .normalize import walked_mean_square
from .parabolas import EXPONENTIAL, LOGARITHM, WORST, inverse_root, rectifier_parabolas, sigmoid_parabolas
from .quadratics import Group, Rest, bordered, products_of, times, trace
from .second_order.affine_form import AffineForm
from .second_order.rules import NoAffineForms
from .structure import positions

if TYPE_CHECKING:
    from .quadratic_forms import QuadraticForms

# What is at least this share of a product gets numbers of its own, the rest one number an entry; and of numbers so many
# that are at least this share of all.
_DEAR, _KEPT, _LEAST = 0.1, 512, 1e-4
# A row whose form is wider than its box by this factor says less than the box; and the ball of normalised rows says
# more than a box of this half width, on average.
_HOPELESS, _ROUND = 2.0, 1.25
# Rows of logits that move further than this against each other are of no use for parabolas.
_WIDE = 16.0
# Squares of smaller numbers lose digits, or all of them; so do powers of larger ones, and of their inverses.
_SMALLEST, _LARGEST = 1e-140, 1e90


@singledispatch
def quadratic_form(operator: Operator, forms: QuadraticForms, index: int) -> AffineForm | None:
    """The form of a node whose inputs are at hand; None where the rule of affine forms is as good."""
    return None


@quadratic_form.register(Relu)
def _(operator: Relu, forms: QuadraticForms, index: int) -> AffineForm | None:
    """Between parabolas; those of one sign are exact."""
    (before,) = forms.graph.nodes[index].inputs
    form, rest, (lower, upper) = forms.form(before), forms.rest(before), forms.bounds.interval(before)
    bends = ~((lower >= 0) | (upper <= 0))
    if bool((bends & (upper - lower < _SMALLEST)).any()):
        raise NoAffineForms("rectifiers of numbers whose squares vanish")
    rate = torch.where(lower >= 0, 1.0, 0.0).to(lower.dtype)
    if not bool(bends.any()):
        return AffineForm(rate * form.centre, rate[:, None] * form.slope, rate * form.error)
    ends = (torch.where(bends, t, one) for t, one in ((lower, -1.0), (upper, 1.0)))
    found, half = forms.through(rectifier_parabolas, form, rest, *ends)
    slope = torch.where(
        bends[:, None], found.slope, AffineForm(*(rate[:, None] * form.slope,) * 3).padded(found.slope.shape[1])
    )
    form = AffineForm(
        torch.where(bends, found.centre, rate * form.centre),
        slope,
        torch.where(bends, found.error, rate * form.error),
    )
    return forms.with_numbers(form, half.masked_fill(~bends.flatten()[:, None, None], 0.0))


@quadratic_form.register(MatMul)
def _(operator: MatMul, forms: QuadraticForms, index: int) -> AffineForm | None:
    left, right = forms.graph.nodes[index].inputs
    masked = forms.bounds.structure.masked(left) is not None or forms.bounds.structure.masked(right) is not None
    if masked or len(operator.left) < 2 or operator.left[:-2] != operator.right[:-2]:
        return None
    x, y, one, other = forms.form(left), forms.form(right), forms.rest(left), forms.rest(right)
    centre, slope, error = _tangent(forms, operator, x, y, one, other)
    mixes = forms.bounds.structure.rows_are_softmax(left, len(operator.left) - 1)
    if mixes:
        # Rows sum to one: what is mixed counts from its mean.
        mean, total = operator.value(x.centre, y.centre), x.slope.sum(-1)
        slope[:, : total.shape[1]] -= total[..., None] * mean[:, None]
        centre = centre + mean * (1 - x.centre.sum(-1, keepdim=True))
        k = x.centre.shape[-1]
        size = (x.error + forms.share(k + 4) * (1 + x.size(forms.basis))).sum(-1, keepdim=True)
        error = error + mean.abs() * (size + forms.share(4)) * (1 + forms.share(k)) + forms.share(4) * centre.abs()
    form = AffineForm(centre, slope, error)
    groups, (rows, k), width = math.prod(operator.left[:-2]), operator.left[-2:], operator.right[-1]
    columns = torch.arange(groups * k * width, device=centre.device).reshape(groups, k, width).mT
    square, beside, grouped = [], [], list[Group]()
    for group in range(groups):
        a = one[torch.arange(group * rows * k, (group + 1) * rows * k, device=centre.device)]
        b = other[columns[group].flatten()]
        found = _sums(forms, a, b, (rows, width, k), mixes)
        square.append(found[0])
        beside.append(found[1])
        grouped += [(group * rows * width + entries, a, u, m) for entries, a, u, m in found[2]]
    form = forms.plus(form, bordered(torch.cat(square)))
    return forms.with_numbers(forms.with_groups(form, grouped), torch.cat(beside))


def _tangent(
    forms: QuadraticForms, operator: Bilinear, x: AffineForm, y: AffineForm, one: Rest, other: Rest
) -> tuple[Tensor, Tensor, Tensor]:
    """The tangent of a product where both factors count from, with slopes over squares, and what rounding costs."""
    by_x, by_y = one.shift.reshape(x.centre.shape), other.shift.reshape(y.centre.shape)
    x, y = replace(x, centre=x.centre + by_x), replace(y, centre=y.centre + by_y)
    zero = torch.zeros_like(operator.value(x.centre, y.centre))
    centre, slope, _, error = forms.tangent(operator, x, y, (zero, zero))
    centre = centre - operator.value(x.centre, by_y) - operator.value(by_x, y.centre)
    # Sizes of forms count from where the centres are now, and values may be further off: by the shift.
    sizes = (x.size(forms.basis) + by_x.abs(), y.size(forms.basis) + by_y.abs())
    terms = x.centre.shape[-1] + y.centre.shape[-1]
    cost = operator.value(x.error, by_y.abs()) + operator.value(by_x.abs(), y.error)
    cost = (cost + forms.share(2 * terms + 16) * operator.value(*sizes)) * (1 + forms.share(terms + 4))
    cost = cost + 4 * terms * underflow(centre.dtype)
    return centre, slope, error + cost


def _sums(
    forms: QuadraticForms, x: Rest, y: Rest, sizes: tuple[int, int, int], grouped: bool
) -> tuple[Tensor, Tensor, list[Group]]:
    """Sums over k of products of entries ``x [rows k]`` and ``y [columns k]``, counted from their shifts.

    Their squares ``[rows columns, n, n]``, what bounds all else ``[.., q, q]``, and what is to come in groups.
    """
    (rows, columns, k), q = sizes, x.noise.shape[-1]
    lines = x.linear.reshape(rows, k, -1), y.linear.reshape(columns, k, -1)
    square = torch.einsum("ikm,jkn->ijmn", *lines)
    square = (square + square.mT) / 2
    ends = [
        {name: getattr(rest, name).reshape(shape) for name in ("far", "reach", "mean")}
        | {"squares": rest.linear.square().sum(-1).reshape(shape)}
        for rest, shape in ((x, (rows, 1, k)), (y, (1, columns, k)))
    ]
    one, other = ends

    def weights(a: dict[str, Tensor], u: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        parts = torch.broadcast_tensors(a["squares"], a["far"], u["reach"], u["mean"])
        return forms.weights(*parts)

    on_xx, on_y = weights(one, other)
    on_yy, on_x = weights(other, one)
    by_x = one["reach"] * other["mean"] < other["reach"] * one["mean"]
    on_y = on_y + torch.where(by_x, one["reach"], 0.0)
    rest_x = torch.where(by_x, 0.0, other["reach"])
    groups: list[Group] = []
    if grouped:
        # What is mixed times one probability, [rows, k].
        dear = (on_yy * other["squares"] + on_x * one["mean"]).sum(1)
        for i, m in (dear > _DEAR * dear.sum(1, keepdim=True)).nonzero().tolist():
            entry = i * k + m
            if float(x.reach[entry]) > 0:
                entries = i * columns + torch.arange(columns, device=dear.device)
                groups.append((entries, lines[1][:, m], x.beside[entry], x.reach[entry]))
                on_yy[i, :, m] = on_x[i, :, m] = 0.0
    on_x = on_x + rest_x
    total = x.linear.new_zeros(rows, columns, q, q)
    size = total.new_zeros(rows, columns)
    for weight, matrices, side in (
        (on_xx, x.outer, "i"),
        (on_x, x.beside, "i"),
        (on_yy, y.outer, "j"),
        (on_y, y.beside, "j"),
    ):
        matrices = matrices.unflatten(0, (-1, k))
        size += torch.einsum(f"ijk,{side}k->ij", weight, matrices.abs().sum((-1, -2)))
        total += torch.einsum(f"ijk,{side}kpq->ijpq", weight, matrices)
    squares = torch.einsum("ik,jk->ij", *(t.abs().sum(-1) for t in lines))
    total[..., 0, 0] += forms.share(2 * k + 16) * (size + squares) + k * q * q * underflow(size.dtype)
    return square.flatten(0, 1), total.flatten(0, 1), groups


@quadratic_form.register(InverseDeviation)
def _(operator: InverseDeviation, forms: QuadraticForms, index: int) -> AffineForm | None:
    """The mean square is a quadratic of the noise, and its root another one of that."""
    (before,) = forms.graph.nodes[index].inputs
    form, rest, dims = forms.form(before), forms.rest(before), operator.dims
    d = operator.count(form.centre)
    over, half = _mean_squares(forms, form, rest, dims, d)
    centre = form.centre.square().mean(dims, keepdim=True)
    slope = (2 * form.centre[:, None] * form.slope).mean(tuple(dim + 1 for dim in dims), keepdim=True)
    sizes = form.size(forms.basis)
    cost = forms.share(4 * d + form.slope.shape[1] + 8)
    error = ((2 * sizes + form.error) * form.error).mean(dims, keepdim=True) * (1 + cost)
    error = error + cost * sizes.square().mean(dims, keepdim=True) + d * underflow(sizes.dtype)
    half[:, 0, 0] += cost * (over.abs().sum((-1, -2)) + half.abs().sum((-1, -2)))
    mean = forms.with_numbers(forms.plus(AffineForm(centre, slope, error), over), half)
    rest = forms.rest_of(mean)
    low, high = (t.reshape(mean.centre.shape) for t in forms.range_of(rest))
    off = mean.error + forms.share(4) * (mean.centre.abs() + largest(low, high))
    low, high = mean.centre + low - off, mean.centre + high + off
    least, most = walked_mean_square(operator, forms.bounds, index, forms.lower)
    low, high = torch.maximum(low, least), torch.minimum(high, most)
    low, high = torch.minimum(low, high).clamp(min=0), torch.maximum(low, high).clamp(min=0)
    forms.know("mean square", index, (low, high))
    if bool((mean.centre < 0).any()):  # by rounding
        raise NoAffineForms("a mean square is all but zero")
    if bool(((low + operator.epsilon < 1 / _LARGEST) | (high > _LARGEST)).any()):
        raise NoAffineForms("powers of a mean square vanish or overflow")
    return forms.with_numbers(*forms.through(inverse_root(operator.epsilon).parabolas, mean, rest, low, high))


def _mean_squares(
    forms: QuadraticForms, form: AffineForm, rest: Rest, dims: tuple[int, ...], d: int
) -> tuple[Tensor, Tensor]:
    """The mean squares of entries without their centres, along some dimensions, as ``squared`` has them."""
    middle, half = (_along(t, form, dims) / d for t in forms.squared(rest))
    rows = positions(rest.far).reshape(form.centre.shape[1:])
    rows = rows.movedim([dim - 1 for dim in dims], list(range(-len(dims), 0))).reshape(-1, d)
    numbers = forms.numbers(form)
    burden = trace(half) + WORST * forms.most(half)
    for k, entries in enumerate(rows):
        found = _mean_square(forms, rest[entries], numbers[:, entries])
        if bool((trace(found[1]) + WORST * forms.most(found[1][None]) < burden[k]).all()):
            middle[k], half[k] = found
    return middle, half


def _mean_square(forms: QuadraticForms, x: Rest, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """That of the entries of one row, with ``numbers [k, d]``; squares of linear parts are exact."""
    d = len(x.linear)
    beside = x.beside
    beside[:, 0, 0] += x.shift.abs()
    squares = times(x.reach + x.shift.abs(), beside) / d
    square = squares.sum(0)  # the mean of the others is between 0 and that
    own = bordered(x.linear.mT @ x.linear) / d
    half = square / 2 + _by_lines(forms, x.linear * (2 / d), x.square, numbers)
    half[0, 0] += forms.share(d + 8) * (squares.abs().sum() + x.linear.abs().sum(-1).square().sum())
    return own + square / 2, half


def _by_lines(forms: QuadraticForms, lines: Tensor, square: Tensor, numbers: Tensor) -> Tensor:
    """What bounds ``sum_i (lines_i . t) (t'H_i t + sum_m numbers_mi e_m)``, as a matrix.

    A cubic ``sum_j t_j t'T_j t`` is at most the sum of the absolute values of all ``t'T_j t``.
    """
    k, n = len(numbers), lines.shape[-1]
    cubic = torch.einsum("ij,ikl->jkl", lines, square)
    cubic = (cubic + cubic.permute(1, 0, 2) + cubic.permute(1, 2, 0)) / 3
    parts = forms.absolute(cubic)
    found = parts.sum(0)
    found[0, 0] += forms.share(n + 4) * parts.abs().sum()
    slope = numbers @ lines
    used = (slope != 0).any(1)
    alone = used & (forms.sizes[:k] > 0)
    if bool(alone.any()):
        line, metrics = slope[alone], forms.metrics(alone.nonzero()[:, 0])
        one = torch.ones_like(line[:, 0])
        on_line, on_metric = forms.weights(line.square().sum(-1), forms.noise.radius(line), one, trace(metrics))
        found[1:, 1:] += (on_line[:, None] * line).mT @ line
        found += (on_metric @ metrics.flatten(1)).unflatten(0, found.shape)
        size = on_line * line.abs().sum(-1).square() + on_metric * forms.sizes[:k][alone]
        found[0, 0] += forms.share(len(line) + 8) * size.sum()
    for first, last in forms.balls:
        if first < k and bool(used[first:last].any()):
            line = slope[first:last]
            length = bordered(line.mT @ line)  # the square of that of what multiplies the ball
            rate = float(trace(length) + WORST * forms.most(length[None])[0])
            if not _SMALLEST**2 < rate < math.inf:  # it would lose digits
                found[0, 0] += euclidean(forms.noise.radius(line), 0) * (1 + forms.share(last - first))
                continue
            rate = math.sqrt(rate)
            found += length / (2 * rate)
            found[0, 0] += rate / 2 * (1 + forms.share(4))
            found[0, 0] += forms.share(last - first + 8) * line.abs().sum(-1).square().sum() / rate
    groups = [first for first, _ in forms.groups if first < k and bool(used[first : first + n].any())]
    if groups:
        both = torch.stack([slope[first : first + n] for first in groups])
        parts = forms.absolute((both + both.mT) / 2)
        found += parts.sum(0)
        found[0, 0] += forms.share(len(groups) + 4) * parts.abs().sum()
    sizes = square.abs().sum((-1, -2)) + numbers.abs().sum(0)
    found[0, 0] += forms.share(2 * len(lines) + len(groups) + n + 16) * (
        (lines.abs().sum(-1) * sizes).sum() + found.abs().sum()
    )
    return found


def _along(matrices: Tensor, form: AffineForm, dims: tuple[int, ...]) -> Tensor:
    """Quadratics of the entries of a form, added up along some dimensions."""
    return matrices.unflatten(0, form.centre.shape[1:]).sum([dim - 1 for dim in dims]).reshape(-1, *matrices.shape[1:])


@quadratic_form.register(Normalized)
def _(operator: Normalized, forms: QuadraticForms, index: int) -> AffineForm | None:
    """A product with one number for a row; a constant where the box of a row is much narrower."""
    before, scale = forms.graph.nodes[index].inputs
    z, r = forms.form(before), forms.form(scale)
    x, y = forms.rest(before), forms.rest(scale)
    shape = z.centre.shape
    form, inner, outer, row = _scaled(forms, z, r, x, y)
    rows = [(row == k).nonzero()[:, 0] for k in range(r.centre.numel())]
    numbers, kept = forms.numbers(z), list[tuple[int, Tensor, Tensor]]()
    for k in _dear_rows(trace(inner), row, y.far + y.reach):
        inner[rows[k]], which, metrics = _number_by_number(forms, numbers[:, rows[k]], x[rows[k]], y, k)
        kept.append((k, which, metrics))
    least, most = operator.interval(*(forms.bounds.rough(i) for i in forms.graph.nodes[index].inputs))
    half = (most - least) / 2 + forms.share(4) * largest(least, most)
    radius = forms.rest_of(form)
    width = (radius.span + radius.reach + trace(outer + inner) + form.error.flatten()).reshape(shape)
    dims = tuple(axis + 1 for axis in operator.axes)
    flat = ~(width.mean(dims, keepdim=True) <= _HOPELESS * half.mean(dims, keepdim=True).clamp(max=_ROUND)).expand(
        shape
    )
    still = flat.flatten()
    form = AffineForm(
        torch.where(flat, least + (most - least) / 2, form.centre),
        torch.where(flat[:, None], 0.0, form.slope),
        torch.where(flat, 0.0, form.error),
    )
    inner = torch.where(still[:, None, None], forms.constants(half.flatten()), inner)
    outer = outer.masked_fill(still[:, None, None], 0.0)
    for k in row[still].unique().tolist():
        if float(half.flatten()[rows[k]].mean()) > _ROUND:
            form = forms.with_ball(form, rows[k])
            inner[rows[k]] = 0.0
    groups: list[Group] = []
    for k in _dear_rows(trace(outer), row, y.reach):
        groups.append((rows[k], x.linear[rows[k]], y.beside[k], y.reach[k]))
        outer[rows[k]] = 0.0
    form = forms.with_groups(form, groups)
    for k, which, metrics in kept:
        if not bool(still[rows[k]].any()):
            own = numbers.new_zeros(len(which), len(row))
            own[:, rows[k]] = numbers[which][:, rows[k]]
            form = forms.with_shared(form, own, metrics)
    return forms.with_numbers(form, inner + outer)


def _dear_rows(cost: Tensor, row: Tensor, moves: Tensor) -> list[int]:
    """The rows that have a good share of all costs, which are those of their entries, and whose number moves."""
    total = cost.new_zeros(len(moves)).index_add(0, row, cost)
    found: list[int] = ((total > _DEAR * total.sum()) & (moves > 0)).nonzero()[:, 0].tolist()
    return found


def _number_by_number(
    forms: QuadraticForms, numbers: Tensor, x: Rest, y: Rest, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Noise of the entries x of one row, in ``numbers [.., E]``, times the deviation of their number, the k-th of y.

    Products with the dearest numbers stay numbers of their own, which entries have in common as before: which these
    are, and what bounds them. Before that what bounds the rest, entry by entry.
    """
    which = ((numbers != 0).any(1) & (forms.sizes[: len(numbers)] > 0)).nonzero()[:, 0]
    # Means over the corners may be below zero where these lie outside of a ball.
    size = numbers[which].abs().sum(1) * (trace(forms.metrics(which)) + WORST).clamp(min=0)
    chosen = size.topk(min(_KEPT, len(size))).indices
    which = which[chosen[size[chosen] > _LEAST * size.sum()].sort().values]
    left = numbers.clone()
    left[which] = 0.0
    noise = forms.noise_in(left)
    x = replace(x, noise=noise, reach=forms.most(noise + x.curve))
    inner = _by_deviations(forms, x, y[torch.full_like(x.far, k, dtype=torch.long)])
    metrics = forms.metrics(which)
    one = torch.ones_like(metrics[:, 0, 0])
    on_line, on_metric = forms.weights(y.linear[k].square().sum() * one, y.far[k] * one, one, trace(metrics))
    found = times(on_line, y.outer[k]) + times(on_metric + y.reach[k], metrics)
    found[:, 0, 0] += forms.share(8) * found.abs().sum((-1, -2))
    return inner, which, found


def _by_deviations(forms: QuadraticForms, x: Rest, y: Rest) -> Tensor:
    """What bounds what is beside the linear parts of x, times entries y; and what rounds products of linear parts."""
    on_line, on_x = forms.weights(y.linear.square().sum(-1), y.far, x.reach, x.mean)
    by_x = (x.reach * y.mean < y.reach * x.mean)[:, None, None]
    found = times(on_line, y.outer) + times(on_x, x.beside)
    found = found + torch.where(by_x, times(x.reach, y.beside), times(y.reach, x.beside))
    found[:, 0, 0] += 2 * forms.share(16) * found.abs().sum((-1, -2)) + x.linear.shape[-1] * underflow(found.dtype)
    found[:, 0, 0] += forms.share(16) * x.linear.abs().sum(-1) * y.linear.abs().sum(-1)
    return found


def _scaled(
    forms: QuadraticForms, z: AffineForm, r: AffineForm, x: Rest, y: Rest
) -> tuple[AffineForm, Tensor, Tensor, Tensor]:
    """Rows z, each times one number r, from forms without their centres x and y.

    With what bounds what is beside the linear parts of x, times y, and linear parts times what is beside those of y;
    and the row of every entry.
    """
    product = Product(z.centre.shape[1:], r.centre.shape[1:])
    centre, slope, error = _tangent(forms, product, z, r, x, y)
    row = torch.arange(r.centre.numel(), device=centre.device).reshape(r.centre.shape[1:])
    row = row.expand(z.centre.shape[1:]).flatten()
    wide = y[row]
    form = forms.plus(AffineForm(centre, slope, error), products_of(x.linear, wide.linear))
    on_line, on_y = forms.weights(x.linear.square().sum(-1), x.far, wide.reach, wide.mean)
    outer = times(on_line, x.outer) + times(on_y, wide.beside)
    outer[:, 0, 0] += 2 * forms.share(16) * outer.abs().sum((-1, -2)) + x.linear.shape[-1] * underflow(outer.dtype)
    return form, _by_deviations(forms, x, wide), outer, row


@quadratic_form.register(Softmax)
def _(operator: Softmax, forms: QuadraticForms, index: int) -> AffineForm | None:
    """By parabolas, or by planes in rows that are wide or better so."""
    (before,) = forms.graph.nodes[index].inputs
    form, K = forms.form(before), forms.graph.nodes[index].shape[-1]
    if operator.masked is not None or operator.axis != len(form.centre.shape) - 2 or K < 2:
        return None
    value, slope, radius, _ = forms.probabilities(operator, index)
    centre, r = value.reshape(1, -1, K).clone(), form.slope.shape[1]
    at = AffineForm(
        form.centre.reshape(centre.shape), form.slope.reshape(1, r, -1, K), form.error.reshape(centre.shape)
    )
    known = forms.bounds.differences(index)
    assert known is not None  # they are told with the logits or with the planes
    narrow = ((known[1][0] - at.centre[0, ..., None] + at.centre[0, :, None]).flatten(1).amax(1) < _WIDE).nonzero()[
        :, 0
    ]
    metrics = forms.constants(radius.flatten()).unflatten(0, (-1, K))
    best = AffineForm(centre, slope.reshape(1, r, -1, K), torch.zeros_like(centre))
    logits, cost = _rows(at, narrow), _burden(forms, _rows(best, narrow), metrics[narrow])
    for found, beside in (_exponentials(forms, logits)[:2], _set_apart(forms, logits)) if len(narrow) else ():
        burden = _burden(forms, found, beside)
        better = burden < cost
        cost, chosen = torch.where(better, burden, cost), narrow[better]
        slope = best.padded(max(best.slope.shape[1], found.slope.shape[1])).clone()
        slope[:, :, chosen] = found.padded(slope.shape[1])[:, :, better]
        best = AffineForm(best.centre.clone(), slope, best.error.clone())
        best.centre[:, chosen], best.error[:, chosen] = found.centre[:, better], found.error[:, better]
        metrics[chosen] = beside[better]
    whole = form.centre.shape
    best = AffineForm(best.centre.reshape(whole), best.slope.reshape(1, -1, *whole[1:]), best.error.reshape(whole))
    return forms.with_numbers(best, metrics.flatten(0, 1))


def _burden(forms: QuadraticForms, form: AffineForm, matrices: Tensor) -> Tensor:
    """How much noise there is in rows ``[1, rows, K]`` that ``matrices`` are still to be added to, as numbers."""
    noise = forms.noise_in(forms.numbers(form)) + matrices.flatten(0, 1)
    return (trace(noise) + WORST * forms.most(noise)).reshape(form.centre.shape[1:]).sum(-1) + form.error[0].sum(-1)


def _exponentials(forms: QuadraticForms, logits: AffineForm) -> tuple[AffineForm, Tensor, AffineForm]:
    """``p_j = p_j(centre) exp(X_j - L)`` for rows ``[1, rows, K]``, and what bounds all else ``[rows, K, q, q]``.

    X are deviations from their mean, L is the logarithm of the mean of their exponentials: one number for a row,
    which cancels where rows mix values. It comes last.
    """
    at, r = logits.centre, logits.slope.shape[1]
    K, p = at.shape[-1], at.softmax(-1)
    cost = forms.share(2 * K + 16)
    # The mean by the weights as they are rounded: any would do, and what they are off by is charged.
    moved = logits.slope - (p[:, None] * logits.slope).sum(-1, keepdim=True)
    size = logits.spread(forms.basis)
    error = logits.error + logits.error.amax(-1, keepdim=True) * (1 + cost)
    error = error + cost * (size + size.amax(-1, keepdim=True))
    mean = _log_mean(forms, AffineForm(torch.zeros_like(at), moved, error), p, cost * (size + error).sum(-1).flatten())
    slope = -mean.slope[..., None].expand(-1, -1, -1, K).clone()
    slope[:, :r] += moved
    error = error + mean.error[..., None] + forms.share(4) * (size + 1 + mean.size(forms.basis)[..., None])
    exponents = AffineForm(-mean.centre[..., None].expand(at.shape), slope, error)
    rest = forms.rest_of(exponents)
    low, high = (exponents.centre + t.reshape(at.shape) for t in forms.range_of(rest))
    far = cost * (1 + largest(low, high))
    # No probability exceeds one.
    high = torch.minimum(high + error + far, -p.log() + cost * (1 + p.log().abs()))
    low = torch.minimum(low - error - far, high)
    found, half = forms.through(EXPONENTIAL.parabolas, exponents, rest, low, high)
    # Exponents of probabilities are rounded, and so is their product.
    off = forms.share(4) * (at.amax(-1, keepdim=True) - at) + cost
    error = found.error + off * found.size(forms.basis)
    half = times((p * (1 + cost + off)).flatten(), half)
    return (
        AffineForm(p * found.centre, p[:, None] * found.slope, p * error * (1 + cost) + underflow(p.dtype)),
        half.unflatten(0, (-1, K)),
        mean,
    )


def _set_apart(forms: QuadraticForms, logits: AffineForm) -> tuple[AffineForm, Tensor]:
    """The same with the column of a row that moves most as a sigmoid, and what it leaves times the softmax of the
    others."""
    at, K = logits.centre, logits.centre.shape[-1]
    cost = forms.share(2 * K + 16)
    one = (logits.slope - (at.softmax(-1)[:, None] * logits.slope).sum(-1, keepdim=True)).abs().sum(1)[0].argmax(-1)
    others = torch.arange(K - 1, device=one.device).expand(len(one), -1)
    others = others + (others >= one[:, None])
    rows = positions(one)[:, None]
    own, left = (
        AffineForm(*(t[..., rows, columns] for t in (at, logits.slope, logits.error)))
        for columns in (one[:, None], others)
    )
    shares, beside, mean = _exponentials(forms, left)
    shares = forms.with_numbers(shares, beside.flatten(0, 1))
    weights = left.centre.softmax(-1)
    slope = -mean.slope[..., None]
    slope[:, : own.slope.shape[1]] += own.slope - (weights[:, None] * left.slope).sum(-1, keepdim=True)
    size = logits.size(forms.basis)
    error = own.error + (left.error.amax(-1) * (1 + cost) + mean.error)[..., None]
    error = error + cost * (size.sum(-1) + mean.size(forms.basis) + 1)[..., None]
    apart = AffineForm(own.centre - (left.centre.logsumexp(-1) + mean.centre)[..., None], slope, error)
    rest = forms.rest_of(apart)
    low, high = (apart.centre + t.reshape(apart.centre.shape) for t in forms.range_of(rest))
    off = error + cost * (1 + largest(low, high))
    share = forms.with_numbers(*forms.through(sigmoid_parabolas, apart, rest, low - off, high + off))
    less = AffineForm(1 - share.centre, -share.slope, share.error + forms.share(2))
    found, inner, outer, _ = _scaled(forms, shares, less, forms.rest_of(shares), forms.rest_of(less))
    slope = at.new_zeros(1, found.slope.shape[1], *at.shape[1:])
    whole = AffineForm(torch.zeros_like(at), slope, torch.zeros_like(at))
    for part, columns in ((found, others), (share, one[:, None])):
        for to, of in (
            (whole.centre, part.centre),
            (whole.error, part.error),
            (whole.slope, part.padded(slope.shape[1])),
        ):
            to[..., rows, columns] = of
    matrices = inner.new_zeros(*at.shape[1:], *inner.shape[1:])
    matrices[rows, others] = (inner + outer).unflatten(0, others.shape)
    return whole, matrices


def _log_mean(forms: QuadraticForms, deviation: AffineForm, p: Tensor, off: Tensor) -> AffineForm:
    """``log(sum_j p_j exp(X_j))`` of deviations ``[1, rows, K]`` with means of at most ``off [rows]``.

    ``sum_j p_j exp(X_j) = 1 + U`` with ``U = sum_j p_j k_j X_j^2``, up to the mean; the logarithm lies between U
    and its chord.
    """
    rest, K, cost = forms.rest_of(deviation), p.shape[-1], forms.share(2 * p.shape[-1] + 16)
    low, high = (t.reshape(p.shape) for t in forms.range_of(rest))
    low, high = (end + sign * (deviation.error + cost * end.abs()) for end, sign in zip((low, high), (-1, 1)))
    each, half = forms.through(EXPONENTIAL.parabolas, deviation, rest, low, high)
    size = (p * (1 + each.size(forms.basis))).sum(-1)
    error = ((p * each.error).sum(-1) + cost * size) * (1 + cost)
    mean = AffineForm((p * (each.centre - 1)).sum(-1), (p[:, None] * each.slope).sum(-1), error)
    half = times(p.flatten() * (1 + cost), half).unflatten(0, (-1, K))
    paid = cost * half.abs().sum((1, 2, 3))
    half = half.sum(1)
    half[:, 0, 0] += paid
    mean = forms.with_numbers(mean, half)
    rest = forms.rest_of(mean)
    low, high = (mean.centre + t.reshape(mean.centre.shape) for t in forms.range_of(rest))
    paid = mean.error + cost * (1 + largest(low, high))
    # By Jensen's inequality it is not negative, up to the mean and to what the weights add up to.
    low, high = torch.maximum(low - paid, -2 * off.reshape(low.shape) - cost), torch.maximum(high + paid, paid)
    return forms.with_numbers(*forms.through(LOGARITHM.parabolas, mean, rest, low, high))


def _rows(form: AffineForm, rows: Tensor) -> AffineForm:
    """Some rows of a form ``[1, rows, K]``."""
    return AffineForm(form.centre[:, rows], form.slope[:, :, rows], form.error[:, rows])
