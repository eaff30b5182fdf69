"""A deadline that has passed is not bad input: every question answers with the best it has, everywhere."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softhull.data import bundled
from softhull.errors import InvalidInput
from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx
from softhull.formats.vnnlib import Disjunct, Specification
from softhull.regions import Perturbation
from softhull.runs import vnncomp
from softhull.runs.vnncomp import Instance, Verdict, decide_safely, read_instances
from softhull.verify import robustness
from softhull.verify.engine import solve
from softhull.verify.robustness import certified_radius, verify_robustness, verify_specification
from softhull.verify.uncertainty import verify_uncertainty

from ..runs.campaigns import call, run_here, write_campaign
from ..runs.stores import rows

ATTENTION, MLP, DIGITS = (bundled(name) for name in ("digits-attention.onnx", "digits-mlp-0.onnx", "digits.npz"))
EPS = Perturbation(0.02)


def _digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    dataset = load_dataset(DIGITS)
    return dataset.take(list(range(count))), dataset.y[:count]


def test_no_time_at_all_gives_the_best_so_far() -> None:
    x, y = _digits(6)
    network = load_onnx(ATTENTION)
    result = verify_robustness(network, x, y, EPS, timeout=0)
    assert {record.verdict.value for record in result.records} <= {"unknown", "misclassified"}
    assert all("time limit" in record.message for record in result.records if record.verdict.value == "unknown")
    assert certified_radius(network, x, y, EPS, timeout=0).tolist() == [0.0] * 6
    box = (Disjunct(x[0].ravel() - 0.02, x[0].ravel() + 0.02, np.eye(10)[:1], np.zeros(1), np.zeros(1, dtype=bool)),)
    assert verify_specification(network, Specification(64, 10, box), timeout=0).verdict in ("timeout", "sat")
    for model in (ATTENTION, MLP):
        scored = verify_uncertainty(load_onnx(model), x, y, EPS, timeout=0)
        assert all("time limit" in record.message for record in scored.records)
        assert all(record.bound >= record.attack for record in scored.records)


@pytest.mark.parametrize("timeout", [-1.0, math.nan, -math.inf, True, "3"])
def test_bad_limits_are_refused_by_every_question(timeout: Any) -> None:
    x, y = _digits(1)
    network = load_onnx(MLP)
    for ask in (verify_robustness, certified_radius, verify_uncertainty):
        with pytest.raises(InvalidInput, match="timeout must be a number of seconds of at least 0"):
            ask(network, x, y, EPS, timeout=timeout)


def test_batches_before_the_deadline_are_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The clock jumps behind the first batch of the command: its verdicts stay, the others are unknown."""
    began = robustness.time.monotonic()
    late = False

    def clock() -> float:
        return began + (1000.0 if late else 0.0)

    def proved(*args: object) -> object:
        nonlocal late
        found = solve(*args)  # type: ignore[arg-type]
        late = True
        return found

    monkeypatch.setattr("softhull.deadlines.time.monotonic", clock)
    monkeypatch.setattr(robustness, "solve", proved)
    monkeypatch.setattr(robustness, "_BATCH", 4)
    out = tmp_path / "out.json"
    done = call(
        *("verify", MLP, "--data", DIGITS, "--eps", 0.001, "--indices", "0:12", "--budget", 500, "--method", "linear"),
        *("--no-attack", "--json", out),
    )
    assert done.exit_code == 0, done.output
    records = json.loads(out.read_text())["instances"]
    assert [record["index"] for record in records] == list(range(12))
    assert "certified" in {record["verdict"] for record in records[:4]}
    assert {record["verdict"] for record in records[4:]} <= {"unknown", "misclassified"}
    assert {record["message"] for record in records[4:] if record["verdict"] == "unknown"} == {
        "the time limit passed; raise it"
    }


def test_commands_take_a_limit_of_zero(tmp_path: Path) -> None:
    asked = ("--data", DIGITS, "--eps", 0.01, "--indices", "0:3", "--timeout", 0)
    for extra in ((), ("--radius",), ("--store", tmp_path / "a.db")):
        assert call("verify", ATTENTION, *asked, *extra).exit_code == 0
    for extra in ((), ("--store", tmp_path / "b.db")):
        assert call("uncertainty", MLP, *asked, *extra).exit_code == 0
    for limit in ("nan", "-1"):
        for command in ("verify", "uncertainty"):
            for extra in ((), ("--store", tmp_path / "c.db")):
                done = call(command, MLP, *asked[:-1], limit, *extra)
                assert done.exit_code == 2
                assert "timeout must be a number" in done.stderr


def test_campaigns_and_competitions_take_a_limit_of_zero(tmp_path: Path) -> None:
    path = write_campaign(tmp_path, instances=2, eps="0.1")
    run_here(path, tmp_path / "runs.db", timeout=0.0)
    cut = rows(tmp_path / "runs.db")
    assert len(cut) == 6
    assert {row.verdict for row in cut.values()} <= {"unknown", "misclassified", "bounded"}
    run_here(path, tmp_path / "runs.db")  # what was cut short is taken up again
    assert all(row.cut_after is None for row in rows(tmp_path / "runs.db").values())
    (tmp_path / "p.vnnlib").write_text(
        "".join(f"(declare-const X_{i} Real)\n(assert (>= X_{i} 0))\n(assert (<= X_{i} 1))\n" for i in range(4))
        + "".join(f"(declare-const Y_{i} Real)\n" for i in range(3))
        + "(assert (<= Y_0 -1000))\n"
    )
    (tmp_path / "instances.csv").write_text("net-0.onnx,p.vnnlib,0\n")
    (instance,) = read_instances(tmp_path / "instances.csv")
    assert decide_safely(instance, None).result == "timeout"
    done = call("vnncomp", tmp_path / "net-0.onnx", tmp_path / "p.vnnlib", tmp_path / "r.txt", "--timeout", 0)
    assert (done.exit_code, done.stdout) == (0, "timeout\n")


def _asleep(instance: Instance) -> Verdict:
    if instance.onnx == "long":
        time.sleep(60)
    return Verdict("unsat")


def test_what_does_not_end_by_itself_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that never looks at its clock is ended; the others of the table are decided."""
    monkeypatch.setattr(vnncomp, "_decider", _sleeper)
    listed = [Instance(name, "p", 0.2, Path()) for name in ("long", "short", "short")]
    found = [verdict.result for _, verdict in vnncomp.decide_all(listed, None, workers=1)]
    assert found == ["timeout", "unsat", "unsat"]


def _sleeper(method: str | None, device: str, threads: int) -> Callable[[Instance], Verdict]:
    return _asleep
