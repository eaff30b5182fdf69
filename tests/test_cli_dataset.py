"""``softhull dataset``, ``conformal`` and ``plot reliability``: files, stores, reports, and one line for bad input."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx import helper

from softhull.certificates.write import ranges_certificate
from softhull.cli.app import app
from softhull.report.html import report_html
from softhull.runs.engine import Limits
from softhull.runs.store import Store
from softhull.runs.worker import Batch, Outcome, answer_batch
from tests.checker.evaluate import save
from tests.test_cli_uncertainty import save_network

ASK = ("--data", "data.npz", "--clip", "0", "1", "--method", "second-order", "--bins", "6")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network and data in the folder the command is run in."""
    monkeypatch.chdir(tmp_path)
    save_network(tmp_path / "net.onnx")
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=generator.random((24, 4)), y=generator.integers(0, 3, 24))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def refused(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert done.output.count("\n") == 1
    return done.output


def test_metrics_through_a_store_are_those_without_and_are_not_computed_again(folder: Path) -> None:
    ask = ("dataset", "net.onnx", *ASK, "--eps", "0.01,0.05")
    done = run(*ask, "--json", "plain.json", "--outside", "data.npz", "--outside-indices", "0:5")
    assert done.exit_code == 0, done.output
    assert "ECE" in done.output
    assert "AUROC" in done.output
    plain = json.loads(Path("plain.json").read_text())
    assert [radius["eps"] for radius in plain["radii"]] == [0.01, 0.05]
    for radius in plain["radii"]:
        assert {"ece", "nll", "brier", "accuracy", "auroc"} <= set(radius["metrics"])
        for name, triple in radius["metrics"].items():
            assert set(triple) == {"clean", "attack", "certified"}
            sign = -1 if name in ("accuracy", "confidence_low", "auroc") else 1
            assert sign * triple["attack"] <= sign * triple["certified"] + 1e-12, name
        assert len(radius["reliability"]) == 6
    for _ in range(2):
        done = run(*ask, "--store", "runs.db", "--json", "stored.json")
        assert done.exit_code == 0, done.output
        stored = json.loads(Path("stored.json").read_text())
        for one, other in zip(plain["radii"], stored["radii"]):
            for name, triple in other["metrics"].items():
                assert triple == pytest.approx(one["metrics"][name]), name
    with Store.read("runs.db") as store:
        assert len(list(store.rows())) == 48
        (times,) = {row[0] for row in store._connection.execute("SELECT times FROM answers")}
        assert times == 1
        content = report_html(store)
    (found,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', content, flags=re.DOTALL)
    shown = json.loads(found)["datasets"]
    assert [each["eps"] for each in shown] == [0.01, 0.05]
    for each, radius in zip(shown, plain["radii"]):
        assert each["metrics"]["ece"]["certified"] == pytest.approx(radius["metrics"]["ece"]["certified"], rel=1e-5)
        assert each["sets"]["plain"] <= each["sets"]["robust"] <= each["sets"]["boxes"]


def metrics(path: str) -> dict[str, Any]:
    (radius,) = json.loads(Path(path).read_text())["radii"]
    return {name: radius[name] for name in ("metrics", "unanswered")}


def test_a_time_limit_ends_with_what_is_known_and_a_second_run_goes_on(folder: Path) -> None:
    ask = ("dataset", "net.onnx", *ASK, "--eps", "0.02", "--indices", "0:6")
    assert run(*ask, "--json", "plain.json").exit_code == 0
    late = run(*ask, "--store", "runs.db", "--budget", "0", "--json", "late.json")
    assert late.exit_code == 0, late.output
    assert "6 of 6 samples were not reached; nothing is claimed of them" in late.output
    found, plain = metrics("late.json"), metrics("plain.json")
    assert found["unanswered"] == 6
    assert found["metrics"]["accuracy"]["certified"] == 0
    assert found["metrics"]["nll"]["certified"] is None
    for name, triple in found["metrics"].items():
        assert triple["clean"] == pytest.approx(plain["metrics"][name]["clean"]), name
    assert run(*ask, "--store", "runs.db", "--json", "whole.json").exit_code == 0
    assert metrics("whole.json")["unanswered"] == 0
    for name, triple in metrics("whole.json")["metrics"].items():
        assert triple == pytest.approx(plain["metrics"][name]), name


def test_ctrl_c_ends_with_what_is_known_and_a_second_run_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ("dataset", "net.onnx", *ASK, "--eps", "0.02,0.03", "--indices", "0:8", "--store", "runs.db")
    done: list[Batch] = []

    def impatient(batch: Batch, load: Any) -> Outcome:
        if done:
            raise KeyboardInterrupt
        done.append(batch)
        return answer_batch(batch, load)

    with monkeypatch.context() as patch:
        patch.setattr("softhull.runs.engine.Limits", partial(Limits, batch=3))
        patch.setattr("softhull.runs.single.answer_batch", impatient)
        cut = run(*ask, "--json", "cut.json", "--certificates", "proofs")
    assert cut.exit_code == 130, cut.output
    assert "radius 0.02: 5 of 8 samples were not reached" in cut.output
    assert not Path("proofs/statement.json").exists()
    assert metrics("cut.json")["unanswered"] == 5
    assert run(*ask, "--json", "whole.json").exit_code == 0
    whole = json.loads(Path("whole.json").read_text())["radii"]
    assert [radius["unanswered"] for radius in whole] == [0, 0]
    assert whole[0]["from_store"] == 3
    for name, triple in metrics("cut.json")["metrics"].items():
        sign = -1 if name in ("accuracy", "confidence_low") else 1
        certified = triple["certified"]
        assert certified is None or sign * certified >= sign * whole[0]["metrics"][name]["certified"] - 1e-12, name


def test_certificates_of_a_data_set_are_accepted(folder: Path) -> None:
    ask = ("dataset", "net.onnx", *ASK, "--eps", "0.04", "--indices", "0:3", "--certificates", "proofs")
    done = run(*ask, "--json", "metrics.json")
    assert done.exit_code == 0, done.output
    assert "proofs/statement.json: 3 certificates" in done.output
    found = json.loads(Path("metrics.json").read_text())
    assert found["statement"] == "proofs/statement.json"
    assert found["no_certificate"] == {}
    for radius in found["radii"]:
        for name, stated in radius["stated"].items():
            sign = -1 if name in ("accuracy", "confidence_low") else 1
            assert sign * stated >= sign * radius["metrics"][name]["attack"] - 1e-12, name
            assert stated == pytest.approx(radius["metrics"][name]["certified"], abs=0.01), name
    checked = run("check", "proofs/statement.json", "--model", "net.onnx", "--data", "data.npz", "--indices", "0:3")
    assert checked.exit_code == 0, checked.output


def test_colour_images(folder: Path) -> None:
    """Channels come first, as the networks take them; convolutions have certificates."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("Flatten", ["h"], ["y"])]
    save(folder / "colour.onnx", nodes, {"w": rng.normal(size=(3, 3, 4, 4)).astype(np.float32)}, [1, 3, 4, 4])
    x, y = rng.random((5, 3, 4, 4)), rng.integers(0, 3, 5)
    np.savez("first.npz", x=x, y=y)
    np.savez("last.npz", x=x.transpose(0, 2, 3, 1), y=y)
    ask = ("dataset", "colour.onnx", "--eps", "0.01", "--clip", "0", "1", "--data")
    assert run(*ask, "first.npz").exit_code == 0
    assert "its axes are in another order; give x.transpose(0, 3, 1, 2)" in refused(*ask, "last.npz")
    assert run(*ask, "first.npz", "--indices", "0:2", "--certificates", "proofs").exit_code == 0
    checked = run("check", "proofs/statement.json", "--model", "colour.onnx", "--data", "first.npz")
    assert checked.exit_code == 0, checked.output


def test_an_interrupt_leaves_a_statement_on_what_was_proved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []

    def impatient(*arguments: Any) -> Any:
        if written:
            raise KeyboardInterrupt
        written.append(ranges_certificate(*arguments))
        return written[0]

    monkeypatch.setattr("softhull.certificates.dataset.ranges_certificate", impatient)
    ask = ("dataset", "net.onnx", *ASK, "--eps", "0.02,0.04", "--indices", "0:2", "--certificates", "proofs")
    cut = run(*ask, "--json", "metrics.json")
    assert cut.exit_code == 130, cut.output
    assert "no certificate for eps 0.04, sample 1: interrupted" in cut.output
    checked = run("check", "proofs/statement.json", "--model", "net.onnx", "--data", "data.npz")
    assert checked.exit_code == 0, checked.output
    assert "1 samples WITHOUT certificate" in checked.output


@pytest.mark.slow
def test_workers_find_what_one_process_finds(folder: Path) -> None:
    """Processes of this machine, and a Dask cluster."""
    ask = ("dataset", "net.onnx", *ASK, "--eps", "0.02", "--indices", "0:6")
    assert run(*ask, "--json", "plain.json").exit_code == 0
    cluster = pytest.importorskip("distributed").LocalCluster
    with cluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as team:
        for place, executor in (("local.db", "local:1"), ("dask.db", f"dask:{team.scheduler_address}")):
            done = run(*ask, "--store", place, "--executor", executor, "--json", "found.json")
            assert done.exit_code == 0, done.output
            assert metrics("found.json")["unanswered"] == 0
            for name, triple in metrics("found.json")["metrics"].items():
                assert triple == pytest.approx(metrics("plain.json")["metrics"][name]), (executor, name)


def test_a_campaign_may_ask_about_a_data_set(folder: Path) -> None:
    Path("campaign.toml").write_text(
        '[[networks]]\nmodel = "net.onnx"\n[[data]]\nfile = "data.npz"\nindices = "0:6"\n'
        '[[perturbations]]\neps = 0.02\n[[methods]]\nname = "second-order"\n[[questions]]\nask = "dataset"\nbins = 4\n'
    )
    done = run("run", "campaign.toml", "--executor", "local:1", "--quiet")
    assert done.exit_code == 0, done.output
    with Store.read("runs.db") as store:
        assert [row.verdict for row in store.rows()] == ["bounded"] * 6


def test_conformal_prints_and_writes_coverage_and_sizes(folder: Path) -> None:
    ask = ("conformal", "net.onnx", *ASK[:-2], "--eps", "0.02", "--splits", "3", "--scores", "lac,raps")
    done = run(*ask, "--json", "sets.json")
    assert done.exit_code == 0, done.output
    assert "at inference" in done.output
    (radius,) = json.loads(Path("sets.json").read_text())["radii"]
    assert list(radius["rows"]) == ["lac", "raps"]
    for ways in radius["rows"].values():
        assert ways["inference"]["coverage_attack"] >= ways["none"]["coverage_clean"]


def test_reliability_diagram_of_a_file(folder: Path) -> None:
    assert run("dataset", "net.onnx", *ASK, "--eps", "0.01", "--json", "plain.json").exit_code == 0
    done = run("plot", "reliability", "plain.json", "--out", "reliability.svg")
    assert done.exit_code == 0, done.output
    assert "certified" in Path("reliability.svg").read_text()
    assert "it has 0.01" in refused("plot", "reliability", "plain.json", "--eps", "0.5")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"radii": 3}', '{"radii": [{"eps": 0.1}]}', '{"radii": [{"eps": "a"}]}', "[" * 100_000, '"\x00"'],
)
def test_files_that_are_no_results_are_refused_in_one_line(folder: Path, content: str) -> None:
    Path("bad.json").write_text(content)
    assert "bad.json: not a file of softhull dataset --json" in refused("plot", "reliability", "bad.json")


def test_what_does_not_fit_together_is_refused(folder: Path) -> None:
    ask = ("dataset", "net.onnx", *ASK, "--eps", "0.01")
    assert "it is about a --store; name one" in refused(*ask, "--executor", "local:1")
    assert "belongs to --outside" in refused(*ask, "--outside-indices", "0:3")
    assert "choose lac" in refused("conformal", "net.onnx", *ASK[:-2], "--eps", "0.01", "--scores", "best")
    assert "alpha" in refused("conformal", "net.onnx", *ASK[:-2], "--eps", "0.01", "--alpha", "2")
    assert "names every radius and every sample once" in refused(*ask, "--indices", "1,1", "--certificates", "proofs")
