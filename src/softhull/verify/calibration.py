"""What ranges of confidences say about a whole data set: worst calibration error, reliability bands, AUROC.

Arrays in, numbers out; no network is evaluated here. An *option* of a sample is one way its prediction may turn out: a
closed range of confidences and whether the prediction is then correct. A sample has one option for every class that can
come out on top, and chooses one option and one confidence within its range.

Bins are ``(e_0, e_1], (e_1, e_2], ...``, the first one with its lower end; the edges are the floating-point numbers
given, taken as exact. Sums are done in whole numbers: a confidence is first rounded outward to a multiple of ``2^-m``
with m of up to 53, so that the sum over all samples fits 64 bits. Nothing is lost after that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from ..errors import InvalidInput
from ..graph.rounding import ulps

BINS = 15
MOST_BINS = 24  # with reachable confidences: all patterns of signs are enumerated
_NEVER = -(1 << 62)


@dataclass(frozen=True)
class Options:
    """Options ``[n, C]``: confidences from ``low`` to ``high``, ``correct`` or not; ``low > high`` is no option."""

    low: np.ndarray
    high: np.ndarray
    correct: np.ndarray

    def __post_init__(self) -> None:
        if not (self.low.shape == self.high.shape == self.correct.shape and self.low.ndim == 2):
            raise InvalidInput(f"options of shapes {self.low.shape}, {self.high.shape}, {self.correct.shape}")
        if np.isnan(self.low).any() or np.isnan(self.high).any():
            raise InvalidInput("a confidence is not a number")
        if not self.possible.any(1).all():
            raise InvalidInput(f"sample {int(self.possible.any(1).argmin())} has no option")
        inside = (self.low >= 0) & (self.high <= 1)
        if not inside[self.possible].all():
            raise InvalidInput("confidences must be from 0 to 1")

    @property
    def possible(self) -> np.ndarray:
        """Which options have any confidence in their range."""
        return np.asarray(self.low <= self.high)

    def __len__(self) -> int:
        return len(self.low)

    @staticmethod
    def points(confidence: np.ndarray, correct: np.ndarray) -> Options:
        """Samples without a choice: confidences ``[n]`` that are what they are."""
        return Options(confidence[:, None], confidence[:, None], np.asarray(correct, dtype=bool)[:, None])


@dataclass(frozen=True)
class WorstError:
    """A calibration error that no choice of options exceeds, rounded up, and the signs of the bins that reach it.

    ``signs [B]``: 1 where the accuracy of the bin is above its confidence, -1 where it is below, 0 where the bin cannot
    be reached. ``exact`` is the least such number, up to the rounding of confidences to the grid.
    """

    value: float
    signs: np.ndarray
    exact: Fraction


def bin_edges(bins: int | Any = BINS) -> np.ndarray:
    """Edges ``[B + 1]`` from 0 to 1: of so many bins of equal width, or the ones given, checked."""
    if isinstance(bins, int):
        if bins < 1:
            raise InvalidInput(f"bins must be at least 1, got {bins}")
        return np.linspace(0.0, 1.0, bins + 1)
    edges = np.asarray(bins, dtype=np.float64)
    if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or edges[-1] != 1 or not (np.diff(edges) > 0).all():
        raise InvalidInput("bin edges must rise from 0 to 1")
    return edges


def find_bin(confidence: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bin of every confidence; an edge belongs to the bin below it, 0 to the first."""
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)


def calibration_error(confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> float:
    """The expected calibration error of confidences ``[n]``: ``(1/n) sum_b |sum in bin b of correct - confidence|``."""
    bins = find_bin(confidence, edges)
    gap = np.asarray(correct, dtype=np.float64) - confidence
    return math.fsum(abs(math.fsum(gap[bins == b])) for b in np.unique(bins)) / len(gap)


def worst_calibration_error(options: Options, edges: np.ndarray) -> WorstError:
    """The largest expected calibration error over everything the samples may choose, exactly.

    With the signs s_b of the sums of all bins fixed, every sample chooses for itself what adds most to ``sum_i s_b(i)
    (correct_i - confidence_i)``; the maximum over all sign patterns is the answer. Where a range begins below a bin,
    the bin's lower end is approached and not reached: the value is then a supremum.
    """
    gain, bits = _gains(options, edges)
    used = (gain[:, :, 0] > _NEVER).any(0)
    total, signs = _best_signs(gain[:, used])
    pattern = np.zeros(len(edges) - 1, dtype=np.int64)
    pattern[used] = signs
    exact = Fraction(total, len(options) << bits)
    return WorstError(round_up(exact), pattern, exact)


def worst_choice(options: Options, signs: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The confidences ``[n]`` that add most under the signs of ``worst_calibration_error``, and which are correct.

    Where the lower end of a bin is approached and not reached, it is that end.
    """
    reach = _reach(options, edges)
    low, high = np.maximum(options.low[:, :, None], edges[:-1]), np.minimum(options.high[:, :, None], edges[1:])
    confidence = np.where(signs > 0, low, high)
    gain = np.where(reach, signs * (options.correct[:, :, None] - confidence), -np.inf).reshape(len(options), -1)
    best = gain.argmax(1)
    option = best // (len(edges) - 1)
    rows = np.arange(len(options))
    return confidence.reshape(len(options), -1)[rows, best], options.correct[rows, option]


def worst_classwise_error(least: np.ndarray, most: np.ndarray, labels: np.ndarray, edges: np.ndarray) -> float:
    """A bound on the class-wise calibration error: the mean over classes of the error of ``p_k`` against ``y = k``.

    Ranges ``[n, K]``. Exact for every class alone; safe, not exact, for their mean: one choice of input per sample
    decides about all classes at once.
    """
    found = [
        worst_calibration_error(Options(least[:, [k]], most[:, [k]], labels[:, None] == k), edges).exact
        for k in range(least.shape[1])
    ]
    return round_up(sum(found, Fraction(0)) / len(found))


def classwise_error(p: np.ndarray, labels: np.ndarray, edges: np.ndarray) -> float:
    """The class-wise calibration error of distributions ``[n, K]``."""
    return math.fsum(calibration_error(p[:, k], labels == k, edges) for k in range(p.shape[1])) / p.shape[1]


def worst_adaptive_error(options: Options) -> float:
    """A bound on the calibration error for bins of any kind, those of equal mass included.

    Safe, not exact: a bin can add no more than its samples would alone, ``mean_i max |correct_i - confidence_i|``.
    """
    gain, bits = _gains(options, np.array([0.0, 1.0]))
    return round_up(Fraction(int(gain.max((1, 2)).sum()), len(options) << bits))


def adaptive_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """The calibration error with bins of equal mass: the sorted confidences in ``bins`` parts."""
    gap = (np.asarray(correct, dtype=np.float64) - confidence)[np.argsort(confidence, kind="stable")]
    return math.fsum(abs(math.fsum(part)) for part in np.array_split(gap, bins)) / len(gap)


@dataclass(frozen=True)
class Bands:
    """For every bin the range of what may be found in it; NaN where nothing ever is.

    ``count``: samples; ``accuracy``: their share of correct ones; ``gap``: mean of correct less confidence. Each is a
    pair of arrays ``[B]``, and each end is found with a choice of its own.
    """

    count: tuple[np.ndarray, np.ndarray]
    accuracy: tuple[np.ndarray, np.ndarray]
    gap: tuple[np.ndarray, np.ndarray]


def reliability_bands(options: Options, edges: np.ndarray) -> Bands:
    """The certified bands of a reliability diagram, over all choices for which a bin is not empty."""
    reach = _reach(options, edges)
    here = reach.any(1)
    fixed = here & (here.sum(1) == 1)[:, None]
    free = here & ~fixed
    right = (reach & options.correct[:, :, None]).any(1)
    wrong = (reach & ~options.correct[:, :, None]).any(1)
    gain, bits = _gains(options, edges)
    ends: dict[str, list[float]] = {name: [] for name in ("most right", "least right", "highest", "lowest")}
    for b in range(len(edges) - 1):
        ends["most right"].append(_best_mean(right[fixed[:, b], b] * 1.0, right[free[:, b], b] * 1.0))
        ends["least right"].append(1 - _best_mean(wrong[fixed[:, b], b] * 1.0, wrong[free[:, b], b] * 1.0))
        above, below = (np.ldexp(gain[:, b, sign].astype(np.float64), -bits) for sign in (0, 1))
        ends["highest"].append(_best_mean(above[fixed[:, b]], above[free[:, b]]))
        ends["lowest"].append(-_best_mean(below[fixed[:, b]], below[free[:, b]]))
    # A mean of n numbers of at most 1 is off by n units at most.
    lost = ulps(len(options) + 4, torch.float64)
    return Bands(
        (fixed.sum(0), here.sum(0)),
        (np.maximum(np.array(ends["least right"]) - lost, 0), np.minimum(np.array(ends["most right"]) + lost, 1)),
        (np.array(ends["lowest"]) - lost, np.array(ends["highest"]) + lost),
    )


def _best_mean(fixed: np.ndarray, free: np.ndarray) -> float:
    """The largest mean of all fixed numbers and any of the free ones; NaN when there are none."""
    numbers = np.concatenate((fixed, -np.sort(-free)))
    if not len(numbers):
        return math.nan
    means = np.cumsum(numbers) / np.arange(1, len(numbers) + 1)
    return float(means[max(len(fixed) - 1, 0) :].max())


def brier_decomposition(confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> dict[str, float]:
    """Murphy's parts of the mean of ``(confidence - correct)^2``: reliability - resolution + uncertainty + within.

    ``within`` is what bins hide: the variance of confidences inside a bin less twice their covariance with being
    correct. It is zero when all confidences of a bin are equal.
    """
    correct = np.asarray(correct, dtype=np.float64)
    bins, mean = find_bin(confidence, edges), float(correct.mean())
    reliability = resolution = 0.0
    for b in np.unique(bins):
        here = bins == b
        share, accuracy = float(here.mean()), float(correct[here].mean())
        reliability += share * (float(confidence[here].mean()) - accuracy) ** 2
        resolution += share * (accuracy - mean) ** 2
    uncertainty = mean * (1 - mean)
    whole = float(((confidence - correct) ** 2).mean())
    within = whole - (reliability - resolution + uncertainty)
    return {"reliability": reliability, "resolution": resolution, "uncertainty": uncertainty, "within": within}


def worst_reliability(options: Options, edges: np.ndarray) -> float:
    """A bound on the reliability part: the smaller of two safe ones.

    A gap is at most 1, so its square is at most itself, and the squared mean of a bin is at most the mean of squares.
    """
    widest = np.where(options.correct, 1 - options.low, options.high)
    squares = (np.where(options.possible, widest, 0.0).max(1) * (1 + 2.0**-50)) ** 2  # three operations, rounded up
    mean = round_up(sum(map(Fraction, squares.tolist()), Fraction(0)) / len(squares))
    return min(worst_calibration_error(options, edges).value, mean)


def auroc(inside: np.ndarray, outside: np.ndarray) -> Fraction:
    """The share of pairs in which the first is larger, ties counting half: the area under the ROC curve, exactly."""
    if not (len(inside) and len(outside)):
        raise InvalidInput("AUROC compares two groups of samples; one of them is empty")
    ranked = np.sort(outside)
    below = np.searchsorted(ranked, inside, side="left")
    not_above = np.searchsorted(ranked, inside, side="right")
    return Fraction(int(below.sum() + not_above.sum()), 2 * len(inside) * len(outside))


def auroc_bounds(
    inside_least: np.ndarray, inside_most: np.ndarray, outside_least: np.ndarray, outside_most: np.ndarray
) -> tuple[float, float]:
    """The range of the AUROC of a score within ranges, ``inside`` meant to be higher than ``outside``, exactly.

    The area grows with every inside score and falls with every outside one, so each end takes one end of each range.
    """
    for low, high in ((inside_least, inside_most), (outside_least, outside_most)):
        if low.ndim != 1 or low.shape != high.shape or not len(low) or not (low <= high).all():
            raise InvalidInput("AUROC needs one range of scores for every sample, and at least one sample on each side")
    return -round_up(-auroc(inside_least, outside_most)), round_up(auroc(inside_most, outside_least))


def round_up(exact: Fraction) -> float:
    """The smallest floating-point number that is at least this."""
    near = float(exact)
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)


def _reach(options: Options, edges: np.ndarray) -> np.ndarray:
    """Which bins ``[n, C, B]`` an option can fall into."""
    low, high = options.low[:, :, None], options.high[:, :, None]
    above = high > edges[:-1]
    above[:, :, 0] |= options.high >= edges[0]
    return np.asarray(above & (low <= edges[1:]) & options.possible[:, :, None])


def _gains(options: Options, edges: np.ndarray) -> tuple[np.ndarray, int]:
    """What a sample adds at most to a bin ``[n, B, 2]`` whose sign is + or -, in units of ``2^-bits``."""
    bits = min(53, 61 - len(options).bit_length())
    reach, one = _reach(options, edges), 1 << bits
    least = np.floor(np.ldexp(np.maximum(options.low[:, :, None], edges[:-1]), bits))
    most = np.ceil(np.ldexp(np.minimum(options.high[:, :, None], edges[1:]), bits))
    unit = one * options.correct[:, :, None].astype(np.int64)
    above = np.where(reach, unit - np.where(reach, least, 0).astype(np.int64), _NEVER)
    below = np.where(reach, np.where(reach, most, 0).astype(np.int64) - unit, _NEVER)
    return np.stack((above.max(1), below.max(1)), 2), bits


def _best_signs(gain: np.ndarray) -> tuple[int, np.ndarray]:
    """The maximum over all sign patterns of ``sum_i max_b gain[i, b, s_b]``, and the signs.

    The bins are cut in two halves: what a sample gets from either depends on the signs of that half alone.
    """
    count = gain.shape[1]
    if count > MOST_BINS:
        raise InvalidInput(f"{count} bins can be reached; signs are enumerated for at most {MOST_BINS}")
    first, second = _half(gain[:, : count // 2]), _half(gain[:, count // 2 :])
    best, where = _NEVER, (0, 0)
    for position, row in enumerate(second):
        totals = np.maximum(first, row).sum(1)
        top = int(totals.argmax())
        if int(totals[top]) > best:
            best, where = int(totals[top]), (top, position)
    patterns = ((where[0], count // 2), (where[1], count - count // 2))
    bits = [(pattern >> b) & 1 for pattern, length in patterns for b in range(length)]
    return best, 1 - 2 * np.array(bits, dtype=np.int64)


def _half(gain: np.ndarray) -> np.ndarray:
    """``[2^b, n]``: the best a sample gets from these bins under every pattern; bit j set means a - for bin j."""
    found = np.full((1, len(gain)), _NEVER)
    for b in range(gain.shape[1]):
        found = np.concatenate([np.maximum(found, gain[:, b, sign]) for sign in (0, 1)])
    return found
