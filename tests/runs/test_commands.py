"""The commands on campaigns and stores: run, results, compare, verify and uncertainty with a store, vnncomp."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from softhull.errors import CampaignError, InvalidInput
from softhull.formats.onnx import load_onnx
from softhull.formats.vnnlib import load_vnnlib
from softhull.runs.campaign import load_campaign
from softhull.runs.memory import BatchSizes, is_out_of_memory, parse_size
from softhull.runs.store import Store
from softhull.runs.vnncomp import breaks
from softhull.runs.worker import Batch, answer_batch, load_networks

from .campaigns import call, command, one_line, run_here, write_campaign, write_network
from .stores import answered, assert_complete, assert_equal, rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_campaign(tmp_path, 12, batch=12)
    return tmp_path


def test_a_question_may_name_its_methods(folder: Path) -> None:
    campaign = folder / "campaign.toml"
    assert len(load_campaign(campaign)) == 6 * 12
    campaign.write_text(campaign.read_text().replace('methods = "dual"', ""))
    tasks = [work.task for work in load_campaign(campaign).works]
    assert [task.method_name for task in tasks if task.question == "robustness"] == ["linear"] * 2
    assert sorted(task.method_name for task in tasks if task.question == "uncertainty") == ["dual"] * 4 + ["linear"] * 4


def test_answers_do_not_depend_on_the_batches(folder: Path) -> None:
    run_here(folder / "campaign.toml", folder / "four.db", batch=4)
    run_here(folder / "campaign.toml", folder / "five.db", batch=5)
    assert_complete(folder / "four.db")
    assert_equal(folder / "four.db", folder / "five.db")


def test_verify_and_uncertainty_share_answers_with_a_campaign(folder: Path) -> None:
    store = folder / "runs.db"
    run_here(folder / "campaign.toml", store)
    before = answered(store)
    shared = ("--data", folder / "data.npz", "--eps", 0.1, "--clip", 0, 1, "--store", store, "--json", "-")
    done = call("verify", folder / "net-0.onnx", *shared, "--method", "linear", "--optimize", 4)
    assert done.exit_code == 0, done.output
    assert answered(store) == before
    found = json.loads(done.stdout)["instances"]
    kept = [row for row in rows(store).values() if row.network == "single" and row.eps == 0.1]
    assert [r["verdict"] for r in found] == [
        row.verdict for row in sorted(kept, key=lambda row: row.index)[: len(found)]
    ]
    scored = call("uncertainty", folder / "net-0.onnx", folder / "net-1.onnx", *shared, "--indices", "0:3")
    assert scored.exit_code == 0, scored.output
    assert answered(store) == before + 3  # the campaign took fewer steps: another question
    again = call("uncertainty", folder / "net-0.onnx", folder / "net-1.onnx", *shared, "--indices", "0:3")
    known = [record | {"from_store": True} for record in json.loads(scored.stdout)["instances"]]
    assert json.loads(again.stdout)["instances"] == known


def test_one_failing_instance_is_an_error_and_the_others_are_answered(folder: Path) -> None:
    with np.load(folder / "data.npz") as data:
        x, y = data["x"].copy(), data["y"].copy()
    x[5] = 7.0  # outside the clip range
    y[7] = 99  # no such class
    np.savez(folder / "data.npz", x=x, y=y)
    store = folder / "runs.db"
    run_here(folder / "campaign.toml", store)
    assert_complete(store)
    failed = {(row.index, row.question) for row in rows(store).values() if row.verdict == "error"}
    assert failed == {(i, q) for i in (5, 7) for q in ("robustness", "uncertainty")}
    assert all(row.message for row in rows(store).values() if row.verdict == "error")


def test_equal_inputs_share_one_answer_and_are_both_listed(folder: Path) -> None:
    with np.load(folder / "data.npz") as data:
        x, y = data["x"].copy(), data["y"].copy()
    x[3], y[3] = x[0], y[0]
    np.savez(folder / "data.npz", x=x, y=y)
    run_here(folder / "campaign.toml", folder / "runs.db")
    listed = len(rows(folder / "runs.db"))
    assert answered(folder / "runs.db") == listed - listed // 12  # one of twelve is asked for twice


def test_results_in_every_format(folder: Path) -> None:
    store = folder / "runs.db"
    run_here(folder / "campaign.toml", store)
    listed = json.loads(call("results", store, "--format", "json").stdout)
    assert len(listed) == len(rows(store)) == answered(store)
    text = call("results", store, "--format", "csv", "--where", "question=robustness and index<5").stdout
    table = list(csv.DictReader(text.splitlines()))
    assert len(table) == 10
    assert {"index", "verdict", "label", "bound", "attack", "clean", "message"} <= set(table[0])
    assert "certified" in call("results", store, "--summary").stdout
    assert "robustness" in call("results", store).stdout
    out = folder / "rows.parquet"
    assert call("results", store, "--format", "parquet", "--out", out).exit_code == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(out).column("key").to_pylist() == [row["key"] for row in listed]
    assert call("results", store, "--where", "1=1").exit_code == 2


def test_compare_tells_what_one_bound_certifies_alone(folder: Path) -> None:
    campaign = folder / "campaign.toml"
    campaign.write_text(campaign.read_text().replace("optimize = 4", 'bound = ["hull", "lse*"]\noptimize = [0, 4]'))
    run_here(campaign, folder / "runs.db")
    refused = call("compare", folder / "runs.db", "--by", "bound", "--where", "question=robustness")
    assert refused.exit_code == 2
    assert "narrow it down" in refused.output
    campaign.write_text(campaign.read_text().replace("optimize = [0, 4]", "optimize = 0"))
    (folder / "runs.db").unlink()
    run_here(campaign, folder / "runs.db")
    done = call("compare", folder / "runs.db", "--by", "bound", "--where", "question=robustness", "--json")
    (found,) = json.loads(done.stdout)
    assert [side["value"] for side in found["sides"]] == ["hull", "lse*"]
    assert found["instances"] == 24
    pair = found["pairs"][0]
    assert pair["both"] + pair["only_first"] == found["sides"][0]["certified"]
    assert found["together"] == pair["both"] + pair["only_first"] + pair["only_second"]
    assert "certified by at least one" in call("compare", folder / "runs.db", "--where", "question=robustness").stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[[networks]]", "[[nets]]"), "unknown section 'nets'"),
        (('model = "net-0.onnx"', 'modle = "net-0.onnx"'), "networks[0].modle: unknown key"),
        (('model = "net-0.onnx"', 'model = "gone.onnx"'), "networks[0].model: there is no file"),
        (('model = "net-0.onnx"', 'model = "data.npz"'), "not an ONNX file"),
        (('file = "data.npz"', 'file = "net-0.onnx"'), "neither npz"),
        (("eps = [0.02, 0.1]", "eps = [0.02, -1]"), "perturbations[0]: eps must be"),
        (("eps = [0.02, 0.1]", 'eps = "big"'), "perturbations[0].eps: a number"),
        (("clip = [0, 1]", "clip = 1"), "perturbations[0].clip: two numbers"),
        (('name = "linear"', 'name = "liner"'), "methods[0].name: robustness: unknown method 'liner'"),
        (("optimize = 4", "optimise = 4"), "methods[0]: method 'linear' has no setting 'optimise'"),
        (("optimize = 4", 'optimize = "much"'), "setting 'optimize' of method 'linear' must be a whole number"),
        (("optimize = 4", 'bound = "hul"'), "methods[0]: unknown bound 'hul'"),
        (('ask = "robustness"', 'ask = "robust"'), "questions[0].ask: unknown question 'robust'"),
        (('ask = "robustness"', 'ask = "robustness"\nproperty = "any"'), "questions[0]: unknown property 'any'"),
        (('score = ["nll", "brier"]', 'score = "nil"'), "questions[1]: "),
        (('networks = "pair"', 'networks = "pears"'), "questions[1].networks: there is no 'pears'"),
        (('methods = "dual"', 'methods = "duel"'), "questions[1].methods: there is no 'duel'; known: linear, dual"),
        (('name = "dual"\nsteps = 20', 'name = "paper"'), "questions[1].methods: there is no 'dual'"),
        (('"robustness"', '"robustness"\nmethods = "dual"'), "questions[0]: no method of those named"),
        (("batch = 12", "bach = 12"), "run.bach: unknown key"),
        (("[[methods]]", "[[methods"), "not a TOML file"),
    ],
    ids=str,
)
def test_mistakes_in_a_campaign_are_named_with_their_place(folder: Path, change: tuple[str, str], said: str) -> None:
    campaign = folder / "campaign.toml"
    text = campaign.read_text()
    assert change[0] in text
    campaign.write_text(text.replace(*change, 1))
    with pytest.raises(CampaignError) as caught:
        load_campaign(campaign)
    assert str(caught.value).startswith(f"{campaign}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--executor", "slurm"), "write local, local:N"),
        (("--executor", "local:0"), "at least 1"),
        (("--timeout", "-1"), "timeout must be"),
        (("--memory", "lots"), "not an amount of memory"),
        (("--device", "toaster"), "device 'toaster' cannot be used here"),
        (("--device", "meta"), "device 'meta' cannot be used here"),
    ],
)
def test_bad_options_are_one_line(folder: Path, options: tuple[str, str], said: str) -> None:
    done = call("run", folder / "campaign.toml", "--store", folder / "runs.db", *options)
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not (folder / "runs.db").exists()


def test_a_disk_that_fills_up_ends_the_run_with_what_was_stored(folder: Path) -> None:
    store = folder / "runs.db"
    write_campaign(folder, 400, batch=20)

    # The shell sets the limit (976 blocks of 512 bytes): forking here is not safe beside threads of other libraries.
    limited = ["sh", "-c", 'ulimit -S -f 976; exec "$@"', "sh"]
    arguments = command("run", folder / "campaign.toml", "--store", store, "--executor", "local:1", "--quiet")
    done = subprocess.run([*limited, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert "disk is full" in one_line(done)
    with Store.read(store) as opened:
        assert len(list(opened.rows())) == answered(store)


def test_memory_bounds_batches_by_what_was_measured() -> None:
    assert parse_size("4GB") == 4 << 30
    assert parse_size("1.5 MiB") == 3 << 19
    with pytest.raises(InvalidInput, match="4GB"):
        parse_size("-1")
    sizes = BatchSizes(50, limit=1000)
    assert sizes.size("task") == 1
    sizes.measured("task", 1, base=500, peak=510)
    assert sizes.size("task") == 4
    sizes.measured("task", 4, base=500, peak=540)
    assert sizes.size("task") == 16
    sizes.measured("task", 16, base=500, peak=660)
    assert sizes.size("task") == 40  # four fifths of what is left, at ten bytes an instance
    sizes.refused("task", 20)
    assert sizes.size("task") == 19
    assert BatchSizes(50).size("task") == 50


def test_out_of_memory_splits_the_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_campaign(folder / "campaign.toml")
    work = plan.works[0]
    question = type(__import__("softhull.runs.questions", fromlist=["QUESTIONS"]).QUESTIONS["robustness"])
    whole = question.ask
    sizes: list[int] = []

    def ask(self, task, networks, x, labels, options):
        sizes.append(len(x))
        if len(x) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")
        return whole(self, task, networks, x, labels, options)

    monkeypatch.setattr(question, "ask", ask)
    x, y = work.dataset.take(range(12)), work.dataset.y
    batch = Batch(1, work.task, tuple(work.task.keys(x, y)), x, y)
    outcome = answer_batch(batch, load_networks(plan.models.__getitem__))
    assert sizes == [12, 6, 3, 3, 6, 3, 3]
    assert outcome.smallest_refused == 6
    assert {answer.verdict for answer in outcome.answers.values()} <= {
        "certified",
        "falsified",
        "unknown",
        "misclassified",
    }
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("no"))


PROPERTY = """
(declare-const X_0 Real) (declare-const X_1 Real) (declare-const X_2 Real) (declare-const X_3 Real)
(declare-const Y_0 Real) (declare-const Y_1 Real) (declare-const Y_2 Real)
(assert (and (>= X_0 0.1) (<= X_0 {0}) (>= X_1 0.1) (<= X_1 {0}) (>= X_2 0.1) (<= X_2 {0}) (>= X_3 0.1) (<= X_3 {0})))
(assert (<= Y_0 {1}))
"""


def test_vnncomp_formats(folder: Path) -> None:
    network = load_onnx(folder / "net-0.onnx")
    here = float(network.replay(np.full((1, 4), 0.1))[0].reshape(-1)[0])
    (folder / "sat.vnnlib").write_text(PROPERTY.format(0.3, here))
    (folder / "unsat.vnnlib").write_text(PROPERTY.format(0.1001, here - 1))
    # The network under the name that a benchmark lists, packed as benchmarks keep it.
    (folder / "packed.onnx.gz").write_bytes(gzip.compress((folder / "net-0.onnx").read_bytes()))
    done = call("vnncomp", folder / "packed.onnx", folder / "sat.vnnlib", folder / "result.txt", "--timeout", 20)
    assert done.exit_code == 0, done.output
    verdict, _, witness = (folder / "result.txt").read_text().partition("\n")
    assert verdict == "sat"
    assert witness.startswith("((X_0 ")
    assert witness.count("(Y_") == 3
    assert breaks(witness, network, load_vnnlib(folder / "sat.vnnlib"))
    assert not breaks(witness, network, load_vnnlib(folder / "unsat.vnnlib"))
    (folder / "instances.csv").write_text(
        "./net-0.onnx,sat.vnnlib,20\nnet-0.onnx,unsat.vnnlib,20\nnet-0.onnx,gone.vnnlib,5\n"
    )
    done = call(
        "vnncomp", "--instances", folder / "instances.csv", "--out", folder / "results.csv", "--category", "tiny"
    )
    assert done.exit_code == 0, done.output
    lines = list(csv.reader((folder / "results.csv").read_text().splitlines()))
    assert [line[4] for line in lines] == ["sat", "unsat", "error"]
    assert lines[0][:3] == ["tiny", "./net-0.onnx", "sat.vnnlib"]
    assert all(float(line[3]) >= 0 and float(line[5]) >= 0 for line in lines)
    (folder / "instances.csv").write_text("net-0.onnx,sat.vnnlib\n")
    bad = call("vnncomp", "--instances", folder / "instances.csv", "--out", folder / "results.csv")
    assert bad.exit_code == 2
    assert "line 1: write ONNX,VNNLIB,SECONDS" in bad.output


def test_a_network_that_changes_is_another_question(folder: Path) -> None:
    run_here(folder / "campaign.toml", folder / "runs.db")
    before = answered(folder / "runs.db")
    scores = sum(row.network == "pair" for row in rows(folder / "runs.db").values())
    write_network(folder / "net-1.onnx", 99)
    run_here(folder / "campaign.toml", folder / "runs.db")
    assert answered(folder / "runs.db") == before + scores  # of the ensemble, not the single network's classes
    assert os.path.getsize(folder / "runs.db") > 0
