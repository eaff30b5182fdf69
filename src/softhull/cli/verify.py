"""``softhull verify``: does every perturbed input keep its class?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..verify.methods import CLASSES
from .check import certificate_folder, certified_files
from .options import (
    BOUND,
    Name,
    OutFolder,
    fail_on_option,
    method_option,
    refuse,
    run_options,
    table_option,
    time_options,
    use_threads,
)
from .output import console, counting, exit_code, is_stdout, say_differences, with_progress, write_json
from .subject import Subject, subject_options

if TYPE_CHECKING:
    from ..certificates.write import Folder
    from ..formats.datasets import Dataset
    from ..formats.network import Network
    from ..verify.result import Result

_OF_DATA = ("data", "eps", "indices", "norm", "clip", "normalize", "only", "box", "alternatives", "at_most")
_OF_VERDICTS = ("store", "recheck", "certificates", "table", "fail_on")


@click.command("verify", short_help="Certify that every perturbed input keeps its class.")
@subject_options(ensemble=False)
@method_option(CLASSES)
@click.option(
    "--bound", type=BOUND, help="Softmax bound by name, for example hull, lse* or lse*/lse; default: the method's own."
)
@click.option(
    "--rounding",
    type=Name("rounding", ("outward", "nearest")),
    help="outward: true for the real-valued network; nearest: faster, true up to rounding. Default: the method's own.",
)
@click.option("--optimize", type=click.IntRange(min=0), help="Gradient steps on what is undecided; default: 20.")
@click.option("--branch", type=float, help="CPU seconds per instance to cut what auto leaves undecided into cells.")
@click.option(
    "--property",
    "prop",
    type=Name("property", ("all", "runner-up", "targets")),
    default="all",
    show_default=True,
    help="all: the label stays the largest class; runner-up: the clean runner-up never becomes the largest.",
)
@click.option("--target", "targets", type=int, multiple=True, help="A class for --property targets; may be repeated.")
@click.option(
    "--attack/--no-attack", default=None, help="Attack everything / nothing; default: what the bounds leave undecided."
)
@click.option("--radius", is_flag=True, help="Search the largest certified radius up to --eps instead.")
@click.option(
    "--vnnlib", type=click.Path(exists=True, dir_okay=False), help="A VNN-LIB property instead of --data and --eps."
)
@time_options
@click.option("--certificates", type=OutFolder(), help="Write a proof of every certified instance to this folder.")
@table_option
@fail_on_option
@run_options
def command(
    subject: Subject,
    method: str,
    bound: str | None,
    rounding: str | None,
    optimize: int | None,
    branch: float | None,
    prop: str,
    targets: tuple[int, ...],
    attack: bool | None,
    radius: bool,
    vnnlib: str | None,
    timeout: float | None,
    budget: float | None,
    certificates: Path | None,
    table: bool,
    fail_on: str | None,
    store: str | None,
    recheck: bool,
    seed: int,
    device: str,
    threads: int,
    workers: int | None,
    json_out: Path | None,
) -> int:
    """Certify that every input within a perturbation keeps its class.

    Verdicts: certified; falsified, with a counterexample replayed on the original file; unknown; misclassified; error.
    Exit codes: 0, or 1 where --fail-on says so; 2 for bad input; 130 after Ctrl-C, with what was found by then.

    \b
    Examples
      softhull verify MODEL.onnx --data images.npz --eps 0.016 --clip 0 1 --indices 0:100
      softhull verify MODEL.onnx --data images.npz --eps 0.05 --radius --json radii.json
      softhull verify MODEL.onnx --data images.npz --eps 0.016 --clip 0 1 --table --fail-on falsified
      softhull verify MODEL.onnx --vnnlib PROPERTY.vnnlib --timeout 60
    """
    from ..verify.methods import find_method

    if vnnlib is not None:
        about = ("prop", "targets", "attack", "radius", "workers", "certificates", "table", "store", "recheck")
        refuse("a VNN-LIB property says what is asked, of one region", *_OF_DATA, *about)
        refuse("a property is one instance; its limit is --timeout", "budget")
    if radius:
        refuse("--radius looks for radii and keeps no verdicts", *_OF_VERDICTS)
    if store is None:
        refuse("there is no --store to recheck", "recheck")
    else:
        refuse("work that is kept in a --store is done by this process", "workers")
    if prop != "targets":
        refuse(f"it belongs to --property targets, not {prop}", "targets")
    use_threads(threads)
    chosen = find_method(method, bound=bound, optimize=optimize, rounding=rounding, branch=branch)
    if vnnlib is not None:
        own: dict[str, Any] = {"timeout": timeout, "seed": seed, "device": device}
        return exit_code(fail_on, [_property(subject.networks()[0], vnnlib, chosen, json_out, own)])
    if subject.data is None or (subject.eps is None and subject.needs_radius):
        raise click.UsageError("name --data and --eps, or --vnnlib")
    folder = None if certificates is None else certificate_folder(certificates)
    if prop == "targets" and not targets:
        raise click.UsageError("--property targets needs at least one --target")

    perturbation = subject.perturbation(*subject.radii)
    network = subject.networks()[0]
    files = [] if folder is None else certified_files(folder, [network], [network.path])
    dataset = subject.dataset([network])
    wanted = subject.wanted(dataset)
    limits: dict[str, Any] = {"timeout": timeout, "budget": budget, "device": device}
    asked: dict[str, Any] = {"property": prop, "targets": targets or None}
    x, y = dataset.take(wanted), dataset.y[wanted]
    if radius:
        from ..verify.robustness import certified_radius

        question = asked | limits | {"method": chosen, "seed": seed, "workers": workers or "auto"}
        with counting("rounds") as progress:
            found = certified_radius(
                network, x, y, perturbation, attack=attack is not False, progress=progress, **question
            )
        rows = [{"index": i, "label": int(y[k])} | row for k, (i, row) in enumerate(zip(wanted, found.to_dict()))]
        import torch

        from ..verify.about import describe

        given = asked | limits | {"seed": seed, "attack": attack is not False}
        described = describe(
            "radius", [network], torch.from_numpy(x), torch.from_numpy(y), perturbation, chosen, **given
        )
        _show_radii(subject.with_data(described | {"cap": found.cap}, dataset), rows, json_out)
        if found.interrupted:
            raise KeyboardInterrupt
        return 0

    from ..report.tables import instance_table, verdict_table
    from ..verify.robustness import verify_robustness

    more: dict[str, Any] = {}
    if store is not None:
        from ..runs.engine import Limits
        from ..runs.single import Asked, answer_through_store, robustness_result

        keywords = {"attack": attack, "seed": seed, **asked}
        through = Asked("robustness", [network], dataset, wanted, perturbation, method, chosen, bound, keywords)
        answers = answer_through_store(store, through, Limits(**limits, recheck=recheck))
        result = robustness_result(answers, through)
        if recheck:
            more["differences"] = answers.differences
            say_differences(answers.differences, len(wanted))
    else:
        own = {"method": chosen, "attack": attack, "seed": seed, "workers": workers or "auto"}
        own["proofs"] = certificates is not None
        with counting("instances") as progress:
            result = verify_robustness(network, x, y, perturbation, progress=progress, **own, **asked, **limits)
        result = result.renumbered(wanted)
    answer = subject.with_data(result.to_dict() | more, dataset)
    aloud = not is_stdout(json_out)
    if aloud:  # first the table: a file that cannot be written must not take the answer with it
        if table:
            console().print(instance_table([record.to_dict() for record in result]))
        console().print(verdict_table(result))
    if aloud or folder is None:
        write_json(json_out, answer)
    if result.interrupted:
        raise KeyboardInterrupt
    if folder is not None:
        _certify(folder, files[0], network, dataset, result, perturbation, prop, targets)
        write_json(json_out, folder.described(answer))
        if aloud:
            click.echo(str(folder))
    return exit_code(fail_on, (record.verdict.value for record in result))


def _show_radii(about: dict[str, Any], rows: list[dict[str, Any]], json_out: Path | None) -> None:
    # "radius" is what "certified" was called before.
    listed = [row | {"radius": row["certified"]} for row in rows]
    write_json(json_out, {"schema": "softhull-radii-1"} | about | {"instances": listed})
    if not is_stdout(json_out):
        from ..report.tables import radius_table

        console().print(radius_table(rows, about["cap"]))


def _certify(
    folder: Folder,
    file: str,
    network: Network,
    dataset: Dataset,
    result: Result,
    perturbation: Any,
    prop: str,
    targets: tuple[int, ...],
) -> None:
    """A certificate for every certified instance; what has none is noted in the folder."""
    from ..certificates.write import class_certificate
    from ..formats.inputs import fit_inputs
    from ..verify.result import Verdict

    certified = [record for record in result.records if record.verdict is Verdict.CERTIFIED]
    for record in with_progress(certified, len(certified), "certificates"):
        x = fit_inputs(network, dataset.take([record.index])).numpy()
        rivals = list(targets) if prop == "targets" else _runner_up(network, x) if prop == "runner-up" else None
        given = file, x[0], int(dataset.y[record.index]), perturbation, rivals, record.index
        folder.keep(record.index, partial(class_certificate, *given, run=record, network=network))


def _runner_up(network: Network, x: Any) -> list[int]:
    """The second largest class; what stays behind the label is never the largest."""
    import torch

    logits = network.logits(torch.as_tensor(x).reshape(1, *network.input_shape)).flatten()
    return [int(logits.argsort()[-2])] if len(logits) > 1 else []


def _property(network: Network, path: str, method: Any, json_out: Path | None, own: dict[str, Any]) -> str:
    """Decide a property; returns the verdict."""
    from ..formats.vnnlib import load_vnnlib
    from ..show import plain
    from ..verify.about import model_of, versions
    from ..verify.robustness import verify_specification

    found = verify_specification(network, load_vnnlib(path), method, **own)
    about: dict[str, Any] = {
        "schema": "softhull-specification-1",
        "question": "specification",
        "models": [model_of(network)],
    }
    about |= {"property": path, "method": plain(method), "versions": versions()}
    answer = {
        "verdict": found.verdict,
        "bound": found.bound,
        "witness": None if found.witness is None else found.witness.reshape(-1).tolist(),
        "outputs": None if found.outputs is None else found.outputs.reshape(-1).tolist(),
        "cpu_seconds": found.cpu_seconds,
        "seconds": found.seconds,
    }
    write_json(json_out, about | answer | ({"message": found.message} if found.message else {}))
    if not is_stdout(json_out):
        click.echo(found.verdict + (f": {found.message}" if found.message else ""))
    return found.verdict
