"""Does what a statement about a whole data set claims follow from the certificates of its samples?

The statement is a JSON file. It names the certificates, which stand beside it, by file and SHA-256 sum; each must prove
ranges of the probabilities of one sample, over the region stated. The metrics are worked out again from these ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flint import ctx

from ..errors import one_line, quoted
from .balls import PRECISION
from .certificate import (
    LARGEST_HEADER,
    LARGEST_MEMBERS,
    CertificateError,
    Refused,
    read_certificate,
    read_json,
)
from .check import Checked, DataFile, judge, networks_of, replay_certificate, sha256
from .metrics import LOWEST, Sample, check_edges, metrics_of
from .network import Networks
from .statement import Statement, describe_clip, norm_name, number, read_models, read_region, read_statement, whole

FORMAT, VERSION = "softhull data set statement", 1


@dataclass(frozen=True)
class Radius:
    """What was accepted at one radius: the metrics that hold, and how many samples have no certificate."""

    eps: float
    metrics: dict[str, float]
    unknown: int

    def __str__(self) -> str:
        parts = [f"{name} {'>=' if name in LOWEST else '<='} {bound!r}" for name, bound in self.metrics.items()]
        without = f"; {self.unknown} samples WITHOUT certificate, nothing is known of them" if self.unknown else ""
        alone = "" if self.eps else " (THE INPUTS THEMSELVES ONLY, nothing around them is covered)"
        return f"eps = {self.eps!r}{alone}: {', '.join(parts)}{without}"


@dataclass(frozen=True)
class DatasetStatement:
    """The whole of what was accepted."""

    models: tuple[tuple[str, str], ...]  # as named by the caller, with their SHA-256 sums
    indices: tuple[int, ...]
    data: str | None
    total: int | None  # inputs in the data file
    labelled: bool  # the data file has labels to compare with
    norm: str
    clip: tuple[float, float] | None
    edges: tuple[float, ...]
    radii: tuple[Radius, ...]

    def __str__(self) -> str:
        n, radii = len(self.indices), len(self.radii)
        whom = f"{n} sample{'s' if n > 1 else ''}, at {radii} radi{'i' if radii > 1 else 'us'}"
        origin = "; the inputs were taken from the certificates"
        if self.total is not None:
            origin = "" if n == self.total else f", ONLY {n} of the {self.total} inputs of {self.data}"
        return f"the metrics of the data set hold: {whom}{origin}"

    def lines(self) -> list[str]:
        """The parts, one line for each."""
        found = [f"model: {name}, sha256 {digest}" for name, digest in self.models]
        source = f"compared with {self.data}" if self.data else "as the certificates say, NOT compared with data"
        found.append(f"inputs: {as_ranges(self.indices)}, {source}")
        if self.data and not self.labelled:
            found.append("labels: as the statement says, NOT compared: the data file has none")
        found.append(f"region: the l_{self.norm} norm{describe_clip(self.clip)}")
        found.append(f"bins of the ece: {len(self.edges) - 1}, with edges {', '.join(f'{e:.4g}' for e in self.edges)}")
        return [one_line(line) for line in [*found, *map(str, self.radii)]]

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain values."""
        return {
            "models": [{"file": name, "sha256": digest} for name, digest in self.models],
            "inputs": {
                "indices": list(self.indices),
                "data": self.data,
                "total": self.total,
                "labels": "data" if self.labelled else "statement",
            },
            "region": {"norm": self.norm, "clip": None if self.clip is None else list(self.clip)},
            "bins": list(self.edges),
            "radii": [{"eps": r.eps, "metrics": r.metrics, "without_certificate": r.unknown} for r in self.radii],
            "text": one_line(str(self)),
        }


def is_statement(path: str | Path) -> bool:
    """Whether a file begins as a statement about a data set does, and not as a certificate."""
    try:
        with Path(path).open("rb") as file:
            return file.read(64).lstrip()[:1] == b"{"
    except OSError as problem:
        raise CertificateError(f"{path}: {problem.strerror or 'cannot be read'}") from None


def check_dataset(
    path: str | Path,
    models: Sequence[str | Path],
    data: str | Path | None = None,
    indices: Sequence[int] | None = None,
    *,
    eps: float | None = None,
    norm: str | float | None = None,
    clip: Sequence[float] | None = None,
) -> Checked:
    """Whether the metrics that a statement claims follow from the certificates it names, for these model files.

    Args:
        path: The statement.
        models: The model files, in the order in which they were certified.
        data: A data file; every input and label is compared with it.
        indices: Demands that the statement is about exactly these samples.
        eps: Only what the statement says about this radius is checked and accepted.
        norm: Demands this norm.
        clip: Demands this clip range.
    """
    with ctx.workprec(PRECISION):
        content = read_file(path, LARGEST_HEADER)
        networks = networks_of(models, read_json(str(path), content))
        inputs = None if data is None else DataFile(data)
        return judge(
            path, lambda: _Dataset(Path(path), content, models, networks, inputs).run(indices, eps, norm, clip)
        )


def read_file(path: str | Path, most: int) -> bytes:
    """An ordinary file of limited size."""
    try:
        if not Path(path).is_file():
            raise CertificateError(f"{path}: no such file")
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as problem:
        if isinstance(problem, CertificateError):
            raise
        raise CertificateError(f"{path}: {getattr(problem, 'strerror', None) or 'cannot be read'}") from None
    if len(content) > most:
        raise CertificateError(f"{path}: more than {most} bytes")
    return content


class _Dataset:
    """A statement that is being checked."""

    def __init__(
        self,
        path: Path,
        content: bytes,
        models: Sequence[str | Path],
        networks: Networks,
        inputs: DataFile | None,
    ) -> None:
        self.folder, self.models, self.networks, self.inputs = path.parent, models, networks, inputs
        self.header = read_json("the statement", content)
        if not isinstance(self.header, dict) or self.header.get("format") != FORMAT:
            raise CertificateError(f"not a {FORMAT}")
        if self.header.get("version") != VERSION:
            raise CertificateError(f"version {quoted(self.header.get('version'))}, this checker reads {VERSION}")
        read_models(self.header, models, networks.digests)
        sizes = {output.size for output in networks.probabilities}
        if len(sizes) > 1 or min(sizes) < 2:
            raise Refused("the networks do not have the same two or more classes")
        self.classes = min(sizes)
        self.edges = check_edges(self.header["bins"])
        self.samples = self._samples()

    def _samples(self) -> list[Mapping[str, Any]]:
        """Which samples the statement is about, each of them once."""
        found = self.header["samples"]
        if not isinstance(found, list) or not found:
            raise Refused("a statement about no samples")
        seen = set()
        for sample in found:
            index, label = sample["index"], sample["label"]
            if not whole(index) or index < 0 or not whole(label) or not 0 <= label < self.classes:
                raise Refused(f"index {quoted(index)} with label {quoted(label)} is no sample")
            if index in seen:
                raise Refused(f"sample {index} stands twice in the statement")
            seen.add(index)
        return found

    def run(
        self,
        indices: Sequence[int] | None,
        eps: float | None,
        norm: str | float | None,
        clip: Sequence[float] | None,
    ) -> Checked:
        """Checks what is demanded of the statement, every certificate it names, and every metric it claims."""
        stated = tuple(sample["index"] for sample in self.samples)
        if indices is not None and set(indices) != set(stated):
            wanted = as_ranges(indices)
            raise Refused(f"a statement about samples {wanted} is demanded, this one is about {as_ranges(stated)}")
        radii = self.header["radii"]
        if not isinstance(radii, list) or not all(number(radius["eps"]) and radius["eps"] >= 0 for radius in radii):
            raise Refused("no radii, or one that is no number of at least 0")
        if len({radius["eps"] for radius in radii}) < len(radii):
            raise Refused("a radius stands twice in the statement")
        chosen = [radius for radius in radii if eps is None or radius["eps"] == eps]
        if not chosen:
            about = ", ".join(f"{radius['eps']:g}" for radius in radii[:10])
            raise Refused(f"eps {eps} is demanded, the statement is about {about or 'none'}")
        _, stated_norm, stated_clip = read_region(self.header["region"] | {"eps": 0.0})
        if norm is not None and norm_name(norm) != stated_norm:
            raise Refused(f"norm {norm_name(norm)} is demanded, the statement is about norm {stated_norm}")
        if clip is not None and tuple(map(float, clip)) != stated_clip:
            raise Refused(f"clip {tuple(clip)} is demanded, the statement is about clip {stated_clip}")
        accepted = DatasetStatement(
            tuple((str(path), digest) for path, digest in zip(self.models, self.networks.digests)),
            stated,
            None if self.inputs is None else str(self.inputs.path),
            None if self.inputs is None else len(self.inputs),
            self.inputs is not None and self.inputs.labelled,
            stated_norm,
            stated_clip,
            tuple(self.edges),
            tuple(self._radius(radius) for radius in chosen),
        )
        return Checked(True, str(accepted), statement=accepted)

    def _radius(self, radius: Mapping[str, Any]) -> Radius:
        """The metrics claimed at one radius, all of which follow."""
        eps, named, claimed = float(radius["eps"]), radius["certificates"], radius["metrics"]
        if not isinstance(named, list) or len(named) != len(self.samples):
            raise Refused(f"eps {eps!r}: not one certificate for each of the {len(self.samples)} samples")
        found = [self._sample(eps, sample, entry) for sample, entry in zip(self.samples, named)]
        bounds = metrics_of(found, self.edges)
        if not isinstance(claimed, dict) or not set(claimed) <= set(bounds):
            raise Refused(f"eps {eps!r}: a metric that the checker does not know")
        held = {name: claim for name, claim in claimed.items() if claim is not None}
        if not held:
            raise Refused(f"eps {eps!r}: nothing is claimed")
        for name, claim in held.items():
            low = name in LOWEST
            if not number(claim) or not (claim <= bounds[name] if low else claim >= bounds[name]):
                claimed_here = f"{name} {'at least' if low else 'at most'} {quoted(claim)[1:-1]}"
                raise Refused(f"eps {eps!r}: {claimed_here} is claimed, {bounds[name]!r} follows from the ranges")
        return Radius(eps, held, sum(entry is None for entry in named))

    def _sample(self, eps: float, sample: Mapping[str, Any], entry: Any) -> Sample:
        """What the certificate of one sample proves of it."""
        index, label = sample["index"], sample["label"]
        with _about(eps, index):
            if entry is None:
                self._same_label(index, label)
                return Sample.unknown(label, self.classes)
            name, digest = entry["file"], entry["sha256"]
            if not isinstance(name, str) or not name or Path(name).name != name or name[0] == "." or "\\" in name:
                raise Refused(f"{quoted(name)} is no name of a file beside the statement")
            content = read_file(self.folder / name, LARGEST_MEMBERS)
            if sha256(content) != digest:
                raise Refused(f"{quoted(name)} is not the certificate that the statement names")
            certificate = read_certificate(self.folder / name, content)
            data = None if self.inputs is None else str(self.inputs.path)
            about = read_statement(certificate.header, self.models, self.networks.digests, data)
            self._belongs(about, eps, sample)
            verdict = replay_certificate(certificate, self.networks, about, index, self.inputs)
            if not verdict.accepted or not isinstance(verdict.statement, Statement):
                raise Refused(verdict.reason)
            return Sample.of(verdict.statement.property)

    def _belongs(self, about: Statement, eps: float, sample: Mapping[str, Any]) -> None:
        """Refuse a certificate about another input, label or region, or that proves no ranges."""
        _, norm, clip = read_region(self.header["region"] | {"eps": eps})
        wanted = (sample["index"], sample["label"], sample["sha256"], eps, norm, clip, "ranges")
        stated = (about.index, about.property["label"], about.input_sha256, about.eps, about.norm, about.clip)
        names = ("index", "label", "input", "eps", "norm", "clip", "kind")
        for name, one, other in zip(names, wanted, (*stated, about.property["kind"])):
            if one != other:
                raise Refused(f"{name} {quoted(one)} is stated, its certificate has {quoted(other)}")

    def _same_label(self, index: int, label: int) -> None:
        """A sample without certificate has its place and its label in the data file all the same."""
        if self.inputs is not None:
            self.inputs.input(index)
            if self.inputs.label(index) not in (None, label):
                raise Refused(f"it has label {self.inputs.label(index):g} in {self.inputs.path}, not {label}")


@contextmanager
def _about(eps: float, index: int) -> Iterator[None]:
    """What goes wrong with a certificate, with the sample it was for."""
    where = f"eps {eps!r}, sample {index}"
    try:
        yield
    except Refused as problem:
        raise Refused(f"{where}: {problem}") from None
    except CertificateError as problem:
        raise CertificateError(f"{where}: {problem}") from None


def as_ranges(indices: Sequence[int]) -> str:
    """``0 to 4, 7``: whole numbers in rising order."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in parts)
