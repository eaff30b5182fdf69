"""The instances of a question, here or on several processes: whatever happens, each gets a record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..deadlines import interrupt, interrupted, interruptible, why_stopped
from ..errors import InvalidInput, MissingExtra, SofthullError
from ..workers import Lost, Workers, available_cores

K = TypeVar("K")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Progress = Callable[[int, int], None]  # (instances answered, instances in all)

# Workers take a few seconds to start: what is done by then is done here.
_WORTH_WORKERS = 6.0
# How many instances it takes to find out.
_TRIAL = 32
# Into how many batches instances are cut for any number of workers: at least a few, but while there are more none is
# smaller than this, as a batch costs about as much as eight of its instances on top. Batches do not depend on who
# works: an answer may depend, in its last digits, on what else is in its batch.
_BATCHES, _FEWEST, _SMALLEST = 8, 4, 16
# Seconds in which workers start that were loaded before.
_START = 0.5
# Seconds that workers get to come back with their best so far.
_GRACE = 10.0


class Asked(Protocol[R_co]):
    """A question about numbered instances; it can travel to another process."""

    def apart(self, batch: Tensor) -> Sequence[Tensor]:
        """The instances of a batch in groups to be answered one by one, so that no answer depends on its company."""

    def answer(self, batch: Tensor) -> Sequence[R_co]:
        """A record for each of these instances; a deadline or an interrupt leaves the best found so far."""

    def nothing(self, index: int, why: str, failed: bool = False) -> R_co:
        """The record of an instance of which nothing is known."""


@dataclass(frozen=True)
class Answers(Generic[R]):
    """Records by the number of their instance, and what they cost."""

    records: dict[int, R]
    cpu_seconds: float
    seconds: float
    interrupted: bool


def answer_all(
    asked: Asked[R],
    instances: Tensor,
    size: int,
    workers: int | str | None = None,
    progress: Progress | None = None,
    ease: Tensor | None = None,
) -> Answers[R]:
    """Records of some instances, at most ``size`` of which are worked on at once.

    ``workers`` processes share them, ``"auto"``: one per CPU if the work proves to be long, None:
    this process works alone. Within, Ctrl-C is a deadline that has passed. ``ease``: of every instance there is, a
    number that is low where it may take long; workers begin with these, so that none is left with one in the end.
    """
    if not (workers in (None, "auto") or (isinstance(workers, int) and workers >= 1)):
        raise InvalidInput(f"workers must be a whole number of at least 1 or 'auto', got {workers!r}")
    began, cpu = time.monotonic(), time.process_time()
    records: dict[int, R] = {}
    elsewhere = 0.0

    def keep(found: dict[int, R]) -> None:
        records.update(found)
        if progress is not None:
            progress(len(records), len(instances))

    with interruptible():
        left = instances
        if workers == "auto" and available_cores() > 1 and len(left) > _TRIAL:
            keep(answered(asked, left[: min(size, _TRIAL)]))
            left = left[len(records) :]
            # By CPU time: on a busy machine more processes gain nothing.
            rest = (time.process_time() - cpu) / len(records) * len(left)
            workers = available_cores() if rest > _WORTH_WORKERS else None
        if isinstance(workers, int):
            batches = _batches(left if ease is None else left[ease[left].argsort(stable=True)], size, ease is not None)
        else:
            batches = list(left.split(size)) if len(left) else []
        if isinstance(workers, int) and workers > 1 and len(batches) > 1:
            for found, spent in _by_workers(asked, batches, workers):
                elsewhere += spent
                keep(found)
        else:
            for batch in batches:
                keep(answered(asked, batch))
        stopped = interrupted()
    return Answers(records, time.process_time() - cpu + elsewhere, time.monotonic() - began, stopped)


def _batches(instances: Tensor, most: int, hardest_first: bool) -> list[Tensor]:
    """Batches of at most this size, smaller ones at the end: no worker is long at work when the others are done.

    Where the hardest are first, these batches are small ones, too: they are most of the work.
    """
    count = len(instances)
    size = min(most, max(math.ceil(count / _BATCHES), min(_SMALLEST, math.ceil(count / _FEWEST))))
    found: list[Tensor] = []
    grown = _SMALLEST if hardest_first else size
    while left := len(instances):
        fitting = size if left > 2 * size else max(math.ceil(size / 2), math.ceil(left / 4))
        found.append(instances[: min(grown, fitting)])
        grown = min(size, math.ceil(1.5 * grown))
        instances = instances[len(found[-1]) :]
    return found


def answered(asked: Asked[R], batch: Tensor) -> dict[int, R]:
    """Records by number; one instance that fails does not take the others with it."""
    numbers = batch.tolist()
    if interrupted():
        return {i: asked.nothing(i, why_stopped()) for i in numbers}
    began, cpu = time.monotonic(), time.process_time()
    try:
        parts = asked.apart(batch)
        found = {i: one for part in parts for i, one in zip(part.tolist(), asked.answer(part), strict=True)}
        return shared_costs(found, time.process_time() - cpu, time.monotonic() - began)
    except KeyboardInterrupt:
        interrupt()
        return {i: asked.nothing(i, why_stopped()) for i in numbers}
    except (InvalidInput, MissingExtra):
        raise
    except (SofthullError, RuntimeError, MemoryError, ValueError) as problem:
        if len(batch) == 1:
            line = " ".join(str(problem).split()) or type(problem).__name__
            return {numbers[0]: asked.nothing(numbers[0], line, failed=True)}
    parts = batch.split(max(1, len(batch) // 4))
    return {i: record for part in parts for i, record in answered(asked, part).items()}


def shared_costs(records: dict[K, R], cpu_seconds: float, seconds: float) -> dict[K, R]:
    """The records with what their instances took, all of them together as much as is given.

    A record says what was spent on its instance; the rest of the batch's time belongs to all of them alike.
    """
    totals = {"cpu_seconds": cpu_seconds, "seconds": seconds}
    known: dict[K, Any] = {key: record for key, record in records.items() if hasattr(record, "cpu_seconds")}
    rest = {
        name: max(0.0, total - sum(getattr(record, name) for record in known.values())) / max(1, len(known))
        for name, total in totals.items()
    }
    timed = {
        key: replace(record, **{name: getattr(record, name) + more for name, more in rest.items()})
        for key, record in known.items()
    }
    return records | timed


def _by_workers(asked: Asked[R], batches: list[Tensor], workers: int) -> Iterator[tuple[dict[int, R], float]]:
    """Records of all batches as they come, with the CPU seconds they took."""
    pool = Workers(min(workers, len(batches)), _Prepare(asked))
    waiting = dict(enumerate(batches))
    in_hand: dict[int, Tensor] = {}
    count = len(waiting)
    grace = math.inf
    try:
        while in_hand or (waiting and not interrupted()):
            if interrupted() and grace == math.inf:
                grace = time.monotonic() + _GRACE
                pool.stop()
            if time.monotonic() > grace:
                break
            while waiting and pool.room() and not interrupted():
                number = min(waiting)
                in_hand[number] = waiting.pop(number)
                pool.submit(number, in_hand[number])
            for found in pool.wait(0.2 if pool.started() or not waiting else _START):
                batch = in_hand.pop(found.number)
                if not isinstance(found, Lost):
                    yield found.answer
                elif len(batch) == 1:
                    yield {int(batch[0]): asked.nothing(int(batch[0]), found.reason, failed=True)}, 0.0
                else:  # one instance may have been too large, and must not take the others with it
                    for part in batch.split((len(batch) + 1) // 2):
                        waiting[count], count = part, count + 1
            if waiting and not pool.started() and not interrupted():  # this process works while they are loading
                with _one_thread():
                    records = answered(asked, waiting.pop(min(waiting)))
                yield records, 0.0
    finally:
        pool.close()
    for batch in (*in_hand.values(), *waiting.values()):
        yield {i: asked.nothing(i, why_stopped()) for i in batch.tolist()}, 0.0


@contextmanager
def _one_thread() -> Iterator[None]:
    """What workers have, too: the order of a sum may depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Prepare(Generic[R]):
    """A question on its way to a worker."""

    asked: Asked[R]

    def __call__(self) -> Callable[[Tensor], tuple[dict[int, R], float]]:
        def work(batch: Tensor) -> tuple[dict[int, R], float]:
            began = time.process_time()
            found = answered(self.asked, batch)
            return found, time.process_time() - began

        return work
