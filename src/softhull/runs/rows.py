"""The rows of a store as its readers see them: one instance, what was asked about it and what was answered."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One answered instance.

    ``bound`` is the certified number (of the margin, or of the score), ``softmax_bound`` the name of the softmax bound
    it rests on. ``predicted`` and ``new_class`` are the classes of the input and of its worst input. ``verdict`` is
    one of ``softhull verify``, or for scores ``bounded``. ``cut_after`` tells the seconds after which the work was cut
    short; ``finished`` is seconds since 1970. ``run`` and ``machine`` say, as far as the store is to be believed,
    which of its runs found the answer and where. ``models`` and ``settings`` are JSON.
    """

    index: int
    label: int
    verdict: str
    predicted: int | None
    new_class: int | None
    bound: float | None
    attack: float | None
    clean: float | None
    message: str
    cpu_seconds: float
    seconds: float
    question: str
    network: str
    data: str
    eps: float
    norm: str
    clip_low: float | None
    clip_high: float | None
    property: str | None
    score: str | None
    method: str
    softmax_bound: str
    rounding: str | None
    version: str
    cut_after: float | None
    finished: float
    models: str
    data_path: str
    settings: str
    task: int
    run: int
    machine: str | None
    key: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, CSV and tables: numbers that are not finite become None, the time is written out."""
        plain = {name: _finite(getattr(self, name)) for name in COLUMNS}
        plain["finished"] = datetime.fromtimestamp(self.finished, UTC).isoformat(timespec="seconds")
        plain["models"], plain["settings"] = json.loads(self.models), json.loads(self.settings)
        return plain


COLUMNS = tuple(field.name for field in fields(Row))

# Where each column of a row stands in the tables.
SQL = {name: f"tasks.{name}" for name in COLUMNS} | {
    "index": "instances.idx",
    "label": "instances.label",
    "task": "instances.task",
    "key": "instances.key",
    **{
        name: f"answers.{name}"
        for name in (
            *("verdict", "bound", "attack", "clean", "message", "cpu_seconds", "seconds"),
            *("cut_after", "finished", "run"),
        )
    },
    "machine": "runs.machine",
    "predicted": "classes.predicted",
    "new_class": "classes.new_class",
}

# What a filter may compare, as numbers or as words.
NUMBERS = (
    *(
        "index",
        "label",
        "predicted",
        "new_class",
        "bound",
        "attack",
        "clean",
        "cpu_seconds",
        "seconds",
        "eps",
        "clip_low",
        "clip_high",
    ),
    *("cut_after", "task", "run"),
)
WORDS = (
    *("verdict", "question", "network", "data", "norm", "property", "score", "method", "softmax_bound", "rounding"),
    *("version", "message", "machine"),
)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
