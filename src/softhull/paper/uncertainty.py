"""The uncertainty tables of Wei et al. 2023: printed cells beside ours.

The printed numbers are primal values of a first-order solver, ours are certified; where they differ by more than the
last digit, the notes of the documentation say why.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..attack.score import ScoreAttack
from ..errors import InvalidInput
from ..formats.datasets import Dataset
from ..formats.network import Network
from ..formats.onnx import load_onnx
from ..propagate.perturbation import Perturbation
from ..verify.uncertainty import verify_uncertainty

FILES = {"mnist": "mnist", "mnist-large": "robust_mnist-large", "cifar10": "robust_cifar10"}
FOLDERS = ("models", "uncertainty_estimation_experiment/networks", ".")
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
class Row:
    """One score at one radius: clean score, attack, and a certified bound per column."""

    score: str
    eps: float
    clean: Cell
    attack: Cell
    bounds: dict[str, Cell]

    def to_dict(self) -> dict[str, Any]:
        flat: dict[str, Any] = {"score": self.score, "eps": self.eps}
        for name, cell in {"clean": self.clean, "attack": self.attack, **self.bounds}.items():
            flat |= {f"{name} printed": cell.printed, name: cell.ours}
        return flat


@dataclass(frozen=True)
class UncertaintyTable:
    """The rows of tab:UQ, tab:UQ_large or tab:UQ_cifar, or with ``separate`` of tab:UQ_separate."""

    dataset: str
    separate: bool
    images: int
    rows: tuple[Row, ...]

    def seconds(self) -> dict[str, Cell]:
        """The runtime table: CPU seconds an instance per column, over all rows."""
        printed = dict(zip(PAPER_COLUMNS, PRINTED_SECONDS.get((self.dataset, self.separate), ())))
        names = list(self.rows[0].bounds) if self.rows else []
        return {
            name: Cell(printed.get(name), float(np.mean([row.bounds[name].cpu_seconds for row in self.rows])))
            for name in names
        }

    def to_dict(self) -> dict[str, Any]:
        seconds = {name: {"printed": cell.printed, "ours": cell.ours} for name, cell in self.seconds().items()}
        return {
            "dataset": self.dataset,
            "separate": self.separate,
            "images": self.images,
            "rows": [row.to_dict() for row in self.rows],
            "cpu_seconds_per_instance": seconds,
        }


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


def uncertainty_rows(
    networks: Sequence[Network],
    data: Dataset,
    dataset: str,
    images: int = 100,
    separate: bool = False,
    columns: Sequence[str] = COLUMNS,
    method: Any = "dual",
    scores: Sequence[str] = ("nll", "brier"),
    radii: Sequence[float] | None = None,
    attack: ScoreAttack | None = None,
) -> Iterator[Row]:
    """The rows of one table, one after the other; the first ``images`` inputs, clipped balls."""
    images = min(images, len(data))
    x = torch.from_numpy(data.take(range(images)))
    y = torch.from_numpy(data.y[:images])
    printed = (PRINTED_SEPARATE if separate else PRINTED).get(dataset, {})
    for score in scores:
        for eps in radii or list(PRINTED[dataset][score]):
            region = Perturbation(eps, clip=(0.0, 1.0))
            bounds: dict[str, Cell] = {}
            cells = dict(zip(PAPER_COLUMNS, printed.get(score, {}).get(eps, ())))
            # The attack is the same in every column: it runs once.
            effort = attack or ScoreAttack(restarts=10)
            found: list[float] = []
            for column in columns:
                began = time.process_time()
                result = verify_uncertainty(networks, x, y, region, score, method, column, separate, effort)
                spent = (time.process_time() - began) / images
                bounds[column] = Cell(cells.get(column), float(result.column("bound").mean()), spent)
                found.append(float(result.column("attack").mean()))
                clean = float(result.column("clean").mean())
                effort = ScoreAttack(steps=0, restarts=1)
            yield Row(
                score,
                eps,
                Cell(PRINTED_CLEAN[dataset][score], clean),
                Cell(PRINTED_ATTACK.get(dataset, {}).get(score, {}).get(eps), max(found)),
                bounds,
            )


def uncertainty_table(artifact: Path, data: Dataset, dataset: str, **options: Any) -> UncertaintyTable:
    """A whole table; ``options`` as for ``uncertainty_rows``."""
    networks = [load_onnx(path) for path in ensemble_files(artifact, dataset)]
    rows = tuple(uncertainty_rows(networks, data, dataset, **options))
    images = min(options.get("images", 100), len(data))
    return UncertaintyTable(dataset, options.get("separate", False), images, rows)
