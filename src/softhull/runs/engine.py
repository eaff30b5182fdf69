"""The loop of a run: claim a batch, hand it to a worker, store what comes back; until nothing is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from .. import __version__
from ..errors import SofthullError
from ..workers import Lost
from .campaign import Work
from .memory import BatchSizes
from .progress import Reporter, Tally
from .store import Store
from .tasks import Answer
from .worker import Batch, Outcome

_HEARTBEAT = 5.0
_POLL = 0.5  # seconds between two looks at what other processes have done
_GRACE = 10.0  # seconds beyond the budget in which a batch may still come back with its best so far
_HASHED_TOGETHER = 512
_TOGETHER = 50  # instances of a batch


class Executor(Protocol):
    """Whoever works on batches: processes here, or a cluster."""

    workers: int

    def room(self) -> int:
        """How many more batches it takes now."""

    def submit(self, batch: Batch) -> None:
        """Gives it a batch."""

    def wait(self, seconds: float) -> list[Outcome | Lost]:
        """What was finished or lost, after at most so many seconds."""

    def close(self) -> None:
        """Ends its workers; what they were doing is lost."""


@dataclass(frozen=True)
class Limits:
    """What a run may use: seconds an instance and in all, bytes a worker, instances at once.

    ``batch``: None for one at a time where the method branches, whose answers are dear to lose, and 50 elsewhere.
    ``again``: errors are tried again; ``recheck``: so is everything that the store knows already.
    """

    timeout: float | None = None
    budget: float | None = None
    memory: int | None = None
    batch: int | None = None
    device: str = "cpu"
    again: bool = False
    recheck: bool = False


@dataclass(frozen=True)
class _Chunk:
    """Instances that are always worked on together, so that an answer does not depend on what was interrupted when."""

    number: int  # of the task in the store
    work: Work
    indices: tuple[int, ...]
    keys: tuple[str, ...]

    def split(self, size: int) -> tuple[_Chunk, _Chunk]:
        first = replace(self, indices=self.indices[:size], keys=self.keys[:size])
        return first, replace(self, indices=self.indices[size:], keys=self.keys[size:])

    def only(self, keys: Sequence[str]) -> _Chunk:
        kept = set(keys)
        pairs = [(i, key) for i, key in zip(self.indices, self.keys) if key in kept]
        return replace(self, indices=tuple(i for i, _ in pairs), keys=tuple(key for _, key in pairs))


@dataclass
class _InHand:
    chunk: _Chunk
    batch: Batch
    losses: int = 0


def conduct(
    works: Sequence[Work], store: Store, executor: Executor, reporter: Reporter, limits: Limits
) -> tuple[str, dict[int, Work]]:
    """Answer everything that is open; returns why it ended (``finished``, ``budget``) and the tasks by number.

    An interrupt ends the workers and passes on; whatever was answered is in the store.
    """
    return _Run(works, store, executor, reporter, limits).run()


class _Run:
    def __init__(
        self, works: Sequence[Work], store: Store, executor: Executor, reporter: Reporter, limits: Limits
    ) -> None:
        self.store, self.executor, self.reporter, self.limits = store, executor, reporter, limits
        self.deadline = None if limits.budget is None else time.monotonic() + limits.budget
        self.sizes = BatchSizes(limits.batch or _TOGETHER, limits.memory)
        self.tasks: dict[int, Work] = {}
        self.open: deque[_Chunk] = deque()
        self.elsewhere: deque[_Chunk] = deque()
        self.lost: deque[_InHand] = deque()
        self.in_hand: dict[int, _InHand] = {}
        self.copies: dict[str, int] = {}
        self.tally = Tally(0)
        self.batches = 0
        self.heard = time.monotonic()
        self._prepare(works)

    def run(self) -> tuple[str, dict[int, Work]]:
        """Answers everything that is not in the store; returns why it ended, and the tasks by number."""
        self.reporter.began(self.tally)
        why = "failed"
        try:
            while self.open or self.elsewhere or self.in_hand or self.lost:
                if self._late():
                    if not self.in_hand or self._late(_GRACE):
                        why = "budget"
                        return why, self.tasks
                else:
                    self._hand_out()
                for found in self.executor.wait(_POLL if self.in_hand or self.open else 0.0):
                    self._take(found)
                self._keep_in_touch()
            why = "finished"
            return why, self.tasks
        except KeyboardInterrupt:
            why = "interrupted"
            raise
        finally:
            self.executor.close()
            self.reporter.ended(self.tally, why)

    def _prepare(self, works: Sequence[Work]) -> None:
        """Registers the work in the store and cuts what is unanswered into batches."""
        known: set[str] = set()
        for work in works:
            keys = list(_keys(work))
            labels = work.dataset.y[work.indices].tolist()
            number = self.store.register(work.task, work.indices, labels, keys)
            self.tasks[number] = work
            self.tally.total += len(keys)
            pairs = []
            for index, key in zip(work.indices, keys):
                self.copies[key] = self.copies.get(key, 0) + 1
                if key not in known:
                    known.add(key)
                    pairs.append((index, key))
            size = self.limits.batch or (1 if work.task.branches else _TOGETHER)
            for start in range(0, len(pairs), size):
                part = pairs[start : start + size]
                self.open.append(_Chunk(number, work, tuple(i for i, _ in part), tuple(key for _, key in part)))
        for chunk in list(self.open):
            left = set(self._still_open(chunk).keys)
            self._count(self.store.verdicts([key for key in chunk.keys if key not in left]))
        self.open = deque(chunk for chunk in map(self._still_open, self.open) if chunk.keys)
        self.tally.began = time.monotonic()

    def _still_open(self, chunk: _Chunk) -> _Chunk:
        return chunk.only(self.store.unanswered(chunk.keys, self._limit(), self.limits.again, self.limits.recheck))

    def _limit(self) -> float | None:
        limits = [] if self.limits.timeout is None else [self.limits.timeout]
        if self.deadline is not None:
            limits.append(max(0.0, self.deadline - time.monotonic()))
        return min(limits, default=None)

    def _late(self, grace: float = 0.0) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline + grace

    def _hand_out(self) -> None:
        while self.executor.room() > 0:
            if self.lost:
                again = self.lost.popleft()
                self._submit(again.chunk, again.losses)
                continue
            chunk = self._claimed()
            if chunk is None:
                return
            self._submit(chunk, 0)

    def _claimed(self) -> _Chunk | None:
        """The next instances that nobody else has; those that others have are looked at again later."""
        while self.open:
            chunk = self.open.popleft()
            size = self.sizes.size(chunk.number)
            if size < len(chunk.keys):
                chunk, rest = chunk.split(size)
                self.open.appendleft(rest)
            mine = self.store.claim(chunk.keys, self._limit(), self.limits.again, self.limits.recheck)
            others = chunk.only([key for key in chunk.keys if key not in set(mine)])
            if others.keys:
                self.elsewhere.append(others)
            if mine:
                return chunk.only(mine)
        return None

    def _submit(self, chunk: _Chunk, losses: int) -> None:
        """Gives a chunk to the executor as a batch."""
        self.batches += 1
        indices = np.asarray(chunk.indices)
        batch = Batch(
            self.batches,
            chunk.work.task,
            chunk.keys,
            chunk.work.dataset.take(indices),
            chunk.work.dataset.y[indices],
            self.limits.timeout,
            None if self.deadline is None else max(0.0, self.deadline - time.monotonic()),
            self.limits.device,
        )
        self.in_hand[batch.number] = _InHand(chunk, batch, losses)
        self.reporter.started(chunk.number, list(chunk.indices))
        self.executor.submit(batch)

    def _take(self, found: Outcome | Lost) -> None:
        """Stores the answers of a batch, or splits and repeats one that was lost."""
        held = self.in_hand.pop(found.number)
        chunk = held.chunk
        if isinstance(found, Outcome):
            if found.version != __version__:
                raise SofthullError(
                    f"a worker runs softhull {found.version}, this is {__version__}; install one version"
                )
            self.sizes.measured(chunk.number, len(chunk.keys), found.base, found.peak)
            if found.smallest_refused:
                self.sizes.refused(chunk.number, found.smallest_refused)
            self._keep(chunk, found.answers)
        elif held.losses == 0:  # a machine may go for any reason; the same batch once more
            self.lost.append(_InHand(chunk, held.batch, 1))
        elif len(chunk.keys) > 1:
            self.sizes.refused(chunk.number, len(chunk.keys))
            self.lost.extend(_InHand(part, held.batch, 1) for part in chunk.split((len(chunk.keys) + 1) // 2))
        else:
            self._keep(chunk, {chunk.keys[0]: Answer("error", message=found.reason)})

    def _keep(self, chunk: _Chunk, answers: dict[str, Answer]) -> None:
        self.store.record(answers, self.limits.recheck)
        missing = [key for key in chunk.keys if key not in answers]
        if missing:
            self.store.release(missing)
            self.open.append(chunk.only(missing))
        done = chunk.only(list(answers))
        self.tally.computed += len(answers)
        self._count({key: answer.verdict for key, answer in answers.items()})
        self.reporter.answered(done.number, list(done.indices), [answers[key].verdict for key in done.keys], self.tally)

    def _count(self, verdicts: dict[str, str]) -> None:
        """Instances that share an answer are all done with it."""
        for key, verdict in verdicts.items():
            self.tally.verdicts[verdict] += self.copies[key]

    def _keep_in_touch(self) -> None:
        """Tells the store that this run lives, and looks after instances that others had claimed."""
        if time.monotonic() - self.heard > _HEARTBEAT:
            self.heard = time.monotonic()
            self.store.heartbeat()
        if self.open or self.in_hand or self.lost or not self.elsewhere:
            return
        self.reporter.waiting(sum(len(chunk.keys) for chunk in self.elsewhere))
        self.store.release_the_dead()
        waiting, self.elsewhere = self.elsewhere, deque()
        for chunk in waiting:
            left = self._still_open(chunk)
            done = self.store.verdicts([key for key in chunk.keys if key not in set(left.keys)])
            if done:
                self._count(done)
                known = chunk.only(list(done))
                self.reporter.answered(known.number, list(known.indices), [done[k] for k in known.keys], self.tally)
            if left.keys:
                self.open.append(left)
        if self.open and not self._late():
            self._hand_out()
        if not self.in_hand:
            time.sleep(_POLL)


def _keys(work: Work) -> Iterator[str]:
    for start in range(0, len(work.indices), _HASHED_TOGETHER):
        part = work.indices[start : start + _HASHED_TOGETHER]
        yield from work.task.keys(work.dataset.take(part), work.dataset.y[part])
