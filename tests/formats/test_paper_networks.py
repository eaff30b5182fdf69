"""The networks of the paper load and agree with onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx

from ..graph.checks import assert_sound

pytestmark = pytest.mark.paper
FOLDER = Path(os.environ.get("SOFTHULL_PAPER_DIR", "no-such-folder"))
MODELS = sorted((FOLDER / "models").glob("*.onnx"))


@pytest.fixture(autouse=True)
def _folder():
    if not MODELS:
        pytest.skip("SOFTHULL_PAPER_DIR does not name the folder with the paper's networks")


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_agrees_with_onnxruntime_within_1e_5(path):
    network = load_onnx(path)
    rng = np.random.default_rng(0)
    x = rng.random((20, *network.input_shape)).astype(np.float32)
    ours = network.graph(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(ours, network.replay(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_operators_are_sound(path):
    assert_sound(load_onnx(path).graph, seed=0, radius=1e-3)


def test_there_are_fifteen_networks_and_the_images_are_classified():
    assert len(MODELS) == 15
    network = load_onnx(FOLDER / "models" / "self-attention-mnist-pgd-medium-sim.onnx")
    data = load_dataset(FOLDER / "mnist_test_first500.npz")
    x = torch.from_numpy(data.x).reshape(-1, *network.input_shape)
    right = network.logits(x).reshape(500, 10).argmax(1).numpy() == data.y
    assert right.mean() > 0.95
