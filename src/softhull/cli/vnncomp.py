"""``softhull vnncomp``: properties in the formats of the verification competition."""

from __future__ import annotations

import csv
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ..deadlines import deadline_after, seconds_left
from .options import device_option, out_option, threads_option, use_threads, workers_option
from .output import with_progress


class _Packed(click.Path):
    """A file, or its packed form as benchmarks are distributed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        packed = f"{value}.gz"
        return super().convert(packed if not os.path.exists(value) and os.path.exists(packed) else value, param, ctx)


_FILE = _Packed(path_type=Path, exists=True, dir_okay=False)


@click.command("vnncomp", short_help="Decide properties in the formats of VNN-COMP.")
@click.argument("onnx", required=False, type=_FILE)
@click.argument("vnnlib", required=False, type=_FILE)
@click.argument("result", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--timeout", type=float, help="Seconds for the one property.")
@click.option(
    "--instances", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A table ONNX,VNNLIB,SECONDS."
)
@out_option(text="The table of results to write.")
@click.option("--category", help="The first column of the results; default: the folder of the table.")
@click.option("--method", help="As in softhull verify; default: its default.")
@device_option
@workers_option
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
    workers: int,
    threads: int,
) -> None:
    """Decide whether any input of VNNLIB breaks the property of ONNX, and write the verdict to RESULT.

    Verdicts: sat, with a witness that was replayed on the model file; unsat; unknown; timeout; error.

    \b
    Examples
      softhull vnncomp MODEL.onnx PROPERTY.vnnlib result.txt --timeout 100
      softhull vnncomp --instances instances.csv --out results.csv
    """
    from ..verify.methods import find_method

    if method is not None:
        find_method(method)
    if instances is None:
        if onnx is None or vnnlib is None or result is None or timeout is None or out is not None:
            raise click.UsageError("name ONNX VNNLIB RESULT and --timeout, or --instances and --out")
        used = click.get_current_context().find_root().obj
        deadline = deadline_after(timeout) - (0.0 if used is None else used())
        with _in_time(result, math.inf if used is None else deadline) as answer:
            from ..runs.vnncomp import decide

            use_threads(threads)
            answer(decide(onnx, vnnlib, seconds_left(deadline), method, device=device).text())
        return
    from ..runs.vnncomp import decide_all, read_instances, result_lines

    if out is None or onnx is not None or timeout is not None:
        raise click.UsageError("--instances needs --out, and the table has the seconds; no file is named beside it")
    listed = read_instances(instances)
    name = category or instances.absolute().parent.name
    # Line by line: a run that is killed leaves what it has decided.
    with out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        answers = decide_all(listed, method, device, workers, threads)
        for line in with_progress(result_lines(name, answers), len(listed), "instances"):
            writer.writerow(line)
            stream.flush()
            click.echo(",".join(line))


# How long after the limit a computation that does not end by itself is ended.
_GRACE = 0.5


@contextmanager
def _in_time(path: Path, deadline: float) -> Iterator[Callable[[str], None]]:
    """Gives a function that writes the answer; when time is over, ``timeout`` is written and the process ends.

    Work that does not look at the clock for a while is not waited for.
    """
    once = threading.Lock()

    def write(text: str) -> None:
        path.write_text(text, encoding="utf-8")
        click.echo(text.splitlines()[0])

    def late() -> None:
        if once.acquire(blocking=False):
            try:
                write("timeout\n")
            finally:
                os._exit(0)

    def answer(text: str) -> None:
        if once.acquire(blocking=False):
            write(text)
        else:  # the other thread is about to end the process
            threading.Event().wait()

    timer = threading.Timer(seconds_left(deadline) + _GRACE, late)
    timer.daemon = True
    if deadline < math.inf:
        timer.start()
    try:
        yield answer
    finally:
        timer.cancel()
