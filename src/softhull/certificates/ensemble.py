"""Scores of ensembles without products: the multipliers of the Lagrangian method as choices of the checker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checker.network import Kink
from ..checker.replay import Rule, Rules
from ..solve.dual import Dual
from ..solve.lagrangian import Lagrangian
from ..solve.layers import stack_networks
from ..solve.relaxation import Relaxation, relax
from ..solve.softmax import parse_bounds
from .prover import Proof

if TYPE_CHECKING:
    from torch import Tensor

    from ..formats.network import Network
    from ..propagate.perturbation import Region


class LagrangianRows:
    """Claims on linear functions of the probabilities, and their ranges ``least`` and ``most [1, K]``."""

    def __init__(self, proof: Proof, networks: Sequence[Network], region: Region) -> None:
        proof.prepare(proof.networks.logits, stops=True)
        for output in proof.networks.probabilities:
            proof.prepare_softmax(output.node, stops=True)
        self.proof = proof
        self.relaxation = relax(stack_networks([n.graph for n in networks]), region, parse_bounds("all"))
        self.least, self.most = self.relaxation.probabilities()

    def claim(self, coefficients: Tensor) -> tuple[float, Tensor]:
        """A lower bound on ``-coefficients . (sum of the probabilities)``, and probabilities that nearly attain it."""
        solution = Dual(stages=2).solve(self.relaxation, coefficients)
        whole = Lagrangian(self.relaxation, coefficients)
        self.proof.choose_first = _choices(self.proof, self.relaxation, whole, solution.certificate)
        return self.proof.claim_score(-coefficients[0].numpy()), solution.probabilities


def _choices(proof: Proof, relaxation: Relaxation, whole: Lagrangian, found: dict[str, Any]) -> Rules:
    """Slopes of the activations, planes at the tangent points and their weights, simplex multipliers; by node."""
    chosen: dict[int, Rule] = {}
    parts = whole.views(found["multipliers"])
    tangent_points = found["tangent_points"]
    sizes = [len(stack.stack.members) for stack in relaxation.stacks]
    whole.touch(list(tangent_points.split(sizes, 1)))
    position = 0
    for stack, part, (lower, _) in zip(relaxation.stacks, parts, whole.planes):
        below_here, above_here = whole.below[0, 0].numpy(), whole.above[0, 0].numpy()
        for m, member in enumerate(stack.stack.members):
            output = proof.networks.probabilities[member].node
            kinks = [i for i in proof.ancestors(member) if isinstance(proof.networks.nodes[i], Kink)]
            for kink, lines in zip(kinks, part.lines, strict=True):
                chosen[kink] = {"slope": lines[0, 0, m].numpy().copy()}
            at = tangent_points[0, position].numpy()[None]
            position += 1
            chosen[output] = {
                "planes": proof.derive_planes(output, at, like=lower.slopes[0, m, 0].numpy()[None]),
                "multiplier": -part.simplex[0, m].numpy().reshape(1, 1),
                "below": _weights(part.below[0, m].numpy() * below_here),
                "above": _weights(part.above[0, m].numpy() * above_here),
            }
    return lambda index, _: chosen.get(index)


def _weights(shares: np.ndarray) -> np.ndarray:
    """Weights ``[P, 1, K]`` whose sums are certainly not above 1."""
    total = shares.sum(0)
    return np.where(total > 1 - 1e-12, shares * (1 - 1e-12) / np.maximum(total, 1), shares)[:, None]
