"""Workers on this machine: one process each, one thread each."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ..errors import SofthullError
from .worker import Batch, ModelFile, Outcome, answer_batch, load_networks

_FALSE_STARTS = 2  # workers that may end before they are ready, in a whole run


@dataclass(frozen=True)
class Lost:
    """A batch whose worker ended before it answered."""

    number: int
    reason: str


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    ready: bool = False
    batch: Batch | None = None


class LocalExecutor:
    """``workers`` fresh processes; one that ends is replaced."""

    def __init__(self, workers: int, models: Mapping[str, ModelFile], memory: int | None = None) -> None:
        self.workers = workers
        self._models = dict(models)
        self._memory = memory
        self._context = multiprocessing.get_context("spawn")
        self._pool: list[_Worker] = []
        self._false_starts = 0

    @property
    def name(self) -> str:
        return f"local:{self.workers}"

    def room(self) -> int:
        """How many more batches could be worked on at once."""
        return self.workers - sum(worker.batch is not None for worker in self._pool)

    def submit(self, batch: Batch) -> None:
        worker = next((w for w in self._pool if w.batch is None), None) or self._start()
        worker.batch = batch
        with suppress(OSError):  # it may just have ended: ``wait`` finds its remains
            worker.connection.send(batch)

    def wait(self, seconds: float) -> list[Outcome | Lost]:
        """What was finished or lost, after at most so many seconds."""
        found: list[Outcome | Lost] = []
        for ready in wait([worker.connection for worker in self._pool], timeout=seconds):
            worker = next(w for w in self._pool if w.connection is ready)
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                found += self._bury(worker)
                continue
            if isinstance(message, Outcome):
                worker.batch = None
                found.append(message)
            elif message == "ready":
                worker.ready = True
            else:
                raise SofthullError(str(message))
        return found

    def close(self) -> None:
        """End all workers at once; what they were doing is lost."""
        for worker in self._pool:
            worker.process.kill()
        for worker in self._pool:
            worker.process.join()
            worker.connection.close()
        self._pool.clear()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._models, self._memory), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._pool.append(worker)
        return worker

    def _bury(self, worker: _Worker) -> list[Outcome | Lost]:
        worker.process.join()
        worker.connection.close()
        self._pool.remove(worker)
        code = worker.process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if worker.batch is None:
            return []
        if not worker.ready:  # killed by chance, or would every other end like it?
            self._false_starts += 1
            if self._false_starts > _FALSE_STARTS:
                raise SofthullError(f"a worker process ended while it started ({how}); memory may be short")
            self.submit(worker.batch)
            return []
        return [Lost(worker.batch.number, f"the worker process ended ({how}); memory may be short")]


def _serve(connection: Connection, models: dict[str, ModelFile], memory: int | None) -> None:
    """The life of a worker; it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before torch is loaded: workers share the processors by being many, not by having threads.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    batches: queue.SimpleQueue[Batch] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, batches), daemon=True).start()
    try:
        _prepare(memory)
    except SofthullError as problem:
        connection.send(str(problem))
        return
    connection.send("ready")
    load = load_networks(models.__getitem__)
    while True:
        connection.send(answer_batch(batches.get(), load))


def _prepare(memory: int | None) -> None:
    import torch

    from .memory import Meter, limit_process

    torch.set_num_threads(1)
    if memory is None:
        return
    from ..verify import robustness as robustness  # the largest part of what a worker loads

    base = Meter().now()
    if memory < 1.2 * base:
        raise SofthullError(
            f"--memory leaves {memory >> 20} MB to each worker, but {base >> 20} MB are taken before it begins; "
            "allow more memory or fewer workers"
        )
    limit_process(memory)


def _listen(connection: Connection, batches: queue.SimpleQueue[Batch]) -> None:
    """Batches as they come; when the other end is gone there is nobody left to work for.

    A batch that cannot be read ends the process, too: a worker that no longer listens would never be missed.
    """
    code = 1
    try:
        while True:
            batches.put(connection.recv())
    except (EOFError, OSError):
        code = 0
    finally:
        os._exit(code)
