"""One question through a store: what is known is read, what is not is worked out here and kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..deadlines import INTERRUPTED, OUT_OF_TIME, TimeLimits
from ..errors import StoreError
from ..workers import Lost
from .campaign import Work
from .engine import Executor, Limits, conduct
from .executors import Choice
from .progress import Reporter, find_reporter
from .questions import find_question
from .store import Store
from .tasks import Answer, Model, Task
from .worker import Batch, ModelFile, Outcome, answer_batch

if TYPE_CHECKING:
    from ..formats.datasets import Dataset
    from ..formats.network import Network
    from ..verify.dataset import DatasetReport
    from ..verify.result import Result
    from ..verify.uncertainty import UncertaintyResult


class InProcess:
    """An executor that works in the calling process."""

    workers = 1

    def __init__(self, networks: dict[str, Any]) -> None:
        self._networks = networks
        self._batch: Batch | None = None

    def room(self) -> int:
        """One batch at a time."""
        return int(self._batch is None)

    def submit(self, batch: Batch) -> None:
        """Keeps a batch until it is waited for."""
        self._batch = batch

    def wait(self, seconds: float) -> list[Outcome | Lost]:
        """Answers the batch in this process."""
        if self._batch is None:
            return []
        batch, self._batch = self._batch, None
        return [answer_batch(batch, self._networks.__getitem__)]

    def close(self) -> None:
        """Forgets the batch."""
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

    def described(self) -> dict[str, Any]:
        """What was asked, for the result."""
        import torch

        from ..verify.about import describe

        x, labels = (torch.from_numpy(part) for part in (self.dataset.take(self.indices), self.dataset.y[self.indices]))
        bound = {} if self.bound is None else {"bound": self.bound}
        return describe(
            self.question, self.networks, x, labels, self.perturbation, self.method, **bound, **self.keywords
        )

    def work(self) -> Work:
        """The question as work for the engine."""
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
            question.defaults(),
        )
        return Work(task, self.dataset, self.indices)


@dataclass(frozen=True)
class Found:
    """An answer per index, with its label, and the cost: CPU seconds when it was found, seconds to get it.

    ``differences``: where a recheck contradicts the store, ``{"index", "was", "found"}`` each.
    """

    answers: list[tuple[int, int, Answer]]
    cpu_seconds: float
    seconds: float
    differences: list[dict[str, Any]]
    interrupted: bool = False


def answer_through_store(
    path: str,
    asked: Asked,
    limits: Limits | None = None,
    choice: Choice | None = None,
    reporter: Reporter | None = None,
) -> Found:
    """What the store knows in the end, also after an interrupt; instances that were not reached are unknown.

    ``limits``: time, device, and whether to compute again what the store knows already. ``choice``: who works, if not
    this process. ``reporter`` is told how far it is; by default a bar shows it on a terminal.
    """
    began = time.monotonic()
    limits = limits or Limits()
    TimeLimits.of(limits.timeout, limits.budget)
    work = asked.work()
    networks = {network.sha256: network for network in asked.networks}
    why = OUT_OF_TIME
    reporter = reporter or find_reporter(not sys.stderr.isatty(), None)
    with Store.write(path, {"command": asked.question, "models": [n.path for n in asked.networks]}) as store:
        files = {sha256: ModelFile(network.path, network.model) for sha256, network in networks.items()}
        team: Executor = InProcess(networks) if choice is None else choice.start(files, None)
        try:
            conduct([work], store, team, reporter, limits)
        except KeyboardInterrupt:
            why = INTERRUPTED
        labels = asked.dataset.y[asked.indices]
        keys = work.task.keys(asked.dataset.take(asked.indices), labels)
        known = store.answers(keys)
        changed = {difference.key: difference for difference in store.differences}
    late = Answer("unknown", message=why)
    answers = [(i, int(label), known.get(key, late)) for i, label, key in zip(asked.indices, labels, keys)]
    differences = [{"index": i, **changed[key].to_dict()} for i, key in zip(asked.indices, keys) if key in changed]
    spent = sum(answer.cpu_seconds for _, _, answer in answers)
    return Found(answers, spent, time.monotonic() - began, differences, why == INTERRUPTED)


def robustness_result(found: Found, asked: Asked) -> Result:
    """The result of ``verify_robustness``."""
    from ..verify.result import Record, Result, Verdict

    known = {verdict.value: verdict for verdict in Verdict}
    records = []
    for i, label, a in found.answers:
        if a.verdict not in known:
            raise StoreError(f"the store calls instance {i} {a.verdict}, which is no verdict of this question")
        records.append(Record(i, known[a.verdict], label, a.bound, a.attack, a.worst_input, a.message, **_of_answer(a)))
    cost = found.cpu_seconds, found.seconds, found.interrupted
    return Result(tuple(records), *cost, asked.method.rounding, asked.described())


def uncertainty_result(found: Found, asked: Asked) -> UncertaintyResult:
    """The result of ``verify_uncertainty``, its numbers NaN where an instance failed or the time did not suffice."""
    from ..verify.scores import find_score
    from ..verify.uncertainty import ScoreRecord, UncertaintyResult

    records = []
    for i, label, a in found.answers:
        bound, attack, clean = (np.nan if number is None else number for number in (a.bound, a.attack, a.clean))
        worst = np.array([]) if a.worst_input is None else a.worst_input
        failed = a.verdict == "error"
        records.append(ScoreRecord(i, label, bound, attack, clean, worst, a.message, failed, **_of_answer(a)))
    score, rounding = find_score(asked.keywords["score"]), asked.keywords["rounding"]
    cost = found.cpu_seconds, found.seconds, rounding, found.interrupted
    return UncertaintyResult(score, tuple(records), *cost, asked.described())


def dataset_result(found: Found, asked: Asked) -> DatasetReport:
    """The result of ``certify_dataset``; nothing is claimed of samples that were not reached or that failed."""
    from ..verify.dataset import nothing_answered, pack_samples, report_of_rows

    rows = [answer.worst_input for _, _, answer in found.answers]
    labels = np.array([label for _, label, _ in found.answers])
    notes = {place: a.message for place, (_, _, a) in enumerate(found.answers) if a.message}
    open_ = [place for place, row in enumerate(rows) if row is None]
    if open_:
        x, bins = asked.dataset.take([asked.indices[place] for place in open_]), asked.keywords["bins"]
        unknown = nothing_answered(asked.networks, x, labels[open_], asked.perturbation, bins, notes[open_[0]])
        for place, row in zip(open_, pack_samples(unknown)):
            rows[place] = row
    known = [row for row in rows if row is not None]
    return replace(
        report_of_rows(asked.perturbation.largest, labels, known, asked.keywords["bins"], notes),
        cpu_seconds=found.cpu_seconds,
        seconds=found.seconds,
        rounding=asked.keywords["rounding"],
        from_store=sum(answer.from_store for _, _, answer in found.answers),
        unanswered=len(open_),
        interrupted=found.interrupted,
        about=asked.described(),
    )


def _of_answer(answer: Answer) -> dict[str, Any]:
    """What records of all questions take over from an answer."""
    names = ("from_store", "predicted", "new_class", "cpu_seconds", "seconds")
    return {name: getattr(answer, name) for name in names}
