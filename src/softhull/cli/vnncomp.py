"""``softhull vnncomp``: properties in the formats of the verification competition."""

from __future__ import annotations

import csv
from pathlib import Path

import click

from .options import device_option, threads_option, use_threads, with_progress


@click.command("vnncomp", short_help="Decide properties in the formats of VNN-COMP.")
@click.argument("onnx", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("vnnlib", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("result", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--timeout", type=float, help="Seconds for the one property.")
@click.option(
    "--instances", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A table ONNX,VNNLIB,SECONDS."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The table of results to write.")
@click.option("--category", help="The first column of the results; default: the folder of the table.")
@click.option("--method", help="As in softhull verify; default: its default.")
@device_option
@threads_option
def command(
    onnx: Path | None,
    vnnlib: Path | None,
    result: Path | None,
    timeout: float | None,
    instances: Path | None,
    out: Path | None,
    category: str | None,
    method: str | None,
    device: str,
    threads: int,
) -> None:
    """Decide whether any input of VNNLIB breaks the property of ONNX, and write the verdict to RESULT.

    Verdicts: sat, with a witness that was replayed on the model file; unsat; unknown; timeout; error.

    \b
    Examples
      softhull vnncomp MODEL.onnx PROPERTY.vnnlib result.txt --timeout 100
      softhull vnncomp --instances instances.csv --out results.csv
    """
    from ..runs.vnncomp import decide, decide_safely, read_instances, result_lines
    from ..verify.methods import find_method

    use_threads(threads)
    if method is not None:
        find_method(method)
    if instances is None:
        if onnx is None or vnnlib is None or result is None or timeout is None or out is not None:
            raise click.UsageError("name ONNX VNNLIB RESULT and --timeout, or --instances and --out")
        verdict = decide(onnx, vnnlib, timeout, method, device=device)
        result.write_text(verdict.text(), encoding="utf-8")
        click.echo(verdict.result)
        return
    if out is None or onnx is not None or timeout is not None:
        raise click.UsageError("--instances needs --out, and the table has the seconds; no file is named beside it")
    listed = read_instances(instances)
    name = category or instances.absolute().parent.name
    # Line by line: a run that is killed leaves what it has decided.
    with out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        answers = ((instance, decide_safely(instance, method, device)) for instance in listed)
        for line in with_progress(result_lines(name, answers), len(listed), "instances"):
            writer.writerow(line)
            stream.flush()
            click.echo(",".join(line))
