"""What goes wrong because of what was asked, said in one line."""

from __future__ import annotations

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
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(found: Any, most: int = 80) -> str:
    """A name from a file, in quotation marks so that nobody takes it for our own words, and cut."""
    if isinstance(found, dict | list):
        return f"a {type(found).__name__}"
    text = str(found)
    return repr(text[:most]) + ("..." if len(text) > most else "")


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
