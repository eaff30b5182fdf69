"""Arguments that had another name before."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def renamed(**now: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function whose keyword arguments had other names before: the old ones still work, with a warning."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def called(*arguments: P.args, **named: P.kwargs) -> T:
            for old in named.keys() & now.keys():
                new = now[old]
                if new in named:
                    raise TypeError(f"{function.__name__}() takes {new!r} or its old name {old!r}, not both")
                warnings.warn(f"{old!r} is now called {new!r}", DeprecationWarning, stacklevel=2)
                named[new] = named.pop(old)
            return function(*arguments, **named)

        return called

    return decorate
