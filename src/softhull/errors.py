"""What goes wrong because of what was asked, said in one line."""

from __future__ import annotations

import sys
import warnings
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
