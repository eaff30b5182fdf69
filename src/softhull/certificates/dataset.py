"""Statements about data sets: a certificate for every sample, and one file that names them and claims the metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checker.check import sha256
from ..checker.dataset import FORMAT, VERSION
from ..checker.metrics import Sample, metrics_of
from ..checker.network import Networks as CheckerNetworks
from ..checker.session import exactly
from ..deadlines import INTERRUPTED
from ..errors import InvalidInput
from .write import Folder, norm_of, ranges_certificate

if TYPE_CHECKING:
    from ..formats.datasets import Dataset
    from ..formats.network import Network
    from ..regions import Perturbation
    from ..verify.dataset import DatasetReport

Track = Callable[[Sequence[int]], Iterable[int]]


@dataclass
class StatementFolder:
    """A folder with the certificates of samples ``indices`` of a data set, and the statement that rests on them.

    A sample without certificate is named as such: nothing is claimed of it, and the metrics allow for everything it may
    do. After an interrupt no more certificates are tried. ModelError: an operator that the checker does not cover.
    """

    path: Path
    models: Sequence[str]
    networks: Sequence[Network]
    dataset: Dataset
    indices: Sequence[int]
    edges: np.ndarray
    missing: dict[str, str] = field(default_factory=dict)  # by radius and sample: why there is no certificate
    interrupted: bool = False
    _radii: list[dict[str, Any]] = field(default_factory=list)
    _region: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        CheckerNetworks(self.models)  # an operator that the checker does not cover is known before the work begins

    def __len__(self) -> int:
        """How many certificates there are."""
        return sum(entry is not None for radius in self._radii for entry in radius["certificates"])

    def add(self, perturbation: Perturbation, report: DatasetReport, track: Track = iter) -> dict[str, float]:
        """Certificates for one radius, of whose samples ``report`` says what to prove; the metrics that they prove."""
        if not perturbation.plain:
            raise InvalidInput("statements about data sets are about a radius, a norm and a clip range, and no more")
        self._region = {"norm": norm_of(perturbation), "clip": perturbation.clip and list(perturbation.clip)}
        folder, named, samples = Folder(self.path, f"radius-{len(self._radii)}"), [], []
        classes = report.ranges.least.shape[1]
        for place in track(range(len(self.indices))):
            index = self.indices[place]
            entry, sample = self._prove(folder, index, perturbation, report, place)
            named.append(entry)
            samples.append(sample or Sample.unknown(int(self.dataset.y[index]), classes))
        found = exactly(metrics_of)(samples, self.edges.tolist())
        finite = {name: value if np.isfinite(value) else None for name, value in found.items()}
        self._radii.append({"eps": perturbation.eps, "certificates": named, "metrics": finite})
        self.missing |= {f"eps {perturbation.eps:g}, sample {i}": why for i, why in folder.missing.items()}
        return found

    def _prove(
        self, folder: Folder, index: int, perturbation: Perturbation, report: DatasetReport, place: int
    ) -> tuple[dict[str, str] | None, Sample | None]:
        """The certificate of one sample, as the statement names it, and what it proves."""
        if self.interrupted:
            folder.missing[index] = INTERRUPTED
            return None, None
        x, label, wanted = self.dataset.take([index])[0], int(self.dataset.y[index]), report.ranges.take(place)

        def make() -> Any:
            return ranges_certificate(self.models, self.networks, x, label, perturbation, wanted, index)

        try:
            made = folder.keep(index, make)
        except KeyboardInterrupt:
            self.interrupted = True
            folder.missing[index] = INTERRUPTED
            return None, None
        if made is None:
            return None, None
        name = folder.written[index]["certificate"]
        digest = sha256((self.path / name).read_bytes())
        return {"file": name, "sha256": digest}, Sample.of(made.header["property"])

    @property
    def file(self) -> Path:
        """Where the statement goes."""
        return self.path / "statement.json"

    def write(self) -> None:
        """The statement about all radii added."""
        models = [{"file": Path(n.path).name, "sha256": n.sha256} for n in self.networks]
        header = {"format": FORMAT, "version": VERSION, "models": models, "region": self._region}
        header |= {"bins": self.edges.tolist(), "samples": list(map(self._sample, self.indices)), "radii": self._radii}
        self.file.write_text(json.dumps(header, indent=1) + "\n")

    def _sample(self, index: int) -> dict[str, Any]:
        content = np.asarray(self.dataset.take([index])[0], dtype="<f8").tobytes()
        return {"index": int(index), "label": int(self.dataset.y[index]), "sha256": sha256(content)}
