"""What a worker process does: answers batches, whatever happens to single instances."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .. import __version__
from ..errors import InputWarning, SofthullError
from .memory import Meter, is_out_of_memory
from .questions import find_question
from .tasks import Answer, Task


@dataclass(frozen=True)
class ModelFile:
    """A network as it travels: its name for messages and its self-contained ONNX bytes."""

    path: str
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class Batch:
    """Instances of one task; ``limit`` seconds for each, ``left`` seconds for all that is still to come."""

    number: int
    task: Task
    keys: tuple[str, ...]
    x: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    limit: float | None = None
    left: float | None = None
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, start: int, stop: int) -> Batch:
        """The instances from ``start`` to ``stop``."""
        return replace(self, keys=self.keys[start:stop], x=self.x[start:stop], labels=self.labels[start:stop])


@dataclass(frozen=True)
class Outcome:
    """Answers by key (those the time did not reach are missing), and the memory they took."""

    number: int
    answers: dict[str, Answer]
    base: int
    peak: int
    smallest_refused: int = 0  # instances of the smallest batch that did not fit into memory
    version: str = __version__


def load_networks(models: Callable[[str], ModelFile]) -> Callable[[str], Any]:
    """Networks by their hash, each read once per process."""

    @lru_cache(maxsize=64)
    def load(sha256: str) -> Any:
        from ..formats.onnx import parse_onnx

        file = models(sha256)
        return parse_onnx(file.content, file.path, None)

    return load


def answer_batch(batch: Batch, load: Callable[[str], Any]) -> Outcome:
    """Every instance answered; one that fails gets the verdict ``error`` with its reason."""
    meter = Meter()
    meter.reset()
    base = meter.now()
    work = _Work(batch, load)
    answers = work.answers(batch)
    return Outcome(batch.number, answers, base, meter.peak(), work.smallest_refused)


class _Work:
    def __init__(self, batch: Batch, load: Callable[[str], Any]) -> None:
        self.load = load
        self.deadline = None if batch.left is None else time.monotonic() + batch.left
        self.smallest_refused = 0

    def answers(self, batch: Batch) -> dict[str, Answer]:
        """Answers to the instances of a batch; one that does not fit into memory or fails is split."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            return {}  # for the next run
        seconds = self._seconds(batch)
        began, cpu = time.monotonic(), time.process_time()
        try:
            found = self._ask(batch, seconds)
        except Exception as problem:  # one instance must not take the others, or the run, with it
            if is_out_of_memory(problem):
                self.smallest_refused = min(len(batch), self.smallest_refused or len(batch))
            if len(batch) > 1:
                middle = (len(batch) + 1) // 2
                return self.answers(batch.part(0, middle)) | self.answers(batch.part(middle, len(batch)))
            found = [Answer("error", message=_line(problem))]
        spent, cpu = time.monotonic() - began, time.process_time() - cpu
        cut = None if seconds is None or spent < seconds else self._allowed(batch, seconds)
        from ..verify.instances import shared_costs

        timed = shared_costs(dict(zip(batch.keys, found)), cpu, spent)
        return {
            key: replace(answer, cut_after=cut if answer.verdict in ("unknown", "bounded") else None)
            for key, answer in timed.items()
        }

    def _ask(self, batch: Batch, seconds: float | None) -> Sequence[Answer]:
        question = find_question(batch.task.question)
        networks = [self.load(model.sha256) for model in batch.task.models]
        options = {"budget": seconds, "device": batch.device}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)  # who asked has been told
            return question.ask(batch.task, networks, batch.x, batch.labels, options)

    def _seconds(self, batch: Batch) -> float | None:
        """For the whole batch: its instances share their time, and the budget bounds it."""
        limits = [] if batch.limit is None else [batch.limit * len(batch)]
        if self.deadline is not None:
            limits.append(max(0.0, self.deadline - time.monotonic()))
        return min(limits, default=None)

    @staticmethod
    def _allowed(batch: Batch, seconds: float) -> float:
        return seconds if batch.limit is None else min(batch.limit, seconds)


def _line(problem: Exception) -> str:
    text = " ".join(str(problem).split())
    if isinstance(problem, SofthullError) and text:
        return text
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
