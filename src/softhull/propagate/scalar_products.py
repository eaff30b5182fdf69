"""What planes of a scalar product of two lines that both move leave out, such as an attention logit ``q . k``.

The tangent at the centres of both factors leaves out ``dx . dy``. Entry by entry that is at most the sum of products of
their half-widths, each of them at its own worst. This sum depends on the basis: ``(x G) . (y G^-T)`` is the same number
for every invertible G, with other half-widths. What is used here does not, but for the weights of ellipsoids: with
``|c . dx|^2 <= c . A c`` and ``|c . dy|^2 <= c . B c`` for all c (``spread.py``), any matrix L, and e the norm of
``A - L L'``,

    (dx . dy)^2  <=  dy . A dy  <=  |L' dy|^2 + e |dy|^2  <=  (largest eigenvalue of L' B L) + e trace B.

That is the largest singular value of ``A^(1/2) B^(1/2)``, where half-widths of these ellipsoids in any basis have at
least the sum of all of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.ops.matmul import MatMul
from ..graph.rounding import extreme_eigenvalues, share, underflow
from .spread import Spread, spread
from .structure import pieces

if TYPE_CHECKING:
    from .crown import LinearBounds

# Multiplications for all pairs of lines of one instance up to which their eigenvalues are worth their time.
_WORK = 1 << 25


def are_pairs(bounds: LinearBounds, index: int) -> bool:
    """Whether a product is one of lines of which neither are probabilities, and these are not too many."""
    node = bounds.graph.nodes[index]
    operator, rank = node.operator, len(node.shape)
    if not isinstance(operator, MatMul) or len(operator.left) < 2 or operator.left[:-2] != operator.right[:-2]:
        return False
    if min(node.inputs) < 0 or math.prod(node.shape) * operator.left[-1] ** 3 > _WORK:
        return False
    sides = zip(node.inputs, (rank - 1, rank - 2))
    return not any(bounds.structure.rows_are_softmax(i, axis) for i, axis in sides)


def remainders(bounds: LinearBounds, index: int) -> Tensor:
    """At most how far every entry ``[B, *shape]`` of a product is from its tangent at the centres of the intervals.

    Infinite where nothing is known.
    """
    return bounds.knowledge.find("remainders", index, lambda: _found(bounds, index))


def _found(bounds: LinearBounds, index: int) -> Tensor:
    """For all pairs of lines, as many at once as fit the memory."""
    grams = []
    for side, i in enumerate(bounds.graph.nodes[index].inputs):
        lower, upper = bounds.interval(i)
        centre, size = lower + (upper - lower) / 2, torch.maximum(lower.abs(), upper.abs())
        lines = spread(bounds, i, flipped=side == 1)
        grams.append(around(lines, *(t.mT if side == 1 else t for t in (centre, size))))
    left, right = (gram.reshape(len(gram), -1, *gram.shape[-3:]) for gram in grams)  # [B, groups, lines, d, d]
    each = 8 * left.shape[0] * left.shape[1] * math.prod(right.shape[2:])
    parts = pieces(torch.arange(left.shape[2], device=left.device), max(1, bounds.memory // each))
    found = torch.cat([largest_products(left[:, :, part], right) for part in parts], 2)
    return found.reshape(-1, *bounds.graph.nodes[index].shape)


def around(lines: Spread, centre: Tensor, size: Tensor) -> Tensor:
    """Matrices ``[..., lines, d, d]`` of ellipsoids around other centres that hold all that lines may be.

    ``size``: that of the largest number that the centres were made of.
    """
    gram, dtype = lines.gram, lines.gram.dtype
    few = share(8, dtype)
    apart = (lines.middle - centre).abs()
    rest = lines.rest + apart + few * (apart + lines.rest + size) + underflow(dtype)
    total, trace = rest.sum(-1), _trace(gram)
    # Two ellipsoids, gram and that around a box: any weight gives one that holds all sums. This has the least trace.
    weight = (total / trace.sqrt()).clamp(1e-9, 1e9)[..., None]
    both = (1 + weight)[..., None] * gram + torch.diag_embed((1 + 1 / weight) * total[..., None] * rest)
    # Every entry is off by a share of itself, which is at most the mean of two of the diagonal.
    lift = 2 * share(gram.shape[-1] + 8, dtype) * _trace(both) + 2 * gram.shape[-1] * underflow(dtype)
    return both + torch.diag_embed(lift[..., None].expand(rest.shape))


def largest_products(left: Tensor, right: Tensor) -> Tensor:
    """The largest products ``[..., I, J]`` of vectors in ellipsoids ``[..., I, d, d]`` and ``[..., J, d, d]``.

    Never below them; infinite where nothing is known.
    """
    d, dtype = left.shape[-1], left.dtype
    lost = d * d * underflow(dtype)
    factor = torch.linalg.cholesky_ex(torch.where(left.isfinite(), left, 0.0)).L
    factor = torch.where(factor.isfinite().flatten(-2).all(-1)[..., None, None], factor, 0.0)  # any one will do
    missed = (left - factor @ factor.mT).abs() + 2 * share(d, dtype) * (left.abs() + factor.abs() @ factor.abs().mT)
    missed = missed.flatten(-2).sum(-1) + d * lost  # at least the largest eigenvalue of what is missed
    wide = factor.unsqueeze(-3)
    product = wide.mT @ right.unsqueeze(-4) @ wide
    _, most = extreme_eigenvalues((product + product.mT) / 2)
    # Entries of the product are off by a share of the largest entry of B times the lengths of two columns of L.
    lengths = factor.abs().sum(-2).square().sum(-1)[..., None]
    terms = lengths * right.abs().flatten(-2).amax(-1).unsqueeze(-2)
    rounded = 4 * share(2 * d + d * d, dtype) * terms + 4 * lost * (1 + lengths)
    squares = most.clamp(min=0) + rounded + missed[..., None] * _trace(right).unsqueeze(-2) * (1 + share(d, dtype))
    found = (squares * (1 + share(4, dtype)) + lost).sqrt() * (1 + share(1, dtype))
    return torch.where(found.isfinite(), found, math.inf)


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
