"""The tables of a run store, and how one is opened: files from strangers are checked before anything is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StoreError

VERDICTS = ("certified", "falsified", "unknown", "misclassified", "bounded", "error")
APPLICATION = 0x73684C52  # "shLR": marks an SQLite file as a run store
LARGEST_VALUE = 64 << 20  # bytes of one text or blob
PATIENCE = 60.0  # seconds to wait for another process that is writing

# What was asked (tasks, instances), what was answered (answers), who is at work (runs, claims). Instances that ask the
# same share one answer.
_FIRST = {
    "runs": """CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    machine TEXT NOT NULL,
    process INTEGER NOT NULL,
    born INTEGER NOT NULL,
    command TEXT NOT NULL,
    version TEXT NOT NULL,
    began REAL NOT NULL,
    alive REAL NOT NULL,
    ended REAL
) STRICT""",
    "tasks": """CREATE TABLE tasks (
    id INTEGER PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    question TEXT NOT NULL,
    network TEXT NOT NULL,
    models TEXT NOT NULL,
    data TEXT NOT NULL,
    data_path TEXT NOT NULL,
    eps REAL NOT NULL,
    norm TEXT NOT NULL,
    clip_low REAL,
    clip_high REAL,
    property TEXT,
    score TEXT,
    method TEXT NOT NULL,
    softmax_bound TEXT NOT NULL,
    rounding TEXT,
    settings TEXT NOT NULL,
    version TEXT NOT NULL
) STRICT""",
    "instances": """CREATE TABLE instances (
    task INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    label INTEGER NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (task, idx)
) STRICT, WITHOUT ROWID""",
    "instances_by_key": "CREATE INDEX instances_by_key ON instances (key)",
    "answers": """CREATE TABLE answers (
    key TEXT PRIMARY KEY,
    verdict TEXT NOT NULL,
    bound REAL,
    attack REAL,
    clean REAL,
    cpu_seconds REAL NOT NULL,
    seconds REAL NOT NULL,
    message TEXT NOT NULL,
    worst_input BLOB,
    cut_after REAL,
    finished REAL NOT NULL,
    run INTEGER NOT NULL,
    times INTEGER NOT NULL
) STRICT""",
    "claims": """CREATE TABLE claims (
    key TEXT PRIMARY KEY,
    run INTEGER NOT NULL
) STRICT, WITHOUT ROWID""",
}
# Answers that a recheck found to be different: what the store said before, and what was computed instead.
_SECOND = {
    "rechecks": """CREATE TABLE rechecks (
    key TEXT NOT NULL,
    run INTEGER NOT NULL,
    moment REAL NOT NULL,
    was TEXT NOT NULL,
    found TEXT NOT NULL
) STRICT""",
}
# The class of the input itself and of its worst input, where they were noted.
_THIRD = {
    "classes": """CREATE TABLE classes (
    key TEXT PRIMARY KEY,
    predicted INTEGER,
    new_class INTEGER
) STRICT, WITHOUT ROWID""",
}
# What each version adds, by name. An older store is brought up to date when it is opened to write, and read as it is;
# whoever adds a version appends to this list and changes nothing before it.
MIGRATIONS = (_FIRST, _SECOND, _THIRD)
VERSION = len(MIGRATIONS)  # PRAGMA user_version


def open_to_write(path: Path) -> sqlite3.Connection:
    """A connection to an existing store, or to a new one made here."""
    with explained(path):
        connection = _connect(path.absolute().as_uri() + "?mode=rwc")
        try:
            if _is_empty(connection):
                _use_log(connection, path)
            else:
                check(connection, path)
            _migrate(connection, path)
            check(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection to an existing store that never changes it, also where nothing can be written."""
    if not path.is_file():
        raise StoreError(f"{path}: there is no such store")
    uri = path.absolute().as_uri()
    with explained(path):
        # Opened like a writer, so that the files of the write-ahead log are tidied up again.
        connection = _connect(uri + "?mode=rw")
        try:
            try:
                connection.execute("SELECT 1 FROM sqlite_master").fetchall()
            except sqlite3.OperationalError:
                # A write-ahead log needs a file beside the store; a read-only folder without one holds all there is.
                if path.with_name(path.name + "-wal").exists():
                    raise
                connection.close()
                connection = _connect(uri + "?immutable=1")
            connection.execute("PRAGMA query_only = ON")
            if _is_empty(connection):
                raise StoreError(f"{path}: not a run store; name the file that `softhull run --store` wrote")
            check(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Whatever SQLite reports becomes one line with a remedy."""
    try:
        yield
    except sqlite3.Error as problem:
        raise StoreError(f"{path}: {_reason(problem)}") from None
    except UnicodeDecodeError:
        raise StoreError(f"{path}: damaged (text that is not UTF-8); restore a copy") from None


def _reason(problem: sqlite3.Error) -> str:
    """Why the store failed and what to do, in one line."""
    name = getattr(problem, "sqlite_errorname", None) or ""
    if name.startswith("SQLITE_FULL") or name in ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_SHMSIZE"):
        return "the disk is full or the file may not grow; make room and run again, everything stored so far is kept"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return "cannot be opened for this; check that the folder exists and may be written, or name another --store"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"another process kept the store locked for {PATIENCE:.0f} seconds; end it or try again later"
    if name.startswith("SQLITE_NOTADB"):
        return "not a run store; name the file that `softhull run --store` wrote"
    return f"damaged ({problem}); restore a copy, or rescue the rows with: sqlite3 FILE .recover"


def _connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    # A schema from a stranger must not call functions; damaged cells must be noticed, not followed.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return count == 0 and _number(connection, "application_id") == 0


def _use_log(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(f"{path}: this place does not allow several processes at one store; use a local disk")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new store, or those that an older one lacks; all of it or nothing."""
    if not _is_empty(connection) and _number(connection, "user_version") == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been faster.
        version = 0 if _is_empty(connection) else check(connection, path)
        for added in MIGRATIONS[version:]:
            for statement in added.values():
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check(connection: sqlite3.Connection, path: Path) -> int:
    """The version of a store; StoreError where it is none, too new, or has other tables than its version says."""
    if _number(connection, "application_id") != APPLICATION:
        raise StoreError(f"{path}: an SQLite file, but not a run store; name another --store")
    version = max(1, _number(connection, "user_version"))
    if version > VERSION:
        raise StoreError(f"{path}: written by a newer softhull (schema {version}, known: {VERSION}); upgrade softhull")
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    tables = {name: statement for added in MIGRATIONS[:version] for name, statement in added.items()}
    if found != tables:
        odd = min((name for name, _ in set(found.items()) ^ set(tables.items())), key=str)
        raise StoreError(f"{path}: not a run store of schema {version}: table {str(odd)[:40]!r} is not as expected")
    return version


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether a store, which may be of an earlier version, has a table."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    (value,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    return int(value)
