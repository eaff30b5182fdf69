"""Processes of this machine that share work: one thread each, replaced when they end."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeVar

from .deadlines import interrupt
from .errors import SofthullError

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Work = Callable[[Any], Any]

_FALSE_STARTS = 2  # workers that may end before they are ready, all told
_STOP = getattr(signal, "SIGUSR1", None)  # tells a worker to return the best so far; not on every system


def available_cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Done:
    """What came of a task."""

    number: int
    answer: Any


@dataclass(frozen=True)
class Lost:
    """A task whose worker ended before it answered."""

    number: int
    reason: str


@dataclass(frozen=True)
class _Failed:
    """What a worker raised."""

    problem: Exception


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    ready: bool = False
    task: tuple[int, bytes] | None = None
    since: float = math.inf  # when work on the task began


class Workers:
    """``count`` fresh processes. ``prepare`` is called once in each and returns the function that tasks are given to.

    A fresh interpreter per worker: forking a process that runs threads (a progress bar) can deadlock. Interrupts are
    left to the process that started them.
    """

    def __init__(self, count: int, prepare: Callable[[], Work]) -> None:
        self.count = count
        self._prepare = pickle.dumps(prepare)
        self._context = _context()
        self._pool: list[_Worker] = []
        self._false_starts = 0

    def room(self) -> int:
        """How many more tasks could be worked on at once."""
        return self.count - sum(worker.task is not None for worker in self._pool)

    def started(self) -> bool:
        """Whether any of them is ready for work."""
        return any(worker.ready for worker in self._pool)

    def submit(self, number: int, task: Any) -> None:
        """Gives a task to a free worker, or to one that is started for it."""
        # Pickled by hand: torch would hand tensors over through shared memory, which ends with this process.
        self._give((number, pickle.dumps(task)))

    def _give(self, task: tuple[int, bytes]) -> None:
        worker = next((w for w in self._pool if w.task is None), None) or self._start()
        worker.task, worker.since = task, time.monotonic() if worker.ready else math.inf
        with suppress(OSError):  # it may just have ended: ``wait`` finds its remains
            worker.connection.send_bytes(task[1])

    def wait(self, seconds: float) -> list[Done | Lost]:
        """What was finished or lost, after at most so many seconds; raises what a worker raised."""
        found: list[Done | Lost] = []
        for ready in wait([worker.connection for worker in self._pool], timeout=seconds):
            worker = next(w for w in self._pool if w.connection is ready)
            try:
                message = pickle.loads(worker.connection.recv_bytes())
            except (EOFError, OSError):
                found += self._bury(worker)
                continue
            if isinstance(message, _Failed):
                raise message.problem
            if worker.ready and worker.task is not None:
                found.append(Done(worker.task[0], message))
                worker.task = None
            elif not worker.ready:
                worker.since = time.monotonic()
            worker.ready = True
        return found

    def end_late(self, limit: Callable[[int], float]) -> list[int]:
        """End workers that have been on a task for longer than its limit in seconds; the tasks given up with them."""
        now, found = time.monotonic(), []
        for worker in [w for w in self._pool if w.task is not None and now > w.since + limit(w.task[0])]:
            worker.process.kill()
            found += [lost.number for lost in self._bury(worker) if isinstance(lost, Lost)]
        return found

    def stop(self) -> None:
        """Let every deadline of the workers pass: they answer with the best so far."""
        for worker in self._pool:
            if _STOP is not None and worker.ready and worker.process.pid is not None:
                with suppress(OSError):
                    os.kill(worker.process.pid, _STOP)

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
        process = self._context.Process(target=_serve, args=(theirs, self._prepare), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._pool.append(worker)
        return worker

    def _bury(self, worker: _Worker) -> list[Done | Lost]:
        """Cleans up after a worker that ended, and says which task was lost with it."""
        worker.process.join()
        worker.connection.close()
        self._pool.remove(worker)
        code = worker.process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if worker.task is None:
            return []
        if not worker.ready:  # killed by chance, or would every other end like it?
            self._false_starts += 1
            if self._false_starts > _FALSE_STARTS:
                raise SofthullError(f"a worker process ended while it started ({how}); memory may be short")
            self._give(worker.task)
            return []
        return [Lost(worker.task[0], f"the worker process ended ({how}); memory may be short")]


def _context() -> ForkServerContext | SpawnContext:
    """Processes that come from a fresh one: it loads the largest part of what they need once, for all of them."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["softhull.verify.robustness"])
    return found


def start_loading() -> None:
    """Begin to load what workers need, in another process, while this one is still busy with what it needs itself."""
    context = _context()
    if context.get_start_method() == "forkserver":
        from multiprocessing import forkserver

        with _without_interrupts():  # which that process inherits: Ctrl-C is for this one to answer
            forkserver.ensure_running()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def map_in_processes(
    work: Callable[[Task], Answer], tasks: Sequence[Task], workers: int
) -> Iterator[tuple[int, Answer]]:
    """``(position, answer)`` of every task, as they finish; ``work`` is a function of a module.

    Closing the iterator early (Ctrl-C) ends the workers.
    """
    if workers <= 1 or len(tasks) <= 1:
        for position, task in enumerate(tasks):
            yield position, work(task)
        return
    pool = Workers(min(workers, len(tasks)), _Ready(work))
    waiting, left = iter(enumerate(tasks)), len(tasks)
    try:
        while left:
            for _ in range(pool.room()):
                if (following := next(waiting, None)) is not None:
                    pool.submit(*following)
            for found in pool.wait(1.0):
                if isinstance(found, Lost):
                    raise SofthullError(found.reason)
                left -= 1
                yield found.number, found.answer
    finally:
        pool.close()


@dataclass(frozen=True)
class _Ready:
    """A function that needs no preparation."""

    work: Work

    def __call__(self) -> Work:
        return self.work


def _serve(connection: Connection, prepare: bytes) -> None:
    """The life of a worker; it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _STOP is not None:
        signal.signal(_STOP, lambda number, frame: interrupt())
    # Before torch is loaded: workers share the processors by being many, not by having threads.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, tasks), daemon=True).start()
    try:
        work = pickle.loads(prepare)()
        if (torch := sys.modules.get("torch")) is not None:  # the main module may have loaded it even before
            torch.set_num_threads(1)
        connection.send_bytes(pickle.dumps("ready"))
        while True:
            connection.send_bytes(pickle.dumps(work(pickle.loads(tasks.get()))))
    except Exception as problem:
        connection.send_bytes(pickle.dumps(_Failed(problem)))


def _listen(connection: Connection, tasks: queue.SimpleQueue[bytes]) -> None:
    """Tasks as they come; when the other end is gone there is nobody left to work for."""
    try:
        while True:
            tasks.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)
