"""``softhull conformal``: prediction sets that keep their coverage under perturbation."""

from __future__ import annotations

from pathlib import Path

import click

from ..verify.methods import RANGES
from .options import device_option, json_option, method_option, threads_option, use_threads
from .output import console, is_stdout, with_progress, write_json
from .subject import Subject, subject_options


@click.command("conformal", short_help="Coverage and size of robust prediction sets.")
@subject_options(radii=True)
@click.option("--alpha", type=float, default=0.1, show_default=True, help="The share of labels that may be missed.")
@click.option("--scores", default="lac,aps,raps", show_default=True, help="Separated by commas.")
@click.option("--calibration", type=click.IntRange(min=1), help="Inputs for calibration; default: half of them.")
@click.option("--splits", type=click.IntRange(min=1), default=20, show_default=True, help="Random splits.")
@click.option("--class-conditional", is_flag=True, help="One threshold for every class.")
@method_option(RANGES)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of splits and attack.")
@device_option
@threads_option
@json_option
def command(
    subject: Subject,
    alpha: float,
    scores: str,
    calibration: int | None,
    splits: int,
    class_conditional: bool,
    method: str,
    seed: int,
    device: str,
    threads: int,
    json_out: Path | None,
) -> None:
    """Coverage and mean size of conformal prediction sets of MODELS (an ensemble), clean and under attack.

    Robust at inference time: sets hold every label that some input within the radius would have put there. Robust at
    calibration time: thresholds are raised. Beside the size, that from boxes of logits alone.

    \b
    Example
      softhull conformal net-*.onnx --data images.npz --eps 0.012 --clip 0 1 --indices 0:500 --alpha 0.1
    """
    import torch

    from ..report.dataset_tables import conformal_table
    from ..verify.about import versions
    from ..verify.conformal import SCHEMA, study_conformal

    use_threads(threads)
    radii, networks = subject.radii, subject.networks()
    dataset = subject.dataset(networks)
    wanted = subject.wanted(dataset)
    x, y = torch.from_numpy(dataset.take(wanted)), torch.from_numpy(dataset.y[wanted])
    names = [name.strip() for name in scores.split(",")]
    found = [
        study_conformal(
            networks,
            x,
            y,
            subject.perturbation(radius),
            alpha,
            names,
            calibration,
            splits,
            class_conditional,
            seed=seed,
            method=method,
            device=device,
        )
        for radius in with_progress(radii, len(radii), "radii")
    ]
    answers = [study.to_dict() for study in found]
    if not is_stdout(json_out):
        console().print(conformal_table(answers))
        console().print(f"{len(wanted)} samples, {sum(study.cpu_seconds for study in found):.1f} CPU seconds")
    about = {"schema": SCHEMA, "method": method, "versions": versions()} | subject.described()
    write_json(json_out, about | {"class_conditional": class_conditional, "radii": answers})
