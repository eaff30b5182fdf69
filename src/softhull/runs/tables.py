"""What the store says, as tables for the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..errors import one_line
from .compare import Comparison
from .rows import Row
from .store import VERDICTS

SHOWN = (
    "index",
    "label",
    "verdict",
    "bound",
    "attack",
    "clean",
    "question",
    "network",
    "eps",
    "method",
    "softmax_bound",
    "run",
)


def summary_tables(rows: Iterable[Row], total: int) -> list[Table]:
    """Verdicts per task for classes, mean brackets per task for scores."""
    tasks: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        tasks[row.task].append(row)
    done = sum(map(len, tasks.values()))
    title = f"{done} of {total} instances answered"
    classes = [task for task in tasks.values() if task[0].score is None]
    scores = [task for task in tasks.values() if task[0].score is not None]
    found = []
    if classes or not scores:
        used = [v for v in VERDICTS if any(row.verdict == v for task in classes for row in task)]
        table = _table(title, ("network", "data", "eps", "property", "method", "bound"), (*used, "CPU ms"))
        for task in classes:
            first, counts = task[0], Counter(row.verdict for row in task)
            about = (
                first.network,
                first.data,
                f"{first.eps:g}",
                first.property or "",
                first.method,
                first.softmax_bound,
            )
            _add_row(table, *about, *(str(counts[v]) for v in used), _milliseconds(task))
        found.append(table)
    if scores:
        heading = ("network", "data", "eps", "score", "method", "bound")
        table = _table(title if not classes else "", heading, ("clean", "attack", "certified", "errors", "CPU ms"))
        for task in scores:
            first = task[0]
            about = (first.network, first.data, f"{first.eps:g}", first.score or "", first.method, first.softmax_bound)
            means = (_mean([getattr(row, name) for row in task]) for name in ("clean", "attack", "bound"))
            errors = sum(row.verdict == "error" for row in task)
            _add_row(table, *about, *means, str(errors), _milliseconds(task))
        found.append(table)
    return found


def rows_table(rows: Iterable[Row]) -> Table:
    """One line per instance."""
    table = _table("", (), SHOWN)
    for row in rows:
        _add_row(table, *(_cell(getattr(row, name)) for name in SHOWN))
    return table


def comparison_tables(comparison: Comparison, by: str) -> list[Table]:
    """The sides of a comparison, then its pairs."""
    scored = comparison.score is not None
    about = f"{comparison.question}{f' ({comparison.score})' if scored else ''}, {comparison.instances} instances"
    title = about if scored else f"{about}, {comparison.together} certified by at least one"
    numbers = ("mean bound", "tightest") if scored else ("certified", "by no other")
    sides = _table(title, (by,), (*numbers, "median CPU ms", "CPU seconds"))
    for side in comparison.sides:
        own = (_cell(side.bound), str(side.tightest)) if scored else (str(side.certified), str(side.alone))
        _add_row(sides, side.value, *own, f"{1000 * side.median_cpu:.3g}", f"{side.total_cpu:.3g}")
    pairs = _table("", (by, "against"), ("only the first", "only the second", "both", "cost ratio"))
    for pair in comparison.pairs:
        ratio = "-" if pair.cpu_ratio is None else f"{pair.cpu_ratio:.2f}"
        _add_row(pairs, pair.first, pair.second, str(pair.only_first), str(pair.only_second), str(pair.both), ratio)
    return [sides, pairs] if comparison.pairs and not scored else [sides]


def _table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, title=Text(one_line(title)), title_justify="left", title_style="", pad_edge=False)
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _add_row(table: Table, *cells: str) -> None:
    """Cells as text: a store may come from a stranger, and neither a terminal nor the table obeys its words."""
    table.add_row(*(Text(one_line(cell)) for cell in cells))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.4f}" if known else "-"


def _milliseconds(task: Sequence[Row]) -> str:
    return f"{1000 * sum(row.cpu_seconds for row in task) / len(task):.3g}"
