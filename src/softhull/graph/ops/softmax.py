"""Softmax along one axis, and the masks that exporters add to its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Interval, Operator
from ..rounding import outward, share, ulps, underflow

# A constant this far below the largest one of its row is a mask: no network means e^-10000 as a weight.
MASKED_BELOW = -1e4


def _log_sum_exp_of_others(x: Tensor, axis: int) -> Tensor:
    """For every entry the log-sum-exp of all other entries along ``axis``; no cancellation, -inf allowed."""
    none = torch.full_like(x.narrow(axis, 0, 1), -torch.inf)
    before = torch.cat((none, x.narrow(axis, 0, x.shape[axis] - 1)), axis).logcumsumexp(axis)
    after = torch.cat((none, x.flip(axis).narrow(axis, 0, x.shape[axis] - 1)), axis).logcumsumexp(axis)
    return torch.logaddexp(before, after.flip(axis))


@dataclass(frozen=True)
class Softmax(Operator):
    """``exp(x_k) / sum_j exp(x_j)`` along ``axis``; entries of -inf are masked and get probability 0.

    ``mask`` is what the network adds to its logits where it masks them, -inf or hugely negative, and 0 elsewhere; with
    ``replaced`` masked logits are the mask itself. Its shape broadcasts to that of the input and has all of ``axis``.

    Let d be the masked probabilities of a row together and q the softmax of its visible logits alone. Then
    ``p_k = (1 - d) q_k`` for visible k and ``p_k <= d`` for masked ones. So a row is bounded as if its masked entries
    were not there, off by at most ``leak``, a bound on d; the size of the mask enters nothing else.
    """

    name: ClassVar[str] = "Softmax"
    axis: int
    mask: Tensor | None = None
    replaced: bool = False

    @property
    def masked(self) -> Tensor | None:
        """Where the mask is, in the shape of one instance or one that broadcasts to it."""
        return None if self.mask is None else self.mask < 0

    def value(self, *inputs: Tensor) -> Tensor:
        logits = inputs[0]
        if self.mask is not None:
            logits = torch.where(self.mask < 0, self.mask, logits) if self.replaced else logits + self.mask
        return logits.softmax(self.axis + 1)

    def hidden(self, logits: Tensor) -> Tensor:
        """Logits ``[B, *shape]`` with -inf where they are masked."""
        return logits if self.masked is None else logits.masked_fill(self.masked, -torch.inf)

    def leak(self, lower: Tensor, upper: Tensor) -> Tensor:
        """At least the masked probabilities of every row together, for logits in a box; size 1 along ``axis``."""
        assert self.mask is not None
        axis = self.axis + 1
        shut = self.mask < 0
        best = lower.masked_fill(shut, -torch.inf).amax(axis, keepdim=True)
        raised = torch.zeros_like(upper) if self.replaced else upper
        behind = self.mask + raised - best
        # Three numbers are added up; the size of the mask matters for nothing but this.
        behind = behind + ulps(4, lower.dtype) * (self.mask.abs() + raised.abs() + best.abs())
        behind = torch.where(self.mask == -torch.inf, -torch.inf, behind)
        worst = torch.where(shut, behind, -torch.inf).amax(axis, keepdim=True)
        count = shut.sum(self.axis, keepdim=True)
        found = count * worst.exp() * (1 + ulps(8, lower.dtype)) + underflow(lower.dtype)
        return torch.where(count == 0, 0.0, found.nan_to_num(1.0).clamp(max=1))

    def interval(self, *inputs: Interval) -> Interval:
        """Exact for the visible logits: every output grows with its own and falls with the others."""
        lower, upper = inputs[0]
        if self.mask is None:
            return self._visible(lower, upper)
        leak = self.leak(lower, upper)
        least, most = self._visible(self.hidden(lower), self.hidden(upper))
        return (least - leak).nan_to_num(0.0).clamp(min=0), torch.maximum(most.nan_to_num(1.0), leak)

    def _visible(self, lower: Tensor, upper: Tensor) -> Interval:
        """Ranges of the probabilities where some logits may be masked (``-inf``), rounded outward."""
        axis = self.axis + 1
        visible = upper != -torch.inf  # before a difference overflows; NaN is unbounded
        top = upper.amax(axis, keepdim=True)
        lower, upper = outward(lower - top, upper - top)
        low, high = (end.masked_fill(end.isinf(), 0.0) for end in (lower, upper))
        extent = torch.maximum(low.abs(), high.abs()).amax(axis, keepdim=True)
        # Every one of the sums in a row rounds numbers up to the extent; the sigmoid is relative to itself.
        error = share(4 * lower.shape[axis], lower.dtype) * (1 + extent)
        least = torch.sigmoid(lower - _log_sum_exp_of_others(upper, axis) - error)
        most = torch.sigmoid(upper - _log_sum_exp_of_others(lower, axis) + error)
        relative, tiny = share(8, lower.dtype), underflow(lower.dtype)
        # Masked entries have probability 0 and an entry alone has 1, exactly.
        certain = visible & (visible.sum(axis, keepdim=True) == 1)
        least = torch.where(certain, 1.0, (least - relative * least - tiny).clamp(min=0))
        most = torch.where(visible, (most + relative * most + tiny).clamp(max=1), 0.0)
        return least, most
