"""Conformal prediction sets that keep their coverage under perturbation, from certified ranges of probabilities.

Scores of a label y under a distribution p, high when y does not conform:

- ``lac``: ``1 - p_y``;
- ``aps``: all larger probabilities plus ``u p_y``, with u drawn from [0, 1] for every input before anything is seen;
- ``raps``: ``aps`` plus ``penalty`` for every rank of y beyond ``free_ranks``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attack.score import ScoreAttack
from ..devices import device_of
from ..errors import InvalidInput
from ..graph.rounding import ulps
from ..regions import Alternatives, AnyPerturbation, Perturbation, as_perturbation
from .ranges import RangeFinder, Ranges
from .uncertainty import BATCH, Networks, open_networks

SCHEMA = "softhull-conformal-1"  # docs/conformal.schema.json
SCORES = ("lac", "aps", "raps")
Interval = tuple[np.ndarray, np.ndarray]
_UNIT = ulps(1, torch.float64)


@dataclass(frozen=True)
class ConformalScore:
    """A score of labels by its name, and the settings of ``raps``.

    Args:
        name: ``"lac"``, ``"aps"`` or ``"raps"``.
        penalty: What ``raps`` adds for every rank beyond the free ones.
        free_ranks: How many of the most probable labels ``raps`` does not penalise.
    """

    name: str = "lac"
    penalty: float = 0.01
    free_ranks: int = 2

    def __post_init__(self) -> None:
        if self.name not in SCORES:
            raise InvalidInput(f"unknown conformal score {self.name!r}; choose {', '.join(SCORES)}")
        if not (math.isfinite(self.penalty) and self.penalty >= 0 and self.free_ranks >= 0):
            raise InvalidInput("penalty and free_ranks must be at least 0")

    def values(self, p: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The scores ``[n, K]`` of all labels under distributions ``[n, K]``, with the draws ``u [n]``."""
        if self.name == "lac":
            return 1 - p
        larger = p[:, None, :] > p[:, :, None]
        found = u[:, None] * p + (larger * p[:, None, :]).sum(2)
        return found + self._rank_penalty(larger.sum(2))

    def bounds(self, least: np.ndarray, most: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds ``[n, K]`` on the scores of all labels for any distribution within ``[least, most]``, outward."""
        if self.name == "lac":
            return np.nextafter(1 - most, -np.inf), np.nextafter(1 - least, np.inf)
        ends = [self._label(least, most, y, u[:, None]) for y in range(least.shape[1])]
        # A few operations for every class, on sums of at most the number of classes.
        lost = _UNIT * (16 + 4 * least.shape[1]) * least.shape[1] * (1 + self.penalty)
        low, high = (np.stack(side, 1) for side in zip(*ends))
        return low - lost, high + lost

    def thresholds(
        self,
        least: np.ndarray,
        most: np.ndarray,
        u: np.ndarray,
        labels: np.ndarray,
        alpha: float,
        class_conditional: bool,
    ) -> np.ndarray:
        """One threshold per class ``[K]`` from the largest scores of calibration labels; equal unless by class."""
        upper = self.bounds(least, most, u)[1][np.arange(len(labels)), labels]
        if not class_conditional:
            return np.full(least.shape[1], conformal_quantile(upper, alpha))
        return np.array([conformal_quantile(upper[labels == k], alpha) for k in range(least.shape[1])])

    def members(self, least: np.ndarray, most: np.ndarray, u: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
        """Which labels ``[n, K]`` can have a score of at most their threshold."""
        return np.asarray(self.bounds(least, most, u)[0] <= thresholds)

    def _rank_penalty(self, larger: np.ndarray) -> np.ndarray:
        return self._weight * np.maximum(larger + 1 - self.free_ranks, 0)

    @property
    def _weight(self) -> float:
        return self.penalty if self.name == "raps" else 0.0

    def _label(self, least: np.ndarray, most: np.ndarray, y: int, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds ``[n]`` for one label: between two ends of ranges, it is clear who can be above ``t = p_y``.

        Above t are at least those with ``least > t``, not above at least those with ``most <= t``. The score is ``u t``
        plus the mass above, and also ``1 - (1 - u) t`` less the mass of others not above: both bound it from both
        sides, one rising and one falling in t. The upper one ignores that not all that can be above t may fit there.
        """
        others = np.delete(np.arange(least.shape[1]), y)
        low, high = least[:, None, others], most[:, None, others]
        from_, to = least[:, [y]], most[:, [y]]
        knots = np.sort(np.clip(np.concatenate((from_, to, low[:, 0], high[:, 0]), 1), from_, to), axis=1)
        a, b = knots, np.concatenate((knots[:, 1:], knots[:, -1:]), 1)
        must, can = low > a[:, :, None], high > a[:, :, None]  # the same for all t from a up to b
        forced, below = ((mask * low).sum(2) for mask in (must, ~can))
        room, above = ((mask * high).sum(2) for mask in (~can, can))
        cut = (can & ~must).sum(2)  # those that reach beyond t, and hold t at most where they are not above it
        # Where all others hold too little even with those that are surely above at their most, more must be above t:
        # the fewest that do, the largest first.
        spare = -np.sort(-np.where(can & ~must, high - b[:, :, None], 0.0), axis=2)
        held = (1 + cut) * b + room + (must * high).sum(2)
        more = (held[:, :, None] + np.cumsum(spare, 2) - spare < 1 - _UNIT * 8 * len(others) ** 2).sum(2)
        more = np.minimum(more, cut)
        # The larger of two lower bounds is least where they cross, the smaller of two upper ones largest.
        t = np.clip((1 - room - forced) / (1 + cut), a, b)
        smallest = np.maximum((u + more) * t + forced, 1 - room - (cut - more + 1 - u) * t)
        smallest = smallest + self._rank_penalty(must.sum(2) + more)
        t = np.clip(1 - below - above, a, b)
        largest = np.minimum(1 - below - (1 - u) * t, u * t + above) + self._rank_penalty(can.sum(2))
        return np.asarray(smallest.min(1)), np.asarray(largest.max(1))


def conformal_quantile(scores: np.ndarray, alpha: float) -> float:
    """The ``ceil((n + 1) (1 - alpha))``-th smallest of n scores; infinite when there are too few of them.

    With probability at least ``1 - alpha`` one more score, exchangeable with these, is at most that.
    """
    rank = math.ceil((len(scores) + 1) * (1 - Fraction(alpha)))
    return math.inf if rank > len(scores) else float(np.sort(scores)[max(rank, 1) - 1])


@dataclass(frozen=True)
class PredictionSets:
    """``members [n, K]``: which labels are in the set of every input. ``from_boxes``: what boxes of logits give."""

    members: np.ndarray
    from_boxes: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The number of labels in every set."""
        return np.asarray(self.members.sum(1))

    def coverage(self, labels: Any) -> float:
        """The share of sets that hold the label."""
        return float(self.members[np.arange(len(self.members)), np.asarray(labels)].mean())

    def __len__(self) -> int:
        return len(self.members)


class Conformal:
    """Split conformal prediction for the mean probabilities of ``networks``, robust where asked.

    Let the calibration pairs and a test pair ``(x, y)`` be exchangeable, and let an attacker replace x by any input
    within a perturbation of x. With thresholds at the ``ceil((n + 1) (1 - alpha))``-th smallest calibration score:

    - *At inference time*: ``.sets(x', perturbation)`` holds every label whose score can be at most the threshold
      somewhere within the perturbation of the input x' that was observed. x is among these inputs, so
      ``P(y in set) >= 1 - alpha`` whatever the attacker does. The same perturbation in both directions is needed:
      balls of a norm have it, and a clipping range must hold all clean inputs.
    - *At calibration time*: with ``perturbation`` given here, calibration scores are raised to the largest within the
      perturbation, and ``.sets(x')`` compares the score of x' alone. The raised score of x is exchangeable with the
      calibration scores and at least the score of x', so ``P(y in set) >= 1 - alpha`` again, at no cost for test
      inputs.

    ``class_conditional``: one threshold per class from the calibration inputs of that class, and ``P(y in set | y = k)
    >= 1 - alpha`` for every class k; a class with fewer than ``1 / alpha - 1`` of them is in every set. Probabilities
    are over the draw of calibration and test pairs together; scores are those of the networks as real-valued
    functions. ``score``: ``lac``, ``aps``, ``raps`` or a ``ConformalScore``; the draws of the last two follow ``seed``.
    """

    def __init__(
        self,
        networks: Networks,
        calibration_x: Any,
        calibration_y: Any,
        alpha: float,
        score: str | ConformalScore = "lac",
        perturbation: AnyPerturbation | None = None,
        class_conditional: bool = False,
        method: str | Any = "auto",
        bound: str = "all",
        seed: int = 0,
        rounding: str = "outward",
        device: torch.device | str | None = None,
    ) -> None:
        if not 0 < alpha < 1:
            raise InvalidInput(f"alpha must be between 0 and 1, got {alpha}")
        perturbation = None if perturbation is None else as_perturbation(perturbation)
        self.alpha, self.perturbation = alpha, perturbation
        self.score = ConformalScore(score) if isinstance(score, str) else score
        opened = open_networks(networks, calibration_x)
        self._finder = RangeFinder(opened, method, bound, rounding, device_of(calibration_x, device))
        found, labels = self._finder.find(calibration_x, perturbation, calibration_y), np.asarray(calibration_y)
        self._draws = np.random.default_rng(seed)
        given = self._draws.random(len(labels)), labels, alpha, class_conditional
        self.thresholds = self.score.thresholds(found.least, found.most, *given)
        boxes = _boxes(found) if perturbation else _ends(found)
        self._box_thresholds = self.score.thresholds(boxes[0], boxes[1], *given)

    def sets(self, x: Any, perturbation: AnyPerturbation | None = None) -> PredictionSets:
        """Prediction sets of observed inputs ``[n, *shape]``, robust at inference time if a perturbation is given."""
        perturbation = None if perturbation is None else as_perturbation(perturbation)
        found = self._finder.find(x, perturbation)
        u = self._draws.random(len(found))
        boxes = _boxes(found) if perturbation else _ends(found)
        return PredictionSets(
            self.score.members(found.least, found.most, u, self.thresholds),
            self.score.members(boxes[0], boxes[1], u, self._box_thresholds),
        )


@dataclass(frozen=True)
class ConformalStudy:
    """Coverage and size of prediction sets, means over random splits; sizes also from boxes of logits.

    ``rows[score][way]`` with the ways of being robust ``none``, ``inference`` and ``calibration``: ``coverage_clean``,
    ``coverage_attack``, ``size_clean``, ``size_attack``, ``boxes_clean``, ``boxes_attack`` (sizes from boxes of logits)
    and ``coverage_least``, the smallest coverage under attack of any split.
    """

    eps: float
    alpha: float
    splits: int
    calibration: int
    total: int
    rows: dict[str, dict[str, dict[str, float]]]
    cpu_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The study as plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def study_conformal(
    networks: Networks,
    x: Any,
    y: Any,
    perturbation: AnyPerturbation,
    alpha: float = 0.1,
    scores: Sequence[str | ConformalScore] = SCORES,
    calibration: int | None = None,
    splits: int = 20,
    class_conditional: bool = False,
    attack: ScoreAttack | None = None,
    seed: int = 0,
    method: str | Any = "auto",
    bound: str = "all",
    rounding: str = "outward",
    device: torch.device | str | None = None,
) -> ConformalStudy:
    """Robust prediction sets on random splits of one data set into calibration and test samples.

    The attack lowers the probability of the label; sets are those of the attacked inputs. Everything certified is found
    once, for all splits and scores.

    Args:
        networks: One network or several, whose probabilities are averaged.
        x (array [n, ...]): Inputs.
        y (integers [n]): Labels.
        perturbation: What the attacker may do.
        alpha: Coverage is at least ``1 - alpha``.
        scores: ``"lac"``, ``"aps"``, ``"raps"`` or ``ConformalScore`` objects.
        calibration: How many samples calibrate; half of them by default.
        splits: How many random splits.
        class_conditional: One threshold per class.
        attack: Settings of the attack.
        seed: Of the splits, the draws and the attack.
        method: As for ``verify_uncertainty``.
        bound: The softmax bounds, as for ``verify_uncertainty``.
        rounding: ``"outward"`` charges every rounding error, ``"nearest"`` does not.
        device: Where to compute; by default where ``x`` is.
    """
    cpu = time.process_time()
    rules = [ConformalScore(score) if isinstance(score, str) else score for score in scores]
    perturbation = as_perturbation(perturbation)
    finder = RangeFinder(open_networks(networks, x), method, bound, rounding, device_of(x, device))
    x, y = finder.inputs(x, y)
    calibration = len(x) // 2 if calibration is None else calibration
    if not 0 < alpha < 1:
        raise InvalidInput(f"alpha must be between 0 and 1, got {alpha}")
    if splits < 1:
        raise InvalidInput(f"splits must be at least 1, got {splits}")
    if not 0 < calibration < len(x):
        raise InvalidInput(
            f"{calibration} of {len(x)} samples for calibration: at least one is needed there, and one for tests"
        )
    attack = attack or ScoreAttack(seed=seed)
    worst = torch.cat([_attacked(finder, perturbation, attack, *part) for part in zip(x.split(BATCH), y.split(BATCH))])
    clean, around_clean, attacked, around = (finder.find(at, p, y) for at in (x, worst) for p in (None, perturbation))
    known = _Known(clean, around_clean, attacked, around, y.cpu().numpy())
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(y)) for _ in range(splits)]
    u = rng.random(len(y))
    rows = {}
    for rule in rules:
        each = [known.rows(rule, o[:calibration], o[calibration:], u, alpha, class_conditional) for o in orders]
        rows[rule.name] = {
            way: {key: float(np.mean([found[way][key] for found in each])) for key in each[0][way]}
            | {"coverage_least": min(found[way]["coverage_attack"] for found in each)}
            for way in each[0]
        }
    spent = time.process_time() - cpu
    return ConformalStudy(perturbation.largest, alpha, splits, calibration, len(y), rows, spent)


@dataclass(frozen=True)
class _Known:
    """Ranges at the inputs and around them, at attacked inputs and around those; labels ``[n]``."""

    clean: Ranges
    around_clean: Ranges
    attacked: Ranges
    around_attacked: Ranges
    labels: np.ndarray

    def rows(
        self, rule: ConformalScore, own: np.ndarray, rest: np.ndarray, u: np.ndarray, alpha: float, by_class: bool
    ) -> dict[str, dict[str, float]]:
        """Coverage and sizes on the samples ``rest`` with thresholds from the samples ``own``."""

        def limits(ends: Interval) -> np.ndarray:
            return rule.thresholds(ends[0][own], ends[1][own], u[own], self.labels[own], alpha, by_class)

        plain = limits(_ends(self.clean))
        raised, boxed = limits(_ends(self.around_clean)), limits(_boxes(self.around_clean))
        ways = {
            "none": ((self.clean, self.attacked), plain, plain, _ends),
            "inference": ((self.around_clean, self.around_attacked), plain, plain, _boxes),
            "calibration": ((self.clean, self.attacked), raised, boxed, _ends),
        }
        found = {}
        for way, (ranges, limit, box_limit, box_ends) in ways.items():
            row = {}
            for word, known in zip(("clean", "attack"), ranges):
                (least, most), (low, high) = _ends(known), box_ends(known)
                members = rule.members(least[rest], most[rest], u[rest], limit)
                boxes = rule.members(low[rest], high[rest], u[rest], box_limit)
                row[f"coverage_{word}"] = float(members[np.arange(len(rest)), self.labels[rest]].mean())
                row[f"size_{word}"] = float(members.sum(1).mean())
                row[f"boxes_{word}"] = float(boxes.sum(1).mean())
            found[way] = row
        return found


def _ends(ranges: Ranges) -> Interval:
    return ranges.least, ranges.most


def _boxes(ranges: Ranges) -> Interval:
    return ranges.box_least, ranges.box_most


def _attacked(
    finder: RangeFinder, perturbation: Perturbation | Alternatives, attack: ScoreAttack, x: Tensor, y: Tensor
) -> Tensor:
    def badness(inputs: Tensor) -> Tensor:
        return -finder.probabilities(inputs).gather(1, y[:, None])[:, 0].log()

    return attack.run(badness, perturbation.around(x), [x])[1]
