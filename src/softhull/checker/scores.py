"""Scores of an ensemble: what bounds on linear functions of its probabilities say about them.

A proved row is ``sum over networks of c . p^m >= v``; with M networks and ``p`` their mean, ``c . p >= v / M``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flint import arb

from ..errors import quoted
from .balls import ONE, ZERO, Balls, Floats, exact
from .certificate import Refused
from .network import Networks
from .replay import Knowledge

Rows = list[tuple[Balls, arb]]


def score_bound(
    claim: Mapping[str, Any], networks: Networks, known: Knowledge, proved: list[tuple[Floats, Floats]]
) -> str:
    """The bound in words, where the proved rows imply it; otherwise Refused."""
    name, label, bound = claim["score"], claim["label"], claim["bound"]
    if not isinstance(name, str) or name not in SCORES or not isinstance(bound, float) or not np.isfinite(bound):
        raise Refused(f"score {quoted(name)} is not covered, or its bound is no number")
    rows, low, high = proved_of_mean(label, networks, known, proved)
    below, sense = SCORES[name](rows, label, low, high, arb(bound))
    if not below:
        raise Refused(f"the {name} is not proved to be {sense} {bound!r}")
    return f"the {name} for class {label}{whose(networks)} is {sense} {bound!r}"


def proved_of_mean(
    label: int, networks: Networks, known: Knowledge, proved: list[tuple[Floats, Floats]]
) -> tuple[Rows, Balls, Balls]:
    """What is proved of the mean probabilities: rows ``c . p >= v``, and the ends of the range of every one."""
    K = networks.probabilities[0].size
    if K < 2 or label >= K or any(output.size != K for output in networks.probabilities):
        raise Refused("the networks do not have the same two or more classes, or the label is none of them")
    rows = [(exact(c), arb(float(v)) / len(networks.probabilities)) for R, L in proved for c, v in zip(R, L)]
    low, high = (exact(np.zeros(K)) for _ in range(2))
    for output in networks.probabilities:
        least, most = known.box(output)
        low, high = low + exact(least.ravel()), high + exact(most.ravel())
    low, high = (end / len(networks.probabilities) for end in (low, high))
    return rows, low, high


def whose(networks: Networks) -> str:
    """What a bound is about, in words."""
    M = len(networks.probabilities)
    return "" if M == 1 else f" of the mean of {M} networks"


def picked(rows: Rows, coefficients: Mapping[int, int], K: int) -> arb:
    """The best proved lower bound on the combination of probabilities with these coefficients."""
    wanted = exact(np.array([float(coefficients.get(k, 0)) for k in range(K)]))
    best = arb.neg_inf()
    for c, v in rows:
        if all(a == b for a, b in zip(c, wanted)):
            best = best.max(v)
    return best


def _nll(rows: Rows, label: int, low: Any, high: Any, bound: arb) -> tuple[bool, str]:
    """``-log p_y <= b`` where ``p_y >= e^-b``."""
    return picked(rows, {label: 1}, len(low)) >= (-bound).exp(), "at most"


def _error(rows: Rows, label: int, low: Any, high: Any, bound: arb) -> tuple[bool, str]:
    """``1 - p_y <= b`` where ``p_y >= 1 - b``."""
    return picked(rows, {label: 1}, len(low)) >= ONE - bound, "at most"


def _confidence(rows: Rows, label: int, low: Any, high: Any, bound: arb) -> tuple[bool, str]:
    """``max_k p_k <= b`` where ``-p_k >= -b`` for every k."""
    K = len(low)
    return all(picked(rows, {k: -1}, K).max(-high[k]) >= -bound for k in range(K)), "at most"


def _margin(rows: Rows, label: int, low: Any, high: Any, bound: arb) -> tuple[bool, str]:
    """``p_y - max_{k != y} p_k >= b`` where ``p_y - p_k >= b`` for every other k, of which there is one at least."""
    K = len(low)
    others = [k for k in range(K) if k != label]
    return all(picked(rows, {label: 1, k: -1}, K).max(low[label] - high[k]) >= bound for k in others), "at least"


def brier_below(rows: Rows, label: int, low: Any, high: Any, bound: arb) -> tuple[bool, str]:
    """``sum_k p_k^2 - 2 p_y + 1 + c.p`` is convex in every p_k, so it is largest at the ends of their ranges."""
    for c, v in rows:
        most = ONE
        for k, (a, b) in enumerate(zip(low, high)):
            ends = [p * p + (c[k] - (2 if k == label else 0)) * p for p in (a, b)]
            most += ends[0].max(ends[1])
        if most - v <= bound:
            return True, "at most"
    return False, "at most"


def _entropy(rows: Rows, label: int, low: Any, high: Any, bound: arb) -> tuple[bool, str]:
    """Gibbs: ``-sum p log p <= -c.p + log sum_k e^(c_k)`` for any c."""
    found = any(sum((a.exp() for a in c), start=ZERO).log() - v <= bound for c, v in rows)
    return found, "at most"


SCORES = {
    "nll": _nll,
    "error": _error,
    "confidence": _confidence,
    "margin": _margin,
    "brier": brier_below,
    "entropy": _entropy,
}
