"""The attention tables of Wei et al. 2023: printed cells beside ours, and the columns that go beyond the paper.

The printed MNIST table asks whether the clean runner-up class ever becomes the largest; full robustness, no class ever
overtakes the label, stands beside it. A network of one logit has two classes, for which both are the same.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, SofthullError
from ..formats.datasets import Dataset
from ..formats.network import Network
from ..formats.onnx import load_onnx
from ..propagate.methods import Auto, Linear, Method, Paper
from ..regions import Perturbation
from ..verify.result import Result, Verdict
from ..verify.robustness import verify_robustness

FOLDERS = ("models", "transformer_experiment/training", ".")
PRINTED_IMAGES = 500
BATCH = 100  # images between two ticks of the progress bar

PAPER_COLUMNS = ("lin", "ER", "LSE", "LSE*")
HULL, OPTIMISED, AUTO = "hull", "hull + opt", "auto"  # linear bounds, with gradient steps, with second order
COLUMNS = (*PAPER_COLUMNS, HULL, OPTIMISED, AUTO)
PORTFOLIO, CEILING = "portfolio", "ceiling"  # proved by any column; not broken by the attack
ALL_COLUMNS = (*COLUMNS, PORTFOLIO, CEILING)

# What is proved of a property is proved of those after it.
ALL, RUNNER_UP = "all", "runner-up"


@dataclass(frozen=True)
class Experiment:
    """One table of the paper: its networks, inputs and radii, and the certified percentages it prints."""

    name: str
    files: Mapping[str, str]  # of the networks, by the name the table gives them
    data: str  # the file with the inputs, where the folder holds one
    properties: tuple[str, ...]
    printed_property: str
    clip: tuple[float, float] | None
    printed: Mapping[str, Mapping[float, tuple[float, float, float, float]]]

    @property
    def radii(self) -> tuple[float, ...]:
        """The radii of the published table."""
        return tuple(next(iter(self.printed.values())))

    def find(self, network: str, artifact: Path | None) -> Path:
        """The file of a network, given by its name in the table or by its path; InvalidInput when there is none."""
        if network not in self.files:
            path = Path(network)
            if path.is_file():
                return path
            raise InvalidInput(f"{network}: neither a file nor one of {', '.join(self.files)}")
        if artifact is None:
            raise InvalidInput(f"{network}: name the folder of the networks, or the network by its path")
        for folder in FOLDERS:
            path = artifact / folder / self.files[network]
            if path.is_file():
                return path
        places = ", ".join(str(artifact / folder) for folder in FOLDERS)
        raise InvalidInput(f"{network}: no {self.files[network]} in {places}")

    def name_of(self, path: Path) -> str:
        """The table's own name of a file, or else the file's."""
        return next((name for name, file in self.files.items() if file == path.name), path.stem)


MNIST = Experiment(
    name="tab:attention",
    files={size: f"self-attention-mnist-pgd-{size}-sim.onnx" for size in ("small", "medium", "big")},
    data="mnist_test_first500.npz",
    properties=(ALL, RUNNER_UP),
    printed_property=RUNNER_UP,
    clip=(0.0, 1.0),
    printed={
        "small": {
            0.016: (74.0, 83.6, 79.4, 84.0),
            0.020: (67.8, 79.2, 73.8, 81.2),
            0.024: (61.2, 74.6, 68.6, 76.4),
        },
        "medium": {
            0.016: (60.0, 81.2, 84.4, 84.6),
            0.020: (30.0, 62.4, 69.2, 71.6),
            0.024: (11.0, 34.2, 39.4, 46.0),
        },
        "big": {
            0.016: (42.0, 65.0, 68.6, 70.8),
            0.020: (13.0, 29.4, 29.6, 41.2),
            0.024: (1.6, 6.2, 3.6, 11.6),
        },
    },
)
SST = Experiment(
    name="tab:attention-sst",
    files={"sst": "self-attention-sst-sim-post-embedding.onnx"},
    data="sst_first500.npz",
    properties=(ALL,),
    printed_property=ALL,
    clip=None,  # the perturbed vector is a hidden layer
    printed={
        "sst": {
            0.02: (68.8, 68.8, 68.8, 68.8),
            0.04: (63.2, 63.2, 63.2, 63.2),
            0.06: (56.6, 56.8, 57.6, 57.4),
            0.08: (51.4, 52.0, 52.4, 52.4),
            0.10: (45.0, 46.2, 47.2, 46.8),
            0.12: (39.0, 39.8, 40.6, 40.6),
            0.14: (31.8, 33.0, 34.0, 33.6),
            0.16: (26.4, 26.8, 28.2, 27.2),
        }
    },
)


@dataclass
class AttentionRow:
    """One network, radius and property: the images certified by every column, and those the attack breaks."""

    network: str
    eps: float
    kind: str  # of property
    printed: dict[str, float]  # percentages, by column
    images: int = 0
    misclassified: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)  # why nothing could be computed
    certified: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in COLUMNS})

    @property
    def correct(self) -> int:
        """How many images are classified correctly without perturbation."""
        return self.images - len(self.misclassified)

    def count(self, column: str) -> int:
        """How many images a column certifies; for the ceiling, how many the attack does not break."""
        if column == PORTFOLIO:
            return len(set().union(*self.certified.values()))
        return self.correct - len(self.broken) if column == CEILING else len(self.certified[column])

    def percentage(self, column: str) -> float:
        """The same in per cent of all images asked about."""
        return 100 * self.count(column) / self.images

    def equal_cells(self) -> dict[str, bool] | None:
        """Whether each printed cell is ours to the image; None unless the same number of images was asked about."""
        if not self.printed or self.images != PRINTED_IMAGES:
            return None
        return {name: round(cell * self.images / 100) == self.count(name) for name, cell in self.printed.items()}

    def take(self, column: str, result: Result) -> None:
        """Note the verdicts of one column."""
        for record in result.records:
            if record.verdict is Verdict.CERTIFIED:
                self.certified[column].add(record.index)
            elif record.verdict is Verdict.FALSIFIED:
                self.broken.add(record.index)
            elif record.verdict is Verdict.MISCLASSIFIED:
                self.misclassified.add(record.index)
            elif record.verdict is Verdict.ERROR:
                self.failed[record.index] = record.message

    def add(self, other: AttentionRow) -> None:
        """Take over what was found for other images."""
        self.images += other.images
        self.misclassified |= other.misclassified
        self.broken |= other.broken
        self.failed |= other.failed
        for column, images in other.certified.items():
            self.certified[column] |= images

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values, published cells beside ours."""
        flat: dict[str, Any] = {"network": self.network, "property": self.kind, "eps": self.eps}
        flat |= {"images": self.images, "correct": self.correct, "failed": len(self.failed)}
        for column in ALL_COLUMNS:
            if column in PAPER_COLUMNS:
                flat[f"{column} printed"] = self.printed.get(column)
            flat[column] = self.percentage(column) if self.images else None
        return flat


class AttentionStudy:
    """The rows of one table, filled while ``run`` goes through the images; complete at every step of it."""

    def __init__(
        self,
        experiment: Experiment,
        networks: Mapping[str, Network],
        data: Dataset,
        images: int = PRINTED_IMAGES,
        radii: Sequence[float] | None = None,
        optimize: int = Linear.optimize,
        seed: int = 0,
    ) -> None:
        self.experiment = experiment
        self.networks = dict(networks)
        self.data = data
        self.images = min(images, len(data))
        self.radii = tuple(radii or experiment.radii)
        self.seed = seed
        self.methods: dict[str, Method] = {name: Paper(name.lower()) for name in PAPER_COLUMNS}
        self.methods |= {HULL: Linear("hull", optimize=0), OPTIMISED: Linear("hull", optimize=optimize)}
        self.methods |= {AUTO: Auto("hull", optimize=optimize)}
        self.rows = [
            self._row(name, eps, kind) for name in networks for eps in self.radii for kind in experiment.properties
        ]
        self.cpu_seconds = {name: dict.fromkeys(COLUMNS, 0.0) for name in networks}

    def __len__(self) -> int:
        """How many steps ``run`` takes."""
        return len(self.networks) * len(self.radii) * len(self._batches())

    def run(self) -> Iterator[None]:
        """Batch after batch of images; an interrupt leaves the rows as they were after the last whole batch."""
        for name in self.networks:
            for eps in self.radii:
                for batch in self._batches():
                    self._measure(name, eps, batch)
                    yield

    def done(self) -> list[AttentionRow]:
        """The rows with at least one image."""
        return [row for row in self.rows if row.images]

    def milliseconds(self, network: str) -> dict[str, float]:
        """CPU milliseconds an image, radius and column, all properties together; gradient steps come after the hull."""
        asked = sum(row.images for row in self.rows if row.network == network) / len(self.experiment.properties)
        spent = self.cpu_seconds[network]
        spent = spent | {OPTIMISED: spent[HULL] + spent[OPTIMISED]}
        return {column: 1e3 * seconds / asked for column, seconds in spent.items()}

    def to_dict(self) -> dict[str, Any]:
        """All finished rows and the cost, as plain values."""
        done = self.done()
        return {
            "table": self.experiment.name,
            "rows": [row.to_dict() for row in done],
            "cpu_milliseconds": {name: self.milliseconds(name) for name in dict.fromkeys(row.network for row in done)},
        }

    def write_csv(self, path: Path) -> None:
        """Writes all finished rows as CSV."""
        rows = [row.to_dict() for row in self.done()]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    def _batches(self) -> list[range]:
        return [range(start, min(start + BATCH, self.images)) for start in range(0, self.images, BATCH)]

    def _row(self, network: str, eps: float, kind: str) -> AttentionRow:
        cells: Iterable[float] = ()
        if kind == self.experiment.printed_property:
            cells = self.experiment.printed.get(network, {}).get(eps, ())
        return AttentionRow(network, eps, kind, dict(zip(PAPER_COLUMNS, cells)))

    def _measure(self, network: str, eps: float, batch: range) -> None:
        """Asks every column about a batch of images; what a stronger property proved is not asked again."""
        found = [self._row(network, eps, kind) for kind in self.experiment.properties]
        spent = dict.fromkeys(COLUMNS, 0.0)
        for column in COLUMNS:
            proved: set[int] = set()  # of a stronger property, or before any gradient step
            for row in found:
                proved |= row.certified[HULL] if column == OPTIMISED else set()
                row.certified[column] |= proved
                left = [i for i in batch if i not in proved]
                if left:
                    result = self._verify(network, eps, left, row.kind, column)
                    row.take(column, result)
                    spent[column] += result.cpu_seconds
                proved |= row.certified[column]
        for row, kept in zip(found, self._kept(network, eps)):
            row.images = len(batch)
            kept.add(row)
        for column, seconds in spent.items():
            self.cpu_seconds[network][column] += seconds

    def _kept(self, network: str, eps: float) -> list[AttentionRow]:
        return [row for row in self.rows if (row.network, row.eps) == (network, eps)]

    def _verify(self, network: str, eps: float, images: Sequence[int], kind: str, column: str) -> Result:
        """Asks one column about some images and returns verdicts under their numbers in the data."""
        # The attack says how much the last columns leave to gain; what they have proved needs none.
        attack = None if column in (OPTIMISED, AUTO) else False
        x, y = self.data.take(images), self.data.y[np.asarray(images)]
        region = Perturbation(eps, clip=self.experiment.clip)
        result = verify_robustness(
            self.networks[network], x, y, region, kind, self.methods[column], attack=attack, seed=self.seed
        )
        if result.interrupted:
            raise KeyboardInterrupt
        return result.renumbered(images)


def load_networks(
    experiment: Experiment, names: Sequence[str], artifact: Path | None
) -> tuple[dict[str, Network], list[str]]:
    """The networks that could be read, by name, and one line for each that could not."""
    found: dict[str, Network] = {}
    missing: list[str] = []
    for name in dict.fromkeys(names):
        try:
            path = experiment.find(name, artifact)
            known = experiment.name_of(path)
            found[str(path) if known in found else known] = load_onnx(path)
        except (SofthullError, OSError) as problem:
            missing.append(str(problem))
    return found, missing
