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


def report_content(stores: Store | Sequence[Store], data: Sequence[Path] = (), images: bool = True) -> dict[str, Any]:
    """Everything the page shows of one store or several, ready for JSON; a number that is not finite is None.

    Of several stores, methods are labelled with the store that holds their answers: they stand side by side.
    """
    listed = [stores] if isinstance(stores, Store) else list(stores)
    names = _store_names([store.path for store in listed]) if len(listed) > 1 else [None]
    parts = [_of_store(store, name, data, images) for store, name in zip(listed, names)]
    return {
        "title": " and ".join(dict.fromkeys(_title(store) for store in listed)),
        "about": "; ".join(part["about"] for part in parts),
        "made": _moment(datetime.now(UTC).timestamp()),
        "softhull": __version__,
        "stores": [store.path.name for store in listed],
        "verdicts": list(VERDICTS),
        **_joined(parts),
    }


def _of_store(store: Store, name: str | None, data: Sequence[Path], images: bool) -> dict[str, Any]:
    """What is shown of one store; places of tasks, rows, messages and pictures are counted from 0."""
    asked = store.tasks()
    rows = list(store.rows())
    place = {task["id"]: number for number, task in enumerate(asked)}
    shown = pictures(store, asked, rows, data) if images else no_pictures()
    labels = [label if name is None else f"{label} · {name}" for label in method_labels(asked)]
    tasks = [
        _task(task, label, network, shown.sets_of_tasks.get(task["id"]))
        for task, label, network in zip(asked, labels, network_names(asked))
    ]
    said = {"": 0} | {text: 1 + number for number, text in enumerate(sorted({row.message for row in rows} - {""}))}
    total = sum(progress.total for progress in store.progress())
    return {
        "about": _about(rows),
        "unanswered": total - len(rows),
        "tasks": tasks,
        "messages": [text[:_LONGEST] for text in said],
        "columns": {
            "task": [place[row.task] for row in rows],
            "index": [row.index for row in rows],
            "label": [row.label for row in rows],
            "predicted": [row.predicted for row in rows],
            "new_class": [row.new_class for row in rows],
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


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of several stores as one: places of the later ones move behind those of the earlier ones."""
    found: dict[str, Any] = {"unanswered": 0, "tasks": [], "messages": [], "columns": {}, "datasets": [], "runs": []}
    found["pictures"] = {"sets": [], "worst": {}, "note": ""}
    for part in parts:
        shown, moved = found["pictures"], part["pictures"]
        tasks, messages, sets = len(found["tasks"]), len(found["messages"]), len(shown["sets"])
        rows = len(found["columns"].get("task", ()))
        for name, column in part["columns"].items():
            offset = {"task": tasks, "message": messages}.get(name, 0)
            found["columns"].setdefault(name, []).extend([entry + offset for entry in column] if offset else column)
        for task in part["tasks"]:
            found["tasks"].append(task | {"pictures": None if task["pictures"] is None else task["pictures"] + sets})
        found["datasets"] += [each | {"task": each["task"] + tasks} for each in part["datasets"]]
        found["messages"] += part["messages"]
        found["runs"] += part["runs"]
        found["unanswered"] += part["unanswered"]
        shown["sets"] += moved["sets"]
        shown["worst"] |= {row + rows: pixels for row, pixels in moved["worst"].items()}
        shown["note"] = " ".join(dict.fromkeys(filter(None, (shown["note"], moved["note"]))))
    return found


def _store_names(paths: Sequence[Path]) -> list[str]:
    """The names of the files, with their folders where two have the same, and numbers where that does not help."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.absolute().parent.name}/{path.name}" for path in paths]
    return names if len(set(names)) == len(names) else [f"{name} ({k + 1})" for k, name in enumerate(names)]


def _title(store: Store) -> str:
    """The campaigns that filled the store, or its own name where none did."""
    commands = [run["command"] for run in store.runs()]
    files = [command.get("campaign") for command in commands if isinstance(command, dict)]
    names = dict.fromkeys(Path(str(file)).stem for file in files if file)
    return f"{', '.join(list(names)[:3])[:200]} ({store.path.name})" if names else store.path.name


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
