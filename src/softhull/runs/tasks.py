"""What is asked: one question about some instances of one data set, answered by one method."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import __version__
from ..propagate.methods import Auto, Branch
from ..show import plain as plain_values

# The key of an answer, field by field: the arguments of a question and the settings of a method that it holds whatever
# their value.
FIELDS: dict[str, tuple[str, ...]] = {
    "robustness": ("property", "targets", "attack", "seed"),
    "uncertainty": ("score", "separate", "seed", "rounding"),
    "dataset": ("bins", "seed", "rounding"),
    "Auto": ("bound", "optimize", "rounding", "branch"),
    "Linear": (
        *("bound", "optimize", "differences", "simplex", "contract", "contract_limit", "learning_rate", "mixture"),
        "rounding",
    ),
    "Paper": ("bound", "rounding"),
    "SecondOrder": ("bound", "steps", "row_fit", "rounding"),
    "Dual": ("steps", "stages", "learning_rate", "decay", "tolerance", "refresh"),
    "CuttingPlanes": ("tolerance", "rounds", "warm_steps"),
    "Conic": ("solver", "options", "warm_steps"),
    "Branch": ("inner", "seconds", "nodes", "memory", "tolerance", "tries", "cells", "seed"),
}
# Fields that came later, with the value that answers without them were found with: left out of the key at that value,
# so that those answers stay known, and part of it at any other. A new argument or setting gets its line here, and the
# value stays even when the default changes.
LATER: dict[str, dict[str, Any]] = {"Auto": {"branch": 0.0}}


@dataclass(frozen=True)
class Model:
    """A network by its content; the path only says where it was found."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Task:
    """A question with its network, perturbation, method and settings; instances are added by their inputs.

    ``method`` is a dataclass of plain values, ``keywords`` the other arguments of the question.
    What they hold is part of the key of an answer (see ``FIELDS``), names and paths are not.
    """

    question: str
    network: str
    models: tuple[Model, ...]
    data: str
    data_path: str
    perturbation: Any
    method_name: str
    method: Any
    softmax_bound: str
    keywords: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict)  # of the keywords

    def settings(self) -> dict[str, Any]:
        """Everything that determines an answer beside the networks, the input and its label, as plain values."""
        return {
            "question": self.question,
            "perturbation": self.perturbation.settings(),
            "method": plain(self.method),
            "softmax_bound": self.softmax_bound,
            "keywords": _of_key(self.question, plain(self.keywords), self.defaults),
        }

    @property
    def branches(self) -> bool:
        """Whether the method cuts what it does not prove into cells, whatever the time limit."""
        return isinstance(self.method, Branch) or (isinstance(self.method, Auto) and self.method.branch > 0)

    def columns(self) -> dict[str, Any]:
        """The row of the task in a store."""
        clip = self.perturbation.clip or (None, None)
        row: dict[str, Any] = {
            "question": self.question,
            "network": self.network,
            "models": canonical([{"path": model.path, "sha256": model.sha256} for model in self.models]),
            "data": self.data,
            "data_path": self.data_path,
            "eps": self.perturbation.largest,
            "norm": f"{self.perturbation.norm:g}",
            "clip_low": clip[0],
            "clip_high": clip[1],
            "property": self.keywords.get("property"),
            "score": self.keywords.get("score"),
            "method": self.method_name,
            "softmax_bound": self.softmax_bound,
            "rounding": self.keywords.get("rounding", getattr(self.method, "rounding", None)),
            "settings": canonical(self.settings()),
            "version": __version__,
        }
        return row | {"hash": hashlib.sha256(canonical(row).encode()).hexdigest()}

    def keys(self, x: np.ndarray, labels: np.ndarray) -> list[str]:
        """The content hash of every instance ``x [B, ...]`` with its label: equal keys have equal answers."""
        return instance_keys(__version__, [model.sha256 for model in self.models], self.settings(), x, labels)


@dataclass(frozen=True)
class Answer:
    """What is known of one instance, and what it cost.

    ``cut_after``: seconds after which the work on it was cut short; None when nothing more would have been done.
    """

    verdict: str
    bound: float | None = None
    attack: float | None = None
    clean: float | None = None
    message: str = ""
    worst_input: np.ndarray | None = None
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    cut_after: float | None = None
    from_store: bool = False  # read from a store, and not found by the run that says so
    predicted: int | None = None  # the class of the input itself
    new_class: int | None = None  # the class of the worst input


def instance_keys(
    version: str, models: Sequence[str], settings: dict[str, Any], x: np.ndarray, labels: np.ndarray | Sequence[int]
) -> list[str]:
    """The keys of instances ``x [B, ...]`` with their labels, under the hashes of the models and the settings."""
    common = hashlib.sha256(canonical({"softhull": version, "models": list(models), "settings": settings}).encode())
    found = []
    for row, label in zip(np.ascontiguousarray(x, dtype="<f8"), labels):
        digest = common.copy()
        digest.update(f"label {int(label)} ".encode())
        digest.update(row.tobytes())
        found.append(digest.hexdigest())
    return found


def plain(value: Any) -> Any:
    """Dataclasses, tuples and numbers as JSON knows them; of a dataclass its kind and the fields that make a key."""
    return plain_values(value, _of_key)


def _of_key(owner: str, values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields of a question or method that make a key: the listed ones, and others away from their usual value."""
    usual = defaults | LATER.get(owner, {})
    listed = FIELDS.get(owner, ())
    return {
        name: value
        for name, value in values.items()
        if name in listed or name not in usual or value != plain(usual[name])
    }


def canonical(value: Any) -> str:
    """JSON that is the same text for the same content."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
