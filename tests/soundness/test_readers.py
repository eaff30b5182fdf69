"""Mutated files: one line, within a second of processor time and 500 MB, and no other file is touched.

``SOFTHULL_FUZZ`` sets how many files of every kind are tried, ``SOFTHULL_SEED`` the first seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from softhull.certificates.write import class_certificate
from softhull.checker.certificate import write_certificate
from softhull.cli.app import app
from softhull.data import bundled
from softhull.formats.datasets import load_dataset
from softhull.regions import Perturbation

COUNT = int(os.environ.get("SOFTHULL_FUZZ", "60"))
SEED = int(os.environ.get("SOFTHULL_SEED", "0"))

PROPERTY = """
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (>= X_0 -0.5)) (assert (<= X_0 0.5))
(assert (or (and (>= X_1 0) (<= X_1 1)) (and (>= X_1 2) (<= X_1 3e0))))
(assert (or (and (<= Y_0 Y_1)) (and (>= Y_1 1.5) (<= (- Y_0 Y_1) 0))))
"""

CAMPAIGN = """
[[networks]]
model = "softhull:digits-attention.onnx"
[[data]]
file = "softhull:digits.npz"
indices = "0:2"
[[perturbations]]
eps = 0.02
[[methods]]
name = "linear"
[[questions]]
ask = "robustness"
"""


def model(folder: Path) -> Path:
    return bundled("digits-attention.onnx")


def property_file(folder: Path) -> Path:
    path = folder / "sound.vnnlib"
    path.write_text(PROPERTY)
    return path


def images(folder: Path) -> Path:
    return bundled("digits.npz")


def certificate(folder: Path) -> Path:
    data = load_dataset(bundled("digits.npz"))
    found = class_certificate(bundled("digits-attention.onnx"), data.take([0])[0], int(data.y[0]), Perturbation(0.02))
    write_certificate(folder / "sound.npz", found)
    return folder / "sound.npz"


def store(folder: Path) -> Path:
    (folder / "campaign.toml").write_text(CAMPAIGN)
    arguments = ["run", str(folder / "campaign.toml"), "--store", str(folder / "sound.db"), "--executor", "local:1"]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    return folder / "sound.db"


SOUND: dict[str, Callable[[Path], Path]] = {
    "onnx": model,
    "checker": model,
    "vnnlib": property_file,
    "npz": images,
    "certificate": certificate,
    "store": store,
}


@pytest.mark.parametrize("kind", SOUND)
def test_mutated_files(kind: str, tmp_path: Path) -> None:
    sound = SOUND[kind](tmp_path)
    folder = tmp_path / "work"
    folder.mkdir()
    command = [sys.executable, str(Path(__file__).parent / "reader_worker.py"), kind, str(sound), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run([*command, str(SEED), str(COUNT)], capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr[-2000:]
    report = json.loads(found.stdout.splitlines()[-1])
    print(kind, report)
    assert not report["failures"], report["failures"]
    assert report["count"] == COUNT
    assert {path.name for path in folder.iterdir()} == {"mutated" + sound.suffix}
