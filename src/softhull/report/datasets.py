"""What a store knows of whole data sets, for the report: metrics against the radius, reliability, set sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import SofthullError
from ..runs.rows import Row
from ..runs.store import Store

ALPHA = 0.1
SPLITS = 20


def dataset_content(store: Store, tasks: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One dictionary for every task about a data set, ``task`` its place; tasks that cannot be read are left out."""
    answered: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        answered[row.task].append(row)
    found = []
    for place, task in enumerate(tasks):
        if task["question"] != "dataset" or not answered[task["id"]]:
            continue
        try:
            found.append({"task": place} | _report(store, task, answered[task["id"]]))
        except (SofthullError, KeyError, TypeError, ValueError):  # a damaged store: the other pages can still be read
            continue
    return found


def _report(store: Store, task: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The metrics of a data set, worked out again from the stored ranges of its samples."""
    from ..verify.dataset import report_of_rows

    answers = store.answers([row.key for row in rows])
    pairs = [(row.label, answers[row.key].worst_input) for row in rows]
    known = [(label, packed) for label, packed in pairs if packed is not None]
    labels = np.array([label for label, _ in known])
    bins = task["settings"]["keywords"]["bins"]
    report = report_of_rows(float(task["eps"]), labels, [packed for _, packed in known], bins, {})
    plain = report.to_dict()
    return {
        "eps": report.eps,
        "total": len(report),
        "metrics": {name: {side: _short(v) for side, v in triple.items()} for name, triple in report.metrics.items()},
        "reliability": plain["reliability"],
        "sets": _set_sizes(report),
    }


def _set_sizes(report: Any) -> dict[str, float] | None:
    """Mean sizes of prediction sets of the inputs, half of the samples for calibration, over random splits."""
    from ..verify.conformal import ConformalScore

    if len(report) < 2 * math.ceil(1 / ALPHA):
        return None
    rule, rng, n = ConformalScore("lac"), np.random.default_rng(0), len(report)
    known, u, clean = report.ranges, np.zeros(n), report.clean
    sizes = []
    for _ in range(SPLITS):
        order = rng.permutation(n)
        own, rest = order[: n // 2], order[n // 2 :]
        limit = rule.thresholds(clean[own], clean[own], u[own], report.labels[own], ALPHA, False)
        pairs = ((clean, clean), (known.least, known.most), (known.box_least, known.box_most))
        sizes.append([rule.members(low[rest], high[rest], u[rest], limit).sum(1).mean() for low, high in pairs])
    return {name: _short(size) or 0.0 for name, size in zip(("plain", "robust", "boxes"), np.mean(sizes, 0))}


def _short(value: Any) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
