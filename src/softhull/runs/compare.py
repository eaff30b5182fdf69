"""Which method does what another one does not: the same instances, side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from ..errors import InvalidInput
from .rows import Row

# What one may compare by; ``bound`` is the softmax bound.
CRITERIA = {
    "bound": "softmax_bound",
    "method": "method",
    "rounding": "rounding",
    "network": "network",
    "eps": "eps",
    "norm": "norm",
    "property": "property",
    "version": "version",
}
_PROBLEM = ("index", "question", "network", "data", "eps", "norm", "clip_low", "clip_high", "property", "score")
_HOW = ("method", "softmax_bound", "rounding", "settings", "version")


@dataclass(frozen=True)
class Side:
    """One value of the criterion over the instances that all values answered."""

    value: str
    instances: int
    certified: int
    alone: int  # certified by no other value
    bound: float | None  # mean of the finite bounds, for scores
    tightest: int  # best bound of all, for scores
    median_cpu: float
    total_cpu: float

    def to_dict(self) -> dict[str, Any]:
        """The side as plain values."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Pair:
    """Two values: what each certifies and the other does not, and the ratio of their median costs."""

    first: str
    second: str
    only_first: int
    only_second: int
    both: int
    cpu_ratio: float | None

    def to_dict(self) -> dict[str, Any]:
        """The pair as plain values."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Comparison:
    """A question, its sides, and what they certify together (the portfolio)."""

    question: str
    score: str | None
    sides: tuple[Side, ...]
    pairs: tuple[Pair, ...]
    instances: int
    together: int

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values."""
        plain = {"question": self.question, "score": self.score, "instances": self.instances, "together": self.together}
        return plain | {"sides": [s.to_dict() for s in self.sides], "pairs": [p.to_dict() for p in self.pairs]}


def compare(rows: Iterable[Row], by: str) -> list[Comparison]:
    """One comparison per question and score, over the instances answered for every value of ``by``."""
    if by not in CRITERIA:
        raise InvalidInput(f"--by {by}: choose {', '.join(CRITERIA)}")
    column = CRITERIA[by]
    kinds: dict[tuple[str, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.question, row.score].append(row)
    found = [_comparison(kind, listed, column, by) for kind, listed in kinds.items()]
    paired = [comparison for comparison in found if comparison.instances and len(comparison.sides) > 1]
    if found and not paired:
        values = list(dict.fromkeys(side.value for comparison in found for side in comparison.sides))
        if len(values) == 1:
            raise InvalidInput(f"--by {by}: all answers have the {by} {values[0]!r}; there is nothing to compare")
        listed = ", ".join(values[:5])
        raise InvalidInput(f"--by {by}: no instance was answered with all of {listed}; narrow it down with --where")
    return paired


def _comparison(kind: tuple[str, str | None], rows: Sequence[Row], column: str, by: str) -> Comparison:
    """Compares the answers to one kind of question on the instances that all sides answered."""
    cells: dict[tuple[Any, ...], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        cell = cells[_same(row, column)]
        value = str(getattr(row, column))
        if value in cell:
            raise InvalidInput(
                f"--by {by}: {value!r} answers instance {row.index} in several ways; narrow it down with --where, "
                "for example --where method=linear"
            )
        cell[value] = row
    values = list(dict.fromkeys(str(getattr(row, column)) for row in rows))
    shared = [cell for cell in cells.values() if len(cell) == len(values)]
    sides = tuple(_side(value, shared, kind[1]) for value in values)
    costs = {side.value: side.median_cpu for side in sides}
    pairs = tuple(_pair(a, b, shared, costs) for a, b in combinations(values, 2))
    together = sum(any(row.verdict == "certified" for row in cell.values()) for cell in shared)
    return Comparison(*kind, sides, pairs, len(shared), together)


def _same(row: Row, column: str) -> tuple[Any, ...]:
    """What must agree between two rows to be compared: the problem, and for anything but methods the method too."""
    problem = [getattr(row, name) for name in _PROBLEM if name != column]
    if column == "softmax_bound":
        return (*problem, row.method)
    return tuple(problem if column in _HOW else [*problem, row.method, row.softmax_bound])


def _side(value: str, cells: Sequence[dict[str, Row]], score: str | None) -> Side:
    """What one value of the compared column achieved, alone and among the others."""
    own = [cell[value] for cell in cells]
    certified = [cell for cell in cells if cell[value].verdict == "certified"]
    alone = sum(sum(row.verdict == "certified" for row in cell.values()) == 1 for cell in certified)
    bounds = [row.bound for row in own if row.bound is not None and math.isfinite(row.bound)]
    sign = -1 if score is not None and _is_bad_when_low(score) else 1
    tightest = sum(all(_loose(cell[value], sign) <= _loose(row, sign) for row in cell.values()) for cell in cells)
    mean = sum(bounds) / len(bounds) if score is not None and bounds else None
    cpu = [row.cpu_seconds for row in own]
    return Side(
        value,
        len(own),
        len(certified),
        alone,
        mean,
        tightest if score is not None else 0,
        median(cpu) if cpu else 0.0,
        sum(cpu),
    )


def _is_bad_when_low(score: str) -> bool:
    from ..verify.scores import worst_when  # loads torch, which comparing verdicts does not need

    return worst_when(score) == "low"


def _loose(row: Row, sign: int) -> float:
    return math.inf if row.bound is None or math.isnan(row.bound) else sign * row.bound


def _pair(first: str, second: str, cells: Sequence[dict[str, Row]], costs: dict[str, float]) -> Pair:
    one = [cell[first].verdict == "certified" for cell in cells]
    two = [cell[second].verdict == "certified" for cell in cells]
    ratio = costs[first] / costs[second] if costs[second] > 0 else None
    only_first = sum(a and not b for a, b in zip(one, two))
    only_second = sum(b and not a for a, b in zip(one, two))
    return Pair(first, second, only_first, only_second, sum(a and b for a, b in zip(one, two)), ratio)
