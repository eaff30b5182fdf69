"""Stores of earlier versions open, what they know stays known, and what a key is made of is written down."""

from __future__ import annotations

import hashlib
import inspect
import json
import sqlite3
from collections.abc import Callable
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softhull import __version__
from softhull.errors import StoreError
from softhull.propagate.methods import Linear
from softhull.regions import Perturbation
from softhull.runs import schema, tasks
from softhull.runs.questions import _TAKEN, QUESTIONS, Robustness
from softhull.runs.store import Store
from softhull.runs.tasks import FIELDS, LATER, Answer, Model, Task, plain

X, Y = np.arange(6.0).reshape(2, 3), np.array([0, 1])

# Version 1, word for word; its settings were written with every field of every method and every argument.
FIRST = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    machine TEXT NOT NULL,
    process INTEGER NOT NULL,
    born INTEGER NOT NULL,
    command TEXT NOT NULL,
    version TEXT NOT NULL,
    began REAL NOT NULL,
    alive REAL NOT NULL,
    ended REAL
) STRICT;
CREATE TABLE tasks (
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
) STRICT;
CREATE TABLE instances (
    task INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    label INTEGER NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (task, idx)
) STRICT, WITHOUT ROWID;
CREATE INDEX instances_by_key ON instances (key);
CREATE TABLE answers (
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
) STRICT;
CREATE TABLE claims (
    key TEXT PRIMARY KEY,
    run INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""
SETTINGS: dict[str, Any] = {
    "question": "robustness",
    "perturbation": {"eps": 0.1, "norm": "inf", "clip": [0.0, 1.0]},
    "method": {
        "kind": "Linear",
        "bound": "hull",
        "optimize": 20,
        "differences": True,
        "simplex": True,
        "contract": True,
        "contract_limit": 4096,
        "learning_rate": 0.1,
        "mixture": 0.5,
        "rounding": "outward",
    },
    "softmax_bound": "hull",
    "keywords": {"property": "all", "targets": None, "attack": None, "seed": 0},
}
SCORES: dict[str, Any] = {
    "question": "uncertainty",
    "perturbation": {"eps": 0.1, "norm": "2", "clip": None},
    "method": {
        "kind": "Dual",
        "steps": 200,
        "stages": 1,
        "learning_rate": 0.1,
        "decay": 0.01,
        "tolerance": 1e-05,
        "refresh": None,
    },
    "softmax_bound": "all",
    "keywords": {"score": "nll", "separate": False, "seed": 0, "rounding": "outward"},
}


def _old_key(settings: dict[str, Any], i: int) -> str:
    about = {"softhull": __version__, "models": ["ab"], "settings": settings}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, separators=(",", ":")).encode())
    digest.update(f"label {Y[i]} ".encode())
    digest.update(X[i].astype("<f8").tobytes())
    return digest.hexdigest()


def _task(question: str = "robustness", method: Any = None, perturbation: Any = None, **given: Any) -> Task:
    asked = QUESTIONS[question]
    name, found, bound = asked.method("linear" if question == "robustness" else "dual", None, {})
    perturbation = perturbation or Perturbation(0.1, clip=(0, 1))
    models = (Model("net.onnx", "ab"),)
    keywords = asked.keywords(given)
    return Task(
        question, "net", models, "d", "d.npz", perturbation, name, method or found, bound, keywords, asked.defaults()
    )


def _write_old(path: Path, version: int) -> list[str]:
    keys = [_old_key(SETTINGS, i) for i in range(2)]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(FIRST)
    connection.execute(f"PRAGMA application_id = {0x73684C52}")
    connection.execute(f"PRAGMA user_version = {version}")
    with connection:
        connection.execute("INSERT INTO runs VALUES (1, 'elsewhere', 1, 1, '{}', '0.9', 1.0, 1.0, 2.0)")
        row = _task().columns()
        connection.execute(
            f"INSERT INTO tasks ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
        )
        for i, key in enumerate(keys):
            connection.execute("INSERT INTO instances VALUES (1, ?, ?, ?)", (i, int(Y[i]), key))
            answer = (key, "certified", 0.5, None, None, 1.0, 1.0, "", None, None, 2.0, 1, 1)
            connection.execute(f"INSERT INTO answers VALUES ({', '.join('?' * 13)})", answer)
    connection.close()
    return keys


@pytest.mark.parametrize("version", [0, 1])
def test_a_store_of_the_first_version_opens_and_is_known(version: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    keys = _write_old(path, version)
    with Store.read(path) as store:  # read as it is
        assert [(row.verdict, row.bound, row.machine) for row in store.rows()] == [("certified", 0.5, "elsewhere")] * 2
        assert store.answers(keys)[keys[0]].from_store
    assert _version(path) == version
    assert _task().keys(X, Y) == keys
    with Store.write(path, {}) as store:
        assert store.register(_task(), range(2), Y.tolist(), keys) == 1  # the same task, not a second one
        assert store.unanswered(keys) == []
        store.record({keys[0]: Answer("unknown", -1.0)}, recheck=True)
        assert len(store.differences) == 1
    assert _version(path) == schema.VERSION
    with Store.read(path) as store:
        assert [row.verdict for row in store.rows()] == ["unknown", "certified"]


def test_a_migrated_store_and_a_new_one_have_the_same_tables(tmp_path: Path) -> None:
    _write_old(tmp_path / "old.db", 1)
    found = []
    for name in ("old.db", "new.db"):
        Store.write(tmp_path / name, {}).close()
        connection = sqlite3.connect(tmp_path / name)
        found.append(sorted(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()))
        connection.close()
    assert found[0] == found[1]


def test_an_old_store_with_something_added_is_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    _write_old(path, 1)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TRIGGER trap AFTER INSERT ON answers BEGIN DELETE FROM answers; END")
    connection.close()
    with pytest.raises(StoreError, match="schema 1: table 'trap'"):
        Store.write(path, {})
    assert _version(path) == 1


def test_a_newer_store_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    Store.write(path, {}).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    openers: list[Callable[[Path], Any]] = [Store.read, lambda p: Store.write(p, {})]
    for opened in openers:
        with pytest.raises(StoreError, match=r"newer softhull .* upgrade"):
            opened(path)


def _version(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def test_the_settings_of_a_key_are_what_they_always_were() -> None:
    assert _task().settings() == SETTINGS
    assert _task("uncertainty", perturbation=Perturbation(0.1, 2)).settings() == SCORES
    assert _task("uncertainty", perturbation=Perturbation(0.1, 2)).keys(X, Y) == [_old_key(SCORES, i) for i in range(2)]


def _with_more(function: Callable[..., Any]) -> Callable[..., Any]:
    def wider(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("more")
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    more = inspect.Parameter("more", inspect.Parameter.KEYWORD_ONLY, default=3)
    wider.__signature__ = signature.replace(parameters=[*signature.parameters.values(), more])  # type: ignore[attr-defined]
    return wider


def test_a_new_argument_at_its_default_changes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _task().keys(X, Y), _task().columns()["hash"]
    wider = _with_more(Robustness().function())
    monkeypatch.setattr(Robustness, "function", lambda self: wider)
    assert _task().keywords["more"] == 3
    assert (_task().keys(X, Y), _task().columns()["hash"]) == before
    assert _task(more=4).keys(X, Y) != before[0]
    assert _task(more=4).settings()["keywords"]["more"] == 4
    # The value that answers without it were found with is written down; a new default is then another question.
    monkeypatch.setitem(tasks.LATER, "robustness", {"more": 4})
    assert _task(more=4).keys(X, Y) == before[0]
    assert _task().keys(X, Y) != before[0]


def test_a_new_setting_at_its_default_changes_no_key() -> None:
    before = _task().keys(X, Y)
    wider: Any = make_dataclass("Linear", [("more", bool, False)], bases=(Linear,), frozen=True)
    assert _task(method=wider()).keys(X, Y) == before
    assert _task(method=wider(more=True)).keys(X, Y) != before
    assert _task(method=replace(wider(), optimize=3)).keys(X, Y) == _task(method=Linear(optimize=3)).keys(X, Y)


def test_every_field_is_listed() -> None:
    """A new argument or setting needs its line in LATER, so that a default that changes one day is noticed."""
    for question in QUESTIONS.values():
        arguments = {name for name in inspect.signature(question.function()).parameters if name not in _TAKEN}
        assert arguments - question.fixed == {*FIELDS[question.name], *LATER.get(question.name, {})}, question.name
        for name in ("auto", "linear", "second-order", "paper", "dual", "lp", "conic", "branch"):
            try:
                method = question.find(name)
            except ValueError:
                continue
            kind = type(method).__name__
            assert {f.name for f in fields(method)} == {*FIELDS[kind], *LATER.get(kind, {})}, kind
            assert plain(method)["kind"] == kind
