"""Probabilities as affine functions of the logits: ``p_k = value_k + slope_k . (x - at) +- error_k``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...bounds.share_envelope import Rectangle, smallest_slope, touching_value
from ...graph.operator import Interval
from ...graph.rounding import ulps, underflow

# Rows longer than this use only their two largest logits as references below.
_ALL_REFERENCES = 8
_SLOPES = (0.0, 0.25, 0.5, 0.75, 1.0)  # from the chord to the tangent
_OPERATIONS = 64  # more than there are on the way to a value
SHARES = (0.85, 1.0, 1.18)  # of the slope in s that matches the tangent


@dataclass(frozen=True)
class AffineProbabilities:
    """``|p_k - value_k - slope_k . (x - at)| <= error_k`` for all logits with the given differences.

    ``at``, ``value``, ``error`` are ``[..., K]``, ``slope [..., K, K]`` has rows that sum to zero.
    """

    at: Tensor
    value: Tensor
    slope: Tensor
    error: Tensor


def tangent_directions(at: Tensor) -> Tensor:
    """The gradients ``[..., K, K]`` of the log-odds ``x_k - LSE(x_rest)`` at a point."""
    K = at.shape[-1]
    eye = torch.eye(K, dtype=at.dtype, device=at.device)
    rest = at[..., None, :].masked_fill(eye.bool(), -torch.inf).softmax(-1)
    return eye - rest.nan_to_num(0.0)


def affine_probabilities(
    at: Tensor,
    differences: Interval,
    directions: Tensor,
    reach: Callable[[Tensor], Interval],
    variance: Callable[[Tensor, Tensor], Tensor],
) -> AffineProbabilities:
    """Affine functions close to softmax over all logits x with ``lower <= x_j - x_k <= upper`` (``[..., j, k]``).

    ``directions`` are those of ``tangent_directions(at)``; ``reach(directions)`` bounds ``directions_k . (x - at)``, as
    the differences do, and ``variance(p, w)`` bounds ``sum_j w_j (s_j - sum_i p_i s_i)^2`` with ``s = x - at``.

    Above, ``p_k = sigmoid(v_k)`` and ``v_k`` is concave, so ``p_k <= sigmoid(z)`` with z its tangent; the best offset
    for a slope is found among three points. Below, for a reference J, ``p_k >= F(y, s)`` with ``y = x_k - x_J`` and
    chords in s (``softmax-hull``), whose planes have exact offsets for any slopes. Those know the logits one by one; a
    Taylor remainder knows them together, and is better where they cannot all be far from ``at`` at once.
    """
    K = at.shape[-1]
    low, high = reach(directions)
    least, most = _by_differences(at, differences, directions)
    low, high = torch.maximum(low, least), torch.minimum(high, most)
    low, high = torch.minimum(low, high), torch.maximum(low, high)  # rounding may have crossed them
    eye = torch.eye(K, dtype=torch.bool, device=at.device)
    log_rest = at[..., None, :].masked_fill(eye, -torch.inf).logsumexp(-1)
    v = at - log_rest
    z_low, z_high = v + low, v + high
    p = torch.sigmoid(v)
    tangent = p * torch.sigmoid(-v)
    width = z_high - z_low
    wide = width > 1e-6
    chord = torch.where(wide, (torch.sigmoid(z_high) - torch.sigmoid(z_low)) / torch.where(wide, width, 1.0), tangent)
    best = AffineProbabilities(at, p, torch.zeros_like(directions), torch.full_like(p, torch.inf))
    from_below = _Below(at, differences, directions)
    remainder = _remainder(at, v, z_high, differences, variance)
    for share in _SLOPES:
        rate = (chord + share * (tangent - chord)).clamp(0, 0.25)
        above = _largest_excess(rate, v, z_low, z_high)
        tilt = tangent - rate
        tangential = p - remainder + torch.minimum(tilt * low, tilt * high)
        below = torch.maximum(from_below.least(rate, v), torch.where(tangential.isfinite(), tangential, -torch.inf))
        # value + rate * (z - v) +- error
        sizes = 1 + rate * (z_low.abs() + z_high.abs() + v.abs())
        error = (above - below) / 2 + ulps(_OPERATIONS, p.dtype) * sizes
        better = error < best.error
        best = AffineProbabilities(
            at,
            torch.where(better, (above + below) / 2, best.value),
            torch.where(better[..., None], rate[..., None] * directions, best.slope),
            torch.where(better, error, best.error),
        )
    return best


def _by_differences(at: Tensor, differences: Interval, directions: Tensor) -> Interval:
    """``directions_k . (x - at)``: the mean of ``(x_k - x_j) - (at_k - at_j)`` with the weights ``-directions_kj``."""
    K = at.shape[-1]
    weight = (-directions).masked_fill(torch.eye(K, dtype=torch.bool, device=at.device), 0.0)
    apart = at[..., :, None] - at[..., None, :]
    ends = []
    for sign, end in zip((-1, 1), differences):
        # A weight of 0 meets a difference of which nothing is known.
        term = torch.where(weight > 0, weight * (end - apart), 0.0)
        size = torch.where(weight > 0, weight * (end.abs() + apart.abs()), 0.0)
        # What rounded weights miss of one meets the logit itself; the slack of logits pays for that where the function
        # is put on forms.
        ends.append(term.sum(-1) + sign * ulps(4 * K + 16, at.dtype) * size.sum(-1))
    return ends[0], ends[1]


def _remainder(
    at: Tensor, v: Tensor, highest: Tensor, differences: Interval, variance: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """How far ``p_k`` may lie below its tangent at ``at``: ``[..., K]``.

    Along ``at + t s`` the second derivative of ``p_k`` is ``p_k ((s_k - m)^2 - var)``, where m and var are mean and
    variance of s under p. So ``p_k`` is at least its tangent less half of the largest ``p_k var``, and the variance is
    at most the mean square of the distances from any number: here the mean of s under the probabilities at ``at``.
    On the way to x no difference leaves the interval between those of ``at`` and of x, and the log-odds stay below
    their tangent.
    """
    apart = torch.minimum(differences[0], at[..., :, None] - at[..., None, :])  # x_j - x_k at least
    eye = torch.eye(at.shape[-1], dtype=torch.bool, device=at.device)
    others = apart.masked_fill(eye, -torch.inf).logsumexp(-2)
    most = torch.sigmoid(torch.minimum(torch.maximum(highest, v), -others)).clamp(max=1)
    most = most * (1 + ulps(_OPERATIONS, at.dtype) * (1 + others.abs() + highest.abs())) + underflow(at.dtype)
    found = most * variance(at.softmax(-1), most)[..., None] / 2
    return found * (1 + ulps(8, at.dtype)) + underflow(at.dtype)


def _largest_excess(rate: Tensor, v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The maximum of ``sigmoid(z) - rate * (z - v)`` over ``[low, high]``."""
    root = (1 - 4 * rate).clamp(min=0).sqrt()
    # The right one of the two points of slope ``rate`` is the local maximum.
    crest = torch.log((1 + root) / (1 - root).clamp(min=underflow(rate.dtype))).clamp(min=low, max=high)
    points = (low, high, crest)
    values = [torch.sigmoid(z) - rate * (z - v) for z in points]
    return torch.maximum(torch.maximum(values[0], values[1]), values[2])


class _Below:
    """Lower bounds on ``p_k - rate * (z - v)`` over the differences."""

    def __init__(self, at: Tensor, differences: Interval, directions: Tensor) -> None:
        K = at.shape[-1]
        self.directions = directions
        lower, upper = differences
        eye = torch.eye(K, dtype=torch.bool, device=at.device)
        lower, upper = lower.masked_fill(eye, 0.0), upper.masked_fill(eye, 0.0)
        count = K if K <= _ALL_REFERENCES else 3
        references = at.topk(count, dim=-1).indices  # [..., refs]
        index = references[..., None, :].expand(*at.shape, count)
        # Differences to the reference: [..., refs, K].
        self.low, self.high = (end.gather(-1, index).mT for end in (lower, upper))
        chosen = at.gather(-1, references)
        self.d = at[..., None, :] - chosen[..., :, None]
        self.own = references[..., :, None] == torch.arange(K, device=at.device)  # [..., refs, K]
        low, high = self.low, self.high
        width = high - low
        wide = width > 1e-9
        grow = torch.where(wide, torch.expm1(width) / torch.where(wide, width, 1.0), 1 + width)
        self.slope = torch.exp(low) * grow  # of the chord of exp over [low, high]
        self.chord_low = torch.exp(low)
        top = torch.exp(high)
        # Sums over j other than k and the reference, per k: [..., refs, K]; the reference itself counts 1.
        self.slope = self.slope.masked_fill(self.own, 0.0)
        others_low = self.chord_low.masked_fill(self.own, 0.0)
        others_high = top.masked_fill(self.own, 0.0)
        self.chord_at = (others_low + self.slope * (self.d - low)).masked_fill(self.own, 0.0)
        sums = []
        for part in (others_low, others_high, self.chord_at):
            sums.append(1 + (part[..., None, :].masked_fill(eye, 0.0)).sum(-1))
        s_low, s_high, s_at = sums
        s_at = s_at.clamp(min=underflow(at.dtype) ** 0.5)
        unit = torch.log(s_at)
        self.s_at, self.s_high = s_at, s_high
        self.where = Rectangle(self.d - unit, low - unit, high - unit, s_low / s_at, s_high / s_at)
        self.eye = eye

    def least(self, rate: Tensor, v: Tensor) -> Tensor:
        """The best of all references and slopes in s: ``[..., K]``."""
        best = torch.full_like(rate, -torch.inf)
        alpha = rate[..., None, :].expand(self.s_at.shape)
        # z - v = (y - y_at) - sum_j q_j (d_j - d_j_at) over j other than k and the reference.
        q = -self.directions[..., None, :, :].masked_fill(self.eye, 0.0)  # [..., refs?, K outputs, K]
        q = q.masked_fill(self.own[..., None, :], 0.0)
        deviation_low, deviation_high = (self.low - self.d)[..., None, :], (self.high - self.d)[..., None, :]
        slope = self.slope[..., None, :].masked_fill(self.eye, 0.0)
        for share in SHARES:
            in_units = (alpha * share).clamp(min=smallest_slope(alpha))
            gamma = in_units / self.s_at
            # p is above a plane in y and s; what is left of its slope in d_j is paid for at its worst.
            left = alpha[..., None] * q - gamma[..., None] * slope
            worst = torch.minimum(left * deviation_low, left * deviation_high).sum(-1)
            value = touching_value(self.where, alpha, in_units) + worst
            sizes = alpha * (self.low.abs() + self.high.abs()) + gamma * (self.s_at + self.s_high)
            sizes = sizes + (left.abs() * torch.maximum(deviation_low.abs(), deviation_high.abs())).sum(-1)
            value = value - ulps(_OPERATIONS, value.dtype) * (1 + sizes)
            value = torch.where(self.own | ~value.isfinite(), -torch.inf, value)
            best = torch.maximum(best, value.amax(-2))
        return best
