"""Constants that an ONNX model keeps in files beside it; never anywhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx

from ..errors import ModelError, quoted

LARGEST_TOTAL = 2 << 30


def model_digest(content: bytes, external: Sequence[bytes]) -> str:
    """The SHA-256 sum that a model is known by: of its file, or of the sums of its file and of what lies beside it."""
    sums = [hashlib.sha256(part) for part in (content, *external)]
    return (hashlib.sha256(b"".join(each.digest() for each in sums)) if external else sums[0]).hexdigest()


def embed_external_data(model: Any, name: str, folder: Path | None) -> list[bytes]:
    """Move external constants into the model and return them in order; the model then names no file."""
    parts: list[bytes] = []
    for tensor in _tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        content = _read(tensor, name, folder, LARGEST_TOTAL - sum(map(len, parts)))
        tensor.raw_data = content
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
        parts.append(content)
    return parts


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _read(tensor: Any, name: str, folder: Path | None, room: int) -> bytes:
    """The bytes of a tensor kept in a file beside the model; refused outside its folder or beyond ``room``."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) < len(tensor.external_data):
        raise ModelError(f"{name}: tensor {quoted(tensor.name)} names its file twice")
    location = entries.get("location", "")
    place = f"{name}: external data {location!r} of {tensor.name!r}"
    if folder is None:
        raise ModelError(f"{place}: a model in memory has no folder to read it from")
    if not isinstance(location, str) or not location.isprintable():
        raise ModelError(f"{place}: a file name with characters that cannot be printed")
    outside = any(
        kind(location).is_absolute() or ".." in kind(location).parts or kind(location).drive
        for kind in (PurePosixPath, PureWindowsPath)
    )
    try:
        path = (folder / location).resolve()
        if not location or outside or not path.is_relative_to(folder.resolve()):
            raise ModelError(f"{place}: lies outside the folder of the model")
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
        if not path.is_file():
            raise ModelError(f"{place}: there is no such file")
        length = path.stat().st_size - offset if length < 0 else length
        if offset < 0 or not 0 <= length <= room:
            raise ModelError(f"{place}: offset {offset} and length {length} are out of range")
        with path.open("rb") as stream:
            stream.seek(offset)
            content = stream.read(length)
    except ModelError:
        raise
    except (OSError, ValueError, RuntimeError):  # the last: symbolic links that go round in circles
        raise ModelError(f"{place}: cannot be read") from None
    if len(content) != length:
        raise ModelError(f"{place}: the file is shorter than the model says")
    return content
