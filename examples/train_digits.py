"""Train the networks that softhull ships: an attention classifier and an ensemble of five on scikit-learn's digits.

    python examples/train_digits.py --out src/softhull/data

Writes ``digits-attention.onnx``, ``digits-mlp-0.onnx`` to ``-4.onnx`` and ``digits.npz`` (100 test images). Seeded: the
same packages on the same machine write the same numbers. Takes under a minute on two cores.
Needs ``pip install 'softhull[examples]'``.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

SEED = 2023
TEST_IMAGES = 100
ENSEMBLE = 5


class PatchAttention(nn.Module):
    """Four patches of 4 x 4 pixels as tokens, one block of softmax attention, a linear classifier on all tokens."""

    def __init__(self, dim: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.embed = nn.Linear(16, dim)
        self.position = nn.Parameter(0.1 * torch.randn(4, dim))
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.mix = nn.Linear(dim, dim)
        self.classify = nn.Linear(4 * dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.reshape(-1, 2, 4, 2, 4).permute(0, 1, 3, 2, 4).reshape(-1, 4, 16)
        tokens = functional.relu(self.embed(patches) + self.position)
        query, key, value = (self._split(layer(tokens)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / (self.dim // self.heads) ** 0.5
        mixed = scores.softmax(-1) @ value
        tokens = tokens + self.mix(mixed.transpose(1, 2).reshape(-1, 4, self.dim))
        return self.classify(tokens.reshape(-1, 4 * self.dim))

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.reshape(-1, 4, self.heads, self.dim // self.heads).transpose(1, 2)


def relu_network() -> nn.Module:
    """A member of the ensemble: 64-24-24-10 with ReLU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 10))


def attacked(model: nn.Module, x: Tensor, y: Tensor, eps: float, steps: int = 5) -> Tensor:
    """Inputs within ``eps`` of ``x`` that raise the loss: projected gradient from a random start."""
    worst = (x + eps * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
    for _ in range(steps):
        worst.requires_grad_()
        (slope,) = torch.autograd.grad(functional.cross_entropy(model(worst), y), worst)
        moved = worst.detach() + 2.5 * eps / steps * slope.sign()
        worst = moved.clamp(x - eps, x + eps).clamp(0, 1)
    return worst


def train(make: Callable[[], nn.Module], x: Tensor, y: Tensor, eps: float, epochs: int, seed: int) -> nn.Module:
    """A network trained on attacked inputs, the attack growing to ``eps`` over the first half."""
    torch.manual_seed(seed)
    model = make()
    batches = epochs * (len(x) // 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, batches)
    for step in range(batches):
        chosen = torch.randint(len(x), (64,))
        inputs, labels = x[chosen], y[chosen]
        now = eps * min(1.0, 2 * step / batches)
        loss = functional.cross_entropy(model(attacked(model, inputs, labels, now)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def export(model: nn.Module, path: Path) -> None:
    """One ONNX file with the weights inside and nothing about the machine it was written on."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, (torch.zeros(1, 8, 8),), dynamo=True, verbose=False, input_names=["image"], output_names=["logits"]
        )
    assert program is not None
    proto = program.model_proto
    for part in (proto, proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for value in (*proto.graph.input, *proto.graph.output):
        value.ClearField("metadata_props")
    onnx.checker.check_model(proto)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def split(out: Path) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Images ``[N, 8, 8]`` in [0, 1], labels, which are held out and which kept; a folder gets those held out."""
    out.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(SEED).permutation(len(pixels))
    held_out, kept = order[:TEST_IMAGES], order[TEST_IMAGES:]
    np.savez_compressed(out / "digits.npz", x=pixels[held_out], y=labels[held_out].astype(np.uint8))
    return torch.from_numpy(pixels).float() / 255, torch.from_numpy(labels), held_out, kept


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("digits"), help="Folder for the files.")
    out = options.parse_args().out
    x, y, held_out, kept = split(out)
    models = {"digits-attention": train(PatchAttention, x[kept], y[kept], eps=0.12, epochs=60, seed=SEED)}
    for member in range(ENSEMBLE):
        name = f"digits-mlp-{member}"
        models[name] = train(relu_network, x[kept], y[kept], eps=0.08, epochs=30, seed=SEED + 1 + member)
    for name, model in models.items():
        export(model, out / f"{name}.onnx")
        with torch.no_grad():
            right = (model(x[held_out]).argmax(1) == y[held_out]).float().mean()
        size = (out / f"{name}.onnx").stat().st_size
        print(f"{name}: {100 * right:.0f} % of the test images right, {size / 1000:.1f} kB")


if __name__ == "__main__":
    main()
