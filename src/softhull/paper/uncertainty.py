"""The uncertainty tables of Wei et al. 2023: printed cells beside ours.

The printed numbers are primal values of a first-order solver, ours are certified; where they differ by more than the
last digit, the notes of the documentation say why.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..attack.score import ScoreAttack
from ..errors import InvalidInput
from ..formats.datasets import Dataset
from ..formats.network import Network
from ..regions import Perturbation
from ..solve.dual import Dual
from ..verify.uncertainty import UncertaintyResult, verify_uncertainty

FILES = {"mnist": "mnist", "mnist-large": "robust_mnist-large", "cifar10": "robust_cifar10"}
FOLDERS = ("models", "uncertainty_estimation_experiment/networks", ".")
MNIST_DATA = ("mnist_test_first500.npz", "t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz")
CIFAR_DATA = ("test_batch.bin", "cifar-10-batches-bin/test_batch.bin")
TABLE_NAMES = {"mnist": "tab:UQ", "mnist-large": "tab:UQ_large", "cifar10": "tab:UQ_cifar"}
PAPER_COLUMNS = ("lin/lin", "er/lse", "lse*/lse")
COLUMNS = (*PAPER_COLUMNS, "all")

# Per score and eps the three columns in the order of PAPER_COLUMNS.
_Cells = dict[str, dict[float, tuple[float, float, float]]]

PRINTED: dict[str, _Cells] = {
    "mnist": {
        "nll": {0.008: (0.265, 0.261, 0.251), 0.012: (0.442, 0.433, 0.420), 0.016: (0.726, 0.697, 0.690)},
        "brier": {0.008: (0.138, 0.134, 0.131), 0.012: (0.244, 0.235, 0.234), 0.016: (0.417, 0.403, 0.403)},
    },
    "cifar10": {
        "nll": {0.008: (2.118, 2.014, 2.028), 0.012: (2.569, 2.433, 2.474), 0.016: (3.087, 2.940, 3.013)},
        "brier": {0.008: (0.971, 0.917, 0.920), 0.012: (1.170, 1.114, 1.120), 0.016: (1.367, 1.324, 1.329)},
    },
    "mnist-large": {
        "nll": {
            0.008: (0.0212, 0.0210, 0.0210),
            0.012: (0.0263, 0.0257, 0.0257),
            0.016: (0.0339, 0.0326, 0.0326),
            0.020: (0.0449, 0.0430, 0.0430),
            0.024: (0.0611, 0.0585, 0.0585),
        },
        "brier": {
            0.008: (0.00677, 0.00659, 0.00659),
            0.012: (0.00961, 0.00921, 0.00921),
            0.016: (0.01418, 0.01350, 0.01350),
            0.020: (0.02161, 0.02065, 0.02065),
            0.024: (0.03336, 0.03206, 0.03206),
        },
    },
}
PRINTED_SEPARATE: dict[str, _Cells] = {
    "mnist": {
        "nll": {0.008: (0.270, 0.263, 0.263), 0.012: (0.448, 0.435, 0.436), 0.016: (0.732, 0.712, 0.712)},
        "brier": {0.008: (0.139, 0.136, 0.136), 0.012: (0.245, 0.240, 0.240), 0.016: (0.418, 0.412, 0.412)},
    }
}
PRINTED_CLEAN = {
    "mnist": {"nll": 0.105, "brier": 0.048},
    "cifar10": {"nll": 1.538, "brier": 0.690},
    "mnist-large": {"nll": 0.0150, "brier": 0.00373},
}
# The Brier column of the printed attack has its sign flipped: it lowers the score.
PRINTED_ATTACK: dict[str, dict[str, dict[float, float]]] = {
    "mnist": {
        "nll": {0.008: 0.202, 0.012: 0.285, 0.016: 0.407},
        "brier": {0.008: 0.061, 0.012: 0.073, 0.016: 0.104},
    },
    "mnist-large": {
        "nll": {0.008: 0.0196, 0.012: 0.0222, 0.016: 0.0252, 0.020: 0.0286, 0.024: 0.0325},
        "brier": {0.008: 0.00584, 0.012: 0.00707, 0.016: 0.00847, 0.020: 0.00976, 0.024: 0.01125},
    },
}
# Seconds an instance, as printed; older hardware and software, not a baseline for ratios.
PRINTED_SECONDS: dict[tuple[str, bool], tuple[float, float, float]] = {
    ("mnist", False): (10.9, 91.6, 92.4),
    ("cifar10", False): (19.5, 95.3, 95.5),
    ("mnist", True): (3.36, 43.22, 42.49),
}


@dataclass(frozen=True)
class Cell:
    """One number of a table: what the paper prints (None where it prints nothing) and what is computed here."""

    printed: float | None
    ours: float
    cpu_seconds: float = 0.0  # per instance


@dataclass(frozen=True)
class UncertaintyRow:
    """One score at one radius: clean score, attack, and the certified bounds of the columns done so far."""

    score: str
    eps: float
    clean: Cell
    attack: Cell
    bounds: dict[str, Cell]

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values, published cells beside ours."""
        flat: dict[str, Any] = {"score": self.score, "eps": self.eps}
        for name, cell in {"clean": self.clean, "attack": self.attack, **self.bounds}.items():
            flat |= {f"{name} printed": cell.printed, name: cell.ours}
        return flat


@dataclass(frozen=True)
class UncertaintyTable:
    """tab:UQ, tab:UQ_large or tab:UQ_cifar, or with ``separate`` tab:UQ_separate; ``rows`` fill up while it is run.

    The attacks are those of tab:UQ_with_attack. ``radii`` and ``scores`` default to the printed ones.
    """

    dataset: str
    separate: bool = False
    images: int = 100
    columns: Sequence[str] = COLUMNS
    scores: Sequence[str] = ("nll", "brier")
    radii: Sequence[float] | None = None
    rows: list[UncertaintyRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.dataset not in FILES:
            raise InvalidInput(f"unknown dataset {self.dataset!r}; known: {', '.join(FILES)}")
        if self.images < 1:
            raise InvalidInput(f"images must be at least 1, got {self.images}")

    @property
    def names(self) -> str:
        """What the paper calls it."""
        main = "tab:UQ_separate" if self.separate else TABLE_NAMES[self.dataset]
        return f"{main}, tab:UQ_with_attack" if self.dataset in PRINTED_ATTACK else main

    def settings(self) -> list[tuple[str, float]]:
        """Score and radius of every row."""
        return [(score, eps) for score in self.scores for eps in self.radii or PRINTED[self.dataset][score]]

    def run(
        self, networks: Sequence[Network], data: Dataset, method: Any = "dual", attack: ScoreAttack | None = None
    ) -> Iterator[Cell]:
        """Compute the first ``images`` inputs in clipped balls, cell by cell."""
        images = min(self.images, len(data))
        x, y = torch.from_numpy(data.take(range(images))), torch.from_numpy(data.y[:images])
        for score, eps in self.settings():
            asked = (networks, x, y, Perturbation(eps, clip=(0.0, 1.0)), score)
            # The attack is the same in every column: it runs once, with the cheapest of bounds.
            attacked = verify_uncertainty(*asked, Dual(steps=1), "const", attack=attack or ScoreAttack(restarts=10))
            bounds: dict[str, Cell] = {}
            self.rows.append(self._row(score, eps, attacked, bounds))
            for column in self.columns:
                began = time.process_time()
                found = verify_uncertainty(*asked, method, column, self.separate, ScoreAttack(steps=0, restarts=1))
                spent = (time.process_time() - began) / images
                mean = float(found.column("bound").mean())
                bounds[column] = Cell(self._printed(score, eps).get(column), mean, spent)
                yield bounds[column]

    def _row(self, score: str, eps: float, result: UncertaintyResult, bounds: dict[str, Cell]) -> UncertaintyRow:
        attacked = PRINTED_ATTACK.get(self.dataset, {}).get(score, {}).get(eps)
        return UncertaintyRow(
            score,
            eps,
            Cell(PRINTED_CLEAN[self.dataset].get(score), float(result.column("clean").mean())),
            Cell(attacked, float(result.column("attack").mean())),
            bounds,
        )

    def _printed(self, score: str, eps: float) -> dict[str, float]:
        cells = (PRINTED_SEPARATE if self.separate else PRINTED).get(self.dataset, {})
        return dict(zip(PAPER_COLUMNS, cells.get(score, {}).get(eps, ())))

    def seconds(self) -> dict[str, Cell]:
        """The runtime table: CPU seconds an instance per column, over the rows done."""
        printed = dict(zip(PAPER_COLUMNS, PRINTED_SECONDS.get((self.dataset, self.separate), ())))
        spent = {
            name: [row.bounds[name].cpu_seconds for row in self.rows if name in row.bounds] for name in self.columns
        }
        return {name: Cell(printed.get(name), float(np.mean(times))) for name, times in spent.items() if times}

    def to_dict(self) -> dict[str, Any]:
        """The whole table and its cost, as plain values."""
        seconds = {name: {"printed": cell.printed, "ours": cell.ours} for name, cell in self.seconds().items()}
        return {
            "dataset": self.dataset,
            "separate": self.separate,
            "images": self.images,
            "rows": [row.to_dict() for row in self.rows],
            "cpu_seconds_per_instance": seconds,
        }

    def write_csv(self, out: Path) -> list[Path]:
        """One file with the scores and one with the running times; returns their paths."""
        stem = f"uncertainty-{self.dataset}" + ("-separate" if self.separate else "")
        scores, times = out / f"{stem}.csv", out / f"{stem}-seconds.csv"
        headings = ["score", "eps", *(f"{name}{side}" for name in _VALUES + tuple(self.columns) for side in _SIDES)]
        with scores.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, headings)
            writer.writeheader()
            writer.writerows(row.to_dict() for row in self.rows)
        with times.open("w", newline="") as stream:
            plain = csv.writer(stream)
            plain.writerow(["column", "printed", "cpu_seconds_per_instance"])
            plain.writerows([name, cell.printed, cell.ours] for name, cell in self.seconds().items())
        return [scores, times]


_VALUES = ("clean", "attack")
_SIDES = (" printed", "")


def ensemble_files(artifact: Path, dataset: str) -> list[Path]:
    """The network files of a dataset in a folder laid out like the paper's artifact, or with ``models/`` inside."""
    if dataset not in FILES:
        raise InvalidInput(f"unknown dataset {dataset!r}; known: {', '.join(FILES)}")
    for folder in FOLDERS:
        found = sorted((artifact / folder).glob(f"{FILES[dataset]}-[0-9].onnx"))
        if found:
            return found
    places = ", ".join(str(artifact / folder) for folder in FOLDERS)
    raise InvalidInput(f"no {FILES[dataset]}-0.onnx, -1, ... in {places}")


def data_file(artifact: Path, dataset: str) -> Path:
    """The test inputs beside the networks, under one of their usual names."""
    usual = CIFAR_DATA if dataset == "cifar10" else MNIST_DATA
    for name in usual:
        if (artifact / name).is_file():
            return artifact / name
    raise InvalidInput(f"no {', '.join(usual)} in {artifact}; name the test inputs with --data")
