"""Certified counts of the default method on the paper's attention networks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from softhull.formats.onnx import load_onnx
from softhull.regions import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness

pytestmark = [pytest.mark.paper, pytest.mark.slow]
FOLDER = Path(os.environ.get("SOFTHULL_PAPER_DIR", "no-such-folder"))
LEAST = {"small": (428, 427, 424), "medium": (479, 478, 472)}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("size", LEAST)
def test_certified_of_500(size, place):
    if not FOLDER.is_dir():
        pytest.skip("SOFTHULL_PAPER_DIR does not name the folder with the paper's networks")
    network = load_onnx(FOLDER / "models" / f"self-attention-mnist-pgd-{size}-sim.onnx")
    with np.load(FOLDER / "mnist_test_first500.npz", allow_pickle=False) as data:
        x, y = data["x"] / 255.0, data["y"].astype(int)
    result = verify_robustness(network, x, y, Perturbation((0.016, 0.02, 0.024)[place], clip=(0, 1)))
    assert sum(result.count(verdict) for verdict in Verdict) == 500
    assert not result.count(Verdict.ERROR)
    assert result.count(Verdict.CERTIFIED) >= LEAST[size][place]
