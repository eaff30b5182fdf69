"""Constants beside a model are part of it: hashed with it, read from its folder and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from softhull.checker.check import sha256
from softhull.checker.external_data import digest_of
from softhull.checker.network import Networks
from softhull.errors import ModelError
from softhull.formats.external_data import model_digest
from softhull.formats.onnx import load_onnx

from .evaluate import save, values


def _external(path: Path, location: str = "weights.bin") -> Path:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    save(path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weights}, [1, 2])
    onnx.save(onnx.load(str(path)), str(path), save_as_external_data=True, location=location, size_threshold=0)
    return path


def test_the_importer_and_the_checker_hash_the_same(tmp_path):
    path = _external(tmp_path / "m.onnx")
    networks = Networks([path])
    assert networks.digests == [load_onnx(path).sha256]
    np.testing.assert_array_equal(values(networks, np.array([1.0, 2.0]))[networks.logits[0].node], [6.0, 9.0, 12.0])


def test_another_byte_is_another_model(tmp_path):
    path = _external(tmp_path / "m.onnx")
    before = Networks([path]).digests
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[7] ^= 1
    (tmp_path / "weights.bin").write_bytes(bytes(data))
    assert Networks([path]).digests != before


def test_models_that_are_cut_elsewhere_have_other_sums():
    """A file of protobuf may go on where its constants begin: with all bytes in a row, both would have one sum."""
    ways = [(b"abc", []), (b"ab", [b"c"]), (b"a", [b"bc"]), (b"a", [b"b", b"c"])]
    sums = [digest_of(*way) for way in ways]
    assert sums == [model_digest(*way) for way in ways]
    assert len(set(sums)) == len(ways)
    assert sums[0] == sha256(b"abc")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("location", "../weights.bin", "outside"),
        ("location", "/etc/passwd", "outside"),
        ("location", "C:\\weights.bin", "outside"),
        ("location", "missing.bin", "missing"),
        ("location", "link.bin", "outside"),
        ("length", "400", "shorter"),
        ("length", "99999999999", "out of range"),
        ("offset", "-1", "out of range"),
        ("offset", "many", "cannot be read"),
        ("location twice", "weights.bin", "twice"),
    ],
)
def test_nothing_else_is_read(tmp_path, key, value, what):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = _external(folder / "m.onnx")
    (tmp_path / "weights.bin").write_bytes(bytes(24))
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    model = onnx.load(str(path), load_external_data=False)
    entries = {entry.key: entry for entry in model.graph.initializer[0].external_data}
    if key in entries:
        entries[key].value = value
    elif key == "location twice":
        model.graph.initializer[0].external_data.add(key="location", value=value)
    else:
        model.graph.initializer[0].external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=what):
        Networks([path])
