"""The one relaxation that all methods solve: lines around every activation, planes around every softmax.

    maximise  coefficients . p,   p = (1/M) sum_m p^m,   over all inputs of the region,

where ``p^m`` is the softmax of the logits of network m, every activation lies between finitely many lines, every
``p^m`` lies in the simplex, within its constant bounds and between the chosen convex and concave bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..graph.operator import Elementwise, Interval
from ..graph.ops.relu import LeakyRelu, Relu
from ..graph.rounding import share, underflow
from ..regions import Region
from .layers import Stack
from .neurons import NeuronBounds, neuron_bounds
from .softmax_boxes import SoftmaxBounds, SoftmaxBoxes

# Lines per side of an activation that is curved; a kinked one needs exactly two.
CURVED_LINES = 4


@dataclass(frozen=True)
class ActivationLines:
    """``Q`` lines below and above one activation: slopes and offsets ``[Q, B, M, n]``."""

    lower_slope: Tensor
    lower_offset: Tensor
    upper_slope: Tensor
    upper_offset: Tensor
    start: tuple[Tensor, Tensor]  # the default line as a position in [0, 1] among the lines, per side

    def take(self, instances: Tensor) -> ActivationLines:
        """The lines of some instances, in the order given."""
        return ActivationLines(
            self.lower_slope[:, instances],
            self.lower_offset[:, instances],
            self.upper_slope[:, instances],
            self.upper_offset[:, instances],
            (self.start[0][instances], self.start[1][instances]),
        )

    def member(self, m: int) -> ActivationLines:
        """The lines of one network of the stack."""
        return ActivationLines(
            self.lower_slope[:, :, m : m + 1],
            self.lower_offset[:, :, m : m + 1],
            self.upper_slope[:, :, m : m + 1],
            self.upper_offset[:, :, m : m + 1],
            (self.start[0][:, m : m + 1], self.start[1][:, m : m + 1]),
        )


def activation_lines(activation: Elementwise, interval: Interval) -> ActivationLines:
    """The lines that the free parameter of the activation gives at evenly spaced values."""
    lower, upper = interval
    count = 2 if isinstance(activation, Relu | LeakyRelu) else CURVED_LINES
    found = [activation.lines(lower, upper, lower.new_full((2, *lower.shape), q / (count - 1))) for q in range(count)]
    start = activation.start(lower, upper)
    return ActivationLines(
        torch.stack([lines.lower_slope for lines in found]),
        torch.stack([lines.lower_offset for lines in found]),
        torch.stack([lines.upper_slope for lines in found]),
        torch.stack([lines.upper_offset for lines in found]),
        (start[0], start[1]),
    )


@dataclass(frozen=True)
class StackRelaxation:
    """One stack over a batch of regions."""

    stack: Stack
    bounds: NeuronBounds
    lines: tuple[ActivationLines, ...]
    softmax: SoftmaxBoxes

    def take(self, instances: Tensor) -> StackRelaxation:
        """The relaxation of some of the instances."""
        return StackRelaxation(
            self.stack,
            self.bounds.take(instances),
            tuple(lines.take(instances) for lines in self.lines),
            self.softmax.take(instances),
        )

    def member(self, m: int) -> StackRelaxation:
        """One network of the stack alone."""
        bounds = self.bounds.member(m)
        lines = tuple(lines.member(m) for lines in self.lines)
        boxes = SoftmaxBoxes.of(bounds, self.softmax.chosen, self.softmax.outward)
        return StackRelaxation(self.stack.member(m), bounds, lines, boxes)


@dataclass(frozen=True)
class Relaxation:
    """An ensemble over a batch of regions: everything but the objective."""

    region: Region
    stacks: tuple[StackRelaxation, ...]
    softmax: SoftmaxBounds
    outward: bool = True  # what is certified holds for the real-valued networks, not just up to rounding

    @property
    def networks(self) -> int:
        """How many networks the ensemble has."""
        return sum(len(part.stack.members) for part in self.stacks)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.stacks[0].stack.classes

    @property
    def size(self) -> int:
        """The number of input entries."""
        return self.region.size

    def take(self, instances: Tensor) -> Relaxation:
        """The relaxation of some instances, in the order given (repetitions allowed)."""
        stacks = tuple(part.take(instances) for part in self.stacks)
        return replace(self, region=self.region.take(instances), stacks=stacks)

    def networks_alone(self) -> list[Relaxation]:
        """One relaxation per network, in which it has the input to itself."""
        alone = []
        for part in self.stacks:
            for m in range(len(part.stack.members)):
                alone.append(replace(self, stacks=(part.member(m),)))
        return alone

    def probabilities(self) -> Interval:
        """Constant bounds ``[B, K]`` on the mean probabilities of the ensemble."""
        least = torch.cat([part.softmax.least for part in self.stacks], 1).mean(1)
        most = torch.cat([part.softmax.most for part in self.stacks], 1).mean(1)
        if not self.outward:
            return least, most
        cost, lost = self.share(self.networks), underflow(least.dtype)
        return (least * (1 - cost) - lost).clamp(min=0), (most * (1 + cost) + lost).clamp(max=1)

    def share(self, operations: int) -> float:
        """What so many operations may cost relative to the sum of the absolute values of their terms."""
        return share(operations, torch.float64) if self.outward else 0.0


def relax(stacks: list[Stack], region: Region, softmax: SoftmaxBounds, outward: bool = True) -> Relaxation:
    """Bounds of all neurons, then lines and softmax boxes from them."""
    parts = []
    for stack in stacks:
        bounds = neuron_bounds(stack, region, outward)
        lines = tuple(
            activation_lines(layer.activation, interval)
            for layer, interval in zip(stack.layers, bounds.intervals)
            if layer.activation is not None
        )
        parts.append(StackRelaxation(stack, bounds, lines, SoftmaxBoxes.of(bounds, softmax, outward)))
    return Relaxation(region, tuple(parts), softmax, outward)
