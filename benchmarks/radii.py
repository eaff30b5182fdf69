"""Certified and attacked radii of a small vision transformer on digits, in three norms, and what a radius costs.

The network is that of ``examples/train_vision_transformer.py``: 8 x 8 pixels in 16 patches, a class token, one layer.
It is trained on the first run and kept in ``out/vit``.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from softhull import Perturbation, certified_radius, load_onnx

FOLDER = Path("out/vit")
IMAGES, HALVINGS = 3, 6
CAPS = {math.inf: 0.15, 2: 0.5, 1: 0.8}  # the largest radii tried


def run() -> None:
    """Print a line per norm and image, and the means; one thread, clipped balls, the default method."""
    torch.set_num_threads(1)
    if not (FOLDER / "digits-vit.onnx").is_file():
        subprocess.run([sys.executable, "-m", "examples.train_vision_transformer", "--out", FOLDER], check=True)
    network, data = load_onnx(FOLDER / "digits-vit.onnx"), np.load(FOLDER / "digits.npz")
    x, label = data["x"][:IMAGES].astype(np.float64) / 255, data["y"][:IMAGES]
    print(f"{'norm':>5}{'image':>6}{'certified':>11}{'attacked':>10}{'ratio':>7}{'CPU s':>7}")
    for norm, cap in CAPS.items():
        lines = []
        for i in range(IMAGES):
            began = time.process_time()
            ball = Perturbation(cap, norm, clip=(0.0, 1.0))
            found = certified_radius(network, x[i : i + 1], label[i : i + 1], ball, steps=HALVINGS)
            spent = time.process_time() - began
            attacked = float(found.attacked[0])
            lines.append((float(found[0]), attacked, float(found[0]) / attacked, spent))
            _print(norm, str(i), lines[-1])
        _print(norm, "mean", tuple(np.mean(lines, axis=0)))


def _print(norm: float, name: str, line: tuple[float, ...]) -> None:
    print(f"{norm:>5g}{name:>6}{line[0]:>11.4f}{line[1]:>10.4f}{line[2]:>7.2f}{line[3]:>7.1f}", flush=True)
