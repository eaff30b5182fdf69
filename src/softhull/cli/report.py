"""``softhull report``: a run store as a page to look at."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from .options import out_option, refuse


@click.command("report", short_help="A run store as one HTML page.")
@click.argument(
    "stores", metavar="STORES...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
@out_option("report.html")
@click.option(
    "--data",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A data file of the runs, where it is no longer at its old place; may be repeated.",
)
@click.option("--images/--no-images", default=True, show_default=True, help="Show inputs and worst inputs.")
def command(stores: tuple[Path, ...], out: Path, data: tuple[Path, ...], images: bool) -> None:
    """Write one self-contained HTML page about all of STORES: tables, charts, images, what is needed to reproduce.

    Several stores stand side by side: methods are told apart by the store that holds their answers.

    It opens from disk and needs no network. Inputs are shown only where the data file still holds what was verified.

    \b
    Examples
      softhull report runs.db -o report.html
      softhull report runs.db --data moved/images.npz
      softhull report before.db after.db -o both.html
    """
    if not images:
        refuse("--no-images shows none of it", "data")
    from ..report.html import report_html
    from ..runs.store import Store

    with ExitStack() as stack:
        opened = [stack.enter_context(Store.read(store)) for store in stores]
        page = report_html(opened, data, images)
    out.write_text(page, encoding="utf-8")
    click.echo(f"wrote {out} ({len(page.encode()) / 1e6:.1f} MB)")
