"""Worst calibration errors against brute force, and all bounds against sampled choices."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from softhull.errors import InvalidInput
from softhull.verify.calibration import (
    Options,
    adaptive_error,
    auroc,
    auroc_bounds,
    bin_edges,
    brier_decomposition,
    calibration_error,
    classwise_error,
    find_bin,
    reliability_bands,
    round_up,
    worst_adaptive_error,
    worst_calibration_error,
    worst_classwise_error,
    worst_reliability,
)

UNIT = 64  # confidences of the brute force are multiples of 1 / UNIT


def random_options(rng: np.random.Generator, n: int, classes: int, edges: np.ndarray | None = None) -> Options:
    """Random options, some impossible, some a single point, ends often on an edge."""
    ends = np.sort(rng.integers(0, UNIT + 1, (2, n, classes)) / UNIT, axis=0)
    if edges is not None:
        on_edge = rng.random((2, n, classes)) < 0.2
        ends = np.sort(np.where(on_edge, rng.choice(edges, (2, n, classes)), ends), axis=0)
    low, high = ends
    high = np.where(rng.random((n, classes)) < 0.3, low, high)
    gone = rng.random((n, classes)) < 0.4
    gone[np.arange(n), rng.integers(0, classes, n)] = False
    low, high = np.where(gone, 1.0, low), np.where(gone, 0.0, high)
    return Options(low, high, rng.random((n, classes)) < 0.5)


def choices(options: Options, i: int, edges: np.ndarray) -> list[tuple[int, int]]:
    """(bin, gap in units) of the ends of everything sample i may choose: an error is convex between them."""
    found = set()
    for low, high, correct in zip(options.low[i], options.high[i], options.correct[i]):
        for b, (below, above) in enumerate(pairwise(edges)):
            if low <= high and low <= above and (high > below or (b == 0 and high >= below)):
                for end in (max(low, below), min(high, above)):
                    found.add((b, int((float(correct) - end) * UNIT)))
    return sorted(found)


def brute_force(options: Options, edges: np.ndarray) -> Fraction:
    """The largest error over the product of all choices, in whole numbers."""
    base = 4 * UNIT * len(options)  # sums of all bins as the digits of one number
    sums = np.zeros(1, dtype=np.int64)
    for i in range(len(options)):
        steps = np.array([gap * base**b for b, gap in choices(options, i, edges)])
        sums = np.unique(sums[:, None] + steps)
    total = np.zeros_like(sums)
    for _ in range(len(edges) - 1):
        digit = (sums + base // 2) % base - base // 2
        total, sums = total + np.abs(digit), (sums - digit) // base
    return Fraction(int(total.max()), UNIT * len(options))


def exact_error(confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> Fraction:
    """The calibration error by its definition, in fractions."""
    sums: dict[int, Fraction] = {}
    for b, c, right in zip(find_bin(confidence, edges).tolist(), confidence.tolist(), correct.tolist()):
        sums[b] = sums.get(b, Fraction(0)) + int(right) - Fraction(c)
    return sum(map(abs, sums.values()), Fraction(0)) / len(confidence)


def test_sign_enumeration_equals_brute_force() -> None:
    rng = np.random.default_rng(1)
    for _ in range(400):
        bins = int(rng.integers(1, 5))
        inner = np.sort(rng.choice(np.arange(1, UNIT), bins - 1, replace=False)) / UNIT
        edges = np.array([0.0, *inner, 1.0])
        options = random_options(rng, int(rng.integers(1, 9)), int(rng.integers(1, 4)), edges)
        assert worst_calibration_error(options, edges).exact == brute_force(options, edges)


def test_plain_product_of_choices_agrees() -> None:
    """The brute force itself merges equal sums; here nothing is merged."""
    rng = np.random.default_rng(2)
    edges = np.array([0.0, 0.25, 0.75, 1.0])
    for _ in range(20):
        options = random_options(rng, 3, 2, edges)
        best = 0
        for chosen in product(*(choices(options, i, edges) for i in range(3))):
            sums = [sum(gap for bin_, gap in chosen if bin_ == b) for b in range(3)]
            best = max(best, sum(map(abs, sums)))
        assert Fraction(best, 3 * UNIT) == brute_force(options, edges)


def test_confidences_on_an_edge_belong_to_the_bin_below() -> None:
    edges = np.array([0.0, 0.5, 1.0])
    assert find_bin(np.array([0.0, 0.5, np.nextafter(0.5, 1), 1.0]), edges).tolist() == [0, 0, 1, 1]
    # Together in the lower bin the two gaps cancel; a range that begins on the edge reaches the upper bin, too.
    low, correct = np.array([[0.5], [0.5]]), np.array([[True], [False]])
    assert worst_calibration_error(Options(low, low, correct), edges).value == 0
    high = np.array([[0.5], [0.5 + 2.0**-40]])
    assert worst_calibration_error(Options(low, high, correct), edges).exact == Fraction(1, 2) + Fraction(1, 2**41)


def test_signs_are_those_of_the_sums() -> None:
    edges = np.array([0.0, 0.5, 1.0])
    options = Options.points(np.array([0.4, 0.9, 0.8]), np.array([True, False, False]))
    found = worst_calibration_error(options, edges)
    assert found.signs.tolist() == [1, -1]
    assert found.exact == (1 - Fraction(0.4) + Fraction(0.9) + Fraction(0.8)) / 3


def test_sampled_choices_stay_within_all_bounds() -> None:
    """More than 10,000 random ranges in 700 data sets, one random choice in each."""
    rng = np.random.default_rng(3)
    ranges = 0
    for _ in range(700):
        n, classes, bins = int(rng.integers(1, 15)), int(rng.integers(2, 5)), int(rng.integers(1, 6))
        edges = bin_edges(bins)
        options = random_options(rng, n, classes, edges)
        ranges += int(options.possible.sum())
        chosen = ((rng.random((n, classes)) + 0.1) * options.possible).argmax(1)
        low, high = (end[np.arange(n), chosen] for end in (options.low, options.high))
        confidence = np.clip(low + rng.choice([0.0, 0.5, 1.0, rng.random()]) * (high - low), low, high)
        correct = options.correct[np.arange(n), chosen]
        assert exact_error(confidence, correct, edges) <= worst_calibration_error(options, edges).value
        assert calibration_error(confidence, correct, edges) == pytest.approx(exact_error(confidence, correct, edges))
        mass = np.quantile(confidence, np.linspace(0, 1, bins + 1)[1:-1])  # bins of any kind, these of equal mass
        cut = np.array([0.0, *np.unique(mass[(mass > 0) & (mass < 1)]), 1.0])
        assert exact_error(confidence, correct, cut) <= worst_adaptive_error(options)
        assert adaptive_error(confidence, correct, bins) <= worst_adaptive_error(options) + 2.0**-50
        assert brier_decomposition(confidence, correct, edges)["reliability"] <= worst_reliability(options, edges)
        bands, where = reliability_bands(options, edges), find_bin(confidence, edges)
        for b in np.unique(where):
            here = where == b
            assert bands.count[0][b] <= here.sum() <= bands.count[1][b]
            assert bands.accuracy[0][b] <= correct[here].mean() <= bands.accuracy[1][b]
            assert bands.gap[0][b] <= (correct - confidence)[here].mean() <= bands.gap[1][b]
        other = np.sort(rng.random((2, 5)), axis=0)
        ends = np.where(options.possible, options.low, 1).min(1), np.where(options.possible, options.high, 0).max(1)
        least, most = auroc_bounds(ends[0], ends[1], other[0], other[1])
        outside = other[0] + rng.random(5) * (other[1] - other[0])
        assert least <= auroc(confidence, outside) <= most
    assert ranges > 10_000


def test_reliability_bands_are_attained() -> None:
    rng = np.random.default_rng(4)
    edges = np.array([0.0, 0.25, 0.5, 1.0])
    for _ in range(40):
        options = random_options(rng, 4, 2, edges)
        bands = reliability_bands(options, edges)
        chosen = list(product(*(_choices_with_class(options, i, edges) for i in range(4))))
        for b in range(3):
            inside = [[(right, gap) for bin_, right, gap in choice if bin_ == b] for choice in chosen]
            inside = [own for own in inside if own]
            for place, (low, high) in enumerate((bands.accuracy, bands.gap)):
                means = [np.mean([own[place] for own in sample]) for sample in inside]
                if means:
                    assert low[b] == pytest.approx(min(means), abs=1e-12)
                    assert high[b] == pytest.approx(max(means), abs=1e-12)
                else:
                    assert np.isnan(low[b])
                    assert np.isnan(high[b])


def _choices_with_class(options: Options, i: int, edges: np.ndarray) -> list[tuple[int, float, float]]:
    found = set()
    for c in np.flatnonzero(options.possible[i]):
        alone = Options(*(part[i : i + 1, c : c + 1] for part in (options.low, options.high, options.correct)))
        found |= {(b, float(options.correct[i, c]), gap / UNIT) for b, gap in choices(alone, 0, edges)}
    return sorted(found)


def test_classwise_error_bounds_random_distributions() -> None:
    rng = np.random.default_rng(5)
    edges = bin_edges(5)
    for _ in range(60):
        p = rng.dirichlet(np.full(4, 0.5), 6)
        labels = rng.integers(0, 4, 6)
        width = rng.random((6, 4)) * 0.2
        bound = worst_classwise_error(np.maximum(p - width, 0), np.minimum(p + width, 1), labels, edges)
        assert classwise_error(p, labels, edges) <= bound + 1e-15
        exact = worst_classwise_error(p, p, labels, edges)
        assert classwise_error(p, labels, edges) == pytest.approx(exact, abs=1e-12)


def test_brier_parts_add_up_and_vanish_where_they_should() -> None:
    rng = np.random.default_rng(6)
    confidence, correct = rng.random(50), rng.random(50) < 0.7
    parts = brier_decomposition(confidence, correct, bin_edges())
    total = parts["reliability"] - parts["resolution"] + parts["uncertainty"] + parts["within"]
    assert total == pytest.approx(((confidence - correct) ** 2).mean(), abs=1e-12)
    level = brier_decomposition(np.full(10, 0.3), np.arange(10) < 3, bin_edges())
    assert level["reliability"] == pytest.approx(0, abs=1e-30)
    assert level["within"] == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_auroc_needs_samples_on_both_sides(sizes: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        auroc(np.ones(sizes[0]), np.ones(sizes[1]))


def test_auroc_counts_pairs() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        inside, outside = rng.integers(0, 5, 6) / 5, rng.integers(0, 5, 4) / 5
        pairs = [(a > b) + (a == b) * 0.5 for a in inside for b in outside]
        assert auroc(inside, outside) == Fraction(sum(pairs)) / 24


def test_rounding_up_is_tight() -> None:
    third = Fraction(1, 3)
    assert Fraction(round_up(third)) >= third > Fraction(float(np.nextafter(round_up(third), 0)))


@pytest.mark.parametrize(
    "options",
    [
        (np.array([[0.6]]), np.array([[0.5]]), np.array([[True]])),
        (np.array([[0.1]]), np.array([[1.5]]), np.array([[True]])),
        (np.array([[np.nan]]), np.array([[0.5]]), np.array([[True]])),
        (np.array([[0.1]]), np.array([[0.5]]), np.array([True])),
    ],
)
def test_options_are_checked(options: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    with pytest.raises(InvalidInput):
        Options(*options)


def test_bins_are_checked() -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        bin_edges(0)
    with pytest.raises(InvalidInput, match="rise from 0 to 1"):
        bin_edges([0, 0.5, 0.5, 1])
    many = Options(np.zeros((1, 1)), np.ones((1, 1)), np.array([[True]]))
    with pytest.raises(InvalidInput, match="at most 24"):
        worst_calibration_error(many, bin_edges(30))
