"""Softmax along one axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..operator import Interval, Operator
from ..rounding import outward, share, underflow


def _log_sum_exp_of_others(x: Tensor, axis: int) -> Tensor:
    """For every entry the log-sum-exp of all other entries along ``axis``; no cancellation, -inf allowed."""
    none = torch.full_like(x.narrow(axis, 0, 1), -torch.inf)
    before = torch.cat((none, x.narrow(axis, 0, x.shape[axis] - 1)), axis).logcumsumexp(axis)
    after = torch.cat((none, x.flip(axis).narrow(axis, 0, x.shape[axis] - 1)), axis).logcumsumexp(axis)
    return torch.logaddexp(before, after.flip(axis))


@dataclass(frozen=True)
class Softmax(Operator):
    """``exp(x_k) / sum_j exp(x_j)`` along ``axis``; entries of -inf are masked and get probability 0."""

    name: ClassVar[str] = "Softmax"
    axis: int

    def value(self, *inputs: Tensor) -> Tensor:
        return inputs[0].softmax(self.axis + 1)

    def interval(self, *inputs: Interval) -> Interval:
        """Exact: every output grows with its own input and falls with the others."""
        lower, upper = inputs[0]
        axis = self.axis + 1
        visible = upper > -torch.inf  # before a difference overflows
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
