"""``softhull tightness``: every bound against the exact envelope."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import NumberList, json_option, workers_option
from .output import console, is_stdout, with_progress, write_json

if TYPE_CHECKING:
    from ..study.tightness import TightnessStudy


@click.command("tightness", short_help="Looseness of every bound against the exact envelope.")
@click.option("--k", "sizes", type=NumberList(int), default="2,3,4", show_default=True, help="Numbers of logits.")
@click.option("--half-width", type=NumberList(), default="0.2,1,2", show_default=True, help="Half-widths of the boxes.")
@click.option("--mu", type=NumberList(), default="0.5,0.8,0.95", show_default=True, help="Largest mean probability.")
@click.option("--equal/--unequal", default=None, help="One kind of half-widths only; default: both.")
@click.option("--regions", type=click.IntRange(min=1), default=10, show_default=True, help="Regions per setting.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed of the regions.")
@json_option
@workers_option
def command(
    sizes: tuple[int, ...],
    half_width: tuple[float, ...],
    mu: tuple[float, ...],
    equal: bool | None,
    regions: int,
    seed: int,
    json_out: Path | None,
    workers: int,
) -> int:
    """Looseness of every bound against the exact envelope of softmax.

    Looseness of a lower bound L at the midpoint m of a box: (mean p - L(m)) / (mean p - envelope(m)); 1 means that
    no affine bound has a smaller mean gap. Boxes are drawn around Dirichlet samples as in section 6 of the paper, with
    the output studied being the one of large mean mu (high) or another one (low). Exit code 1 when in some
    region a bound is tighter than the hull, or passes the envelope.

    \b
    Examples
      softhull tightness
      softhull tightness --k 3 --half-width 1 --regions 3 --equal --json
    """
    from ..study.tightness import TightnessStudy, tightness_cells

    kinds = (True, False) if equal is None else (equal,)
    study = TightnessStudy(tightness_cells(sizes, half_width, mu, kinds), regions, seed)
    try:
        for _ in with_progress(study.run(workers), len(study.cells), "cells"):
            pass
    finally:
        # Also after Ctrl-C: what was done so far.
        if study.results:
            write_json(json_out, _plain(study, kinds))
            if not is_stdout(json_out):
                _show(study, kinds)
    return 1 if study.broken else 0


def _show(study: TightnessStudy, kinds: tuple[bool, ...]) -> None:
    """Prints the cells and the summary of a study."""
    from ..report.tables import tightness_cells_table, tightness_summary_table
    from ..study.tightness import SIDES, grid_description

    screen = console()
    for equal in kinds:
        for side in SIDES:
            screen.print(tightness_cells_table(study, side, equal))
    for equal in kinds:
        screen.print(tightness_summary_table(study, equal))
    screen.print(f"{len(study.results)} of {len(study.cells)} cells, {study.regions} regions each, seed {study.seed}")
    screen.print(f"envelope: {grid_description(cell.size for cell in study.cells)};", soft_wrap=True)
    screen.print(f"  largest error found {100 * study.envelope_error:.3f} % of the envelope's gap")
    for sentence in study.broken:
        screen.print(f"BROKEN: {sentence}", soft_wrap=True)
    verdict = f"{len(study.broken)} violations" if study.broken else "holds"
    checked = f"{verdict} ({study.regions_checked} regions)"
    screen.print(f"at the midpoint hull is never looser than any other bound, none passes the envelope: {checked}")


def _plain(study: TightnessStudy, kinds: tuple[bool, ...]) -> dict[str, Any]:
    """The study as plain values."""
    from ..study.tightness import SIDES, grid_description

    def summary(equal: bool) -> dict[str, Any]:
        return {side: {name: asdict(row) for name, row in study.summary(side, equal).items()} for side in SIDES}

    cells = [
        asdict(result.cell)
        | {"looseness": {side: {name: result.mean(side, name) for name in result.looseness[side]} for side in SIDES}}
        | {"regions": result.looseness, "envelope_error": result.envelope_error}
        for result in study.done
    ]
    return {
        "seed": study.seed,
        "regions_per_cell": study.regions,
        "cells_asked": len(study.cells),
        "cells_done": len(study.results),
        "envelope": grid_description(cell.size for cell in study.cells),
        "envelope_error": study.envelope_error,
        "hull_never_looser": {"holds": not study.broken, "regions": study.regions_checked, "broken": study.broken},
        "summary": {"equal" if equal else "unequal": summary(equal) for equal in kinds},
        "cells": cells,
    }
