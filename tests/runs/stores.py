"""What two stores must agree on."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

from softhull.runs.rows import Row
from softhull.runs.store import Store


def rows(path: Path) -> dict[tuple[object, ...], Row]:
    with Store.read(path) as store:
        listed = list(store.rows())
    found: dict[tuple[object, ...], Row] = {
        (row.question, row.score, row.network, row.eps, row.method, row.softmax_bound, row.index): row for row in listed
    }
    assert len(found) == len(listed)
    return found


def assert_equal(one: Path, two: Path) -> None:
    """The same instances, keys and verdicts; bounds, attacks and clean values within 1e-9 of each other."""
    ours, theirs = rows(one), rows(two)
    assert ours.keys() == theirs.keys()
    for place, row in ours.items():
        other = theirs[place]
        assert (row.key, row.verdict) == (other.key, other.verdict), place
        for name in ("bound", "attack", "clean"):
            a, b = getattr(row, name), getattr(other, name)
            assert (a is None) == (b is None), (place, name)
            assert a is None or math.isclose(a, b, rel_tol=1e-9, abs_tol=0) or a == b, (place, name, a, b)


def assert_complete(path: Path) -> None:
    """Everything asked is answered, once, and nothing is claimed."""
    with Store.read(path) as store:
        assert all(progress.done == progress.total for progress in store.progress())
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("SELECT count(*) FROM claims").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM answers WHERE times != 1").fetchone() == (0,)
    finally:
        connection.close()


def answered(path: Path) -> int:
    """How many answers a store that others write to holds just now."""
    if not path.exists():
        return 0
    connection = sqlite3.connect(path, timeout=30)
    try:
        return int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])
    except sqlite3.OperationalError:  # before its tables are made
        return 0
    finally:
        connection.close()
