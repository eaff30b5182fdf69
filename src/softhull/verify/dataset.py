"""What holds for a whole data set under perturbation: accuracy, scores, confidence and calibration error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..attack.score import ScoreAttack
from ..attack.visits import OBJECTIVES, Visits
from ..deadlines import TimeLimits
from ..devices import device_of
from ..errors import InvalidInput
from ..formats.inputs import warn_of_labels, warn_of_region
from ..regions import AnyPerturbation, as_perturbation
from ..show import data_frame, html_table, new_axes
from .about import describe
from .calibration import (
    BINS,
    Bands,
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
    worst_choice,
    worst_classwise_error,
    worst_reliability,
)
from .instances import Progress, answer_all
from .methods import RANGES, find_method
from .ranges import ARRAYS, RangeFinder, Ranges, Samples, join_ranges
from .scores import NegativeLogLikelihood
from .uncertainty import BATCH, Networks, open_networks

SCHEMA = "softhull-dataset-1"  # docs/dataset.schema.json
Triple = dict[str, float]  # clean, attack, certified


@dataclass(frozen=True, repr=False)
class DatasetReport:
    """Everything known of ``n`` samples within a perturbation, and what follows for all of them together.

    ``metrics`` maps a name to ``{"clean", "attack", "certified"}``: the value of the inputs themselves, the worst an
    attack reached, and what no attack can pass. Accuracy and ``confidence_low`` are bad when low, all others when high.
    """

    eps: float
    labels: np.ndarray
    ranges: Ranges
    visits: Visits
    edges: np.ndarray
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    rounding: str = "outward"
    from_store: int = 0  # samples that were read from a run store, not computed here
    unanswered: int = 0  # samples that were not reached: they were not attacked, and nothing is claimed of them
    interrupted: bool = False  # Ctrl-C cut the work short; what holds by then is here
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)  # what was asked, as in ``Result``

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def clean(self) -> np.ndarray:
        """Mean probabilities ``[n, K]`` of the inputs themselves."""
        return np.asarray(self.visits.points[:, 0])

    @property
    def certified(self) -> np.ndarray:
        """Which samples ``[n]`` keep the right class whatever the perturbation."""
        return np.asarray((self.ranges.on_top == (self.labels[:, None] == np.arange(self.ranges.low.shape[1]))).all(1))

    @cached_property
    def options(self) -> Options:
        """What every sample may choose: one range of confidences for every class that can come out on top."""
        correct = self.labels[:, None] == np.arange(self.ranges.low.shape[1])
        return Options(self.ranges.low, self.ranges.high, correct)

    @cached_property
    def attained(self) -> Options:
        """What the attacks reached: the lowest and the highest confidence by bin, wrong and right."""
        table = self.visits.table.reshape(len(self), -1, 2)
        ends = np.concatenate((table[:, :, 0], table[:, :, 1]), 1)
        ends = np.where(np.isfinite(ends), ends, np.nan)
        correct = np.tile(np.arange(table.shape[1]) % 2 == 1, (len(self), 2))
        return Options(np.nan_to_num(ends, nan=1.0), np.nan_to_num(ends, nan=0.0), correct)

    @cached_property
    def attacked(self) -> tuple[np.ndarray, np.ndarray]:
        """The attack's own data set: confidences ``[n]`` met by attacks that together raise the calibration error."""
        worst = worst_calibration_error(self.attained, self.edges)
        return worst_choice(self.attained, worst.signs, self.edges)

    @cached_property
    def bands(self) -> Bands:
        """The certified bands of the reliability diagram."""
        return reliability_bands(self.options, self.edges)

    @cached_property
    def metrics(self) -> dict[str, Triple]:
        """The table of the report."""
        p, y, visits = self.clean, self.labels, self.visits
        own = p[np.arange(len(y)), y]
        nll, least = -np.log(own), self.ranges.least[np.arange(len(y)), y]
        brier = (p * p).sum(1) - 2 * own + 1
        worst_nll = NegativeLogLikelihood().from_badness(torch.from_numpy(-least)).numpy()
        low, high = self.ranges.confidence
        confidence, right = p.max(1), p.argmax(1) == y
        found = {
            "accuracy": _triple(right.mean(), 1 - visits.lost.mean(), self.certified.mean()),
            "nll": _triple(nll.mean(), visits.nll.mean(), mean_above(worst_nll)),
            "nll_worst": _triple(nll.max(), visits.nll.max(), worst_nll.max()),
            "brier": _triple(brier.mean(), visits.brier.mean(), mean_above(self.ranges.brier)),
            "brier_worst": _triple(brier.max(), visits.brier.max(), self.ranges.brier.max()),
            "confidence_low": _triple(confidence.mean(), visits.sure[:, 0].mean(), 0.0 - mean_above(-low)),
            "confidence_high": _triple(confidence.mean(), visits.sure[:, 1].mean(), mean_above(high)),
            "ece": _triple(
                calibration_error(confidence, right, self.edges),
                calibration_error(*self.attacked, self.edges),
                worst_calibration_error(self.options, self.edges).value,
            ),
        }
        bins, points = len(self.edges) - 1, [visits.points[:, j] for j in range(visits.points.shape[1])]
        found["classwise_ece"] = _triple(
            classwise_error(p, y, self.edges),
            max(classwise_error(q, y, self.edges) for q in points),
            worst_classwise_error(self.ranges.least, self.ranges.most, y, self.edges),
        )
        found["adaptive_ece"] = _triple(
            adaptive_error(confidence, right, bins),
            max(adaptive_error(q.max(1), q.argmax(1) == y, bins) for q in points),
            worst_adaptive_error(self.options),
        )
        return found

    @cached_property
    def brier_parts(self) -> dict[str, Triple]:
        """Murphy's parts of the Brier score of the top class: what they are, and how large they can get."""
        clean = brier_decomposition(self.clean.max(1), self.clean.argmax(1) == self.labels, self.edges)
        attack = brier_decomposition(*self.attacked, self.edges)
        right = self.certified.sum(), self.options.correct[self.options.possible].sum()
        shares = np.arange(right[0], min(int(right[1]), len(self)) + 1) / len(self)
        # At most n^2 / 4 products of whole numbers over n^2: one rounding each.
        spread = math.nextafter(float((shares * (1 - shares)).max()) * (1 + 2.0**-50), math.inf)
        reliability = worst_reliability(self.options, self.edges)
        bounds = {"reliability": reliability, "resolution": spread, "uncertainty": spread}
        return {name: _triple(clean[name], attack[name], bound) for name, bound in bounds.items()}

    def reliability(self) -> list[dict[str, Any]]:
        """One dictionary per bin: what is in it, clean and attacked, and the certified bands."""
        clean = self.clean.max(1), self.clean.argmax(1) == self.labels
        inside = [(find_bin(c, self.edges), c, right) for c, right in (clean, self.attacked)]
        bands = {name: getattr(self.bands, name) for name in ("count", "accuracy", "gap")}
        return [
            {
                "from": float(self.edges[b]),
                "to": float(self.edges[b + 1]),
                "clean": _bin(*(part[inside[0][0] == b] for part in inside[0][1:])),
                "attack": _bin(*(part[inside[1][0] == b] for part in inside[1][1:])),
                "certified": {name: [_number(low[b]), _number(high[b])] for name, (low, high) in bands.items()},
            }
            for b in range(len(self.edges) - 1)
        ]

    def auroc(self, outside: DatasetReport) -> Triple:
        """Area under the ROC curve of the confidence, these samples against ``outside`` ones, which should be lower.

        Certified is the area guaranteed when these confidences are at their certified least and the others at their
        most; attack the same with what attacks reached.
        """
        low, high = self.ranges.confidence
        least, _ = auroc_bounds(low, high, *outside.ranges.confidence)
        attack = auroc(self.visits.sure[:, 0], outside.visits.sure[:, 1])
        return _triple(float(auroc(self.clean.max(1), outside.clean.max(1))), float(attack), least)

    def instances(self, indices: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """One dictionary per sample, numbered from 0 or by ``indices``: what holds for it whatever the perturbation.

        ``verdict``: certified (it keeps the right class), bounded, or unknown where nothing was proved.
        """
        low, high = self.ranges.confidence
        least = self.ranges.least[np.arange(len(self)), self.labels]
        rows = []
        for i in range(len(self)):
            known = least[i] > 0 or high[i] < 1
            verdict = "certified" if self.certified[i] else "bounded" if known else "unknown"
            rows.append(
                {
                    "index": i if indices is None else indices[i],
                    "label": int(self.labels[i]),
                    "predicted": int(self.clean[i].argmax()),
                    "verdict": verdict,
                    "probability_least": float(least[i]),
                    "confidence_least": float(low[i]),
                    "confidence_most": float(high[i]),
                    "brier_most": float(self.ranges.brier[i]),
                }
                | ({"message": self.ranges.notes[i]} if i in self.ranges.notes else {})
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The whole report as plain values for JSON."""
        return {
            "schema": SCHEMA,
            **self.about,
            "eps": self.eps,
            "total": len(self),
            "bins": len(self.edges) - 1,
            "rounding": self.rounding,
            "from_store": self.from_store,
            "unanswered": self.unanswered,
            "metrics": self.metrics,
            "brier_parts": self.brier_parts,
            "reliability": self.reliability(),
            "instances": self.instances(),
            "cpu_seconds": self.cpu_seconds,
            "seconds": self.seconds,
        }

    def to_pandas(self) -> Any:
        """A data frame with one line per metric: clean, attack, certified; needs the extra ``pandas``."""
        return data_frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return [{"metric": name, **triple} for name, triple in self.metrics.items()]

    def plot(self, axes: Any = None) -> Any:
        """The reliability diagram with its certified bands; returns the axes (extra ``plot``)."""
        axes = new_axes(axes)
        low, high = self.bands.accuracy
        widths, known = np.diff(self.edges), np.isfinite(low)
        axes.bar(
            *(self.edges[:-1][known], (high - low)[known], widths[known], low[known]),
            align="edge",
            color="#2f5fc433",
            edgecolor="#2f5fc4",
            label="certified band",
        )
        axes.plot([0, 1], [0, 1], ":", color="#888888", label="calibrated")
        for name, colour in (("clean", "#646b78"), ("attack", "#c2410c")):
            sides = [each[name] for each in self.reliability() if each[name]["count"]]
            points = [side["confidence"] for side in sides], [side["accuracy"] for side in sides]
            axes.plot(*points, ".", color=colour, label=name)
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        axes.legend()
        return axes

    def __repr__(self) -> str:
        shown = ("accuracy", "ece")
        said = ", ".join(f"{name} {self.metrics[name]['certified']:.4g} certified" for name in shown)
        return f"<DatasetReport of {len(self)} samples, radius {self.eps:g}: {said}>"

    def _repr_html_(self) -> str:
        return html_table(repr(self).strip("<>"), self._rows())

    def __str__(self) -> str:
        lines = [f"{len(self)} samples, radius {self.eps:g}: clean, attack, certified"]
        for name, triple in self.metrics.items():
            lines.append(f"  {name:<16}" + "".join(f"{value:>10.4f}" for value in triple.values()))
        if self.rounding != "outward":
            lines.append("  rounded to nearest, so not proved for the real-valued networks")
        if self.unanswered:
            lines.append(f"  {self.unanswered} samples were not reached: they may do anything, and were not attacked")
        if self.ranges.notes:
            lines.append(f"  {len(self.ranges.notes)} not solved to the end: {next(iter(self.ranges.notes.values()))}")
        return "\n".join(lines)


def certify_dataset(
    networks: Networks,
    x: Any,
    y: Any,
    perturbation: AnyPerturbation,
    bins: int | Sequence[float] = BINS,
    method: str | Any = "auto",
    bound: str = "all",
    attack: ScoreAttack | None = None,
    timeout: float | None = None,
    budget: float | None = None,
    seed: int = 0,
    rounding: str = "outward",
    device: torch.device | str | None = None,
    workers: int | str | None = None,
    progress: Progress | None = None,
) -> DatasetReport:
    """Certified accuracy, NLL, Brier score, confidence and calibration error of an ensemble on a whole data set.

    Every sample may be perturbed independently. One pass finds the range of every class probability; everything else
    follows from these ranges by arithmetic. Ctrl-C ends with the best found so far (``interrupted``).

    Args:
        networks: One network or several, whose probabilities are averaged.
        x (array [n, ...]): Inputs.
        y (integers [n]): Labels.
        perturbation: The region around every input; a number is an l_inf radius.
        bins: Of the calibration error: a number of bins of equal width, or their edges.
        method: As for ``verify_uncertainty``.
        bound: The softmax bounds, as for ``verify_uncertainty``.
        attack: Settings of the attack, which runs once for every objective that makes some metric worse.
        timeout: Seconds per instance.
        budget: Seconds for the whole call.
        seed: Of the attack.
        rounding: ``"outward"`` charges every rounding error, ``"nearest"`` does not.
        device: Where to compute; by default where ``x`` is.
        workers: How many processes share the samples.
        progress: Called as ``progress(done, total)`` while samples are answered.
    """
    limits = TimeLimits.of(timeout, budget)
    edges, perturbation = bin_edges(bins), as_perturbation(perturbation)
    opened, place = open_networks(networks, x), device_of(x, device)
    finder = RangeFinder(opened, method, bound, rounding, place)
    x, y = finder.inputs(x, y)
    warn_of_region(x, perturbation)
    attack = attack or ScoreAttack(restarts=2, seed=seed)
    asked = Samples(finder, x, y, perturbation.around(x), limits=limits, edges=edges, attack=attack)
    found = answer_all(asked, torch.arange(len(x)), BATCH, workers, progress)
    samples = [found.records[i] for i in range(len(x))]
    labels, visits = y.cpu().numpy(), join_visits([sample.visits for sample in samples if sample.visits])
    warn_of_labels(torch.from_numpy(visits.points[:, 0].argmax(1)), y.cpu())
    more = {"bins": edges.tolist(), "timeout": timeout, "budget": budget, "seed": seed, "device": str(place)}
    about = describe("dataset", opened, x, y, perturbation, find_method(method, RANGES), bound=bound, **more)
    return DatasetReport(
        perturbation.largest,
        labels,
        join_ranges([sample.ranges for sample in samples]),
        visits,
        edges,
        found.cpu_seconds,
        found.seconds,
        rounding,
        unanswered=sum(not sample.reached for sample in samples),
        interrupted=found.interrupted,
        about=about,
    )


def nothing_answered(
    networks: Networks, x: Any, y: Any, perturbation: AnyPerturbation, bins: int | Sequence[float], why: str
) -> DatasetReport:
    """The report on samples that were not reached: clean values, no attack, and bounds that claim nothing."""
    edges, perturbation = bin_edges(bins), as_perturbation(perturbation)
    finder = RangeFinder(open_networks(networks, x), "auto", "all", "nearest", torch.device("cpu"))
    x, y = finder.inputs(x, y)
    asked = Samples(finder, x, y, perturbation.around(x), edges=edges)
    samples = [asked.nothing(i, why) for i in range(len(x))]
    ranges = join_ranges([sample.ranges for sample in samples])
    visits = join_visits([sample.visits for sample in samples if sample.visits])
    return DatasetReport(perturbation.largest, y.numpy(), ranges, visits, edges, unanswered=len(y))


def join_visits(parts: Sequence[Visits]) -> Visits:
    """Several batches as one."""
    return Visits(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Visits)))


def pack_samples(report: DatasetReport) -> np.ndarray:
    """All that is known of every sample as one row of numbers ``[n, ...]``; ``unpack_samples`` is the way back."""
    parts = [getattr(report.ranges, name) for name in ARRAYS]
    parts += [getattr(report.visits, f.name) for f in fields(Visits)]
    return np.concatenate([part.reshape(len(report), -1) for part in parts], 1)


def unpack_samples(rows: np.ndarray, classes: int, bins: int) -> tuple[Ranges, Visits]:
    """Ranges and visits from packed rows; InvalidInput when the rows are none of such networks and bins."""
    if rows.ndim != 2 or rows.shape[1] != _row_length(classes, bins) or np.isnan(rows).any():
        raise InvalidInput(f"{classes} classes and {bins} bins make rows of {_row_length(classes, bins)} numbers")
    shapes = _shapes(classes, bins)
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = [part.reshape(-1, *shape) for part, shape in zip(np.split(rows, ends[:-1], axis=1), shapes)]
    known: dict[str, Any] = dict(zip(ARRAYS, parts))
    return Ranges(**known), Visits(*parts[len(ARRAYS) :])


def report_of_rows(
    eps: float,
    labels: np.ndarray,
    rows: Sequence[np.ndarray],
    bins: int | Sequence[float],
    notes: dict[int, str],
) -> DatasetReport:
    """The report on samples that were packed one by one; InvalidInput where they do not belong together."""
    edges, known = bin_edges(bins), [row.ravel() for row in rows]
    if not known or len({len(row) for row in known}) > 1:
        raise InvalidInput("there are no samples, or they have different numbers of classes")
    bin_count = len(edges) - 1
    ranges, visits = unpack_samples(np.stack(known), _classes(len(known[0]), bin_count), bin_count)
    return DatasetReport(eps, labels, replace(ranges, notes=notes), visits, edges)


def _shapes(classes: int, bins: int) -> list[tuple[int, ...]]:
    """The shapes of what is packed for one sample, in order."""
    ranges: dict[str, tuple[int, ...]] = dict.fromkeys(ARRAYS, (classes,))
    return [*(ranges | {"brier": ()}).values(), (1 + len(OBJECTIVES), classes), (), (), (), (2,), (bins, 2, 2)]


def _row_length(classes: int, bins: int) -> int:
    return sum(math.prod(shape) for shape in _shapes(classes, bins))


def _classes(length: int, bins: int) -> int:
    """How many classes make rows of this length."""
    each = _row_length(1, bins) - _row_length(0, bins)
    return (length - _row_length(0, bins)) // each


def mean_above(values: np.ndarray) -> float:
    """The mean, rounded up; infinite where a value is."""
    if not np.isfinite(values).all():
        return float(values.max())
    return round_up(sum(map(Fraction, values.tolist()), Fraction(0)) / len(values))


def _triple(clean: Any, attack: Any, certified: Any) -> Triple:
    return {"clean": float(clean), "attack": float(attack), "certified": float(certified)}


def _bin(confidence: np.ndarray, correct: np.ndarray) -> dict[str, Any]:
    if not len(confidence):
        return {"count": 0, "confidence": None, "accuracy": None}
    return {"count": len(confidence), "confidence": float(confidence.mean()), "accuracy": float(correct.mean())}


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
