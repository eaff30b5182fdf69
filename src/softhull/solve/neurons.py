"""Bounds on every neuron, logit and logit difference: DeepPoly, concretised at every layer on the way back.

A specification ``C . z`` of a layer is pushed back source by source; at every stop it is bounded with the intervals
already known there, and the best of all stops is kept.

With outward rounding the coefficients found are taken as the exact numbers they are. What exact arithmetic would have
made of the coefficients before differs from them, times the values they stand for, by at most a share of ``|A|`` times
the absolute values of all terms of the layer; that share (``charges``) is added to the bound at every step. Scalar
products with intervals lose a share of ``|A|`` times the size of the interval, which widens its radius.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.operator import Elementwise, Interval, Lines
from ..graph.rounding import largest, share, ulps, underflow
from ..propagate.structure import pieces, positions
from ..propagate.walk import Claim, Step, Walk
from ..regions import Region
from .layers import Layer, Stack

# Numbers of one coefficient tensor: small enough to stay in the processor's cache between two operations.
CHUNK = 1 << 21


@dataclass(frozen=True)
class NeuronBounds:
    """For one stack: intervals ``[B, M, n]`` before every activation and of the logits (last).

    ``differences[..., j, k]`` bounds ``z_j - z_k``; both are ``[B, M, K, K]``. ``charges [B, M, n]`` of every layer:
    how far, per unit of a coefficient, one step back through the layer may be from the real network; 0 to nearest.
    """

    intervals: tuple[Interval, ...]
    differences: Interval
    charges: tuple[Tensor, ...]

    @property
    def logits(self) -> Interval:
        """Bounds on the logits, the last layer."""
        return self.intervals[-1]

    def take(self, instances: Tensor) -> NeuronBounds:
        """The bounds of some instances, in the order given."""
        low, high = self.differences
        return NeuronBounds(
            tuple((lower[instances], upper[instances]) for lower, upper in self.intervals),
            (low[instances], high[instances]),
            tuple(charge[instances] for charge in self.charges),
        )

    def member(self, m: int) -> NeuronBounds:
        """The bounds of one network of the stack."""
        one = slice(m, m + 1)
        low, high = self.differences
        return NeuronBounds(
            tuple((lower[:, one], upper[:, one]) for lower, upper in self.intervals),
            (low[:, one], high[:, one]),
            tuple(charge[:, one] for charge in self.charges),
        )


def neuron_bounds(
    stack: Stack, region: Region, outward: bool = True, known: NeuronBounds | None = None
) -> NeuronBounds:
    """Sound bounds for all inputs of the region, instance by instance in chunks that fit the cache.

    With bounds that are ``known`` to hold, in the whole region or in the part that a question is about, they hold there
    and are nowhere wider.
    """
    widest = max(2 * layer.size for layer in stack.layers)
    widest = max(widest, stack.classes * (stack.classes - 1))
    row = len(stack.members) * widest * max(region.lower[0].numel(), *(layer.size for layer in stack.layers))
    step = max(1, CHUNK // row)
    parts = [
        Walks(stack, region.take(here), outward).bounds(known and known.take(here))
        for here in pieces(positions(region.lower), step)
    ]
    intervals = tuple(
        (torch.cat([p.intervals[i][0] for p in parts]), torch.cat([p.intervals[i][1] for p in parts]))
        for i in range(len(stack.layers))
    )
    differences = (torch.cat([p.differences[0] for p in parts]), torch.cat([p.differences[1] for p in parts]))
    charges = tuple(torch.cat([p.charges[i] for p in parts]) for i in range(len(stack.layers)))
    return NeuronBounds(intervals, differences, charges)


def successive(stack: Stack, inputs: int) -> int:
    """How many operations follow upon each other, at most, between two numbers that are taken as exact."""
    widest = max(inputs, len(stack.members) * max(layer.size for layer in stack.layers))
    return 2 * widest + 16 * len(stack.layers)


class Walks:
    """The walks of one chunk of instances."""

    def __init__(self, stack: Stack, region: Region, outward: bool) -> None:
        self.stack = stack
        self.region = region
        self.outward = outward
        self.box = region.centre is None
        lower, upper = region.lower.flatten(1), region.upper.flatten(1)
        self.cost = share(successive(stack, lower.shape[1]), lower.dtype) if outward else 0.0
        # In a box the input is middle + radius * s with every |s_i| <= 1: then a bound is one l_1 norm.
        middle, radius = self._ball((lower, upper))
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
        self.sizes: list[Tensor] = [largest(lower, upper)]  # of the sources
        self.charges: list[Tensor] = []
        # By node: middles; radii and charges side by side, before an activation of the layer, behind it of the lines.
        self.around: dict[int, tuple[Tensor, Tensor]] = {}
        self.lines: list[Lines] = []

    def through(self, known: NeuronBounds) -> Walks:
        """Ready for walks, with lines and charges from bounds that are known to hold."""
        for layer, interval in zip(self.stack.layers, known.intervals):
            self.charges.append(self._charge(layer))
            self.known.append(interval)
            if layer.activation is not None:
                self._pass(layer.activation, interval, self.charges[-1])
        return self

    def bounds(self, given: NeuronBounds | None = None) -> NeuronBounds:
        """Everything, layer after layer; where intervals do not meet those ``given``, nothing is in both: either do."""
        for i, layer in enumerate(self.stack.layers):
            self.charges.append(self._charge(layer))
            units = torch.eye(layer.size, dtype=layer.bias.dtype, device=layer.bias.device)
            best = self.upper(i, torch.cat((units, -units)))
            # Rounding to nearest may cross the ends.
            lower, upper = torch.minimum(-best[..., layer.size :], best[..., : layer.size]), best[..., : layer.size]
            upper = torch.maximum(upper, -best[..., layer.size :])
            if given is not None:
                least, most = given.intervals[i]
                low, high = torch.maximum(lower, least), torch.minimum(upper, most)
                lower, upper = torch.where(low <= high, low, least), torch.where(low <= high, high, most)
            self.known.append((lower, upper))
            if layer.activation is not None:
                self._pass(layer.activation, (lower, upper), self.charges[i])
        low, high = self.differences()
        if given is not None:
            least, most = (torch.maximum(low, given.differences[0]), torch.minimum(high, given.differences[1]))
            low, high = (torch.where(least <= most, end, side) for end, side in zip((least, most), given.differences))
        return NeuronBounds(tuple(self.known), (low, high), tuple(self.charges))

    def _charge(self, layer: Layer) -> Tensor:
        """What rounding costs one unit of a coefficient of the layer, folding of its numbers included."""
        B, (M, n) = self.region.size, layer.bias.shape
        if not self.outward:
            return layer.bias.new_zeros(1).expand(B, M, n)
        cost = self.cost + share(layer.operations, layer.bias.dtype)
        lost = underflow(layer.bias.dtype) * n * sum(1 + float(size.sum(-1).amax()) for size in self.sizes)
        return cost * layer.magnitude(self.sizes) + lost

    def _pass(self, activation: Elementwise, interval: Interval, charge: Tensor) -> None:
        """Know what is needed of an activation: its lines, its range and what they cost."""
        lines, after = activation.lines(*interval), activation.interval(interval)
        slope = torch.maximum(lines.lower_slope.abs(), lines.upper_slope.abs())
        offset = torch.maximum(lines.lower_offset.abs(), lines.upper_offset.abs())
        through = self.cost * (slope * largest(*interval) + offset)
        before = 2 * len(self.lines) + 1
        for node, ends, extra in ((before, interval, charge), (before + 1, after, through)):
            middle, radius = self._ball(ends)
            self.around[node] = middle, torch.stack((radius, extra), -1)
        self.lines.append(lines)
        self.sizes.append(largest(*after))

    def _ball(self, interval: Interval) -> tuple[Tensor, Tensor]:
        """Middle and radius of an interval, the radius widened by what scalar products with both may lose."""
        lower, upper = interval
        radius = (upper - lower) / 2
        middle = lower + radius
        if self.outward:
            radius = radius + self.cost * largest(lower, upper) + underflow(lower.dtype)
        return middle, radius

    def differences(self) -> Interval:
        """``z_j - z_k`` pushed back as one specification, met with the difference of the intervals."""
        K, last = self.stack.classes, len(self.stack.layers) - 1
        lower, upper = self.known[last]
        units = torch.eye(K, dtype=lower.dtype, device=lower.device)
        pairs = ~torch.eye(K, dtype=torch.bool, device=lower.device)
        best = self.upper(last, (units[:, None] - units[None])[pairs])
        high = upper[..., :, None] - lower[..., None, :]
        if self.outward:
            high = torch.nextafter(high, torch.full_like(high, torch.inf))
        high[..., pairs] = torch.minimum(high[..., pairs], best)
        low, high = torch.minimum(-high.mT, high), torch.maximum(-high.mT, high)
        if not self.outward:  # rounding must not make them contradict each other or the intervals
            slack = ulps(64, high.dtype) * largest(lower, upper).amax(-1)[..., None, None]
            low, high = low - slack, high + slack
        low[..., ~pairs], high[..., ~pairs] = 0, 0
        return low, high

    def upper(self, index: int, C: Tensor) -> Tensor:
        """Upper bounds ``[B, M, S]`` on ``C @ z`` with ``z`` the affine part of layer ``index``."""
        walk, claim = self._walk(index, C)
        value = claim.constant + self.over_input(claim)
        return value if walk.best is None else torch.minimum(walk.best, value)

    def form(self, index: int, C: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes ``[B, M, S, n]`` and constants ``[B, M, S]`` with ``C @ z <= slopes @ s + constants``, for boxes.

        The input is ``middle + radius * s`` with all ``|s_i| <= 1``; the constants hold what rounding costs.
        """
        _, claim = self._walk(index, C)
        return claim.pending[0], claim.constant

    def _walk(self, index: int, C: Tensor) -> tuple[_ThroughLayers, Claim]:
        nothing = C.new_zeros(1)
        walk = _ThroughLayers(self, 2 * index + 1)
        return walk, walk.back(Claim({walk.first: C}, nothing, nothing))

    def over_input(self, claim: Claim) -> Tensor | float:
        """The largest value of what is pending at the input."""
        at_input = claim.pending.get(0)
        if at_input is None:
            return 0.0
        if self.box:
            return (1 + self.cost) * torch.linalg.vector_norm(at_input, ord=1, dim=-1)
        B, M, S = self.region.size, *self.stack.layers[0].bias.shape[:1], at_input.shape[-2]
        flat = at_input.expand(B, M, S, -1).permute(1, 2, 0, 3).reshape(M * S, B, *self.region.lower.shape[1:])
        return -self.region.minimum(-flat, self.outward).reshape(M, S, B).permute(2, 0, 1)


class _ThroughLayers(Walk):
    """One walk over upper bounds: layer i is node ``2 i + 1``, the source behind its activation node ``2 i + 2``.

    What stands at a node is bounded there with what is known of it; the best of all is kept.
    """

    sources = (0,)

    def __init__(self, walks: Walks, first: int) -> None:
        self.walks, self.first = walks, first
        self.best: Tensor | None = None
        self.charged: dict[int, Tensor] = {}

    def arrive(self, index: int, claim: Claim) -> Claim:
        walks = self.walks
        if index == self.first:
            self.charged = {index: _inner(claim.pending[index].abs(), walks.charges[index // 2])}
            return claim
        # One product gives both what stands here at most and what the next step costs it.
        inner = {i: _reach(A, walks.around[i]) for i, A in claim.pending.items() if i}
        self.charged = {i: cost for i, (_, cost) in inner.items()}
        value = claim.constant + sum(most for most, _ in inner.values()) + walks.over_input(claim)
        self.best = value if self.best is None else torch.minimum(self.best, value)
        return claim

    def step(self, index: int, A: Tensor) -> Step:
        walks, cost = self.walks, self.charged[index]
        if index % 2:
            layer = walks.stack.layers[index // 2]
            weights = layer.weights | ({0: walks.input_weights[index // 2]} if 0 in layer.weights else {})
            return ((2 * s, A @ W) for s, W in weights.items()), _inner(A, walks.bias[index // 2]) + cost
        lines = walks.lines[index // 2 - 1]
        positive, negative = A.clamp(min=0), A.clamp(max=0)
        offset = _inner(positive, lines.upper_offset) + _inner(negative, lines.lower_offset)
        A = positive * lines.upper_slope[:, :, None] + negative * lines.lower_slope[:, :, None]
        return ((index - 1, A),), offset + cost


def _inner(A: Tensor, values: Tensor) -> Tensor:
    return (A @ values[..., None])[..., 0]


def _reach(A: Tensor, known: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The largest value of ``A`` over balls, and what the next step back costs it."""
    middle, radius_and_charge = known
    both = A.abs() @ radius_and_charge
    return _inner(A, middle) + both[..., 0], both[..., 1]
