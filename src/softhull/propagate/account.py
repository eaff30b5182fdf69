"""Where a linear bound loses: an exact account, node by node.

A walk ends with a linear function of the input, which is least at some x. Affine steps lose nothing, so that the value
of the network at x exceeds the bound by the sum, over all relaxed nodes, of ``<A, node> - <what replaced it>`` at x,
and what rounding was charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.operator import Affine
from .crown import LinearBounds, LinearWalk
from .structure import pieces, positions
from .walk import Claim, Step

# Walks are kept in at most this many times the memory of one coefficient tensor.
_TENSORS = 8


@dataclass(frozen=True)
class Account:
    """``value = bound + sum of losses`` up to rounding: the bounds ``[P]`` of some rows, and what each node lost."""

    bounds: LinearBounds
    bound: Tensor
    value: Tensor  # of the network at the input where the bound is attained
    losses: dict[int, Tensor]  # [P], by relaxed node

    def lost(self, kinds: tuple[Any, ...], besides: tuple[Any, ...] = (), after: int = -1) -> Tensor:
        """What nodes with operators of some classes lost together, those of others left out, after a node."""
        total = torch.zeros_like(self.bound)
        for index, loss in self.losses.items():
            operator = self.bounds.graph.nodes[index].operator
            if index > after and isinstance(operator, kinds) and not isinstance(operator, besides):
                total = total + loss
        return total

    def dearest(self, row: int) -> tuple[str, float]:
        """The name of the kind of operator that lost most in one row, and how much."""
        found: dict[str, float] = {}
        for index, loss in self.losses.items():
            name = self.bounds.graph.nodes[index].operator.name
            found[name] = found.get(name, 0.0) + float(loss[row])
        return max(found.items(), key=lambda item: item[1], default=("nothing", 0.0))


def account(bounds: LinearBounds, rows: Tensor, instances: Tensor) -> Account:
    """What bounds lose on ``<rows [P, *shape], output>`` of instances ``[P]``, repetitions allowed."""
    last = len(bounds.graph.nodes) - 1
    together = max(1, _TENSORS * bounds.memory // (8 * bounds.structure.volume(last)))
    parts = [_part(bounds.take(instances[part]), rows[part], last) for part in pieces(positions(rows), together)]
    if not parts:
        return Account(bounds, rows.new_zeros(0), rows.new_zeros(0), {})
    bound, value = (torch.cat([getattr(part, name) for part in parts]) for name in ("bound", "value"))
    losses = {index: torch.cat([part.losses[index] for part in parts]) for index in parts[0].losses}
    return Account(bounds, bound, value, losses)


def _part(bounds: LinearBounds, rows: Tensor, last: int) -> Account:
    """The account of one row for every instance."""
    walk = _Remembering(bounds)
    claim = walk.back(Claim.on(last, rows[None]))
    c = claim.pending.get(-1, rows.new_zeros(()))
    x = bounds.region.attained(c.expand(1, bounds.size, *bounds.graph.input_shape))
    values = bounds.graph.values(x)

    def met(A: Tensor, index: int) -> Tensor:
        return (A[0] * (x if index < 0 else values[index])).flatten(1).sum(1)

    losses = {
        index: met(A, index) - sum((met(back, i) for i, back in backs), torch.zeros_like(rows.flatten(1)[:, 0])) - shift
        for index, (A, backs, shift) in walk.steps.items()
    }
    return Account(bounds, bounds.input_minimum(claim)[0], met(rows[None], last), losses)


class _Remembering(LinearWalk):
    """A linear walk that keeps what it put in the place of every relaxed node."""

    def __init__(self, bounds: LinearBounds) -> None:
        super().__init__(bounds)
        self.steps: dict[int, tuple[Tensor, list[tuple[int, Tensor]], Tensor]] = {}

    def step(self, index: int, A: Tensor) -> Step:
        found, shift = super().step(index, A)
        backs = list(found)
        if not isinstance(self.bounds.graph.nodes[index].operator, Affine):
            self.steps[index] = A, backs, shift[0]
        return backs, shift
