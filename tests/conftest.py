"""What tests of several rooms need."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C as programs hear it: who runs the tests may have other ideas."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# Files that take long, the longest first: one that begins last keeps a single worker busy at the end.
LONG = (
    "checker/forgery/test_forgery.py",
    "certificates/test_write.py",
    "test_documentation.py",
    "soundness/test_methods.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of these files before all others, in the order of the files; else as they were."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(LONG)))
