"""The root command: finds the others by name, and turns every failure into one line and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from .. import __version__
from ..errors import InputWarning, SofthullError, missing_extra, one_line, unknown
from .output import COMMAND, NOTES, say_note

COMMANDS = (
    "bounds",
    "plot",
    "tightness",
    "inspect",
    "operators",
    "verify",
    "uncertainty",
    "dataset",
    "conformal",
    "check",
    "run",
    "results",
    "compare",
    "vnncomp",
    "report",
    "paper",
    "demo",
)

# A group called without a command shows its help; click before 8.2 does that without an exception.
HELP_WANTED: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())

INTERRUPTED = 130
BAD_INPUT = 2


class LazyGroup(click.Group):
    """Subcommands are modules of one package, imported when they are needed."""

    def __init__(self, *args: Any, package: str, names: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.package = package
        self.names = names

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.names)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.names:
            if not ctx.resilient_parsing:
                ctx.fail(unknown("command", name, self.names))
            return None
        found: click.Command = import_module(f".{name}", self.package).command
        return found


class Root(LazyGroup):
    """Bad input: one line, exit code 2. Ctrl-C: exit code 130. Anything else is a bug and keeps its traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        NOTES.clear()
        COMMAND[:] = list(args[0] if args and args[0] is not None else kwargs.get("args") or sys.argv[1:])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", InputWarning)
                warnings.showwarning = _show(warnings.showwarning)
                code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except (KeyboardInterrupt, click.Abort):
            _leave("interrupted", INTERRUPTED)
        except HELP_WANTED as problem:
            click.echo(problem.ctx.get_help(), err=True)
            sys.exit(BAD_INPUT)
        except click.ClickException as problem:
            _leave(_explain(problem), BAD_INPUT)
        except BrokenPipeError:
            # The reader of our output has left; the interpreter's own flush at exit must not complain either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except (SofthullError, OSError) as problem:
            _leave(_describe(problem), BAD_INPUT)
        except ImportError as problem:
            missing = missing_extra(problem, "this command")
            if missing is None:
                raise
            _leave(str(missing), BAD_INPUT)
        sys.exit(code if isinstance(code, int) else 0)


def _show(usual: Callable[..., None]) -> Callable[..., None]:
    """Warnings about inputs are notes; all others are shown as usual."""

    def show(message: Warning | str, *rest: Any, **more: Any) -> None:
        (say_note if isinstance(message, InputWarning) else usual)(message, *rest, **more)

    return show


def _explain(problem: click.ClickException) -> str:
    context = getattr(problem, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    if isinstance(problem, click.NoSuchOption) and context is not None:
        known = [name for parameter in context.command.get_params(context) for name in parameter.opts]
        near = get_close_matches(problem.option_name, known, 1)
        return f"unknown option {problem.option_name}" + (f"; did you mean {near[0]}?" if near else "") + hint
    return problem.format_message() + hint


def _describe(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    return str(problem)


def _leave(message: str, code: int) -> NoReturn:
    click.echo(f"softhull: {one_line(message)}", err=True)
    sys.exit(code)


_EPILOG = """\b
Examples
  softhull bounds --lower=-1,0,2 --upper=0,1,3
  softhull verify MODEL.onnx --data images.npz --eps 0.016 --clip 0 1
  softhull run campaign.toml --store runs.db
  softhull report runs.db -o report.html
\b
Shell completion
  eval "$(_SOFTHULL_COMPLETE=bash_source softhull)"      (or zsh_source, fish_source)"""

_root: Callable[..., Any] = click.group(
    "softhull",
    cls=Root,
    package=__package__,
    names=COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@_root
@click.version_option(__version__, prog_name="softhull")
def app() -> None:
    """Certified statements about softmax."""
