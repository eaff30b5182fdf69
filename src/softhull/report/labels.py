"""Names for methods and networks that tell apart what differs, and nothing more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Settings that say what was asked, not how it was answered.
_ASKED = {"keywords.property", "keywords.score", "keywords.targets"}


def method_labels(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """``linear · hull``, and the settings in which tasks of one such name differ."""
    bases = [f"{task['method']} · {task['softmax_bound']}" for task in tasks]
    settings = [_settings(task) for task in tasks]
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for base, mine in zip(bases, settings):
        for name, value in mine.items():
            values[base, name].add(value)
    return [
        " · ".join([base, *(f"{_last(name)} {value}" for name, value in mine.items() if len(values[base, name]) > 1)])
        for base, mine in zip(bases, settings)
    ]


def network_names(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names in the store, with the beginning of a hash where one name stands for several networks."""
    hashes: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        hashes[task["network"]].add(_hash(task))
    return [
        task["network"] if len(hashes[task["network"]]) == 1 else f"{task['network']} ({_hash(task)[:8]})"
        for task in tasks
    ]


def _settings(task: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a task as text, by name."""
    known = task["settings"] if isinstance(task["settings"], dict) else {}
    found = {
        f"{part}.{name}": str(value)
        for part in ("method", "keywords")
        if isinstance(known.get(part), dict)
        for name, value in known[part].items()
    }
    extra = {"rounding": str(task["rounding"]), "version": str(task["version"])}
    if "method.rounding" in found or "keywords.rounding" in found:
        del extra["rounding"]
    return {name: value for name, value in (found | extra).items() if name not in _ASKED}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _hash(task: Mapping[str, Any]) -> str:
    models: Iterable[Any] = task["models"] if isinstance(task["models"], list) else [task["models"]]
    return " ".join(str(model.get("sha256", "")) if isinstance(model, dict) else str(model) for model in models)
