"""What goes wrong because of what was asked, said in one line."""

from __future__ import annotations


class SofthullError(ValueError):
    """Something the caller can put right; the message is one line that says what and where."""


class InvalidInput(SofthullError):
    """An argument, file or option that cannot be used as it is."""


class MissingExtra(SofthullError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""
