"""``softhull bounds``: every bound at one point."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .options import NumberList, json_option
from .output import console, is_stdout, write_json


@click.command("bounds", short_help="Every bound at a point of a box of logits.")
@click.option("--lower", type=NumberList(), required=True, help="Lower end of every logit, separated by commas.")
@click.option("--upper", type=NumberList(), required=True, help="Upper end of every logit.")
@click.option("--at", type=NumberList(), help="The point; default: the midpoint of the box.")
@click.option("--output", type=int, default=0, show_default=True, help="Which probability, counted from 0.")
@json_option
def command(
    lower: tuple[float, ...], upper: tuple[float, ...], at: tuple[float, ...] | None, output: int, json_out: Path | None
) -> None:
    """Every bound of the table on one softmax output, at a point of a box of logits.

    \b
    Examples
      softhull bounds --lower=-1,0,2 --upper=0,1,3
      softhull bounds --lower=-1,0,2 --upper=0,1,3 --at=-1,1,2 --output 2 --json
    """
    from ..study.point import bounds_at_point

    study = bounds_at_point(lower, upper, at, output)
    write_json(json_out, asdict(study))
    if is_stdout(json_out):
        return
    from ..report.tables import point_table

    console().print(point_table(study))
