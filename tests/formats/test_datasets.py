"""Data files of all three kinds, and what is refused."""

from __future__ import annotations

import gzip
import struct
import zipfile

import numpy as np
import pytest

from softhull.errors import DatasetError
from softhull.formats.datasets import load_dataset

rng = np.random.default_rng(0)


def test_npz_of_bytes_is_divided_by_255(tmp_path):
    x = rng.integers(0, 256, size=(5, 4, 4)).astype(np.uint8)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(5))
    found = load_dataset(tmp_path / "d.npz")
    assert len(found) == 5
    np.testing.assert_array_equal(found.x, x / 255)
    np.testing.assert_array_equal(found.take([3, 1]), x[[3, 1]] / 255)
    assert found.y.tolist() == [0, 1, 2, 3, 4]


def test_npz_of_reals_is_left_alone(tmp_path):
    x = np.asfortranarray(rng.normal(size=(3, 2)).astype(np.float32))
    np.savez_compressed(tmp_path / "d.npz", x=x, y=np.array([0.0, 1.0, 1.0]), other=np.zeros(3))
    found = load_dataset(str(tmp_path / "d.npz"))
    np.testing.assert_array_equal(found.x, x.astype(np.float64))
    assert found.x.dtype == np.float64
    assert found.y.dtype == np.int64


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_idx_pair(tmp_path, packed):
    images = rng.integers(0, 256, size=(3, 5, 6)).astype(np.uint8)
    labels = np.array([7, 2, 1], dtype=np.uint8)
    ending = ".gz" if packed else ""
    write = gzip.compress if packed else bytes
    first = struct.pack(">4B3I", 0, 0, 8, 3, 3, 5, 6) + images.tobytes()
    second = struct.pack(">4BI", 0, 0, 8, 1, 3) + labels.tobytes()
    path = tmp_path / f"t10k-images-idx3-ubyte{ending}"
    path.write_bytes(write(first))
    (tmp_path / f"t10k-labels-idx1-ubyte{ending}").write_bytes(write(second))
    found = load_dataset(path)
    np.testing.assert_array_equal(found.x, images / 255)
    assert found.y.tolist() == [7, 2, 1]
    renamed = path.rename(tmp_path / "pictures")
    with pytest.raises(DatasetError, match="must be named"):
        load_dataset(renamed)
    assert len(load_dataset(renamed, labels=tmp_path / f"t10k-labels-idx1-ubyte{ending}")) == 3


def test_cifar_batch_comes_in_rows_columns_colours(tmp_path):
    planes = rng.integers(0, 256, size=(2, 3, 32, 32)).astype(np.uint8)
    labels = np.array([[3], [8]], dtype=np.uint8)
    (tmp_path / "test_batch.bin").write_bytes(np.concatenate((labels, planes.reshape(2, -1)), 1).tobytes())
    found = load_dataset(tmp_path / "test_batch.bin")
    assert found.x.shape == (2, 32, 32, 3)
    assert found.x[1, 5, 7, 2] == planes[1, 2, 5, 7] / 255
    assert found.y.tolist() == [3, 8]


def _npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode() + b" " * (118 - len(header)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def _zip(path, **members: bytes):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_pickles_are_never_opened(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(DatasetError, match="array 'x': holds object; only numbers"):
        load_dataset(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,)}"), "bytes; at most"),
        (_npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10,)}", bytes(8)), "shorter than its header"),
        (_npy("{'descr': __import__('os')}"), "damaged"),
        (b"nonsense", "damaged"),
    ],
)
def test_hostile_npz(tmp_path, x, message):
    y = _npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", bytes(8))
    with pytest.raises(DatasetError, match=message) as caught:
        load_dataset(_zip(tmp_path / "d.npz", x=x, y=y))
    assert "\n" not in str(caught.value)


def test_mismatches(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((3, 2)), y=np.zeros(2, dtype=int))
    with pytest.raises(DatasetError, match="needs one label each"):
        load_dataset(path)
    np.savez(path, x=np.zeros((3, 2)))
    with pytest.raises(DatasetError, match="no array 'y'"):
        load_dataset(path)
    np.savez(path, x=np.zeros((3, 2)), y=np.array([0.5, 1, 2]))
    with pytest.raises(DatasetError, match="whole numbers, counted from 0"):
        load_dataset(path)
    np.savez(path, x=np.zeros((0, 4)), y=np.zeros(0, dtype=int))
    with pytest.raises(DatasetError, match="x is empty"):
        load_dataset(path)
    np.savez(path, x=np.array([[0.0], [np.nan]]), y=np.zeros(2, dtype=int))
    with pytest.raises(DatasetError, match="input 1 holds NaN"):
        _ = load_dataset(path).x
    with pytest.raises(DatasetError, match="of 2 inputs"):
        load_dataset(path).take([5])


def test_unreadable(tmp_path):
    with pytest.raises(DatasetError, match="cannot be read"):
        load_dataset(tmp_path / "nothing.npz")
    for name, content in (("a.npz", b"PK\x03\x04junk"), ("b", b"\x1f\x8bjunk"), ("c.bin", b"12345"), ("d", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DatasetError) as caught:
            load_dataset(tmp_path / name)
        assert "\n" not in str(caught.value)
