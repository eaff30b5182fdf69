"""Independent pieces of a study on several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def available_cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_processes(
    work: Callable[[Task], Answer], tasks: Sequence[Task], workers: int
) -> Iterator[tuple[int, Answer]]:
    """``(position, answer)`` of every task, as they finish; ``work`` is a function of a module.

    Closing the iterator early (Ctrl-C) drops what has not started.
    """
    if workers <= 1 or len(tasks) <= 1:
        for position, task in enumerate(tasks):
            yield position, work(task)
        return
    # A fresh interpreter per worker: forking a process that runs threads (a progress bar) can deadlock.
    fresh = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), mp_context=fresh, initializer=_leave_interrupts_to_parent)
    try:
        futures = {pool.submit(work, task): position for position, task in enumerate(tasks)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
