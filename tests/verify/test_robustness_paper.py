"""Certified counts on the paper's networks beyond its tables, and claims that hold there."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from softhull.cli.app import app
from softhull.formats.onnx import load_onnx
from softhull.formats.vnnlib import Disjunct, Specification
from softhull.propagate.methods import Linear, Paper
from softhull.regions import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from tests.formats.vnnlib_text import write_vnnlib
from tests.propagate.checks import assert_claims_hold

pytestmark = pytest.mark.paper
FOLDER = Path(os.environ.get("SOFTHULL_PAPER_DIR", "no-such-folder"))
EPS = ("0.016", "0.020", "0.024")


@pytest.fixture(autouse=True)
def _folder():
    if not FOLDER.is_dir():
        pytest.skip("SOFTHULL_PAPER_DIR does not name the folder with the paper's networks")


@cache
def _network(name):
    return load_onnx(FOLDER / "models" / f"{name}.onnx")


@cache
def _images():
    with np.load(FOLDER / "mnist_test_first500.npz", allow_pickle=False) as data:
        return data["x"] / 255.0, data["y"].astype(int)


def _mnist(size, eps, kind, method, count):
    x, y = _images()
    perturbation = Perturbation(float(eps), clip=(0, 1))
    name = f"self-attention-mnist-pgd-{size}-sim"
    result = verify_robustness(_network(name), x[:count], y[:count], perturbation, kind, method, attack=None)
    summary = result.summary()
    assert sum(summary[v.value] for v in Verdict) == count
    assert not result.count(Verdict.ERROR)
    return result.count(Verdict.CERTIFIED)


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "least"), list(zip(EPS, (427, 424, 418))))
def test_small_network_beyond_the_paper(eps, least):
    assert _mnist("small", eps, "all", Linear(), 500) >= least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("eps", "steps", "least"), [*zip(EPS, (0, 0, 0), (96, 91, 86)), *zip(EPS, (20, 20, 20), (97, 94, 91))]
)
def test_medium_network_beyond_the_paper(eps, steps, least):
    assert _mnist("medium", eps, "all", Linear(optimize=steps), 100) >= least


@pytest.mark.slow
def test_vision_transformer_end_to_end():
    network = _network("vit-ibp_3_3_8")
    x = torch.rand((1, *network.input_shape), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    label = network.logits(x).flatten(1).argmax(1)
    result = verify_robustness(network, x, label, Perturbation(1 / 255, clip=(0, 1)))
    assert result[0].verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("size", ["small", "medium"])
@pytest.mark.parametrize("method", [Linear(), Paper("lse")])
def test_claims_hold_on_the_paper_networks(size, method):
    network = _network(f"self-attention-mnist-pgd-{size}-sim")
    x = torch.as_tensor(_images()[0][:2]).reshape(-1, *network.input_shape)
    for seed, eps in enumerate((0.004, 0.024, 0.3)):
        assert_claims_hold(network.logits, Perturbation(eps, clip=(0, 1)).around(x), method, seed)


def _verify(*arguments):
    done = CliRunner().invoke(app, ["verify", *(str(a) for a in arguments), "--json", "-"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", [1, 2])
def test_property_files_ask_the_same_question_as_data(version, tmp_path):
    path, eps = FOLDER / "models" / "self-attention-mnist-pgd-small-sim.onnx", 0.02
    data = FOLDER / "mnist_test_first500.npz"
    asked = _verify(path, "--data", data, "--eps", eps, "--clip", 0, 1, "--indices", "0:6,18", "--attack")
    x, y = _images()
    answers = {"certified": "unsat", "falsified": "sat", "unknown": "unknown"}
    seen = set()
    for record in asked["instances"]:
        if record["verdict"] not in answers:
            continue
        i = record["index"]
        box = Perturbation(eps, clip=(0, 1)).around(torch.as_tensor(x[i : i + 1]).reshape(1, -1))
        others = [k for k in range(10) if k != y[i]]
        rows = np.eye(10)[y[i]] - np.eye(10)[others]
        low, high = box.lower[0].numpy(), box.upper[0].numpy()
        unsafe = tuple(Disjunct(low, high, row[None], np.zeros(1), np.zeros(1, dtype=bool)) for row in rows)
        spec = tmp_path / f"{i}.vnnlib"
        spec.write_text(write_vnnlib(Specification(784, 10, unsafe), version))
        found = _verify(path, "--vnnlib", spec)
        assert found["verdict"] == answers[record["verdict"]], i
        seen.add(found["verdict"])
    assert "unsat" in seen


def test_a_time_limit_on_the_vision_transformer_is_kept(tmp_path):
    network = _network("vit-ibp_3_3_8")
    x = np.random.default_rng(0).uniform(size=(1, *network.input_shape))
    np.savez(tmp_path / "one.npz", x=x, y=network.replay(x).reshape(1, -1).argmax(1))
    found = _verify(network.path, "--data", tmp_path / "one.npz", "--eps", 1 / 255, "--timeout", 1)
    (record,) = found["instances"]
    assert record["verdict"] in ("unknown", "certified")
    assert record["verdict"] == "certified" or "time limit" in record["message"]
