"""One walk back through a network, whatever its nodes are: node after node, last first, until sources are left.

What is known on the way is a claim: for every input of the region

    <C, node>  >=  sum_i <A_i, pending node i>  +  constant  -  charge,

so the pending coefficients are a complete record of it. A walk over upper bounds is the same with the signs turned.
Coefficients are computed with rounding errors and then taken as the exact numbers they are; what exact ones would have
made of the node is another number, and the difference is the charge.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# What replaces a node: the coefficients that each of its inputs gets, and what is added to the constant.
Step = tuple[Iterable[tuple[int, Tensor]], Tensor]


@dataclass
class Claim:
    """Coefficients by pending node, the constant, and what rounding has cost so far."""

    pending: dict[int, Tensor]
    constant: Tensor
    charge: Tensor

    @staticmethod
    def on(index: int, coefficients: Tensor) -> Claim:
        """What is to be shown of one node: ``coefficients [S, B, *shape]``."""
        nothing = coefficients.new_zeros(coefficients.shape[0], 1)
        return Claim({index: coefficients}, nothing, nothing)

    def negated(self) -> Claim:
        """The claim about the negative of the function."""
        return Claim({i: -A for i, A in self.pending.items()}, -self.constant, self.charge)

    def both_sides(self) -> Claim:
        """The claim and its negation, side by side: lower bounds first, then those of the negated specifications."""
        other = self.negated()
        pending = {i: torch.cat((A, other.pending[i])) for i, A in self.pending.items()}
        return Claim(pending, torch.cat((self.constant, other.constant)), torch.cat((self.charge, other.charge)))

    @property
    def bound(self) -> Tensor:
        """What is left without the pending nodes."""
        return self.constant - self.charge


class Walk(ABC):
    """How one kind of walk replaces a node, what it does on arrival at one, and what it pays for rounding."""

    sources: Container[int] = (-1,)  # where it ends

    @abstractmethod
    def step(self, index: int, A: Tensor) -> Step:
        """What bounds ``<A, node>``."""

    def arrive(self, index: int, claim: Claim) -> Claim:
        """Called before a node is replaced: time to look at the clock and at what is known here."""
        return claim

    def cost_of_step(self, index: int, A: Tensor, constant: Tensor) -> Tensor | float:
        """What the rounding of a step costs, with that of the sum that is the new ``constant``."""
        return 0.0

    def cost_of_sum(self, index: int, A: Tensor) -> Tensor | float:
        """What adding up coefficients that meet at a node, to ``A``, costs."""
        return 0.0

    def back(self, claim: Claim) -> Claim:
        """The claim with only sources pending."""
        while inner := [i for i in claim.pending if i not in self.sources]:
            top = max(inner)
            claim = self.arrive(top, claim)
            pending = dict(claim.pending)
            A = pending.pop(top)
            backs, shift = self.step(top, A)
            constant = claim.constant + shift
            charge = claim.charge + self.cost_of_step(top, A, constant)
            for i, back in backs:
                met = i in pending
                pending[i] = pending[i] + back if met else back
                if met:
                    charge = charge + self.cost_of_sum(i, pending[i])
            claim = Claim(pending, constant, charge)
        return claim
