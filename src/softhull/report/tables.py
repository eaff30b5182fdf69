"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..errors import one_line
from ..study.point import BoundAtPoint, PointStudy, SideAtPoint
from ..study.tightness import SIDES, TightnessStudy
from ..verify.result import Result, Verdict

if TYPE_CHECKING:  # at run time this would load torch for every table
    from ..formats.describe import NetworkRow
    from ..paper.attention import AttentionStudy

BEST = "bold green"
ABSENT = Text("-", style="dim")


def point_table(study: PointStudy) -> Table:
    """Every bound at one point; the tightest value of each side stands out."""
    box = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(study.lower, study.upper))
    point = ", ".join(f"{entry:g}" for entry in study.x)
    where = f"softmax output {study.output} at x = ({point}), logits in {box}"
    table = _plain_table(where)
    table.add_column("bound", no_wrap=True)
    for heading in ("lower", "p", "upper", "p - lower", "upper - p"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("curvature")
    table.add_column("equation")
    smallest = [_smallest(side.gap for side in sides if side) for sides in zip(*_sides(study.bounds))]
    for bound in study.bounds:
        both = (bound.lower, bound.upper)
        styles = [BEST if side and side.gap <= least else "" for side, least in zip(both, smallest)]
        values = [Text(f"{side.value:.6g}", style) if side else ABSENT for side, style in zip(both, styles)]
        gaps = [Text(f"{side.gap:.3g}", style) if side else ABSENT for side, style in zip(both, styles)]
        probability = f"{study.probability:.6g}"
        curvature = ", ".join(dict.fromkeys(side.curvature for side in both if side))
        equation = _joined(side.equation for side in both if side)
        table.add_row(bound.name, values[0], probability, values[1], *gaps, curvature, equation)
    return table


def _sides(bounds: Iterable[BoundAtPoint]) -> list[tuple[SideAtPoint | None, SideAtPoint | None]]:
    return [(bound.lower, bound.upper) for bound in bounds]


def _smallest(gaps: Iterable[float]) -> float:
    return min(gaps, default=float("inf"))


def _joined(parts: Iterable[str]) -> str:
    """Both sides in one cell: the words they share at the start are said once."""
    first, *rest = list(dict.fromkeys(parts)) or ["not defined for this number of logits"]
    words = [part.split(" ") for part in (first, *rest)]
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words)))
    return ", ".join([first, *(" ".join(other[shared:]) for other in words[1:])])


def tightness_cells_table(study: TightnessStudy, side: str, equal: bool) -> Table:
    """Mean looseness in every cell, one column per bound."""
    summary = study.summary(side, equal)
    table = _plain_table(f"looseness of {side} bounds, {_kind(equal)} (1 = the exact envelope)")
    for heading in ("K", "half-width", "mu", "p", *summary):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in study.done:
        cell = result.cell
        if cell.equal == equal:
            present = [name in result.looseness[side] for name in summary]
            means = [result.mean(side, name) if here else None for name, here in zip(summary, present)]
            about = (str(cell.size), f"{cell.half_width:g}", f"{cell.mu:g}", "high" if cell.high else "low")
            table.add_row(*about, *_marked(means))
    return table


def tightness_summary_table(study: TightnessStudy, equal: bool) -> Table:
    """Mean over the cells, worst cell and worst region of every bound, both sides."""
    table = _plain_table(f"looseness, {_kind(equal)} (1 = the exact envelope, nothing left to gain)")
    table.add_column("bound", no_wrap=True)
    for side in SIDES:
        for heading in (f"{side}: mean", "worst cell", "worst region"):
            table.add_column(heading, justify="right", no_wrap=True)
    sides = [study.summary(side, equal) for side in SIDES]
    columns = []
    names = list(dict.fromkeys(name for summary in sides for name in summary))
    for summary in sides:
        for field in ("mean", "worst_cell", "worst_region"):
            columns.append(_marked([getattr(summary[name], field) if name in summary else None for name in names]))
    for name, *cells in zip(names, *columns):
        table.add_row(name, *cells)
    return table


def _plain_table(title: str) -> Table:
    return Table(box=SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="", pad_edge=False)


def _kind(equal: bool) -> str:
    return "equal half-widths" if equal else "half-widths uniform in .5 to 1 of the nominal one"


def _marked(looseness: Iterable[float | None]) -> list[Text]:
    """Numbers with the smallest one standing out."""
    values = list(looseness)
    least = _smallest(value for value in values if value is not None)
    return [
        ABSENT if value is None else Text(f"{value:.3f}" if value < 100 else f"{value:.0f}", BEST * (value <= least))
        for value in values
    ]


def network_table(name: str, input_shape: tuple[int, ...], rows: list[NetworkRow]) -> Table:
    """The nodes of a network and how each is relaxed."""
    total = sum(row.parameters for row in rows)
    table = _plain_table(f"{name}: input {list(input_shape)}, {len(rows)} nodes, {total:,} parameters")
    for heading in ("", "operator", "inputs", "shape", "parameters", "relaxed", "name in the file"):
        table.add_column(heading, justify="right" if heading in ("", "parameters") else "left")
    for row in rows:
        inputs = ", ".join("input" if i < 0 else str(i) for i in row.inputs)
        shape = " x ".join(map(str, row.shape))
        table.add_row(
            str(row.index), row.operator, inputs, shape, f"{row.parameters:,}", row.relaxation, Text(row.node)
        )
    return table


def verdict_table(result: Result) -> Table:
    """How many instances got which verdict, and what can be done about the rest."""
    rounded = "" if result.rounding == "outward" else "; rounded to nearest: certified up to rounding errors"
    stored = sum(record.from_store for record in result.records)
    read = f"; {stored} read from the store (--recheck computes them again)" if stored else ""
    table = _plain_table(f"{len(result)} instances, {result.cpu_seconds:.1f} CPU seconds{rounded}{read}")
    table.add_column("verdict")
    table.add_column("instances", justify="right")
    table.add_column("share", justify="right")
    table.add_column("meaning")
    for verdict in Verdict:
        count = result.count(verdict)
        if count:
            share = f"{100 * count / len(result):.1f} %"
            table.add_row(verdict.value, str(count), share, verdict.advice)
    return table


def radius_table(rows: list[dict[str, Any]], cap: float) -> Table:
    """The largest certified radius of every instance, and the smallest that an attack broke."""
    capped = sum(row["capped"] for row in rows)
    more = f"; {capped} are certified up to the cap: raise --eps to see how far they go" if capped else ""
    table = _plain_table(f"certified radius of {len(rows)} instances, up to {cap:g}{more}")
    for heading in ("index", "label", "certified", "attacked"):
        table.add_column(heading, justify="right")
    for row in rows:
        certified = "misclassified" if row["certified"] is None else f"{row['certified']:.5g}"
        attacked = "not found" if row["attacked"] is None else f"{row['attacked']:.5g}"
        cap_mark = " (cap)" if row["capped"] else ""
        table.add_row(str(row["index"]), str(row["label"]), certified + cap_mark, attacked)
    return table


_INSTANCE = {
    "index": "input",
    "label": "label",
    "predicted": "predicted",
    "verdict": "verdict",
    "new_class": "new class",
    "clean": "clean",
    "attack": "attack",
    "bound": "certified",
    "cpu_seconds": "CPU s",
}


def instance_table(instances: list[dict[str, Any]]) -> Table:
    """One line per instance, the columns that any of them has, and what went wrong."""
    present = [name for name in _INSTANCE if any(row.get(name) is not None for row in instances)]
    said = any(row.get("message") for row in instances)
    table = _plain_table("margins to the nearest class" if instances and "clean" not in instances[0] else "scores")
    for name in present:
        table.add_column(_INSTANCE[name], justify="left" if name == "verdict" else "right", no_wrap=True)
    if said:
        table.add_column("message")
    for row in instances:
        cells = [_value(row.get(name)) for name in present]
        table.add_row(*cells, *([Text(one_line(row.get("message", "")))] if said else []))
    return table


def _value(value: Any) -> Text:
    if value is None:
        return ABSENT
    return Text(f"{value:.5g}" if isinstance(value, float) else str(value))


def attention_table(study: AttentionStudy) -> Table:
    """Certified percentages per network, radius and property; a printed cell follows ours in brackets."""
    from ..paper.attention import ALL_COLUMNS, COLUMNS

    table = _plain_table(f"{study.experiment.name}: certified % of the images (printed in the paper)")
    for heading in ("network", "eps", "property", "images", "correct", *ALL_COLUMNS):
        table.add_column(heading, justify="left" if heading in ("network", "property") else "right", no_wrap=True)
    rows = study.done()
    for place, row in enumerate(rows):
        cells = [Text(f"{row.percentage(column):.1f}") for column in ALL_COLUMNS]
        for cell, column in zip(cells, ALL_COLUMNS):
            if column in row.printed:
                cell.append(f" ({row.printed[column]:.1f})", style="dim")
        table.add_row(row.network, f"{row.eps:g}", row.kind, str(row.images), str(row.correct), *cells)
        if place + 1 == len(rows) or rows[place + 1].network != row.network:
            spent = study.milliseconds(row.network)
            times = (f"{spent[column]:.1f} ms" for column in COLUMNS)
            table.add_row(row.network, "", "CPU an image", "", "", *times, end_section=True)
    return table
