"""Train a small vision transformer on scikit-learn's digits: sixteen patches and a class token, one layer, four heads.

    python examples/train_vision_transformer.py --out vit

Writes ``digits-vit.onnx`` and ``digits.npz`` (100 test images). Seeded, under two minutes on two cores.
Needs ``pip install 'softhull[examples]'``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.train_digits import SEED, export, split, train

PATCH, TOKENS = 2, 17  # pixels along one side of a patch; 4 x 4 patches and the class token


class CentreNorm(nn.Module):
    """Layer normalisation without the division: deviations from the mean, scaled and shifted."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) * self.weight + self.bias


class VisionTransformer(nn.Module):
    """Pre-norm attention and an MLP with ReLU on 17 tokens; the class token alone is classified."""

    def __init__(self, dim: int = 32, heads: int = 4, hidden: int = 64) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.embed = nn.Linear(PATCH * PATCH, dim)
        self.class_token = nn.Parameter(0.1 * torch.randn(1, 1, dim))
        self.position = nn.Parameter(0.1 * torch.randn(TOKENS, dim))
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.mix = nn.Linear(dim, dim)
        self.first, self.second = CentreNorm(dim), CentreNorm(dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.classify = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        side = 8 // PATCH
        patches = x.reshape(-1, side, PATCH, side, PATCH).permute(0, 1, 3, 2, 4).reshape(-1, side * side, PATCH * PATCH)
        tokens = torch.cat((self.class_token.expand(x.shape[0], 1, self.dim), self.embed(patches)), 1) + self.position
        normed = self.first(tokens)
        query, key, value = (self._split(layer(normed)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / (self.dim // self.heads) ** 0.5
        mixed = scores.softmax(-1) @ value
        tokens = tokens + self.mix(mixed.transpose(1, 2).reshape(-1, TOKENS, self.dim))
        tokens = tokens + self.down(functional.relu(self.up(self.second(tokens))))
        return self.classify(tokens[:, 0])

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.reshape(-1, TOKENS, self.heads, self.dim // self.heads).transpose(1, 2)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("vit"), help="Folder for the files.")
    options.add_argument("--epochs", type=int, default=60)
    given = options.parse_args()
    x, y, held_out, kept = split(given.out)
    model = train(VisionTransformer, x[kept], y[kept], eps=0.08, epochs=given.epochs, seed=SEED)
    export(model, given.out / "digits-vit.onnx")
    with torch.no_grad():
        right = (model(x[held_out]).argmax(1) == y[held_out]).float().mean()
    print(f"digits-vit: {100 * right:.0f} % of the test images right")


if __name__ == "__main__":
    main()
