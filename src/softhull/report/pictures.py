"""Pictures of inputs and worst inputs for a report, in bytes, where the data are images."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SofthullError
from ..formats.datasets import Dataset, load_dataset
from ..runs.rows import Row
from ..runs.store import Store
from ..runs.tasks import instance_keys

# Bytes of all pictures of one kind in a report, and pixels along a side: larger ones are averaged.
_BUDGET = 3 << 20
_SIDE = 48
_SMALLEST = 4


@dataclass(frozen=True)
class Pictures:
    """Sets of inputs (shape, and pixels by index), pixels of worst inputs by row, and which task has which set."""

    sets: list[dict[str, Any]]
    worst: dict[int, str]
    sets_of_tasks: dict[int, int]
    note: str


def no_pictures() -> Pictures:
    """No pictures, and no reason for that."""
    return Pictures([], {}, {}, "")


def pictures(
    store: Store, tasks: Sequence[Mapping[str, Any]], rows: Sequence[Row], data: Sequence[Path] = ()
) -> Pictures:
    """What can be shown of the inputs of a store.

    The data file a task names is read, but an input is shown only where its hash is the one in the store: a store made
    by somebody else shows nothing that its maker did not have.
    """
    sources = {task["id"]: _source(task, data) for task in tasks}
    notes: list[str] = []
    sets: dict[Path, _Set] = {}
    for path in dict.fromkeys(sources.values()):
        try:
            dataset = load_dataset(path) if path.is_file() else None
        except (SofthullError, OSError):
            dataset = None
        if dataset is None:
            notes.append(f"{path.name} was not found, so its inputs are not shown; name it with --data.")
        elif (layout := picture_layout(dataset.raw.shape[1:])) is not None:
            sets[path] = _Set(dataset, layout)
    by_task = {task["id"]: task for task in tasks}
    # By index first: all methods and radii of the first inputs rather than all inputs of the first task.
    order = sorted(range(len(rows)), key=lambda place: (rows[place].index, place))
    left = _BUDGET
    strangers = 0
    for place in order:
        row = rows[place]
        chosen = sets.get(sources[row.task])
        if chosen is None or row.index in chosen.inputs or left < chosen.bytes:
            continue
        if not chosen.matches(by_task[row.task], row):
            strangers += 1
            continue
        chosen.inputs[row.index] = chosen.pack(chosen.dataset.take([row.index])[0], by_task[row.task])
        left -= chosen.bytes
    if strangers:
        notes.append(f"{strangers} inputs in the data files are not those of the runs and are not shown.")
    left = _BUDGET
    worst: dict[int, str] = {}
    for place in order:
        row = rows[place]
        chosen = sets.get(sources[row.task])
        if chosen is None or row.index not in chosen.inputs or row.verdict not in ("falsified", "bounded"):
            continue
        if row.question == "dataset":  # what is kept of them is no input
            continue
        if left < chosen.bytes:
            notes.append("Worst inputs of the first instances are included, to keep the file small.")
            break
        found = store.worst_input(row.key)
        if found is not None and found.size == chosen.size and np.isfinite(found).all():
            worst[place] = chosen.pack(found, by_task[row.task])
            left -= chosen.bytes
    used = [path for path in sets if sets[path].inputs]
    numbers = {path: number for number, path in enumerate(used)}
    return Pictures(
        [{"shape": sets[path].layout.shown, "inputs": sets[path].inputs} for path in used],
        worst,
        {task: numbers[path] for task, path in sources.items() if path in numbers},
        " ".join(notes),
    )


@dataclass(frozen=True)
class Layout:
    """How the entries of an input are an image: rows, columns, colours, and the order they come in."""

    rows: int
    columns: int
    colours: int
    colours_first: bool

    @property
    def step(self) -> int:
        """Pixels averaged into one, along each side."""
        return math.ceil(max(self.rows, self.columns) / _SIDE)

    @property
    def shown(self) -> tuple[int, int, int]:
        """Rows, columns and colours as the page shows them."""
        return self.rows // self.step, self.columns // self.step, self.colours

    def image(self, x: np.ndarray) -> np.ndarray:
        """``[rows, columns, colours]`` as shown."""
        if self.colours_first:
            image = x.reshape(self.colours, self.rows, self.columns).transpose(1, 2, 0)
        else:
            image = x.reshape(self.rows, self.columns, self.colours)
        rows, columns, colours = self.shown
        cut = image[: rows * self.step, : columns * self.step]
        return cut.reshape(rows, self.step, columns, self.step, colours).mean(axis=(1, 3))


def picture_layout(shape: Sequence[int]) -> Layout | None:
    """The layout of inputs of this shape, None where they are no images."""
    if len(shape) == 1 and math.isqrt(shape[0]) ** 2 == shape[0] and math.isqrt(shape[0]) >= 8:
        shape = (math.isqrt(shape[0]),) * 2
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or 0 in shape:
        return None
    first = shape[0] in (1, 3) and shape[2] not in (1, 3)
    colours, rows, columns = (shape[0], shape[1], shape[2]) if first else (shape[2], shape[0], shape[1])
    if colours not in (1, 3) or min(rows, columns) < _SMALLEST or max(rows, columns) > _SIDE * min(rows, columns):
        return None
    return Layout(rows, columns, colours, first)


@dataclass(frozen=True)
class _Set:
    """One data file of images and the pictures taken from it."""

    dataset: Dataset
    layout: Layout
    inputs: dict[int, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return math.prod(self.dataset.raw.shape[1:])

    @property
    def bytes(self) -> int:
        return math.ceil(math.prod(self.layout.shown) / 3) * 4

    def matches(self, task: Mapping[str, Any], row: Row) -> bool:
        """Whether the input of that index is the one the row speaks about."""
        if not 0 <= row.index < len(self.dataset):
            return False
        try:
            models = [str(model["sha256"]) for model in task["models"]]
            x = self.dataset.take([row.index])
            return instance_keys(task["version"], models, task["settings"], x, [row.label]) == [row.key]
        except (SofthullError, TypeError, KeyError, ValueError, RecursionError):
            return False

    def pack(self, x: np.ndarray, task: Mapping[str, Any]) -> str:
        low, high = self._range(task)
        image = self.layout.image(np.asarray(x, dtype=np.float64).reshape(-1))
        share = np.clip((image - low) / (high - low if high > low else 1.0), 0, 1)
        return base64.b64encode(np.round(255 * share).astype(np.uint8).tobytes()).decode()

    def _range(self, task: Mapping[str, Any]) -> tuple[float, float]:
        """The values shown black and white."""
        if task["clip_low"] is not None and task["clip_high"] is not None:
            return task["clip_low"], task["clip_high"]
        if self.dataset.raw.dtype == np.uint8:
            return 0.0, 1.0
        with np.errstate(invalid="ignore"):
            low, high = float(np.nanmin(self.dataset.raw)), float(np.nanmax(self.dataset.raw))
        return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def _source(task: Mapping[str, Any], data: Sequence[Path]) -> Path:
    """The data file of a task: one named with the same file name, the only one named, or where the store says."""
    remembered = Path(task["data_path"])
    for path in data:
        if path.name == remembered.name:
            return path
    return data[0] if len(data) == 1 else remembered
