"""``softhull demo``: what the library does, in two minutes."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile

import click

from .options import out_folder_option
from .output import console

LOWER, UPPER = (-1.0, 0.0, 2.0), (0.0, 1.0, 3.0)
IMAGES = 100


@click.command("demo", short_help="Bounds, a figure, and two networks certified with a report at the end.")
@out_folder_option("out/demo", "Folder for what the demonstration writes.")
@click.option(
    "--images", type=click.IntRange(1, IMAGES), default=IMAGES, show_default=True, help="How many images to certify."
)
@click.option("--only-files", is_flag=True, help="Write the networks, the images and the campaign to try, and stop.")
def command(out: Path, images: int, only_files: bool) -> None:
    """Every bound for a sample box, the first figure, then a campaign over the networks that come with softhull.

    An attention network and an ensemble of five are certified for 100 images at three radii; the answers stay in
    runs.db, the report is report.html. Started again, it goes on where it stopped.

    \b
    Examples
      softhull demo --out out/demo
      softhull demo --images 10
      softhull demo --only-files --out digits
    """
    from ..data import BUNDLED, bundled

    for name in BUNDLED:
        copyfile(bundled(name), out / name)
    campaign = out / "digits.toml"
    campaign.write_text(campaign.read_text().replace(f'indices = "0:{IMAGES}"', f'indices = "0:{images}"'))
    click.echo(f"networks, images and campaign are in {out}")
    if only_files:
        return

    from ..report.tables import point_table
    from ..study.point import bounds_at_point

    console().print(point_table(bounds_at_point(LOWER, UPPER)))

    from ..report.figures import save, sigmoid_figure

    click.echo(f"wrote {save(sigmoid_figure(), out / 'figure1.png')}")

    from .report import command as report
    from .run import command as run

    context = click.get_current_context()
    store = out / "runs.db"
    click.echo(f"\nsofthull run {campaign} --store {store}")
    context.invoke(run, campaign=str(campaign), store=str(store))
    click.echo(f"\nsofthull report {store} -o {out / 'report.html'}")
    context.invoke(report, stores=(store,), out=out / "report.html")
