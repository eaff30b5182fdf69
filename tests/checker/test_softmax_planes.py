"""Planes of the checker lie on their side of softmax, whatever their parameters; ranges contain it."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb

from softhull.certificates.planes import best_lower, best_upper, centre
from softhull.checker.balls import ONE, ZERO, Floats, exact
from softhull.checker.session import exactly
from softhull.checker.softmax_planes import Logits, NotAPlane, lower_plane, upper_plane

SCALES = (1e-9, 1e-3, 0.3, 2.0, 30.0)


def random_logits(rng: np.random.Generator, K: int, scale: float) -> tuple[Logits, Floats]:
    """Boxes with difference bounds and points that satisfy both."""
    middle = rng.normal(0, 3, K)
    low, high = middle - scale * rng.random(K), middle + scale * rng.random(K)
    if rng.random() < 0.2:
        low[0] = high[0] = middle[0]
    share = rng.choice([0.0, 1.0, 0.5], (40, K)) if rng.random() < 0.5 else rng.random((40, K))
    points = np.clip(low + share * (high - low), low, high)
    spread = points[:, :, None] - points[:, None, :]
    # The differences at the points themselves: as tight as they may be.
    apart = np.minimum(spread.min(0), 0 if rng.random() < 0.5 else np.inf)
    apart = np.maximum(np.nextafter(apart, -np.inf), (low[:, None] - high[None, :]) * (1 + 1e-15) - 1e-15)
    apart -= 1e-14 * (1 + np.abs(apart))
    np.fill_diagonal(apart, 0)
    return Logits(low, high, apart), points


def probability(point: Floats, k: int) -> arb:
    return ONE / sum(((arb(float(v)) - arb(float(point[k]))).exp() for v in point), start=ZERO)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("K", [2, 3, 5])
@exactly
def test_planes_lie_on_their_side(K: int, scale: float) -> None:
    rng = np.random.default_rng([K, int(scale * 1e9)])
    tried = 0
    for _ in range(12):
        x, points = random_logits(rng, K, scale)
        k = int(rng.integers(K))
        at = centre(x) if rng.random() < 0.5 else points[0]
        lower = [best_lower(x, k, at)]
        upper = [best_upper(x, k, at)]
        for _ in range(4):
            J = int(rng.integers(-1, K))
            theta = 0.0 if J < 0 else float(rng.choice([0.0, 1.0, rng.random()]))
            alpha = float(rng.choice([0.0, 0.25, 0.25 * rng.random(), 1e-12]))
            lower.append((float(J), theta, alpha, float(10 ** rng.uniform(-6, 6))))
            upper.append(rng.random(K) * 10 ** rng.uniform(-6, 0))
        for (J_, theta, alpha, gamma), pulls in zip(lower, upper):
            below, low_offset = lower_plane(x, k, int(J_), theta, alpha, gamma)
            above, high_offset = upper_plane(x, k, pulls)
            for point in points[:10]:
                p, here = probability(point, k), exact(point)
                assert not (below * here).sum() + low_offset > p
                assert not (above * here).sum() + high_offset < p
                tried += 1
    assert tried


@exactly
def test_ranges_contain_the_probabilities() -> None:
    rng = np.random.default_rng(3)
    for scale in SCALES:
        for _ in range(20):
            x, points = random_logits(rng, 4, scale)
            for k in range(4):
                low, high = x.probability(k)
                assert all(low <= float(probability(point, k).upper()) for point in points)
                assert all(high >= float(probability(point, k).lower()) for point in points)


@exactly
def test_best_planes_touch() -> None:
    """Where the range is a point in all but name, both planes meet the probability."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        x, points = random_logits(rng, 3, 1e-6)
        at = points[0]
        for k in range(3):
            p = float(probability(at, k))
            for slope, offset in (
                lower_plane(x, k, *_whole(best_lower(x, k, at))),
                upper_plane(x, k, best_upper(x, k, at)),
            ):
                assert abs(float((slope * exact(at)).sum() + offset) - p) < 1e-5


def _whole(found: tuple[float, float, float, float]) -> tuple[int, float, float, float]:
    return int(found[0]), *found[1:]


@pytest.mark.parametrize(
    "wrong",
    [
        (-2, 0.0, 0.1, 1.0),
        (3, 1.0, 0.1, 1.0),
        (0, 1.5, 0.1, 1.0),
        (0, -0.1, 0.1, 1.0),
        (0, 1.0, 0.3, 1.0),
        (0, 1.0, 0.1, 0.0),
        (-1, 0.5, 0.1, 1.0),
        (0, float("nan"), 0.1, 1.0),
        (0, 1.0, 0.1, float("nan")),
    ],
)
@exactly
def test_parameters_out_of_range(wrong: tuple[int, float, float, float]) -> None:
    x, _ = random_logits(np.random.default_rng(0), 3, 1.0)
    with pytest.raises(NotAPlane):
        lower_plane(x, 0, *wrong)
    with pytest.raises(NotAPlane):
        upper_plane(x, 0, np.array([0.0, -1e-3, 0.1]))
    with pytest.raises(NotAPlane):
        upper_plane(x, 0, np.array([0.0, np.nan, 0.1]))
