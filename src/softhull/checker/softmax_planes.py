"""Planes below and above one softmax output, derived from a few parameters; the offsets are found here, not believed.

Notation: logits x in a box ``[low, high]`` with ``apart[i, j] <= x_i - x_j``; output k, the others j != k;
``sigma(v) = 1 / (1 + e^-v)``; ``p_k = sigma(v(x))`` with the log-odds ``v(x) = -log sum_{j != k} e^(x_j - x_k)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flint import arb

from .balls import ONE, ZERO, Balls, Floats, exact, negative, positive, round_down, round_up, zeros


class NotAPlane(ValueError):
    """Parameters that describe no plane."""


@dataclass(frozen=True)
class Logits:
    """What is known of one row of logits; floats are exact bounds."""

    low: Floats
    high: Floats
    apart: Floats  # [K, K]

    def least(self, c: Balls) -> arb:
        """A lower bound on ``c . x``: one logit and the differences of the others to it, each at its worst.

        Theorem: ``c.x = (sum c) x_J + sum_{j != J} c_j (x_j - x_J)`` for every J; the best J is taken.
        """
        best = arb.neg_inf()
        for J in range(len(self.low)):
            low, high = exact(self.apart[:, J]), -exact(self.apart[J])
            low[J], high[J] = arb(float(self.low[J])), arb(float(self.high[J]))
            weights = c.copy()
            weights[J] = c.sum()
            ends = (positive(weights) * low + negative(weights) * high).sum()
            best = best.max(ends)
        return best

    def log_odds(self, k: int) -> tuple[arb, arb]:
        """Theorem: ``v = -log sum_{j != k} e^(x_j - x_k)`` falls with every difference ``x_j - x_k``."""
        others = [j for j in range(len(self.low)) if j != k]
        most = sum(((-arb(float(self.apart[k, j]))).exp() for j in others), start=ZERO)
        least = sum((arb(float(self.apart[j, k])).exp() for j in others), start=ZERO)
        return -most.log(), -least.log()

    def probability(self, k: int) -> tuple[float, float]:
        """Theorem: ``p_k = sigma(v)``, and sigma rises; a row of one has probability 1."""
        if len(self.low) == 1:
            return 1.0, 1.0
        low, high = self.log_odds(k)
        return max(0.0, round_down(sigma(low))), min(1.0, round_up(sigma(high)))


def sigma(v: arb) -> arb:
    """The logistic function."""
    return ONE / (ONE + (-v).exp())


def upper_plane(x: Logits, k: int, pulls: Floats) -> tuple[Balls, arb]:
    """``p_k <= sum_j h_j (x_k - x_j) + offset`` for pulls ``h_j >= 0`` (that of k itself is not used).

    Let ``t = sum_j h_j`` and ``q = h / t``. By Gibbs' inequality ``log sum_j e^(x_j) >= q.x + H(q)`` with the entropy
    H, so ``t v(x) <= sum_j h_j (x_k - x_j) - t H(q)``. With ``M = max of sigma(v) - t v`` over the range of v,
    ``p_k = sigma(v) <= t v + M``, which gives the offset ``M - t H(q)``. The maximum lies at an end, or where
    ``sigma (1 - sigma) = t`` on the concave side, ``sigma >= 1/2``: there the derivative turns from plus to minus.
    """
    h = exact(pulls)
    h[k] = ZERO
    if len(h) == 1:  # without others p_k is 1, and there are no log-odds
        return zeros(1), ONE
    if not all(a >= 0 for a in h):
        raise NotAPlane("a negative pull")
    t = h.sum()
    low, high = x.log_odds(k)
    candidates = [sigma(low) - t * low, sigma(high) - t * high]
    if t > 0 and 4 * t < 1:
        odds = (ONE + (ONE - 4 * t).sqrt()) ** 2 / (4 * t)
        candidates.append(_touching(lambda v: sigma(v) - t * v, odds.log(), low, high))
    elif not (4 * t >= 1 or t.is_zero()):
        raise NotAPlane("pulls too close to 0 or to 1/4")
    offset = candidates[0]
    for value in candidates[1:]:
        offset = offset.max(value)
    entropy = sum((a * (t / a).log() for a in h if not a.is_zero()), start=ZERO)
    slope = -h
    slope[k] = t
    return slope, offset - entropy


def lower_plane(x: Logits, k: int, reference: int, theta: float, alpha: float, gamma: float) -> tuple[Balls, arb]:
    """``p_k >= alpha y - gamma s + delta``, an affine function of x.

    With a logit ``J = reference`` and ``0 <= theta <= 1`` (no reference: -1, theta 0) let ``d_j = x_j - theta x_J -
    c``, ``y = d_k`` and ``s = sum_{j != k} chord(d_j)``, the chords of exp over the range of every d_j. Then
    ``p_k = e^y / (e^y + sum_j e^(d_j)) >= F(y, s) = e^y / (e^y + s)``, and
    ``delta = min of F + gamma s - alpha y`` over the ranges ``[a, b]`` of y and ``[s_lo, s_hi]`` of s.
    F is convex in s: for fixed y the best s is ``e^(y/2) / sqrt(gamma) - e^y``, clipped. Along it the derivative in y
    is ``z (1 - z) - alpha`` with ``z = F``, continuous, and z rises with y on every piece: the minimum lies at a, at b,
    or where z is the smaller root of ``z (1 - z) = alpha``. On the piece between the clips ``z = sqrt(gamma) e^(y/2)``,
    on the others ``z = sigma(y - log s)``: three candidates, of which the true one is among the points tried.
    """
    K = len(x.low)
    if not (0 <= theta <= 1 and 0 <= alpha <= 0.25 and gamma > 0 and -1 <= reference < K):
        raise NotAPlane("theta, alpha, gamma or reference out of range")
    if reference < 0 and theta != 0:
        raise NotAPlane("theta without reference")
    if K == 1:
        return zeros(1), ONE
    a, b = _relative(x, reference, arb(theta))
    c = max(float(end) for end in b)
    a, b = a - c, b - c
    slopes, offset = zeros(K), ZERO
    s_lo = s_hi = ZERO
    for j in range(K):
        if j == k:
            continue
        first, last = a[j].exp(), b[j].exp()
        if b[j] > a[j]:
            slopes[j] = (last - first) / (b[j] - a[j])
            offset += first - slopes[j] * a[j]
        else:  # a point; no difference to speak of
            offset += last
        s_lo, s_hi = s_lo + first, s_hi + last
    alpha_, gamma_ = arb(alpha), arb(gamma)
    root = gamma_.sqrt()

    def lifted(y: arb) -> arb:
        s = ((y / 2).exp() / root - y.exp()).max(s_lo).min(s_hi)
        return ONE / (ONE + s * (-y).exp()) + gamma_ * s - alpha_ * y

    delta = lifted(a[k]).min(lifted(b[k]))
    if alpha > 0:
        z = 2 * alpha_ / (ONE + (ONE - 4 * alpha_).sqrt())
        odds = (z / (ONE - z)).log()
        for y in (2 * (z / root).log(), odds + s_lo.log(), odds + s_hi.log()):
            delta = delta.min(_touching(lifted, y, a[k], b[k]))
    slope = -gamma_ * slopes
    slope[k] = alpha_
    if reference >= 0:
        slope[reference] -= arb(theta) * slope.sum()
    # y = x_k - theta x_J - c and s is affine in the d_j, which carry the same c.
    constant = delta - gamma_ * offset - arb(c) * (alpha_ - gamma_ * slopes.sum())
    return slope, constant


def _touching(function: Callable[[arb], arb], at: arb, low: arb, high: arb) -> arb:
    """The function at a point moved into ``[low, high]``."""
    return function(at.max(low).min(high))


def _relative(x: Logits, reference: int, theta: arb) -> tuple[Balls, Balls]:
    """The ranges of ``x_j - theta x_J`` as exact numbers, from the box and from the differences to J."""
    low, high = exact(x.low), exact(x.high)
    if reference < 0:
        return low, high
    a, b = low - theta * high[reference], high - theta * low[reference]
    a_apart = theta * exact(x.apart[:, reference]) + (1 - theta) * low
    b_apart = -theta * exact(x.apart[reference]) + (1 - theta) * high
    a = np.array([p.max(q).lower() for p, q in zip(a, a_apart)], dtype=object)
    b = np.array([p.min(q).upper() for p, q in zip(b, b_apart)], dtype=object)
    a[reference], b[reference] = ((1 - theta) * low[reference]).lower(), ((1 - theta) * high[reference]).upper()
    return a, b
