"""Filters such as ``verdict=certified and eps<=0.02``: comparisons of columns with values, nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidInput
from .rows import NUMBERS, SQL, WORDS

_COMPARISON = re.compile(r"\s*([a-z_]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*", re.DOTALL)
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)


@dataclass(frozen=True)
class Where:
    """A condition in SQL with its values apart from it."""

    condition: str = "1"
    values: tuple[float | str, ...] = ()


def parse_where(texts: Sequence[str]) -> Where:
    """All the comparisons given, each of the form COLUMN OPERATOR VALUE, joined by ``and``."""
    conditions: list[str] = []
    values: list[float | str] = []
    for text in texts:
        for part in _AND.split(text):
            condition, value = _comparison(part)
            conditions.append(condition)
            if value is not None:
                values.append(value)
    return Where(" AND ".join(conditions) or "1", tuple(values))


def _comparison(text: str) -> tuple[str, float | str | None]:
    match = _COMPARISON.fullmatch(text)
    if match is None:
        raise InvalidInput(f"--where {text!r}: write COLUMN OPERATOR VALUE, for example eps<=0.02 or verdict=certified")
    column, operator, value = match.groups()
    value = value.strip("'\"")
    operator = {"==": "="}.get(operator, operator)
    number = _number(value)
    if column == "bound" and number is None and value != "null":
        column = "softmax_bound"  # the certified number and the name of the softmax bound share a word
    if column not in NUMBERS and column not in WORDS:
        known = ", ".join((*NUMBERS, *WORDS))
        raise InvalidInput(f"--where {text!r}: there is no column {column!r}; known: {known}")
    if value == "null" and operator in ("=", "!="):
        return f"{SQL[column]} {'IS' if operator == '=' else 'IS NOT'} NULL", None
    if column in WORDS:
        return f"{SQL[column]} {operator} ?", value
    if number is None:
        raise InvalidInput(f"--where {text!r}: {column} is compared with a number, not with {value!r}")
    return f"{SQL[column]} {operator} ?", number


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return None if math.isnan(number) else number
