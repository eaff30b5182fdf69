"""What a store or a campaign file from somebody else can do: be read, and nothing more."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from softhull.errors import CampaignError
from softhull.runs.campaign import load_campaign, store_of
from softhull.runs.single import InProcess
from softhull.runs.store import Store
from softhull.runs.worker import ModelFile, load_networks

from .campaigns import call, run_here, write_campaign
from .stores import rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    write_campaign(home, instances=3, eps="0.1")
    return home


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """``local`` works in this process: to start another one takes seconds."""

    def start(workers: int, models: dict[str, ModelFile], memory: int | None) -> InProcess:
        load = load_networks(models.__getitem__)
        return InProcess({sha: load(sha) for sha in models})

    monkeypatch.setattr("softhull.runs.executors.LocalExecutor", start)


def _with(folder: Path, line: str) -> Path:
    path = folder / "campaign.toml"
    path.write_text(path.read_text().replace("[run]\n", f"[run]\n{line}\n"))
    return path


@pytest.mark.parametrize(
    "executor",
    [
        "dask:tcp://127.0.0.1:1",
        "dask:tls://x",
        "dask: ",
        "dask:",
        "Dask:tcp://x",
        " dask:tcp://x",
        "ssh:host",
        "dask",
        "local:1000000",
        "local:4\\n",
    ],
)
def test_a_campaign_file_opens_no_connection(folder: Path, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _with(folder, f'executor = "{executor}"')
    monkeypatch.setattr("softhull.runs.executors._dask", lambda *_: pytest.fail("a cluster was asked"))
    done = call("run", path)
    assert done.exit_code == 2
    assert "run.executor" in done.stderr
    assert "--executor" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "runs.db").exists()


def test_executors_of_this_machine_may_be_named(folder: Path) -> None:
    original = (folder / "campaign.toml").read_text()
    for executor in ("local", "local:3"):
        path = _with(folder, f'executor = "{executor}"')
        assert load_campaign(path).run["executor"] == executor
        path.write_text(original)


def test_a_campaign_file_writes_only_in_its_folder(folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "link.db").symlink_to(outside / "x.db")  # leads to nothing yet
    (folder / "log.db-wal").symlink_to(outside / "log")
    (folder / "circle").symlink_to("circle")
    original = (folder / "campaign.toml").read_text()
    for store in (
        *(
            '"../x.db"',
            f'"{outside / "x.db"}"',
            '"link/x.db"',
            '"link.db"',
            '"log.db"',
            '"sub/../../x.db"',
            '"a\\u0000b"',
        ),
        *('"circle/x.db"', '"~/../../../x.db"', "3", '["runs.db"]'),
    ):
        done = call("run", _with(folder, f"store = {store}"))
        assert done.exit_code == 2, store
        assert "run.store" in done.stderr, store
        assert "--store" in done.stderr
        assert done.stderr.count("\n") == 1
        (folder / "campaign.toml").write_text(original)
    assert not list(outside.iterdir())
    assert sorted(p.name for p in folder.parent.iterdir()) == ["home", "outside"]


def test_the_default_store_is_no_way_out_either(folder: Path) -> None:
    (folder / "runs.db").symlink_to(folder.parent / "x.db")
    done = call("run", folder / "campaign.toml")
    assert done.exit_code == 2
    assert "--store" in done.stderr
    with pytest.raises(CampaignError, match="folder of the campaign"):
        store_of(folder / "campaign.toml", "runs.db")


@pytest.mark.usefixtures("without_workers")
def test_the_command_line_may_name_any_place(folder: Path) -> None:
    done = call("run", folder / "campaign.toml", "--store", folder.parent / "x.db", "--executor", "local:1", "--quiet")
    assert done.exit_code == 0, done.output
    assert (folder.parent / "x.db").exists()
    assert not (folder / "runs.db").exists()


def _forge(store: Path) -> int:
    """A stranger's hand: everything is certified."""
    connection = sqlite3.connect(store)
    with connection:
        changed = connection.execute(
            "UPDATE answers SET verdict = 'certified', bound = 9.0 WHERE verdict IN ('falsified', 'misclassified')"
        ).rowcount
        changed += connection.execute("UPDATE answers SET bound = bound / 2 WHERE verdict = 'bounded'").rowcount
    connection.close()
    return changed


def test_answers_of_a_store_are_marked_and_rechecked(folder: Path) -> None:
    store = folder / "runs.db"
    ask = ("verify", folder / "net-0.onnx", "--data", folder / "data.npz", "--eps", 0.1, "--json", "-")
    fresh = json.loads(call(*ask).stdout)["instances"]
    first = json.loads(call(*ask, "--store", store).stdout)["instances"]
    assert not any("from_store" in record for record in first)
    assert [r["verdict"] for r in first] == [r["verdict"] for r in fresh]
    changed = _forge(store)
    assert changed
    believed = call(*ask, "--store", store)
    assert all(record["from_store"] is True for record in json.loads(believed.stdout)["instances"])
    assert "read from the store" in call(*ask[:-2], "--store", store).stdout

    checked = call(*ask, "--store", store, "--recheck")
    assert checked.exit_code == 0, checked.output
    answer = json.loads(checked.stdout)
    assert len(answer["differences"]) == changed
    assert {d["was"]["bound"] for d in answer["differences"]} == {9.0}
    assert not any("from_store" in record for record in answer["instances"])
    assert [r["verdict"] for r in answer["instances"]] == [r["verdict"] for r in fresh]
    assert f"recheck: {changed} of 3 answers differ" in checked.stderr
    assert "the store said certified bound 9, found " in checked.stderr

    again = call(*ask, "--store", store, "--recheck")  # what was found took the place of what was said
    assert json.loads(again.stdout)["differences"] == []
    with Store.read(store) as opened:
        assert {row.run for row in opened.rows()} == {opened.runs()[-1]["id"]}
        assert all(row.machine == opened.runs()[0]["machine"] for row in opened.rows())
    connection = sqlite3.connect(store)
    assert connection.execute("SELECT count(*) FROM rechecks").fetchone() == (changed,)
    connection.close()


@pytest.mark.usefixtures("without_workers")
def test_scores_and_campaigns_are_rechecked_too(folder: Path) -> None:
    store = folder / "runs.db"
    run_here(folder / "campaign.toml", store)
    before = {place: (row.verdict, row.bound) for place, row in rows(store).items()}
    changed = _forge(store)
    done = call("run", folder / "campaign.toml", "--executor", "local:1", "--recheck")
    assert done.exit_code == 0, done.output
    assert f"recheck: {changed} of {len(before)} answers differ" in done.stderr
    after = rows(store)
    for place, (verdict, bound) in before.items():
        assert after[place].verdict == verdict
        assert bound is None or after[place].bound == pytest.approx(bound, rel=1e-3)
    done = call("run", folder / "campaign.toml", "--executor", "local:1")
    assert f"{len(before)} answers were read from the store" in done.stdout
    models = (folder / "net-0.onnx", folder / "net-1.onnx")
    ask = ("uncertainty", *models, "--data", folder / "data.npz", "--eps", 0.1, "--indices", 0, "--store", store)
    call(*ask)
    assert "1 read from the store" in call(*ask).stdout
    _forge(store)
    checked = call(*ask, "--recheck", "--json", "-")
    assert len(json.loads(checked.stdout)["differences"]) == 1


def test_a_recheck_that_ran_out_of_time_confirms_nothing(folder: Path) -> None:
    store = folder / "runs.db"
    ask = (
        "verify",
        folder / "net-0.onnx",
        "--data",
        folder / "data.npz",
        "--eps",
        0.1,
        "--store",
        store,
        "--json",
        "-",
    )
    call(*ask)
    checked = json.loads(call(*ask, "--recheck", "--budget", 0).stdout)
    assert checked["differences"] == []
    assert all(record["from_store"] for record in checked["instances"])


def test_a_recheck_needs_a_store(folder: Path) -> None:
    for command in ("verify", "uncertainty"):
        done = call(command, folder / "net-0.onnx", "--data", folder / "data.npz", "--eps", 0.1, "--recheck")
        assert done.exit_code == 2
        assert "--store" in done.stderr


def test_a_verdict_of_another_question_is_one_line(folder: Path) -> None:
    store = folder / "runs.db"
    ask = ("verify", folder / "net-0.onnx", "--data", folder / "data.npz", "--eps", 0.1, "--store", store)
    call(*ask)
    for verdict in ("bounded", "splendid"):
        connection = sqlite3.connect(store)
        with connection:
            connection.execute("UPDATE answers SET verdict = ?", (verdict,))
        connection.close()
        done = call(*ask)
        assert done.exit_code == 2
        assert verdict in done.stderr
        assert done.stderr.count("\n") == 1


def _changed(folder: Path, statement: str, *values: str) -> Path:
    """The store of a campaign, after somebody has changed it."""
    store = folder / "runs.db"
    if not store.exists():
        run_here(folder / "campaign.toml", store)
    connection = sqlite3.connect(store)
    with connection:
        connection.execute(statement, values)
    connection.close()
    return store


NAME = "\x1b[2J[bold]accepted[/bold]\u202e"


@pytest.mark.parametrize(
    "arguments",
    [["results"], ["results", "--summary"], ["results", "--format", "csv"], ["compare", "--by", "network"]],
)
def test_words_of_a_store_are_shown_and_not_obeyed(folder: Path, arguments: list[str]) -> None:
    """Neither by the terminal nor by the table, which knows a markup of its own."""
    store = _changed(folder, "UPDATE tasks SET network = ?, data = ?", NAME, NAME)
    shown = call(arguments[0], store, *arguments[1:]).output
    assert r"\x1b[2J[bold]accepted[/bold]\u202e" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize(
    "damage", ["tasks SET models = 'x'", "tasks SET settings = '[1'", "answers SET finished = 1e300"]
)
def test_a_row_that_cannot_be_read_is_one_line(folder: Path, damage: str) -> None:
    for kind in ("json", "csv"):
        done = call("results", _changed(folder, f"UPDATE {damage}"), "--format", kind)
        assert done.exit_code == 2
        assert "damaged" in done.stderr
        assert done.stderr.count("\n") == 1
