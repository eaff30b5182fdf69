"""Which process is at work, told so that another one can find out whether it still is."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process: the machine it lives on, its number there, and when it was born (numbers are used again)."""

    machine: str
    number: int
    born: int

    @staticmethod
    def current() -> Process:
        """This process."""
        return Process(_machine(), os.getpid(), _birth(os.getpid()) or 0)

    def lives(self) -> bool | None:
        """Whether it is still there; None where that cannot be seen from here."""
        if self.machine != _machine() or sys.platform == "win32":
            return None
        if Path("/proc/self/stat").exists():
            return _birth(self.number) == self.born
        try:
            os.kill(self.number, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def _machine() -> str:
    """One name per set of process numbers: a reboot or another container starts a new one."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass
    return " ".join(parts)


def _birth(number: int) -> int | None:
    """When a process was born, in ticks since the machine started; None if there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
