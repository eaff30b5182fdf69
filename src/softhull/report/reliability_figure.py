"""The reliability diagram of a data set with its certified bands, from what ``softhull dataset --json`` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from .figures import STYLE, matplotlib

LARGEST_FILE = 1 << 26


def read_radius(path: Path, eps: float | None) -> Mapping[str, Any]:
    """The report on one radius (default: the largest) in a file; InvalidInput with one line where there is none."""
    if path.stat().st_size > LARGEST_FILE:
        raise InvalidInput(f"{path}: larger than {LARGEST_FILE >> 20} MB; not a file of softhull dataset --json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        radii = {float(radius["eps"]): radius for radius in content["radii"]}
        chosen = max(radii) if eps is None else eps
        if chosen in radii:
            _check(radii[chosen])
            return dict(radii[chosen])
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        raise InvalidInput(f"{path}: not a file of softhull dataset --json; write it again") from None
    raise InvalidInput(f"{path}: no radius {eps:g}; it has {', '.join(f'{radius:g}' for radius in sorted(radii))}")


def reliability_figure(radius: Mapping[str, Any]) -> Any:
    """Accuracy against confidence by bin, clean, attacked and as a certified band; below, the samples in every bin."""
    bins = radius["reliability"]
    with matplotlib().rc_context(STYLE):
        figure = matplotlib().figure.Figure(figsize=(6.4, 6.0), layout="constrained")
        top, below = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
        top.plot([0, 1], [0, 1], color="#8c8c8c", linewidth=1, linestyle=":", label="calibrated")
        for place, each in enumerate(bins):
            low, high = each["certified"]["accuracy"]
            width, middle = each["to"] - each["from"], (each["from"] + each["to"]) / 2
            if low is not None:
                label = "certified" if place == len(bins) - 1 else None
                top.bar(middle, high - low, width, low, color="#0072b238", edgecolor="#0072b2", label=label)
            least, most = each["certified"]["count"]
            below.bar(middle, most - least, width, least, color="#0072b238", edgecolor="#0072b2")
        for name, colour, mark in (("clean", "#009e73", "o"), ("attack", "#d1242f", "s")):
            filled = [each[name] for each in bins if each[name]["count"]]
            xs, ys = [each["confidence"] for each in filled], [each["accuracy"] for each in filled]
            top.plot(xs, ys, mark, color=colour, markersize=4, label=name)
            below.plot(xs, [each["count"] for each in filled], mark, color=colour, markersize=4)
        ece = radius["metrics"]["ece"]
        numbers = ", ".join(f"{name} {ece[name]:.3f}" for name in ("clean", "attack", "certified"))
        top.set_title(f"radius {radius['eps']:g}, {radius['total']} samples; ECE: {numbers}", loc="left")
        top.set_ylabel("accuracy in the bin")
        below.set_ylabel("samples")
        below.set_xlabel("confidence")
        top.set_xlim(0, 1)
        top.set_ylim(-0.02, 1.02)
        top.legend(loc="upper left")
    return figure


def _check(radius: Mapping[str, Any]) -> None:
    """KeyError, TypeError or ValueError where something that is drawn is missing or no number."""
    float(radius["total"])
    for name in ("clean", "attack", "certified"):
        float(radius["metrics"]["ece"][name])
    for each in radius["reliability"]:
        float(each["from"]), float(each["to"])
        for name in ("clean", "attack"):
            if each[name]["count"]:
                float(each[name]["confidence"]), float(each[name]["accuracy"])
        for name in ("accuracy", "count"):
            low, high = each["certified"][name]
            if low is not None:
                float(high) - float(low)
