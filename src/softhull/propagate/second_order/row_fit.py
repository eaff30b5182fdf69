"""Quadratics below a combination of the probabilities of one attention row: fitted, then certified cell by cell.

For weights A the function ``phi(y) = sum_k A_k p_k`` of the differences ``y_j`` to a reference logit is smooth, and a
quadratic follows it more closely than any plane. The fit is by least squares and promises nothing. The promise is its
offset: the box of differences is cut into cells, and in each the fitted quadratic is moved below phi, by value,
gradient and Hessian at the centre of the cell and a bound on third derivatives.

Where the probabilities multiply values that move, too, each has a line of its own, and the fit is below

    phi(y) - sum_k price_k (p_k - level_k - lines_k . y)^2,

because for any U_k and ``c_k = 1 / (4 price_k)``, ``p_k U_k >= (level_k + lines_k . y) U_k - c_k U_k^2 - price_k
(p_k - level_k - lines_k . y)^2``: near where lines and fit are good, next to nothing is lost whatever the values are.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from ...graph.operator import Interval
from ...graph.rounding import ulps

# Cells along each of m axes at most; longer rows keep their planes.
CELLS = {1: 192, 2: 40, 3: 16, 4: 8}
# At first they need not be smaller than this, from the centre to a face; then so many of the worst are halved along
# every axis, time after time; squares of what lines are off by need smaller ones.
_HALF = {1: 0.06, 2: 0.12, 3: 0.25, 4: 0.4}
_FEWEST, _WORST, _WORST_PRICED = 5, (64, 64), (1024, 128, 64)
# Numbers of one tensor that is worked on at once: it should stay near the processor.
_NEAR = 1 << 17
# |d^3/dt^3 phi(y + t v)| <= this * (max A - min A) * (max v - min v)^3: a joint cumulant of A and three v, with
# |E[A V^3]| <= (1/2)(.0567)^(1/2) and 3 |E[A V]| E[V^2] <= 3/16 for centred A, V of range one.
_THIRD = 0.31
# |d^2/dt^2 p_k(y + t v)| <= this * (max v - min v)^2: a covariance of two numbers, one between 0 and 1.
_SECOND = 0.25
# More than lead to the offset in one cell: a softmax, its two derivatives, and sums over at most 4 x 4 differences.
_OPERATIONS = 256
# Boxes are not taken to be narrower than this, relative to where they are, when fits are scaled by them.
_NARROW = 1e-7
# How closely the fit follows phi near the point of interest: the share of a box's half-widths that counts most.
_WIDTHS = (math.inf, 0.6, 0.3)
# How much more a fit counts where it is above, one time after the other.
_ABOVE = (4.0, 16.0, 64.0, 256.0)


@dataclass(frozen=True)
class RowFit:
    """``phi(y) >= value + slope . y + y'matrix y`` in the box, for N rows: ``[N]``, ``[N, m]``, ``[N, m, m]``.

    The value is -inf where nothing could be certified. ``level [N, m + 1]`` and ``lines [N, m + 1, m]`` are those of
    the probabilities.
    """

    value: Tensor
    slope: Tensor
    matrix: Tensor
    level: Tensor
    lines: Tensor

    NAMES = ("value", "slope", "matrix", "level", "lines")

    def or_else(self, other: RowFit, first: Tensor) -> RowFit:
        """These fits where ``first [N]``, elsewhere others."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in RowFit.NAMES)
        return RowFit(*(torch.where(first.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs))


def fit_rows(
    A: Tensor, at: Tensor, lower: Tensor, upper: Tensor, apart: Interval, point: Tensor, price: Tensor | None = None
) -> RowFit:
    """Quadratics in ``y`` below ``sum_k A_k p_k`` of rows with logits ``at + (y, 0)``, the reference being the last.

    ``A, at [N, m + 1]``; ``lower <= y <= upper`` (``[N, m]``), and ``apart`` bounds ``y_i - y_k`` (``[N, m, m]`` each);
    among some fits the one that is highest at ``point [N, m]`` is taken. ``price [N, m + 1]``: of the squares of what
    the lines of the probabilities are off by; None: there are no lines.
    """
    price = torch.zeros_like(A) if price is None else price
    m = lower.shape[-1]
    wanted = ((upper - lower).amax(-1) / (2 * _HALF[m])).nan_to_num(posinf=CELLS[m]).ceil()
    wanted = wanted.clamp(min=_FEWEST, max=CELLS[m])
    parts, places = [], []
    for steps in wanted.unique().long().tolist():
        for some in (wanted == steps).nonzero()[:, 0].split(max(1, _NEAR // (m * m * steps**m))):
            rows = (A, at, price, lower, upper, *apart, point)
            parts.append(_fit_some(steps, *(t[some] for t in rows)))
            places.append(some)
    order = torch.cat(places).argsort() if places else torch.zeros(0, dtype=torch.long, device=A.device)
    if not parts:
        return RowFit(A.new_zeros(0), lower, apart[0], A, A.new_zeros(0, m + 1, m))
    return RowFit(*(torch.cat([getattr(part, name) for part in parts])[order] for name in RowFit.NAMES))


def _fit_some(
    steps: int,
    A: Tensor,
    at: Tensor,
    price: Tensor,
    lower: Tensor,
    upper: Tensor,
    least: Tensor,
    most: Tensor,
    point: Tensor,
) -> RowFit:
    """The same with so many cells along every axis."""
    m, apart = lower.shape[-1], (least, most)
    middle, radius = lower + (upper - lower) / 2, (upper - lower) / 2
    axis = (2 * torch.arange(steps, dtype=at.dtype, device=at.device) + 1) / steps - 1
    unit = torch.cartesian_prod(*[axis] * m).reshape(-1, m)  # [cells, m]
    centres = middle[:, None] + unit * radius[:, None]  # [N, cells, m]
    # A centre is two products and two sums away from the ends of the box.
    half = radius * (1 + 1e-9) / steps + ulps(4, at.dtype) * (lower.abs() + upper.abs())
    inside = _inside(centres, half, apart)
    # In a box that is next to a point slopes hardly matter, and their squares overflow.
    scale = torch.maximum(radius, _NARROW * (1 + middle.abs()))
    v = ((centres - middle[:, None]) / scale[:, None]).clamp(-1, 1)
    target = ((point - middle) / scale).clamp(-1, 1)
    features = _features(v)
    level, lines = torch.zeros_like(A), A.new_zeros(*A.shape, m)
    nothing = RowFit(
        torch.full_like(A[:, 0], -math.inf), torch.zeros_like(lower), torch.zeros_like(least), level, lines
    )
    best, best_height = nothing, nothing.value
    priced = bool((price > 0).any())
    phi = _Phi(A, at, centres)
    for width in _WIDTHS:
        weight = inside.to(A) * (torch.exp(-((v - target[:, None]) / width).square().sum(-1) / 2) + 0.03)
        if priced:
            fitted = _least_squares(features[..., : 1 + m], weight, phi.p)  # [N, 1 + m, K]
            lines = torch.where((price > 0)[..., None], fitted[:, 1:].mT / scale[:, None], 0.0)
            level = torch.where(price > 0, fitted[:, 0] - (lines * middle[:, None]).sum(-1), 0.0)
        here = phi.less(price, level, lines, half) if priced else phi
        slope, matrix = _unpacked(_below(features, weight, here.value), m, scale, middle)
        value = _least(torch.where(inside, _above(here, A, slope, matrix, half), math.inf))
        height = value + (slope * point).sum(-1) + _quadratic(matrix, point)
        better = height > best_height
        best_height = torch.where(better, height, best_height)
        best = RowFit(value, slope, matrix, level, lines).or_else(best, better)
    value = _halved(best, A, at, price, centres, half, inside, apart)
    best = RowFit(value, best.slope, best.matrix, best.level, best.lines)
    return best.or_else(nothing, best_height > -math.inf)


def _least_squares(features: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """Coefficients ``[N, f, k]`` of features ``[N, cells, f]`` that come near to ``wanted [N, cells, k]``."""
    moments = features.mT @ (weight[..., None] * features)
    eye = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    moments = moments + 1e-8 * moments.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * eye
    return torch.linalg.solve_ex(moments, features.mT @ (weight[..., None] * wanted))[0]


def _below(features: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """Coefficients ``[N, f]`` that come near to ``wanted [N, cells]``, from below rather than from above.

    The offset is moved down to where the fit is nowhere above: where it is, it counts more and more.
    """
    counts = weight
    for more in (*_ABOVE, None):
        fitted = _least_squares(features, counts, wanted[..., None])
        if more is None:
            break
        counts = weight * torch.where((features @ fitted)[..., 0] > wanted, more, 1.0)
    return fitted[..., 0]


class _Phi:
    """phi, its gradient and its Hessian at points ``[N, cells, m]``; what else may be lost, and how large terms are."""

    def __init__(self, A: Tensor, at: Tensor, y: Tensor) -> None:
        logits = at[:, None] + torch.nn.functional.pad(y, (0, 1))
        self.y, self.p = y, logits.softmax(-1)
        self.lost = self.sizes = torch.zeros_like(self.p[..., 0])
        p = self.p
        # Relative to the mean of A, so that a common part of the weights costs no digits.
        self.common = A.mean(-1)
        a = (A - self.common[:, None])[:, None]
        self.value = (p * a).sum(-1) + self.common[:, None]
        self.gradient, self.hessian = _derivatives(p, a)

    def less(self, price: Tensor, level: Tensor, lines: Tensor, half: Tensor) -> _Phi:
        """Without the squares of what lines are off by, at their price, in cells of these halves ``[N, m]``."""
        found = copy(self)
        p, m, price = self.p, self.y.shape[-1], price[:, None]
        off = p - level[:, None] - self.y @ lines.mT  # [N, cells, K]
        steep = p[..., None] * (torch.eye(m + 1, m, dtype=p.dtype, device=p.device) - p[..., None, :-1])
        steep = steep - lines[:, None]  # [N, cells, K, m]
        found.value = self.value - (price * off.square()).sum(-1)
        found.gradient = self.gradient - 2 * ((price * off)[..., None] * steep).sum(-2)
        bent = _derivatives(p, price * off)[1]
        found.hessian = self.hessian - 2 * ((price[..., None] * steep).mT @ steep + bent)
        # In the cell a probability is so far from its tangent, and from its quadratic, and the line moves away so far.
        across = (2 * half.amax(-1))[:, None, None]
        second, third = _SECOND / 2 * across.square(), _THIRD / 6 * across**3
        moved = (steep.abs() * half[:, None, None]).sum(-1)
        reach = off.abs() + moved + second
        found.lost = (price * (second * (2 * moved + second) + third * (2 * reach + third))).sum(-1)
        found.sizes = (price * (1 + level.abs()[:, None] + self.y.abs() @ lines.abs().mT + reach).square()).sum(-1)
        return found


def _derivatives(p: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian of ``sum_k a_k p_k`` in all logits but the last, for constant a."""
    excess = a - (p * a).sum(-1, keepdim=True)
    p, excess = p[..., :-1], excess[..., :-1]
    gradient = p * excess
    mixed = p[..., :, None] * p[..., None, :] * (excess[..., :, None] + excess[..., None, :])
    return gradient, torch.diag_embed(gradient) - mixed


def _features(v: Tensor) -> Tensor:
    m = v.shape[-1]
    first, second = torch.triu_indices(m, m, device=v.device)
    return torch.cat((torch.ones_like(v[..., :1]), v, v[..., first] * v[..., second]), -1)


def _unpacked(fitted: Tensor, m: int, scale: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """Slope at zero and matrix in y, from coefficients in ``v = (y - middle) / scale``; the value is found anew."""
    first, second = torch.triu_indices(m, m, device=fitted.device)
    matrix = fitted.new_zeros(len(fitted), m, m)
    matrix[:, first, second] = fitted[:, 1 + m :] / 2
    matrix = (matrix + matrix.mT) / (scale[:, :, None] * scale[:, None, :])
    slope = fitted[:, 1 : 1 + m] / scale - 2 * (matrix @ middle[..., None])[..., 0]
    return slope, matrix


def _quadratic(matrix: Tensor, y: Tensor) -> Tensor:
    return (y * (matrix @ y[..., None])[..., 0]).sum(-1)


def _inside(centres: Tensor, half: Tensor, apart: Interval) -> Tensor:
    """The cells that hold differences ``y_i - y_k`` within their bounds, at least all of these: ``[N, cells]``."""
    between = centres[..., :, None] - centres[..., None, :]
    reach = (half[:, :, None] + half[:, None, :])[:, None]
    return ((between + reach >= apart[0][:, None]) & (between - reach <= apart[1][:, None])).flatten(2).all(-1)


def _least(low: Tensor) -> Tensor:
    """The smallest of the bounds of all cells; -inf where there is none."""
    least = low.amin(-1)
    return torch.where(least.isfinite(), least, -math.inf)


def _halved(
    fit: RowFit,
    A: Tensor,
    at: Tensor,
    price: Tensor,
    centres: Tensor,
    half: Tensor,
    inside: Tensor,
    apart: Interval,
) -> Tensor:
    """The offset of a fit with the cells in which it is least halved along every axis, again and again."""
    m, priced = centres.shape[-1], bool((price > 0).any())

    def above(centres: Tensor, half: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds of all cells, and the least value at a centre: what is above it needs no better bound."""
        phi = _Phi(A, at, centres)
        phi = phi.less(price, fit.level, fit.lines, half) if priced else phi
        low, there = _above(phi, A, fit.slope, fit.matrix, half), torch.full_like(phi.value, math.inf)
        within = _inside(centres, torch.zeros_like(half), apart)
        there = torch.where(within, _over(phi, fit.slope, fit.matrix), there)
        return torch.where(inside, low, math.inf), there.amin(-1)

    low, least = above(centres, half, inside)
    others = low.new_full(low.shape[:1], math.inf)
    ends = torch.tensor((-1.0, 1.0), dtype=A.dtype, device=A.device)
    corners = torch.cartesian_prod(*[ends] * m).reshape(-1, m)
    for most in _WORST_PRICED if priced else _WORST:
        most = max(1, min(most, int((low < least[:, None]).sum(1).max())))
        if low.shape[1] > most:
            low, order = low.sort(dim=1)
            others = torch.minimum(others, low[:, most])
            centres = centres.gather(1, order[:, :most, None].expand(-1, -1, m))
        # The two halves of a cell meet, whatever their centres are rounded to.
        new = (half / 2) * (1 + 1e-12) + ulps(4, A.dtype) * (centres.abs().amax(1) + half)
        centres = (centres[:, :, None] + (half / 2)[:, None, None] * corners).flatten(1, 2)
        half = new
        low, there = above(centres, half, _inside(centres, half, apart))
        least = torch.minimum(least, there)
    return _least(torch.minimum(low.amin(-1), others)[:, None])


def _over(phi: _Phi, slope: Tensor, matrix: Tensor) -> Tensor:
    """``phi(y) - slope . y - y'matrix y`` at the points of phi."""
    return phi.value - (phi.y * slope[:, None]).sum(-1) - ((phi.y @ matrix) * phi.y).sum(-1)


def _above(phi: _Phi, A: Tensor, slope: Tensor, matrix: Tensor, half: Tensor) -> Tensor:
    """At most the least of ``phi(y) - slope . y - y'matrix y`` in every cell: ``[N, cells]``."""
    centres = phi.y
    along = centres @ matrix  # [N, cells, m]
    linear = (centres * slope[:, None]).sum(-1)
    rest = _over(phi, slope, matrix)
    gradient = (phi.gradient - slope[:, None] - 2 * along).abs()
    hessian = phi.hessian - 2 * matrix[:, None]
    bend = hessian.diagonal(dim1=-2, dim2=-1)
    h = half[:, None]
    # The minimum of gradient * v + bend * v^2 / 2 over |v| <= h, axis by axis; mixed terms at their worst.
    inner = (bend > 0) & (gradient <= bend * h)
    at_end = -gradient * h + bend * h.square() / 2
    separate = torch.where(inner, -gradient.square() / (2 * torch.where(inner, bend, 1.0)), at_end).sum(-1)
    off = hessian.abs() * h[..., :, None] * h[..., None, :]
    mixed = (off.flatten(2).sum(-1) - off.diagonal(dim1=-2, dim2=-1).sum(-1)) / 2
    spread = (A.amax(-1) - A.amin(-1))[:, None]
    third = _THIRD / 6 * spread * (2 * half.amax(-1)[:, None]) ** 3
    sizes = A.abs().sum(-1)[:, None] + phi.sizes + linear.abs() + (centres.abs() * slope[:, None].abs()).sum(-1)
    sizes = sizes + ((centres.abs() @ matrix.abs()) * centres.abs()).sum(-1) + gradient.sum(-1) + off.flatten(2).sum(-1)
    low = rest + separate - mixed - third - phi.lost - ulps(_OPERATIONS, A.dtype) * (1 + sizes)
    return torch.where(low.isfinite(), low, -math.inf)
