"""What goes wrong because of what was asked, said in one line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

LONGEST_LINE = 2000  # characters of one message


class SofthullError(ValueError):
    """Something the caller can put right; the message is one line that says what and where."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    """Text as a terminal may show it: one line, not too long, and nothing that a terminal would obey.

    Parts of messages come from files of strangers; what is not printable is shown as Python writes it (``\\x1b``).
    """
    text = " ".join(text.split())
    if len(text) > LONGEST_LINE:
        text = text[:LONGEST_LINE] + "..."
    return printable(text)


def printable(line: str) -> str:
    """A line without anything that a terminal would obey."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def quoted(found: Any, most: int = 80) -> str:
    """A name from a file, in quotation marks so that nobody takes it for our own words, and cut."""
    if isinstance(found, dict | list):
        return f"a {type(found).__name__}"
    text = str(found)
    return repr(text[:most]) + ("..." if len(text) > most else "")


def unknown(kind: str, name: Any, known: Iterable[str], more: str = "") -> str:
    """A message about a name that is not known: the nearest one, or all there are and ``more``."""
    names = list(known)
    near = get_close_matches(str(name).lower(), names, 1)
    listed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)
    remedy = f"did you mean {near[0]}?" if near else f"choose {listed}{more}"
    return f"unknown {kind} {quoted(name)}; {remedy}"


class InputWarning(UserWarning):
    """Inputs that can be used, but are likely not what was meant, or were changed before use; one line."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


def warn(message: str) -> None:
    """A warning that names the line of the caller outside of this package."""
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("softhull."):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(InputWarning(message), stacklevel=depth)


class InvalidInput(SofthullError):
    """An argument, file or option that cannot be used as it is."""


class ModelError(InvalidInput):
    """A network that cannot be read, or that uses something softhull does not support."""


class SpecificationError(InvalidInput):
    """A property file that cannot be read."""


class DatasetError(InvalidInput):
    """A data file that cannot be read."""


class StoreError(InvalidInput):
    """A run store that cannot be read or written; nothing stored before is lost."""


class CampaignError(InvalidInput):
    """A campaign file that does not say what to do."""


class DomainError(SofthullError):
    """An operator whose input interval leaves the set where it is defined."""


class MissingExtra(SofthullError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


# The extra that brings a package; networks need ONNX and torch together.
EXTRAS = {
    "click": "cli",
    "rich": "cli",
    "torch": "onnx",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "from-torch",
    "highspy": "lp",
    "cvxpy": "conic",
    "clarabel": "conic",
    "scs": "conic",
    "flint": "check",
    "vnnlib": "vnnlib",
    "matplotlib": "plot",
    "mpl_toolkits": "plot",
    "distributed": "dask",
    "dask": "dask",
    "pyarrow": "parquet",
    "pandas": "pandas",
    "jax": "jax",
}


def missing_extra(problem: ImportError, what: str = "this") -> MissingExtra | None:
    """What to install for a package that could not be imported; None where no extra brings it."""
    package = (problem.name or "").split(".")[0]
    if package not in EXTRAS:
        return None
    return MissingExtra(f"{what} needs {package}, which is not installed: pip install 'softhull[{EXTRAS[package]}]'")
