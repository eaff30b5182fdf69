"""One table of boxes for all bounds: a new bound is tested on all of them, a new box against all bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from flint import arb, ctx

ctx.dps = 50

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """A batch of boxes; ``points`` draws inputs that may occur in them."""

    lower: Array
    upper: Array
    differences: tuple[Array, Array] | None = None
    draw: Callable[[np.random.Generator], Array] | None = None

    @property
    def size(self) -> int:
        return self.lower.shape[-1]

    def points(self, rng: np.random.Generator, count: int) -> list[Array]:
        if self.draw is not None:
            return [self.draw(rng) for _ in range(count)]
        found = []
        for i in range(count):
            share = rng.random(self.lower.shape)
            if i % 2:
                share = np.round(share)  # a vertex
            if i % 4 == 3:  # a vertex with most logits on one side: where the extrema are
                share = (rng.random(self.lower.shape) < rng.choice([0.1, 0.9])).astype(float)
            point = self.lower + share * (self.upper - self.lower)
            found.append(np.clip(np.where(share == 1, self.upper, point), self.lower, self.upper))
        return found


def _around(middle: Array, half: Array | float) -> Case:
    return Case(middle - half, middle + half)


def _random(K: int, scale: float, half: float, seed: int, batch: int = 3) -> Case:
    rng = np.random.default_rng(seed)
    middle = scale * rng.standard_normal((batch, K))
    return _around(middle, half * rng.uniform(0.4, 1.0, (batch, K)))


def _correlated(K: int, scale: float, seed: int) -> Case:
    """Inputs x = c + G z with z in a cube: exact difference bounds, tighter than the box gives."""
    rng = np.random.default_rng(seed)
    centre, G = 2 * rng.standard_normal(K), scale * rng.standard_normal((K, 4))
    reach = np.abs(G).sum(-1)
    between = np.abs(G[:, None, :] - G[None, :, :]).sum(-1)
    middle = centre[:, None] - centre[None, :]

    def draw(rng: np.random.Generator) -> Array:
        z = rng.uniform(-1, 1, 4)
        z = np.sign(z) if rng.random() < 0.6 else z
        return np.clip(centre + G @ z, centre - reach, centre + reach)

    return Case(centre - reach, centre + reach, (middle - between, middle + between), draw)


def _masked() -> Case:
    case = _random(5, 1.0, 1.0, 11)
    lower, upper = case.lower.copy(), case.upper.copy()
    lower[:, [1, 4]] = upper[:, [1, 4]] = -np.inf

    def draw(rng: np.random.Generator) -> Array:
        x = rng.uniform(case.lower, case.upper)
        x[:, [1, 4]] = -np.inf
        return x

    return Case(lower, upper, draw=draw)


def _degenerate() -> Case:
    case = _random(4, 1.0, 1.0, 12)
    return Case(
        np.concatenate([case.lower, case.lower]),
        np.concatenate([case.lower, case.upper * [1, 0, 0, 0] + case.lower * [0, 1, 1, 1]]),
    )


@cache
def boxes() -> dict[str, Case]:
    one_hot = np.array([[60.0, 0, 0, 0], [0, 0, 900.0, 0], [-60, -61, 0, -1e4]])
    return {
        "one logit": _random(1, 1.0, 1.0, 0),
        "two logits": _random(2, 2.0, 1.0, 1),
        "two wide logits": _random(2, 2.0, 40.0, 2),
        "three logits": _random(3, 1.0, 1.0, 3),
        "sixteen logits": _random(16, 1.0, 1.0, 4),
        "1024 logits": _random(1024, 1.0, 0.5, 5, batch=1),
        "half-width 1e-12": _random(4, 1.0, 1e-12, 6),
        "half-width 1e-6": _random(4, 1.0, 1e-6, 7),
        "half-width 1e-3": _random(4, 1.0, 1e-3, 8),
        "half-width 8": _random(4, 1.0, 8.0, 9),
        "half-width 40": _random(4, 1.0, 40.0, 10),
        "half-width 1000": _random(4, 1.0, 1000.0, 10),
        "mixed half-widths": _around(np.zeros((1, 4)), np.array([[1e-9, 1e-2, 3.0, 300.0]])),
        "logits of 1e4": _random(4, 1e4, 1.0, 13),
        "close logits of 1e4": _around(1e4 + np.random.default_rng(13).standard_normal((3, 4)), 0.7),
        "one-hot": _around(one_hot, 1.0),
        "one-hot, wide": _around(one_hot, 20.0),
        "ties": _around(np.zeros((1, 5)), 1.0),
        "degenerate": _degenerate(),
        "masked": _masked(),
        "differences": _correlated(4, 0.5, 14),
        "wide differences": _correlated(3, 3.0, 15),
        "regression: width 20": Case(np.array([[-20.0, 0.0], [-100.0, -100.0]]), np.array([[0.0, 20.0], [0.0, -40.0]])),
    }


def exact_softmax(x: Array) -> Array:
    """Softmax at 50 digits, as an object array of balls; -inf is a masked logit."""
    return _exact_softmax(x.astype(np.float64).tobytes(), x.shape)


@lru_cache(maxsize=4096)
def _exact_softmax(numbers: bytes, shape: tuple[int, ...]) -> Array:
    """One reference value for all bounds that are compared at the same point."""
    rows = []
    for row in np.frombuffer(numbers).reshape(-1, shape[-1]):
        top = max(float(v) for v in row)
        terms = [arb(0) if v == -np.inf else (arb(float(v)) - arb(top)).exp() for v in row]
        total = sum(terms, arb(0))
        rows.append([t / total for t in terms])
    return np.array(rows, dtype=object).reshape(shape)


def excess(value: Array, exact: Array) -> Array:
    """``value - exact`` without rounding the difference of nearly equal numbers away."""
    pairs = zip(np.asarray(value, dtype=np.float64).reshape(-1), exact.reshape(-1))
    return np.array([float((arb(float(v)) - p).mid()) for v, p in pairs]).reshape(exact.shape)
