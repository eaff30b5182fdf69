"""What a report shows of a store: tasks, columns of instances, pictures; plain values alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..runs.rows import Row
from ..runs.store import VERDICTS, Store
from ..verify.scores import worst_when
from .datasets import dataset_content
from .labels import method_labels, network_names
from .pictures import no_pictures, pictures

_LONGEST = 2000  # characters of one text


def report_content(store: Store, data: Sequence[Path] = (), images: bool = True) -> dict[str, Any]:
    """Everything the page shows, ready for JSON; a number that is not finite is None."""
    asked = store.tasks()
    rows = list(store.rows())
    place = {task["id"]: number for number, task in enumerate(asked)}
    shown = pictures(store, asked, rows, data) if images else no_pictures()
    tasks = [
        _task(task, label, network, shown.sets_of_tasks.get(task["id"]))
        for task, label, network in zip(asked, method_labels(asked), network_names(asked))
    ]
    said = {"": 0} | {text: 1 + number for number, text in enumerate(sorted({row.message for row in rows} - {""}))}
    total = sum(progress.total for progress in store.progress())
    return {
        "title": store.path.name,
        "about": _about(rows),
        "made": _moment(datetime.now(UTC).timestamp()),
        "softhull": __version__,
        "unanswered": total - len(rows),
        "tasks": tasks,
        "verdicts": list(VERDICTS),
        "messages": [text[:_LONGEST] for text in said],
        "columns": {
            "task": [place[row.task] for row in rows],
            "index": [row.index for row in rows],
            "label": [row.label for row in rows],
            "verdict": [VERDICTS.index(row.verdict) for row in rows],
            "bound": [_short(row.bound) for row in rows],
            "attack": [_short(row.attack) for row in rows],
            "clean": [_short(row.clean) for row in rows],
            "cpu": [_short(row.cpu_seconds) or 0 for row in rows],
            "message": [said[row.message] for row in rows],
        },
        "datasets": dataset_content(store, asked, rows),
        "pictures": {"sets": shown.sets, "worst": shown.worst, "note": shown.note},
        "runs": [_run(run) for run in store.runs()],
    }


def _task(task: dict[str, Any], label: str, network: str, picture_set: int | None) -> dict[str, Any]:
    """What the page needs to know of one task."""
    clip = None if task["clip_low"] is None else [task["clip_low"], task["clip_high"]]
    kept = (
        "question",
        "data",
        "data_path",
        "eps",
        "norm",
        "property",
        "score",
        "models",
        "settings",
        "version",
        "hash",
    )
    plain: dict[str, Any] = {name: _plain(task[name]) for name in kept}
    if task["question"] == "dataset":  # what its rows show, sample by sample
        plain["score"] = "probability of the label"
    return plain | {
        "clip": _plain(clip),
        "label": label,
        "network": network,
        "worst_when": _worst_when(task),
        "pictures": picture_set,
    }


def _worst_when(task: dict[str, Any]) -> str:
    if task["question"] == "dataset":
        return "low"
    return "high" if task["score"] is None else worst_when(task["score"])


def _run(run: dict[str, Any]) -> dict[str, Any]:
    command = run["command"]
    if isinstance(command, dict):
        given = {name: value for name, value in command.items() if name != "command" and value is not None}
        text = " ".join([str(command.get("command", "")), *(f"{name}={value}" for name, value in given.items())])
    else:
        text = str(command)
    ended = None if run["ended"] is None else _moment(run["ended"])
    return {"began": _moment(run["began"]), "ended": ended, "version": run["version"], "command": text[:_LONGEST]}


def _about(rows: Sequence[Row]) -> str:
    if not rows:
        return "no answers yet"
    first, last = (_moment(pick(row.finished for row in rows))[:10] for pick in (min, max))
    versions = ", ".join(sorted({row.version for row in rows})[:3])
    return f"Answers of {first if first == last else f'{first} to {last}'} by softhull {versions}"[:_LONGEST]


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _short(value: float | None) -> float | None:
    """Six digits: what is read off a page; ``softhull results`` has them all."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name)[:_LONGEST]: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value[:_LONGEST] if isinstance(value, str) else value
