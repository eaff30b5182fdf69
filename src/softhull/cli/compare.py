"""``softhull compare``: what one method certifies and another does not."""

from __future__ import annotations

from pathlib import Path

import click

from .options import Name, json_option
from .output import console, is_stdout, write_json

CHOICES = ("bound", "method", "rounding", "network", "eps", "norm", "property", "version")


@click.command("compare", short_help="What one method certifies and another does not.")
@click.argument("store", type=click.Path(exists=True, dir_okay=False))
@click.option("--by", type=Name("criterion", CHOICES), default="bound", show_default=True, help="What to compare.")
@click.option("--where", multiple=True, help="Only rows such as method=linear or eps=0.02; may be repeated.")
@json_option
def command(store: str, by: str, where: tuple[str, ...], json_out: Path | None) -> None:
    """Compare the answers in STORE to the same questions, over the instances that all sides answered.

    \b
    Examples
      softhull compare runs.db --by bound
      softhull compare runs.db --by method --where eps=0.02
    """
    from ..errors import InvalidInput
    from ..runs.compare import compare
    from ..runs.store import Store
    from ..runs.tables import comparison_tables
    from ..runs.where import parse_where

    with Store.read(store) as opened:
        chosen = parse_where(where)
        opened.check_words(chosen)
        found = compare(opened.rows(chosen), by)
    if not found:
        raise InvalidInput(f"{store}: no answers to compare; see softhull results {store}")
    write_json(json_out, [comparison.to_dict() for comparison in found])
    if is_stdout(json_out):
        return
    for comparison in found:
        for table in comparison_tables(comparison, by):
            console().print(table)
