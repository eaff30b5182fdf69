"""Figures, drawn without a display; everything on them comes from the table of bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..bounds.questions import softmax_bounds
from ..bounds.table import BOUNDS, Bound, Curvature
from ..errors import InvalidInput, unknown
from ..show import matplotlib as matplotlib
from ..study.point import exists_for

# Okabe and Ito's colours, told apart by colour-blind readers too; what is not named here takes the next spare one.
COLOURS = {
    "const": "#8c8c8c",
    "lin": "#e69f00",
    "er": "#56b4e9",
    "lse": "#009e73",
    "lse*": "#0072b2",
    "lse2": "#5c6e2e",
    "lse'": "#cc79a7",
    "hull": "#d1242f",
    "best": "#333333",
}
SPARE = ("#7a5195", "#a05d2b", "#3b8686", "#b5b000", "#ff7c43", "#665191")
LABELS = {"er": "ER", "lse": "LSE", "lse*": "LSE*", "lse2": "LSE$_2$", "lse'": "LSE'"}

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": "#222222",
    "axes.titlesize": 9.5,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "savefig.dpi": 115,
    "svg.hashsalt": "softhull",
}


def colour(name: str) -> str:
    """One colour per bound in all figures."""
    if name in COLOURS:
        return COLOURS[name]
    unnamed = [other for other in BOUNDS if other not in COLOURS]
    return SPARE[unnamed.index(name) % len(SPARE)] if name in unnamed else SPARE[0]


def label(name: str) -> str:
    """The name of a bound as figures write it."""
    return LABELS.get(name, name)


def save(figure: Any, path: Path) -> Path:
    """Write a figure in the format its name asks for, creating the folder."""
    known = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in known:
        raise InvalidInput(f"{path}: cannot write {path.suffix or 'a file without extension'}; use .png, .pdf or .svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version inside: the same numbers give the same file.
    stamps = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with matplotlib().rc_context(STYLE):
        figure.savefig(path, metadata=stamps.get(path.suffix.lower()))
    return path


def drawn_by_default(table: Mapping[str, Bound] = BOUNDS) -> tuple[str, ...]:
    """The bounds that have a lower and an upper curve of their own: neither constants nor portfolios."""
    return tuple(
        name
        for name, bound in table.items()
        if bound.lower and bound.upper and not bound.lower.parts and bound.lower.curvature is not Curvature.CONSTANT
    )


def sigmoid_figure(interval: tuple[float, float] = (-2.0, 2.0), names: Sequence[str] | None = None) -> Any:
    """Figure 1 of the paper with the hull: bounds on the softmax of two logits over an interval of their difference.

    On the left the curves, on the right their distance to the probability, which is what tightness is about.
    """
    low, high = interval
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise InvalidInput(f"interval must be two numbers, the smaller one first, not {low:g} {high:g}")
    names = drawn_by_default() if names is None else names
    difference = np.linspace(low, high, 401)
    x = np.stack([np.zeros_like(difference), difference], axis=-1)
    ends = np.array([0.0, low]), np.array([0.0, high])
    probability = np.exp(-np.logaddexp(0.0, difference))
    with matplotlib().rc_context(STYLE):
        figure = matplotlib().figure.Figure(figsize=(9.6, 4.3), layout="constrained")
        curves, gaps = figure.subplots(1, 2, width_ratios=(1.15, 1))
        for name in names:
            below, above = softmax_bounds(x, *ends, name, outputs=0)
            look = {"color": colour(name), "linewidth": 2.0 if name == "hull" else 1.4}
            for values, text in ((below, label(name)), (above, None if below is not None else label(name))):
                if values is not None:
                    curves.plot(difference, values, label=text, **look)
                    gaps.plot(difference, values - probability, **look)
        curves.plot(difference, probability, color="black", linewidth=1.8, label="softmax", zorder=2.5)
        gaps.axhline(0, color="black", linewidth=1.8, zorder=2.5)
        for axes in (curves, gaps):
            axes.set_xlim(low, high)
            axes.set_xlabel(r"difference of the logits $\tilde x_2 = x_2 - x_1$")
        curves.set_ylabel("probability $p_1$ and its bounds")
        curves.set_title("softmax of two logits", loc="left")
        gaps.set_title(r"distance to softmax: $U - p_1$ above zero, $L - p_1$ below", loc="left")
        figure.legend(loc="outside lower center", ncols=len(names) + 1, handlelength=1.8)
    return figure


def names_in_table(names: Iterable[str], size: int) -> tuple[str, ...]:
    """The names, checked: each is in the table and has a side for softmax of ``size`` logits."""
    chosen = tuple(names)
    for name in chosen:
        if name not in BOUNDS:
            raise InvalidInput(unknown("bound", name, BOUNDS))
        if not any(exists_for(side, size) for side in (BOUNDS[name].lower, BOUNDS[name].upper)):
            raise InvalidInput(f"bound {name!r} is not defined for {size} logits")
    return chosen
