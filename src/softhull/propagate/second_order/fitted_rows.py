"""Attention rows inside a specification bounded by fitted quadratics: their linear and their quadratic part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...graph.operator import Interval
from ...graph.rounding import share
from .affine_form import Basis
from .logits import LogitRows
from .row_fit import fit_rows

if TYPE_CHECKING:
    from .specification import Quadratic


# Where differences of logits have become narrower by less than this share, fits are as good as before.
_SAME = 0.02
# And where weights have changed by less than this share of how far they are apart.
_ALIKE = 1e-3


@dataclass(frozen=True)
class KnownFits:
    """Fits of the rows of one softmax over a region, for regions inside of it: ``[B, R, ...]`` each.

    ``phi(d) >= value + slope . y + y'matrix y`` for ``y = d - centre``, where d are the differences of all logits to
    the ``reference``, in their order, as long as all differences are within ``differences [B, R, K, K]``, and phi has
    the ``weights [B, R, K]``.
    """

    weights: Tensor
    differences: Interval
    reference: Tensor
    centre: Tensor
    value: Tensor
    slope: Tensor
    matrix: Tensor

    def take(self, instances: Tensor) -> KnownFits:
        """The fits of some of the instances."""
        low, high = (end[instances] for end in self.differences)
        parts = self.weights, self.reference, self.centre, self.value, self.slope, self.matrix
        weights, reference, centre, value, slope, matrix = (part[instances] for part in parts)
        return KnownFits(weights, (low, high), reference, centre, value, slope, matrix)

    @staticmethod
    def together(fits: Sequence[KnownFits]) -> KnownFits:
        """Fits of several regions, each of one instance or more, as one."""

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(fit, name) for fit in fits])

        low, high = (torch.cat([fit.differences[side] for fit in fits]) for side in (0, 1))
        names = ("reference", "centre", "value", "slope", "matrix")
        return KnownFits(joined("weights"), (low, high), *(joined(name) for name in names))


class FittedRows:
    """All rows of one softmax met with coefficients ``A [P, *shape]`` on its probabilities.

    In every row the last of a chosen order is the reference; ``y_j`` is the difference of a logit to it, less its
    centre: ``y = slopes z + radius e`` with one fresh noise number e for each remainder. Rows whose differences are as
    wide as those of ``known`` fits take these.
    """

    def __init__(self, A: Tensor, axis: int, logits: LogitRows, z: Tensor, known: KnownFits | None = None) -> None:
        self.logits = logits
        self.axis = axis
        at, (low, high) = logits.at, logits.differences
        P, R, K = at.shape
        weights = A.movedim(axis + 1, -1).expand(P, *A.shape[1 : axis + 1], *A.shape[axis + 2 :], K).reshape(P, R, K)
        self.weights = weights
        # The reference whose differences to the others have the smallest box.
        reference = (high - low).clamp(min=1e-12).log().sum(-1).argmin(-1)
        again = torch.ones(P, R, dtype=torch.bool, device=at.device)
        if known is not None:
            low, high = torch.maximum(low, known.differences[0]), torch.minimum(high, known.differences[1])
            low, high = torch.minimum(low, high), torch.maximum(low, high)
            before = known.differences[1] - known.differences[0]
            again = (high - low < (1 - _SAME) * before).flatten(2).any(-1) | ~known.value.isfinite()
            changed = (weights - known.weights).abs().amax(-1)
            again |= changed > _ALIKE * (weights.amax(-1) - weights.amin(-1))
            reference = torch.where(again, reference, known.reference)
        self.differences, self.reference = (low, high), reference
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

        m = K - 1
        self.value = at.new_full((P, R), -math.inf)
        self.slope, self.matrix = at.new_zeros(P, R, m), at.new_zeros(P, R, m, m)
        if known is not None:
            self._take(known, ~again)
        if bool(again.any()):
            chosen = again.flatten()
            rows = (arranged(weights), base, lower, upper, apart[0], apart[1], point)
            A_, base_, lower_, upper_, least, most, point_ = (flat(t)[chosen] for t in rows)
            fit = fit_rows(A_, base_, lower_, upper_, (least, most), point_)
            self.value[again], self.slope[again], self.matrix[again] = fit.value, fit.slope, fit.matrix

    def _take(self, known: KnownFits, rows: Tensor) -> None:
        """Known fits for some rows, around centres that may be others now and for weights that may be, too.

        Probabilities add up to one, so that other weights change phi by at most their largest change.
        """
        moved = self.centre - known.centre
        bent = (known.matrix @ moved[..., None])[..., 0]
        changed = (self.weights - known.weights).abs()
        terms = known.value.abs() + (moved.abs() * (known.slope.abs() + known.matrix.abs().sum(-1) * moved.abs())).sum(
            -1
        )
        size = terms + changed.amax(-1) + self.weights.abs().amax(-1) + known.weights.abs().amax(-1)
        value = known.value + (moved * (known.slope + bent)).sum(-1) - changed.amax(-1)
        slope = known.slope + 2 * bent
        # A centre that is off by a rounding moves along slopes; slopes that are, along the whole box.
        reach = torch.maximum(*(end.abs().flatten(2).amax(-1) for end in self.differences)) + self.centre.abs().amax(-1)
        steep = (known.slope.abs() + 2 * known.matrix.abs().sum(-1) * (moved.abs() + reach[..., None])).sum(-1)
        slack = share(16 + 8 * moved.shape[-1], value.dtype) * (size + steep * (reach + known.centre.abs().amax(-1)))
        self.value[rows], self.slope[rows], self.matrix[rows] = (value - slack)[rows], slope[rows], known.matrix[rows]

    def known(self) -> KnownFits:
        """These fits for regions inside of this one."""
        return KnownFits(
            self.weights, self.differences, self.reference, self.centre, self.value, self.slope, self.matrix
        )

    def losses(self, z: Tensor) -> Tensor:
        """How far the fits are below what they bound ``[P, R]`` where the basis is ``z [P, r]``, to nearest."""
        y = (self.slopes @ z[:, None, : self.slopes.shape[-1], None])[..., 0]
        p = torch.nn.functional.pad(self.centre + y, (0, 1)).softmax(-1)
        bent = (y * (self.slope + (self.matrix @ y[..., None])[..., 0])).sum(-1)
        return (p * self.weights.gather(-1, self.order)).sum(-1) - self.value - bent

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
