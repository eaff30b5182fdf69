"""``softhull plot``: pictures of the bounds."""

from __future__ import annotations

from pathlib import Path

import click


@click.group("plot")
def command() -> None:
    """Pictures of the bounds.

    \b
    Example
      softhull plot sigmoid --interval -2 2 --out figure1.png
    """


@command.command()
@click.option("--interval", type=float, nargs=2, default=(-2.0, 2.0), show_default=True, help="Of x_2 - x_1.")
@click.option("--bounds", help="Which bounds, separated by commas; default: all with two curved or sloped sides.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("figure1.png"),
    show_default=True,
    help="PNG, PDF or SVG, by the ending of the name.",
)
def sigmoid(interval: tuple[float, float], bounds: str | None, out: Path) -> None:
    """Figure 1 of the paper with the new bounds: softmax of two logits over an interval of their difference.

    \b
    Example
      softhull plot sigmoid --interval -2 2 --bounds lin,er,lse,hull --out figure1.png
    """
    from ..report.figures import names_in_table, save, sigmoid_figure

    names = None if bounds is None else names_in_table((name.strip() for name in bounds.split(",")), size=2)
    click.echo(f"wrote {save(sigmoid_figure(interval, names), out)}")
