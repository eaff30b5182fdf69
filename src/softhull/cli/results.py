"""``softhull results``: what a store holds, as a table or a file."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import printable
from .options import Name, out_option, refuse
from .output import console

if TYPE_CHECKING:
    from ..runs.rows import Row

FORMATS = ("table", "csv", "json", "parquet")


@click.command("results", short_help="The answers of a run store, as table, CSV, JSON or Parquet.")
@click.argument("store", type=click.Path(exists=True, dir_okay=False))
@click.option("--where", multiple=True, help="Only rows such as verdict=certified or 'eps<=0.02'; may be repeated.")
@click.option("--format", "kind", type=Name("format", FORMATS), default="table", show_default=True)
@click.option("--summary", is_flag=True, help="Counts and means per task instead of one line per instance.")
@out_option(text="The file to write; default: standard output.")
def command(store: str, where: tuple[str, ...], kind: str, summary: bool, out: Path | None) -> None:
    """List what STORE holds, one line per instance.

    Columns can be compared with = != < <= > >=, several comparisons joined by 'and'. 'bound' is the certified number;
    compared with a name it is the softmax bound.

    \b
    Examples
      softhull results runs.db --where verdict=certified --where 'eps<=0.02'
      softhull results runs.db --where 'bound=hull and verdict!=certified' --format csv --out open.csv
      softhull results runs.db --summary
    """
    from ..runs.store import Store
    from ..runs.where import parse_where

    chosen = parse_where(where)
    if kind == "parquet" and out is None:
        raise click.UsageError("--format parquet needs --out FILE")
    if kind != "table":
        refuse("it is a table; leave --format out", "summary")
    with Store.read(store) as opened:
        opened.check_words(chosen)
        rows = opened.rows(chosen)
        if kind == "table":
            _tables(list(rows), sum(p.total for p in opened.progress()), summary, out)
        elif kind == "parquet":
            _parquet(rows, str(out))
        else:
            text = _csv(rows) if kind == "csv" else _json(rows)
            if out is None:
                sys.stdout.write(text)
            else:
                out.write_text(text, encoding="utf-8")


def _tables(rows: list[Row], total: int, summary: bool, out: Path | None) -> None:
    """Prints the rows, or their summary, as tables."""
    from rich.console import Console

    from ..runs.tables import rows_table, summary_tables

    tables = summary_tables(rows, total) if summary else [rows_table(rows)]
    if out is None:
        for table in tables:
            console().print(table)
    else:
        with open(out, "w", encoding="utf-8") as stream:
            for table in tables:
                Console(file=stream, width=200).print(table)


def _plain(rows: Iterator[Row]) -> Iterator[dict[str, Any]]:
    return (row.to_dict() for row in rows)


def _csv(rows: Iterator[Row]) -> str:
    """The rows as CSV, with nothing that a terminal would obey."""
    from ..runs.rows import COLUMNS

    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in _plain(rows):
        row |= {name: json.dumps(row[name], sort_keys=True) for name in ("models", "settings")}
        # A store may be a stranger's, and CSV is looked at in terminals, too.
        writer.writerow({name: printable(cell) if isinstance(cell, str) else cell for name, cell in row.items()})
    return text.getvalue()


def _json(rows: Iterator[Row]) -> str:
    return json.dumps(list(_plain(rows)), indent=2, allow_nan=False) + "\n"


def _parquet(rows: Iterator[Row], out: str) -> None:
    """Writes the rows as a parquet file."""
    from ..errors import MissingExtra

    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtra("--format parquet needs pyarrow; install it with: pip install 'softhull[parquet]'") from None
    from ..runs.rows import COLUMNS, Row

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "str": pyarrow.string()}
    types = {name: kinds[str(Row.__annotations__[name]).split(" ")[0]] for name in COLUMNS}
    listed = list(rows)
    columns = {name: pyarrow.array([getattr(row, name) for row in listed], types[name]) for name in COLUMNS}
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
