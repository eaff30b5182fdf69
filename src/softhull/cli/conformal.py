"""``softhull conformal``: prediction sets that keep their coverage under perturbation."""

from __future__ import annotations

import click

from .options import NumberList, console, device_option, parse_indices, with_progress, write_json


@click.command("conformal", short_help="Coverage and size of robust prediction sets.")
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--data", required=True, type=click.Path(exists=True, dir_okay=False), help="npz with x and y, IDX or CIFAR-10."
)
@click.option("--eps", required=True, type=NumberList(least=0), help="Radii, separated by commas.")
@click.option("--alpha", type=float, default=0.1, show_default=True, help="The share of labels that may be missed.")
@click.option("--scores", default="lac,aps,raps", show_default=True, help="Separated by commas.")
@click.option("--indices", help="Which inputs, for example 0:500; default: all.")
@click.option("--calibration", type=click.IntRange(min=1), help="Inputs for calibration; default: half of them.")
@click.option("--splits", type=click.IntRange(min=1), default=20, show_default=True, help="Random splits.")
@click.option("--class-conditional", is_flag=True, help="One threshold for every class.")
@click.option(
    "--method",
    type=click.Choice(["auto", "dual", "lp", "conic", "second-order", "linear"]),
    default="auto",
    show_default=True,
    help="dual, lp and conic: feedforward networks only; second-order and linear: attention, too.",
)
@click.option("--norm", type=click.Choice(["inf", "2", "1"]), default="inf", show_default=True)
@click.option("--clip", type=(float, float), help="The range inputs live in, for example 0 1.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of splits, draws and attack.")
@device_option
@click.option("--threads", type=click.IntRange(min=1), help="Processor threads.")
@click.option(
    "--json", "out", type=click.Path(dir_okay=False), help="Write the table to this file ('-': standard output)."
)
def command(
    models: tuple[str, ...],
    data: str,
    eps: tuple[float, ...],
    alpha: float,
    scores: str,
    indices: str | None,
    calibration: int | None,
    splits: int,
    class_conditional: bool,
    method: str,
    norm: str,
    clip: tuple[float, float] | None,
    seed: int,
    device: str,
    threads: int | None,
    out: str | None,
) -> None:
    """Coverage and mean size of conformal prediction sets of MODELS (an ensemble), clean and under attack.

    Robust at inference time: sets hold every label that some input within the radius would have put there. Robust at
    calibration time: thresholds are raised. Beside the size, that from boxes of logits alone.

    \b
    Example
      softhull conformal net-*.onnx --data images.npz --eps 0.012 --clip 0 1 --indices 0:500 --alpha 0.1
    """
    import torch

    from ..formats.datasets import load_dataset
    from ..formats.onnx import load_onnx
    from ..propagate.perturbation import Perturbation
    from ..report.dataset_tables import conformal_table
    from ..verify.conformal import study_conformal

    if threads is not None:
        torch.set_num_threads(threads)
    networks, dataset = [load_onnx(model) for model in models], load_dataset(data)
    wanted = parse_indices(indices, len(dataset))
    x, y = torch.from_numpy(dataset.take(wanted)), torch.from_numpy(dataset.y[wanted])
    names = [name.strip() for name in scores.split(",")]
    found = [
        study_conformal(
            networks,
            x,
            y,
            Perturbation(radius, float(norm), clip),
            alpha,
            names,
            calibration,
            splits,
            class_conditional,
            seed=seed,
            method=method,
            device=device,
        )
        for radius in with_progress(eps, len(eps), "radii")
    ]
    answers = [study.to_dict() for study in found]
    if out != "-":
        console().print(conformal_table(answers))
        console().print(f"{len(wanted)} samples, {sum(study.cpu_seconds for study in found):.1f} CPU seconds")
    about = {"models": list(models), "data": data, "norm": norm, "clip": clip, "method": method}
    write_json(out, about | {"class_conditional": class_conditional, "radii": answers})
