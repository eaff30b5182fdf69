"""How results present themselves: plain values for JSON, HTML tables, data frames and plots for notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from .errors import MissingExtra

MOST_ROWS = 20  # of an HTML table


def html_table(title: str, rows: Sequence[Mapping[str, Any]], most: int = MOST_ROWS) -> str:
    """A title and the first rows as HTML; every cell is text, whatever it holds."""
    if not rows:
        return f"<p>{html.escape(title)}</p>"
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = _row("th", names)
    body = "".join(_row("td", (_cell(row.get(name)) for name in names)) for row in rows[:most])
    rest = f"<p>{len(rows) - most} more rows; to_pandas() has all</p>" if len(rows) > most else ""
    return f"<p>{html.escape(title)}</p><table><thead>{head}</thead><tbody>{body}</tbody></table>{rest}"


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame with one line per row; MissingExtra where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra("to_pandas() needs pandas: pip install 'softhull[pandas]'") from None
    return pandas.DataFrame(list(rows))


def matplotlib() -> Any:
    """The plotting library, or an error that names the extra that brings it."""
    try:
        import matplotlib
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError:
        raise MissingExtra("figures need matplotlib: pip install 'softhull[plot]'") from None
    return matplotlib


def new_axes(axes: Any = None) -> Any:
    """The axes to draw on: those given, or those of a new figure, which a notebook shows by itself."""
    if axes is not None:
        return axes
    figure = matplotlib().figure.Figure(figsize=(6, 3.6), layout="constrained")
    return figure.add_subplot()


Chosen = Callable[[str, dict[str, Any], dict[str, Any]], dict[str, Any]]


def plain(value: Any, chosen: Chosen = lambda kind, values, usual: values) -> Any:
    """Dataclasses, tuples and numbers as JSON knows them; a dataclass says its kind.

    ``chosen(kind, values, defaults)`` says which fields of a dataclass to keep.
    """
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value).__name__
        found = {f.name: plain(getattr(value, f.name), chosen) for f in fields(value)}
        return {"kind": kind} | chosen(kind, found, {f.name: f.default for f in fields(value)})
    if isinstance(value, Mapping):
        return {str(key): plain(item, chosen) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, chosen) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
