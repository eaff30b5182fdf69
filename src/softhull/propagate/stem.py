"""The first layer and the box of inputs in one step, where that layer cuts the input into patches.

For a box of inputs ``m +- r`` and a first layer ``y = K x + b``

    <A, y>  >=  <A, K m + b>  -  sum_j |(K'A)_j| r_j.

The rounding of ``K'A`` is multiplied by the radius of the box alone, not by the size of the inputs, so that single
precision serves. Patches do not overlap: every input is in one of them, and coefficients stay as patches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..graph.ops.conv import Conv
from ..graph.rounding import share, underflow
from ..regions import Region, inner, rounded_down
from .structure import pieces, positions

# Bytes of coefficients on the inputs that are worked on at once.
_NEAR = 1 << 20
# So many inputs are added up in single precision.
_BLOCK = 64


@dataclass(frozen=True, eq=False)
class Stem:
    """A first layer over boxes: ``kernel [C, n]``, its output ``middle [B, C P]`` at the middle of every box.

    ``radius [P, B, n, blocks]`` is that of the inputs of every patch, each in the column of its block. Rounding costs
    ``weights [B, C P]`` for one unit of every coefficient, and ``floor [B]`` whatever these are.
    """

    kernel: Tensor
    radius: Tensor
    middle: Tensor
    weights: Tensor
    floor: Tensor

    @staticmethod
    def of(operator: Conv, region: Region) -> Stem | None:
        """The first layer over the boxes of a region; None where it is no box, or too large."""
        lower, upper = region.lower, region.upper
        # Elsewhere single precision may be shorter than it says.
        short = torch.float32 if torch.get_float32_matmul_precision() == "highest" else lower.dtype
        kernel = operator.kernel.flatten(1).to(short)
        bounded = bool((lower.isfinite() & upper.isfinite()).all() & kernel.isfinite().all())
        if type(region) is not Region or region.centre is not None or not bounded:
            return None
        half = (upper - lower) / 2
        middle = lower + half
        size = torch.maximum(lower.abs(), upper.abs())
        radius = half + share(1, lower.dtype) * size + underflow(lower.dtype)  # of the real numbers around the middle
        value = operator.value(middle).flatten(1)
        terms = operator.terms(tuple(lower.shape[1:]))
        off = share(terms, lower.dtype) * operator.magnitude(middle.abs()).flatten(1) + terms * underflow(lower.dtype)
        moved = replace(operator, kernel=operator.kernel.abs(), bias=None).value(radius).flatten(1)
        tiny = underflow(short)
        patches = operator.patches((-rounded_down(-radius, short)).clamp(min=tiny))  # [B, P, n]
        total, inputs = radius.flatten(1).sum(1), radius[0].numel()
        channels, n = operator.kernel.shape[0], patches.shape[-1]
        weights = share(value.shape[1], lower.dtype) * value.abs() + off
        # Sums over channels in single precision, of numbers that were rounded to it; what is lost near zero.
        weights = weights + share(channels, short) * moved + 2 * tiny * (1 + total[:, None])
        floor = 2 * tiny * ((channels + inputs + 2) * (1 + total) + moved.sum(1))
        block = torch.arange(n, device=lower.device) // _BLOCK
        columns = torch.nn.functional.one_hot(block).to(patches)  # sums with zeros are exact
        return Stem(kernel, patches.transpose(0, 1)[..., None] * columns, value, weights, floor)

    def take(self, instances: Tensor) -> Stem:
        """That of some instances, in the order given."""
        radius, kept = self.radius[:, instances], (self.middle, self.weights, self.floor)
        return Stem(self.kernel, radius, *(t[instances] for t in kept))

    def around(self, A: Tensor) -> tuple[Tensor, Tensor]:
        """What ``<A [S, B or 1, N, C, *space], node>`` is around, and how far from it at most: ``[S, B]`` each."""
        flat, (channels, n) = A.flatten(2), self.kernel.shape
        middle = inner(flat, self.middle)
        patches = len(self.radius)
        rows = A.flatten(4) if A.ndim > 4 else A[..., None]
        rows = rows.movedim(3, -1).reshape(*A.shape[:2], patches, channels).movedim(2, 0)  # [P, S, B or 1, C]
        together = max(1, _NEAR // (4 * n * patches * rows.shape[2]))
        widths = [self._widths(rows[:, part]) for part in pieces(positions(A), together)]
        reach = torch.cat(widths) if widths else torch.zeros_like(middle)
        cost = share(_BLOCK, self.kernel.dtype) + share(n * patches, reach.dtype)
        reach = reach * (1 + cost) + inner(flat.abs(), self.weights) + self.floor
        return middle, reach + share(2, reach.dtype) * (middle.abs() + reach)

    def _widths(self, rows: Tensor) -> Tensor:
        """``sum_j |(K'A)_j| r_j`` as ``[S, B]`` for coefficients ``[P, S, B or 1, C]``."""
        alive = (rows != 0).flatten(1).any(1).nonzero()[:, 0]  # rows on a few tokens meet a few patches
        rows, radius = (rows, self.radius) if len(alive) == len(rows) else (rows[alive], self.radius[alive])
        P, S, B, C = rows.shape
        rows = rows.transpose(1, 2)  # [P, B or 1, S, C]
        back = (rows.reshape(-1, C).to(self.kernel) @ self.kernel).abs_().reshape(P, B, S, self.kernel.shape[1])
        return (back @ radius).double().sum(-1).sum(0).T.to(self.middle)
