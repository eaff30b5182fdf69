"""Pre-norm encoders with layer normalisation, deeper and deeper, one token perturbed: how far bounds reach.

The task is made up: every word has a hidden value, a sentence of ten words is positive when their sum is. Networks are
trained in seconds, seeded, and written as ONNX files by the default settings of torch.
"""

from __future__ import annotations

import logging
import warnings

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

DEPTHS = (1, 2, 3, 6)
WIDTH, TOKENS, WORDS, HEADS, HIDDEN = 32, 10, 40, 4, 64
STEPS, BATCH = 400, 128
SENTENCES = 4
HALVINGS = 7
SEED = 16


class Encoder(nn.Module):
    """``depth`` pre-norm layers, a last normalisation, and a linear classifier on the mean of all tokens."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        layers = [
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, HIDDEN, dropout=0.0, activation="relu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        ]
        self.layers, self.norm, self.classify = nn.ModuleList(layers), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        found: Tensor = self.classify(self.norm(x).mean(1))
        return found


def words() -> tuple[Tensor, Tensor]:
    """The embedding and the hidden value of every word."""
    draw = torch.Generator().manual_seed(SEED)
    return torch.randn(WORDS, WIDTH, generator=draw), torch.randn(WORDS, generator=draw)


def sentences(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Embedded sentences ``[count, TOKENS, WIDTH]`` and their labels."""
    embedding, value = words()
    chosen = torch.randint(WORDS, (count, TOKENS), generator=draw)
    return embedding[chosen], (value[chosen].sum(1) > 0).long()


def train(depth: int) -> nn.Module:
    """An encoder that has seen sentences with a little noise."""
    torch.manual_seed(SEED + depth)
    draw = torch.Generator().manual_seed(SEED)
    model = Encoder(depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for _ in range(STEPS):
        x, y = sentences(BATCH, draw)
        loss = cross_entropy(model(x + 0.1 * torch.randn(x.shape, generator=draw)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def export(model: nn.Module) -> bytes:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model, (torch.zeros(1, TOKENS, WIDTH),), dynamo=True, verbose=False)
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content
