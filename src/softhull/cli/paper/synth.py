"""``softhull paper synth``: gaps of all bounds on synthetic input regions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..options import out_folder_option, workers_option
from ..output import with_progress

if TYPE_CHECKING:
    from ...paper.synth import SynthStudy


@click.command("synth", short_help="Section 6: gaps of all bounds on synthetic regions.")
@out_folder_option("out/synth", "Folder for the CSV files and figures.")
@click.option("--regions", type=click.IntRange(min=2), default=100, show_default=True, help="Regions per setting.")
@click.option("--points", type=click.IntRange(min=1), default=1000, show_default=True, help="Points per region.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
@workers_option
def command(out: Path, regions: int, points: int, seed: int, workers: int) -> None:
    """Section 6 and its appendix: mean gaps of all bounds on synthetic input regions.

    Every panel is written as CSV, PNG and SVG: the main figure (K = 16 over mu, box plots over K), the linearised
    bounds, the gaps without ratios, K = 2 and K = 128, half-widths 0.2 and 2. Bounds that iterate (hull) are averaged
    over at most 250 of the points.

    At the default size it takes about six CPU minutes, shared by the workers. For a quick look, --regions 20
    --points 200 takes less than one, most of it for the 92 figures.

    \b
    Examples
      softhull paper synth --out out/synth
      softhull paper synth --regions 20 --points 200 --out out/quick
    """
    from ...paper.synth import SynthStudy, figure_plans
    from ...report.figures import matplotlib

    matplotlib()  # Missing: say so now, not after minutes of work.
    study = SynthStudy(figure_plans(), regions, points, seed)
    total = len(study.tasks())
    # Measured: 30 CPU seconds for figures and start, the rest in proportion to the points.
    minutes = (30 + 340 * regions * points / 100_000) / 60
    click.echo(f"about {minutes:.1f} CPU minutes on {workers} workers; smaller: --regions 20 --points 200", err=True)
    try:
        for _ in with_progress(study.run(workers), total, "settings"):
            pass
    finally:
        # Also after Ctrl-C: what was done so far.
        if study.gaps:
            _write(study, out, total, workers)


def _write(study: SynthStudy, out: Path, total: int, workers: int) -> None:
    from ...report.synth_figures import drawings, write_drawings

    tables = study.write_csv(out)
    planned = drawings(study, out)
    figures = sum(map(len, with_progress(write_drawings(planned, workers), len(planned), "figures")))
    click.echo(f"{len(study.gaps)} of {total} settings, {study.regions} regions of {study.points} points each")
    click.echo(f"wrote {len(tables)} tables and {figures} figures to {out}")
