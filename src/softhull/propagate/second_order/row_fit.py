"""Quadratics below a combination of the probabilities of one attention row: fitted, then certified cell by cell.

For weights A the function ``phi(y) = sum_k A_k p_k`` of the differences ``y_j`` to a reference logit is smooth, and a
quadratic follows it more closely than any plane. The fit is by least squares and promises nothing. The promise is its
offset: the box of differences is cut into cells, and in each the fitted quadratic is moved below phi, by value,
gradient and Hessian at the centre of the cell and a bound on third derivatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...graph.operator import Interval
from ...graph.rounding import ulps

# Cells along each of m axes at most; longer rows keep their planes.
CELLS = {1: 192, 2: 40, 3: 16, 4: 8}
# At first they need not be smaller than this, from the centre to a face; then so many of the worst are halved along
# every axis, a few times over.
_HALF = {1: 0.06, 2: 0.12, 3: 0.25, 4: 0.4}
_FEWEST, _WORST, _HALVED = 5, 64, 2
# Numbers of one tensor that is worked on at once: it should stay near the processor.
_NEAR = 1 << 17
# |d^3/dt^3 phi(y + t v)| <= this * (max A - min A) * (max v - min v)^3: a joint cumulant of A and three v, with
# |E[A V^3]| <= (1/2)(.0567)^(1/2) and 3 |E[A V]| E[V^2] <= 3/16 for centred A, V of range one.
_THIRD = 0.31
# More than lead to the offset in one cell: a softmax, its two derivatives, and sums over at most 4 x 4 differences.
_OPERATIONS = 256
# How closely the fit follows phi near the point of interest: the share of a box's half-widths that counts most.
_WIDTHS = (math.inf, 0.6, 0.3)


@dataclass(frozen=True)
class RowFit:
    """``phi(y) >= value + slope . y + y'matrix y`` in the box, for N rows: ``[N]``, ``[N, m]``, ``[N, m, m]``.

    The value is -inf where nothing could be certified.
    """

    value: Tensor
    slope: Tensor
    matrix: Tensor


def fit_rows(A: Tensor, at: Tensor, lower: Tensor, upper: Tensor, apart: Interval, point: Tensor) -> RowFit:
    """Quadratics in ``y`` below ``sum_k A_k p_k`` of rows with logits ``at + (y, 0)``, the reference being the last.

    ``A, at [N, m + 1]``; ``lower <= y <= upper`` (``[N, m]``), and ``apart`` bounds ``y_i - y_k`` (``[N, m, m]`` each);
    among some fits the one that is highest at ``point [N, m]`` is taken.
    """
    m = lower.shape[-1]
    wanted = ((upper - lower).amax(-1) / (2 * _HALF[m])).nan_to_num(posinf=CELLS[m]).ceil()
    wanted = wanted.clamp(min=_FEWEST, max=CELLS[m])
    parts, places = [], []
    for steps in wanted.unique().long().tolist():
        for some in (wanted == steps).nonzero()[:, 0].split(max(1, _NEAR // (m * m * steps**m))):
            rows = (A, at, lower, upper, *apart, point)
            parts.append(_fit_some(steps, *(t[some] for t in rows)))
            places.append(some)
    order = torch.cat(places).argsort() if places else torch.zeros(0, dtype=torch.long, device=A.device)
    value, slope, matrix = (
        torch.cat([getattr(part, name) for part in parts])[order] if parts else empty
        for name, empty in (("value", A.new_zeros(0)), ("slope", lower), ("matrix", apart[0]))
    )
    return RowFit(value, slope, matrix)


def _fit_some(
    steps: int, A: Tensor, at: Tensor, lower: Tensor, upper: Tensor, least: Tensor, most: Tensor, point: Tensor
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
    phi = _Phi(A, at, centres)
    scale = torch.where(radius > 0, radius, 1.0)
    v = ((centres - middle[:, None]) / scale[:, None]).clamp(-1, 1)
    target = ((point - middle) / scale).clamp(-1, 1)
    features = _features(v)
    best: RowFit | None = None
    best_height = A.new_full(A.shape[:1], -math.inf)
    for width in _WIDTHS:
        weight = inside.to(A) * (torch.exp(-((v - target[:, None]) / width).square().sum(-1) / 2) + 0.03)
        moments = features.mT @ (weight[..., None] * features)
        moments = moments + 1e-8 * moments.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * torch.eye(
            features.shape[-1], dtype=A.dtype, device=A.device
        )
        fitted = torch.linalg.solve_ex(moments, features.mT @ (weight * phi.value)[..., None])[0][..., 0]
        slope, matrix = _unpacked(fitted, m, scale, middle)
        low = _above(phi, A, slope, matrix, centres, half)
        value = _least(torch.where(inside, low, math.inf))
        height = value + (slope * point).sum(-1) + _quadratic(matrix, point)
        better = height > best_height
        best_height = torch.where(better, height, best_height)
        found = RowFit(value, slope, matrix)
        best = found if best is None else _choose(better, found, best)
    assert best is not None
    value = _halved(best, A, at, centres, half, inside, apart)
    best_height = best_height + torch.where(best_height.isfinite(), value - best.value, 0.0)
    best = RowFit(value, best.slope, best.matrix)
    usable = best_height > -math.inf
    nothing = RowFit(
        torch.full_like(best.value, -math.inf), torch.zeros_like(best.slope), torch.zeros_like(best.matrix)
    )
    return _choose(usable, best, nothing)


def _choose(first: Tensor, a: RowFit, b: RowFit) -> RowFit:
    return RowFit(
        torch.where(first, a.value, b.value),
        torch.where(first[:, None], a.slope, b.slope),
        torch.where(first[:, None, None], a.matrix, b.matrix),
    )


class _Phi:
    """phi, its gradient and its Hessian at points ``[N, cells, m]``."""

    def __init__(self, A: Tensor, at: Tensor, y: Tensor) -> None:
        logits = at[:, None] + torch.nn.functional.pad(y, (0, 1))
        p = logits.softmax(-1)
        # Relative to the mean of A, so that a common part of the weights costs no digits.
        self.common = A.mean(-1)
        a = (A - self.common[:, None])[:, None]
        self.value = (p * a).sum(-1) + self.common[:, None]
        excess = a - (p * a).sum(-1, keepdim=True)
        p, excess = p[..., :-1], excess[..., :-1]
        self.gradient = p * excess
        mixed = p[..., :, None] * p[..., None, :] * (excess[..., :, None] + excess[..., None, :])
        self.hessian = torch.diag_embed(self.gradient) - mixed


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
    fit: RowFit, A: Tensor, at: Tensor, centres: Tensor, half: Tensor, inside: Tensor, apart: Interval
) -> Tensor:
    """The offset of a fit with the cells in which it is least halved along every axis, again and again."""
    m = centres.shape[-1]
    low = torch.where(inside, _above(_Phi(A, at, centres), A, fit.slope, fit.matrix, centres, half), math.inf)
    others = low.new_full(low.shape[:1], math.inf)
    ends = torch.tensor((-1.0, 1.0), dtype=A.dtype, device=A.device)
    corners = torch.cartesian_prod(*[ends] * m).reshape(-1, m)
    for _ in range(_HALVED):
        if low.shape[1] > _WORST:
            low, order = low.sort(dim=1)
            others = torch.minimum(others, low[:, _WORST])
            centres = centres.gather(1, order[:, :_WORST, None].expand(-1, -1, m))
        # The two halves of a cell meet, whatever their centres are rounded to.
        new = (half / 2) * (1 + 1e-12) + ulps(4, A.dtype) * (centres.abs().amax(1) + half)
        centres = (centres[:, :, None] + (half / 2)[:, None, None] * corners).flatten(1, 2)
        half = new
        low = _above(_Phi(A, at, centres), A, fit.slope, fit.matrix, centres, half)
        low = torch.where(_inside(centres, half, apart), low, math.inf)
    return _least(torch.minimum(low.amin(-1), others)[:, None])


def _above(phi: _Phi, A: Tensor, slope: Tensor, matrix: Tensor, centres: Tensor, half: Tensor) -> Tensor:
    """At most the least of ``phi(y) - slope . y - y'matrix y`` in every cell: ``[N, cells]``."""
    along = centres @ matrix  # [N, cells, m]
    quadratic = (along * centres).sum(-1)
    linear = (centres * slope[:, None]).sum(-1)
    rest = phi.value - linear - quadratic
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
    sizes = A.abs().sum(-1)[:, None] + linear.abs() + (centres.abs() * slope[:, None].abs()).sum(-1)
    sizes = sizes + ((centres.abs() @ matrix.abs()) * centres.abs()).sum(-1) + gradient.sum(-1) + off.flatten(2).sum(-1)
    low = rest + separate - mixed - third - ulps(_OPERATIONS, A.dtype) * (1 + sizes)
    return torch.where(low.isfinite(), low, -math.inf)
