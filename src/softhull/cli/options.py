"""What several commands take: kinds of values, options with one meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from ..errors import unknown
from ..verify.methods import CLASSES, TABLE, names_for
from .output import FAIL_ON

if TYPE_CHECKING:
    pass

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
        """One number of a list, or the error of a bad option."""
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


class Name(click.Choice[str]):
    """One of several names; one that is not known is answered with the nearest."""

    def __init__(self, kind: str, known: Sequence[str]) -> None:
        super().__init__(list(known))
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            self.fail(unknown(self.kind, value, self.choices), param, ctx)
        return str(value)


class Completed(click.ParamType):
    """Text that the shell completes with some names; what it means is checked where it is used.

    ``separator``: between several names, such as the two sides of a bound.
    """

    def __init__(self, kind: str, known: Callable[[], Iterable[str]], separator: str | None = None) -> None:
        self.name = kind
        self._known = known
        self._separator = separator

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, separator, last = incomplete.rpartition(self._separator) if self._separator else ("", "", incomplete)
        return [CompletionItem(before + separator + name) for name in self._known() if name.startswith(last)]


def _bound_names() -> list[str]:
    from ..bounds.table import BOUNDS

    return [*BOUNDS, "all"]


def _score_names() -> list[str]:
    from ..verify.scores import SCORES

    return list(SCORES)


BOUND = Completed("bound", _bound_names, "/")
BOUND_LIST = Completed("bounds", _bound_names, ",")
SCORE = Completed("score", _score_names)


class OutFile(click.ParamType):
    """A file to write, tried before any work starts; ``-`` is standard output where that is allowed."""

    name = "file"

    def __init__(self, dash: bool = False) -> None:
        self._dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if str(value) != "-" or not self._dash:
            try:
                try_to_write(path)
            except OSError as problem:
                self.fail(f"{path} cannot be written ({problem.strerror or problem})", param, ctx)
        return path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def try_to_write(path: Path) -> None:
    """OSError where a file cannot be written; nothing that is there is changed, missing folders are made."""
    if path.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("ab"):
        pass
    if new:
        path.unlink()


class OutFolder(click.ParamType):
    """A folder to write into, made and tried before any work starts."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        try:
            try_to_write(path / ".softhull")
        except OSError as problem:
            self.fail(f"{path} cannot be written into ({problem.strerror or problem})", param, ctx)
        return path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]


def given(*names: str) -> list[str]:
    """Those of the options that stand on the command line, as they are written there."""
    context = click.get_current_context()
    written = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    return [written[name] for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def refuse(why: str, *names: str) -> None:
    """UsageError where one of the options is given: it would be ignored, for the reason named."""
    if found := given(*names):
        raise click.UsageError(f"{' and '.join(found)} would be ignored: {why}")


LARGEST_COUNT = 1 << 24


def parse_indices(text: str | None, count: int = LARGEST_COUNT) -> list[int]:
    """``0:500``, ``3``, ``0:10,40:50`` of ``count`` inputs as a list; None is everything."""
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


def _resolve_workers(context: click.Context, parameter: click.Parameter, value: int | None) -> int:
    from ..workers import available_cores

    return available_cores() if value is None else value


workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    callback=_resolve_workers,
    help="Processes; default: one per available CPU.",
)


threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads per process; more than one helps only with large networks on an idle machine.",
)


def use_threads(count: int) -> None:
    """So many threads inside every operation of this process."""
    import torch

    torch.set_num_threads(count)


def _begin_to_load(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    """Workers need what this process is about to load: both at once."""
    if value is not None and value > 1 and not context.resilient_parsing:
        from ..workers import start_loading

        start_loading()
    return value


def _usable(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value != "cpu":
        from ..devices import find_device

        find_device(value)
    return value


device_option = click.option(
    "--device", default="cpu", show_default=True, callback=_usable, help="Where to compute, for example cuda."
)


Command = Callable[..., Any]


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order in which the help lists them."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# Of the programs that bound probabilities.
bounding_options = together(
    click.option(
        "--bound",
        type=BOUND,
        default="all",
        show_default=True,
        help="Softmax bounds, for example hull, er/lse, or all of them.",
    ),
    click.option(
        "--rounding",
        type=Name("rounding", ("outward", "nearest")),
        default="outward",
        show_default=True,
        help="outward: bounds are true for the real-valued networks; nearest: up to rounding, faster.",
    ),
)


def method_option(question: str) -> Callable[[Command], Command]:
    """``--method``: those that answer a question."""
    known = names_for(question)
    feedforward = [name for name in known if "feedforward" in TABLE[name].about]
    return click.option(
        "--method",
        type=Name("method", known),
        default="auto",
        show_default=True,
        help=f"{', '.join(feedforward)}: feedforward networks only." if question != CLASSES else None,
    )


json_option = click.option(
    "--json",
    "json_out",
    type=OutFile(dash=True),
    is_flag=False,
    flag_value="-",
    metavar="FILE",
    help="Write the answer as JSON to this file ('-' or nothing: standard output).",
)


def out_option(default: str | None = None, text: str = "The file to write.") -> Callable[[Command], Command]:
    """``-o/--out``: the file that a command is there to write."""
    shown: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option("-o", "--out", type=OutFile(), metavar="FILE", help=text, **shown)


def out_folder_option(default: str | None = None, text: str = "Folder for what is written.") -> Any:
    """``-o/--out`` of commands that write several files."""
    shown: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option("-o", "--out", type=OutFolder(), metavar="FOLDER", help=text, **shown)


IMAGE = "PNG, PDF or SVG, by the ending of the name."

timeout_option = click.option(
    "--timeout", type=float, help="Seconds for each instance; the best found by then is kept. A batch shares its time."
)
budget_option = click.option("--budget", type=float, help="Seconds for the whole run; the best found by then is kept.")
time_options = together(timeout_option, budget_option)

table_option = click.option("--table", is_flag=True, help="Print one line per instance.")


fail_on_option = click.option(
    "--fail-on",
    type=Name("outcome", tuple(FAIL_ON)),
    help="Exit with code 1 if an instance is falsified; unknown: also if one is undecided or ended in an error.",
)
# Of questions about numbers, where nothing can be falsified.
fail_on_unknown_option = click.option(
    "--fail-on",
    type=Name("outcome", ("unknown",)),
    help="unknown: exit with code 1 if nothing was proved about an instance, or it ended in an error.",
)


# Of every command that certifies instances: processes, a store, a seed, a device, threads, a file for the answer.
run_options = together(
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        callback=_begin_to_load,
        help="Processes that share the instances; default: one per CPU, if the work takes long.",
    ),
    click.option(
        "--store",
        type=click.Path(dir_okay=False),
        help="A run store: what it knows is believed and not computed again, the rest is kept.",
    ),
    click.option("--recheck", is_flag=True, help="Compute again what the store knows, and say where it differs."),
    click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the attack."),
    device_option,
    threads_option,
    json_option,
)
