"""Reads mutated files of one kind and reports what went wrong; run as a process of its own.

Arguments: kind, the sound file, folder to work in, first seed, count. One JSON line on standard output.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

CPU_SECONDS = 1.0
MEMORY = 500 << 20  # bytes beyond what the process takes after reading the sound file


class TooLong(BaseException):
    """Not an Exception: no reader may swallow it."""


def find_reader(kind: str) -> Callable[[Path], object]:
    """The reader of one kind; what only the others need is not loaded."""
    if kind == "onnx":
        from softhull.formats.onnx import load_onnx

        return load_onnx
    if kind == "checker":
        from softhull.checker.network import Networks

        return lambda path: Networks([path])
    if kind == "vnnlib":
        from softhull.formats.vnnlib import load_vnnlib

        return load_vnnlib
    if kind == "npz":
        from softhull.formats.datasets import load_dataset

        return lambda path: load_dataset(path).x
    if kind == "certificate":
        from softhull.checker.certificate import read_certificate

        return read_certificate
    assert kind == "store"
    from softhull.runs.store import Store

    def read_store(path: Path) -> object:
        with Store.read(path) as found:
            return [found.tasks(), list(found.rows())]

    return read_store


def mutate(content: bytes, rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    data = bytearray(content)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        start = rng.randrange(len(data))
        return bytes(data[:start] + data[start : start + rng.randrange(200)] * rng.randrange(2, 50) + data[start:])
    if kind == 2:
        start = rng.randrange(len(data))
        del data[start : start + rng.randrange(1, 100)]
        return bytes(data)
    if kind == 3 and content[:2] == b"PK":
        return repacked(content, rng)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, ord("9"), ord("("), rng.randrange(256)])
    return bytes(data)


def repacked(content: bytes, rng: random.Random) -> bytes:
    """A zip file whose members are mutated and whose sums are right."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        chosen = rng.choice(old.namelist())
        for name in old.namelist():
            member = old.read(name)
            if name == chosen:
                # mostly the first bytes: there stand shapes and types
                place = rng.randrange(min(len(member), 128))
                member = member[:place] + bytes([rng.choice([0, 57, 0xFF, rng.randrange(256)])]) + member[place + 1 :]
            new.writestr(name, member)
    return stream.getvalue()


def main(kind: str, sound: str, folder: str, first: int, count: int) -> None:
    from softhull.errors import SofthullError

    read = find_reader(kind)
    path = Path(folder) / ("mutated" + Path(sound).suffix)
    content = Path(sound).read_bytes()
    path.write_bytes(content)
    read(path)
    own = [str(path), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))]
    own += [str(Path(__file__).parents[2] / "src"), sys.prefix, sys.base_prefix, "/proc/", "/sys/", "/dev/"]
    touched: list[str] = []
    watching = False

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in ("open", "os.remove", "os.rename", "os.mkdir", "subprocess.Popen", "socket.connect"):
            name = os.fspath(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
            name = os.fsdecode(name)
            if name and not any(name.startswith(prefix) for prefix in own):
                touched.append(f"{event} {name}")

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    sys.addaudithook(hook)
    signal.signal(signal.SIGVTALRM, stop)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failures, refused, slowest = [], 0, 0.0
    for seed in range(first, first + count):
        path.write_bytes(mutate(content, random.Random(seed)))
        began = time.process_time()
        watching = True
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
        try:
            read(path)
        except SofthullError as problem:
            refused += 1
            if "\n" in str(problem) or not str(problem):
                failures.append(f"seed {seed}: not one line: {problem!r}")
        except TooLong:
            failures.append(f"seed {seed}: more than {CPU_SECONDS} CPU seconds")
        except Exception as problem:
            failures.append(f"seed {seed}: {type(problem).__name__}: {str(problem)[:200]}")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            watching = False
        slowest = max(slowest, time.process_time() - began)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if grown > MEMORY:
            failures.append(f"seed {seed}: {grown >> 20} MB")
            break
    failures += sorted(set(touched))
    print(json.dumps({"failures": failures[:20], "refused": refused, "count": count, "slowest": slowest}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
