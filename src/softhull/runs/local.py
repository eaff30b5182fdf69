"""Batches on the worker processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import SofthullError
from ..workers import Lost, Workers
from .worker import Batch, ModelFile, Outcome, answer_batch, load_networks


class LocalExecutor:
    """``workers`` processes, each with at most ``memory`` bytes."""

    def __init__(self, workers: int, models: Mapping[str, ModelFile], memory: int | None = None) -> None:
        self.workers = workers
        self._pool = Workers(workers, _Prepare(dict(models), memory))

    @property
    def name(self) -> str:
        """How the command line names it."""
        return f"local:{self.workers}"

    def room(self) -> int:
        """How many more batches could be worked on at once."""
        return self._pool.room()

    def submit(self, batch: Batch) -> None:
        """Gives a batch to a worker process."""
        self._pool.submit(batch.number, batch)

    def wait(self, seconds: float) -> list[Outcome | Lost]:
        """What was finished or lost, after at most so many seconds."""
        return [found if isinstance(found, Lost) else found.answer for found in self._pool.wait(seconds)]

    def close(self) -> None:
        """End all workers at once; what they were doing is lost."""
        self._pool.close()


@dataclass(frozen=True)
class _Prepare:
    """What a worker does before its first batch: it keeps to its memory, and reads networks as batches name them."""

    models: dict[str, ModelFile]
    memory: int | None

    def __call__(self) -> Callable[[Batch], Outcome]:
        load = load_networks(self.models.__getitem__)
        if self.memory is not None:
            self._limit(self.memory)
        return lambda batch: answer_batch(batch, load)

    @staticmethod
    def _limit(memory: int) -> None:
        """Limits the memory of this process; an error where less is allowed than it starts with."""
        from ..verify import robustness as robustness  # the largest part of what a worker loads
        from .memory import Meter, limit_process

        base = Meter().now()
        if memory < 1.2 * base:
            raise SofthullError(
                f"--memory leaves {memory >> 20} MB to each worker, but {base >> 20} MB are taken before it begins; "
                "allow more memory or fewer workers"
            )
        limit_process(memory)
