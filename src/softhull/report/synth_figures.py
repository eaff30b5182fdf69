"""The figures of the synthetic study, drawn from the rows that its CSV files hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..paper.synth import BoxRow, Panel, Sweep, SweepRow, SynthStudy
from ..workers import map_in_processes
from .figures import STYLE, colour, label, matplotlib, save

# As in the paper, ratios to the constant bound are drawn up to 100; U_lin goes beyond.
LARGEST_RATIO = 100.0
# Where the hull is softmax itself its gap is rounding: no axis follows it there.
DECADES_SHOWN = 1e4
LARGEST_BOX = 1000.0
FORMATS = ("png", "svg")
MARKERS = "os^Dv<>Ph*X"


@dataclass(frozen=True)
class Drawing:
    """One file, in every format: a figure of several panels, or one panel alone."""

    stem: Path
    caption: str
    columns: int
    panels: tuple[tuple[Panel, list[Any]], ...]


def drawings(study: SynthStudy, folder: Path) -> list[Drawing]:
    """Every figure as a whole, then every panel on its own, as far as there is data."""
    found = []
    for plan in study.plans:
        panels = tuple((panel, rows) for panel in plan.panels if (rows := study.rows(panel)))
        if panels:
            found.append(Drawing(folder / plan.name, plan.caption, plan.columns, panels))
            found += [Drawing(folder / panel.name, "", 1, ((panel, rows),)) for panel, rows in panels]
    return found


def write_drawings(planned: list[Drawing], workers: int) -> Iterator[list[Path]]:
    """Draw and write, one drawing at a time."""
    for _, paths in map_in_processes(_write, planned, workers):
        yield paths


def _write(drawing: Drawing) -> list[Path]:
    figure = _figure(drawing)
    paths = []
    for ending in FORMATS:
        paths.append(save(figure, drawing.stem.parent / f"{drawing.stem.name}.{ending}"))
        figure.set_layout_engine("none")  # the layout found for the first format serves all
    return paths


def _figure(drawing: Drawing) -> Any:
    """A figure of one or several panels with one legend."""
    alone = len(drawing.panels) == 1
    rows = math.ceil(len(drawing.panels) / drawing.columns)
    size = (4.8, 3.4) if alone else (3.2 * drawing.columns, 2.7 * rows + 0.6)
    with matplotlib().rc_context(STYLE):
        figure = matplotlib().figure.Figure(figsize=size, layout="constrained")
        handles: dict[str, Any] = {}
        for axes, (panel, data) in zip(figure.subplots(rows, drawing.columns, squeeze=False).flat, drawing.panels):
            (_draw_sweep if isinstance(panel, Sweep) else _draw_boxes)(axes, data, panel)
            found = zip(*axes.get_legend_handles_labels())
            handles |= {text: handle for handle, text in found if text not in handles}
        figure.suptitle(drawing.caption, x=0.01, ha="left", fontsize=10)
        columns = min(len(handles), 2 * drawing.columns + 3)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _draw_sweep(axes: Any, rows: list[SweepRow], panel: Any) -> None:
    """Mean gaps against the mean probability, one line per bound."""
    names = list(dict.fromkeys(row.bound for row in rows))
    for position, name in enumerate(names):
        for linearised in (False, True):
            own = [row for row in rows if row.bound == name and row.linearised == linearised and row.mean > 0]
            if own:
                axes.errorbar(
                    [row.mu for row in own],
                    [row.mean for row in own],
                    # The lower end must stay visible on a logarithmic axis.
                    yerr=[
                        [min(row.standard_error, 0.9 * row.mean) for row in own],
                        [row.standard_error for row in own],
                    ],
                    color=colour(name),
                    linestyle="--" if linearised else "-",
                    linewidth=1.8 if name == "hull" else 1.2,
                    marker=None if linearised else MARKERS[position % len(MARKERS)],
                    markersize=3,
                    elinewidth=0.8,
                    label=f"{label(name)} plane" if linearised else label(name),
                )
    axes.set_xlim(0, 1.02)
    shown = [row.mean for row in rows if row.mean > 0]
    most = min(max(shown), LARGEST_RATIO) if panel.ratio else max(shown)
    axes.set_ylim(max(min(shown), most / DECADES_SHOWN) / 1.3, 1.3 * most)
    _logarithmic(axes)
    axes.set_xlabel(r"largest mean probability $\mu_{\max}$")
    axes.set_ylabel("mean gap / that of const" if panel.ratio else "mean gap")
    axes.set_title(f"{panel.title}, K = {panel.size}")


def _draw_boxes(axes: Any, rows: list[BoxRow], panel: Any) -> None:
    """Box plots of ratios of gaps, one group per number of logits."""
    sizes = list(dict.fromkeys(row.size for row in rows))
    # The paper's partner of a size, then what is beyond the paper: one group of boxes per size.
    groups = [[row for row in rows if row.size == size] for size in sizes]
    most = max(len(group) for group in groups)
    width = 0.8 / most
    for place in range(most):
        named: set[str] = set()
        for position, group in enumerate(groups):
            row = group[place]
            shown = {name: min(getattr(row, name), 10 * LARGEST_BOX) for name in ("p5", "q25", "median", "q75", "p95")}
            box = {
                "whislo": shown["p5"],
                "q1": shown["q25"],
                "med": shown["median"],
                "q3": shown["q75"],
                "whishi": shown["p95"],
                "fliers": [],
            }
            tint = colour(row.partner)
            centre = position + (place - (most - 1) / 2) * width
            axes.bxp(
                [box],
                positions=[centre],
                widths=0.85 * width,
                showfliers=False,
                manage_ticks=False,
                patch_artist=True,
                boxprops={"facecolor": tint + "55", "edgecolor": tint, "linewidth": 0.8},
                medianprops={"color": tint, "linewidth": 1.6},
                whiskerprops={"color": tint, "linewidth": 0.8},
                capprops={"color": tint, "linewidth": 0.8},
            )
            if row.p5 > LARGEST_BOX:
                # All of the box lies above what is drawn: the partner has no gap worth speaking of.
                axes.plot(centre, 0.97, "^", color=tint, markersize=4, transform=axes.get_xaxis_transform())
            if row.partner not in named:
                named.add(row.partner)
                axes.plot([], [], color=tint, linewidth=4, label=f"ER / {label(row.partner)}")
    axes.axhline(1, color="black", linewidth=0.8)
    largest = max(min(row.p95, LARGEST_BOX) for row in rows)
    smallest = min(row.p5 for row in rows)
    axes.set_ylim(min(max(smallest / 1.2, 0.1), 0.8), max(largest * 1.3, 3))
    _logarithmic(axes)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=7)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("number of logits K")
    axes.set_ylabel("ratio of mean gaps")
    axes.set_title(panel.title)


def _logarithmic(axes: Any) -> None:
    """A logarithmic axis with numbers a reader takes in at once: 0.2, 0.5, 1, 2, not powers of ten."""
    ticker = matplotlib().ticker
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    steps = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, position: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
