"""When to stop: one meaning of ``timeout``, ``budget`` and Ctrl-C for every question.

Ctrl-C is a deadline that has passed: whatever looks at its deadline returns the best found so far.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from types import FrameType

from .errors import InvalidInput

OUT_OF_TIME = "the time limit passed; raise it"
INTERRUPTED = "interrupted"

_began = time.monotonic()
_interrupted = False
_questions = 0  # that are being answered, one inside the other


def deadline_after(timeout: float | None, name: str = "timeout") -> float:
    """The moment on ``time.monotonic`` at which a question returns the best found so far; None: never.

    A limit of 0 is a deadline that has passed, not bad input: the answer is what is known without any work.
    """
    if timeout is None:
        return math.inf
    if not isinstance(timeout, Real) or isinstance(timeout, bool) or not timeout >= 0:
        raise InvalidInput(f"{name} must be a number of seconds of at least 0, got {timeout!r}")
    return time.monotonic() + timeout


def since_start() -> float:
    """Seconds since this process was started; on systems that do not say, since it began to count."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stream:
            ticks = int(stream.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _began


@dataclass(frozen=True)
class TimeLimits:
    """How long a question may take: until ``deadline`` in all, and ``each`` seconds for an instance."""

    deadline: float = math.inf
    each: float = math.inf

    @classmethod
    def of(cls, timeout: float | None, budget: float | None) -> TimeLimits:
        """Limits from now on: ``timeout`` seconds for an instance, ``budget`` seconds for all of them."""
        deadline_after(timeout)  # refuses what is not a number of seconds
        return cls(deadline_after(budget, "budget"), math.inf if timeout is None else timeout)

    def for_batch(self, count: int) -> float:
        """The deadline of ``count`` instances that are worked on together from now on: they share their time."""
        return min(self.deadline, time.monotonic() + self.each * count)


def passed(deadline: float | None) -> bool:
    """Whether it is time to stop; without a deadline, only for an interrupt."""
    return _interrupted or (deadline is not None and time.monotonic() >= deadline)


def seconds_left(deadline: float) -> float:
    """How long work may go on: 0 when it is time to stop, infinite without a limit."""
    return 0.0 if _interrupted else max(0.0, deadline - time.monotonic())


def interrupted() -> bool:
    """Whether Ctrl-C was pressed within the question that is being answered."""
    return _interrupted


def why_stopped() -> str:
    """What to tell of an instance on which the work was cut short."""
    return INTERRUPTED if _interrupted else OUT_OF_TIME


def interrupt() -> None:
    """Let every deadline pass."""
    global _interrupted
    _interrupted = True


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first Ctrl-C lets every deadline pass; the second one is a KeyboardInterrupt.

    Signals reach the main thread alone, and whoever has set a handler of his own keeps it.
    """
    global _interrupted, _questions
    mine = threading.current_thread() is threading.main_thread()
    mine = mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def once(number: int, frame: FrameType | None) -> None:
        if _interrupted:
            raise KeyboardInterrupt
        interrupt()

    if mine:
        signal.signal(signal.SIGINT, once)
    _questions += 1
    try:
        yield
    finally:
        _questions -= 1
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if not _questions:
            _interrupted = False
