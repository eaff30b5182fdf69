"""The run store: an SQLite file that keeps every answer, shared by all processes that work on it."""

from __future__ import annotations

import io
import json
import math
import sqlite3
import time
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from .. import __version__
from ..errors import InvalidInput, StoreError, unknown
from .process import Process
from .rows import COLUMNS, SQL, Row
from .schema import VERDICTS as VERDICTS
from .schema import explained, has_table, open_to_read, open_to_write
from .tasks import Answer, Task, canonical
from .where import Where

# A process that cannot be seen from here counts as gone when it has not been heard of for so long.
SILENCE = 120.0
LARGEST_INPUT = 1 << 20  # bytes of a worst input worth keeping
_JOINED = (
    "FROM instances JOIN tasks ON tasks.id = instances.task JOIN answers ON answers.key = instances.key "
    "LEFT JOIN runs ON runs.id = answers.run LEFT JOIN {} ON classes.key = answers.key WHERE {}"
)
# Stores of the first two versions have no table of classes.
_NO_CLASSES = "(SELECT NULL AS key, NULL AS predicted, NULL AS new_class) AS classes"
# Another batch size moves bounds by second order and gradient steps by less than this share; a recheck says when more.
NOISE = 1e-3
_NUMBERS = ("bound", "attack", "clean")


@dataclass(frozen=True)
class Progress:
    """How many instances of a task were asked about, and what became of them."""

    task: int
    total: int
    verdicts: dict[str, int]

    @property
    def done(self) -> int:
        """How many instances are answered."""
        return sum(self.verdicts.values())


@dataclass(frozen=True)
class Difference:
    """An answer that a recheck found to be different: verdict and numbers that were in the store, and those found."""

    key: str
    was: dict[str, Any]
    found: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The difference as plain values."""
        return {"was": self.was, "found": self.found}


class Store:
    """One store, opened by ``Store.read`` or ``Store.write``; a context manager.

    All failures are StoreError with one line. Writing is one transaction per call: killed at any moment, a store holds
    all that was written before.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._run: int | None = None
        self.differences: list[Difference] = []  # what rechecks of this run found
        self._classes = "classes" if has_table(connection, "classes") else _NO_CLASSES
        self.rechecked = 0  # how many answers of others this run has found again, whether different or not

    @property
    def run(self) -> int | None:
        """The number of this run among ``runs``; None in a store opened to read."""
        return self._run

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """An existing store, never changed."""
        return cls(Path(path), open_to_read(Path(path)))

    @classmethod
    def write(cls, path: str | Path, command: dict[str, Any]) -> Self:
        """A store to work on, made if it is not there; ``command`` is what the run will be remembered by."""
        store = cls(Path(path), open_to_write(Path(path)))
        me, now = Process.current(), time.time()
        row = (me.machine, me.number, me.born, json.dumps(command, sort_keys=True), __version__, now, now)
        try:
            with store._transaction() as connection:
                cursor = connection.execute(
                    "INSERT INTO runs (machine, process, born, command, version, began, alive) VALUES (?,?,?,?,?,?,?)",
                    row,
                )
            store._run = cursor.lastrowid
            store.release_the_dead()
        except BaseException:
            store._connection.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(quietly=error is not None)

    def close(self, quietly: bool = False) -> None:
        """Give back what was claimed and not answered."""
        try:
            if self._run is not None:
                with self._transaction() as connection:
                    connection.execute("DELETE FROM claims WHERE run = ?", (self._run,))
                    connection.execute("UPDATE runs SET ended = ? WHERE id = ?", (time.time(), self._run))
        except StoreError:
            if not quietly:  # a full disk has been reported already; claims of a dead process are free anyway
                raise
        finally:
            self._connection.close()

    # Reading

    def rows(self, where: Where | None = None) -> Iterator[Row]:
        """Every answered instance that meets the condition, by task and index."""
        where = where or Where()
        columns = ", ".join(SQL[name] for name in COLUMNS)
        with explained(self.path):
            query = f"SELECT {columns} {self._joined(where)} ORDER BY instances.task, instances.idx"
            for row in self._connection.execute(query, where.values):
                yield _checked(self.path, Row(*row))

    def _joined(self, where: Where) -> str:
        return _JOINED.format(self._classes, where.condition)

    def check_words(self, where: Where) -> None:
        """InvalidInput where a filter looks for a word that no answer in its column has."""
        for column, word in where.words:
            with explained(self.path):
                query = f"SELECT DISTINCT {SQL[column]} {self._joined(Where())}"
                known = sorted(str(value) for (value,) in self._connection.execute(query) if value is not None)
            if column not in ("verdict", "message") and known and word not in known:
                raise InvalidInput(f"{self.path}: {unknown(column, word, known)}")

    def progress(self, where: Where | None = None) -> list[Progress]:
        """Counts per task, of unanswered instances too; a condition restricts the answered ones."""
        where = where or Where()
        with explained(self.path):
            totals = self._connection.execute("SELECT task, count(*) FROM instances GROUP BY task ORDER BY task")
            found = {task: Progress(task, total, {}) for task, total in totals.fetchall()}
            counted = f"SELECT instances.task, answers.verdict, count(*) {self._joined(where)} GROUP BY 1, 2"
            for task, verdict, count in self._connection.execute(counted, where.values).fetchall():
                found[task].verdicts[verdict] = count
        return list(found.values())

    def tasks(self) -> list[dict[str, Any]]:
        """What was asked: one dictionary per task, ``models`` and ``settings`` unpacked."""
        with explained(self.path):
            return self._dictionaries("SELECT * FROM tasks ORDER BY id", ("models", "settings"))

    def runs(self) -> list[dict[str, Any]]:
        """Who worked on the store and when: machine, process, command, version, began, ended."""
        with explained(self.path):
            return self._dictionaries("SELECT * FROM runs ORDER BY id", ("command",))

    def worst_input(self, key: str) -> np.ndarray | None:
        """The counterexample, or the input with the worst score found; None where none was kept."""
        with explained(self.path):
            row = self._connection.execute("SELECT worst_input FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None or row[0] is None else _unpack(self.path, row[0])

    def answers(self, keys: Sequence[str]) -> dict[str, Answer]:
        """What is known of these keys, worst inputs included."""
        names = ("verdict", "bound", "attack", "clean", "message", "cpu_seconds", "seconds", "cut_after")
        found = {}
        with explained(self.path):
            for key in dict.fromkeys(keys):
                query = (
                    f"SELECT worst_input, run, classes.predicted, classes.new_class, {', '.join(names)} FROM answers "
                    f"LEFT JOIN {self._classes} ON classes.key = answers.key WHERE answers.key = ?"
                )
                row = self._connection.execute(query, (key,)).fetchone()
                if row is not None:
                    worst = None if row[0] is None else _unpack(self.path, row[0])
                    own = row[1] == self._run
                    _check_verdict(self.path, row[4], key)
                    known = dict(zip(("predicted", "new_class", *names), row[2:]))
                    found[key] = Answer(worst_input=worst, from_store=not own, **known)
        return found

    def verdicts(self, keys: Iterable[str]) -> dict[str, str]:
        """The verdicts of those keys that are answered."""
        found = {}
        with explained(self.path):
            for key in keys:
                row = self._connection.execute("SELECT verdict FROM answers WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    found[key] = row[0]
        return found

    def _dictionaries(self, query: str, packed: tuple[str, ...]) -> list[dict[str, Any]]:
        cursor = self._connection.execute(query)
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row)) for row in cursor.fetchall()]
        try:
            return [row | {name: json.loads(row[name]) for name in packed} for row in found]
        except (ValueError, RecursionError, TypeError):
            raise StoreError(f"{self.path}: damaged (a description is not JSON); restore a copy") from None

    # Writing

    def register(self, task: Task, indices: Sequence[int], labels: Sequence[int], keys: Sequence[str]) -> int:
        """Note what will be asked; asking the same again changes nothing. Returns the number of the task."""
        row = task.columns()
        with self._transaction() as connection:
            connection.execute(
                f"INSERT OR IGNORE INTO tasks ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                tuple(row.values()),
            )
            (number,) = connection.execute("SELECT id FROM tasks WHERE hash = ?", (row["hash"],)).fetchone()
            connection.executemany(
                "INSERT OR REPLACE INTO instances (task, idx, label, key) VALUES (?, ?, ?, ?)",
                [(number, int(i), int(label), key) for i, label, key in zip(indices, labels, keys)],
            )
        return int(number)

    def unanswered(
        self, keys: Iterable[str], limit: float | None = None, again: bool = False, recheck: bool = False
    ) -> list[str]:
        """The keys still to be worked on, in the order given, each once.

        An answer that was cut short counts only for runs that would allow no more time (``limit`` seconds, None:
        any time) than it had; with ``again`` errors do not count, with ``recheck`` only what this run has found does.
        """
        most = math.inf if limit is None else limit
        with explained(self.path):
            return [key for key in dict.fromkeys(keys) if not self._settled(key, most, again, recheck)]

    def claim(
        self, keys: Sequence[str], limit: float | None = None, again: bool = False, recheck: bool = False
    ) -> list[str]:
        """Take those of the keys that nobody has answered or is working on; no two processes get the same one."""
        most = math.inf if limit is None else limit
        with self._transaction() as connection:
            free = [key for key in keys if not self._settled(key, most, again, recheck)]
            taken = []
            for key in free:
                cursor = connection.execute("INSERT OR IGNORE INTO claims (key, run) VALUES (?, ?)", (key, self._run))
                if cursor.rowcount:
                    taken.append(key)
        return taken

    def record(self, answers: dict[str, Answer], recheck: bool = False) -> None:
        """Keep what was found, all of it or, on a full disk, none of it; the claims end.

        With ``recheck`` it takes the place of what was known, unless it was cut short before that; where the two
        differ the store remembers both.
        """
        with self._transaction() as connection:
            different = self._recheck(connection, answers) if recheck else []
            self._record(connection, answers, recheck)
        self.differences += different

    def _recheck(self, connection: sqlite3.Connection, answers: dict[str, Answer]) -> list[Difference]:
        """Compares answers with what the store has, and lists those that differ."""
        found = []
        for key, answer in answers.items():
            query = f"SELECT run, cut_after, verdict, {', '.join(_NUMBERS)} FROM answers WHERE key = ?"
            row = connection.execute(query, (key,)).fetchone()
            if row is None or row[0] == self._run or _cut_earlier(answer.cut_after, row[1]):
                continue
            self.rechecked += 1
            was = {"verdict": row[2], **dict(zip(_NUMBERS, row[3:]))}
            now = {"verdict": answer.verdict, **{name: getattr(answer, name) for name in _NUMBERS}}
            if _differ(was, now):
                was, now = ({name: _finite(value) for name, value in side.items()} for side in (was, now))
                found.append(Difference(key, was, now))
        rows = [(d.key, self._run, time.time(), canonical(d.was), canonical(d.found)) for d in found]
        connection.executemany("INSERT INTO rechecks (key, run, moment, was, found) VALUES (?,?,?,?,?)", rows)
        return found

    def _record(self, connection: sqlite3.Connection, answers: dict[str, Answer], recheck: bool) -> None:
        """Writes answers under their keys."""
        now = time.time()
        rows = [
            (
                key,
                answer.verdict,
                answer.bound,
                answer.attack,
                answer.clean,
                answer.cpu_seconds,
                answer.seconds,
                answer.message,
                _pack(answer.worst_input),
                answer.cut_after,
                now,
                self._run,
            )
            for key, answer in answers.items()
        ]
        # What was worked out to the end stays, unless it is checked; what was cut short gives way to more.
        gives_way = "answers.cut_after IS NOT NULL OR answers.verdict = 'error'"
        if recheck:
            gives_way += " OR excluded.cut_after IS NULL"
        connection.executemany(
            "INSERT INTO answers (key, verdict, bound, attack, clean, cpu_seconds, seconds, message, worst_input, "
            "cut_after, finished, run, times) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,1) ON CONFLICT (key) DO UPDATE SET "
            "verdict = excluded.verdict, bound = excluded.bound, attack = excluded.attack, clean = excluded.clean, "
            "cpu_seconds = excluded.cpu_seconds, seconds = excluded.seconds, message = excluded.message, "
            "worst_input = excluded.worst_input, cut_after = excluded.cut_after, finished = excluded.finished, "
            f"run = excluded.run, times = times + 1 WHERE {gives_way}",
            rows,
        )
        known = [
            (key, answer.predicted, answer.new_class, key, self._run)
            for key, answer in answers.items()
            if answer.predicted is not None or answer.new_class is not None
        ]
        connection.executemany(
            "INSERT OR REPLACE INTO classes (key, predicted, new_class) SELECT ?, ?, ? "
            "WHERE EXISTS (SELECT 1 FROM answers WHERE key = ? AND run = ?)",
            known,
        )
        connection.executemany("DELETE FROM claims WHERE key = ?", [(key,) for key in answers])
        connection.execute("UPDATE runs SET alive = ? WHERE id = ?", (now, self._run))

    def release(self, keys: Iterable[str]) -> None:
        """Give back claims without an answer."""
        with self._transaction() as connection:
            own = [(key, self._run) for key in keys]
            connection.executemany("DELETE FROM claims WHERE key = ? AND run = ?", own)

    def heartbeat(self) -> None:
        """Tell the others that this process is still at work."""
        with self._transaction() as connection:
            connection.execute("UPDATE runs SET alive = ? WHERE id = ?", (time.time(), self._run))

    def release_the_dead(self) -> None:
        """Free what was claimed by processes that are gone."""
        with self._transaction() as connection:
            claiming = connection.execute(
                "SELECT id, machine, process, born, alive FROM runs WHERE id IN (SELECT run FROM claims)"
            ).fetchall()
            for number, machine, process, born, alive in claiming:
                lives = Process(machine, process, born).lives()
                silent = abs(time.time() - alive) > SILENCE
                if number != self._run and (lives is False or (lives is None and silent)):
                    connection.execute("DELETE FROM claims WHERE run = ?", (number,))
            connection.execute("DELETE FROM claims WHERE run NOT IN (SELECT id FROM runs)")

    def _settled(self, key: str, limit: float, again: bool, recheck: bool) -> bool:
        row = self._connection.execute("SELECT verdict, cut_after, run FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None or (again and row[0] == "error") or (recheck and row[2] != self._run):
            return False
        return row[1] is None or not limit > row[1]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _cut_earlier(now: float | None, before: float | None) -> bool:
    """Whether an answer had less time than the one before it: it says nothing about that one."""
    return now is not None and (before is None or now < before)


def _differ(was: dict[str, Any], found: dict[str, Any]) -> bool:
    if was["verdict"] != found["verdict"]:
        return True
    pairs = [(_finite(was[name]), _finite(found[name])) for name in ("bound", "clean")]  # attacks prove nothing
    return any((a is None) != (b is None) or (a is not None and abs(a - b) > NOISE * (1 + abs(b))) for a, b in pairs)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _pack(array: np.ndarray | None) -> bytes | None:
    if array is None or array.nbytes > LARGEST_INPUT:
        return None
    packed = io.BytesIO()
    np.lib.format.write_array(packed, np.ascontiguousarray(array), allow_pickle=False)
    return packed.getvalue()


def _unpack(path: Path, content: bytes) -> np.ndarray:
    """An array that was packed; its size is known from the header before anything of that size is made."""
    try:
        stream = io.BytesIO(content)
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        left = content[stream.tell() :]
        if dtype.kind != "f" or len(left) != math.prod(shape) * dtype.itemsize:
            raise ValueError
        return np.frombuffer(left, dtype=dtype).reshape(shape, order="F" if fortran else "C")
    except (
        ValueError,
        SyntaxError,
        TypeError,
        RecursionError,
        tokenize.TokenError,
    ):  # numpy parses the header as Python
        raise StoreError(f"{path}: damaged (a worst input is no array of numbers); restore a copy") from None


def _checked(path: Path, row: Row) -> Row:
    _check_verdict(path, row.verdict, f"instance {row.index}")
    try:
        row.to_dict()  # which every reader may ask for
    except (ValueError, OverflowError, OSError, RecursionError):
        raise StoreError(f"{path}: damaged (description or time of instance {row.index}); restore a copy") from None
    return row


def _check_verdict(path: Path, verdict: str, where: str) -> None:
    if verdict not in VERDICTS:
        raise StoreError(f"{path}: damaged (verdict {verdict[:20]!r} of {where}); restore a copy")
