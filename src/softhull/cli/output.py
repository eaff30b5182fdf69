"""What commands say: consoles, the progress bar, notes, JSON, exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

T = TypeVar("T")


def console() -> Console:
    """Where results go. A pipe or a file has no width: tables are not cut to 80 columns there."""
    from rich.console import Console

    screen = Console(highlight=False)
    return screen if screen.is_terminal else Console(highlight=False, width=160)


def show_json(data: Any) -> None:
    """Strict JSON on standard output: a number that is not finite becomes null."""
    click.echo(json.dumps(_finite(data), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


NOTES: list[str] = []  # warnings of this command, each said once


def say_note(message: Warning | str, *_: Any) -> None:
    """A warning as one line on standard error, and among the notes of the records."""
    if (line := str(message)) not in NOTES:
        NOTES.append(line)
        click.echo(f"softhull: note: {line}", err=True)


COMMAND: list[str] = []  # the command line, as it was given


def write_json(out: Path | None, data: Any) -> None:
    """The answer to a file, to standard output (``-``) or nowhere (None), with the command and its notes."""
    if isinstance(data, dict):
        data = data | {"command": ["softhull", *COMMAND]} | ({"notes": list(NOTES)} if NOTES else {})
    if is_stdout(out):
        show_json(data)
    elif out is not None:
        out.write_text(json.dumps(_finite(data), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def is_stdout(out: Path | None) -> bool:
    """Whether the JSON is all that standard output is for."""
    return out is not None and str(out) == "-"


@contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None]]:
    """A function that is told how many of how many are done, and shows it on standard error (on a terminal only)."""
    from ..branch.loop import watching

    with _bar() as progress:
        task = progress.add_task(label, total=None)

        def tell(left: int, bound: float) -> None:
            words = f"{label} ({left} open cells, the worst {bound:.3g})" if left else label
            progress.update(task, description=words)

        with watching(tell):
            yield lambda done, total: progress.update(task, completed=done, total=total)


def with_progress(items: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Pass the items on while a bar on standard error counts them (on a terminal only)."""
    with _bar() as progress:
        yield from progress.track(items, total=total, description=label)


def _bar() -> Progress:
    """A progress bar on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    screen = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


def say_differences(differences: Sequence[dict[str, Any]], asked: int) -> None:
    """Lines on standard error: where a recheck contradicts the store."""
    for difference in differences:
        was, found = (
            " ".join(f"{name} {value:.6g}" if isinstance(value, float) else str(value) for name, value in side.items())
            for side in (_telling(difference["was"]), _telling(difference["found"]))
        )
        click.echo(f"recheck: instance {difference['index']}: the store said {was}, found {found}", err=True)
    click.echo(f"recheck: {len(differences)} of {asked} answers differ from the store's", err=True)


def _telling(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name in ("verdict", "bound") and value is not None}


FAILED = 1


# Verdicts that end a command with exit code 1.
FAIL_ON = {"falsified": ("falsified", "sat"), "unknown": ("falsified", "sat", "unknown", "timeout", "error")}


def exit_code(fail_on: str | None, verdicts: Iterable[str]) -> int:
    """The exit code of a command after these verdicts."""
    return FAILED if fail_on is not None and not set(FAIL_ON[fail_on]).isdisjoint(verdicts) else 0
