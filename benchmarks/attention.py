"""Attention networks: what every part of the method adds, and softhull beside Marabou on the paper's medium one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from softhull import Auto, Linear, Perturbation, Verdict, load_dataset, load_onnx, verify_robustness
from softhull.formats.datasets import Dataset
from softhull.formats.network import Network
from softhull.paper.attention import MNIST

RADII = (0.016, 0.024)
IMAGES = 100
# Each line adds one part to the line above it.
PARTS: dict[str, dict[str, Any]] = {
    "box form": {"differences": False, "simplex": False, "contract": False, "optimize": 0},
    "difference form": {"differences": True},
    "+ simplex multiplier": {"simplex": True},
    "+ contracted products": {"contract": True},
    "+ optimisation, 20 steps": {"optimize": 20},
}
MARABOU_IMAGES = 3
MARABOU_EPS = 0.016
MARABOU_SECONDS = 30  # per image


def run() -> None:
    """Print the ablation and the comparison; one thread, full robustness, clipped ball."""
    folder = os.environ.get("SOFTHULL_PAPER_DIR")
    if not folder:
        print("attention: set SOFTHULL_PAPER_DIR to the folder with the paper's networks")
        return
    torch.set_num_threads(1)
    path = MNIST.find("medium", Path(folder))
    network, data = load_onnx(path), load_dataset(Path(folder) / MNIST.data)
    _ablation(network, data)
    _second_order(network, data)
    _marabou(path, network, data)


def _certified(network: Network, data: Dataset, images: int, eps: float, method: Linear | Auto) -> tuple[int, float]:
    """How many of the first images are certified, and CPU seconds an image."""
    region = Perturbation(eps, clip=(0.0, 1.0))
    began = time.process_time()
    result = verify_robustness(network, data.take(range(images)), data.y[:images], region, method=method, attack=False)
    return result.count(Verdict.CERTIFIED), (time.process_time() - began) / images


def _ablation(network: Network, data: Dataset) -> None:
    print(f"certified of the first {IMAGES} images, and CPU ms an image (one thread)")
    columns = [(bound, eps) for bound in ("lse*", "hull") for eps in RADII]
    print(f"{'':26}" + "".join(f"{f'{bound} at {eps}':>20}" for bound, eps in columns))
    settings: dict[str, Any] = {}
    for name, change in PARTS.items():
        settings |= change
        found = [_certified(network, data, IMAGES, eps, Linear(bound, **settings)) for bound, eps in columns]
        print(f"{name:26}" + "".join(f"{count:>9} {1e3 * spent:>7.0f} ms" for count, spent in found), flush=True)


def _second_order(network: Network, data: Dataset) -> None:
    """The default method beside gradient steps on linear bounds; without attack both work on every image."""
    print(f"{'':26}" + "".join(f"{f'at {eps}':>20}" for eps in RADII))
    for name, method in (("linear, 20 steps", Linear()), ("auto (second order)", Auto(optimize=0))):
        found = [_certified(network, data, IMAGES, eps, method) for eps in RADII]
        print(f"{name:26}" + "".join(f"{count:>9} {1e3 * spent:>7.0f} ms" for count, spent in found), flush=True)


def _marabou(path: Path, network: Network, data: Dataset) -> None:
    try:
        from maraboupy import Marabou
    except ImportError:
        print("maraboupy is not installed (pip install 'softhull[bench]'): no comparison with Marabou")
        return
    print(f"first {MARABOU_IMAGES} images at eps {MARABOU_EPS}, Marabou with at most {MARABOU_SECONDS} s an image")
    print(f"{'':12}{'certified':>10}{'CPU s an image':>16}{'ratio':>8}")
    ours, seconds = _certified(network, data, MARABOU_IMAGES, MARABOU_EPS, Auto())
    print(f"{'softhull':12}{ours:>10}{seconds:>16.3f}{1:>8}", flush=True)
    began = time.process_time()
    theirs = sum(
        _marabou_certifies(Marabou, path, data.take([i]).reshape(-1), int(data.y[i])) for i in range(MARABOU_IMAGES)
    )
    spent = (time.process_time() - began) / MARABOU_IMAGES
    print(f"{'Marabou 2.0':12}{theirs:>10}{spent:>16.3f}{spent / seconds:>8.0f}", flush=True)


def _marabou_certifies(marabou: Any, path: Path, x: Any, label: int) -> bool:
    """Whether Marabou excludes every other class within the time limit of one image."""
    deadline = time.monotonic() + MARABOU_SECONDS
    options = {"verbosity": 0, "numWorkers": 1}
    classes = marabou.read_onnx(str(path)).outputVars[0].size
    for rival in (k for k in range(classes) if k != label):
        left = int(deadline - time.monotonic())
        if left < 1:
            return False
        query = marabou.read_onnx(str(path))
        for variable, value in zip(query.inputVars[0].reshape(-1), x):
            query.setLowerBound(variable, max(0.0, value - MARABOU_EPS))
            query.setUpperBound(variable, min(1.0, value + MARABOU_EPS))
        outputs = query.outputVars[0].reshape(-1)
        query.addInequality([outputs[label], outputs[rival]], [1.0, -1.0], 0.0)
        verdict, _, _ = query.solve(verbose=False, options=marabou.createOptions(timeoutInSeconds=left, **options))
        if verdict != "unsat":
            return False
    return True


if __name__ == "__main__":
    run()
