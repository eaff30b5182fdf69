"""Pre-norm encoders with layer normalisation, deeper and deeper, one token perturbed: how far bounds reach.

The task is made up: every word has a hidden value, and a sentence of ten words is positive when their sum is. Networks
are trained in a minute or two, seeded, and kept in ``out/depth`` as ONNX files, as torch exports them.
"""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from softhull import Linear, Perturbation, certified_radius, load_onnx, verify_robustness
from softhull.formats.network import Network
from softhull.runs.memory import Meter

matplotlib.use("Agg")
DEPTHS = (1, 2, 3, 6, 12)
WIDTH, TOKENS, WORDS, HEADS, HIDDEN = 32, 10, 40, 4, 64
STEPS, BATCH = 400, 128
SENTENCES = 2
LARGEST, HALVINGS = 1.0, 8
CURVE = (0.5, 1.0, 2.0, 4.0)  # radii, as shares of the certified one
SEED = 16
FOLDER = Path("out/depth")


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


def sentences(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Embedded sentences ``[count, TOKENS, WIDTH]`` and their labels."""
    words = torch.Generator().manual_seed(SEED)
    embedding, value = torch.randn(WORDS, WIDTH, generator=words), torch.randn(WORDS, generator=words)
    chosen = torch.randint(WORDS, (count, TOKENS), generator=draw)
    return embedding[chosen], (value[chosen].sum(1) > 0).long()


def trained(depth: int) -> Network:
    """An encoder that has seen sentences with a little noise; from its file, where there is one."""
    path = FOLDER / f"encoder-{depth}.onnx"
    if not path.is_file():
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
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            example = (torch.zeros(1, TOKENS, WIDTH),)
            program = torch.onnx.export(model.eval(), example, dynamo=True, verbose=False)
        assert program is not None
        FOLDER.mkdir(parents=True, exist_ok=True)
        path.write_bytes(program.model_proto.SerializeToString())
    return load_onnx(path)


def run(depths: tuple[int, ...] = DEPTHS) -> None:
    """Print a line per depth and draw the curves of margins; one thread."""
    torch.set_num_threads(1)
    print(f"{SENTENCES} sentences a depth, the first token perturbed in l_inf up to {LARGEST:g}; means")
    print(f"{'depth':>5}{'certified':>11}{'attacked':>10}{'ratio':>7}{'CPU s':>8}{'MB':>7}  margins at {CURVE} of it")
    curves = {}
    for depth in depths:
        network, meter = trained(depth), Meter()
        x, label = sentences(SENTENCES, torch.Generator().manual_seed(99))
        first = torch.zeros(TOKENS, WIDTH, dtype=torch.bool)
        first[0] = True
        meter.reset()
        began = time.process_time()
        ball = Perturbation(LARGEST, only=first.numpy())
        found = certified_radius(network, x.numpy(), label.numpy(), ball, steps=HALVINGS)
        spent = (time.process_time() - began) / SENTENCES
        radius, broken = float(np.nanmean(np.asarray(found))), float(np.nanmean(found.attacked))
        curves[depth] = [_margin(network, x, label, replace(ball, eps=share * radius)) for share in CURVE]
        line = f"{depth:>5}{radius:>11.4f}{broken:>10.4f}{radius / broken:>7.2f}{spent:>8.0f}{meter.peak() >> 20:>7}  "
        print(line + " ".join(f"{margin:.3g}" for margin in curves[depth]), flush=True)
    _draw(curves)


def _margin(network: Network, x: Tensor, label: Tensor, ball: Perturbation) -> float:
    """The mean of the margins that linear walks prove."""
    found = verify_robustness(network, x.numpy(), label.numpy(), ball, method=Linear(optimize=0), attack=False)
    return float(np.mean([record.bound for record in found.records if record.bound is not None]))


def _draw(curves: dict[int, list[float]]) -> None:
    """The margins against the radius, to ``out/depth/margins.png``."""
    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for depth, margins in curves.items():
        axes.plot(CURVE, margins, marker="o", label=f"{depth} layers")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="radius / certified radius", ylabel="linear bound on the margin")
    axes.legend()
    figure.savefig(FOLDER / "margins.png", dpi=120)
