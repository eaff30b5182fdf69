"""The store: what it keeps, whom it lets work, and what it says about files that are not what they should be."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softhull.errors import InvalidInput, StoreError
from softhull.propagate.methods import Linear
from softhull.regions import Perturbation
from softhull.runs.store import Store
from softhull.runs.tasks import Answer, Model, Task
from softhull.runs.where import parse_where

X = np.random.default_rng(0).random((8, 3))
Y = np.arange(8) % 2


def make_task(**changes: Any) -> Task:
    given: dict[str, Any] = {
        "question": "robustness",
        "network": "net",
        "models": (Model("net.onnx", "ab"),),
        "data": "digits",
        "data_path": "digits.npz",
        "perturbation": Perturbation(0.1, clip=(0, 1)),
        "method_name": "linear",
        "method": Linear(),
        "softmax_bound": "hull",
        "keywords": {"property": "all", "seed": 0},
    }
    return Task(**(given | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def fill(path: Path, count: int = 8) -> list[str]:
    task = make_task()
    keys = task.keys(X, Y)
    with Store.write(path, {}) as store:
        store.register(task, range(8), Y.tolist(), keys)
        store.record({key: Answer("certified", 0.5 + i, None, None, "", X[i]) for i, key in enumerate(keys[:count])})
    return keys


def test_what_was_stored_comes_back(path: Path) -> None:
    keys = fill(path, 5)
    with Store.read(path) as store:
        rows = list(store.rows())
        assert [(row.index, row.label, row.verdict, row.bound) for row in rows] == [
            (i, i % 2, "certified", 0.5 + i) for i in range(5)
        ]
        np.testing.assert_array_equal(store.worst_input(keys[3]), X[3])
        (progress,) = store.progress()
        assert (progress.total, progress.done) == (8, 5)
        assert store.unanswered(keys) == keys[5:]
        assert rows[0].to_dict()["settings"]["method"]["kind"] == "Linear"
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["runs.db"]


@pytest.mark.parametrize(
    "changes",
    [
        {"perturbation": Perturbation(0.2, clip=(0, 1))},
        {"perturbation": Perturbation(0.1)},
        {"perturbation": Perturbation(0.1, 2, (0, 1))},
        {"models": (Model("net.onnx", "cd"),)},
        {"models": (Model("net.onnx", "ab"), Model("net.onnx", "ab"))},
        {"method": Linear(optimize=3)},
        {"method": Linear(bound="er"), "softmax_bound": "er"},
        {"keywords": {"property": "runner-up", "seed": 0}},
        {"keywords": {"property": "all", "seed": 1}},
        {"question": "uncertainty"},
    ],
    ids=str,
)
def test_whatever_determines_an_answer_is_in_its_key(changes: dict[str, Any]) -> None:
    assert not set(make_task().keys(X, Y)) & set(make_task(**changes).keys(X, Y))


def test_names_paths_and_the_spelling_of_numbers_are_not_in_the_key() -> None:
    other = make_task(
        network="x",
        data="y",
        data_path="z",
        models=(Model("w", "ab"),),
        perturbation=Perturbation(0.1, clip=(0.0, 1.0)),
    )
    assert make_task().keys(X, Y) == other.keys(X, Y)
    assert make_task().keys(X, Y) != make_task().keys(X, 1 - Y)
    assert len(set(make_task().keys(X, Y))) == len(X)


def test_no_two_runs_get_the_same_instance(path: Path) -> None:
    keys = fill(path, 2)
    with Store.write(path, {}) as one, Store.write(path, {}) as two:
        assert one.claim(keys[:5]) == keys[2:5]
        assert two.claim(keys) == keys[5:]
        one.release(keys[2:3])
        assert two.claim(keys) == [keys[2]]
        one.record({keys[3]: Answer("unknown")})
        assert two.claim(keys) == []
    with Store.write(path, {}) as three:
        assert three.claim(keys) == [keys[2], *keys[4:]]


def test_claims_of_the_dead_are_free_again(path: Path) -> None:
    keys = fill(path, 0)
    script = f"from softhull.runs.store import Store; import os; s = Store.write({str(path)!r}, {{}}); "
    script += f"print(len(s.claim({keys!r}))); os._exit(9)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "8", done.stderr
    with Store.write(path, {}) as store:
        assert store.claim(keys) == keys


def test_what_was_cut_short_is_taken_up_by_a_run_that_allows_more(path: Path) -> None:
    keys = fill(path, 0)
    with Store.write(path, {}) as store:
        store.record({keys[0]: Answer("unknown", -1.0, cut_after=2.0), keys[1]: Answer("error", message="no")})
        assert keys[0] not in store.unanswered(keys, limit=2.0)
        assert keys[0] in store.unanswered(keys, limit=3.0)
        assert keys[0] in store.unanswered(keys)
        assert keys[1] not in store.unanswered(keys)
        assert keys[1] in store.unanswered(keys, again=True)
        store.record({keys[0]: Answer("certified", 1.0)})
        store.record({keys[0]: Answer("unknown", -5.0)})  # comes too late: what was finished stays
        assert store.answers(keys[:1])[keys[0]].bound == 1.0


def test_filters(path: Path) -> None:
    fill(path)

    def found(*where: str) -> list[int]:
        with Store.read(path) as store:
            return [row.index for row in store.rows(parse_where(where))]

    assert found("bound<2.6 and index>=1") == [1, 2]
    assert found("bound=hull", "label=1", "eps=0.1", "verdict=certified") == [1, 3, 5, 7]
    assert found("bound!=hull") == []
    assert found("attack=null", "index<2") == [0, 1]
    assert found("network='net'", "index<1") == [0]
    assert found("network=x' OR '1'='1") == []


@pytest.mark.parametrize(
    "where",
    [
        "",
        "1",
        "index",
        "index=1; DROP TABLE answers",
        "sqlite_version()=1",
        "rowid=1",
        "eps=(SELECT 1)",
        "key=1",
        "a b=1",
    ],
)
def test_a_filter_is_comparisons_and_nothing_else(path: Path, where: str) -> None:
    with pytest.raises(InvalidInput, match="--where"):
        parse_where([where])


def damaged_files(path: Path) -> Iterator[tuple[str, bytes]]:
    content = path.read_bytes()
    yield "not a run store", b"anything" * 1000
    yield "not a run store", b""
    yield "damaged|not a run store", content[: len(content) // 2]
    middle = len(content) // 2
    yield "damaged|not a run store", content[:100] + b"\xff" * (middle - 100) + content[middle:]
    yield "damaged|not a run store", content[:4096] + os.urandom(len(content) - 4096)


def read_everything(path: Path) -> None:
    with Store.read(path) as store:
        store.progress()
        for row in list(store.rows()):
            store.worst_input(row.key)


def test_a_damaged_store_is_one_clear_line(path: Path) -> None:
    fill(path)
    for number, (said, content) in enumerate(damaged_files(path)):
        bad = path.with_name(f"bad-{number}.db")
        bad.write_bytes(content)
        with pytest.raises(StoreError, match=said) as caught:
            read_everything(bad)
        assert str(bad) in str(caught.value)
        assert bad.read_bytes() == content


def test_foreign_and_newer_stores_are_refused(path: Path) -> None:
    fill(path)
    foreign = path.with_name("foreign.db")
    for statement in ("CREATE TABLE photos (name TEXT)",):
        connection = sqlite3.connect(foreign)
        connection.execute(statement)
        connection.close()
    for opened in (Store.read, lambda p: Store.write(p, {})):
        with pytest.raises(StoreError, match="not a run store"):
            opened(foreign)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match=r"newer softhull .* upgrade"):
        Store.read(path)


def test_a_schema_with_something_added_is_refused(path: Path) -> None:
    fill(path)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TRIGGER trap AFTER INSERT ON answers BEGIN DELETE FROM answers; END")
    connection.close()
    with pytest.raises(StoreError, match="'trap' is not as expected"):
        Store.write(path, {})


def test_a_worst_input_is_never_unpickled(path: Path) -> None:
    keys = fill(path)
    connection = sqlite3.connect(path)
    for content in (b"\x93NUMPY\x01\x00", b"\x80\x04cos\nsystem\n", b"\x93NUMPY\x01\x00\x10\x00{'descr': '|O', }"):
        connection.execute("UPDATE answers SET worst_input = ? WHERE key = ?", (content, keys[0]))
        connection.commit()
        with Store.read(path) as store, pytest.raises(StoreError, match="damaged"):
            store.worst_input(keys[0])
    connection.close()


def test_a_full_disk_is_said_and_nothing_is_lost(path: Path) -> None:
    """A file-size limit stands in for the full disk; SQLite sees the same failed write."""
    task = make_task()
    x = np.random.default_rng(1).random((400, 300))
    keys = task.keys(x, np.zeros(400))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    stored = 0

    def fill_up() -> None:
        nonlocal stored
        with Store.write(path, {}) as store:
            store.register(task, range(400), [0] * 400, keys)
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
            for key, row in zip(keys, x):
                store.record({key: Answer("certified", 1.0, worst_input=row)})
                stored += 1

    try:
        with pytest.raises(StoreError, match="disk is full"):
            fill_up()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 0 < stored < 400
    with Store.read(path) as store:
        assert [row.key for row in store.rows()] == keys[:stored]
        np.testing.assert_array_equal(store.worst_input(keys[0]), x[0])
    with Store.write(path, {}) as store:
        assert store.claim(keys) == keys[stored:]


def test_a_read_only_folder(path: Path) -> None:
    """Nothing can be written there, and what is there can be read."""
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder / "runs.db")
        (folder / "runs.db").chmod(0o444)
        folder.chmod(0o555)
        if os.geteuid() == 0:
            os.seteuid(nobody)
        try:
            for target in ("new.db", "runs.db"):
                with pytest.raises(StoreError, match="may be written"):
                    Store.write(folder / target, {})
            with Store.read(folder / "runs.db") as store:
                assert len(list(store.rows())) == 8
        finally:
            if os.getuid() == 0:
                os.seteuid(0)
            folder.chmod(0o755)
