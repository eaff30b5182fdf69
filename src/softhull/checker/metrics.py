"""What ranges of probabilities say about a whole data set, in exact arithmetic.

Numbers of certificates and edges of bins are rational; sums and means of them are done in rational or whole numbers,
logarithms in balls. Every metric is rounded outward once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

from flint import arb

from .balls import round_up
from .certificate import Refused
from .ranges import LARGEST_BRIER

MOST_BINS = 24
MOST_PATTERNS = 1 << 20  # of signs that are looked at: bounds the time
GRID = 1 << 64  # gaps are rounded outward to multiples of 1 / GRID before they are added up

# Metrics that are bad when low: no input falls below them. All others are bad when high.
LOWEST = ("accuracy", "confidence_low")


@dataclass(frozen=True)
class Option:
    """One way the prediction of a sample may turn out: a range of confidences, and whether it is then correct."""

    low: Fraction
    high: Fraction
    correct: bool


@dataclass(frozen=True)
class Sample:
    """What is proved of one input: ``least <= p <= most``, which classes may be on top, the largest Brier score."""

    label: int
    least: Sequence[float]
    most: Sequence[float]
    on_top: Sequence[bool]
    brier: float

    @staticmethod
    def of(property: Mapping[str, Any]) -> Sample:
        """From the property that a certificate has proved."""
        on_top = [ahead < 0 for ahead in property["ahead"]]
        return Sample(
            property["label"], property["least"], property["most"], on_top, min(property["brier"], LARGEST_BRIER)
        )

    @staticmethod
    def unknown(label: int, classes: int) -> Sample:
        """A sample of which nothing is proved."""
        return Sample(label, [0.0] * classes, [1.0] * classes, [True] * classes, LARGEST_BRIER)

    @cached_property
    def options(self) -> list[Option]:
        """One range of confidences for every class that may be on top.

        Theorem: the largest probability t is at least every lower end, and for every m, as probabilities add up to 1,
        ``1 <= (sum of the m smallest upper ends) + (K - m) t``.
        """
        level = max(map(Fraction, self.least))
        capped, K = Fraction(0), len(self.most)
        for m, end in enumerate(sorted(map(Fraction, self.most))):
            level = max(level, (1 - capped) / (K - m))
            capped += end
        ends = [(Fraction(end), k == self.label) for k, end in enumerate(self.most) if self.on_top[k]]
        found = [Option(level, end, correct) for end, correct in ends if level <= end]
        if not found:
            raise Refused("no class of a sample can be on top")
        return found


def metrics_of(samples: Sequence[Sample], edges: Sequence[float]) -> dict[str, float]:
    """Bounds on the metrics of a data set that follow from what is proved of its samples.

    Theorem: each sample is perturbed on its own, so the worst mean is the mean of the worst; a sample is certainly
    correct if no class but its label may be on top.
    """
    n = len(samples)
    nll = [arb.pos_inf() if not s.least[s.label] > 0 else -arb(s.least[s.label]).log() for s in samples]
    brier = [Fraction(s.brier) for s in samples]
    right = sum(all(option.correct for option in s.options) for s in samples)
    low = sum((min(option.low for option in s.options) for s in samples), Fraction(0))
    high = sum((max(option.high for option in s.options) for s in samples), Fraction(0))
    total, worst = arb(0), arb(0)
    for each in nll:
        total, worst = total + each, worst.max(each)
    return {
        "accuracy": below(Fraction(right, n)),
        "nll": round_up(total / n),
        "nll_worst": round_up(worst),
        "brier": above(sum(brier, Fraction(0)) / n),
        "brier_worst": above(max(brier)),
        "confidence_low": below(low / n),
        "confidence_high": above(high / n),
        "ece": above(Fraction(worst_sum([gains(s, edges) for s in samples]), n * GRID)),
    }


def gains(sample: Sample, edges: Sequence[float]) -> dict[int, tuple[int, int]]:
    """What a sample adds at most to a bin within its reach if the sign of the bin is + or -, in units of 1 / GRID.

    Bins are ``(e_0, e_1], (e_1, e_2], ...``, the first one with its lower end. With + a sample adds ``correct - q``,
    which is largest for the lowest confidence q in the bin (or approached there), with - it adds ``q - correct``.
    """
    found: dict[int, tuple[int, int]] = {}
    ends = list(map(Fraction, edges))
    for option in sample.options:
        for b, (left, right) in enumerate(pairwise(ends)):
            if (option.high > left or (b == 0 and option.high == left)) and option.low <= right:
                plus = math.ceil((option.correct - max(option.low, left)) * GRID)
                minus = math.ceil((min(option.high, right) - option.correct) * GRID)
                before = found.get(b, (plus, minus))
                found[b] = max(before[0], plus), max(before[1], minus)
    return found


def worst_sum(gained: Sequence[Mapping[int, tuple[int, int]]]) -> int:
    """The largest ``sum over bins of |sum of gaps in the bin|`` that samples with these gains can reach together.

    Theorem: ``|a| = max over signs of s a``; with the signs of all bins fixed every sample chooses for itself, so the
    answer is the maximum over all signs of ``sum_i max_b gain[i, b, s_b]``. Signs are fixed bin after bin. Whatever the
    signs still open, a sample gets no more than the best of its fixed bins and, under either sign, of its open ones: a
    branch in which that adds up to no more than what is already reached need not be looked at.
    """
    reached = sorted({b for gain in gained for b in gain}, key=lambda b: -sum(b in gain for gain in gained))
    never = -2 * GRID
    table = [[tuple(gain.get(b, (never, never))[s] for gain in gained) for s in (0, 1)] for b in reached]
    open_best = [(never,) * len(gained)]
    for plus, minus in reversed(table):
        open_best.append(tuple(map(max, open_best[-1], plus, minus)))
    open_best.reverse()
    best, looked = never * len(gained), 0
    branches = [(0, (never,) * len(gained))]
    while branches:
        depth, fixed = branches.pop()
        looked += 1
        if looked > MOST_PATTERNS:
            raise Refused("more patterns of signs than the checker looks at; state fewer bins")
        if sum(map(max, fixed, open_best[depth])) <= best:
            continue
        if depth == len(table):
            best = sum(fixed)
            continue
        children = [(depth + 1, tuple(map(max, fixed, side))) for side in table[depth]]
        branches.extend(sorted(children, key=lambda child: sum(map(max, child[1], open_best[depth + 1]))))
    return best


def check_edges(edges: Any) -> list[float]:
    """Edges of bins, rising from 0 to 1."""
    if not isinstance(edges, list) or not all(isinstance(edge, int | float) for edge in edges):
        raise Refused("the bins are no list of edges")
    rising = all(left < right for left, right in pairwise(edges))
    if not 2 <= len(edges) <= MOST_BINS + 1 or edges[0] != 0 or edges[-1] != 1 or not rising:
        raise Refused(f"the edges of at most {MOST_BINS} bins must rise from 0 to 1")
    return edges


def above(exact: Fraction) -> float:
    """The smallest float that is at least this."""
    near = float(exact)
    return near if near >= exact else math.nextafter(near, math.inf)


def below(exact: Fraction) -> float:
    """The largest float that is at most this."""
    return 0.0 - above(-exact)
