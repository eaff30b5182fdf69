"""One question through a store: what is known is read, what is not is worked out here and kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .campaign import Work
from .engine import Limits, conduct
from .local import Lost
from .progress import find_reporter
from .questions import find_question
from .store import Store
from .tasks import Answer, Model, Task
from .worker import Batch, Outcome, answer_batch

if TYPE_CHECKING:
    from ..formats.datasets import Dataset
    from ..formats.network import Network
    from ..verify.result import Result
    from ..verify.uncertainty import UncertaintyResult


class InProcess:
    """An executor that works in the calling process."""

    workers = 1

    def __init__(self, networks: dict[str, Any]) -> None:
        self._networks = networks
        self._batch: Batch | None = None

    def room(self) -> int:
        return int(self._batch is None)

    def submit(self, batch: Batch) -> None:
        self._batch = batch

    def wait(self, seconds: float) -> list[Outcome | Lost]:
        if self._batch is None:
            return []
        batch, self._batch = self._batch, None
        return [answer_batch(batch, self._networks.__getitem__)]

    def close(self) -> None:
        self._batch = None


@dataclass(frozen=True)
class Asked:
    """A question with all its arguments, as the functions of ``verify`` take them."""

    question: str
    networks: Sequence[Network]
    dataset: Dataset
    indices: list[int]
    perturbation: Any
    method_name: str
    method: Any
    bound: str | None
    keywords: dict[str, Any]

    def work(self) -> Work:
        question = find_question(self.question)
        name = "+".join(dict.fromkeys(Path(network.path).stem for network in self.networks))
        task = Task(
            self.question,
            name,
            tuple(Model(str(Path(network.path).absolute()), network.sha256) for network in self.networks),
            Path(self.dataset.path).stem,
            str(Path(self.dataset.path).absolute()),
            self.perturbation,
            self.method_name,
            self.method,
            question.softmax_bound(self.method, self.bound),
            question.keywords(self.keywords),
        )
        return Work(task, self.dataset, self.indices)


def answer_through_store(path: str, asked: Asked, timeout: float | None) -> list[Answer | None]:
    """One answer per index; None where the time did not suffice. An interrupt leaves what was done in the store."""
    work = asked.work()
    networks = {network.sha256: network for network in asked.networks}
    with Store.write(path, {"command": asked.question, "models": [n.path for n in asked.networks]}) as store:
        conduct(
            [work], store, InProcess(networks), find_reporter(not sys.stderr.isatty(), None), Limits(budget=timeout)
        )
        keys = work.task.keys(asked.dataset.take(asked.indices), asked.dataset.y[asked.indices])
        found = store.answers(keys)
    return [found.get(key) for key in keys]


def robustness_through_store(path: str, asked: Asked, timeout: float | None) -> Result:
    """The result of ``verify_robustness``; its cost is what the answers cost when they were found."""
    from ..verify.result import Record, Result, Verdict

    began = time.monotonic()
    records = []
    cpu = 0.0
    for index, answer in zip(asked.indices, answer_through_store(path, asked, timeout)):
        answer = answer or Answer("unknown", message="the time limit passed; raise it")
        cpu += answer.cpu_seconds
        label = int(asked.dataset.y[index])
        records.append(
            Record(
                index,
                Verdict(answer.verdict),
                label,
                answer.bound,
                answer.attack,
                answer.worst_input,
                answer.message,
            )
        )
    return Result(tuple(records), cpu, time.monotonic() - began, rounding=asked.method.rounding)


def uncertainty_through_store(path: str, asked: Asked, timeout: float | None) -> UncertaintyResult:
    """The result of ``verify_uncertainty``, its numbers NaN where an instance failed or the time did not suffice."""
    from ..verify.scores import find_score
    from ..verify.uncertainty import ScoreRecord, UncertaintyResult

    began = time.monotonic()
    records = []
    cpu = 0.0
    for index, answer in zip(asked.indices, answer_through_store(path, asked, timeout)):
        answer = answer or Answer("unknown", message="the time limit passed; raise it")
        cpu += answer.cpu_seconds
        worst = np.array([]) if answer.worst_input is None else answer.worst_input
        bound, attack, clean = (np.nan if n is None else n for n in (answer.bound, answer.attack, answer.clean))
        label = int(asked.dataset.y[index])
        records.append(ScoreRecord(index, label, bound, attack, clean, worst, answer.message))
    score, rounding = find_score(asked.keywords["score"]), asked.keywords["rounding"]
    return UncertaintyResult(score, tuple(records), (), cpu, time.monotonic() - began, rounding)
