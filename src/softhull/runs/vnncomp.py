"""The competition's formats: a result file per instance, a table of instances in, a table of results out."""

from __future__ import annotations

import csv
import gzip
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInput, SofthullError
from ..workers import Done, Workers

if TYPE_CHECKING:
    from ..formats.network import Network
    from ..formats.vnnlib import Specification

LARGEST_TABLE = 16 << 20
LARGEST_MODEL = 2 << 30
_PAIR = re.compile(r"\(\s*([XY])_(\d+)\s+([^\s()]+)\s*\)")


@dataclass(frozen=True)
class Instance:
    """One line of instances.csv: the names as written there, and the files they lead to."""

    onnx: str
    vnnlib: str
    timeout: float
    folder: Path


@dataclass(frozen=True)
class Verdict:
    """``sat`` with its witness, ``unsat``, ``unknown``, ``timeout`` or ``error``; seconds to prepare and to decide."""

    result: str
    witness: str = ""
    prepare_seconds: float = 0.0
    run_seconds: float = 0.0
    message: str = ""

    def text(self) -> str:
        """The content of a result file: the verdict, then the witness."""
        return self.result + "\n" + (self.witness + "\n" if self.witness else "")


def read_instances(path: Path) -> list[Instance]:
    """The instances of a benchmark: network, property and seconds on every line, relative to the table."""
    try:
        if path.stat().st_size > LARGEST_TABLE:
            raise InvalidInput(f"{path}: larger than {LARGEST_TABLE >> 20} MB")
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as problem:
        raise InvalidInput(f"{path}: cannot be read ({problem.strerror or problem})") from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput(f"{path}: not a table of instances") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            onnx, vnnlib, seconds = (entry.strip() for entry in line)
            timeout = float(seconds)
            if not 0 <= timeout < float("inf"):
                raise ValueError
        except ValueError:
            raise InvalidInput(f"{path}: line {number}: write ONNX,VNNLIB,SECONDS") from None
        found.append(Instance(onnx, vnnlib, timeout, path.parent))
    if not found:
        raise InvalidInput(f"{path}: holds no instance")
    return found


def decide(onnx: Path, vnnlib: Path, timeout: float, method: str | None, seed: int = 0, device: str = "cpu") -> Verdict:
    """Whether any input of the property breaks it; a witness is replayed from its text before it counts."""
    from ..formats.vnnlib import load_vnnlib
    from ..verify.robustness import verify_specification

    began = time.monotonic()
    network, specification = _known(onnx), load_vnnlib(vnnlib)
    prepared = time.monotonic()
    chosen: dict[str, Any] = {} if method is None else {"method": method}
    left = max(0.0, timeout - (prepared - began))
    found = verify_specification(network, specification, timeout=left, seed=seed, device=device, **chosen)
    result, witness, message = found.verdict, "", found.message
    if found.witness is not None:
        witness = write_witness(found.witness, network, specification)
        if not breaks(witness, network, specification):
            result, witness, message = "unknown", "", "a counterexample did not survive its replay"
    return Verdict(result, witness, prepared - began, time.monotonic() - prepared, message)


def decide_safely(instance: Instance, method: str | None, device: str = "cpu") -> Verdict:
    """The same for one line of a table: what goes wrong is the verdict ``error`` and the next line comes."""
    began = time.monotonic()
    try:
        onnx, vnnlib = (_found(instance.folder, name) for name in (instance.onnx, instance.vnnlib))
        return decide(onnx, vnnlib, instance.timeout, method, device=device)
    except (SofthullError, RuntimeError, MemoryError, ValueError, OSError) as problem:
        line = " ".join(str(problem).split()) or type(problem).__name__
        return Verdict("error", run_seconds=time.monotonic() - began, message=line)


# How long after its limit an instance that does not end by itself is ended.
GRACE = 1.0


def decide_all(
    listed: Sequence[Instance], method: str | None, device: str = "cpu", workers: int = 1, threads: int = 1
) -> Iterator[tuple[Instance, Verdict]]:
    """The instances of a table in order, some of them at once, each in a process that is ended when it is late."""
    pool = Workers(min(workers, len(listed)), partial(_decider, method, device, threads))
    waiting, answers, following = iter(enumerate(listed)), dict[int, Verdict](), 0
    try:
        while following < len(listed):
            for _ in range(pool.room()):
                if (task := next(waiting, None)) is not None:
                    pool.submit(*task)
            for found in pool.wait(0.1):
                answers[found.number] = (
                    found.answer if isinstance(found, Done) else Verdict("error", message=found.reason)
                )
            for number in pool.end_late(lambda number: listed[number].timeout + GRACE):
                answers[number] = Verdict("timeout", run_seconds=listed[number].timeout + GRACE)
            while following in answers:
                yield listed[following], answers[following]
                following += 1
    finally:
        pool.close()


def _decider(method: str | None, device: str, threads: int) -> Callable[[Instance], Verdict]:
    """What a process does with every instance that it is given."""
    import torch

    def run(instance: Instance) -> Verdict:
        torch.set_num_threads(threads)
        return decide_safely(instance, method, device)

    return run


def result_lines(category: str, answers: Iterator[tuple[Instance, Verdict]]) -> Iterator[list[str]]:
    """Lines of results.csv: category, network, property, seconds to prepare, verdict, seconds to decide."""
    for instance, verdict in answers:
        spent = (f"{verdict.prepare_seconds:.3f}", verdict.result, f"{verdict.run_seconds:.3f}")
        yield [category, instance.onnx, instance.vnnlib, *spent]


def write_witness(x: np.ndarray, network: Network, specification: Specification) -> str:
    """Input and replayed output, every number with all its digits, in the form that belongs to the property's version.

    Version 1: ``((X_0 0.5) ... (Y_0 1.25))``; version 2: a header such as ``X float32 [1,5]``, then a number a line.
    """
    point = np.asarray(x, dtype=network.input_dtype).reshape(-1)
    outputs = network.replay(point[None])[0].reshape(-1)
    if specification.declared is None:
        pairs = [f"(X_{i} {_number(value)})" for i, value in enumerate(point)]
        pairs += [f"(Y_{i} {_number(value)})" for i, value in enumerate(outputs)]
        return "(" + "\n".join(pairs) + ")"
    lines = []
    for tensor, values in zip(specification.declared, (point, outputs)):
        lines.append(f"{tensor.name} {tensor.type} [{','.join(map(str, tensor.shape))}]")
        lines += [_number(value) for value in values]
    return "\n".join(lines)


def breaks(witness: str, network: Network, specification: Specification) -> bool:
    """Whether the input written in the text, replayed by onnxruntime, satisfies the property as it is written."""
    if specification.declared is None:
        written = [number for kind, _, number in _PAIR.findall(witness) if kind == "X"]
    else:
        written = witness.splitlines()[1 : 1 + specification.inputs]
    point = np.array([float(number) for number in written])
    if len(point) != specification.inputs:
        return False
    x = point.astype(network.input_dtype)
    if not (x.astype(np.float64) == point).all():  # another number would be replayed
        return False
    outputs = network.replay(x[None])[0].reshape(-1)
    return any(part.holds(point, outputs) for part in specification.disjuncts)


def _number(value: Any) -> str:
    return repr(float(value))


def _found(folder: Path, name: str) -> Path:
    """The file, or its packed form as benchmarks are distributed."""
    path = folder / name
    packed = path.with_name(path.name + ".gz")
    return packed if not path.exists() and packed.exists() else path


def _known(path: Path) -> Network:
    """The network of a file, read once as long as the file is the same: a table names it for every property."""
    try:
        written = path.stat()
    except OSError:
        return _load(path)
    return _last_loaded(path.absolute(), written.st_mtime_ns, written.st_size)


@lru_cache(maxsize=1)
def _last_loaded(path: Path, *written: int) -> Network:
    return _load(path)


def _load(path: Path) -> Network:
    """The network of a file that may be gzipped; refused where it unpacks to too much."""
    from ..formats.onnx import load_onnx, parse_onnx

    if path.suffix != ".gz":
        return load_onnx(path)
    try:
        with gzip.open(path) as stream:
            content = stream.read(LARGEST_MODEL + 1)
    except (OSError, EOFError, zlib.error) as problem:
        raise InvalidInput(f"{path}: cannot be unpacked ({problem})") from None
    if len(content) > LARGEST_MODEL:
        raise InvalidInput(f"{path}: larger than {LARGEST_MODEL >> 30} GB when unpacked")
    return parse_onnx(content, str(path), path.parent)
