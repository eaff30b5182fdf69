"""A vision transformer with three attention layers: margins by linear bounds, by second order and under attack."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from softhull import Perturbation, load_onnx
from softhull.attack.pgd import minimize_margin
from softhull.graph.graph import Graph
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.runs.memory import Meter

MODEL = Path("models") / "vit-ibp_3_3_8.onnx"
INPUTS = 10
EPS = 1 / 255


def run() -> None:
    """Print a line for every random input; its label is what the network itself says. One thread, clipped ball."""
    folder = os.environ.get("SOFTHULL_PAPER_DIR")
    if not folder or not (Path(folder) / MODEL).is_file():
        print(f"vision transformer: set SOFTHULL_PAPER_DIR to a folder with {MODEL}")
        return
    torch.set_num_threads(1)
    graph = load_onnx(Path(folder) / MODEL).logits.to(torch.float64)
    print(f"smallest margin to any other class at eps {EPS:.5f}, random inputs in [0, 1]")
    print(
        f"{'seed':>4}{'clean':>10}{'linear':>10}{'second':>10}{'attack':>10}{'CPU s':>8}{'+ s':>6}{'rows':>6}{'MB':>7}"
    )
    for seed in range(INPUTS):
        print(_line(graph, seed), flush=True)


def _line(graph: Graph, seed: int) -> str:
    x = torch.from_numpy(np.random.default_rng(seed).uniform(0, 1, size=(1, *graph.input_shape)))
    region = Perturbation(EPS, clip=(0.0, 1.0)).around(x)
    with torch.no_grad():
        clean = graph(x).flatten()
        label = int(clean.argmax())
        unit = torch.eye(len(clean), dtype=x.dtype)
        rows = torch.cat((unit[label] - unit[:label], unit[label] - unit[label + 1 :]))
        meter = Meter()
        meter.reset()
        began = time.process_time()
        bounds = LinearBounds(graph, region, SecondOrder().linear)
        last = len(graph.nodes) - 1
        bounds.prepare(last)
        linear = bounds.lower(last, rows.reshape(-1, 1, *graph.output_shape))[:, 0]
        walked = time.process_time()
        second, tried = _second_order(SecondOrderBounds.of(bounds), rows.reshape(-1, *graph.output_shape), linear)
        done = time.process_time()

    def margin(x: Tensor, which: Tensor) -> Tensor:
        return (rows @ graph(x).flatten(1).mT).amin(0)

    attack, _ = minimize_margin(margin, region, x, restarts=1, target=-math.inf)
    margins = "".join(f"{float(found.min()):>10.5f}" for found in (rows @ clean, linear, second, attack))
    spent = f"{walked - began:>8.0f}{done - walked:>6.0f}{tried:>6}{meter.peak() >> 20:>7}"
    return f"{seed:>4}{margins}{spent}"


def _second_order(second: SecondOrderBounds, rows: Tensor, linear: Tensor) -> tuple[Tensor, int]:
    """Bounds that are at least the linear ones, and how many rows took work: the hardest first, until the smallest
    bound cannot grow any more because a row of the others is decided by second order already."""
    best, tried = linear.clone(), 0
    never = linear.new_full((1,), math.inf)
    for row in linear.argsort().tolist():
        if linear[row] > best.min():
            break
        low = second.lower(rows[row : row + 1], torch.zeros(1, dtype=torch.long), SecondOrder.steps, never)
        best[row] = torch.maximum(best[row], low[0])
        tried += 1
    return best, tried
