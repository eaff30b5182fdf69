"""Constants that a model keeps in files beside it: read from its own folder, and hashed with the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import TensorProto

from ..errors import ModelError, quoted

LARGEST_DATA = 1 << 30  # bytes of all external constants


def digest_of(content: bytes, parts: Sequence[bytes]) -> str:
    """The SHA-256 sum of a model file; with constants beside it, that of the sums of the file and of every constant.

    The sum of all bytes in a row would be that of other models, too: a file that goes on where its constants begin.
    """
    if parts:
        content = b"".join(hashlib.sha256(part).digest() for part in (content, *parts))
    return hashlib.sha256(content).hexdigest()


def embed(model: onnx.ModelProto, path: str) -> list[bytes]:
    """Move external constants into the model; their bytes in the order of the tensors."""
    parts: list[bytes] = []
    for tensor in _tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        name = f"tensor {quoted(tensor.name)}"
        keys = [entry.key for entry in tensor.external_data]
        if len(set(keys)) < len(keys):
            raise ModelError(f"{name} names its file twice")
        entries = {entry.key: entry.value for entry in tensor.external_data}
        content = _read(name, entries, Path(path).parent, LARGEST_DATA - sum(map(len, parts)))
        if tensor.raw_data:
            raise ModelError(f"{name} has its contents twice")
        tensor.raw_data = content
        tensor.ClearField("external_data")
        tensor.data_location = TensorProto.DEFAULT
        parts.append(content)
    return parts


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _read(name: str, entries: dict[str, str], folder: Path, room: int) -> bytes:
    """The bytes a tensor names, from a file in the folder of the model and nowhere else."""
    location = entries.get("location", "")
    kinds = (PurePosixPath(location), PureWindowsPath(location))
    if not location or any(kind.is_absolute() or kind.drive or ".." in kind.parts for kind in kinds):
        raise ModelError(f"{name} lies outside the folder of the model")
    try:
        found = (folder / location).resolve()
        if not found.is_relative_to(folder.resolve()) or not found.is_file():
            raise ModelError(f"{name} lies outside the folder of the model, or its file {quoted(location)} is missing")
        offset = int(entries.get("offset", "0"))
        length = int(entries["length"]) if "length" in entries else found.stat().st_size - offset
        if offset < 0 or not 0 <= length <= room:
            raise ModelError(f"{name} has an offset or a length out of range")
        with found.open("rb") as stream:
            stream.seek(offset)
            content = stream.read(length)
    except ModelError:
        raise
    except (OSError, ValueError, RuntimeError):
        raise ModelError(f"{name}: its file {quoted(location)} cannot be read") from None
    if len(content) != length:
        raise ModelError(f"{name}: its file {quoted(location)} is shorter than the model says")
    return content
