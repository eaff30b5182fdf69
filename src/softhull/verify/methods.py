"""The table of methods: what each is called, which questions it answers, and where its settings are."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any

from ..errors import InvalidInput, unknown

CLASSES, SCORES, RANGES = "classes", "scores", "ranges of probabilities"

EVERYTHING, PROGRAMS = (CLASSES, SCORES, RANGES), (SCORES, RANGES)


@dataclass(frozen=True)
class Entry:
    """A method: the module and class of its settings, the questions it answers, and what it needs."""

    name: str
    place: str
    answers: tuple[str, ...]
    about: str

    def settings(self) -> type:
        """The class of its settings, loaded on first use."""
        module, _, name = self.place.partition(":")
        found: type = getattr(import_module(f"..{module}", __package__), name)
        return found


TABLE = {
    entry.name: entry
    for entry in (
        Entry("auto", "propagate.methods:Auto", EVERYTHING, "whatever decides an instance first"),
        Entry("linear", "propagate.methods:Linear", EVERYTHING, "linear bounds of networks of any kind"),
        Entry("second-order", "propagate.methods:SecondOrder", EVERYTHING, "products in one quadratic"),
        Entry("paper", "propagate.methods:Paper", (CLASSES,), "as Wei et al. (2023) ran it"),
        Entry("dual", "solve.dual:Dual", PROGRAMS, "one convex program, by gradient steps; feedforward networks"),
        Entry("lp", "solve.cutting:CuttingPlanes", PROGRAMS, "the same by linear programs; feedforward networks"),
        Entry("conic", "solve.conic:Conic", PROGRAMS, "the same by a conic solver; feedforward networks"),
        Entry("branch", "propagate.methods:Branch", (CLASSES, SCORES), "regions cut into cells; scores: feedforward"),
    )
}


def names_for(question: str) -> tuple[str, ...]:
    """The methods that answer a question, the default first."""
    return tuple(name for name, entry in TABLE.items() if question in entry.answers)


def find_method(method: Any, question: str = CLASSES, **settings: Any) -> Any:
    """A method by its name, with settings where they are not None; a method object is returned as it is.

    InvalidInput where there is no such method, or it does not answer the question.
    """
    entry = TABLE.get(method) if isinstance(method, str) else _entry_of(method)
    known = names_for(question)
    choose = f"choose {', '.join(known[:-1])} or {known[-1]}"
    if entry is None:
        raise InvalidInput(unknown("method", method, known))
    if question not in entry.answers:
        raise InvalidInput(f"method {entry.name!r} does not bound {question}; {choose}")
    found = entry.settings()() if isinstance(method, str) else method
    for name, value in settings.items():
        found = found if value is None else _with(found, entry, name, value)
    return found


def _entry_of(method: Any) -> Entry | None:
    return next((entry for entry in TABLE.values() if entry.place.endswith(f":{type(method).__name__}")), None)


def _with(method: Any, entry: Entry, name: str, value: Any) -> Any:
    """The method with one setting changed, wherever in it the setting lives."""
    own = {field.name for field in fields(method)}
    if name in own:
        return replace(method, **{name: value})
    if name == "branch" and "seconds" in own:
        return replace(method, seconds=value)
    if "inner" in own:  # a method that works by another one
        return replace(method, inner=_with(method.inner, entry, name, value))
    if name == "optimize" and value == 0:  # it takes none
        return method
    takes = {"optimize": "gradient steps", "branch": "seconds for branching"}.get(name, name)
    raise InvalidInput(f"method {entry.name!r} takes no {takes}")
