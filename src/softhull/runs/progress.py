"""How a run is going: a live display on a terminal, lines elsewhere, events for programs."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import IO, Any

_ORDER = ("certified", "falsified", "bounded", "unknown", "misclassified", "error")
_PAUSE = 10.0  # seconds between two plain lines


class Tally:
    """What is known of a run so far."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.verdicts: Counter[str] = Counter()
        self.computed = 0
        self.began = time.monotonic()

    @property
    def done(self) -> int:
        """How many instances are answered."""
        return self.verdicts.total()

    def rate(self) -> float:
        """Instances a second, of those this run worked out itself."""
        return self.computed / max(time.monotonic() - self.began, 1e-9)

    def line(self) -> str:
        """``120 / 600 done: 80 certified, 40 unknown; 12.3 a second, 0:00:39 left``."""
        parts = ", ".join(f"{self.verdicts[name]} {_plural(name)}" for name in _ORDER if self.verdicts[name])
        text = f"{self.done} / {self.total} done" + (f": {parts}" if parts else "")
        if self.computed and self.done < self.total:
            left = (self.total - self.done) / self.rate()
            text += f"; {self.rate():.3g} a second, {_duration(left)} left"
        return text


class Reporter:
    """Says nothing; the base of those that do."""

    def began(self, tally: Tally) -> None:
        """The run begins; some instances may be answered already."""

    def started(self, task: int, indices: list[int]) -> None:
        """A batch is on its way to a worker."""

    def answered(self, task: int, indices: list[int], verdicts: list[str], tally: Tally) -> None:
        """A batch is in the store."""

    def waiting(self, count: int) -> None:
        """What is left is being worked on by other processes."""

    def ended(self, tally: Tally, why: str) -> None:
        """The run is over: ``finished``, ``budget``, ``interrupted`` or ``failed``."""


class Lines(Reporter):
    """A line every ten seconds and one at the end."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._last = time.monotonic()

    def began(self, tally: Tally) -> None:
        self._say(tally.line())

    def answered(self, task: int, indices: list[int], verdicts: list[str], tally: Tally) -> None:
        if time.monotonic() - self._last >= _PAUSE:
            self._say(tally.line())

    def waiting(self, count: int) -> None:
        if time.monotonic() - self._last >= _PAUSE:
            self._say(f"waiting for {count} instances that another process is working on")

    def ended(self, tally: Tally, why: str) -> None:
        self._say(tally.line())

    def _say(self, line: str) -> None:
        self._last = time.monotonic()
        print(line, file=self._stream, flush=True)


class Live(Reporter):
    """A bar that fills, with the counts beside it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            BarColumn(bar_width=30), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
        )
        self._task = self._bar.add_task("", total=None)

    def began(self, tally: Tally) -> None:
        self._bar.start()
        self._show(tally)

    def answered(self, task: int, indices: list[int], verdicts: list[str], tally: Tally) -> None:
        self._show(tally)

    def waiting(self, count: int) -> None:
        self._bar.update(self._task, description=f"waiting for {count} instances of another process")

    def ended(self, tally: Tally, why: str) -> None:
        self._bar.stop()

    def _show(self, tally: Tally) -> None:
        self._bar.update(self._task, total=tally.total, completed=tally.done, description=tally.line())


class Events(Reporter):
    """One JSON object per line: ``began``, ``started``, ``answered``, ``ended``."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def began(self, tally: Tally) -> None:
        self._write("began", total=tally.total, done=tally.done)

    def started(self, task: int, indices: list[int]) -> None:
        self._write("started", task=task, indices=indices)

    def answered(self, task: int, indices: list[int], verdicts: list[str], tally: Tally) -> None:
        self._write("answered", task=task, indices=indices, verdicts=verdicts, done=tally.done, total=tally.total)

    def waiting(self, count: int) -> None:
        self._write("waiting", instances=count)

    def ended(self, tally: Tally, why: str) -> None:
        self._write("ended", why=why, done=tally.done, total=tally.total, verdicts=dict(tally.verdicts))

    def _write(self, event: str, **rest: Any) -> None:
        print(json.dumps({"event": event, "time": round(time.time(), 3), **rest}), file=self._stream, flush=True)


class Several(Reporter):
    """Tells everything to several others."""

    def __init__(self, reporters: Iterable[Reporter]) -> None:
        self._reporters = tuple(reporters)

    def began(self, tally: Tally) -> None:
        for reporter in self._reporters:
            reporter.began(tally)

    def started(self, task: int, indices: list[int]) -> None:
        for reporter in self._reporters:
            reporter.started(task, indices)

    def answered(self, task: int, indices: list[int], verdicts: list[str], tally: Tally) -> None:
        for reporter in self._reporters:
            reporter.answered(task, indices, verdicts, tally)

    def waiting(self, count: int) -> None:
        for reporter in self._reporters:
            reporter.waiting(count)

    def ended(self, tally: Tally, why: str) -> None:
        for reporter in self._reporters:
            reporter.ended(tally, why)


def find_reporter(quiet: bool, events: IO[str] | None) -> Reporter:
    """The display that suits where the output goes."""
    screen = [] if quiet else [Live() if sys.stderr.isatty() else Lines(sys.stderr)]
    return Several([*screen, *([] if events is None else [Events(events)])])


def _plural(verdict: str) -> str:
    return "errors" if verdict == "error" else verdict


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
