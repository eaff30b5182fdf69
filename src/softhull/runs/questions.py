"""The questions a campaign can ask, under one roof: their methods, their settings, their answers."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np

from ..boxes import as_index
from ..errors import InvalidInput, unknown
from ..verify.methods import CLASSES, RANGES, SCORES, find_method
from .tasks import Answer, Task

# Arguments that every task brings itself, or that change no answer.
_TAKEN = frozenset(
    (
        *("network", "networks", "x", "y", "label", "perturbation", "method", "bound"),
        *("timeout", "budget", "memory", "dtype", "device", "certificates", "workers", "progress", "proofs"),
    )
)


class Question(ABC):
    """A function of ``verify`` that answers batches of instances."""

    name: ClassVar[str]
    about: ClassVar[str] = SCORES  # what its methods bound

    @abstractmethod
    def function(self) -> Callable[..., Any]:
        """The function behind the question."""

    @abstractmethod
    def ask(
        self, task: Task, networks: Sequence[Any], x: np.ndarray, labels: np.ndarray, options: dict[str, Any]
    ) -> list[Answer]:
        """One answer per instance, with what is known of its cost; ``options``: budget, device."""

    def find(self, method: str) -> Any:
        """The settings of a method by its name; InvalidInput when it does not answer this question."""
        return find_method(method, self.about)

    def method(self, name: str | None, bound: str | None, settings: dict[str, Any]) -> tuple[str, Any, str]:
        """The name of a method (None: the default), its settings object, and the softmax bound it rests on."""
        name = name or str(inspect.signature(self.function()).parameters["method"].default)
        found = self.find(name)
        known = {field.name: getattr(found, field.name) for field in fields(found)}
        if "bound" in known:
            settings = settings | ({} if bound is None else {"bound": bound})
        for key, value in settings.items():
            if key not in known:
                raise InvalidInput(f"method {name!r} has no setting {key!r}; it has {', '.join(sorted(known))}")
            settings = settings | {key: _like(known[key], value, f"setting {key!r} of method {name!r}")}
        found = replace(found, **settings)
        return name, found, self.softmax_bound(found, bound)

    @abstractmethod
    def softmax_bound(self, method: Any, bound: str | None) -> str:
        """The name of the softmax bound in use."""

    def defaults(self) -> dict[str, Any]:
        """All other arguments of the question."""
        parameters = inspect.signature(self.function()).parameters
        return {name: p.default for name, p in parameters.items() if name not in _TAKEN | self.fixed}

    def keywords(self, given: dict[str, Any]) -> dict[str, Any]:
        """All other arguments of the question, the given ones in place of the defaults."""
        known = self.defaults()
        for key, value in given.items():
            if key not in known:
                raise InvalidInput(f"{self.name} has no {key!r}; it has {', '.join(sorted(known))}")
            known[key] = _like(known[key], value, f"{key!r} of {self.name}")
        return known

    fixed: ClassVar[frozenset[str]] = frozenset()


class Robustness(Question):
    """Does every perturbed input keep its class?"""

    name = "robustness"
    about = CLASSES

    def function(self) -> Callable[..., Any]:
        from ..verify.robustness import verify_robustness

        return verify_robustness

    def softmax_bound(self, method: Any, bound: str | None) -> str:
        return str(getattr(method, "bound", bound or ""))

    def keywords(self, given: dict[str, Any]) -> dict[str, Any]:
        found = super().keywords(given)
        if found["property"] not in ("all", "runner-up", "targets"):
            raise InvalidInput(unknown("property", found["property"], ("all", "runner-up", "targets")))
        if (found["property"] == "targets") != bool(found["targets"]):
            raise InvalidInput("property 'targets' and a list of targets belong together")
        return found | {"targets": found["targets"] and tuple(as_index(t, "targets") for t in found["targets"])}

    def ask(
        self, task: Task, networks: Sequence[Any], x: np.ndarray, labels: np.ndarray, options: dict[str, Any]
    ) -> list[Answer]:
        result = self.function()(
            networks[0], x, labels, task.perturbation, method=task.method, **task.keywords, **options
        )
        _whole(result)
        return [
            Answer(r.verdict.value, r.bound, r.attack, None, r.message, r.counterexample, **_of_record(r))
            for r in result
        ]


class Uncertainty(Question):
    """How bad can the score of a classifier or an ensemble become?"""

    name = "uncertainty"
    fixed = frozenset(("attack",))

    def function(self) -> Callable[..., Any]:
        from ..verify.uncertainty import verify_uncertainty

        return verify_uncertainty

    def method(self, name: str | None, bound: str | None, settings: dict[str, Any]) -> tuple[str, Any, str]:
        # Here the softmax bound is an argument of the question, whether a method has a setting of that name or not.
        name, found, _ = super().method(name, None, settings)
        return name, found, self.softmax_bound(found, bound)

    def softmax_bound(self, method: Any, bound: str | None) -> str:
        from ..solve.softmax_boxes import parse_bounds

        name = bound or str(inspect.signature(self.function()).parameters["bound"].default)
        parse_bounds(name)
        return name

    def keywords(self, given: dict[str, Any]) -> dict[str, Any]:
        from ..verify.scores import find_score

        found = super().keywords(given)
        find_score(found["score"])
        return found

    def ask(
        self, task: Task, networks: Sequence[Any], x: np.ndarray, labels: np.ndarray, options: dict[str, Any]
    ) -> list[Answer]:
        result = self._called(task, networks, x, labels, options)
        _whole(result)
        return [
            Answer(r.verdict, r.bound, r.attack, r.clean, r.message, r.worst_input, **_of_record(r))
            for r in result.records
        ]

    def _called(
        self, task: Task, networks: Sequence[Any], x: np.ndarray, labels: np.ndarray, options: dict[str, Any]
    ) -> Any:
        arguments = task.keywords | options | {"method": task.method, "bound": task.softmax_bound}
        return self.function()(networks, x, np.asarray(labels, dtype=np.int64), task.perturbation, **arguments)


class DatasetQuestion(Uncertainty):
    """What holds for a whole data set? The answer to a sample is the row of numbers that everything follows from."""

    name = "dataset"
    about = RANGES

    def function(self) -> Callable[..., Any]:
        from ..verify.dataset import certify_dataset

        return certify_dataset

    def keywords(self, given: dict[str, Any]) -> dict[str, Any]:
        from ..verify.calibration import bin_edges

        found = Question.keywords(self, given)
        bin_edges(found["bins"])
        return found

    def ask(
        self, task: Task, networks: Sequence[Any], x: np.ndarray, labels: np.ndarray, options: dict[str, Any]
    ) -> list[Answer]:
        from ..verify.dataset import pack_samples

        report = self._called(task, networks, x, labels, options)
        _whole(report)
        own, notes = np.arange(len(labels)), report.ranges.notes
        least, clean = report.ranges.least[own, labels], report.clean[own, labels]
        met = np.exp(-report.visits.nll)
        return [
            Answer("bounded", float(least[i]), float(met[i]), float(clean[i]), notes.get(i, ""), row)
            for i, row in enumerate(pack_samples(report))
        ]


QUESTIONS: dict[str, Question] = {q.name: q for q in (Robustness(), Uncertainty(), DatasetQuestion())}


def find_question(name: str) -> Question:
    """A question by its name."""
    if name not in QUESTIONS:
        raise InvalidInput(unknown("question", name, QUESTIONS))
    return QUESTIONS[name]


def _of_record(record: Any) -> dict[str, Any]:
    """What answers take over from the records of all questions."""
    return {name: getattr(record, name) for name in ("predicted", "new_class", "cpu_seconds", "seconds")}


def _whole(result: Any) -> None:
    """Half an answer is none: what was interrupted is for the next run."""
    if result.interrupted:
        raise KeyboardInterrupt


def _like(default: Any, value: Any, what: str) -> Any:
    """The value in the type of the default, so that 1 and 1.0 are one setting."""
    if default is None or type(value) is type(default):
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, bool | int | float | str):
        raise InvalidInput(f"{what} must be {_KINDS[type(default)]}, not {value!r}")
    return value


_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word in quotes"}
