"""Branch and bound on the paper's networks: the curve bound against CPU time for scores, what is left for classes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from softhull.certificates.write import class_certificate
from softhull.checker.certificate import write_certificate
from softhull.checker.check import check_certificate
from softhull.data import bundled
from softhull.errors import SofthullError
from softhull.formats.datasets import load_dataset
from softhull.formats.network import Network
from softhull.formats.onnx import load_onnx
from softhull.paper.uncertainty import ensemble_files
from softhull.propagate.methods import Branch
from softhull.regions import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from softhull.verify.uncertainty import verify_uncertainty

SECONDS = (0.25, 1.0, 5.0)
SENTIMENT = "models/self-attention-sst-sim-post-embedding.onnx"


def run() -> None:
    """Print one table per question; one thread, attacks before the clock starts are not counted."""
    torch.set_num_threads(1)
    digits(0.07)
    digits(0.09)
    folder = os.environ.get("SOFTHULL_PAPER_DIR")
    if not folder:
        print("branching: set SOFTHULL_PAPER_DIR to the folder with the paper's networks")
        return
    sentiment(Path(folder))
    medium(Path(folder))
    scores(Path(folder))


def scores(folder: Path, instances: int = 100) -> None:
    """Mean certified score of the MNIST ensemble at eps 0.016."""
    networks = [load_onnx(path) for path in ensemble_files(folder, "mnist")]
    data = load_dataset(folder / "mnist_test_first500.npz")
    x, y = torch.from_numpy(data.take(range(instances))), torch.from_numpy(data.y[:instances])
    perturbation = Perturbation(0.016, clip=(0.0, 1.0))
    print(f"{'score':8}{'CPU s an image':>16}{'certified':>12}{'attack':>10}")
    for score in ("nll", "brier"):
        for seconds in (None, *SECONDS):
            method = "dual" if seconds is None else Branch(seconds=seconds)
            found = verify_uncertainty(networks, x, y, perturbation, score, method)
            name = "dual" if seconds is None else f"{seconds:g}"
            bound, attack = (found.column(column).mean() for column in ("bound", "attack"))
            print(f"{score:8}{name:>16}{bound:12.4f}{attack:10.4f}", flush=True)


def sentiment(folder: Path) -> None:
    """The 500 items of the sentiment network, 16 inputs, at every radius of the paper."""
    network, data = (
        load_onnx(folder / SENTIMENT),
        np.load(folder / "sst_first500.npz"),
    )
    print(f"{'eps':>6}{'certified':>11}{'falsified':>11}{'unknown':>9}{'before':>8}{'CPU s':>8}")
    for eps in np.arange(0.02, 0.161, 0.02).round(2):
        before = verify_robustness(network, data["x"], data["y"], Perturbation(float(eps)))
        _verdicts(
            network, data["x"], data["y"], Perturbation(float(eps)), 5.0, before.summary()["unknown"], f"{eps:.2f}"
        )
        certificates(folder / SENTIMENT, data["x"], data["y"], Perturbation(float(eps)), 5.0)


def certificates(model: Path, x: Any, y: Any, ball: Perturbation, seconds: float) -> None:
    """Write and check the certificates of all branched proofs of a network; one line each, and means."""
    network, found = load_onnx(model), []
    for record in verify_robustness(network, x, y, ball, method=Branch(seconds=seconds), proofs=True):
        how = set((record.proved_by or {}).values()) & {"cuts", "cuts of logits"}
        if record.verdict is not Verdict.CERTIFIED or not (record.cuts or how):
            continue
        began, i = time.process_time(), record.index
        with TemporaryDirectory() as folder:
            try:
                made = class_certificate(model, np.asarray(x[i], float), int(y[i]), ball, run=record, network=network)
            except SofthullError as problem:
                print(f"{i}: no certificate, {problem}", flush=True)
                continue
            written = time.process_time()
            path = Path(folder) / "c.npz"
            write_certificate(path, made)
            checked = check_certificate(path, [model])
            cells = sum(len(step["tree"]["cells"]) for step in made.header["steps"] if "tree" in step)
            spent = written - began, time.process_time() - written, path.stat().st_size / 1e3
        found.append(spent)
        write, check, size = spent
        print(f"{i}: {checked.accepted}, {cells} cells, {write:.1f} s, {check:.1f} s, {size:.0f} kB", flush=True)
    if found:
        print("mean", *np.mean(found, 0).round(1), "worst", *np.max(found, 0).round(1), flush=True)


def medium(folder: Path, eps: float = 0.024, seconds: float = 20.0) -> None:
    """The medium attention network on 500 images."""
    network = load_onnx(folder / "models/self-attention-mnist-pgd-medium-sim.onnx")
    data = load_dataset(folder / "mnist_test_first500.npz")
    x, y, ball = data.take(range(500)), data.y[:500], Perturbation(eps, clip=(0.0, 1.0))
    before = verify_robustness(network, x, y, ball)
    _verdicts(network, x, y, ball, seconds, before.summary()["unknown"], f"{eps:.3f}")


def digits(eps: float, seconds: float = 20.0) -> None:
    """The bundled attention network on 100 images."""
    network, data = load_onnx(bundled("digits-attention.onnx")), load_dataset(bundled("digits.npz"))
    x, y, ball = data.take(range(100)), data.y[:100], Perturbation(eps, clip=(0.0, 1.0))
    before = verify_robustness(network, x, y, ball)
    _verdicts(network, x, y, ball, seconds, before.summary()["unknown"], f"{eps:.2f}")
    certificates(bundled("digits-attention.onnx"), x, y, ball, seconds)


def _verdicts(network: Network, x: Any, y: Any, ball: Perturbation, seconds: float, before: float, name: str) -> None:
    began = time.process_time()
    found = verify_robustness(network, x, y, ball, method=Branch(seconds=seconds)).summary()
    spent = time.process_time() - began
    counts = f"{found['certified']:11.0f}{found['falsified']:11.0f}{found['unknown']:9.0f}{before:8.0f}"
    print(f"{name:>6}{counts}{spent:8.1f}", flush=True)
