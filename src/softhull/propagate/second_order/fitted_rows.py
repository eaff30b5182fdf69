"""Attention rows inside a specification bounded by fitted quadratics: their linear and their quadratic part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...graph.rounding import share
from .affine_form import Basis
from .logits import LogitRows
from .row_fit import fit_rows

if TYPE_CHECKING:
    from .specification import Quadratic


class FittedRows:
    """All rows of one softmax met with coefficients ``A [P, *shape]`` on its probabilities.

    In every row the last of a chosen order is the reference; ``y_j`` is the difference of a logit to it, less its
    centre: ``y = slopes z + radius e`` with one fresh noise number e for each remainder.
    """

    def __init__(self, A: Tensor, axis: int, logits: LogitRows, z: Tensor) -> None:
        self.logits = logits
        self.axis = axis
        at, (low, high) = logits.at, logits.differences
        P, R, K = at.shape
        weights = A.movedim(axis + 1, -1).expand(P, *A.shape[1 : axis + 1], *A.shape[axis + 2 :], K).reshape(P, R, K)
        # The reference whose differences to the others have the smallest box.
        reference = (high - low).clamp(min=1e-12).log().sum(-1).argmin(-1)
        order = torch.arange(K, device=at.device).expand(P, R, K)
        last = order == K - 1
        order = torch.where(last, reference[..., None], torch.where(order == reference[..., None], K - 1, order))
        self.order = order

        def arranged(t: Tensor) -> Tensor:
            return t.gather(-1, order)

        def pairs(t: Tensor) -> Tensor:
            t = t.gather(-1, order[..., None, :].expand(t.shape))
            return t.gather(-2, order[..., :, None].expand(t.shape))

        at = arranged(at)
        remainder = [pairs(end)[..., :-1, -1] for end in logits.remainder]
        self.radius = (remainder[1] - remainder[0]) / 2
        shift = remainder[0] + self.radius
        self.centre = at[..., :-1] - at[..., -1:] + shift  # of x_j - x_reference
        low, high = pairs(low), pairs(high)
        lower, upper = low[..., :-1, -1] - self.centre, high[..., :-1, -1] - self.centre
        between = self.centre[..., :, None] - self.centre[..., None, :]
        apart = low[..., :-1, :-1] - between, high[..., :-1, :-1] - between
        slope = logits.slope.expand(P, *logits.slope.shape[1:])
        slope = slope.gather(-2, order[..., None].expand(*order.shape, slope.shape[-1]))
        self.slopes = slope[..., :-1, :] - slope[..., -1:, :]  # [P, R, m, r]
        point = (self.slopes @ z[:, None, : slope.shape[-1], None])[..., 0]
        point = torch.minimum(torch.maximum(point, lower), upper)
        base = torch.nn.functional.pad(self.centre, (0, 1))

        def flat(t: Tensor) -> Tensor:
            return t.flatten(0, 1)

        fit = fit_rows(
            flat(arranged(weights)), flat(base), flat(lower), flat(upper), (flat(apart[0]), flat(apart[1])), flat(point)
        )
        self.value, self.slope, self.matrix = (t.unflatten(0, (P, R)) for t in (fit.value, fit.slope, fit.matrix))

    def linear(self, shape: torch.Size) -> tuple[tuple[Tensor], Tensor]:
        """Coefficients ``[1, P, *shape]`` on the logits, and the constant."""
        K = self.order.shape[-1]
        full = torch.cat((self.slope, -self.slope.sum(-1, keepdim=True)), -1)
        on_logits = torch.zeros_like(full).scatter(-1, self.order, full)
        constant = (self.value - (self.slope * self.centre).sum(-1)).sum(-1)
        # One sum over all rows and differences; those of the slope of the reference meet its centre, which is zero.
        size = self.value.abs().sum(-1) + (self.slope.abs() * self.centre.abs()).sum((-2, -1))
        size = share(max(64, self.slope[0].numel() + self.value.shape[-1]), full.dtype) * size
        moved = [s for i, s in enumerate(shape) if i != self.axis] + [K]
        return (on_logits.reshape(-1, *moved).movedim(-1, self.axis + 1)[None],), (constant - size)[None]

    def add_to(self, quadratic: Quadratic, basis: Basis, number: int) -> None:
        """Add ``y'H y`` with fresh noise for the remainders."""
        P, R, m, r = self.slopes.shape
        fresh = R * m
        n = quadratic.linear.shape[1]
        quadratic.linear = torch.nn.functional.pad(quadratic.linear, (0, fresh))
        matrix = quadratic.matrices[number]
        quadratic.bases[number] = quadratic.bases[number].extended(fresh, n)
        size = matrix.shape[-1]
        matrix = torch.nn.functional.pad(matrix, (0, fresh, 0, fresh))
        y = self.slopes.new_zeros(P, fresh, size + fresh)
        y[..., :r] = self.slopes.flatten(1, 2)
        entry = torch.arange(fresh, device=y.device)
        y[:, entry, size + entry] = self.radius.flatten(1)
        bent = self.matrix @ y.unflatten(1, (R, m))  # [P, R, m, size]
        added = y.mT @ bent.flatten(1, 2)
        quadratic.matrices[number] = matrix + (added + added.mT) / 2
        reach = (self.slopes.abs() @ basis.reach[:, None, :r, None])[..., 0] + self.radius  # [P, R, m]
        rounded = ((reach[..., None, :] @ self.matrix.abs())[..., 0, :] * reach).sum((-2, -1))
        quadratic.constant = quadratic.constant - 4 * share(fresh + m + 8, reach.dtype) * rounded
