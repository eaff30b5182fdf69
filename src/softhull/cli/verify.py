"""``softhull verify``: does every perturbed input keep its class?"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..verify.methods import CLASSES
from .check import certificate_folder
from .options import (
    console,
    counting,
    instance_workers_option,
    method_option,
    parse_indices,
    run_options,
    say_differences,
    use_threads,
    with_progress,
    write_json,
)
from .subject import Subject, subject_options

if TYPE_CHECKING:
    from ..formats.network import Network
    from ..propagate.methods import Method


@click.command("verify", short_help="Certify that every perturbed input keeps its class.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("--data", type=click.Path(exists=True, dir_okay=False), help="npz with x and y, IDX or CIFAR-10 binary.")
@click.option("--eps", type=float, help="Radius of the perturbation.")
@click.option("--indices", help="Which inputs, for example 0:500 or 3,7,10:20; default: all.")
@method_option(CLASSES)
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
@instance_workers_option
@run_options
@subject_options
def command(
    subject: Subject,
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
    attack: bool | None,
    radius: bool,
    vnnlib: str | None,
    timeout: float | None,
    certificates: str | None,
    store: str | None,
    recheck: bool,
    seed: int,
    device: str,
    threads: int,
    workers: int | None,
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
    from ..verify.methods import find_method

    if store is not None and (vnnlib is not None or radius):
        raise click.UsageError("--store keeps verdicts; leave --vnnlib and --radius out")
    if recheck and store is None:
        raise click.UsageError("--recheck is about a --store; name it")
    use_threads(threads)
    chosen = find_method(method, bound=bound, optimize=optimize, rounding=rounding)
    if vnnlib is not None:
        _property(subject.networks([model])[0], vnnlib, chosen, timeout, seed, device, out)
        return
    if data is None or (eps is None and subject.needs_radius):
        raise click.UsageError("name --data and --eps, or --vnnlib")
    folder = None if certificates is None or radius else certificate_folder(certificates)
    if prop == "targets" and not targets:
        raise click.UsageError("--property targets needs at least one --target")

    perturbation = subject.perturbation(eps)
    network = subject.networks([model])[0]
    dataset = subject.data(data, [network])
    wanted = parse_indices(indices, len(dataset))
    question: dict[str, Any] = {"property": prop, "method": chosen, "device": device}
    if prop == "targets":
        question["targets"] = targets
    if radius:
        from ..verify.robustness import certified_radius

        found = certified_radius(
            network,
            dataset.take(wanted),
            dataset.y[wanted],
            perturbation,
            timeout=timeout,
            workers=workers or "auto",
            **question,
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
    from ..verify.result import Verdict
    from ..verify.robustness import verify_robustness

    more: dict[str, Any] = {}
    if store is not None:
        from ..runs.single import Asked, answer_through_store, robustness_result

        keywords = {"attack": attack, "seed": seed, "property": prop, "targets": targets or None}
        asked = Asked("robustness", [network], dataset, wanted, perturbation, method, chosen, bound, keywords)
        answers = answer_through_store(store, asked, timeout, device, recheck)
        result = robustness_result(answers, asked)
        if recheck:
            more["differences"] = answers.differences
            say_differences(answers.differences, len(wanted))
    else:
        x, y = dataset.take(wanted), dataset.y[wanted]
        with counting("instances") as progress:
            own: dict[str, Any] = {"timeout": timeout, "attack": attack, "seed": seed, "workers": workers or "auto"}
            result = verify_robustness(network, x, y, perturbation, progress=progress, **own, **question)
        result = result.renumbered(wanted)
    if out != "-":  # first the table: a file that cannot be written must not take the answer with it
        console().print(verdict_table(result))
    if out != "-" or folder is None:
        write_json(out, result.to_dict() | more)
    if result.interrupted:
        raise KeyboardInterrupt
    if folder is None:
        return

    from ..certificates.write import class_certificate
    from ..formats.inputs import fit_inputs

    file = folder.model(network, model)
    certified = [record for record in result.records if record.verdict is Verdict.CERTIFIED]
    for record in with_progress(certified, len(certified), "certificates"):
        x = fit_inputs(network, dataset.take([record.index])).numpy()
        rivals = list(targets) if prop == "targets" else _runner_up(network, x) if prop == "runner-up" else None
        given = file, x[0], int(dataset.y[record.index]), perturbation, rivals, record.index, record, network
        folder.keep(record.index, partial(class_certificate, *given))
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
