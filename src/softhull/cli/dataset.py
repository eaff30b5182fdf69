"""``softhull dataset``: what a whole test set guarantees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..verify.methods import RANGES
from .check import certificate_folder, certified_files
from .options import (
    OutFolder,
    bounding_options,
    fail_on_unknown_option,
    method_option,
    parse_indices,
    refuse,
    run_options,
    table_option,
    time_options,
    use_threads,
)
from .output import console, exit_code, is_stdout, say_differences, with_progress, write_json
from .subject import Subject, subject_options

if TYPE_CHECKING:
    from ..certificates.dataset import StatementFolder
    from ..formats.datasets import Dataset
    from ..verify.dataset import DatasetReport


@click.command("dataset", short_help="Certify accuracy, scores and calibration error of a data set.")
@subject_options(radii=True)
@click.option(
    "--bins", type=click.IntRange(1, 24), default=15, show_default=True, help="Equally wide bins of confidence."
)
@method_option(RANGES)
@time_options
@click.option(
    "--outside",
    type=click.Path(exists=True, dir_okay=False),
    help="Data of another kind: adds the AUROC of the confidence at telling the two apart.",
)
@click.option("--outside-indices", help="Which inputs of the other data, for example 0:500; default: all.")
@click.option(
    "--certificates",
    type=OutFolder(),
    help="Write a proof for every sample to this folder, and a statement.",
)
@click.option("--executor", help="Who works with --store: local:N, dask or dask:ADDRESS; default: this process.")
@table_option
@fail_on_unknown_option
@bounding_options
@run_options
def command(
    subject: Subject,
    bins: int,
    bound: str,
    method: str,
    timeout: float | None,
    budget: float | None,
    outside: str | None,
    outside_indices: str | None,
    certificates: Path | None,
    executor: str | None,
    table: bool,
    fail_on: str | None,
    workers: int | None,
    rounding: str,
    store: str | None,
    recheck: bool,
    seed: int,
    device: str,
    threads: int,
    json_out: Path | None,
) -> int:
    """Certified accuracy, NLL, Brier score, confidence and calibration error of MODELS (an ensemble) on a data set.

    Every metric is given for the inputs themselves, under attack, and as what no attack within the radius can pass.

    \b
    Examples
      softhull dataset MODEL.onnx --data images.npz --eps 0.008 --clip 0 1 --indices 0:100
      softhull dataset net-*.onnx --data images.npz --eps 0.004,0.008 --clip 0 1 --store runs.db --json metrics.json
      softhull dataset MODEL.onnx --data images.npz --eps 0.008 --clip 0 1 --indices 0:20 --certificates proofs
    """
    import torch

    from ..deadlines import deadline_after, seconds_left
    from ..verify.calibration import bin_edges
    from ..verify.dataset import SCHEMA, certify_dataset
    from ..verify.methods import find_method

    if store is None:
        refuse("it is about a --store; name one", "executor", "recheck")
    else:
        refuse("work that is kept in a --store is shared by its --executor", "workers")
    if outside is None:
        refuse("it belongs to --outside", "outside_indices")
    use_threads(threads)
    end = deadline_after(budget, "budget")
    radii, networks = subject.radii, subject.networks()
    sets = [(subject.dataset(networks), subject.indices)]
    if outside is not None:
        sets.append((subject.dataset(networks, outside), outside_indices))
    keywords = {"bins": bins, "seed": seed, "rounding": rounding}

    wanted = subject.wanted(sets[0][0])
    statement = None
    if certificates is not None:
        folder = certificate_folder(certificates)
        from ..certificates.dataset import StatementFolder

        if not all(subject.perturbation(radius).plain for radius in radii):
            raise click.UsageError("a statement with certificates is about --eps, --norm and --clip, and no more")
        if len(set(radii)) < len(radii) or len(set(wanted)) < len(wanted):
            raise click.UsageError("a statement with certificates names every radius and every sample once")
        files = certified_files(folder, networks, subject.models)
        statement = StatementFolder(folder.path, files, networks, sets[0][0], wanted, bin_edges(bins))

    def report(dataset: Dataset, which: str | None, radius: float | None) -> tuple[DatasetReport, bool]:
        """What is known in the end, and whether Ctrl-C came before that."""
        wanted, perturbation = parse_indices(which, len(dataset)), subject.perturbation(radius)
        left = None if budget is None else seconds_left(end)
        if store is None:
            x, y = torch.from_numpy(dataset.take(wanted)), torch.from_numpy(dataset.y[wanted])
            own: Any = {"timeout": timeout, "budget": left, "device": device, **keywords, "workers": workers or "auto"}
            done = certify_dataset(networks, x, y, perturbation, method=method, bound=bound, **own)
            return done, done.interrupted
        from ..runs.engine import Limits
        from ..runs.executors import find_executor
        from ..runs.single import Asked, answer_through_store, dataset_result

        chosen = find_method(method, RANGES)
        asked = Asked("dataset", networks, dataset, wanted, perturbation, method, chosen, bound, keywords)
        choice = None if executor is None else find_executor(executor)
        known = answer_through_store(store, asked, Limits(timeout, left, device=device, recheck=recheck), choice)
        if recheck:
            say_differences(known.differences, len(wanted))
        return dataset_result(known, asked), known.interrupted

    work = [(radius, dataset, which) for radius in radii for dataset, which in sets]
    listed = with_progress(work, len(work), "radii") if store is None else iter(work)
    found: list[DatasetReport] = []
    interrupted = False
    try:
        for radius, dataset, which in listed:
            each, interrupted = report(dataset, which, radius)
            found.append(each)
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    del found[len(found) - len(found) % len(sets) :]
    if not found:
        raise KeyboardInterrupt
    inside = found[:: len(sets)]
    answers = [subject.with_data(each.to_dict(), sets[0][0]) for each in inside]
    for answer, each in zip(answers, inside):
        answer["instances"] = each.instances(wanted)
    if outside is not None:
        for answer, one, other in zip(answers, inside, found[1::2]):
            answer["metrics"]["auroc"] = one.auroc(other)
    about: dict[str, Any] = {"schema": SCHEMA, "method": method, "bound": bound} | subject.described()
    aloud = not is_stdout(json_out)
    if aloud:
        _show(answers, found, table)
    if statement is not None and not interrupted:
        if aloud:  # the answer is out before the long work on proofs begins
            write_json(json_out, about | {"radii": answers})
        balls = [subject.perturbation(radius) for radius in radii]
        interrupted = _certify(statement, balls, inside, answers, aloud)
        about |= {"statement": str(statement.file), "no_certificate": statement.missing}
    write_json(json_out, about | {"radii": answers})
    if interrupted:
        raise KeyboardInterrupt
    return exit_code(fail_on, (row["verdict"] for answer in answers for row in answer["instances"]))


def _show(answers: list[dict[str, Any]], found: list[DatasetReport], table: bool) -> None:
    """The table of metrics, after one of samples where that is asked for, its cost, and what was not done."""
    from ..report.dataset_tables import metrics_table, sample_table

    for answer in answers if table else ():
        console().print(sample_table(answer))
    console().print(metrics_table(answers))
    stored = sum(each.from_store for each in found)
    known = f"; {stored} answers are from the store" if stored else ""
    console().print(f"{len(found[0])} samples, {sum(each.cpu_seconds for each in found):.1f} CPU seconds{known}")
    for each in found:
        if each.unanswered:
            left = f"radius {each.eps:g}: {each.unanswered} of {len(each)} samples were not reached"
            console().print(f"{left}; nothing is claimed of them. Run the same command again to go on")
    for note in dict.fromkeys(note for each in found for note in each.ranges.notes.values()):
        console().print(f"not solved to the end: {note}")


def _certify(
    statement: StatementFolder,
    balls: list[Any],
    inside: list[DatasetReport],
    answers: list[dict[str, Any]],
    aloud: bool,
) -> bool:
    """Certificates and the statement on them; what it claims goes to the answers. Returns whether Ctrl-C came."""
    from ..report.dataset_tables import metrics_table

    for ball, report, answer in zip(balls, inside, answers):
        label = f"certificates, radius {ball.eps:g}"
        answer["stated"] = statement.add(ball, report, lambda places: with_progress(places, len(places), label))  # noqa: B023
    statement.write()
    if aloud:
        console().print("What the certificates prove (stated), beside what was certified:")
        console().print(metrics_table(answers))
        click.echo(f"{statement.file}: {len(statement)} certificates")
        for which, why in statement.missing.items():
            click.echo(f"no certificate for {which}: {why}")
    return statement.interrupted
