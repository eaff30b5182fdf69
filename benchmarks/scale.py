"""Vision transformers of growing depth and length, random weights: CPU time and memory of the default method.

Width 192, three heads, GELU, layer normalisation, patches of 48 numbers and a class token, as in the smallest published
ones. The last network has twelve layers and 64 tokens, which takes some minutes: name sizes to run fewer of them,
``python -m benchmarks.scale 1e-4 2x16``. One random input each, and a small l_inf ball around it.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor, nn

from softhull import Perturbation, from_torch, verify_robustness
from softhull.runs.memory import Meter

WIDTH, HEADS, HIDDEN, PATCH, CLASSES = 192, 3, 768, 48, 10
SIZES = ((2, 16), (4, 16), (8, 16), (12, 16), (2, 32), (2, 64), (12, 64))  # layers, tokens
EPS = 1e-4
SEED = 7


class VisionTransformer(nn.Module):
    """Pre-norm layers on embedded patches and a class token, which alone is classified."""

    def __init__(self, layers: int, tokens: int) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH, WIDTH)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.position = nn.Parameter(torch.randn(tokens, WIDTH))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **options)  # type: ignore[arg-type]
            for _ in range(layers)
        )
        self.norm, self.classify = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat((self.class_token.expand(x.shape[0], 1, WIDTH), self.embed(x)), 1) + self.position
        for layer in self.layers:
            tokens = layer(tokens)
        found: Tensor = self.classify(self.norm(tokens[:, 0]))
        return found


def run(sizes: tuple[tuple[int, int], ...] = SIZES, eps: float = EPS) -> None:
    """Print a line per network; one thread."""
    torch.set_num_threads(1)
    print(f"random vision transformers, width {WIDTH}, l_inf {eps:g}, default method, one input")
    print(f"{'layers':>6}{'tokens':>8}{'inputs':>8}{'verdict':>11}{'bound':>10}{'CPU s':>8}{'MB':>7}")
    for layers, tokens in sizes:
        torch.manual_seed(SEED)
        x = torch.rand(1, tokens - 1, PATCH)
        model = VisionTransformer(layers, tokens).eval()
        with torch.no_grad():
            label = model(x).argmax(1)
        network, meter = from_torch(model, x), Meter()
        meter.reset()
        began = time.process_time()
        (record,) = verify_robustness(network, x.numpy(), label.numpy(), Perturbation(eps)).records
        spent = time.process_time() - began
        bound = "" if record.bound is None else f"{record.bound:.3g}"
        line = f"{layers:>6}{tokens:>8}{x.numel():>8}{record.verdict.value:>11}{bound:>10}{spent:>8.0f}"
        print(f"{line}{meter.peak() >> 20:>7}", flush=True)


if __name__ == "__main__":
    given = tuple(tuple(map(int, size.split("x"))) for size in sys.argv[2:])
    run(given or SIZES, float(sys.argv[1]) if len(sys.argv) > 1 else EPS)  # type: ignore[arg-type]
