"""The script that made the bundled networks still makes networks like them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

import softhull

train_digits = pytest.importorskip("examples.train_digits", reason="pip install 'softhull[examples]'")


def operators(path: Path) -> list[tuple[str, list[list[int]]]]:
    graph = onnx.load(path).graph
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    return [(node.op_type, [shapes[name] for name in node.input if name in shapes]) for node in graph.node]


@pytest.mark.parametrize(
    ("make", "name"),
    [(train_digits.PatchAttention, "digits-attention.onnx"), (train_digits.relu_network, "digits-mlp-0.onnx")],
)
def test_a_short_training_gives_the_bundled_architecture(make: type, name: str, tmp_path: Path) -> None:
    data = softhull.load_dataset(softhull.bundled("digits.npz"))
    x, y = torch.from_numpy(data.x).float(), torch.from_numpy(data.y)
    model = train_digits.train(make, x, y, eps=0.05, epochs=12, seed=0)
    train_digits.export(model, tmp_path / name)
    assert operators(tmp_path / name) == operators(softhull.bundled(name))
    outputs = torch.from_numpy(softhull.load_onnx(tmp_path / name).replay(data.x).reshape(100, 10))
    torch.testing.assert_close(outputs, model(x).detach(), rtol=1e-4, atol=1e-4)
    assert (outputs.argmax(1) == y).float().mean() > 0.2


def test_attacked_inputs_stay_in_the_ball_and_the_range() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(20, 8, 8), torch.randint(10, (20,))
    worst = train_digits.attacked(train_digits.relu_network(), x, y, eps=0.1)
    assert (worst - x).abs().max() <= 0.1 + 1e-6
    assert 0 <= worst.min() <= worst.max() <= 1
