"""Runs that are killed, interrupted, or share a store lose nothing and do nothing twice."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from softhull.runs.local import LocalExecutor
from softhull.runs.single import InProcess

from .campaigns import call, kill_group, one_line, run_here, start, write_campaign
from .stores import answered, assert_complete, assert_equal

if TYPE_CHECKING:
    from softhull.runs.worker import Batch

LOCAL = ("--executor", "local:1", "--quiet")


def kill_at_random(folder: Path, instances: int, kills: int, seed: int, batch: int = 4) -> None:
    """Kill a campaign again and again, each time after a few more answers, then let it finish; compare."""
    campaign = write_campaign(folder, instances, batch=batch)
    total = 6 * instances
    run_here(campaign, folder / "whole.db")
    chance = random.Random(seed)
    store = folder / "killed.db"
    lost: Counter[tuple[int, int]] = Counter()
    begun: Counter[tuple[int, int]] = Counter()
    for kill in range(kills):
        events = folder / f"events-{kill}.json"
        before = answered(store)
        process = start("run", campaign, "--store", store, *LOCAL, "--json", events)
        # Some kills come before the first answer, the others spread over what is left.
        enough = before + chance.randint(0, max(1, 2 * (total - before) // (kills - kill)))
        deadline = time.monotonic() + 120
        while process.poll() is None and answered(store) < min(enough, total) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(chance.random() * 0.3)
        kill_group(process)
        assert answered(store) >= before
        open_now = note_events(events, begun)
        lost.update(open_now)
    done = call("run", campaign, "--store", store, *LOCAL, "--json", folder / "last.json")
    assert done.exit_code == 0, done.output
    assert not note_events(folder / "last.json", begun)
    assert_complete(store)
    assert_equal(store, folder / "whole.db")
    # Begun more often than once: only what was in flight when a kill came.
    assert all(times <= 1 + lost[place] for place, times in begun.items())


def note_events(path: Path, begun: Counter[tuple[int, int]]) -> set[tuple[int, int]]:
    """Count what a run began; returns what it had not reported as answered."""
    in_flight: set[tuple[int, int]] = set()
    text = path.read_text() if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        event = json.loads(line)
        places = {(event["task"], index) for index in event.get("indices", ())} if "task" in event else set()
        if event["event"] == "started":
            begun.update(places)
            in_flight |= places
        elif event["event"] == "answered":
            in_flight -= places
    return in_flight


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    kill_at_random(tmp_path, instances=12, kills=2, seed=int.from_bytes(os.urandom(4), "big"))


@pytest.mark.slow
@pytest.mark.skipif("SOFTHULL_LONG" not in os.environ, reason="takes minutes; set SOFTHULL_LONG=1")
def test_six_hundred_instances_killed_twenty_times(tmp_path: Path) -> None:
    kill_at_random(tmp_path, instances=100, kills=20, seed=7, batch=10)


@pytest.mark.slow
def test_two_processes_share_a_store_and_do_nothing_twice(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path, 12)
    run_here(campaign, tmp_path / "alone.db")
    store = tmp_path / "shared.db"
    both = [start("run", campaign, "--store", store, *LOCAL, "--json", tmp_path / f"{n}.json") for n in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert_complete(store)
    assert_equal(store, tmp_path / "alone.db")
    begun: Counter[tuple[int, int]] = Counter()
    for n in range(2):
        note_events(tmp_path / f"{n}.json", begun)
    assert set(begun.values()) == {1}
    assert len(begun) == answered(store)


def test_ctrl_c_ends_with_the_summary_and_a_second_run_goes_on(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path, 40, batch=2)
    store = tmp_path / "runs.db"
    process = start("run", campaign, "--store", store, "--executor", "local:1")
    while process.poll() is None and answered(store) < 6:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "instances answered" in out
    assert errors.rstrip().endswith("softhull: interrupted")
    assert "Traceback" not in errors
    kept = answered(store)
    assert kept >= 6
    again = call("run", campaign, "--store", store, *LOCAL, "--json", tmp_path / "again.json")
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "again.json").read_text().splitlines()[0])["done"] == kept
    assert_complete(store)


def _children(number: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def test_a_worker_that_dies_is_replaced_and_a_model_that_disappears_is_not_missed(tmp_path: Path) -> None:
    """The run that has read it goes on, and so does the new worker; the next run says what is missing."""
    campaign = write_campaign(tmp_path, 30, batch=3)
    run_here(campaign, tmp_path / "whole.db")
    store = tmp_path / "runs.db"
    process = start("run", campaign, "--store", store, "--executor", "local:2", "--quiet")
    while process.poll() is None and answered(store) < 6:
        time.sleep(0.05)
    # Workers are the children of the process that all of them come from.
    (server,) = [n for n in _children(process.pid) if b"forkserver" in Path(f"/proc/{n}/cmdline").read_bytes()]
    (tmp_path / "net-0.onnx").unlink()
    os.kill(_children(server)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert_complete(store)
    assert_equal(store, tmp_path / "whole.db")
    kept = answered(store)
    line = one_line(call("run", campaign, "--store", store, *LOCAL))
    assert "networks[0].model" in line
    assert "net-0.onnx" in line
    assert answered(store) == kept


class Unreadable:
    """Pickled here, it cannot be read elsewhere."""

    number = 7

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("seven",)


def test_a_worker_that_cannot_read_its_batch_says_so_and_is_not_waited_for() -> None:
    executor = LocalExecutor(1, {})
    executor.submit(cast("Batch", Unreadable()))
    assert executor.wait(120.0) == []  # it is ready
    with pytest.raises(ValueError, match="seven"):
        executor.wait(120.0)
    executor.close()


def test_what_branches_is_stored_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses the instance under way where an answer is dear, and a batch where many are found together."""
    extra = """
[[methods]]
name = "branch"
seconds = 0.1
[[questions]]
ask = "robustness"
networks = "single"
methods = "branch"
"""
    campaign = write_campaign(tmp_path, 6, eps="[0.02]", extra=extra)
    sizes: dict[str, set[int]] = {}

    submit = InProcess.submit

    def seen(self: InProcess, batch: Batch) -> None:
        sizes.setdefault(batch.task.method_name, set()).add(len(batch))
        submit(self, batch)

    monkeypatch.setattr(InProcess, "submit", seen)
    run_here(campaign, tmp_path / "runs.db", batch=None)
    assert sizes == {"linear": {6}, "dual": {6}, "branch": {1}}


def test_a_budget_leaves_the_rest_to_the_next_run(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path, 10, batch=5)
    store = tmp_path / "runs.db"
    done = call("run", campaign, "--store", store, "--executor", "local:1", "--budget", 0.001)
    assert done.exit_code == 0, done.output
    assert "the budget is used up" in done.stderr
    assert answered(store) == 0
    assert call("run", campaign, "--store", store, *LOCAL).exit_code == 0
    assert_complete(store)
