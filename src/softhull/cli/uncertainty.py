"""``softhull uncertainty``: how bad can the score of an ensemble get?"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..verify.methods import SCORES
from .check import certificate_folder
from .options import (
    bounding_options,
    console,
    counting,
    ensemble_options,
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


@click.command("uncertainty", short_help="Certify the worst score of a classifier or ensemble.")
@ensemble_options
@click.option("--eps", type=float, help="Radius of the perturbation.")
@click.option(
    "--score",
    default="nll",
    show_default=True,
    help="nll, brier, confidence (confidence:3 for one class), error, margin or entropy.",
)
@method_option(SCORES)
@click.option("--separate", is_flag=True, help="Let every network choose its own input: looser, cheaper.")
@click.option("--timeout", type=float, help="Seconds after which the best found so far is reported.")
@click.option("--certificates", type=click.Path(file_okay=False), help="Write a proof of every bound to this folder.")
@bounding_options
@instance_workers_option
@run_options
@subject_options
def command(
    subject: Subject,
    models: tuple[str, ...],
    data: str,
    eps: float | None,
    score: str,
    indices: str | None,
    bound: str,
    method: str,
    separate: bool,
    timeout: float | None,
    certificates: str | None,
    rounding: str,
    store: str | None,
    recheck: bool,
    seed: int,
    device: str,
    threads: int,
    workers: int | None,
    out: str | None,
) -> None:
    """A certified bound on the score of the mean probabilities of MODELS, with an attack beside it.

    \b
    Examples
      softhull uncertainty MODEL.onnx --data images.npz --eps 0.008 --clip 0 1 --indices 0:100
      softhull uncertainty net-*.onnx --data images.npz --eps 0.016 --clip 0 1 --score brier --json scores.json
    """
    from ..verify.methods import find_method
    from ..verify.uncertainty import verify_uncertainty

    if recheck and store is None:
        raise click.UsageError("--recheck is about a --store; name it")
    use_threads(threads)
    perturbation = subject.perturbation(*subject.radii(None if eps is None else (eps,)))
    folder = None if certificates is None else certificate_folder(certificates)
    networks = subject.networks(models)
    dataset = subject.data(data, networks)
    wanted = parse_indices(indices, len(dataset))
    more: dict[str, Any] = {}
    if store is not None:
        from ..runs.single import Asked, answer_through_store, uncertainty_result

        keywords = {"score": score, "separate": separate, "seed": seed, "rounding": rounding}
        chosen = find_method(method, SCORES)
        asked = Asked("uncertainty", networks, dataset, wanted, perturbation, method, chosen, bound, keywords)
        answers = answer_through_store(store, asked, timeout, device, recheck)
        found = uncertainty_result(answers, asked)
        if recheck:
            more["differences"] = answers.differences
            say_differences(answers.differences, len(wanted))
    else:
        own: dict[str, Any] = {"timeout": timeout, "seed": seed, "device": device, "workers": workers or "auto"}
        own |= {"score": score, "method": method, "bound": bound, "separate": separate, "rounding": rounding}
        own["proofs"] = folder is not None
        with counting("instances") as progress:
            x, y = dataset.take(wanted), dataset.y[wanted]
            found = verify_uncertainty(networks, x, y, perturbation, progress=progress, **own)
    answer = found.to_dict() | more
    for record, index in zip(answer["instances"], wanted):
        record["index"] = index
    if out != "-":
        console().print(f"{found}; {found.cpu_seconds:.1f} CPU seconds")
    if out != "-" or folder is None:
        write_json(out, answer)
    if found.interrupted:
        raise KeyboardInterrupt
    if folder is None:
        return

    from ..certificates.write import score_certificate
    from ..formats.inputs import fit_inputs

    files = [folder.model(network, model) for network, model in zip(networks, models)]
    for i, record in with_progress(list(zip(wanted, found.records)), len(wanted), "certificates"):
        x = fit_inputs(networks[0], dataset.take([i]))[0].numpy()
        given = files, networks, x, int(dataset.y[i]), perturbation, score, i, record
        folder.keep(i, partial(score_certificate, *given))
    write_json(out, folder.described(answer))
    if out != "-":
        click.echo(str(folder))
