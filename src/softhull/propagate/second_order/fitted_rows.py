"""Attention rows inside a specification bounded by fitted quadratics: their linear and their quadratic part.

The values that a row mixes move, too. Where they are known as functions of the noise, a row is

    sum_k p_k (A_k + met_k)  +  sum_k p_k U_k,        U_k = V_k z - met_k,

for any numbers met; those near where the bound is least are taken. The first sum is fitted; in the second every
probability has a line ``level_k + lines_k . y``, and what these are off by is priced in the fit (``row_fit.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...graph.operator import Interval
from ...graph.rounding import share, ulps
from .affine_form import Basis
from .logits import LogitRows
from .row_fit import RowFit, fit_rows

if TYPE_CHECKING:
    from .specification import Quadratic


# Where differences of logits have become narrower by less than this share, fits are as good as before.
_SAME = 0.02
# And where weights have changed by less than this share of how far they are apart.
_ALIKE = 1e-3
# Probabilities that are nearly affine are taken to be off by this: no price is beyond all others.
_OFF = 1e-3


@dataclass(frozen=True)
class MixedValues:
    """What the probabilities of one softmax multiply besides their coefficients: ``sum_k (p_k - centre_k) V_k z``.

    ``slopes [P, R, K, r]`` are V over the basis that the logits are written in; ``centre [P, R, K]``. ``radius`` is how
    large ``V_k z`` may be, and ``error`` how far a probability is from an affine function, about: they choose prices.
    """

    slopes: Tensor
    centre: Tensor
    radius: Tensor
    error: Tensor

    def price(self) -> Tensor:
        """Of the squares of what lines are off by, for which the other squares cost as much: ``[P, R, K]``."""
        return self.radius / (2 * self.error.clamp(min=_OFF))


@dataclass(frozen=True)
class KnownFits:
    """Fits of the rows of one softmax over a region, for regions inside of it: ``[B, R, ...]`` each.

    ``phi(d) >= value + slope . y + y'matrix y`` for ``y = d - centre``, where d are the differences of all logits to
    the ``reference``, in their order, as long as all differences are within ``differences [B, R, K, K]``, and phi has
    the ``weights [B, R, K]``, ``met`` of them for values that move; lines in the order of the differences.
    """

    weights: Tensor
    differences: Interval
    reference: Tensor
    centre: Tensor
    value: Tensor
    slope: Tensor
    matrix: Tensor
    met: Tensor
    price: Tensor
    level: Tensor
    lines: Tensor

    def take(self, instances: Tensor) -> KnownFits:
        """The fits of some of the instances."""
        return KnownFits(**{f.name: _each(lambda t: t[instances], getattr(self, f.name)) for f in fields(self)})

    @staticmethod
    def together(fits: Sequence[KnownFits]) -> KnownFits:
        """Fits of several regions, each of one instance or more, as one."""

        def joined(name: str) -> Any:
            parts = [getattr(fit, name) for fit in fits]
            return torch.cat(parts) if name != "differences" else tuple(torch.cat(ends) for ends in zip(*parts))

        return KnownFits(**{f.name: joined(f.name) for f in fields(KnownFits)})


def _each(function: Callable[[Tensor], Tensor], part: Any) -> Any:
    return tuple(function(end) for end in part) if isinstance(part, tuple) else function(part)


class FittedRows:
    """All rows of one softmax met with coefficients ``A [P, *shape]`` on its probabilities, and the values they mix.

    In every row the last of a chosen order is the reference; ``y_j`` is the difference of a logit to it, less its
    centre: ``y = slopes z + radius e`` with one fresh noise number e for each remainder. Rows whose differences are as
    wide as those of ``known`` fits take these. Squares of y are those around ``near``, where e costs least.
    """

    def __init__(
        self,
        A: Tensor,
        axis: int,
        logits: LogitRows,
        z: Tensor,
        known: KnownFits | None = None,
        values: MixedValues | None = None,
    ) -> None:
        self.logits = logits
        self.axis = axis
        at, (low, high) = logits.at, logits.differences
        P, R, K = at.shape
        own = A.movedim(axis + 1, -1).expand(P, *A.shape[1 : axis + 1], *A.shape[axis + 2 :], K).reshape(P, R, K)
        self.own, self.values = own, values
        met, price = torch.zeros_like(own), torch.zeros_like(own)
        if values is not None:
            met, price = (values.slopes @ z[:, None, : values.slopes.shape[-1], None])[..., 0], values.price()
        # The reference whose differences to the others have the smallest box.
        reference = (high - low).clamp(min=1e-12).log().sum(-1).argmin(-1)
        again = torch.ones(P, R, dtype=torch.bool, device=at.device)
        if known is not None:
            low, high = torch.maximum(low, known.differences[0]), torch.minimum(high, known.differences[1])
            low, high = torch.minimum(low, high), torch.maximum(low, high)
            before = known.differences[1] - known.differences[0]
            again = (high - low < (1 - _SAME) * before).flatten(2).any(-1) | ~known.value.isfinite()
            there = own + known.met
            changed = (there - known.weights).abs().amax(-1)
            again |= changed > _ALIKE * (there.amax(-1) - there.amin(-1))
            # What moves must have its price, and what is met must be there.
            moving = torch.zeros_like(own) if values is None else values.slopes.abs().sum(-1)
            again |= ((moving != 0) & (known.price == 0)).any(-1)
            again |= torch.full_like(again, values is None) & (known.met != 0).any(-1)
            reference = torch.where(again, reference, known.reference)
            met, price = (torch.where(again[..., None], a, b) for a, b in ((met, known.met), (price, known.price)))
        self.met, self.price, self.weights = met, price, own + met
        self.differences, self.reference = (low, high), reference
        order = torch.arange(K, device=at.device).expand(P, R, K)
        last = order == K - 1
        order = torch.where(last, reference[..., None], torch.where(order == reference[..., None], K - 1, order))
        self.order = order
        at, low, high = self._arranged(at), self._pairs(low), self._pairs(high)
        remainder = [self._pairs(end)[..., :-1, -1] for end in logits.remainder]
        self.radius = (remainder[1] - remainder[0]) / 2
        shift = remainder[0] + self.radius
        self.centre = at[..., :-1] - at[..., -1:] + shift  # of x_j - x_reference
        lower, upper = low[..., :-1, -1] - self.centre, high[..., :-1, -1] - self.centre
        between = self.centre[..., :, None] - self.centre[..., None, :]
        apart = low[..., :-1, :-1] - between, high[..., :-1, :-1] - between
        slope = logits.slope.expand(P, *logits.slope.shape[1:])
        slope = slope.gather(-2, order[..., None].expand(*order.shape, slope.shape[-1]))
        self.slopes = slope[..., :-1, :] - slope[..., -1:, :]  # [P, R, m, r]
        point = (self.slopes @ z[:, None, : slope.shape[-1], None])[..., 0]
        self.near = point = torch.minimum(torch.maximum(point, lower), upper)
        self.most = torch.maximum(lower.abs(), upper.abs())  # of y
        base = torch.nn.functional.pad(self.centre, (0, 1))

        def flat(t: Tensor) -> Tensor:
            return t.flatten(0, 1)

        m = K - 1
        self.value = at.new_full((P, R), -math.inf)
        self.slope, self.matrix = at.new_zeros(P, R, m), at.new_zeros(P, R, m, m)
        self.level, self.lines = at.new_zeros(P, R, K), at.new_zeros(P, R, K, m)
        if known is not None:
            self._take(known, ~again)
        if bool(again.any()):
            chosen = again.flatten()
            weights, priced = self._arranged(self.weights), self._arranged(price)
            rows = (weights, base, lower, upper, apart[0], apart[1], point, priced)
            A_, base_, lower_, upper_, least, most, point_, price_ = (flat(t)[chosen] for t in rows)
            fit = fit_rows(A_, base_, lower_, upper_, (least, most), point_, price_)
            for name in RowFit.NAMES:
                getattr(self, name)[again] = getattr(fit, name)

    def _arranged(self, t: Tensor) -> Tensor:
        """``[P, R, K]`` with the reference last."""
        return t.gather(-1, self.order)

    def _pairs(self, t: Tensor) -> Tensor:
        """The same for pairs ``[P, R, K, K]``."""
        t = t.gather(-1, self.order[..., None, :].expand(t.shape))
        return t.gather(-2, self.order[..., :, None].expand(t.shape))

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
        level = known.level + (known.lines @ moved[..., None])[..., 0]
        if self.values is not None:  # so do lines, of what is multiplied with values
            lines = known.level.abs() + known.lines.abs().sum(-1) * (moved.abs().amax(-1) + reach)[..., None]
            size = size + (lines * self._arranged(self.values.radius + self.met.abs())).sum(-1)
        slack = share(16 + 8 * moved.shape[-1], value.dtype) * (size + steep * (reach + known.centre.abs().amax(-1)))
        taken = value - slack, slope, known.matrix, level, known.lines
        for name, part in zip(RowFit.NAMES, taken):
            getattr(self, name)[rows] = part[rows]

    def known(self) -> KnownFits:
        """These fits for regions inside of this one."""
        return KnownFits(**{f.name: getattr(self, f.name) for f in fields(KnownFits)})

    def _moving(self) -> tuple[Tensor, Tensor, Tensor]:
        """``V [P, R, K, r]``, what is met and the centres ``[P, R, K]``, in the order of the differences."""
        assert self.values is not None
        V = self.values.slopes
        V = V.gather(-2, self.order[..., None].expand(*self.order.shape, V.shape[-1]))
        return V, self._arranged(self.met), self._arranged(self.values.centre)

    def _squares(self) -> Tensor:
        """What squares of values cost ``[P, R, K]``: at least a quarter of one over the prices."""
        price = self._arranged(self.price)
        return torch.where(price > 0, (1 + ulps(4, price.dtype)) / (4 * torch.where(price > 0, price, 1.0)), 0.0)

    def losses(self, z: Tensor) -> Tensor:
        """How far the fits are below what they bound ``[P, R]`` where the basis is ``z [P, r]``, to nearest."""
        y = (self.slopes @ z[:, None, : self.slopes.shape[-1], None])[..., 0]
        p = torch.nn.functional.pad(self.centre + y, (0, 1)).softmax(-1)
        bent = (y * (self.slope + (self.matrix @ y[..., None])[..., 0])).sum(-1)
        loss = (p * self._arranged(self.weights)).sum(-1) - self.value - bent
        if self.values is None:
            return loss
        V, met, _ = self._moving()
        U = (V @ z[:, None, : V.shape[-1], None])[..., 0] - met
        off = p - self.level - (self.lines @ y[..., None])[..., 0]
        return loss + (U * (off + self._squares() * U)).sum(-1)

    def linear(self, shape: torch.Size) -> tuple[tuple[Tensor], Tensor]:
        """Coefficients ``[1, P, *shape]`` on the logits, and the constant."""
        K = self.order.shape[-1]
        bent = 2 * (self.matrix @ self.near[..., None])[..., 0]
        slope, value = self.slope + bent, self.value - (self.near * bent).sum(-1) / 2
        full = torch.cat((slope, -slope.sum(-1, keepdim=True)), -1)
        on_logits = torch.zeros_like(full).scatter(-1, self.order, full)
        constant = (value - (slope * self.centre).sum(-1)).sum(-1)
        # One sum over all rows and differences; those of the slope of the reference meet its centre, which is zero. A
        # slope is off by the roundings of m products and sums, along all of y.
        steep = self.slope.abs() + 2 * (self.matrix.abs() @ self.near.abs()[..., None])[..., 0]
        size = self.value.abs().sum(-1) + (steep * (self.centre.abs() + self.near.abs() + self.most)).sum((-2, -1))
        size = size + (self.own.abs() + self.met.abs()).amax(-1).sum(-1)  # weights are sums of these
        size = share(max(64, self.slope[0].numel() + self.value.shape[-1]), full.dtype) * size
        moved = [s for i, s in enumerate(shape) if i != self.axis] + [K]
        return (on_logits.reshape(-1, *moved).movedim(-1, self.axis + 1)[None],), (constant - size)[None]

    def add_to(self, quadratic: Quadratic, basis: Basis, number: int) -> None:
        """Add ``(y - near)'H (y - near)`` with fresh noise for the remainders, and the values that are mixed."""
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
        y = y.unflatten(1, (R, m))
        bent = self.matrix @ y  # [P, R, m, size]
        added = y.flatten(1, 2).mT @ bent.flatten(1, 2)
        linear = -2 * (self.near[..., None] * bent).sum((1, 2))
        constant = (self.near * (self.matrix @ self.near[..., None])[..., 0]).sum((-2, -1))
        reach = (self.slopes.abs() @ basis.reach[:, None, :r, None])[..., 0] + self.radius  # [P, R, m]
        away = reach + self.near.abs()
        sizes = ((away[..., None, :] @ self.matrix.abs())[..., 0, :] * away).sum((-2, -1))
        if self.values is not None:
            V, met, centre = self._moving()
            squares, level = self._squares(), self.level - centre
            lines = self.lines @ y  # [P, R, K, size]
            wide = torch.nn.functional.pad(V, (0, size + fresh - V.shape[-1]))
            product = lines - squares[..., None] * wide
            added = added + product.flatten(1, 2).mT @ wide.flatten(1, 2)
            linear = linear + ((level + 2 * squares * met)[..., None] * wide - met[..., None] * lines).sum((1, 2))
            constant = constant - (met * (self.level + squares * met)).sum((-2, -1))
            moving = (V.abs() @ basis.reach[:, None, : V.shape[-1], None])[..., 0] + met.abs()
            steep = self.level.abs() + centre.abs() + (self.lines.abs() @ reach[..., None])[..., 0]
            sizes = sizes + (moving * (steep + squares * moving)).sum((-2, -1))
        quadratic.matrices[number] = matrix + (added + added.mT) / 2
        whole = quadratic.bases[number]
        over = whole.over_noise(linear[:, None])[:, 0]
        quadratic.linear = quadratic.linear.index_add(1, whole.numbered(), over)
        # Sums over all rows and what is in them, over the basis, and of what was there before.
        operations = 2 * R * (2 * m + 1) + m + size + fresh + 16
        quadratic.constant = quadratic.constant + constant - 4 * share(operations, reach.dtype) * sizes
