"""``softhull dataset``, ``conformal`` and ``plot reliability``: files, stores, reports, and one line for bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from softhull.cli.app import app
from softhull.report.html import report_html
from softhull.runs.store import Store
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
    assert "name one with --store" in refused(*ask, "--executor", "local:1")
    assert "belongs to --outside" in refused(*ask, "--outside-indices", "0:3")
    assert "choose lac" in refused("conformal", "net.onnx", *ASK[:-2], "--eps", "0.01", "--scores", "best")
    assert "alpha" in refused("conformal", "net.onnx", *ASK[:-2], "--eps", "0.01", "--alpha", "2")
    assert "no answer" in refused(*ask, "--store", "late.db", "--timeout", "0")
