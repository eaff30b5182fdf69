"""``softhull paper uncertainty``: certified scores of the paper's ensembles."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import out_folder_option, threads_option, use_threads
from ..output import console, with_progress


@click.command("uncertainty", short_help="Section 7.1: certified scores of ensembles.")
@click.option(
    "--artifact",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of the paper's artifact, or one with its networks in models/.",
)
@click.option("--dataset", required=True, type=click.Choice(["mnist", "mnist-large", "cifar10"]))
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Test inputs: npz, IDX or CIFAR-10 binary; default: looked for in the folder.",
)
@click.option("--images", type=click.IntRange(min=1), default=100, show_default=True, help="How many images.")
@click.option("--separate", is_flag=True, help="The appendix's relaxation: every network has its own input.")
@out_folder_option(text="Folder for CSV files.")
@threads_option
def command(
    artifact: Path,
    dataset: str,
    data: Path | None,
    images: int,
    separate: bool,
    out: Path | None,
    threads: int,
) -> None:
    """Section 7.1 and its appendix: worst negative log-likelihood and Brier score of deep ensembles.

    Prints tab:UQ, tab:UQ_large or tab:UQ_cifar (or tab:UQ_separate) with the attack of tab:UQ_with_attack and the
    running times, every cell as printed / ours. The printed bounds are primal values of a first-order solver, ours
    are certified; the column `all` is the default relaxation. Ctrl-C prints what is there.

    \b
    Example
      softhull paper uncertainty --artifact artifact --dataset mnist --images 20
    """

    from ...formats.datasets import load_dataset
    from ...formats.onnx import load_onnx
    from ...paper.uncertainty import UncertaintyTable, data_file, ensemble_files
    from ...report.score_tables import score_table, seconds_table

    use_threads(threads)
    networks = [load_onnx(path) for path in ensemble_files(artifact, dataset)]
    inputs = load_dataset(data or data_file(artifact, dataset))
    if images > len(inputs):
        raise click.BadParameter(f"{inputs.path} holds {len(inputs)} inputs", param_hint="--images")
    table = UncertaintyTable(dataset, separate, images)
    total = len(table.settings()) * len(table.columns)
    done = 0
    try:
        for _ in with_progress(table.run(networks, inputs), total, "cells"):
            done += 1
    finally:
        # Also after Ctrl-C: what was done so far.
        if table.rows:
            screen = console()
            screen.print(score_table(table))
            screen.print(seconds_table(table))
            click.echo(f"{done} of {total} cells")
            if out is not None:
                click.echo(f"wrote {', '.join(str(path) for path in table.write_csv(out))}")
