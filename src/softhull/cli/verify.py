"""``softhull verify``: does every perturbed input keep its class?"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import click

from .check import certificate_folder
from .options import console, parse_indices, run_options, say_differences, with_progress, write_json

if TYPE_CHECKING:
    from ..formats.network import Network
    from ..propagate.methods import Method

BATCH = 100  # instances between two ticks of the progress bar


@click.command("verify", short_help="Certify that every perturbed input keeps its class.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("--data", type=click.Path(exists=True, dir_okay=False), help="npz with x and y, IDX or CIFAR-10 binary.")
@click.option("--eps", type=float, help="Radius of the perturbation.")
@click.option("--indices", help="Which inputs, for example 0:500 or 3,7,10:20; default: all.")
@click.option(
    "--method",
    type=click.Choice(["auto", "linear", "second-order", "paper", "branch"]),
    default="auto",
    show_default=True,
)
@click.option("--bound", help="Softmax bound by name, for example hull, lse* or lse*/lse; default: the method's own.")
@click.option(
    "--rounding",
    type=click.Choice(["outward", "nearest"]),
    help="outward: true for the real-valued network; nearest: faster, true up to rounding. Default: the method's own.",
)
@click.option("--optimize", type=click.IntRange(min=0), help="Gradient steps on what stays open; default: 20.")
@click.option(
    "--property", "prop", type=click.Choice(["all", "runner-up", "targets"]), default="all", show_default=True
)
@click.option("--target", "targets", type=int, multiple=True, help="A class for --property targets; may be repeated.")
@click.option("--norm", type=click.Choice(["inf", "2", "1"]), default="inf", show_default=True)
@click.option("--clip", type=(float, float), help="The range inputs live in, for example 0 1.")
@click.option(
    "--attack/--no-attack", default=None, help="Attack everything / nothing; default: what the bounds leave open."
)
@click.option("--radius", is_flag=True, help="Search the largest certified radius up to --eps instead.")
@click.option(
    "--vnnlib", type=click.Path(exists=True, dir_okay=False), help="A VNN-LIB property instead of --data and --eps."
)
@click.option("--timeout", type=float, help="Seconds after which the best found so far is reported.")
@click.option(
    "--certificates", type=click.Path(file_okay=False), help="Write a proof of every certified instance to this folder."
)
@run_options
def command(
    model: str,
    data: str | None,
    eps: float | None,
    indices: str | None,
    method: str,
    bound: str | None,
    rounding: str | None,
    optimize: int | None,
    prop: str,
    targets: tuple[int, ...],
    norm: str,
    clip: tuple[float, float] | None,
    attack: bool | None,
    radius: bool,
    vnnlib: str | None,
    timeout: float | None,
    certificates: str | None,
    store: str | None,
    recheck: bool,
    seed: int,
    device: str,
    threads: int | None,
    out: str | None,
) -> None:
    """Certify that every input within a perturbation keeps its class.

    Verdicts: certified; falsified, with a counterexample replayed on the original file; unknown; misclassified; error.

    \b
    Examples
      softhull verify MODEL.onnx --data images.npz --eps 0.016 --clip 0 1 --indices 0:100
      softhull verify MODEL.onnx --data images.npz --eps 0.05 --radius --json radii.json
      softhull verify MODEL.onnx --vnnlib PROPERTY.vnnlib --timeout 60
    """
    import torch

    from ..deadlines import deadline_after
    from ..errors import SofthullError
    from ..formats.onnx import load_onnx
    from ..propagate.methods import find_method

    if store is not None and (vnnlib is not None or radius):
        raise click.UsageError("--store keeps verdicts; leave --vnnlib and --radius out")
    if recheck and store is None:
        raise click.UsageError("--recheck is about a --store; name it")
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = find_method(method, bound, optimize, rounding)
    if vnnlib is not None:
        _property(load_onnx(model), vnnlib, chosen, timeout, seed, device, out)
        return
    if data is None or eps is None:
        raise click.UsageError("name --data and --eps, or --vnnlib")
    folder = None if certificates is None or radius else certificate_folder(certificates)
    if prop == "targets" and not targets:
        raise click.UsageError("--property targets needs at least one --target")

    from ..formats.datasets import load_dataset
    from ..propagate.perturbation import Perturbation

    perturbation = Perturbation(eps, float(norm), clip)
    network, dataset = load_onnx(model), load_dataset(data)
    wanted = parse_indices(indices, len(dataset))
    question: dict[str, Any] = {"property": prop, "method": chosen, "device": device}
    if prop == "targets":
        question["targets"] = targets
    if radius:
        from ..verify.robustness import certified_radius

        found = certified_radius(
            network, dataset.take(wanted), dataset.y[wanted], perturbation, timeout=timeout, **question
        )
        rows = [
            {"index": i, "label": int(dataset.y[i]), "radius": None if math.isnan(r) else float(r)}
            for i, r in zip(wanted, found)
        ]
        write_json(out, {"instances": rows})
        if out != "-":
            from ..report.tables import radius_table

            console().print(radius_table(rows))
        return

    from ..report.tables import verdict_table
    from ..verify.result import Result, Verdict
    from ..verify.robustness import verify_robustness

    records: list[Any] = []
    cpu = wall = 0.0
    more: dict[str, Any] = {}

    def report() -> Result:
        result = Result(tuple(records), cpu, wall, rounding=chosen.rounding)
        if out != "-":  # first the table: a file that cannot be written must not take the answer with it
            console().print(verdict_table(result))
        if out != "-" or folder is None:
            write_json(out, result.to_dict() | more)
        return result

    deadline = deadline_after(timeout)
    batches = [wanted[i : i + BATCH] for i in range(0, len(wanted), BATCH)]
    if store is not None:
        from ..runs.single import Asked, answer_through_store, robustness_result

        keywords = {"attack": attack, "seed": seed, "property": prop, "targets": targets or None}
        asked = Asked("robustness", [network], dataset, wanted, perturbation, method, chosen, bound, keywords)
        answers = answer_through_store(store, asked, timeout, device, recheck)
        known = robustness_result(answers, asked)
        if recheck:
            more["differences"] = answers.differences
            say_differences(answers.differences, len(wanted))
        records, cpu, wall, batches = list(known.records), known.cpu_seconds, known.seconds, []
    try:
        for batch in with_progress(batches, len(batches), f"batches of {BATCH}"):
            left = None if timeout is None else max(0.0, deadline - time.monotonic())
            x, y = dataset.take(batch), dataset.y[batch]
            part = verify_robustness(network, x, y, perturbation, timeout=left, attack=attack, seed=seed, **question)
            records.extend(part.renumbered(batch).records)
            cpu, wall = cpu + part.cpu_seconds, wall + part.seconds
            if part.interrupted:
                raise KeyboardInterrupt
    except (KeyboardInterrupt, SofthullError):
        if records:  # what was done is reported whatever happens
            report()
        raise
    result = report()
    if folder is None:
        return

    from ..certificates.write import class_certificate

    certified = [record.index for record in result.records if record.verdict is Verdict.CERTIFIED]
    for i in with_progress(certified, len(certified), "certificates"):
        x = dataset.take([i])
        rivals = list(targets) if prop == "targets" else _runner_up(network, x) if prop == "runner-up" else None
        label = int(dataset.y[i])
        folder.keep(i, lambda: class_certificate(model, x[0], label, perturbation, rivals, i))  # noqa: B023
    write_json(out, folder.described(result.to_dict() | more))
    if out != "-":
        click.echo(str(folder))


def _runner_up(network: Network, x: Any) -> list[int]:
    """The second largest class; what stays behind the label is never the largest."""
    import torch

    logits = network.logits(torch.as_tensor(x).reshape(1, *network.input_shape)).flatten()
    return [int(logits.argsort()[-2])] if len(logits) > 1 else []


def _property(
    network: Network, path: str, method: Method, timeout: float | None, seed: int, device: str, out: str | None
) -> None:
    from ..formats.vnnlib import load_vnnlib
    from ..verify.robustness import verify_specification

    found = verify_specification(network, load_vnnlib(path), method, timeout=timeout, seed=seed, device=device)
    write_json(
        out,
        {
            "verdict": found.verdict,
            "bound": found.bound,
            "witness": None if found.witness is None else found.witness.reshape(-1).tolist(),
            "outputs": None if found.outputs is None else found.outputs.reshape(-1).tolist(),
            "cpu_seconds": found.cpu_seconds,
            "seconds": found.seconds,
        }
        | ({"message": found.message} if found.message else {}),
    )
    if out != "-":
        click.echo(found.verdict + (f": {found.message}" if found.message else ""))
