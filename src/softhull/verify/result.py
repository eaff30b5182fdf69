"""What a question returns: a verdict per instance, the bracket behind it, the cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from ..show import data_frame, html_table, new_axes

if TYPE_CHECKING:
    from torch import Tensor

    from ..branch.tree import Cells, Grown
    from ..propagate.optimize import Apart, Chosen
    from .problem import Tried

SCHEMA = "softhull-answer-1"  # docs/answer.schema.json


class Verdict(Enum):
    """What is known of one instance; ``advice`` says what a user can do next."""

    CERTIFIED = "certified"
    FALSIFIED = "falsified"
    UNKNOWN = "unknown"
    MISCLASSIFIED = "misclassified"
    ERROR = "error"

    @property
    def advice(self) -> str:
        """What the verdict means, in one line."""
        return _ADVICE[self]


_ADVICE = {
    Verdict.CERTIFIED: "the property holds for every input of the region",
    Verdict.FALSIFIED: "the counterexample breaks the property",
    Verdict.UNKNOWN: "neither proved nor broken: raise optimize or the time limit, or shrink the region",
    Verdict.MISCLASSIFIED: "the unperturbed input is not given its label",
    Verdict.ERROR: "the computation failed; the record says why",
}
COLOURS = {
    Verdict.CERTIFIED: "#14805e",
    Verdict.FALSIFIED: "#c2410c",
    Verdict.UNKNOWN: "#b59a2d",
    Verdict.MISCLASSIFIED: "#7a4aa8",
    Verdict.ERROR: "#b3123c",
}


@dataclass(frozen=True, repr=False)
class Record:
    """One instance: ``bound`` is a certified lower bound on the margin, ``attack`` the smallest margin found."""

    index: int
    verdict: Verdict
    label: int | None = None
    bound: float | None = None
    attack: float | None = None
    counterexample: np.ndarray | None = None
    message: str = ""
    from_store: bool = False  # read from a run store, not computed here
    # Where branching cut the region to prove it: entry of the input and value, every cut before its parts, -1 for one
    # that is not cut.
    cuts: tuple[tuple[int, float], ...] = ()
    # What proved that the label stays ahead of a rival, by rival, where it was not a plain linear walk; None: unknown.
    proved_by: Mapping[int, str] | None = field(default=None, compare=False)
    # What gradient steps chose, by rival: for the rival and for the logit differences before it.
    chosen: Mapping[int, tuple[Chosen, Apart]] = field(default_factory=dict, repr=False, compare=False)
    # The entries, by node of the graph, that second order bounded again.
    sharpened: Mapping[int, Tensor] = field(default_factory=dict, repr=False, compare=False)
    # The stages that worked on it, first to last: what was tried, the bound after it, its share of the CPU seconds.
    tried: tuple[Tried, ...] = field(default=(), repr=False, compare=False)
    cells: Cells | None = field(default=None, compare=False)  # how many a search made of the region
    # The cells themselves, and how its bound rose, where proofs are kept.
    grown: Grown | None = field(default=None, repr=False, compare=False)
    predicted: int | None = None  # the class of the unperturbed input
    new_class: int | None = None  # the class of the counterexample, as the model file computes it
    # What was spent on this instance; stages that work on several instances at once share their time among them.
    cpu_seconds: float = field(default=0.0, compare=False)
    seconds: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; numbers that are not finite are None."""
        plain: dict[str, Any] = {
            "index": self.index,
            "verdict": self.verdict.value,
            "label": self.label,
            "predicted": self.predicted,
            "new_class": self.new_class,
            "bound": finite(self.bound),
            "attack": finite(self.attack),
            "cpu_seconds": self.cpu_seconds,
            "seconds": self.seconds,
        }
        if self.message:
            plain["message"] = self.message
        if self.cells is not None:
            plain["cells"] = self.cells._asdict()
        if self.tried:
            plain["tried"] = [vars(step) | {"bound": finite(step.bound)} for step in self.tried]
        if self.from_store:
            plain["from_store"] = True
        if self.counterexample is not None:
            plain["counterexample"] = self.counterexample.tolist()
        return plain

    def __repr__(self) -> str:
        turned = f" -> {self.new_class}" if self.new_class is not None else ""
        numbers = [(name, getattr(self, name)) for name in ("bound", "attack")]
        said = "".join(f", {name} {value:.4g}" for name, value in numbers if value is not None)
        return f"<Record {self.index}: {self.verdict.value}, label {self.label}{turned}{said}>"

    def _repr_html_(self) -> str:
        return html_table(f"Instance {self.index}", [short_row(self)])


def short_row(record: Any) -> dict[str, Any]:
    """The record of any question as one line of a table: everything but inputs and the steps of the work."""
    return {name: value for name, value in record.to_dict().items() if name not in ("counterexample", "tried", "cells")}


@dataclass(frozen=True, repr=False)
class Result:
    """Verdicts of all instances asked about; the counts of ``summary`` add up to ``total``.

    ``about`` says what was asked: models and data with their hashes, region, property, method with its settings,
    versions. ``to_dict`` is what the command line writes as JSON (``docs/answer.schema.json``).
    """

    records: tuple[Record, ...]
    cpu_seconds: float
    seconds: float
    interrupted: bool = False  # Ctrl-C cut the work short; the records hold what was found by then
    rounding: str = "outward"  # whether the bounds hold for the real-valued network, or up to rounding ("nearest")
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __getitem__(self, position: int) -> Record:
        return self.records[position]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def renumbered(self, indices: Sequence[int]) -> Result:
        """The same verdicts under the numbers the instances have elsewhere."""
        records = tuple(replace(record, index=index) for record, index in zip(self.records, indices))
        return replace(self, records=records)

    def count(self, verdict: Verdict) -> int:
        """How many instances got this verdict."""
        return sum(record.verdict is verdict for record in self.records)

    def summary(self) -> dict[str, float]:
        """How many instances got which verdict, and the cost."""
        counts: dict[str, float] = {verdict.value: self.count(verdict) for verdict in Verdict}
        return counts | {"total": len(self), "cpu_seconds": self.cpu_seconds, "seconds": self.seconds}

    def to_dict(self) -> dict[str, Any]:
        """The whole answer as plain values for JSON."""
        instances = [record.to_dict() for record in self.records]
        own = {"summary": self.summary(), "rounding": self.rounding, "interrupted": self.interrupted}
        return {"schema": SCHEMA, **self.about, **own, "instances": instances}

    def to_pandas(self) -> Any:
        """A data frame with one line per instance, counterexamples left out; needs the extra ``pandas``."""
        return data_frame([short_row(record) for record in self.records])

    def plot(self, axes: Any = None) -> Any:
        """Certified margins of all instances in order, coloured by verdict; returns the axes (extra ``plot``)."""
        axes = new_axes(axes)
        order = sorted(self.records, key=lambda record: _height(record.bound))
        for verdict in Verdict:
            places = [(k, r.bound) for k, r in enumerate(order) if r.verdict is verdict and finite(r.bound) is not None]
            if places:
                label = f"{verdict.value} ({self.count(verdict)})"
                axes.scatter(*zip(*places), s=14, color=COLOURS[verdict], label=label)
        axes.axhline(0, color="#888888", linewidth=0.8)
        axes.set_xlabel("instances, by margin")
        axes.set_ylabel("certified margin to the nearest class")
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        return axes

    def __repr__(self) -> str:
        counts = Counter(record.verdict.value for record in self.records)
        said = ", ".join(f"{counts[v.value]} {v.value}" for v in Verdict if counts[v.value])
        cut = ", interrupted" if self.interrupted else ""
        return f"<Result of {len(self)} instances: {said or 'none'}; {self.cpu_seconds:.3g} CPU seconds{cut}>"

    def _repr_html_(self) -> str:
        return html_table(repr(self).strip("<>"), [short_row(record) for record in self.records])


def finite(value: float | None) -> float | None:
    """The number, or None where it is not finite: JSON knows no other."""
    return value if value is not None and math.isfinite(value) else None


def _height(bound: float | None) -> float:
    return -math.inf if bound is None or math.isnan(bound) else bound
