"""The Lagrangian of the relaxation: for any multipliers a bound, by weak duality.

Going backward from the objective, every ``p^m_k`` is replaced by a mixture of its planes and constant bounds (after
the simplex multiplier has been taken off its coefficient), every activation by a mixture of its lines, until only a
linear function of the one shared input is left, whose maximum over the region is known. The mixtures are the
multipliers, up to scale. The gradient is the maximiser: walking forward from the input that attains the maximum,
through the lines and planes that were used, gives the values that the multipliers multiply.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.rounding import largest as largest_size
from ..graph.rounding import underflow
from ..propagate.walk import Claim, Step, Walk
from ..regions import Region
from .cuts import Cuts
from .neurons import successive
from .relaxation import ActivationLines, Relaxation
from .softmax_boxes import PlaneStack


@dataclass
class Multipliers:
    """One stack's share of the parameters; all of them are views into one flat tensor ``[B, D]``.

    ``simplex [B, M]``; ``below``, ``above [B, M, P, K]`` weights of the planes, at least 0, with sums of at most 1
    over P (the rest is on the constant bound); ``lines[i] [2, B, M, n]`` in [0, 1]: position among the lower and upper
    lines of activation i.
    """

    simplex: Tensor
    below: Tensor
    above: Tensor
    lines: list[Tensor]


class Lagrangian:
    """The bound ``max coefficients . p + constant <= value(parameters)`` for a batch of objectives ``[B, K]``.

    With ``cuts`` the maximum is over the inputs that keep them; their multipliers are the last parameters.
    """

    def __init__(self, relaxation: Relaxation, coefficients: Tensor, cuts: Cuts | None = None) -> None:
        self.relaxation = relaxation
        self.coefficients = coefficients
        self.cuts = cuts or Cuts.none(coefficients)
        below, above = relaxation.softmax.sides(coefficients)
        self.below, self.above = below[:, None], above[:, None]
        P_below, P_above = len(relaxation.softmax.lower), len(relaxation.softmax.upper)
        K = coefficients.shape[1]
        self.shapes: list[list[tuple[int, ...]]] = []
        for part in relaxation.stacks:
            M = len(part.stack.members)
            lines = [(2, M, lines.lower_slope.shape[-1]) for lines in part.lines]
            self.shapes.append([(M,), (M, P_below, K), (M, P_above, K), *lines])
        # Where a side is not imposed, nothing but the simplex bounds the output there.
        low, high = (mask[:, None] for mask in relaxation.softmax.constant_sides(coefficients))
        self.least = [torch.where(low, part.softmax.least, 0.0) for part in relaxation.stacks]
        self.most = [torch.where(high, part.softmax.most, 1.0) for part in relaxation.stacks]
        self.planes: list[tuple[PlaneStack, PlaneStack]] = []

    def touch(self, at: list[Tensor]) -> None:
        """Move the softmax planes to the tangent points ``[B, M, K]`` of every stack."""
        self.planes = [part.softmax.planes(point) for part, point in zip(self.relaxation.stacks, at)]

    def midpoints(self) -> list[Tensor]:
        """The midpoints of the boxes of logits, one tensor per stack."""
        return [part.softmax.midpoint for part in self.relaxation.stacks]

    def views(self, flat: Tensor) -> list[Multipliers]:
        """The parameters ``[B, D]`` by name."""
        found, position, B = [], 0, flat.shape[0]
        for shapes in self.shapes:
            pieces = []
            for shape in shapes:
                size = math.prod(shape)
                pieces.append(flat[:, position : position + size].reshape(B, *shape))
                position += size
            found.append(Multipliers(pieces[0], pieces[1], pieces[2], [p.transpose(0, 1) for p in pieces[3:]]))
        return found

    def of_cuts(self, flat: Tensor) -> Tensor:
        """The multipliers ``[B, C]`` of the cuts."""
        return flat[:, flat.shape[1] - self.cuts.count :]

    def flat(self, parts: list[Multipliers], cuts: Tensor) -> Tensor:
        """The inverse of ``views`` and ``of_cuts``."""
        pieces = [
            piece
            for part in parts
            for piece in (part.simplex, part.below, part.above, *(lines.transpose(0, 1) for lines in part.lines))
        ]
        return torch.cat([*(piece.flatten(1) for piece in pieces), cuts], 1)

    def start(self) -> Tensor:
        """Default lines, nearly all weight on the first bound, the simplex multiplier amid the coefficients."""
        parts = []
        centre = (self.coefficients.amin(1) + self.coefficients.amax(1))[:, None] / 2
        for part, shapes in zip(self.relaxation.stacks, self.shapes):
            simplex, below, above = shapes[:3]
            B = self.coefficients.shape[0]
            parts.append(
                Multipliers(
                    centre.expand(B, *simplex),
                    _on_first(centre.new_zeros((B, *below))),
                    _on_first(centre.new_zeros((B, *above))),
                    [torch.stack(lines.start) for lines in part.lines],
                )
            )
        return self.flat(parts, torch.zeros_like(self.cuts.threshold))

    def ulps(self) -> Tensor:
        """Step sizes ``[B, D]`` of the parameters: the simplex multiplier moves all outputs of a network at once."""
        parts = self.views(torch.ones_like(self.start()))
        reach = (self.coefficients.amax(1) - self.coefficients.amin(1))[:, None]
        for part in parts:
            part.simplex = 0.3 * reach * part.simplex
        # A probability grows by a quarter of a logit at most.
        return self.flat(parts, (0.25 * reach).expand_as(self.cuts.threshold))

    def project(self, flat: Tensor) -> Tensor:
        """The nearest parameters that are allowed, or close to them."""
        parts = self.views(flat)
        for part in parts:
            part.below, part.above = _shares(part.below), _shares(part.above)
            part.lines = [lines.clamp(0, 1) for lines in part.lines]
        return self.flat(parts, self.of_cuts(flat).clamp(min=0))

    def tangential(self, flat: Tensor, gradient: Tensor) -> Tensor:
        """The gradient as felt along the constraint: where weights already sum to 1, only their exchange counts."""
        parts, slopes = self.views(flat), self.views(gradient)
        for part, slope in zip(parts, slopes):
            slope.below = _exchange(part.below, slope.below)
            slope.above = _exchange(part.above, slope.above)
        return self.flat(slopes, self.of_cuts(gradient))

    def value(self, flat: Tensor) -> Tensor:
        """A sound bound ``[B]`` for parameters as ``project`` returns them."""
        return self._walk(flat, gradient=False)[0]

    def value_and_gradient(self, flat: Tensor) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
        """Bound ``[B]``, its gradient, and the maximiser: logits ``[B, M, K]`` per stack and the input ``[B, n]``."""
        value, gradient, logits, x = self._walk(flat, gradient=True)
        assert gradient is not None
        assert logits is not None
        assert x is not None
        return value, gradient, logits, x

    def safe_value(self, flat: Tensor) -> Tensor:
        """``value`` plus what rounding may have cost it: true for the real-valued networks, for any parameters.

        Every number found on the way back is taken as exact. What exact arithmetic would have made of the numbers
        before it differs by a share of the absolute values of its terms; times the values that the coefficients stand
        for, whose bounds are known, these shares are added up.
        """
        value = self.value(flat)
        if not self.relaxation.outward:
            return value
        lost = torch.zeros_like(value)
        for position, part in enumerate(self.views(flat)):
            lost = lost + _Trail(self, position, part, self.of_cuts(flat)).lost(self.relaxation)
        return value + 2 * (lost / self.relaxation.networks + self.relaxation.share(4) * value.abs())

    def at_input(self, flat: Tensor) -> Tensor:
        """The last linear function: its coefficients ``[B, n]`` on the input."""
        parts, on_cuts = self.views(flat), self.of_cuts(flat)
        return torch.stack([_Trail(self, i, part, on_cuts).at_input for i, part in enumerate(parts)]).sum(0)

    def losses(self, flat: Tensor, x: Tensor) -> list[tuple[list[Tensor], Tensor]]:
        """Where the bound is lost at inputs ``[B, n]``: per stack, activations ``[B, M, n]`` and outputs ``[B, M, K]``.

        Every affine step cancels, so that at the maximiser ``x`` of the last linear function all of it adds up to the
        distance between the bound and the objective there (but for the room that cuts leave), times the networks.
        """
        parts, on_cuts = self.views(flat), self.of_cuts(flat)
        return [_Trail(self, position, part, on_cuts).losses(x) for position, part in enumerate(parts)]

    def _walk(self, flat: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None, list[Tensor] | None, Tensor | None]:
        """The dual value of multipliers and, where asked, its gradient, the logits and the maximising input."""
        parts, on_cuts = self.views(flat), self.of_cuts(flat)
        total = (on_cuts * self.cuts.threshold).sum(1)
        at_input: Tensor | None = None
        trails = []
        for position, part in enumerate(parts):
            trail = _Trail(self, position, part, on_cuts)
            total = total + trail.constant
            at_input = trail.at_input if at_input is None else at_input + trail.at_input
            trails.append(trail)
        assert at_input is not None
        peak, x = largest(self.relaxation.region, at_input)
        value = (total + peak) / self.relaxation.networks
        if not gradient:
            return value, None, None, x
        ahead = [trail.forward(x) for trail in trails]
        room = self.cuts.threshold.clone()
        for position, trail in enumerate(trails):
            for layer, z in trail.ahead.items():
                room = room - self.cuts.value(position, layer, z)
        return value, self.flat([step for step, _ in ahead], room), [logits for _, logits in ahead], x


class _Trail(Walk):
    """One stack met backward, source by source; what is kept serves the way forward."""

    sources = (0,)

    def __init__(self, whole: Lagrangian, position: int, part: Multipliers, on_cuts: Tensor) -> None:
        relaxed = whole.relaxation.stacks[position]
        self.position, self.cuts, self.on_cuts = position, whole.cuts, on_cuts
        self.ahead: dict[int, Tensor] = {}  # what the layers compute on the way forward
        self.stack, self.bounds = relaxed.stack, relaxed.bounds
        self.layers, self.lines, self.part = relaxed.stack.layers, relaxed.lines, part
        self.lower, self.upper = whole.planes[position]
        self.least, self.most = whole.least[position], whole.most[position]
        self.can_below, self.can_above = whole.below[:, :, None], whole.above[:, :, None]
        self.coefficient = whole.coefficients[:, None] - part.simplex[..., None]
        self.up, self.down = self.coefficient.clamp(min=0), self.coefficient.clamp(max=0)
        self.above = torch.where(self.can_above, part.above, 0.0)
        self.below = torch.where(self.can_below, part.below, 0.0)
        on_above, on_below = self.up[:, :, None] * self.above, self.down[:, :, None] * self.below
        A = _combine(on_above, self.upper.slopes) + _combine(on_below, self.lower.slopes)
        constant = (on_above * self.upper.offsets).sum((2, 3)) + (on_below * self.lower.offsets).sum((2, 3))
        constant = constant + (self.up * (1 - self.above.sum(2)) * self.most).sum(2)
        constant = constant + (self.down * (1 - self.below.sum(2)) * self.least).sum(2)
        self.signs: dict[int, tuple[Tensor, Tensor]] = {}
        self.mixed: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self.into: dict[int, Tensor] = {}  # the coefficients with which every layer was met
        start = (constant + part.simplex).sum(1)
        claim = self.back(Claim({len(self.layers): A}, start, torch.zeros_like(start)))
        self.constant, self.at_input = claim.constant, claim.pending[0]

    def step(self, index: int, A: Tensor) -> Step:
        """Through the lines of an activation, but for the logits, and through the layer before it."""
        layer, constant = index - 1, A.new_zeros(())
        if index < len(self.layers):
            up, down = A.clamp(min=0), A.clamp(max=0)
            mixed = _mix(self.lines[layer], self.part.lines[layer])
            self.signs[layer], self.mixed[layer] = (up, down), mixed
            constant = (up * mixed[3] + down * mixed[1]).sum((1, 2))
            A = up * mixed[2] + down * mixed[0]
        A = self.cuts.subtract(A, self.position, layer, self.on_cuts)
        self.into[layer] = A
        backs = []
        for s, W in self.layers[layer].weights.items():
            if s == 0:
                M, out, n = W.shape
                backs.append((s, A.reshape(-1, M * out) @ W.reshape(M * out, n)))
            else:
                backs.append((s, (A.transpose(0, 1) @ W).transpose(0, 1)))
        return backs, constant + (A * self.layers[layer].bias).sum((1, 2))

    def lost(self, relaxation: Relaxation) -> Tensor:
        """A bound ``[B]`` on how far rounding moved what was found on the way back, input included."""
        n = relaxation.region.lower[0].numel()
        cost = relaxation.share(successive(self.stack, n) + 4 * self.upper.offsets[0].numel() + self.cuts.count)
        sizes = [largest_size(*interval) for interval in self.bounds.intervals]
        weighted = [
            (self.up[:, :, None] * self.above, self.upper),
            (-self.down[:, :, None] * self.below, self.lower),
        ]
        total = self.part.simplex.abs().sum(1) + (self.up + self.coefficient.abs()).sum((1, 2))
        for weights, planes in weighted:
            reach = (planes.slopes.abs() @ sizes[-1][:, :, None, :, None])[..., 0] + planes.offsets.abs()
            total = total + (weights * reach).sum((1, 2, 3))
        steps = (self.bounds.charges[-1] * self.into[len(self.layers) - 1].abs()).sum((1, 2))
        for i, (up, down) in self.signs.items():
            lines = self.lines[i]
            slopes = (lines.lower_slope.abs() + lines.upper_slope.abs()).sum(0)
            offsets = (lines.lower_offset.abs() + lines.upper_offset.abs()).sum(0)
            reach = slopes * sizes[i] + offsets
            total = total + ((up - down) * reach).sum((1, 2))
            steps = steps + (self.bounds.charges[i] * self.into[i].abs()).sum((1, 2))
        # A cut adds its multipliers to coefficients and its threshold to the constant.
        total = total + (self.on_cuts * self.cuts.threshold.abs()).sum(1)
        for i, met in self.into.items():
            total = total + ((met.abs() + self.cuts.weight(met, self.position, i, self.on_cuts)) * sizes[i]).sum((1, 2))
        ends = largest_size(relaxation.region.lower, relaxation.region.upper).flatten(1)
        total = total + (self.at_input.abs() * ends).sum(1)
        lost = underflow(total.dtype) * (n + sum(layer.size for layer in self.layers)) ** 2
        return cost * total + steps + lost

    def losses(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Coefficients times the distance between what was used for an entry and its value at ``x``."""
        values = self.stack.values(x)
        found = []
        for i, (layer, z) in enumerate(zip(self.layers[:-1], values)):
            if i not in self.signs:
                found.append(torch.zeros_like(z))
                continue
            (up, down), (lower_slope, lower_offset, upper_slope, upper_offset) = self.signs[i], self.mixed[i]
            true = layer.activate(z)
            over, under = upper_slope * z + upper_offset - true, lower_slope * z + lower_offset - true
            found.append(up * over + down * under)
        p = values[-1].softmax(-1)
        top, bottom = self._outputs(values[-1])
        return found, self.up * (top - p) + self.down * (bottom - p)

    def _outputs(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The mixtures above and below every output at logits ``[B, M, K]``."""
        above = (self.above * (_at(self.upper, z) - self.most[:, :, None])).sum(2)
        below = (self.below * (_at(self.lower, z) - self.least[:, :, None])).sum(2)
        return self.most + above, self.least + below

    def forward(self, x: Tensor) -> tuple[Multipliers, Tensor]:
        """The gradient in this stack's parameters and the logits of the maximiser."""
        sources: list[Tensor] = [x]
        steps: list[Tensor] = []
        for i, layer in enumerate(self.layers[:-1]):
            z = self.ahead[i] = layer.value(sources)
            if i not in self.signs:  # nothing depends on this activation
                sources.append(torch.zeros_like(z))
                steps.append(torch.zeros_like(self.part.lines[i]))
                continue
            up, down = self.signs[i]
            lower_slope, lower_offset, upper_slope, upper_offset = self.mixed[i]
            sources.append(torch.where(up > 0, upper_slope * z + upper_offset, lower_slope * z + lower_offset))
            steps.append(_mix_gradient(self.lines[i], self.part.lines[i], z, up, down))
        z = self.ahead[len(self.layers) - 1] = self.layers[-1].value(sources)
        over = _at(self.upper, z)
        under = _at(self.lower, z)
        gain_above = over - self.most[:, :, None]
        gain_below = under - self.least[:, :, None]
        top = self.most + (self.above * gain_above).sum(2)
        bottom = self.least + (self.below * gain_below).sum(2)
        p = torch.where(self.coefficient >= 0, top, bottom)
        return (
            Multipliers(
                1 - p.sum(2),
                self.down[:, :, None] * gain_below * self.can_below,
                self.up[:, :, None] * gain_above * self.can_above,
                steps,
            ),
            z,
        )


def largest(region: Region, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value (or a bound on it) ``[B]`` of linear functions ``[B, n]`` over the region, and where it is."""
    lower, upper = region.lower.flatten(1), region.upper.flatten(1)
    x = torch.where(coefficients > 0, upper, lower)
    if region.centre is None:
        return torch.linalg.vecdot(coefficients, x), x
    shaped = coefficients.reshape(1, *region.lower.shape)
    peak = -region.minimum(-shaped)[0]
    centre, unit = region.centre.flatten(1), region.unit.flatten(1)
    slope = coefficients * unit
    if region.norm == 2:
        length = slope.norm(dim=1, keepdim=True)
        step = torch.where(length > 0, slope / torch.where(length > 0, length, 1.0), 0.0)
    else:
        size = slope.abs()
        step = slope.sign() * (size == size.amax(1, keepdim=True))
        step = step / step.abs().sum(1, keepdim=True).clamp(min=1)
    ball = centre + region.eps * unit * step
    inside_box = (coefficients * x).sum(1) <= (coefficients * ball).sum(1)
    return peak, torch.where(inside_box[:, None], x, ball)


def _combine(weights: Tensor, slopes: Tensor) -> Tensor:
    """``sum_{p,k} weights[b,m,p,k] slopes[b,m,p,k,:]``"""
    B, M, P, K = weights.shape
    return (weights.reshape(B, M, 1, P * K) @ slopes.reshape(B, M, P * K, -1))[:, :, 0]


def _at(planes: PlaneStack, z: Tensor) -> Tensor:
    B, M, P, K = planes.offsets.shape
    return (planes.slopes.reshape(B, M, P * K, -1) @ z[..., None]).reshape(B, M, P, K) + planes.offsets


def _on_first(weights: Tensor) -> Tensor:
    weights[:, :, 0] = 0.95
    return weights


def _shares(weights: Tensor) -> Tensor:
    weights = weights.clamp(min=0)
    total = weights.sum(2, keepdim=True)
    shares = weights / total.clamp(min=1)
    # Rounding must not leave a negative weight for the constant bound.
    return torch.where(shares.sum(2, keepdim=True) > 1, shares * (1 - 1e-15), shares)


def _exchange(weights: Tensor, slopes: Tensor) -> Tensor:
    pull = (weights * slopes).sum(2, keepdim=True)
    full = (weights.sum(2, keepdim=True) > 1 - 1e-9) & (pull < 0)
    return torch.where(full, slopes - pull, slopes)


def _mix(lines: ActivationLines, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lower slope and offset, upper slope and offset ``[B, M, n]`` at a position among the lines."""
    if lines.lower_slope.shape[0] == 2:
        below, above = position[0], position[1]
        return (
            lines.lower_slope[0] + below * (lines.lower_slope[1] - lines.lower_slope[0]),
            lines.lower_offset[0] + below * (lines.lower_offset[1] - lines.lower_offset[0]),
            lines.upper_slope[0] + above * (lines.upper_slope[1] - lines.upper_slope[0]),
            lines.upper_offset[0] + above * (lines.upper_offset[1] - lines.upper_offset[0]),
        )
    below, above = _hats(position[0], lines.lower_slope.shape[0]), _hats(position[1], lines.lower_slope.shape[0])
    return (
        (below * lines.lower_slope).sum(0),
        (below * lines.lower_offset).sum(0),
        (above * lines.upper_slope).sum(0),
        (above * lines.upper_offset).sum(0),
    )


def _hats(position: Tensor, count: int) -> Tensor:
    """Weights ``[Q, ...]`` of the two lines beside a position in [0, 1]."""
    knots = torch.arange(count, dtype=position.dtype, device=position.device)
    knots = knots.reshape(count, *([1] * position.ndim))
    return (1 - (position * (count - 1) - knots).abs()).clamp(min=0)


def _mix_gradient(lines: ActivationLines, position: Tensor, z: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """How the bound changes with the position among the lines, ``[2, B, M, n]``."""
    count = lines.lower_slope.shape[0]
    left = (position * (count - 1)).floor().clamp(max=count - 2).long()

    def rise(slopes: Tensor, offsets: Tensor, first: Tensor) -> Tensor:
        if count == 2:
            return (slopes[1] - slopes[0]) * z + offsets[1] - offsets[0]
        here, there = first[None], first[None] + 1
        slope = slopes.gather(0, there)[0] - slopes.gather(0, here)[0]
        offset = offsets.gather(0, there)[0] - offsets.gather(0, here)[0]
        return (slope * z + offset) * (count - 1)

    return torch.stack(
        (
            down * rise(lines.lower_slope, lines.lower_offset, left[0]),
            up * rise(lines.upper_slope, lines.upper_offset, left[1]),
        )
    )
