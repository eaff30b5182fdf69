"""Everything that computes with tensors does so where it is told to, with the same answers as on the processor."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from softhull import Conic, CuttingPlanes, Dual, InvalidInput, Perturbation, verify_robustness, verify_uncertainty
from softhull.attack.score import ScoreAttack
from softhull.devices import find_device
from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.relu import Relu
from softhull.propagate.methods import Linear, SecondOrder
from softhull.runs.store import Store
from softhull.verify.methods import find_method
from softhull.verify.result import Record
from softhull.verify.robustness import certified_radius, verify_specification

from .propagate.networks import random_attention
from .runs.campaigns import call, one_line, run, write_campaign
from .runs.test_full_disk import known
from .runs.test_witnesses import FIRST
from .solve.ensembles import random_graph
from .verify.test_robustness import _specification

pretend_device = pytest.importorskip("tests.pretend_device", reason="this torch knows no devices written in Python")
DEVICE = "pretend"
INSTALLED = """
import os, pathlib
from tests import pretend_device
pretend_device.install()
run = pretend_device._run
def noted(*given):
    (pathlib.Path(__file__).parent / f"used-by-{os.getpid()}").touch()
    return run(*given)
pretend_device._run = noted
"""


# When tests are collected, not when they run: torch counts its devices at the first backward pass of a process.
pretend_device.install()


@pytest.fixture
def everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device in all processes started from here; the folder says which of them used it."""
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(INSTALLED)
    root = Path(__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), str(root), os.environ.get("PYTHONPATH", ""))))
    return folder


def test_the_pretended_device_is_as_strict_as_a_real_one() -> None:
    x = torch.ones(3, device=DEVICE)
    assert float((x + torch.tensor(1.0)).sum()) == 6  # single numbers may come from anywhere
    for mixed in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3)[x.long()],
        lambda: torch.cat((x, torch.ones(3))),
        lambda: torch.rand(3, generator=torch.Generator(), device=DEVICE),
        lambda: x.numpy(),
    ):
        with pytest.raises(RuntimeError):
            mixed()
    assert x.cpu().numpy().tolist() == [1, 1, 1]


def case(seed: int) -> tuple[Graph, np.ndarray, np.ndarray]:
    """An attention network with three inputs and the classes it gives them, the last one wrong."""
    rng = np.random.default_rng(seed)
    graph = random_attention(rng, depth=1)
    x = rng.random((3, *graph.input_shape))
    labels = graph(torch.from_numpy(x)).flatten(1).argmax(1).numpy()
    labels[-1] = (labels[-1] + 1) % 3
    return graph, x, labels


def assert_same(here: tuple[Record, ...], there: tuple[Record, ...]) -> None:
    for a, b in zip(here, there, strict=True):
        assert b.verdict is a.verdict, b.message
        assert b.message == a.message
        for one, other in ((a.bound, b.bound), (a.attack, b.attack)):
            assert (one is None) == (other is None)
            assert one is None or other == pytest.approx(one, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("method", "norm"), [("linear", np.inf), ("second-order", np.inf), ("auto", 2)])
def test_verdicts_do_not_depend_on_the_device(method: str, norm: float) -> None:
    found = set()
    chosen = find_method(method, optimize=2 if method in ("linear", "auto") else None)
    graph, x, labels = case(4)
    for eps, attack in ((0.02, False), (0.6, None)):
        ask: Any = Perturbation(eps, norm, (0, 1)), "all", chosen
        here = verify_robustness(graph, x, labels, *ask, attack=attack)
        assert_same(here.records, verify_robustness(graph, x, labels, *ask, attack=attack, device=DEVICE).records)
        found |= {record.verdict.value for record in here.records}
    assert {"certified", "unknown", "misclassified"} <= found
    assert ("falsified" in found) == (norm == np.inf)


def test_properties_radii_and_short_formats() -> None:
    graph, x, labels = case(1)
    ask: Any = {"property": "targets", "targets": [0, 2], "method": Linear(optimize=0)}
    for norm in (np.inf, 2):
        perturbation = Perturbation(0.3, norm, (0, 1))
        here = verify_robustness(graph, x, labels, perturbation, dtype=torch.float32, **ask)
        there = verify_robustness(graph, x, labels, perturbation, dtype=torch.float32, device=DEVICE, **ask)
        assert [r.verdict for r in there.records] == [r.verdict for r in here.records]
        near, far = (
            certified_radius(graph, x, labels, perturbation, steps=1, device=d, **ask) for d in ("cpu", DEVICE)
        )
        np.testing.assert_allclose(far, near, rtol=1e-9)


def test_specifications_and_their_witnesses() -> None:
    builder = GraphBuilder((2,))
    graph = builder.finish(builder.elementwise(Relu(), -1))
    assert verify_specification(graph, _specification(1.5), device=DEVICE).verdict == "unsat"
    broken = verify_specification(graph, _specification(0.5), device=DEVICE)
    assert broken.verdict == "sat"
    assert broken.witness is not None
    assert bool((broken.witness >= 0.5).all())


def test_tensors_are_worked_on_where_they_are() -> None:
    graph, x, labels = case(1)
    ask: Any = Perturbation(0.1, clip=(0, 1)), "all", Linear(optimize=0)
    here = verify_robustness(graph, x, labels, *ask)
    there: Any = [tensor.to(DEVICE) for tensor in (torch.from_numpy(x), torch.from_numpy(labels))]
    assert_same(here.records, verify_robustness(graph.to(torch.float64, DEVICE), *there, *ask).records)
    networks = [random_graph(torch.Generator().manual_seed(0))]
    x = np.full((2, 1, 4), 0.5)
    asked: Any = Perturbation(0.1), "brier", Dual(steps=5)
    plain = verify_uncertainty(networks, x, np.array([0, 1]), *asked)
    far: Any = [network.to(torch.float64, DEVICE) for network in networks], torch.from_numpy(x).to(DEVICE)
    found = verify_uncertainty(far[0], far[1], torch.tensor([0, 1]), *asked)
    np.testing.assert_allclose(found.column("bound"), plain.column("bound"), rtol=1e-9)


@pytest.mark.parametrize(
    ("method", "score", "activation", "norm"),
    [
        (Dual(10, 2), "nll", "relu", np.inf),
        (Dual(5), "brier", "tanh", 2),
        (Dual(5), "margin", "leaky", 1),
        (CuttingPlanes(rounds=3, warm_steps=3), "entropy", "sigmoid", np.inf),
        (Conic(warm_steps=3), "nll", "relu", 2),
        (SecondOrder(), "brier", "attention", 2),
    ],
)
def test_scores_do_not_depend_on_the_device(method: Any, score: str, activation: str, norm: float) -> None:
    generator = torch.Generator().manual_seed(3)
    if activation == "attention":
        networks = [random_attention(np.random.default_rng(4), depth=1)]
    else:
        networks = [random_graph(generator, activation=activation) for _ in range(2)]
    x = torch.rand(2, *networks[0].input_shape, generator=generator, dtype=torch.float64)
    for separate in (False, True) if activation == "tanh" else (False,):
        here, there = (
            verify_uncertainty(
                networks,
                x,
                torch.tensor([0, 2]),
                Perturbation(0.1, norm, (0, 1)),
                score,
                method,
                separate=separate,
                attack=ScoreAttack(steps=4, restarts=2),
                device=device,
            )
            for device in ("cpu", DEVICE)
        )
        for name in ("bound", "attack", "clean"):
            np.testing.assert_allclose(there.column(name), here.column(name), rtol=1e-9)


def test_commands_take_a_device(tmp_path: Path) -> None:
    write_campaign(tmp_path, 4)
    data = ("--data", tmp_path / "data.npz", "--eps", 0.05, "--indices", "0:3")
    networks = [tmp_path / f"net-{i}.onnx" for i in range(2)]
    for name, models in (("verify", networks[:1]), ("uncertainty", networks)):
        for extra in ((), ("--store", tmp_path / f"{name}.db")):
            done = call(name, *models, *data, *extra, "--device", DEVICE)
            assert done.exit_code == 0, done.output
            assert "error" not in done.output
    assert call("verify", networks[0], *data, "--radius", "--device", DEVICE).exit_code == 0
    box = "".join(f"(assert (>= X_{i} 0.1)) (assert (<= X_{i} 0.2))" for i in range(4))
    (tmp_path / "never.vnnlib").write_text(FIRST.format(box, "-100.0"))
    asked = networks[0], tmp_path / "never.vnnlib"
    assert call("verify", asked[0], "--vnnlib", asked[1], "--device", DEVICE).stdout == "unsat\n"
    assert call("vnncomp", *asked, tmp_path / "out.txt", "--timeout", 60, "--device", DEVICE).stdout == "unsat\n"


@pytest.mark.slow
def test_workers_compute_on_the_device_and_the_store_knows_the_answers_anywhere(
    tmp_path: Path, everywhere: Path
) -> None:
    campaign = write_campaign(tmp_path, 1, eps="[0.02]")
    campaign.write_text(campaign.read_text().replace("[run]\n", f'[run]\ndevice = "{DEVICE}"\n'))
    there, here = tmp_path / "there.db", tmp_path / "here.db"
    done = run("run", campaign, "--store", there, "--executor", "local:1")
    assert done.returncode == 0, done.stderr
    assert len(list(everywhere.glob("used-by-*"))) > 1  # the process that asks whether it is there, and a worker
    assert call("run", campaign, "--store", here, "--executor", "local:1", "--device", "cpu").exit_code == 0
    with Store.read(there) as opened, Store.read(here) as other:
        rows, same = ({row.key: row for row in store.rows()} for store in (opened, other))
    assert rows
    assert rows.keys() == same.keys()
    for key, row in rows.items():
        assert row.verdict == same[key].verdict != "error"
        assert (row.bound is None) == (same[key].bound is None)
        assert row.bound is None or row.bound == pytest.approx(same[key].bound, rel=1e-9)
    # What was found on one device is not computed again on another.
    assert '"answered"' not in call("run", campaign, "--store", there, "--device", "cpu", "--json", "-").stdout


def test_workers_of_a_cluster_compute_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of this process as workers: the device is theirs, too."""
    used = count()
    compute = pretend_device._run
    monkeypatch.setattr(pretend_device, "_run", lambda *given: (next(used), compute(*given))[1])
    campaign = write_campaign(tmp_path, 1, eps="[0.02]")
    with local_cluster() as cluster:
        executor = f"dask:{cluster.scheduler_address}"
        done = call("run", campaign, "--store", tmp_path / "runs.db", "--executor", executor, "--device", DEVICE)
    assert done.exit_code == 0, done.output
    assert next(used)
    with Store.read(tmp_path / "runs.db") as store:
        assert {row.verdict for row in store.rows()} <= {"certified", "falsified", "misclassified", "bounded"}


def local_cluster() -> Any:
    """A scheduler and one worker, both in this process."""
    return pytest.importorskip("distributed").LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    )


def test_workers_elsewhere_say_themselves_that_they_lack_the_device(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path, 1)
    with local_cluster() as cluster:
        arguments = ("--store", tmp_path / "runs.db", "--executor", f"dask:{cluster.scheduler_address}")
        said = one_line(call("run", campaign, *arguments, "--device", "meta"))
    assert f"a worker of {cluster.scheduler_address}" in said
    assert "device 'meta' cannot be used here" in said
    assert not known(tmp_path / "runs.db")


@pytest.mark.parametrize("name", ["toaster", "meta"])
def test_a_device_that_is_not_there_is_one_line(tmp_path: Path, name: str) -> None:
    write_campaign(tmp_path, 2)
    data = ("--data", tmp_path / "data.npz", "--eps", 0.05)
    network = tmp_path / "net-0.onnx"
    (tmp_path / "instances.csv").write_text("net-0.onnx,nothing.vnnlib,1\n")
    table = ("--instances", tmp_path / "instances.csv", "--out", tmp_path / "results.csv")
    store = ("--store", tmp_path / "runs.db")
    for arguments in (
        ("verify", network, *data, *store),
        ("uncertainty", network, *data, *store),
        ("vnncomp", *table),
        ("run", tmp_path / "campaign.toml", *store),
        ("run", tmp_path / "campaign.toml", *store, "--executor", "dask"),
    ):
        said = one_line(call(*arguments, "--device", name))
        assert f"device {name!r} cannot be used here" in said
    assert not (tmp_path / "runs.db").exists()
    assert not (tmp_path / "results.csv").exists()
    with pytest.raises(InvalidInput, match="cannot be used here"):
        find_device(name)
