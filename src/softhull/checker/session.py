"""The working precision of a computation."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from flint import ctx

from .balls import PRECISION

P = ParamSpec("P")
R = TypeVar("R")


def exactly(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with the precision of the checker, whatever the caller has set."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with ctx.workprec(PRECISION):
            return function(*args, **kwargs)

    return run
