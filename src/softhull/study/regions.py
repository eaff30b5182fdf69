"""The input regions of the paper's synthetic study: boxes around the logits of Dirichlet samples."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidInput


def dirichlet_logits(rng: np.random.Generator, count: int, size: int, mu: float, high: bool) -> np.ndarray:
    """Centred logits ``[count, size]`` of probabilities whose largest mean is ``mu``.

    Output 0 is the one with the large mean (``high``) or one of the others. Appendix on data generation of Wei et al.
    2023: all concentrations are 1 but one, ``mu (size - 1) / (1 - mu)``.
    """
    if size < 2 or not 1 / size <= mu < 1:
        raise InvalidInput(f"mu must be at least 1/K and below 1; for K = {size} got {mu:g}")
    concentration = np.ones(size)
    concentration[0 if high else 1] = mu * (size - 1) / (1 - mu)
    logits = np.log(rng.dirichlet(concentration, size=count))
    return logits - np.mean(logits, axis=-1, keepdims=True)
