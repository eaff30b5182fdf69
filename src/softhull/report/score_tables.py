"""Tables of certified scores for the terminal: every cell as printed in the paper / as computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # at run time this would load torch for every table
    from ..paper.uncertainty import Cell, UncertaintyTable


def score_table(table: UncertaintyTable) -> Table:
    """Mean scores: clean, under attack, and the certified bound of every column."""
    drawn = _empty(f"{table.names} ({table.dataset}, first {table.images} images): printed / ours")
    for heading in ("score", "eps", "clean", "attack", *table.columns):
        drawn.add_column(heading, justify="right", no_wrap=True)
    digits = 5 if table.dataset == "mnist-large" else 4
    for row in table.rows:
        cells = [row.clean, row.attack, *(row.bounds.get(name) for name in table.columns)]
        drawn.add_row(row.score, f"{row.eps:g}", *(_pair(cell, digits) for cell in cells))
    return drawn


def seconds_table(table: UncertaintyTable) -> Table:
    """Seconds an instance; the printed ones are of other hardware and software and no baseline for a ratio."""
    drawn = _empty("tab:runtime, seconds an instance: printed / ours (CPU, neuron bounds included)")
    for heading in ("dataset", *table.columns):
        drawn.add_column(heading, justify="right", no_wrap=True)
    seconds = table.seconds()
    name = table.dataset + (", separate" if table.separate else "")
    drawn.add_row(name, *(_pair(seconds.get(column), 3) for column in table.columns))
    return drawn


def _empty(title: str) -> Table:
    return Table(box=SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="", pad_edge=False)


def _pair(cell: Cell | None, digits: int) -> str:
    if cell is None:
        return "-"
    printed = "-" if cell.printed is None else f"{cell.printed:g}"
    return f"{printed} / {cell.ours:.{digits}f}"
