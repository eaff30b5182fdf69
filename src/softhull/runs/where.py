"""Filters such as ``verdict=certified and eps<=0.02``: comparisons of columns with values, nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidInput, unknown
from .questions import QUESTIONS
from .rows import NUMBERS, SQL, WORDS
from .schema import VERDICTS

# Columns whose words are known whatever a store holds.
_KNOWN = {"verdict": VERDICTS, "question": tuple(QUESTIONS), "norm": ("inf", "2", "1")}

_COMPARISON = re.compile(r"\s*([a-z_]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*", re.DOTALL)
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)


@dataclass(frozen=True)
class Where:
    """A condition in SQL with its values apart from it; ``words``: column and value of every word looked for."""

    condition: str = "1"
    values: tuple[float | str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()


def parse_where(texts: Sequence[str]) -> Where:
    """All the comparisons given, each of the form COLUMN OPERATOR VALUE, joined by ``and``."""
    conditions: list[str] = []
    values: list[float | str] = []
    words: list[tuple[str, str]] = []
    for text in texts:
        for part in _AND.split(text):
            column, condition, value = _comparison(part)
            conditions.append(condition)
            if value is not None:
                values.append(value)
            if isinstance(value, str):
                words.append((column, value))
    return Where(" AND ".join(conditions) or "1", tuple(values), tuple(words))


def _comparison(text: str) -> tuple[str, str, float | str | None]:
    """One comparison of ``--where`` as SQL with its value."""
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
        raise InvalidInput(f"--where {text!r}: {unknown('column', column, (*NUMBERS, *WORDS))}")
    if value == "null" and operator in ("=", "!="):
        return column, f"{SQL[column]} {'IS' if operator == '=' else 'IS NOT'} NULL", None
    if column in WORDS:
        if operator in ("=", "!=") and column in _KNOWN and value not in _KNOWN[column]:
            raise InvalidInput(f"--where {text!r}: {unknown(column, value, _KNOWN[column])}")
        return column, f"{SQL[column]} {operator} ?", value
    if number is None:
        raise InvalidInput(f"--where {text!r}: {column} is compared with a number, not with {value!r}")
    return column, f"{SQL[column]} {operator} ?", number


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return None if math.isnan(number) else number
