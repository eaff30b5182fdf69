"""What goes wrong because of what was asked, said in one line."""

from __future__ import annotations


class SofthullError(ValueError):
    """Something the caller can put right; the message is one line that says what and where."""

    def __init__(self, message: str = "") -> None:
        super().__init__(" ".join(message.split()))


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
