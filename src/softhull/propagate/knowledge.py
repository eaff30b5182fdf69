"""What is proved about the nodes of a graph over a batch of regions: a record that never changes.

A fact is proved when it is first asked for, from other facts, and kept. Better facts make a new record; those of its
facts that rest on worse ones stay true, and are let go where it pays to prove them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..graph.operator import Interval
from .structure import Structure

T = TypeVar("T")
Facts = dict[str, dict[int, Any]]

# Relaxations are made of intervals and differences, at little cost.
_RELAXATIONS = ("lines", "planes", "mixed planes", "remainders")


class Knowledge:
    """Facts by kind and node. It only ever gets tighter: what is given is met with what is known."""

    def __init__(self, structure: Structure, facts: Facts | None = None) -> None:
        self._structure = structure
        self._facts: Facts = {kind: dict(known) for kind, known in (facts or {}).items()}

    def find(self, kind: str, index: int, prove: Callable[[], T]) -> T:
        """A fact about a node, proved when it is first asked for."""
        known = self._facts.setdefault(kind, {})
        if index not in known:
            with torch.no_grad():
                known[index] = prove()
        return known[index]

    def known(self, kind: str) -> set[int]:
        """The nodes of which a kind of fact is known by now."""
        return set(self._facts.get(kind, ()))

    def take(self, instances: Tensor) -> Knowledge:
        """What is known of some of the instances, in the order given."""
        facts: Facts = {}
        for kind, known in self._facts.items():
            parts = ((i, _taken(fact, instances)) for i, fact in known.items())
            facts[kind] = {i: part for i, part in parts if part is not _LOST}
        return Knowledge(self._structure, facts)

    def to(self, dtype: torch.dtype) -> Knowledge:
        """The same numbers in another format, rounded to nearest: to search with, no longer proofs."""
        facts: Facts = {}
        for kind, known in self._facts.items():
            parts = ((i, brought(fact, dtype)) for i, fact in known.items())
            facts[kind] = {i: part for i, part in parts if part is not _LOST}
        return Knowledge(self._structure, facts)

    def handed_on(self) -> Knowledge:
        """What a later method starts from: the ranges of nodes, which its own walks can only make tighter."""
        return Knowledge(self._structure, {"rough": self._facts.get("rough", {}) | self._facts.get("interval", {})})

    def with_interval(self, index: int, found: Interval) -> Knowledge:
        """Better bounds ``[B, *shape]`` on a node; what follows from them is proved again when asked for."""
        better = self.met("interval", index, self.met("rough", index, found))
        return self._renewed(index)._with("interval", index, better)

    def with_differences(self, index: int, found: Interval, renew: bool = True) -> Knowledge:
        """Better bounds ``[B, rows, K, K]`` on the differences within the rows that a softmax is taken of.

        Without ``renew`` only the planes of this softmax are made again: to prove all that follows takes many walks.
        """
        better = self._renewed(index) if renew else self._without(_RELAXATIONS, {index})
        return better._with("differences", index, self.met("differences", index, found))

    def with_planes(self, index: int, planes: Any) -> Knowledge:
        """Other planes of one softmax."""
        return self._with("planes", index, planes)

    def met(self, kind: str, index: int, found: Interval) -> Interval:
        """Bounds on a node, met with those of a kind that are known of it."""
        known = self._facts.get(kind, {}).get(index)
        if known is None:
            return found
        return torch.maximum(found[0], known[0]), torch.minimum(found[1], known[1])

    def _with(self, kind: str, index: int, fact: Any) -> Knowledge:
        return Knowledge(self._structure, self._facts | {kind: self._facts.get(kind, {}) | {index: fact}})

    def _without(self, kinds: Iterable[str], nodes: set[int]) -> Knowledge:
        left = {kind: {i: f for i, f in self._facts.get(kind, {}).items() if i not in nodes} for kind in kinds}
        return Knowledge(self._structure, self._facts | left)

    def _renewed(self, index: int) -> Knowledge:
        """Without what rests on a node; of its intervals it is still known that they hold, which is where to start."""
        after = self._structure.after(index)
        known = {i: pair for i, pair in self._facts.get("interval", {}).items() if i in after or i == index}
        rough = Knowledge(self._structure, self._facts | {"rough": self._facts.get("rough", {}) | known})
        return rough._without(("interval", *_RELAXATIONS), after | {index})._without(("differences",), after)


_LOST = object()


def brought(fact: Any, dtype: torch.dtype) -> Any:
    """A fact, or any record of tensors, with its numbers in another format."""
    if isinstance(fact, Tensor):
        return fact.to(dtype) if fact.is_floating_point() else fact
    if isinstance(fact, tuple | list):
        parts = [brought(part, dtype) for part in fact]
        return _LOST if any(part is _LOST for part in parts) else type(fact)(parts)
    if is_dataclass(fact) and not isinstance(fact, type):
        named = {f.name: brought(getattr(fact, f.name), dtype) for f in fields(fact)}
        return _LOST if any(part is _LOST for part in named.values()) else replace(fact, **named)
    return fact if fact is None or isinstance(fact, int | float | str) else _LOST


def _taken(fact: Any, instances: Tensor) -> Any:
    if fact is None:
        return None
    if isinstance(fact, Tensor):
        return fact[instances]
    if isinstance(fact, tuple | list):
        parts = [_taken(part, instances) for part in fact]
        return _LOST if any(part is _LOST for part in parts) else type(fact)(parts)
    return fact.take(instances) if hasattr(fact, "take") else _LOST
