"""Data sets as tables for the terminal: metrics against the radius, coverage and size of prediction sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

NAMES = {
    "accuracy": "accuracy",
    "nll": "NLL, mean",
    "nll_worst": "NLL, worst",
    "brier": "Brier, mean",
    "brier_worst": "Brier, worst",
    "confidence_low": "confidence, lowest",
    "confidence_high": "confidence, highest",
    "ece": "ECE",
    "classwise_ece": "class-wise ECE",
    "adaptive_ece": "ECE, any bins",
    "auroc": "AUROC",
}
WAYS = {"none": "not robust", "inference": "at inference", "calibration": "at calibration"}


def metrics_table(radii: Sequence[Mapping[str, Any]]) -> Table:
    """One line per metric: clean, then attack and certified for every radius, and what certificates prove of it."""
    table = _table(f"{radii[0]['total']} samples, {radii[0]['bins']} bins", ("metric",))
    table.add_column("clean", justify="right", no_wrap=True)
    for radius in radii:
        table.add_column(f"attack\n{radius['eps']:g}", justify="right", no_wrap=True)
        table.add_column(f"certified\n{radius['eps']:g}", justify="right", no_wrap=True)
        if "stated" in radius:
            table.add_column(f"stated\n{radius['eps']:g}", justify="right", no_wrap=True)
    for name in radii[0]["metrics"]:
        cells = [_cell(radii[0]["metrics"][name]["clean"])]
        for radius in radii:
            cells += [_cell(radius["metrics"][name][side]) for side in ("attack", "certified")]
            if "stated" in radius:
                cells.append(_cell(radius["stated"][name]) if name in radius["stated"] else "-")
        table.add_row(NAMES.get(name, name), *cells)
    return table


_SAMPLE = {
    "index": "input",
    "label": "label",
    "predicted": "predicted",
    "verdict": "verdict",
    "probability_least": "label's probability\nat least",
    "confidence_least": "confidence\nat least",
    "confidence_most": "confidence\nat most",
    "brier_most": "Brier score\nat most",
}


def sample_table(radius: Mapping[str, Any]) -> Table:
    """One line per sample: what holds for it within one radius."""
    table = _table(f"samples, radius {radius['eps']:g}", ())
    for name, heading in _SAMPLE.items():
        table.add_column(heading, justify="left" if name == "verdict" else "right", no_wrap=True)
    for row in radius["instances"]:
        table.add_row(*(_cell(row[name]) if isinstance(row[name], float) else str(row[name]) for name in _SAMPLE))
    return table


def conformal_table(radii: Sequence[Mapping[str, Any]]) -> Table:
    """One line per radius, score and way of being robust."""
    first = radii[0]
    title = f"{first['splits']} splits of {first['total']} samples, {first['calibration']} for calibration"
    table = _table(f"{title}, alpha {first['alpha']:g}", ("eps", "score", "robust"))
    heads = ("coverage\nclean", "coverage\nattack", "least\nsplit", "size\nclean", "boxes\nclean")
    for head in (*heads, "size\nattack", "boxes\nattack", "ratio"):
        table.add_column(head, justify="right", no_wrap=True)
    keys = ("coverage_clean", "coverage_attack", "coverage_least", "size_clean", "boxes_clean")
    for radius in radii:
        for score, ways in radius["rows"].items():
            for way, row in ways.items():
                cells = [_cell(row[key]) for key in (*keys, "size_attack", "boxes_attack")]
                ratio = row["size_attack"] / row["boxes_attack"] if row["boxes_attack"] else 1.0
                table.add_row(f"{radius['eps']:g}", score, WAYS[way], *cells, f"{ratio:.3f}")
    return table


def _table(title: str, words: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="", pad_edge=False)
    for name in words:
        table.add_column(name, no_wrap=True)
    return table


def _cell(value: float) -> str:
    return f"{value:.4f}"
