"""What a question returns: a verdict per instance, the bracket behind it, the cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from .bracket import Apart, Chosen


class Verdict(Enum):
    """What is known of one instance; ``advice`` says what a user can do next."""

    CERTIFIED = "certified"
    FALSIFIED = "falsified"
    UNKNOWN = "unknown"
    MISCLASSIFIED = "misclassified"
    ERROR = "error"

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Verdict.CERTIFIED: "the property holds for every input of the region",
    Verdict.FALSIFIED: "the counterexample breaks the property",
    Verdict.UNKNOWN: "neither proved nor broken: raise optimize or the time limit, or shrink the region",
    Verdict.MISCLASSIFIED: "the unperturbed input is not given its label",
    Verdict.ERROR: "the computation failed; the record says why",
}


@dataclass(frozen=True)
class Record:
    """One instance: ``bound`` is a certified lower bound on the margin, ``attack`` the smallest margin found."""

    index: int
    verdict: Verdict
    label: int | None = None
    bound: float | None = None
    attack: float | None = None
    counterexample: np.ndarray | None = field(default=None, repr=False)
    message: str = ""
    from_store: bool = False  # read from a run store, not computed here
    # Where branching cut the region to prove it: entry of the input and value, every cut before its parts, -1 for one
    # that is not cut.
    cuts: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    # What proved that the label stays ahead of a rival, by rival, where it was not a plain linear walk; None: unknown.
    proved_by: Mapping[int, str] | None = field(default=None, repr=False, compare=False)
    # What gradient steps chose, by rival: for the rival and for the score differences before it.
    chosen: Mapping[int, tuple[Chosen, Apart]] = field(default_factory=dict, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        plain = {
            "index": self.index,
            "verdict": self.verdict.value,
            "label": self.label,
            "bound": _finite(self.bound),
            "attack": _finite(self.attack),
        }
        if self.message:
            plain["message"] = self.message
        if self.from_store:
            plain["from_store"] = True
        if self.counterexample is not None:
            plain["counterexample"] = self.counterexample.tolist()
        return plain


@dataclass(frozen=True)
class Result:
    """Verdicts of all instances asked about; the counts of ``summary`` add up to ``total``."""

    records: tuple[Record, ...]
    cpu_seconds: float
    seconds: float
    interrupted: bool = False  # Ctrl-C cut the work short; the records hold what was found by then
    rounding: str = "outward"  # whether the bounds hold for the real-valued network, or up to rounding ("nearest")

    def __getitem__(self, position: int) -> Record:
        return self.records[position]

    def __len__(self) -> int:
        return len(self.records)

    def renumbered(self, indices: Sequence[int]) -> Result:
        """The same verdicts under the numbers the instances have elsewhere."""
        records = tuple(replace(record, index=index) for record, index in zip(self.records, indices))
        return replace(self, records=records)

    def count(self, verdict: Verdict) -> int:
        return sum(record.verdict is verdict for record in self.records)

    def summary(self) -> dict[str, float]:
        counts: dict[str, float] = {verdict.value: self.count(verdict) for verdict in Verdict}
        return counts | {"total": len(self), "cpu_seconds": self.cpu_seconds, "seconds": self.seconds}

    def to_dict(self) -> dict[str, Any]:
        instances = [record.to_dict() for record in self.records]
        return {"summary": self.summary(), "rounding": self.rounding, "instances": instances}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
