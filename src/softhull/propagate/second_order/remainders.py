"""Ranges of quadratics of the noise that come from products: ``sum_m (P z)_m (R z)_m`` with few m."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.operator import Interval
from ...graph.rounding import ulps, underflow
from .affine_form import Basis, Noise


class Gauge:
    """A scale of the noise in which quadratics are measured by their extreme eigenvalues.

    With weights ``d`` and ``W = map diag(1/d) map'`` the quadratic ``z'Q z`` of the basis lies between ``cost(d)``
    times the least and the largest eigenvalue of ``L'Q L``, where ``L L' = W`` and ``cost(d)`` is the largest
    ``sum_i d_i eps_i^2``. One set of weights serves all products of an instance, so that what remains per product is
    an eigenvalue problem of the size of its factors. Noise that moves none of the basis entries in ``used [B, r]`` (all
    without it) costs nothing; products may then have slopes on no others. Noise weighs as much as it moves the basis,
    the first of it as ``effect [B, n']`` says.
    """

    def __init__(self, basis: Basis, noise: Noise, used: Tensor | None = None, effect: Tensor | None = None) -> None:
        mapping = basis.densified().map
        if used is not None:
            mapping = mapping * used[..., None]
        weights = mapping.norm(dim=1)
        if effect is not None:
            weights = torch.cat((effect.expand(len(weights), -1), weights[:, effect.shape[1] :]), 1)
        still = (mapping == 0).all(1)  # a norm may underflow
        ball = noise.ball(weights.shape[-1], weights.device)
        if ball is not None:  # one multiplier for the whole ball
            weights = torch.where(ball, weights[:, ball].amax(-1, keepdim=True), weights)
        most = weights.amax(-1, keepdim=True)
        weights = torch.where(most > 0, torch.maximum(weights, 1e-6 * most), 1.0)
        self.gram = (mapping / weights[:, None]) @ mapping.mT  # [B, r, r]
        weights = weights.masked_fill(still, 0.0)
        self.cost = weights.sum(-1)
        if ball is not None:
            self.cost = weights[:, ~ball].sum(-1) + weights[:, ball].amax(-1)
        r, n = mapping.shape[1:]
        self.cost = self.cost * (1 + ulps(2 * n, weights.dtype))
        # Rounding of an inner product of slopes in this metric, in units of the product of their norms.
        self.rounding = ulps(4 * (n + 2 * r), weights.dtype)

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """``a W b'`` for slopes ``a [B or 1, ..., p, r]`` and ``b [B or 1, ..., q, r]``."""
        r = a.shape[-1]
        gram = self.gram[:, :r, :r]
        return (a @ gram.reshape(-1, *[1] * (a.ndim - 3), r, r)) @ b.mT

    def between(self, own: Tensor, cross: Tensor, other: Tensor) -> Interval:
        """The range of a product by the inner products of its factors' slopes, each ``[B, ..., m, m]``.

        ``own = P W P'``, ``cross = P W R'``, ``other = R W R'``.
        """
        m = own.shape[-1]
        G = torch.cat((torch.cat((own, cross), -1), torch.cat((cross.mT, other), -1)), -2)
        bad = ~G.isfinite().flatten(-2).all(-1)
        G = torch.where(bad[..., None, None], 0.0, (G + G.mT) / 2)
        size = G.diagonal(dim1=-2, dim2=-1).sum(-1)
        # A larger Gram matrix only widens the range; this one covers rounding and lets the factorisation succeed.
        # The symmetric part and the trace are a few operations more, the factorisation one of 2 m terms.
        lift = (2 * m * self.rounding + ulps(64, G.dtype)) * size + underflow(G.dtype)
        L, info = torch.linalg.cholesky_ex(G + torch.diag_embed(lift[..., None].expand(*lift.shape, 2 * m)))
        product = L[..., :m, :].mT @ L[..., m:, :]
        failed = bad | (info != 0)
        values = torch.linalg.eigvalsh(torch.where(failed[..., None, None], 0.0, (product + product.mT) / 2))
        price = self.cost.reshape(-1, *[1] * (lift.ndim - 1))
        low = torch.where(failed, -torch.inf, (values[..., 0] - lift).clamp(max=0) * price)
        high = torch.where(failed, torch.inf, (values[..., -1] + lift).clamp(min=0) * price)
        return low, high
