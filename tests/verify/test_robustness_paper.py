"""The paper's attention tables, cell by cell, and what goes beyond them."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from softhull.formats.onnx import load_onnx
from softhull.propagate.methods import Linear, Paper
from softhull.propagate.perturbation import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from tests.propagate.checks import assert_claims_hold

pytestmark = pytest.mark.paper
FOLDER = Path(os.environ.get("SOFTHULL_PAPER_DIR", "no-such-folder"))
COLUMNS = ("lin", "er", "lse", "lse*")
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


@cache
def _printed(table, row):
    tables = json.loads((FOLDER / "tables.json").read_text())
    return next(cells for name, cells in tables[table].items() if name.startswith(row))


def _mnist(size, eps, kind, method, count):
    x, y = _images()
    perturbation = Perturbation(float(eps), clip=(0, 1))
    name = f"self-attention-mnist-pgd-{size}-sim"
    result = verify_robustness(_network(name), x[:count], y[:count], perturbation, kind, method, attack=None)
    summary = result.summary()
    assert sum(summary[v.value] for v in Verdict) == count
    assert not result.count(Verdict.ERROR)
    return result.count(Verdict.CERTIFIED)


@pytest.mark.parametrize("eps", ["0.02", "0.04", "0.06", "0.08", "0.10", "0.12", "0.14", "0.16"])
@pytest.mark.parametrize("bound", COLUMNS)
def test_sst_cells(eps, bound):
    with np.load(FOLDER / "sst_first500.npz", allow_pickle=False) as data:
        x, y = data["x"], data["y"]
    network = _network("self-attention-sst-sim-post-embedding")
    result = verify_robustness(network, x, y, Perturbation(float(eps)), method=Paper(bound), attack=False)
    assert result.count(Verdict.CERTIFIED) / 5 == pytest.approx(
        _printed("tab:attention-sst", eps)[COLUMNS.index(bound)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("bound", COLUMNS)
@pytest.mark.parametrize(("size", "tolerance"), [("small", 2), ("medium", 0)])
def test_mnist_cells(size, tolerance, eps, bound):
    printed = 5 * _printed("tab:attention", size)[eps][COLUMNS.index(bound)]
    x, y = _images()
    name = f"self-attention-mnist-pgd-{size}-sim"
    perturbation = Perturbation(float(eps), clip=(0, 1))
    result = verify_robustness(_network(name), x, y, perturbation, "runner-up", Paper(bound), attack=False)
    assert abs(result.count(Verdict.CERTIFIED) - round(printed)) <= tolerance


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
