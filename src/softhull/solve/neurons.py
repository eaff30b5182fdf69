"""Bounds on every neuron, logit and logit difference: DeepPoly, concretised at every layer on the way back.

A specification ``C . z`` of a layer is pushed back source by source; at every stop it is bounded with the intervals
already known there, and the best of all stops is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.operator import Interval, Lines
from ..propagate.perturbation import Region
from .layers import Stack

# Numbers of one coefficient tensor: small enough to stay in the processor's cache between two operations.
CHUNK = 1 << 21


@dataclass(frozen=True)
class NeuronBounds:
    """For one stack: intervals ``[B, M, n]`` before every activation and of the logits (last).

    ``differences[..., j, k]`` bounds ``z_j - z_k``; both are ``[B, M, K, K]``.
    """

    intervals: tuple[Interval, ...]
    differences: Interval

    @property
    def logits(self) -> Interval:
        return self.intervals[-1]

    def take(self, instances: Tensor) -> NeuronBounds:
        """The bounds of some instances, in the order given."""
        low, high = self.differences
        return NeuronBounds(
            tuple((lower[instances], upper[instances]) for lower, upper in self.intervals),
            (low[instances], high[instances]),
        )

    def member(self, m: int) -> NeuronBounds:
        """The bounds of one network of the stack."""
        one = slice(m, m + 1)
        low, high = self.differences
        return NeuronBounds(
            tuple((lower[:, one], upper[:, one]) for lower, upper in self.intervals), (low[:, one], high[:, one])
        )


def neuron_bounds(stack: Stack, region: Region) -> NeuronBounds:
    """Sound bounds for all inputs of the region, instance by instance in chunks that fit the cache."""
    widest = max(2 * layer.size for layer in stack.layers)
    widest = max(widest, stack.classes * (stack.classes - 1))
    row = len(stack.members) * widest * max(region.lower[0].numel(), *(layer.size for layer in stack.layers))
    step = max(1, CHUNK // row)
    pieces = [
        _Walks(stack, region.take(torch.arange(start, min(start + step, region.size)))).bounds()
        for start in range(0, region.size, step)
    ]
    intervals = tuple(
        (torch.cat([p.intervals[i][0] for p in pieces]), torch.cat([p.intervals[i][1] for p in pieces]))
        for i in range(len(stack.layers))
    )
    differences = (torch.cat([p.differences[0] for p in pieces]), torch.cat([p.differences[1] for p in pieces]))
    return NeuronBounds(intervals, differences)


class _Walks:
    """The walks of one chunk of instances."""

    def __init__(self, stack: Stack, region: Region) -> None:
        self.stack = stack
        self.region = region
        self.box = region.centre is None
        lower, upper = region.lower.flatten(1), region.upper.flatten(1)
        # In a box the input is middle + radius * s with every |s_i| <= 1: then a bound is one l_1 norm.
        middle, radius = lower + (upper - lower) / 2, (upper - lower) / 2
        self.bias, self.input_weights = [], {}
        for i, layer in enumerate(stack.layers):
            bias = layer.bias
            if 0 in layer.weights:
                W = layer.weights[0]
                if self.box:
                    bias = bias + torch.einsum("moi,bi->bmo", W, middle)
                    W = W * radius[:, None, None, :]
                self.input_weights[i] = W
            self.bias.append(bias.expand(region.size, *layer.bias.shape))
        self.known: list[Interval] = []  # before every activation
        self.after: list[Interval] = []
        self.lines: list[Lines] = []

    def bounds(self) -> NeuronBounds:
        for i, layer in enumerate(self.stack.layers):
            units = torch.eye(layer.size, dtype=layer.bias.dtype, device=layer.bias.device)
            best = self.upper(i, torch.cat((units, -units)))
            lower, upper = -best[..., layer.size :], best[..., : layer.size]
            lower, upper = _widened(lower, upper, torch.maximum(lower.abs(), upper.abs()))
            self.known.append((lower, upper))
            if layer.activation is not None:
                self.after.append(layer.activation.interval((lower, upper)))
                self.lines.append(layer.activation.lines(lower, upper))
        return NeuronBounds(tuple(self.known), self.differences())

    def differences(self) -> Interval:
        """``z_j - z_k`` pushed back as one specification, met with the difference of the intervals."""
        K, last = self.stack.classes, len(self.stack.layers) - 1
        lower, upper = self.known[last]
        units = torch.eye(K, dtype=lower.dtype, device=lower.device)
        pairs = ~torch.eye(K, dtype=torch.bool, device=lower.device)
        best = self.upper(last, (units[:, None] - units[None])[pairs])
        high = upper[..., :, None] - lower[..., None, :]
        high[..., pairs] = torch.minimum(high[..., pairs], best)
        size = torch.maximum(lower.abs(), upper.abs()).amax(-1)[..., None, None].expand_as(high)
        low, high = _widened(-high.mT, high, size)
        low[..., ~pairs], high[..., ~pairs] = 0, 0
        return low, high

    def upper(self, index: int, C: Tensor) -> Tensor:
        """Upper bounds ``[B, M, S]`` on ``C @ z`` with ``z`` the affine part of layer ``index``."""
        pending: dict[int, Tensor] = {}
        at_input: Tensor | None = None
        constant = C.new_zeros(1)
        best: Tensor | None = None
        layer, A = index, C
        while True:
            constant = constant + _inner(A, self.bias[layer])
            for s, W in self.stack.layers[layer].weights.items():
                back = A @ (self.input_weights[layer] if s == 0 else W)
                if s == 0:
                    at_input = back if at_input is None else at_input + back
                else:
                    pending[s] = pending[s] + back if s in pending else back
            value = constant + self._over(pending, at_input)
            best = value if best is None else torch.minimum(best, value)
            if not pending:
                return best
            top = max(pending)
            A = pending.pop(top)
            layer, lines = top - 1, self.lines[top - 1]
            positive, negative = A.clamp(min=0), A.clamp(max=0)
            constant = constant + _inner(positive, lines.upper_offset) + _inner(negative, lines.lower_offset)
            A = positive * lines.upper_slope[:, :, None] + negative * lines.lower_slope[:, :, None]
            value = constant + _largest(A, self.known[layer]) + self._over(pending, at_input)
            best = torch.minimum(best, value)

    def _over(self, pending: dict[int, Tensor], at_input: Tensor | None) -> Tensor | float:
        """The largest value of what is pending over the intervals of its sources."""
        total: Tensor | float = 0.0
        for s, A in pending.items():
            total = total + _largest(A, self.after[s - 1])
        if at_input is None:
            return total
        if self.box:
            return total + torch.linalg.vector_norm(at_input, ord=1, dim=-1)
        B, M, S = self.region.size, *self.stack.layers[0].bias.shape[:1], at_input.shape[-2]
        flat = at_input.expand(B, M, S, -1).permute(1, 2, 0, 3).reshape(M * S, B, *self.region.lower.shape[1:])
        return total - self.region.minimum(-flat).reshape(M, S, B).permute(2, 0, 1)


def _widened(lower: Tensor, upper: Tensor, size: Tensor) -> Interval:
    """The interval opened by the rounding of numbers of this size; where rounding crossed the ends, around both."""
    slack = 64 * torch.finfo(lower.dtype).eps * size
    return torch.minimum(lower, upper) - slack, torch.maximum(lower, upper) + slack


def _inner(A: Tensor, values: Tensor) -> Tensor:
    return (A @ values[..., None])[..., 0]


def _largest(A: Tensor, interval: Interval) -> Tensor:
    lower, upper = interval
    return _inner(A, lower + (upper - lower) / 2) + _inner(A.abs(), (upper - lower) / 2)
