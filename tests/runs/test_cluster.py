"""A campaign on a Dask cluster: a scheduler, two workers, one of them killed while it works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .campaigns import call, one_line, run_here, start, write_campaign
from .stores import answered, assert_complete, assert_equal

pytest.importorskip("distributed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """The address of a scheduler, and its two workers; all of them end with the test."""
    quiet = os.environ | {"DASK_DISTRIBUTED__ADMIN__EVENT_LOOP": "tornado", "OMP_NUM_THREADS": "1"}

    def launch(*arguments: str) -> subprocess.Popen[str]:
        log = (tmp_path / f"{arguments[0]}-{len(processes)}.log").open("w")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
                stdout=log,
                stderr=log,
                text=True,
                env=quiet,
                cwd=tmp_path,
            )

    processes: list[subprocess.Popen[str]] = []
    try:
        processes.append(launch("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"))
        address = wait_for_address(tmp_path / "scheduler-0.log", processes[0])
        for _ in range(2):
            processes.append(launch("worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"))
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for_address(log: Path, process: subprocess.Popen[str]) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r"Scheduler at:\s+(tcp://[\d.:]+)", log.read_text())
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.mark.slow
def test_a_worker_killed_while_it_works(tmp_path: Path, cluster: tuple[str, list[subprocess.Popen[str]]]) -> None:
    address, workers = cluster
    campaign = write_campaign(tmp_path, 20, batch=2)
    store = tmp_path / "cluster.db"
    process = start("run", campaign, "--store", store, "--executor", f"dask:{address}", "--quiet")
    while process.poll() is None and answered(store) < 10:
        time.sleep(0.05)
    os.kill(workers[0].pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert_complete(store)
    run_here(campaign, tmp_path / "local.db")
    assert_equal(store, tmp_path / "local.db")


def test_no_scheduler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softhull.runs.cluster._CONNECT", 0.5)  # nobody answers however long it waits
    campaign = write_campaign(tmp_path, 2)
    store = tmp_path / "runs.db"
    assert "127.0.0.1:9" in one_line(call("run", campaign, "--store", store, "--executor", "dask:tcp://127.0.0.1:9"))
