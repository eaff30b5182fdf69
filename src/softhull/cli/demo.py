"""``softhull demo``: what the library does, in a minute."""

from __future__ import annotations

from pathlib import Path

import click

from .options import console

LOWER, UPPER = (-1.0, 0.0, 2.0), (0.0, 1.0, 3.0)


@click.command("demo", short_help="All bounds for a sample box, and the first figure.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/demo"),
    show_default=True,
    help="Folder for what the demonstration writes.",
)
def command(out: Path) -> None:
    """Print every bound for a sample box and draw the paper's Figure 1 with the new bounds.

    \b
    Example
      softhull demo --out out/demo
    """
    from ..report.tables import point_table
    from ..study.point import bounds_at_point

    screen = console()
    for output in range(len(LOWER)):
        screen.print(point_table(bounds_at_point(LOWER, UPPER, output=output)))

    from ..report.figures import save, sigmoid_figure

    click.echo(f"wrote {save(sigmoid_figure(), out / 'figure1.png')}")
