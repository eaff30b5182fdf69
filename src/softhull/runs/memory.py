"""How large a batch may be: measured, not guessed."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InvalidInput

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
_MARGIN = 0.8  # of the memory left is planned for; measurements of small batches do not say everything
_GROWTH = 4  # how far beyond a measured batch the next one may go


def parse_size(text: str) -> int:
    """``4GB``, ``800 MiB`` or plain bytes, as a number of bytes."""
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise InvalidInput(f"{text!r} is not an amount of memory; write for example 4GB or 800MB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


class Meter:
    """The memory of this process, and the most it had since the last ``reset``."""

    def reset(self) -> None:
        """Starts a new measurement of the peak."""
        # Where this is not allowed the peak since the start is all there is: it overestimates.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def now(self) -> int:
        """Bytes in use."""
        return self._status("VmRSS") or self.peak()

    def peak(self) -> int:
        """The most bytes in use since the last reset."""
        found = self._status("VmHWM")
        if found:
            return found
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024

    @staticmethod
    def _status(name: str) -> int:
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), 0)


@dataclass
class BatchSizes:
    """The number of instances a worker with ``limit`` bytes (None: any) may take at once, per kind of work."""

    most: int
    limit: int | None = None
    _base: dict[object, int] = field(default_factory=dict)
    _largest: dict[object, tuple[int, int]] = field(default_factory=dict)  # instances, bytes beyond the base
    _refused: dict[object, int] = field(default_factory=dict)

    def size(self, kind: object) -> int:
        """How many instances to try next; small before anything was measured."""
        most = min(self.most, self._refused.get(kind, self.most + 1) - 1)
        if self.limit is None:
            return max(1, most)
        if kind not in self._largest:
            return 1
        count, used = self._largest[kind]
        room = _MARGIN * (self.limit - self._base[kind])
        fitting = int(room * count / used) if used > 0 else self.most
        return max(1, min(most, fitting, _GROWTH * count))

    def measured(self, kind: object, count: int, base: int, peak: int) -> None:
        """A batch of ``count`` went from ``base`` to ``peak`` bytes."""
        self._base[kind] = base
        if count >= self._largest.get(kind, (0, 0))[0]:
            self._largest[kind] = count, max(0, peak - base)

    def refused(self, kind: object, count: int) -> None:
        """A batch of ``count`` did not fit."""
        if count > 1:
            self._refused[kind] = min(count, self._refused.get(kind, count))


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an error means that memory ran out; torch says so in words."""
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return True
    words = str(problem).lower()
    return isinstance(problem, RuntimeError) and ("out of memory" in words or "allocate memory" in words)


def limit_process(limit: int) -> None:
    """Let allocations beyond ``limit`` fail in this process, instead of the machine running out of memory."""
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
