"""Before anything is called certified: the model file itself, in onnxruntime, at a handful of inputs of the region."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import SofthullError
from ..formats import agreement
from ..formats.network import LARGEST_INPUT, Network
from ..graph.graph import Graph
from ..regions import Region


def contradictions(
    networks: Sequence[Network | Graph], region: Region, start: Tensor, worst: Tensor, seed: int = 0
) -> dict[int, str]:
    """By instance, where a model file and the graph that was bounded differ by more than rounding, and by how much.

    ``start`` are the clean inputs, ``worst`` those that an attack found. A graph without a file has nothing to replay.
    """
    files = [network for network in networks if isinstance(network, Network)]
    if not files or not region.size:
        return {}
    points = _points(region, start, worst, seed)
    flat = points.flatten(0, 1).cpu().numpy()
    too_large = ~(torch.maximum(region.lower.abs(), region.upper.abs()).flatten(1) <= LARGEST_INPUT).all(1)
    found = dict.fromkeys(
        too_large.nonzero()[:, 0].tolist(),
        "networks are read for inputs up to 2^60; nothing is certified beyond",
    )
    for network in files:
        try:
            apart, explained, _ = agreement.disagreements(network, flat)
        except Exception as problem:
            reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            raise SofthullError(f"{network.path}: onnxruntime cannot compute it: {reason}") from None
        wrong = np.logical_not(apart <= explained).reshape(points.shape[:2])
        for i in np.flatnonzero(wrong.any(1)).tolist():
            place = int(wrong[i].argmax())
            where = "an input of the region" if place else "the input itself"
            line = f"its translation and onnxruntime differ by {apart.reshape(wrong.shape)[i, place]:.2g} at {where}"
            found[i] = f"{network.path}: {line}; nothing is certified, please report this model"
    return found


def _points(region: Region, start: Tensor, worst: Tensor, seed: int) -> Tensor:
    """``[B, P, ...]``: clean inputs first, then attacked ones, two opposite corners, a random corner, a random point.

    The places of the random ones are the same for every instance, so that answers do not depend on the batch.
    """
    generator = torch.Generator().manual_seed(seed)
    shape, like = region.lower.shape[1:], region.lower
    corner = torch.randint(2, shape, generator=generator, dtype=torch.bool).to(like.device)
    corners = (region.lower, region.upper, torch.where(corner, region.upper, region.lower))
    inside = [region.project(point) for point in (*corners, region.sample(generator))]
    return torch.stack([start, worst, *inside], 1)
