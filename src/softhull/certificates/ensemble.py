"""The multipliers of the Lagrangian method as choices of the checker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..checker.network import Kink
from ..checker.replay import Rule, Rules
from .prover import Proof

if TYPE_CHECKING:
    from ..solve.lagrangian import Lagrangian
    from ..solve.relaxation import Relaxation


def choices(proof: Proof, relaxation: Relaxation, whole: Lagrangian, found: dict[str, Any]) -> Rules:
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
