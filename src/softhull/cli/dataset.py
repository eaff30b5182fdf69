"""``softhull dataset``: what a whole test set guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import NumberList, console, parse_indices, run_options, say_differences, with_progress, write_json

if TYPE_CHECKING:
    from ..formats.datasets import Dataset
    from ..verify.dataset import DatasetReport


@click.command("dataset", short_help="Certify accuracy, scores and calibration error of a data set.")
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--data", required=True, type=click.Path(exists=True, dir_okay=False), help="npz with x and y, IDX or CIFAR-10."
)
@click.option("--eps", required=True, type=NumberList(least=0), help="Radii, separated by commas.")
@click.option("--indices", help="Which inputs, for example 0:500; default: all.")
@click.option(
    "--bins", type=click.IntRange(1, 24), default=15, show_default=True, help="Of the calibration error, equally wide."
)
@click.option(
    "--bound", default="all", show_default=True, help="Softmax bounds, for example hull, er/lse, or all of them."
)
@click.option(
    "--method",
    type=click.Choice(["auto", "dual", "lp", "conic", "second-order", "linear"]),
    default="auto",
    show_default=True,
    help="dual, lp and conic: feedforward networks only; second-order and linear: attention, too.",
)
@click.option("--norm", type=click.Choice(["inf", "2", "1"]), default="inf", show_default=True)
@click.option("--clip", type=(float, float), help="The range inputs live in, for example 0 1.")
@click.option("--timeout", type=float, help="Seconds for each radius, after which the best found so far is reported.")
@click.option(
    "--outside",
    type=click.Path(exists=True, dir_okay=False),
    help="Data of another kind: adds the AUROC of the confidence at telling the two apart.",
)
@click.option("--outside-indices", help="Which inputs of the other data, for example 0:500; default: all.")
@click.option("--executor", help="Who works with --store: local:N, dask or dask:ADDRESS; default: this process.")
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
    eps: tuple[float, ...],
    indices: str | None,
    bins: int,
    bound: str,
    method: str,
    norm: str,
    clip: tuple[float, float] | None,
    timeout: float | None,
    outside: str | None,
    outside_indices: str | None,
    executor: str | None,
    rounding: str,
    store: str | None,
    recheck: bool,
    seed: int,
    device: str,
    threads: int | None,
    out: str | None,
) -> None:
    """Certified accuracy, NLL, Brier score, confidence and calibration error of MODELS (an ensemble) on a data set.

    Every metric is given for the inputs themselves, under attack, and as what no attack within the radius can pass.

    \b
    Examples
      softhull dataset MODEL.onnx --data images.npz --eps 0.008 --clip 0 1 --indices 0:100
      softhull dataset net-*.onnx --data images.npz --eps 0.004,0.008 --clip 0 1 --store runs.db --json metrics.json
    """
    import torch

    from ..formats.datasets import load_dataset
    from ..formats.onnx import load_onnx
    from ..propagate.perturbation import Perturbation
    from ..report.dataset_tables import metrics_table
    from ..verify.dataset import certify_dataset
    from ..verify.uncertainty import find_method

    if executor is not None and store is None:
        raise click.UsageError("--executor works on a store; name one with --store")
    if recheck and store is None:
        raise click.UsageError("--recheck is about a --store; name it")
    if outside_indices is not None and outside is None:
        raise click.UsageError("--outside-indices belongs to --outside")
    if threads is not None:
        torch.set_num_threads(threads)
    networks = [load_onnx(model) for model in models]
    sets = [(load_dataset(data), indices)]
    if outside is not None:
        sets.append((load_dataset(outside), outside_indices))
    keywords = {"bins": bins, "seed": seed, "rounding": rounding}

    def report(dataset: Dataset, which: str | None, radius: float) -> DatasetReport:
        wanted, perturbation = parse_indices(which, len(dataset)), Perturbation(radius, float(norm), clip)
        if store is None:
            x, y = torch.from_numpy(dataset.take(wanted)), torch.from_numpy(dataset.y[wanted])
            own: Any = {"timeout": timeout, "device": device, **keywords}
            return certify_dataset(networks, x, y, perturbation, method=method, bound=bound, **own)
        from ..runs.executors import find_executor
        from ..runs.single import Asked, answer_through_store, dataset_result

        chosen = find_method(method)
        asked = Asked("dataset", networks, dataset, wanted, perturbation, method, chosen, bound, keywords)
        choice = None if executor is None else find_executor(executor)
        known = answer_through_store(store, asked, timeout, device, recheck, choice)
        if recheck:
            say_differences(known.differences, len(wanted))
        return dataset_result(known, asked)

    work = [(radius, dataset, which) for radius in eps for dataset, which in sets]
    listed = with_progress(work, len(work), "radii") if store is None else iter(work)
    found = [report(dataset, which, radius) for radius, dataset, which in listed]
    inside = found[:: len(sets)]
    answers = [each.to_dict() for each in inside]
    if outside is not None:
        for answer, one, other in zip(answers, inside, found[1::2]):
            answer["metrics"]["auroc"] = one.auroc(other)
    if out != "-":
        console().print(metrics_table(answers))
        cpu = sum(each.cpu_seconds for each in found)
        stored = sum(each.from_store for each in found)
        known = f"; {stored} answers are from the store" if stored else ""
        console().print(f"{len(inside[0])} samples, {cpu:.1f} CPU seconds{known}")
        for note in dict.fromkeys(note for each in found for note in each.ranges.notes.values()):
            console().print(f"not solved to the end: {note}")
    about = {"models": list(models), "data": data, "norm": norm, "clip": clip, "method": method, "bound": bound}
    write_json(out, about | {"radii": answers})
