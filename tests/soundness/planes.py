"""Softmax planes against the truth: extended precision decides almost all cases, ball arithmetic the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, ctx

from softhull import BOUNDS, softmax_bounds, softmax_planes

from .exact import DIGITS, balls, softmax

Array = np.ndarray
LONG = np.longdouble
KINDS = ("typical", "narrow", "wide", "huge", "saturated", "mixed", "far", "point", "bend")


@dataclass
class Tally:
    """What was checked; ``wrong`` holds the first few violations, with all that is needed to repeat them."""

    checks: int = 0
    exact: int = 0  # of these, decided by ball arithmetic
    violations: int = 0
    wrong: list[str] | None = None

    def add(self, checks: int, exact: int, violations: int, description: str) -> None:
        self.checks += checks
        self.exact += exact
        self.violations += violations
        if violations:
            self.wrong = [*(self.wrong or []), description][:5]

    def merge(self, other: Tally) -> None:
        self.checks += other.checks
        self.exact += other.exact
        self.violations += other.violations
        self.wrong = [*(self.wrong or []), *(other.wrong or [])][:5]


def random_boxes(rng: np.random.Generator, kind: str, K: int, batch: int, dtype: str) -> tuple[Array, Array]:
    """Boxes of one kind, given in the format they are asked about in."""
    middle = rng.normal(0, 2, (batch, K))
    half = rng.uniform(0.3, 1.0, (batch, K))
    if kind == "narrow":
        half *= 10.0 ** rng.uniform(-12, -3, (batch, 1))
    elif kind == "wide":
        half *= 10.0 ** rng.uniform(0.5, 1.7, (batch, 1))
    elif kind == "huge":
        half *= 10.0 ** rng.uniform(1.7, 3, (batch, 1))
    elif kind == "saturated":
        middle[np.arange(batch), rng.integers(K, size=batch)] += 10.0 ** rng.uniform(1, 3, batch)
    elif kind == "mixed":
        half *= 10.0 ** rng.uniform(-9, 2.5, (batch, K))
    elif kind == "far":
        middle += 10.0 ** rng.uniform(2, 4, (batch, 1)) * rng.choice([-1, 1], (batch, 1))
    elif kind == "point":
        half *= rng.random((batch, K)) < 0.3
    elif kind == "bend":  # the log-odds of the first output start just where the sigmoid bends
        half *= 10.0 ** rng.uniform(-3, 1, (batch, 1))
        start = np.log(np.exp((middle + half)[:, 1:]).sum(-1)) - 10.0 ** rng.uniform(-9, 0, batch)
        middle[:, 0] = start + half[:, 0]
    lower, upper = (middle - half).astype(dtype), (middle + half).astype(dtype)
    return np.minimum(lower, upper), np.maximum(lower, upper)


def points_in(rng: np.random.Generator, lower: Array, upper: Array, at: Array, count: int) -> Array:
    """The anchor, random points, vertices and the extreme vertices of some outputs: ``[P, batch, K]``."""
    K = lower.shape[-1]
    found = [at]
    for i in range(count):
        share = rng.random(lower.shape)
        share = share if i % 3 == 0 else np.round(share)
        found.append(np.where(share == 1, upper, lower + (share * (upper - lower)).astype(lower.dtype)))
    for k in rng.permutation(K)[: min(K, 4)]:
        own = np.arange(K) == k
        found += [np.where(own, lower, upper), np.where(own, upper, lower)]
    return np.clip(np.stack(found), lower, upper)


def climb(rng: np.random.Generator, lower: Array, upper: Array, side: Any, A: Array, sign: float) -> Array:
    """For one random output per box a point where no single coordinate moved to an end or the middle is worse."""
    batch, K = lower.shape
    k = np.asarray(rng.integers(K, size=batch))
    value = np.take_along_axis(side.value, k[:, None], 1)[:, 0]
    row = A[np.arange(batch), k]
    x = np.where(rng.random(lower.shape) < 0.5, lower, upper)
    for j in rng.permutation(K):
        trials = np.stack([x, x, x])
        trials[..., j] = [lower[:, j], upper[:, j], lower[:, j] + (upper - lower)[:, j] / 2]
        plane = value + ((trials - side.at) * row).sum(-1)
        e = np.exp(trials - trials.max(-1, keepdims=True))
        p = np.take_along_axis(e, np.broadcast_to(k, trials.shape[:2])[..., None], -1)[..., 0] / e.sum(-1)
        best = (sign * (plane - p)).argmax(0)
        x = np.take_along_axis(trials, best[None, :, None], 0)[0]
    return np.clip(x, lower, upper)


def check_planes(
    rng: np.random.Generator, K: int, kind: str, dtype: str, rounding: str, batch: int, count: int
) -> Tally:
    """All bounds of the table on random boxes: planes at random anchors, and values at single points."""
    lower, upper = random_boxes(rng, kind, K, batch, dtype)
    at = None
    if rng.random() < 0.6:
        share = rng.random(lower.shape) if rng.random() < 0.7 else np.round(rng.random(lower.shape))
        at = np.clip(lower + share.astype(dtype) * (upper - lower), lower, upper)
    tally = Tally()
    for name in BOUNDS:
        if name == "lse2" and K != 2:
            continue
        planes = softmax_planes(lower, upper, name, at=at, rounding=rounding)
        anchor = (planes.lower or planes.upper).at
        points = points_in(rng, lower, upper, np.clip(anchor, lower, upper), count)
        for side, sign in ((planes.lower, 1), (planes.upper, -1)):
            if side is None:
                continue
            A, b = side.dense()
            every = np.concatenate([points, climb(rng, lower, upper, side, A, sign)[None]])
            what = f"{name} {kind} K={K} {dtype} {'lower' if sign > 0 else 'upper'}"
            tally.merge(compare(every, side.value, A, side.at, sign, what))
            tally.merge(compare(every[:2], b, A, np.zeros_like(side.at), sign, what + " dense"))
        x = points[rng.integers(len(points))]
        flat = np.zeros((batch, K, K))
        for value, sign in zip(softmax_bounds(x, lower, upper, name, rounding=rounding), (1, -1)):
            if value is not None:
                tally.merge(compare(x[None], value, flat, x, sign, f"{name} {kind} K={K} {dtype} function {sign}"))
    return tally


def compare(points: Array, value: Array, A: Array, at: Array, sign: int, what: str) -> Tally:
    """``sign * (value + A @ (x - at) - softmax(x)) <= 0`` at points ``[P, batch, K]`` for planes of ``[batch, K]``."""
    x = points.astype(LONG)
    step = x - at.astype(LONG)
    plane = value.astype(LONG) + np.einsum("bkj,pbj->pbk", A.astype(LONG), step)
    e = np.exp(x - x.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    size = np.abs(value) + np.einsum("bkj,pbj->pbk", np.abs(A).astype(LONG), np.abs(step)) + p
    reach = 2 + x.max(-1, keepdims=True) - x.min(-1, keepdims=True)
    error = 16 * np.finfo(LONG).eps * (x.shape[-1] + 8) * reach * size + LONG(1e-4000)
    excess = sign * (plane - p)
    bad = int((excess > error).sum())
    open_ = np.argwhere((np.abs(excess) <= error) | ~np.isfinite(excess))
    wrong = [tuple(map(int, i)) for i in np.argwhere(excess > error)[:1]]
    for place in open_:
        i, b, k = map(int, place)
        if _violated(points[i, b], value[b, k], A[b, k], at[b], k, sign):
            bad += 1
            wrong.append((i, b, k))
    tally = Tally()
    note = what
    if wrong:
        i, b, k = wrong[0]
        plane = f"value {value[b, k]!r} slopes {A[b, k].tolist()} at {at[b].tolist()}"
        note = f"{what} at {points[i, b].tolist()} output {k}: {plane}"
    tally.add(excess.size, len(open_), bad, note)
    return tally


def _violated(x: Array, value: float, row: Array, at: Array, k: int, sign: int) -> bool:
    before, ctx.dps = ctx.dps, DIGITS
    try:
        plane = arb(float(value)) + sum((a * (v - c) for a, v, c in zip(balls(row), balls(x), balls(at))), arb(0))
        gap = plane - softmax(balls(x))[k]
        return bool(gap > 0) if sign > 0 else bool(gap < 0)
    finally:
        ctx.dps = before
