"""What several commands share: lists of numbers, consoles, the progress bar, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


class NumberList(click.ParamType):
    """Numbers separated by commas, as a tuple; each within ``[least, most]``."""

    name = "numbers"

    def __init__(self, kind: type[float] | type[int] = float, least: float = -math.inf, most: float = math.inf) -> None:
        self.kind = kind
        self.least = least
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self._number(entry.strip(), value, param, ctx) for entry in str(value).split(","))

    def _number(self, entry: str, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = self.kind(entry)
            if math.isnan(number):
                raise ValueError
        except ValueError:
            what = "a whole number" if self.kind is int else "a number"
            self.fail(f"{entry!r} in {value!r} is not {what}; write for example 0.2,1,2", param, ctx)
        if not self.least <= number <= self.most:
            self.fail(f"{entry} is not between {self.least:g} and {self.most:g}", param, ctx)
        return number


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


def parse_indices(text: str | None, count: int) -> list[int]:
    """``0:500``, ``3``, ``0:10,40:50`` as a list; None is everything."""
    if text is None:
        return list(range(count))
    found: list[int] = []
    for part in text.split(","):
        start, colon, stop = part.partition(":")
        try:
            first = int(start) if start or not colon else 0
            last = (int(stop) if stop else count) if colon else first + 1
        except ValueError:
            raise click.BadParameter(
                f"{part!r} is not an index or a range such as 0:500", param_hint="--indices"
            ) from None
        if not 0 <= first < last <= count:
            raise click.BadParameter(f"{part!r} is not within the {count} inputs", param_hint="--indices")
        found.extend(range(first, last))
    return found


def write_json(out: str | None, data: Any) -> None:
    """Records to a file, to standard output (``-``) or nowhere (None)."""
    if out == "-":
        show_json(data)
    elif out is not None:
        Path(out).write_text(json.dumps(_finite(data), indent=2, allow_nan=False) + "\n")


def with_progress(items: Iterable[T], total: int, label: str) -> Iterator[T]:
    """Pass the items on while a bar on standard error counts them (on a terminal only)."""
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
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        yield from progress.track(items, total=total, description=label)


def _resolve_workers(context: click.Context, parameter: click.Parameter, value: int | None) -> int:
    from ..study.parallel import available_cores

    return available_cores() if value is None else value


workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    callback=_resolve_workers,
    help="Processes; default: one per available processor.",
)


def _usable(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value != "cpu":
        from ..devices import find_device

        find_device(value)
    return value


device_option = click.option(
    "--device", default="cpu", show_default=True, callback=_usable, help="Where to compute, for example cuda."
)


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


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every command that certifies instances takes: a store, a seed, a device, threads, a file for records."""
    for option in reversed(
        (
            click.option(
                "--store",
                type=click.Path(dir_okay=False),
                help="A run store: what it knows is believed and not computed again, the rest is kept.",
            ),
            click.option(
                "--recheck", is_flag=True, help="Compute again what the store knows, and say where it differs."
            ),
            click.option("--seed", type=int, default=0, show_default=True, help="Of the attack."),
            device_option,
            click.option("--threads", type=click.IntRange(min=1), help="Processor threads."),
            click.option(
                "--json",
                "out",
                type=click.Path(dir_okay=False),
                help="Write the records to this file ('-': standard output).",
            ),
        )
    ):
        command = option(command)
    return command
