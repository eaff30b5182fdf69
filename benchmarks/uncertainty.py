"""Worst score of the paper's MNIST ensemble: CPU seconds an instance and distance to the optimum, method by method."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx
from softhull.paper.uncertainty import ensemble_files
from softhull.regions import Perturbation
from softhull.solve.conic import Conic
from softhull.solve.cutting import CuttingPlanes
from softhull.solve.dual import Dual
from softhull.solve.layers import Stack, stack_networks
from softhull.solve.relaxation import Relaxation, relax
from softhull.solve.softmax_boxes import parse_bounds
from softhull.verify.scores import find_score

EPS = 0.012
INSTANCES, BATCH = 20, 100


def run() -> None:
    """Print one table per score: the same 20 instances, one thread, the relaxation er/lse of the paper."""
    folder = os.environ.get("SOFTHULL_PAPER_DIR")
    if not folder:
        print("uncertainty: set SOFTHULL_PAPER_DIR to the folder with the paper's networks")
        return
    torch.set_num_threads(1)
    stacks = stack_networks([load_onnx(path).graph for path in ensemble_files(Path(folder), "mnist")])
    data = load_dataset(Path(folder) / "mnist_test_first500.npz")
    x, y = torch.from_numpy(data.take(range(BATCH))), torch.from_numpy(data.y[:BATCH])
    for score in ("nll", "brier"):
        _compare(score, stacks, x, y)


def _compare(score: str, stacks: list[Stack], x: Tensor, y: Tensor) -> None:
    rule = find_score(score)

    def prepared(count: int, outward: bool = True) -> tuple[Relaxation, Any]:
        region = Perturbation(EPS, clip=(0.0, 1.0)).around(x[:count])
        relaxation = relax(stacks, region, parse_bounds("er/lse"), outward)
        (piece,) = rule.pieces(y[:count], *relaxation.probabilities())
        return relaxation, piece

    def ours(method: Any, count: int, outward: bool = True) -> np.ndarray:
        relaxation, piece = prepared(count, outward)
        bound = method.solve(relaxation, piece.coefficients).bound + piece.offset
        return rule.from_badness(bound).numpy()

    def by_hand(solver: str) -> np.ndarray:
        relaxation, piece = prepared(INSTANCES)
        values = [
            _plain_cvxpy(relaxation.take(torch.tensor([i])), piece.coefficients[i].numpy(), int(y[i]), solver)
            for i in range(INSTANCES)
        ]
        return rule.from_badness(torch.tensor(values, dtype=torch.float64) + piece.offset).numpy()

    methods: dict[str, tuple[Callable[[], np.ndarray], int]] = {
        "CVXPY + SCS": (lambda: by_hand("SCS"), INSTANCES),
        "CVXPY + Clarabel": (lambda: by_hand("CLARABEL"), INSTANCES),
        "conic": (lambda: ours(Conic(), INSTANCES), INSTANCES),
        "lp": (lambda: ours(CuttingPlanes(), INSTANCES), INSTANCES),
        f"dual (batch of {BATCH})": (lambda: ours(Dual(), BATCH), BATCH),
        "dual, not outward": (lambda: ours(Dual(), BATCH, outward=False), BATCH),
    }
    optimum = ours(CuttingPlanes(tolerance=1e-8), INSTANCES)
    print(f"{score}, eps {EPS}, er/lse, {INSTANCES} instances")
    print(f"{'':24}{'CPU s':>9}{'ratio':>8}{'mean distance':>16}{'worst below':>14}{'failed':>8}")
    first = None
    for name, (method, count) in methods.items():
        began = time.process_time()
        values = method()
        seconds = (time.process_time() - began) / count
        first = first or seconds
        distance = values[:INSTANCES] - optimum
        mean, below = np.nanmean(np.abs(distance)), np.nanmin(distance)
        failed = int(np.isnan(distance).sum())
        print(f"{name:24}{seconds:9.4f}{first / seconds:8.1f}{mean:16.1e}{below:14.1e}{failed:8d}", flush=True)


def _plain_cvxpy(relaxation: Relaxation, coefficients: np.ndarray, label: int, solver: str) -> float:
    """The formulation of the paper's appendix written out in CVXPY, output by output; the solver's own value."""
    import cvxpy as cp

    region = relaxation.region
    x = cp.Variable(region.lower[0].numel())
    constraints = [x >= region.lower.flatten().numpy(), x <= region.upper.flatten().numpy()]
    (part,) = relaxation.stacks
    outputs = []
    for m in range(len(part.stack.members)):
        h = x
        for i, layer in enumerate(part.stack.layers[:-1]):
            lower, upper = (side[0, m].numpy() for side in part.bounds.intervals[i])
            z = cp.Variable(layer.size)
            constraints.append(z == layer.weights[i][m].numpy() @ h + layer.bias[m].numpy())
            after = cp.Variable(layer.size)
            on, off = lower >= 0, upper <= 0
            slope = np.where(on, 1.0, np.where(off, 0.0, upper / np.where(on | off, 1.0, upper - lower)))
            offset = np.where(on | off, 0.0, -slope * lower)
            constraints += [after >= 0, after >= z, after <= cp.multiply(slope, z) + offset]
            for j in np.flatnonzero(on):
                constraints.append(after[j] == z[j])
            h = after
        last = part.stack.layers[-1]
        logits, p = cp.Variable(last.size), cp.Variable(last.size)
        constraints.append(logits == last.weights[len(part.stack.layers) - 1][m].numpy() @ h + last.bias[m].numpy())
        constraints += [cp.sum(p) == 1, p >= 0]
        low, high = (side[0, m].numpy().T for side in part.bounds.differences)  # [k, j]: x_j - x_k
        for k in range(last.size):
            rest = [j for j in range(last.size) if j != k]
            least, most = np.exp(-logsumexp(high[k])), np.exp(-logsumexp(low[k]))
            if k == label:
                least_difference, most_difference = low[k, rest], high[k, rest]
                ends = np.exp(least_difference), np.exp(most_difference)
                slope = (ends[1] - ends[0]) / (most_difference - least_difference)
                rise = logits[rest] - logits[k] - least_difference
                chords = 1 + cp.sum(cp.multiply(slope, rise) + ends[0])
                constraints += [p[k] >= cp.inv_pos(chords), p[k] >= least]
            else:
                span = np.log(most) - np.log(least)
                top = least * np.log(most) - most * np.log(least)
                chord = (top - (most - least) * cp.log_sum_exp(logits - logits[k])) / span
                constraints += [p[k] <= chord, p[k] <= most]
        outputs.append(p)
    problem = cp.Problem(cp.Maximize(coefficients @ sum(outputs) / len(outputs)), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(problem.solve(solver=solver))
        except cp.error.SolverError:
            return np.nan


if __name__ == "__main__":
    run()
