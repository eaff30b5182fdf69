"""``softhull paper attention``: certified images of the attention networks, and what both attention tables share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import NumberList, json_option, out_option, threads_option, together, use_threads
from ..output import console, is_stdout, with_progress, write_json

if TYPE_CHECKING:
    from ...paper.attention import AttentionStudy, Experiment


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of both attention tables, in the order of the help text."""
    options = (
        click.option(
            "--artifact",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="Folder laid out like the paper's artifact, or with models/ inside.",
        ),
        click.option(
            "--data",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="npz with x and y, or IDX; default: the file of that name in the folder.",
        ),
        click.option("--images", type=click.IntRange(min=1), default=500, show_default=True, help="How many images."),
        click.option("--eps", "radii", type=NumberList(least=0), help="Radii, separated by commas; default: printed."),
        click.option("--optimize", type=click.IntRange(min=1), default=20, show_default=True, help="Gradient steps."),
        click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the attack."),
        threads_option,
        out_option(text="Write the rows to this CSV file."),
        json_option,
    )
    return together(*options)(command)


@click.command("attention", short_help="Section 7.2: certified images of attention networks on MNIST.")
@click.option(
    "--networks",
    default="small,medium,big",
    show_default=True,
    help="Names in the table or paths of ONNX files, separated by commas.",
)
@shared_options
def command(**options: Any) -> None:
    """The first table of section 7.2: certified percentages on MNIST, printed cells in brackets.

    Both properties: `all` (no class ever overtakes the label) and `runner-up` (the clean runner-up class never becomes
    the largest), which is what the paper printed. Columns lin to LSE* are the method of the paper; hull and hull + opt
    the default method without and with gradient steps; portfolio is what any column proves; ceiling is what the attack
    does not break. A network that cannot be read is named and left out.

    \b
    Examples
      softhull paper attention --artifact DIR --data images.npz --networks small,medium
      softhull paper attention --networks my-network.onnx --data images.npz --images 100 --eps 0.01
    """
    from ...paper.attention import MNIST

    show_table(MNIST, **options)


def show_table(
    experiment: Experiment,
    networks: str,
    artifact: Path | None,
    data: Path | None,
    images: int,
    radii: tuple[float, ...] | None,
    optimize: int,
    seed: int,
    threads: int,
    out: Path | None,
    json_out: Path | None,
) -> None:
    """Compute and print one table; after Ctrl-C what was done so far."""

    from ...formats.datasets import load_dataset
    from ...paper.attention import AttentionStudy, load_networks

    use_threads(threads)
    if data is None:
        data = artifact / experiment.data if artifact is not None else None
        if data is None or not data.is_file():
            raise click.UsageError(f"name --data; there is no {experiment.data} in the folder of --artifact")
    dataset = load_dataset(data)
    found, missing = load_networks(experiment, [name.strip() for name in networks.split(",")], artifact)
    if not found:
        raise click.UsageError("; ".join(missing))
    for line in missing:
        click.echo(f"softhull: left out: {line}", err=True)
    study = AttentionStudy(experiment, found, dataset, images, radii, optimize, seed)
    try:
        for _ in with_progress(study.run(), len(study), "batches of images"):
            pass
    finally:
        # Also after Ctrl-C: what was done so far.
        if study.done():
            _report(study, out, json_out)


def _report(study: AttentionStudy, out: Path | None, json_out: Path | None) -> None:
    """Prints and writes what the study has found so far."""
    from ...report.tables import attention_table

    if not is_stdout(json_out):
        console().print(attention_table(study))
        cells = [equal for row in study.done() for equal in (row.equal_cells() or {}).values()]
        if cells:
            click.echo(f"{sum(cells)} of {len(cells)} printed cells are equal to the image")
    failed = {i: why for row in study.done() for i, why in row.failed.items()}
    for image, why in list(failed.items())[:3]:
        click.echo(f"softhull: image {image}: {why}", err=True)
    if out is not None:
        study.write_csv(out)
    write_json(json_out, study.to_dict())
