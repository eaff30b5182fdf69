"""``softhull uncertainty``: how bad can the score of an ensemble get?"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..verify.methods import SCORES
from .check import certificate_folder, certified_files
from .options import (
    SCORE,
    OutFolder,
    bounding_options,
    fail_on_unknown_option,
    method_option,
    refuse,
    run_options,
    table_option,
    time_options,
    use_threads,
)
from .output import console, counting, exit_code, is_stdout, say_differences, with_progress, write_json
from .subject import Subject, subject_options


@click.command("uncertainty", short_help="Certify the worst score of a classifier or ensemble.")
@subject_options()
@click.option(
    "--score",
    type=SCORE,
    default="nll",
    show_default=True,
    help="nll, brier, confidence (confidence:3 for one class), error, margin or entropy.",
)
@method_option(SCORES)
@click.option("--separate", is_flag=True, help="Let every network choose its own input: looser, cheaper.")
@time_options
@click.option("--certificates", type=OutFolder(), help="Write a proof of every bound to this folder.")
@table_option
@fail_on_unknown_option
@bounding_options
@run_options
def command(
    subject: Subject,
    score: str,
    bound: str,
    method: str,
    separate: bool,
    timeout: float | None,
    budget: float | None,
    certificates: Path | None,
    table: bool,
    fail_on: str | None,
    rounding: str,
    store: str | None,
    recheck: bool,
    seed: int,
    device: str,
    threads: int,
    workers: int | None,
    json_out: Path | None,
) -> int:
    """A certified bound on the score of the mean probabilities of MODELS, with an attack beside it.

    \b
    Examples
      softhull uncertainty MODEL.onnx --data images.npz --eps 0.008 --clip 0 1 --indices 0:100
      softhull uncertainty net-*.onnx --data images.npz --eps 0.016 --clip 0 1 --score brier --json scores.json
    """
    from ..verify.methods import find_method
    from ..verify.uncertainty import verify_uncertainty

    if store is None:
        refuse("there is no --store to recheck", "recheck")
    else:
        refuse("work that is kept in a --store is done by this process", "workers")
    use_threads(threads)
    perturbation = subject.perturbation(*subject.radii)
    folder = None if certificates is None else certificate_folder(certificates)
    networks = subject.networks()
    files = [] if folder is None else certified_files(folder, networks, subject.models)
    dataset = subject.dataset(networks)
    wanted = subject.wanted(dataset)
    limits: dict[str, Any] = {"timeout": timeout, "budget": budget, "device": device}
    more: dict[str, Any] = {}
    if store is not None:
        from ..runs.engine import Limits
        from ..runs.single import Asked, answer_through_store, uncertainty_result

        keywords = {"score": score, "separate": separate, "seed": seed, "rounding": rounding}
        chosen = find_method(method, SCORES)
        asked = Asked("uncertainty", networks, dataset, wanted, perturbation, method, chosen, bound, keywords)
        answers = answer_through_store(store, asked, Limits(**limits, recheck=recheck))
        found = uncertainty_result(answers, asked)
        if recheck:
            more["differences"] = answers.differences
            say_differences(answers.differences, len(wanted))
    else:
        own: dict[str, Any] = limits | {"seed": seed, "workers": workers or "auto"}
        own |= {"score": score, "method": method, "bound": bound, "separate": separate, "rounding": rounding}
        own["proofs"] = folder is not None
        with counting("instances") as progress:
            x, y = dataset.take(wanted), dataset.y[wanted]
            found = verify_uncertainty(networks, x, y, perturbation, progress=progress, **own)
    answer = subject.with_data(found.to_dict() | more, dataset)
    for record, index in zip(answer["instances"], wanted):
        record["index"] = index
    aloud = not is_stdout(json_out)
    if aloud:
        if table:
            from ..report.tables import instance_table

            console().print(instance_table(answer["instances"]))
        console().print(f"{found}; {found.cpu_seconds:.1f} CPU seconds")
    if aloud or folder is None:
        write_json(json_out, answer)
    if found.interrupted:
        raise KeyboardInterrupt
    code = exit_code(fail_on, (_verdict(record) for record in answer["instances"]))
    if folder is None:
        return code

    from ..certificates.write import score_certificate
    from ..formats.inputs import fit_inputs

    for i, record in with_progress(list(zip(wanted, found.records)), len(wanted), "certificates"):
        x = fit_inputs(networks[0], dataset.take([i]))[0].numpy()
        given = files, networks, x, int(dataset.y[i]), perturbation, score, i, record
        folder.keep(i, partial(score_certificate, *given))
    write_json(json_out, folder.described(answer))
    if aloud:
        click.echo(str(folder))
    return code


def _verdict(record: dict[str, Any]) -> str:
    """What ``--fail-on`` goes by: a bound that is not finite says nothing."""
    known = record["bound"] is not None and math.isfinite(record["bound"])
    return record["verdict"] if known or record["verdict"] == "error" else "unknown"
