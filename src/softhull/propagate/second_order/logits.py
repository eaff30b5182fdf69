"""Logits of a softmax as forms: by rows, with the remainders of their products bounded where they are used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...graph.graph import Graph
from ...graph.operator import Interval
from ...graph.ops.matmul import MatMul
from ...graph.ops.softmax import Softmax
from ...graph.rounding import share, ulps, underflow
from .affine_form import product_error, vanishing
from .dual import Pursuit, maximise
from .low_rank import LowRankQuadratic
from .remainders import own_ranges

if TYPE_CHECKING:
    from .forward import Forms

_NEAR = 1 << 20  # numbers worked on at once
_STEPS = 2  # on the multipliers of one difference of logits: its linear part is most of it, and they are soon good


@dataclass(frozen=True)
class LogitRows:
    """What is known of the rows of one softmax: ``x_j - x_k = at_j - at_k + (slope_j - slope_k) . z + remainder_jk``.

    ``at [B, rows, K]``, ``slope [B, rows, K, r]`` over the basis of number ``basis``; the intervals ``remainder`` and
    ``differences`` (of ``x_j - x_k``) are ``[B, rows, K, K]``.
    """

    at: Tensor
    slope: Tensor
    remainder: Interval
    differences: Interval
    basis: int

    def take(self, instances: Tensor) -> LogitRows:
        """The rows of some of the instances."""
        slope = self.slope if self.slope.shape[0] == 1 else self.slope[instances]
        remainder = self.remainder[0][instances], self.remainder[1][instances]
        differences = self.differences[0][instances], self.differences[1][instances]
        return replace(self, at=self.at[instances], slope=slope, remainder=remainder, differences=differences)


class ProductLogits:
    """The rows of logits of one softmax: ``at [B, rows, K]``, slopes ``[B, rows, K, r]``, and a remainder.

    Where the logits are a matrix product, every row shares one factor: ``x_k = a . b_k``. A combination
    ``sum_k c_k x_k`` then has the remainder ``da . (sum_k c_k db_k)``, which is bounded for the combination as a whole.
    """

    def __init__(
        self, forms: Forms, at: Tensor, slope: Tensor, slack: Tensor, shared: Tensor | None, varied: Tensor | None
    ) -> None:
        self.forms = forms
        self.at = at
        self.slack = slack  # what rounding may cost a logit
        self.slope = slope
        self._rows = at.shape[1]
        self._own: Tensor | None = None
        self._factors: tuple[Tensor, Tensor] | None = None
        if shared is not None and varied is not None:
            self._factors = shared, varied
            gauge = self._gauge = forms.gauge_of(shared, varied)
            flat = varied.flatten(2, 3)  # [B, g, K m, r]
            K, m = varied.shape[2:4]
            self._own = gauge.inner(shared, shared)  # [B, g, R, m, m]
            cross = gauge.inner(shared.flatten(2, 3), flat)
            self._cross = cross.unflatten(3, (K, m)).unflatten(2, (-1, m)).transpose(3, 4)  # [B, g, R, K, m, m]
            other = gauge.inner(flat, flat)
            self._other = other.unflatten(3, (K, m)).unflatten(2, (K, m)).transpose(3, 4)  # [B, g, K, K, m, m]

    @staticmethod
    def fits(graph: Graph, index: int) -> bool:
        """Whether the logits of a softmax are a matrix product, row by row."""
        node = graph.nodes[index]
        if not isinstance(node.operator, Softmax) or node.inputs[0] < 0:
            return False
        product = graph.nodes[node.inputs[0]].operator
        rank = len(node.shape)
        return (
            isinstance(product, MatMul)
            and len(product.left) == len(product.right) == rank
            and product.left[:-2] == product.right[:-2]
            and node.operator.axis >= rank - 2
        )

    @staticmethod
    def of(forms: Forms, index: int, shown: Tensor) -> ProductLogits:
        """The logits of a softmax at ``shown [K']`` as affine forms, with the product behind them if there is one."""
        node = forms.graph.nodes[index]
        assert isinstance(node.operator, Softmax)
        axis = node.operator.axis
        if not ProductLogits.fits(forms.graph, index):
            form = forms.form(node.inputs[0])
            at = form.centre.movedim(axis + 1, -1)
            slope = form.slope.movedim(axis + 2, -1).flatten(2, -2).movedim(1, -1)
            at = at.reshape(at.shape[0], -1, at.shape[-1])
            cost = share(at.shape[-1] + slope.shape[-1], at.dtype)
            slack = form.error * (1 + cost) + cost * form.size(forms.basis).nan_to_num(posinf=0.0)
            slack = slack.movedim(axis + 1, -1).reshape(at.shape)
            return ProductLogits(forms, at[..., shown], slope[..., shown, :], slack[..., shown], None, None)
        x, y = (forms.form(i) for i in forms.graph.nodes[node.inputs[0]].inputs)
        r = max(x.slope.shape[1], y.slope.shape[1])
        left, right = (x.centre, x.padded(r)), (y.centre.mT, y.padded(r).mT)  # [.., I, m], [.., J, m]
        if axis == len(node.shape) - 1:
            shared, varied = left, right
        else:
            shared, varied = right, left
        B = x.centre.shape[0]
        a, b = (t[0].reshape(B, -1, *t[0].shape[-2:]) for t in (shared, varied))  # [B, g, R, m], [B, g, K, m]
        da, db = (
            t[1].movedim(1, -1).reshape(t[1].shape[0], -1, *t[1].shape[-2:], r) for t in (shared, varied)
        )  # [B or 1, g, R, m, r], [B or 1, g, K, m, r]
        b, db = b[:, :, shown], db[:, :, shown]
        at = a @ b.mT
        slope = torch.einsum("bgrm,bgkms->bgrks", a, db.expand(B, *db.shape[1:]))
        slope = slope + torch.einsum("bgkm,bgrms->bgrks", b, da.expand(B, *da.shape[1:]))
        product = forms.graph.nodes[node.inputs[0]].operator
        assert isinstance(product, MatMul)
        slack = product_error(product, x, y, forms.basis, at.shape[-1] + a.shape[-1] + r)
        slack = slack.movedim(axis + 1, -1).reshape(B, -1, node.shape[axis])[..., shown]
        return ProductLogits(forms, at.flatten(1, 2), slope.flatten(1, 2), slack, da, db)

    def remainder(self, c: Tensor) -> Interval:
        """The range ``[B, rows, N]`` of the remainder of ``sum_k c_k x_k`` for weights ``c [B, rows, N, K]``."""
        # Products of slopes with weights, which are at most one, and with the map of the basis may vanish.
        basis, like = self.forms.basis, self.slack
        lost = 2 * sum(self.slope.shape[2:]) * (vanishing(basis, like) + basis.noise * underflow(like.dtype))
        slack = (c.abs() @ like[..., None])[..., 0] + lost * (c != 0).any(-1)
        if self._own is None:
            return -slack, slack
        g = self._own.shape[1]
        lows, highs = [], []
        weights = c.unflatten(1, (g, -1))  # [B, g, R, N, K]
        for row in range(weights.shape[2]):
            w = weights[:, :, row]
            cross = torch.einsum("bgnk,bgkij->bgnij", w, self._cross[:, :, row])
            other = torch.einsum("bgnk,bgnl,bgklij->bgnij", w, w, self._other)
            own = self._own[:, :, row, None].expand(cross.shape)
            low, high = self._gauge.between(own, cross, other)
            lows.append(low)
            highs.append(high)
        return torch.stack(lows, 2).flatten(1, 2) - slack, torch.stack(highs, 2).flatten(1, 2) + slack

    def reach(self, directions: Tensor) -> Interval:
        """Bounds ``[B, rows, N]`` on ``directions . (x - at)`` for directions ``[B, rows, N, K]``."""
        low, high = self.remainder(directions)
        radius = self._radius(directions)
        return low - radius, high + radius

    def variance(self, p: Tensor, weights: Tensor) -> Tensor:
        """At least the largest ``sum_j weights_j (s_j - sum_i p_i s_i)^2`` of every row, ``s = x - at``: ``[B, rows]``.

        ``p`` and ``weights`` are ``[B, rows, K]``. Lengths add up: what the noise moves, and the remainder of products.
        """
        K = self.at.shape[-1]
        c = torch.eye(K, dtype=p.dtype, device=p.device) - p[..., None, :]
        low, high = self.remainder(c)
        left = (weights * torch.maximum(low.abs(), high.abs()).square()).sum(-1).sqrt()
        left = left + math.sqrt(K * underflow(p.dtype))
        moved = self._over_noise(c, lambda slope, w: self.forms.noise.length(w.sqrt()[..., None] * slope), weights)
        return ((moved + left) * (1 + share(2 * K, p.dtype))).square()

    def rows(self, known: Interval | None) -> LogitRows:
        """All differences within the rows, met with what is known of them."""
        c, (first, second) = self._pairs()
        low, high = self.remainder(c)
        radius = self._radius(c)
        apart = self.at[..., first] - self.at[..., second]
        # One difference, and three sums with it.
        slack = ulps(8, apart.dtype) * (self.at[..., first].abs() + self.at[..., second].abs())
        remainder = self._table(low, high)
        lower, upper = self._table(apart + low - radius - slack, apart + high + radius + slack)
        if known is not None:
            lower, upper = torch.maximum(lower, known[0]), torch.minimum(upper, known[1])
        differences = torch.minimum(lower, upper), torch.maximum(lower, upper)
        return LogitRows(self.at, self.slope, remainder, differences, self.forms.current)

    def sharpened(self, rows: LogitRows, find: Callable[[Callable[[], Interval]], Interval]) -> LogitRows:
        """The same by a quadratic for every difference, where logits are products and the noise is that of a box.

        ``find`` keeps what holds in all parts of a region.
        """
        if self._factors is None or self.forms.noise.norm != math.inf:
            return rows
        known = find(self._sharp_differences)
        lower, upper = torch.maximum(rows.differences[0], known[0]), torch.minimum(rows.differences[1], known[1])
        low, high = self._table(*self._own_remainder(self._pairs()[0]))
        remainder = torch.maximum(rows.remainder[0], low), torch.minimum(rows.remainder[1], high)
        return replace(
            rows, remainder=remainder, differences=(torch.minimum(lower, upper), torch.maximum(lower, upper))
        )

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Weights ``[B, rows, N, K]`` of all differences, and which logits these are of."""
        K = self.at.shape[-1]
        pairs = torch.triu_indices(K, K, 1, device=self.at.device)
        eye = torch.eye(K, dtype=self.at.dtype, device=self.at.device)
        return (eye[pairs[0]] - eye[pairs[1]]).expand(*self.at.shape[:2], -1, -1), pairs

    def _table(self, below: Tensor, above: Tensor) -> Interval:
        """Bounds ``[B, rows, N]`` on all differences as ``[B, rows, K, K]``."""
        K = self.at.shape[-1]
        first, second = torch.triu_indices(K, K, 1, device=self.at.device)
        lower, upper = (self.at.new_zeros(*self.at.shape, K) for _ in range(2))
        lower[..., first, second], upper[..., first, second] = below, above
        lower[..., second, first], upper[..., second, first] = -above, -below
        return lower, upper

    def _sharp_differences(self) -> Interval:
        """All differences, each by a quadratic."""
        c, (first, second) = self._pairs()
        least, most = self._ranges(c)
        apart = self.at[..., first] - self.at[..., second]
        # One difference, and a sum with it.
        slack = ulps(8, apart.dtype) * (self.at[..., first].abs() + self.at[..., second].abs())
        return self._table(apart + least - slack, apart + most + slack)

    def _over_noise_factors(self) -> tuple[Tensor, Tensor]:
        """Both factors over the noise: ``[B rows, m, n]``, ``[B g, K, m, n]``."""
        assert self._factors is not None
        basis, B = self.forms.basis, len(self.at)

        def over_noise(t: Tensor) -> Tensor:
            found = basis.over_noise(t.flatten(1, -2)).unflatten(1, t.shape[1:-1])
            return found.expand(B, *found.shape[1:])

        shared, varied = (over_noise(t) for t in self._factors)  # [B, g, R, m, n], [B, g, K, m, n]
        return shared.flatten(0, 2), varied.flatten(0, 1)

    def _by_parts(self, c: Tensor, found: Callable[[Tensor, Tensor, Tensor], Interval]) -> Interval:
        """Intervals ``[B, rows, N]`` of ``sum_k c_k x_k`` by both factors ``[P, m, n]`` of some of their remainders."""
        B, R, N, _ = c.shape
        shared, varied = self._over_noise_factors()
        flat, group = c.flatten(0, 2), R // (len(varied) // B)
        parts = []
        for some in torch.arange(len(flat), device=c.device).split(max(1, _NEAR // (2 * shared[0].numel()))):
            row = some // N
            right = torch.einsum("nk,nkms->nms", flat[some], varied[row // group])
            parts.append(found(some, shared[row], right))
        # What is over the noise has been rounded on the way there, both factors, once more than the slack says.
        slack = 2 * (c.abs() @ self.slack[..., None])[..., 0]
        low, high = (torch.cat(ends).reshape(B, R, N) for ends in zip(*parts))
        return low - slack, high + slack

    def _own_remainder(self, c: Tensor) -> Interval:
        """The range of the remainder of ``sum_k c_k x_k``, for each by weights of its own."""
        return self._by_parts(c, lambda _, left, right: own_ranges(left, right))

    def _ranges(self, c: Tensor) -> Interval:
        """The range of ``sum_k c_k (x_k - at_k)``, for each by a quadratic with multipliers of its own."""
        linear = self.forms.basis.over_noise((c @ self.slope).flatten(1, 2)).flatten(0, 1)

        def found(some: Tensor, left: Tensor, right: Tensor) -> Interval:
            m, l = left.shape[1], linear[some]  # noqa: E741
            half = torch.eye(m, dtype=c.dtype, device=c.device) / 2
            zero = torch.zeros_like(half)
            swap = torch.cat((torch.cat((zero, half), 1), torch.cat((half, zero), 1))).expand(len(some), -1, -1)
            both = torch.cat((left, right), 1)
            problem = LowRankQuadratic.of(torch.cat((l, -l)), torch.cat((both, both)), torch.cat((swap, -swap)))
            never = c.new_full((2 * len(some),), math.inf)
            below, above = maximise(problem, Pursuit(_STEPS, never))[0].nan_to_num(nan=-math.inf).split(len(some))
            return below, -above

        return self._by_parts(c, found)

    def _radius(self, directions: Tensor) -> Tensor:
        return self._over_noise(directions, self.forms.noise.radius)

    def _over_noise(self, directions: Tensor, measure: Callable[..., Tensor], *others: Tensor) -> Tensor:
        """A measure of slopes ``[B, rows, N, n]`` over the noise, and of ``others [B, rows, ...]`` beside them.

        A few rows at once: with many directions that is less work than over the basis.
        """
        B, rows, K, r = self.slope.shape
        over_noise = self.forms.basis.over_noise(self.slope.reshape(B, rows * K, r)).unflatten(1, (rows, K))
        together = max(1, _NEAR // (directions[:, 0].numel() // K * over_noise.shape[-1]))
        parts = zip(*(t.split(together, 1) for t in (directions, over_noise, *others)))
        return torch.cat([measure(some @ slope, *beside) for some, slope, *beside in parts], 1)

    def combined(self, c: Tensor) -> tuple[Tensor, Interval]:
        """Slopes over the basis of ``c . (x - at)``, and the range of what they leave out."""
        return c @ self.slope, self.remainder(c)
