"""How far the lines of a factor move together: an ellipsoid for each, from what they are as functions of the input.

A line of values v in ``R^m`` that is ``F eps`` away from its middle, up to ``rest``, for noise eps in a box, lies in an
ellipsoid: for any weights d > 0

    |c . F eps|^2  <=  (c . F diag(1/d) F' c) sum_n d_n eps_n^2  <=  c . G c,    G = (sum_n d_n) F diag(1/d) F'.

So ``c . v`` is bounded for every c by a product with a small matrix, where a sum over entries would add up what they do
one by one. The weights are the lengths of the columns of F; inputs in a ball share one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.rounding import share, underflow
from ..regions import Region
from .second_order.affine_form import centre_and_radius
from .structure import pieces, positions

if TYPE_CHECKING:
    from .crown import LinearBounds

# A node may be a factor on either side, of two products.
KINDS = ("spread of rows", "spread of columns")


@dataclass(frozen=True)
class Spread:
    """Lines of a factor: ``middle [B, ..., m]``, what is left ``rest [B, ..., m]``, and ``gram [B, ..., m, m]``."""

    middle: Tensor
    rest: Tensor
    gram: Tensor

    def take(self, instances: Tensor) -> Spread:
        """That of some instances, in the order given."""
        return Spread(self.middle[instances], self.rest[instances], self.gram[instances])

    def reach(self, rows: Tensor) -> Tensor:
        """How far ``rows [S, B, ..., I, m]`` times the lines may get from what they make of the middle."""
        squares = (torch.einsum("sb...ik,b...jkl->sb...ijl", rows, self.gram) * rows.unsqueeze(-2)).sum(-1)
        return squares.clamp(min=underflow(rows.dtype)).sqrt() + rows.abs() @ self.rest.mT


def spread(bounds: LinearBounds, index: int, flipped: bool) -> Spread:
    """The lines of a node along its last axis, or, flipped, along the last but one."""
    return bounds.knowledge.find(KINDS[flipped], index, lambda: _found(bounds, index, flipped))


def _found(bounds: LinearBounds, index: int, flipped: bool) -> Spread:
    """As many instances at once as fit: only the small matrices are kept."""
    each = 16 * bounds.structure.width(index) * bounds.graph.shape_of(index)[-2 if flipped else -1]
    parts = pieces(positions(bounds.region.lower), max(1, bounds.memory // each))
    found = [_of_some(bounds if len(part) == bounds.size else bounds.take(part), index, flipped) for part in parts]
    return Spread(*(torch.cat([getattr(each, name) for each in found]) for name in ("middle", "rest", "gram")))


def _of_some(bounds: LinearBounds, index: int, flipped: bool) -> Spread:
    """The lines of all instances, from walks that share their noise."""
    region, shape = bounds.region, bounds.graph.shape_of(index)
    entries = torch.arange(math.prod(shape), device=region.lower.device).reshape(shape)
    lines = (entries.mT if flipped else entries).reshape(-1, shape[-2 if flipped else -1])  # [lines, m]
    centre, radius = (t.flatten(1) for t in centre_and_radius(region))
    size, inputs = centre.shape
    middles, rests, grams = [], [], []
    for part in pieces(positions(lines), max(1, bounds.chunk(index) // (2 * lines.shape[1]))):
        bounds.check_time()
        chosen = lines[part].flatten()
        units = centre.new_zeros(len(chosen), entries.numel())
        units[positions(chosen), chosen] = 1
        claim, noise = bounds.parallel(index, torch.cat((units, -units)).reshape(-1, 1, *shape))
        A = claim.pending.get(-1, units.new_zeros(2 * len(units), 1, inputs)).flatten(2)
        bound = claim.bound.expand(-1, size)
        below, above = torch.cat(((A * radius).expand(-1, size, -1), noise), 2).chunk(2)  # [entries, B, noise]
        (least, most), (low, high) = (A * centre).sum(-1).chunk(2), bound.chunk(2)
        slope, apart = (below - above) / 2, (below + above).abs().sum(-1) / 2
        # Between -apart and apart of their mean, the functions below and above leave this much.
        low, high = low + least - apart, -(high + most) + apart
        terms = (A.abs() * (centre.abs() + radius)).sum(-1) + bound.abs()
        terms = torch.maximum(*terms.chunk(2)) + apart + slope.abs().sum(-1)
        cost = share(2 * slope.shape[-1] + 8, centre.dtype)
        middles.append(((low + high) / 2).T)
        rests.append((((high - low) / 2).clamp(min=0) + 2 * cost * terms).T)
        moved = slope.transpose(0, 1).unflatten(1, (len(part), -1))  # [B, lines, m, noise]
        grams.append(_gram(region, inputs, moved))
    order = (shape[-1], shape[-2]) if flipped else shape[-2:]
    leading = (size, *shape[:-2], *order)
    middle, rest = (torch.cat(t, 1).reshape(leading) for t in (middles, rests))
    return Spread(middle, rest, torch.cat(grams, 1).reshape(*leading, order[-1]))


def _gram(region: Region, inputs: int, moved: Tensor) -> Tensor:
    """``G [..., m, m]`` of slopes ``[..., m, n]`` over the noise, with what rounding may cost it and a form in it.

    The first of the noise are the inputs; in a ball they share one weight, and their squares add up to one.
    """
    m, n = moved.shape[-2:]
    weights = moved.norm(dim=-2)
    if region.centre is not None:
        ball = weights[..., :inputs].norm(dim=-1, keepdim=True).expand(*weights.shape[:-1], inputs)
        weights = torch.cat((ball, weights[..., inputs:]), -1)
    # Noise that does not move a line has no weight: that of other instances must not cost this one anything.
    moves = (moved != 0).any(-2)
    if region.centre is not None:
        moves[..., :inputs] = moves[..., :inputs].any(-1, keepdim=True)
    weights = torch.where(moves, torch.maximum(weights, 1e-6 * weights.amax(-1, keepdim=True)), 0.0)
    weights = torch.where(moves & (weights == 0), underflow(moved.dtype), weights)  # squares that vanish
    price = weights.sum(-1)
    if region.centre is not None:
        price = weights[..., inputs:].sum(-1) + weights[..., 0]
    gram = (moved / torch.where(moves, weights, 1.0)[..., None, :]) @ moved.mT * price[..., None, None]
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    lift = 2 * share(2 * n + m * m + 16, moved.dtype) * trace + underflow(moved.dtype)
    return (gram + gram.mT) / 2 + torch.diag_embed(lift[..., None].expand(*lift.shape, m))
