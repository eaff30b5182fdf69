"""Scores of ensembles without products: the multipliers of the Lagrangian method as choices of the checker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..checker.network import Kink
from ..checker.replay import Rule, Rules
from ..graph.operator import Operator
from ..graph.ops.clip import Clip
from ..graph.ops.relu import LeakyRelu, Relu
from ..solve.dual import Dual
from ..solve.lagrangian import Lagrangian
from ..solve.layers import stack_networks
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax_boxes import parse_bounds
from .prover import Proof

if TYPE_CHECKING:
    from torch import Tensor

    from ..formats.network import Network
    from ..regions import Region


class LagrangianRows:
    """Claims on linear functions of the probabilities."""

    def __init__(self, proof: Proof, networks: Sequence[Network], region: Region) -> None:
        proof.prepare(proof.networks.logits, stops=True)
        for output in proof.networks.probabilities:
            proof.prepare_softmax(output.node, stops=True)
        self.proof = proof
        self.relaxation = relax(stack_networks([n.graph for n in networks]), region, parse_bounds("all"))

    def claim(self, coefficients: Tensor) -> None:
        """Lower bounds on ``-coefficients . (sum of the probabilities)``, one claim for every row ``[R, K]``."""
        relaxation = self.relaxation.take(torch.zeros(len(coefficients), dtype=torch.long))
        solution = Dual(stages=2).solve(relaxation, coefficients)  # all rows at once: small programs are all overhead
        chosen = solution.certificate | {"coefficients": coefficients}
        for r in range(len(coefficients)):
            self.follow({name: part[r] for name, part in chosen.items()})

    def follow(self, found: Mapping[str, Tensor]) -> None:
        """The claim on one row ``coefficients [K]`` with the multipliers and tangent points that were found for it."""
        row, multipliers, points = (found[n].cpu()[None] for n in ("coefficients", "multipliers", "tangent_points"))
        whole = Lagrangian(self.relaxation, row)
        self.proof.choose_first = _choices(self.proof, self.relaxation, whole, multipliers, points)
        self.proof.claim_score(-row[0].numpy())


def _choices(
    proof: Proof, relaxation: Relaxation, whole: Lagrangian, multipliers: Tensor, tangent_points: Tensor
) -> Rules:
    """Slopes of the activations, planes at the tangent points and their weights, simplex multipliers; by node."""
    chosen: dict[int, Rule] = {}
    parts = whole.views(multipliers)
    sizes = [len(stack.stack.members) for stack in relaxation.stacks]
    whole.touch(list(tangent_points.split(sizes, 1)))
    position = 0
    for stack, part, (lower, _) in zip(relaxation.stacks, parts, whole.planes):
        below_here, above_here = whole.below[0, 0].numpy(), whole.above[0, 0].numpy()
        for m, member in enumerate(stack.stack.members):
            output = proof.networks.probabilities[member].node
            kinks = [i for i in proof.ancestors(member) if isinstance(proof.networks.nodes[i], Kink)]
            slopes = [
                lines[0, 0, m].numpy().copy()
                for layer, lines in zip(stack.stack.layers, part.lines)
                if isinstance(layer.activation, Relu | LeakyRelu) or _rises_from_zero(layer.activation)
            ]
            # Other activations are curves to the checker, or several kinks; what it has no choice for it makes itself.
            if [proof.networks.nodes[kink].size for kink in kinks] == [slope.size for slope in slopes]:
                chosen |= {kink: {"slope": slope} for kink, slope in zip(kinks, slopes)}
            at = tangent_points[0, position].numpy()[None]
            position += 1
            chosen[output] = {
                "planes": proof.derive_planes(output, at, like=lower.slopes[0, m, 0].numpy()[None]),
                "multiplier": -part.simplex[0, m].numpy().reshape(1, 1),
                "below": _weights(part.below[0, m].numpy() * below_here),
                "above": _weights(part.above[0, m].numpy() * above_here),
            }
    return lambda index, _: chosen.get(index)


def _rises_from_zero(activation: Operator | None) -> bool:
    return isinstance(activation, Clip) and activation.least == 0


def _weights(shares: np.ndarray) -> np.ndarray:
    """Weights ``[P, 1, K]`` whose sums are certainly not above 1."""
    total = shares.sum(0)
    return np.where(total > 1 - 1e-12, shares * (1 - 1e-12) / np.maximum(total, 1), shares)[:, None]
