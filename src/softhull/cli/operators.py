"""``softhull operators``: what of ONNX is read, how it is relaxed, and whether certificates cover it."""

from __future__ import annotations

from pathlib import Path

import click

from .options import json_option, refuse
from .output import console, is_stdout, write_json


@click.command("operators", short_help="The ONNX operators that are read, relaxed and checked.")
@json_option
@click.option("--markdown", is_flag=True, help="Print the table of the documentation.")
def command(json_out: Path | None, markdown: bool) -> None:
    """Every ONNX operator the importer reads: versions, relaxation, and the operator sets the checker reads it in.

    \b
    Examples
      softhull operators
      softhull operators --json
    """
    from ..checker.network import OPERATORS
    from ..formats.onnx_table import as_markdown, operators

    checked = {name: [(rule.since, rule.until) for rule in rules] for name, rules in OPERATORS.items()}
    rows = operators(checked)
    write_json(json_out, rows)
    if is_stdout(json_out):
        refuse("--json already fills standard output", "markdown")
        return
    if markdown:
        click.echo(as_markdown(rows))
        return
    from rich.table import Table

    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    console().print(table)
