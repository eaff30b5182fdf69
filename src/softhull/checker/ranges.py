"""Ranges of the mean probabilities of one input: all that metrics of a data set need to know of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

from .balls import ONE, ZERO, Balls, Floats, exact, outward
from .certificate import Refused
from .network import Networks
from .replay import Knowledge
from .scores import Rows, brier_below, picked, proved_of_mean, whose

LARGEST_BRIER = 2.0  # of any distribution


@dataclass(frozen=True)
class ProvedRanges:
    """``low <= p <= high`` for the mean probabilities, and the rows ``c . p >= v`` from which that follows."""

    rows: Rows
    low: Balls
    high: Balls

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """The ranges as floats, rounded outward."""
        return outward(self.low, self.high)

    def ahead(self, k: int, t: int) -> bool:
        """Whether class t has a larger probability than class k throughout."""
        return bool(picked(self.rows, {t: 1, k: -1}, len(self.low)).max(self.low[t] - self.high[k]) > 0)

    def brier_below(self, label: int, bound: float) -> bool:
        """Whether the Brier score is at most this. Theorem: ``0 . p >= 0`` is a row that needs no proof."""
        trivial = exact(np.zeros(len(self.low))), ZERO
        return brier_below([*self.rows, trivial], label, self.low, self.high, arb(bound))[0]


def proved_ranges(
    label: int, networks: Networks, known: Knowledge, proved: list[tuple[Floats, Floats]]
) -> ProvedRanges:
    """What rows, bounds on every network and the simplex say of the mean probabilities.

    Theorem: probabilities are from 0 to 1 and add up to 1, so ``p_k = 1 - sum of the others``, which is at least 1 less
    their upper and at most 1 less their lower ends.
    """
    rows, low, high = proved_of_mean(label, networks, known, proved)
    K = len(low)
    low = np.array([low[k].max(picked(rows, {k: 1}, K)) for k in range(K)], dtype=object)
    high = np.array([high[k].min(-picked(rows, {k: -1}, K)) for k in range(K)], dtype=object)
    needed, left = ONE - (high.sum() - high), ONE - (low.sum() - low)
    low = np.array([a.max(b).max(ZERO) for a, b in zip(low, needed)], dtype=object)
    high = np.array([a.min(b).min(ONE) for a, b in zip(high, left)], dtype=object)
    return ProvedRanges(rows, low, high)


def ranges_follow(
    claim: Mapping[str, Any], networks: Networks, known: Knowledge, proved: list[tuple[Floats, Floats]]
) -> tuple[dict[str, Any], str]:
    """The ranges as data and in words, where the proved rows imply them; otherwise Refused.

    ``ahead[k]`` names a class that is more probable than k for every input of the region: k is never on top. A class
    that may be has -1.
    """
    label, ahead, brier = claim["label"], claim["ahead"], claim["brier"]
    found = proved_ranges(label, networks, known, proved)
    K = len(found.low)
    least, most = (_probabilities(claim[side], K) for side in ("least", "most"))
    if not isinstance(ahead, list) or len(ahead) != K or not all(type(t) is int and -1 <= t < K for t in ahead):
        raise Refused(f"ahead is not {K} classes")
    if not isinstance(brier, float) or not math.isfinite(brier):
        raise Refused("the bound on the brier score is no number")
    for k in range(K):
        if not (found.low[k] >= arb(least[k]) and found.high[k] <= arb(most[k])):
            raise Refused(f"the probability of class {k} is not proved to be from {least[k]!r} to {most[k]!r}")
        if ahead[k] >= 0 and not found.ahead(k, ahead[k]):
            raise Refused(f"it is not proved that class {ahead[k]} stays ahead of class {k}")
    if brier < LARGEST_BRIER and not found.brier_below(label, brier):
        raise Refused(f"the brier score is not proved to be at most {brier!r}")
    stated = {"kind": "ranges", "label": label, "least": least, "most": most, "ahead": ahead, "brier": brier}
    tops = [k for k in range(K) if ahead[k] < 0]
    if not tops:
        raise Refused("there is always a class on top")
    words = f"the probabilities{whose(networks)} of all {K} classes stay in their ranges, only {tops} may be on top"
    return stated, f"{words}, and the brier score for class {label} is at most {brier!r}"


def _probabilities(found: Any, K: int) -> list[float]:
    """K numbers from 0 to 1."""
    if not isinstance(found, list) or len(found) != K:
        raise Refused(f"a range is not given for {K} classes")
    if not all(isinstance(p, float) and 0 <= p <= 1 for p in found):
        raise Refused("a range ends outside of 0 to 1")
    return found
