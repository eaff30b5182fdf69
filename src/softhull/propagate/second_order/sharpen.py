"""Better intervals where they cost the margin: what activations take in, by second order.

Planes of an activation are as good as the interval of its input. Walks relax every product on the way to it on its
own; second order does not. It is too dear for every entry, and most cost nothing: a linear walk of the open rows says
what every activation loses at most, the size of its coefficient times the gap between its planes, and those that lose
most are bounded again, first layer to last.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import SofthullError
from ...graph.operator import Bilinear, Elementwise, Lines
from ..crown import LinearBounds, LinearWalk
from ..walk import Claim, Step
from .specification import SecondOrderBounds

# Entries of one instance that are bounded again, at most, in all layers together: no more than these, and than so many
# operations allow, where one end of an interval takes about the cube of what its quadratic is worked out over.
ENTRIES = 256
_OPERATIONS = 1 << 35
# Factorisations spent on one end of an interval, and where they are larger than this.
_STEPS, _FEW, _LARGE = 4, 2, 512
# What loses less than this share of all is left as it is.
_NEGLIGIBLE = 1e-3


def sharpened(
    second: SecondOrderBounds,
    rows: Tensor,
    instances: Tensor,
    patient: bool = False,
    again: dict[int, Tensor] | None = None,
) -> SecondOrderBounds | None:
    """The same with better intervals where those cost ``rows [P, *shape]`` of some instances most; None: nowhere.

    ``patient``: as many as the work on each allows for; else fewer where there is much noise.
    ``again`` is told which entries ``[B, entries]`` were bounded again, by node.
    """
    second.bounds.prepare(len(second.bounds.graph.nodes) - 1)  # known once for all that follows, and only met from here
    wanted = _losses(second.bounds, rows, instances)
    first = min(i for i, node in enumerate(second.bounds.graph.nodes) if isinstance(node.operator, Bilinear))
    wanted = {i: loss for i, loss in wanted.items() if i > first}
    allowed = entries_allowed(second, patient)
    if not wanted or not allowed:
        return None
    last = max(i for i, node in enumerate(second.bounds.graph.nodes) if isinstance(node.operator, Bilinear))
    dearest = _dearest(wanted, allowed)
    for index, chosen in dearest.items():
        second = _bounded_again(second, index, chosen)
        if index < last:  # the forms of later products gain by it
            second = _formed_again(second)
    if again is not None:
        again |= dearest
    return second


def entries_allowed(second: SecondOrderBounds, patient: bool) -> int:
    """How many entries of an instance are worth the work of bounding them by second order."""
    size = max(1, second.dimension)
    return min(ENTRIES, _OPERATIONS // (2 * size**2 * (size if patient else second.forms.noise_count)))


def _formed_again(second: SecondOrderBounds) -> SecondOrderBounds:
    """Forms by what is known now; those at hand where there are none."""
    try:
        return SecondOrderBounds.of(second.bounds)
    except (SofthullError, torch.linalg.LinAlgError):
        return second


def _losses(bounds: LinearBounds, rows: Tensor, instances: Tensor) -> dict[int, Tensor]:
    """By the node an activation is applied to: what every entry may lose ``[B, entries]``, in the worst of the rows."""
    walk = _Account(bounds.take(instances))
    walk.back(Claim.on(len(bounds.graph.nodes) - 1, rows[None]))
    found: dict[int, Tensor] = {}
    for index, loss in walk.losses.items():
        before = bounds.graph.nodes[index].inputs[0]
        source, order = bounds.structure.source(before), bounds.structure.order(before).to(loss.device)
        placed = torch.zeros_like(loss)
        placed[:, order] = loss
        worst = loss.new_zeros(bounds.size, loss.shape[1])
        worst = worst.scatter_reduce(0, instances[:, None].expand(placed.shape), placed, "amax")
        found[source] = found[source] + worst if source in found else worst
    return found


class _Account(LinearWalk):
    """A linear walk that writes down what its activations may lose, ``[P, entries]``."""

    def __init__(self, bounds: LinearBounds) -> None:
        super().__init__(bounds)
        self.losses: dict[int, Tensor] = {}

    def step(self, index: int, A: Tensor) -> Step:
        found = super().step(index, A)
        node, known = self.bounds.graph.nodes[index], self.bounds.knowledge
        if isinstance(node.operator, Elementwise) and index in known.known("lines"):
            lines: Lines = known.find("lines", index, lambda: None)  # type: ignore[assignment, return-value]
            self.losses[index] = (A[0].abs() * _gap(lines, *self.bounds.interval(node.inputs[0]))).flatten(1)
        return found


def _gap(lines: Lines, lower: Tensor, upper: Tensor) -> Tensor:
    """How far two lines are apart at most between two ends."""
    slope, offset = lines.upper_slope - lines.lower_slope, lines.upper_offset - lines.lower_offset
    gap = torch.maximum(slope * lower, slope * upper) + offset
    return torch.where(gap.isfinite() & (upper > lower), gap, 0.0).clamp(min=0)


def _dearest(wanted: dict[int, Tensor], allowed: int) -> dict[int, Tensor]:
    """By node, first to last, the mask ``[B, entries]`` of those that lose most."""
    together = torch.cat([wanted[i] for i in sorted(wanted)], 1)
    least = together.topk(min(allowed, together.shape[1]), 1).values[:, -1:]
    least = torch.maximum(least, _NEGLIGIBLE * together.sum(1, keepdim=True))
    chosen = (together >= least) & (together > 0)
    parts = chosen.split([wanted[i].shape[1] for i in sorted(wanted)], 1)
    return {i: part for i, part in zip(sorted(wanted), parts) if bool(part.any())}


def _bounded_again(second: SecondOrderBounds, index: int, chosen: Tensor) -> SecondOrderBounds:
    """Better bounds on some entries ``[B, entries]`` of one node."""
    bounds = second.bounds
    lower, upper = (end.flatten(1).clone() for end in bounds.interval(index))
    shape = bounds.graph.shape_of(index)
    instance, entry = chosen.nonzero(as_tuple=True)
    for sign, end in ((1.0, lower), (-1.0, upper)):
        units = lower.new_zeros(len(entry), lower.shape[1])
        units.scatter_(1, entry[:, None], sign)
        never = lower.new_full((len(entry),), math.inf)
        steps = _STEPS if second.dimension <= _LARGE else _FEW
        low = second.lower(units.reshape(-1, *shape), instance, steps, never, index=index)
        low = torch.where(low.isnan(), -math.inf, low)
        old = end[instance, entry]
        end[instance, entry] = torch.maximum(old, low) if sign > 0 else torch.minimum(old, -low)
    lower, upper = torch.minimum(lower, upper), torch.maximum(lower, upper)
    found = lower.reshape(-1, *shape), upper.reshape(-1, *shape)
    return second.knowing(bounds.knowledge.with_interval(index, found))
