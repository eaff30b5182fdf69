"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..study.point import BoundAtPoint, PointStudy, SideAtPoint

BEST = "bold green"
ABSENT = Text("-", style="dim")


def point_table(study: PointStudy) -> Table:
    """Every bound at one point; the tightest value of each side stands out."""
    box = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(study.lower, study.upper))
    point = ", ".join(f"{entry:g}" for entry in study.x)
    where = Text(f"softmax output {study.output} at x = ({point}), logits in {box}")
    table = Table(box=SIMPLE_HEAD, title=where, title_justify="left", title_style="", pad_edge=False)
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
