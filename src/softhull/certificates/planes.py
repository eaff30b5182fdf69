"""Softmax planes as the parameters from which the checker derives them: the best of a few references at one point."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bounds.share_envelope import Rectangle, supporting_plane
from ..bounds.sigmoid_envelope import concave_envelope
from ..checker.balls import Floats
from ..checker.softmax_planes import Logits, NotAPlane, lower_plane

# Slopes of 1/4 belong to the inflection point, where the checker cannot tell both sides of the sigmoid apart.
STEEPEST = 0.25 * (1 - 1e-12)


def centre(x: Logits) -> Floats:
    """A point of the box whose differences are, in the least squares sense, in the middle of their ranges."""
    middle = x.low + (x.high - x.low) / 2
    apart = ((x.apart - x.apart.T) / 2).mean(1)
    return np.clip(apart + middle.mean(), x.low, x.high)


def best_lower(x: Logits, k: int, at: Floats, like: Floats | None = None) -> tuple[float, float, float, float]:
    """Reference, theta, alpha and gamma of the plane below ``p_k`` highest at a point, or nearest to a slope."""
    best, value = (-1.0, 0.0, 0.0, 1.0), -np.inf
    if len(at) == 1:  # the probability is 1, and these parameters are the constant
        return best
    for reference, theta in _references(x, k):
        found = parameters(x, k, at, reference, theta)
        try:
            slope, offset = lower_plane(x, k, *found)
        except NotAPlane:
            continue
        if like is None:
            here = float(offset + (slope * at.tolist()).sum())
        else:
            here = -float(np.abs(slope.astype(np.float64) - like).max())
        if here > value:
            best, value = (float(found[0]), *found[1:]), here
    return best


def referring(plane: tuple[float, ...], shown: list[int]) -> tuple[float, ...]:
    """Parameters whose reference counts the visible logits of a row as ones that count all of its logits."""
    reference, *rest = plane
    return (float(shown[int(reference)]) if reference >= 0 else -1.0, *rest)


def best_upper(x: Logits, k: int, at: Floats) -> Floats:
    """Pulls of the plane above ``p_k`` that is lowest at a point: the concave envelope in the log-odds."""
    others = np.delete(np.arange(len(at)), k)
    if not len(others):
        return np.zeros(1)
    lowest, highest = (float(end) for end in x.log_odds(k))
    top = at[others].max()
    shares = np.exp(at[others] - top)
    odds = at[k] - top - np.log(shares.sum())
    _, slope = concave_envelope(*(np.asarray(v) for v in (np.clip(odds, lowest, highest), lowest, highest)))
    pulls = np.zeros(len(at))
    pulls[others] = min(float(slope), STEEPEST) * shares / shares.sum()
    return pulls


def _references(x: Logits, k: int) -> list[tuple[int, float]]:
    middle = x.low + (x.high - x.low) / 2
    order = [int(j) for j in np.argsort(-middle)]
    if len(order) == 2:
        return [(1 - k, 1.0)]
    found = [(-1, 0.0), (k, 1.0)]
    for J in [j for j in order if j != k][:2]:
        found += [(J, 1.0), (J, _best_weight(x, k, J))]
    return found


def _best_weight(x: Logits, k: int, J: int) -> float:
    """The weight of J that makes the sum of chords smallest at the midpoint, for equal half-widths."""
    middle, half = x.low + (x.high - x.low) / 2, float(x.high[J] - x.low[J]) / 2
    others = np.delete(middle, k)
    with np.errstate(over="ignore"):  # beside a masked logit the others are infinitely large, and lead nothing
        lead = max(2 / np.exp(others - middle[J]).sum() - 1, 0.0)
    if half < 1e-3:
        return float(lead)
    return float(np.clip(np.arctanh(min(lead * np.tanh(half), 1 - 1e-16)) / half, 0, 1))


def parameters(x: Logits, k: int, at: Floats, J: int, theta: float) -> tuple[int, float, float, float]:
    """Reference, theta and the best alpha and gamma for them at a point."""
    low, high, d = x.low, x.high, at
    if J >= 0:
        low = np.maximum(x.low - theta * x.high[J], theta * x.apart[:, J] + (1 - theta) * x.low)
        high = np.minimum(x.high - theta * x.low[J], -theta * x.apart[J] + (1 - theta) * x.high)
        low[J], high[J] = (1 - theta) * x.low[J], (1 - theta) * x.high[J]
        d = np.clip(at - theta * at[J], low, high)
    top = high.max()
    others = np.delete(np.arange(len(at)), k)
    first, last = np.exp(low - top)[others], np.exp(high - top)[others]
    width = (high - low)[others]
    share = np.where(width > 0, (d - low)[others] / np.where(width > 0, width, 1), 1)
    here = (first + share * (last - first)).sum()
    unit = np.log(here) + top
    where = (d[k] - unit, low[k] - unit, high[k] - unit, min(first.sum() / here, 1), max(last.sum() / here, 1))
    alpha, gamma, _ = supporting_plane(Rectangle(*(np.asarray(v) for v in where)))
    return J, theta, float(np.clip(alpha, 0, STEEPEST)), _positive(float(gamma / here))


def _positive(value: Any) -> float:
    return float(np.clip(value, 1e-300, 1e300))
