"""Ranges of quadratics of the noise that come from products: ``sum_m (P z)_m (R z)_m`` with few m.

One set of weights for all products of an instance (``Gauge``) is cheap. Weights of its own for every product
(``own_ranges``) are dearer and tell much more: where a product depends on a part of the noise, the rest costs nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.operator import Interval
from ...graph.rounding import extreme_eigenvalues, ulps, underflow
from .affine_form import Basis, Noise
from .central_path import usable

# Steps on the weights of single products: how sharply extreme eigenvalues are told from the others, and how far to go.
_STEPS = ((3.0, 0.5), (5.0, 0.4), (8.0, 0.3), (12.0, 0.25))


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
        weights, still = _columns(basis, used)
        if effect is not None:
            weights = torch.cat((effect.expand(len(weights), -1), weights[:, effect.shape[1] :]), 1)
        ball = noise.ball(weights.shape[-1], weights.device)
        if ball is not None:  # one multiplier for the whole ball
            weights = torch.where(ball, weights[:, ball].amax(-1, keepdim=True), weights)
        most = weights.amax(-1, keepdim=True)
        weights = torch.where(most > 0, torch.maximum(weights, 1e-6 * most), 1.0)
        self.gram = _weighted_gram(basis, weights, used)  # [B, r, r]
        weights = weights.masked_fill(still, 0.0)
        self.cost = weights.sum(-1)
        if ball is not None:
            self.cost = weights[:, ~ball].sum(-1) + weights[:, ball].amax(-1)
        r, n = basis.size, basis.noise
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
        G = torch.cat((torch.cat((own, cross), -1), torch.cat((cross.mT, other), -1)), -2)
        return _eigenvalue_range(G, self.rounding, self.cost.reshape(-1, *[1] * (G.ndim - 3)))


def _map(basis: Basis, used: Tensor | None) -> Tensor:
    """The map of the noise, without the entries that are not used."""
    mapping = basis.densified().map
    return mapping if used is None else mapping * used[..., None]


def _columns(basis: Basis, used: Tensor | None) -> tuple[Tensor, Tensor]:
    """How much every noise number moves the basis entries in ``used [B, r]``, and which move none: ``[B, n]`` each."""
    if basis.parts is None:
        mapping = _map(basis, used)
        return mapping.norm(dim=1), (mapping == 0).all(1)  # a norm may underflow
    lengths = basis.map.new_zeros(len(basis.map), basis.noise)
    still = torch.ones_like(lengths, dtype=torch.bool)
    for rows, part in basis.by_part():
        own = part if used is None else part.only(used[:, rows])
        lengths[:, part.columns], still[:, part.columns] = own.lengths()
    return lengths, still


def _weighted_gram(basis: Basis, weights: Tensor, used: Tensor | None) -> Tensor:
    """``map diag(1/weights) map'``, part by part where parts are known."""
    if basis.parts is None:
        mapping = _map(basis, used)
        return (mapping / weights[:, None]) @ mapping.mT
    gram = basis.map.new_zeros(len(basis.map), basis.size, basis.size)
    for rows, part in basis.by_part():
        own = part if used is None else part.only(used[:, rows])
        gram[:, rows[:, None], rows] = own.gram(weights[:, part.columns])
    return gram


def _eigenvalue_range(G: Tensor, rounding: float, cost: Tensor) -> Interval:
    """The range of products by the Gram matrices ``[..., 2 m, 2 m]`` of both factors, each with its ``cost``."""
    m = G.shape[-1] // 2
    bad = ~G.isfinite().flatten(-2).all(-1)
    G = torch.where(bad[..., None, None], 0.0, (G + G.mT) / 2)
    size = G.diagonal(dim1=-2, dim2=-1).sum(-1)
    # A larger Gram matrix only widens the range; this one covers rounding and lets the factorisation succeed.
    # The symmetric part and the trace are a few operations more, the factorisation one of 2 m terms.
    lift = (2 * m * rounding + ulps(64, G.dtype)) * size + underflow(G.dtype)
    L, info = torch.linalg.cholesky_ex(G + torch.diag_embed(lift[..., None].expand(*lift.shape, 2 * m)))
    product = L[..., :m, :].mT @ L[..., m:, :]
    failed = bad | (info != 0)
    least, most = extreme_eigenvalues(torch.where(failed[..., None, None], 0.0, (product + product.mT) / 2))
    failed |= least.isinf()
    low = torch.where(failed, -torch.inf, (least - lift).clamp(max=0) * cost)
    high = torch.where(failed, torch.inf, (most + lift).clamp(min=0) * cost)
    return low, high


def own_ranges(left: Tensor, right: Tensor) -> Interval:
    """The ranges ``[N]`` of ``sum_m (left eps)_m (right eps)_m`` over a box of noise, factors ``[N, m, n]``.

    With weights ``d`` the range is ``sum d`` times that of the eigenvalues of ``D^-1/2 Q D^-1/2``. It is smallest where
    the squares of eigenvectors, those of the extreme eigenvalues mixed, are ``d / sum d``: weights move towards that,
    in steps that get smaller and tell nearly equal eigenvalues better and better apart.
    """
    both = torch.cat((left, right), 1)
    both = torch.where(both.isfinite().all(-1).all(-1)[:, None, None], both, 0.0)
    n, m = left.shape[-1], left.shape[1]
    d = _spread_out(both.norm(dim=1), both)
    best, least = d, torch.full_like(d[:, 0], torch.inf)
    eye = torch.eye(2 * m, dtype=d.dtype, device=d.device)
    for sharpness, step in _STEPS:
        G = _gram(both, d)
        factor, info = torch.linalg.cholesky_ex(G + (1e-12 * G.diagonal(dim1=1, dim2=2).sum(-1))[:, None, None] * eye)
        factor = usable(factor, info)
        product = factor[:, :m].mT @ factor[:, m:]
        values, vectors = torch.linalg.eigh((product + product.mT) / 2)
        low, high, total = values[:, :1], values[:, -1:], d.sum(1, keepdim=True)
        width = (total * (high - low))[:, 0]
        better = (info == 0) & (width < least)
        least, best = torch.where(better, width, least), torch.where(better[:, None], d, best)
        most = torch.maximum(high, -low).clamp(min=underflow(d.dtype))
        mixed = high * torch.softmax(sharpness * values / most, 1) - low * torch.softmax(-sharpness * values / most, 1)
        along = torch.linalg.solve_triangular(factor.mT, vectors, upper=True).mT @ both  # [N, 2 m, n]
        squares = (mixed[..., None] * along.square()).sum(1) * _inverse(d)
        share = squares / squares.sum(1, keepdim=True).clamp(min=underflow(d.dtype))
        d = _spread_out(total * (d / total.clamp(min=underflow(d.dtype))) ** (1 - step) * share**step, both)
    cost = best.sum(1) * (1 + ulps(2 * n, d.dtype))
    # An inner product of n terms, each divided and multiplied once more.
    low, high = _eigenvalue_range(_gram(both, best), ulps(4 * (n + 4), d.dtype), cost)
    known = torch.cat((left, right), 1).isfinite().flatten(1).all(1)
    return torch.where(known, low, -torch.inf), torch.where(known, high, torch.inf)


def _gram(both: Tensor, d: Tensor) -> Tensor:
    return (both * _inverse(d)[:, None]) @ both.mT


def _inverse(d: Tensor) -> Tensor:
    """One over weights; noise of weight 0 moves nothing."""
    return torch.where(d > 0, 1 / torch.where(d > 0, d, 1.0), 0.0)


def _spread_out(d: Tensor, both: Tensor) -> Tensor:
    """Weights that are usable: none far below the others, 0 where noise moves nothing."""
    most = d.amax(1, keepdim=True)
    d = torch.where((most > 0) & most.isfinite(), torch.maximum(d, 1e-6 * most), 1.0)
    return d.masked_fill((both == 0).all(1), 0.0)
