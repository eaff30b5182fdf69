"""Inputs and labels from files: npz, IDX (MNIST) and the binary batches of CIFAR-10."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ..errors import DatasetError, InvalidInput, warn
from ..regions import Alternatives
from ..show import data_frame, html_table, new_axes
from .cut import Front
from .inputs import BYTES, bare, fit_layout
from .network import Network

LARGEST_ARRAY = 1 << 30  # bytes

_CIFAR_RECORD = 1 + 3 * 32 * 32


@dataclass(frozen=True, repr=False)
class Dataset:
    """Inputs as they stand in the file, and one label for each."""

    raw: np.ndarray
    y: np.ndarray
    path: str
    front: Front | None = None  # computes the inputs of a network from what the file holds

    def through(self, network: Network) -> Dataset:
        """The same data for a network whose perturbed tensor lies inside of its model file, or for any other."""
        found = replace(self, front=network.front)
        if found.raw.dtype == np.uint8 and found.front is None:
            warn(f"{self.path}: {BYTES}")
        return found

    def __len__(self) -> int:
        return len(self.raw)

    def __repr__(self) -> str:
        shape, labels = " x ".join(map(str, self.raw.shape[1:])) or "1", len(np.unique(self.y))
        return f"<Dataset {self.path}: {len(self)} inputs of {shape} ({self.raw.dtype}), {labels} labels>"

    def to_dict(self) -> dict[str, Any]:
        """What the data are, without the data: path, hash of the file, shapes and counts of labels."""
        return {
            "path": self.path,
            "sha256": self.sha256,
            "inputs": len(self),
            "shape": list(self.raw.shape[1:]),
            "dtype": str(self.raw.dtype),
            "labels": {str(label): int(count) for label, count in zip(*np.unique(self.y, return_counts=True))},
        }

    @cached_property
    def sha256(self) -> str | None:
        """The hash of the file; None where the data are from no file, or it is gone."""
        try:
            with Path(self.path).open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            return None

    def to_pandas(self) -> Any:
        """A data frame with one line per input: its label, and the range of its numbers; needs the extra ``pandas``."""
        return data_frame(self._rows(len(self)))

    def _rows(self, most: int) -> list[dict[str, Any]]:
        rows = zip(self.raw[:most], self.y[:most].tolist())
        ends = ((i, row, label) for i, (row, label) in enumerate(rows))
        return [{"index": i, "label": label, "least": row.min(), "most": row.max()} for i, row, label in ends]

    def plot(self, axes: Any = None, count: int = 12) -> Any:
        """The first inputs side by side, where they are images, else how often each label occurs; returns the axes."""
        axes = new_axes(axes)
        part = self.raw[:count]
        shape = bare(part.shape[1:])
        side = math.isqrt(math.prod(shape))
        if len(shape) == 1 and side * side == shape[0]:
            part, shape = part.reshape(len(part), side, side), (side, side)
        if len(shape) == 2:
            axes.imshow(np.concatenate(list(part.reshape(len(part), *shape)), axis=1), cmap="gray")
            axes.set_xticks([shape[1] * (k + 0.5) for k in range(len(part))], self.y[:count].tolist())
            axes.set_yticks([])
            axes.set_xlabel("label")
        else:
            axes.bar(*np.unique(self.y, return_counts=True))
            axes.set_xlabel("label")
            axes.set_ylabel("inputs")
        return axes

    def _repr_html_(self) -> str:
        return html_table(repr(self).strip("<>"), self._rows(5))

    @property
    def x(self) -> np.ndarray:
        """All inputs in float64; bytes are divided by 255."""
        return self.take(range(len(self)))

    def take(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """The named inputs in float64; bytes are divided by 255."""
        chosen = np.asarray(indices, dtype=np.int64)
        if chosen.size and (chosen.min() < 0 or chosen.max() >= len(self)):
            raise DatasetError(f"{self.path}: indices {chosen.min()} to {chosen.max()} of {len(self)} inputs")
        part = self.raw[chosen]
        if self.front is not None:
            return self.front.compute(fit_layout(torch.as_tensor(part), self.front.shape, len(part)).numpy())
        values = part.astype(np.float64)
        if part.dtype == np.uint8:
            return values / 255
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if bad.any():
            raise DatasetError(f"{self.path}: input {chosen[bad.argmax()]} holds NaN or infinity")
        return values


def load_dataset(path: str | Path, labels: str | Path | None = None) -> Dataset:
    """Read inputs and labels; raises DatasetError with one line when that is impossible.

    Args:
        path: An npz file with ``x`` and ``y``, IDX images (MNIST) or a CIFAR-10 batch, whose images come as rows,
            columns, colours.
        labels: The file with the labels of IDX images; by default the one beside them under the usual name
            (``images-idx3`` becomes ``labels-idx1``).
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic[:2] == b"PK":
            raw, y = _npz(path)
        elif magic[:2] == b"\x1f\x8b" or magic[:2] == b"\x00\x00":
            raw = _idx(path)
            y = _idx(Path(labels) if labels is not None else _labels_beside(path))
        elif path.suffix == ".bin" and path.stat().st_size % _CIFAR_RECORD == 0 and magic:
            raw, y = _cifar(path)
        else:
            raise DatasetError(f"{path}: neither npz, IDX nor a CIFAR-10 batch")
    except OSError as error:
        raise DatasetError(f"{error.filename or path}: cannot be read ({error.strerror or error})") from None
    return _checked(path, raw, y)


def _checked(path: Path, raw: np.ndarray, y: np.ndarray) -> Dataset:
    """Inputs and labels as a data set, or an error that says what does not fit."""
    if raw.ndim == 0 or y.ndim != 1 or len(raw) != len(y):
        raise DatasetError(f"{path}: x of shape {raw.shape} needs one label each, not y of shape {y.shape}")
    if not len(raw):
        raise DatasetError(f"{path}: x is empty; there is no input to ask about")
    if y.dtype.kind == "f":
        if not (y == np.floor(y)).all():
            raise DatasetError(
                f"{path}: labels must be whole numbers, counted from 0; y holds {y[y != np.floor(y)][0]}"
            )
        y = y.astype(np.int64)
    if raw.dtype.kind not in "fiub" or y.dtype.kind not in "iub":
        raise DatasetError(f"{path}: x of type {raw.dtype} and y of type {y.dtype}; numbers are needed")
    return Dataset(raw, y.astype(np.int64), str(path))


def load_array(path: str | Path) -> np.ndarray:
    """One array of numbers from an npy file; DatasetError with one line when that is impossible."""
    try:
        with Path(path).open("rb") as stream:
            return _npy(stream, str(path))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror or error})") from None


def load_alternatives(path: str | Path, at_most: int | None = None) -> Alternatives:
    """From an npz file: ``embeddings [V, d]``, and ``pairs [n, 2]`` of a word and one that may stand in its place."""
    path = Path(path)
    table, pairs = _arrays(path, ("embeddings", "pairs"))
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise DatasetError(f"{path}: pairs must be [n, 2] whole numbers, rows of the embeddings")
    words: dict[int, list[int]] = {}
    for word, other in pairs.tolist():
        words.setdefault(word, []).append(other)
    try:
        return Alternatives(table, words, at_most)
    except InvalidInput as problem:
        raise DatasetError(f"{path}: {problem}") from None


def _npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    x, y = _arrays(path, ("x", "y"))
    return x, y


def _arrays(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Arrays of an npz file by their names."""
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [name for name in names if f"{name}.npy" not in archive.namelist()]
            if missing:
                raise DatasetError(f"{path}: holds no array {missing[0]!r}; {' and '.join(names)} are needed")
            found = []
            for name in names:
                with archive.open(f"{name}.npy") as stream:
                    found.append(_npy(stream, f"{path}: array {name!r}"))
            return found
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError):
        raise DatasetError(f"{path}: not an npz file, or damaged") from None


def _npy(stream: IO[bytes], place: str) -> np.ndarray:
    """One array, its size known from the header before anything of that size is made; never a pickle."""
    try:
        shape, fortran, dtype = _npy_header(stream)
    except (ValueError, SyntaxError, struct.error, UnicodeDecodeError, tokenize.TokenError):
        raise DatasetError(f"{place}: damaged") from None
    if dtype.hasobject or dtype.kind not in "fiub":
        raise DatasetError(f"{place}: holds {dtype}; only numbers are read")
    size = math.prod(shape) * dtype.itemsize
    if size > LARGEST_ARRAY:
        raise DatasetError(f"{place}: {size} bytes; at most {LARGEST_ARRAY} are read")
    content = stream.read(size)
    if len(content) != size:
        raise DatasetError(f"{place}: shorter than its header says")
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def _idx(path: Path) -> np.ndarray:
    """An array of bytes with its shape in front."""
    with path.open("rb") as probe:
        packed = probe.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            magic = stream.read(4)
            if len(magic) != 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
                raise DatasetError(f"{path}: not an IDX file of bytes")
            header = stream.read(4 * magic[3])
            shape = struct.unpack(f">{magic[3]}I", header)
            size = math.prod(shape)
            if size > LARGEST_ARRAY:
                raise DatasetError(f"{path}: {size} bytes; at most {LARGEST_ARRAY} are read")
            content = stream.read(size)
    except (gzip.BadGzipFile, zlib.error, struct.error, EOFError):
        raise DatasetError(f"{path}: damaged") from None
    if len(content) != size:
        raise DatasetError(f"{path}: shorter than its header says")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _labels_beside(path: Path) -> Path:
    for images, labels in (("images-idx3", "labels-idx1"), ("images.idx3", "labels.idx1")):
        if images in path.name:
            return path.with_name(path.name.replace(images, labels))
    raise DatasetError(f"{path}: the labels of these images must be named, the file name does not tell them")


def _cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.stat().st_size > LARGEST_ARRAY:
        raise DatasetError(f"{path}: larger than {LARGEST_ARRAY} bytes")
    records = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, records[:, 0]
