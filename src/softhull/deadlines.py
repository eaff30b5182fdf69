"""Time limits: one meaning of ``timeout`` for every question."""

from __future__ import annotations

import math
import time
from numbers import Real

from .errors import InvalidInput

OUT_OF_TIME = "the time limit passed; raise it"


def deadline_after(timeout: float | None, name: str = "timeout") -> float:
    """The moment on ``time.monotonic`` at which a question returns the best found so far; None: never.

    A limit of 0 is a deadline that has passed, not bad input: the answer is what is known without any work.
    """
    if timeout is None:
        return math.inf
    if not isinstance(timeout, Real) or isinstance(timeout, bool) or not timeout >= 0:
        raise InvalidInput(f"{name} must be a number of seconds of at least 0, got {timeout!r}")
    return time.monotonic() + timeout
