"""``softhull uncertainty``: how bad can the score of an ensemble get?"""

from __future__ import annotations

from typing import Any

import click

from .check import certificate_folder
from .options import console, parse_indices, run_options, say_differences, with_progress, write_json


@click.command("uncertainty", short_help="Certify the worst score of a classifier or ensemble.")
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--data", required=True, type=click.Path(exists=True, dir_okay=False), help="npz with x and y, IDX or CIFAR-10."
)
@click.option("--eps", required=True, type=float, help="Radius of the perturbation.")
@click.option(
    "--score",
    default="nll",
    show_default=True,
    help="nll, brier, confidence (confidence:3 for one class), error, margin or entropy.",
)
@click.option("--indices", help="Which inputs, for example 0:100; default: all.")
@click.option(
    "--bound", default="all", show_default=True, help="Softmax bounds, for example hull, er/lse, or all of them."
)
@click.option(
    "--method",
    type=click.Choice(["auto", "dual", "lp", "conic", "second-order", "linear", "branch"]),
    default="auto",
    show_default=True,
    help="dual, lp, conic and branch: feedforward networks only; second-order and linear: attention, too.",
)
@click.option("--norm", type=click.Choice(["inf", "2", "1"]), default="inf", show_default=True)
@click.option("--clip", type=(float, float), help="The range inputs live in, for example 0 1.")
@click.option("--separate", is_flag=True, help="Let every network choose its own input: looser, cheaper.")
@click.option("--timeout", type=float, help="Seconds after which the best found so far is reported.")
@click.option("--certificates", type=click.Path(file_okay=False), help="Write a proof of every bound to this folder.")
@click.option(
    "--rounding",
    type=click.Choice(["outward", "nearest"]),
    default="outward",
    show_default=True,
    help="outward: bounds are true for the real-valued networks; nearest: up to rounding, faster.",
)
@run_options
def command(
    models: tuple[str, ...],
    data: str,
    eps: float,
    score: str,
    indices: str | None,
    bound: str,
    method: str,
    norm: str,
    clip: tuple[float, float] | None,
    separate: bool,
    timeout: float | None,
    certificates: str | None,
    rounding: str,
    store: str | None,
    recheck: bool,
    seed: int,
    device: str,
    threads: int | None,
    out: str | None,
) -> None:
    """A certified bound on the score of the mean probabilities of MODELS, with an attack beside it.

    \b
    Examples
      softhull uncertainty MODEL.onnx --data images.npz --eps 0.008 --clip 0 1 --indices 0:100
      softhull uncertainty net-*.onnx --data images.npz --eps 0.016 --clip 0 1 --score brier --json scores.json
    """
    import torch

    from ..formats.datasets import load_dataset
    from ..formats.onnx import load_onnx
    from ..propagate.perturbation import Perturbation
    from ..verify.uncertainty import find_method, verify_uncertainty

    if recheck and store is None:
        raise click.UsageError("--recheck is about a --store; name it")
    if threads is not None:
        torch.set_num_threads(threads)
    perturbation = Perturbation(eps, float(norm), clip)
    folder = None if certificates is None else certificate_folder(certificates)
    networks, dataset = [load_onnx(model) for model in models], load_dataset(data)
    wanted = parse_indices(indices, len(dataset))
    more: dict[str, Any] = {}
    if store is not None:
        from ..runs.single import Asked, answer_through_store, uncertainty_result

        keywords = {"score": score, "separate": separate, "seed": seed, "rounding": rounding}
        chosen = find_method(method)
        asked = Asked("uncertainty", networks, dataset, wanted, perturbation, method, chosen, bound, keywords)
        answers = answer_through_store(store, asked, timeout, device, recheck)
        found = uncertainty_result(answers, asked)
        if recheck:
            more["differences"] = answers.differences
            say_differences(answers.differences, len(wanted))
    else:
        found = verify_uncertainty(
            networks,
            torch.from_numpy(dataset.take(wanted)),
            torch.from_numpy(dataset.y[wanted]),
            perturbation,
            score,
            method,
            bound,
            separate,
            timeout=timeout,
            seed=seed,
            rounding=rounding,
            device=device,
        )
    answer = found.to_dict() | more
    for record, index in zip(answer["instances"], wanted):
        record["index"] = index
    if out != "-":
        console().print(f"{found}; {found.cpu_seconds:.1f} CPU seconds")
    if out != "-" or folder is None:
        write_json(out, answer)
    if folder is None:
        return

    from ..certificates.write import score_certificate

    for i in with_progress(wanted, len(wanted), "certificates"):
        x, label = dataset.take([i])[0], int(dataset.y[i])
        folder.keep(i, lambda: score_certificate(models, networks, x, label, perturbation, score, i))  # noqa: B023
    write_json(out, folder.described(answer))
    if out != "-":
        click.echo(str(folder))
