"""Accepted certificates of the bundled networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from softhull.certificates.write import class_certificate, score_certificate
from softhull.checker.certificate import Certificate, write_certificate
from softhull.data import bundled
from softhull.formats.onnx import load_onnx
from softhull.regions import Perturbation


@dataclass(frozen=True)
class Case:
    """A certificate, its file, and the models it is about."""

    certificate: Certificate
    path: Path
    models: tuple[Path, ...]


@pytest.fixture(scope="session")
def image() -> tuple[np.ndarray, int]:
    with np.load(bundled("digits.npz")) as data:
        return data["x"][0] / 255, int(data["y"][0])


@pytest.fixture(scope="session")
def attention(image: tuple[np.ndarray, int], tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = bundled("digits-attention.onnx")
    found = class_certificate(model, *image, Perturbation(0.05, clip=(0, 1)), index=0)
    path = tmp_path_factory.mktemp("certificates") / "attention.npz"
    write_certificate(path, found)
    return Case(found, path, (model,))


@pytest.fixture(scope="session")
def quadratic(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """An instance that linear bounds leave open."""
    model = bundled("digits-attention.onnx")
    with np.load(bundled("digits.npz")) as data:
        x, label = data["x"][2] / 255, int(data["y"][2])
    found = class_certificate(model, x, label, Perturbation(0.05, clip=(0, 1)), index=2)
    path = tmp_path_factory.mktemp("certificates") / "quadratic.npz"
    write_certificate(path, found)
    return Case(found, path, (model,))


@pytest.fixture(scope="session")
def ensemble(image: tuple[np.ndarray, int], tmp_path_factory: pytest.TempPathFactory) -> Case:
    models = tuple(bundled(f"digits-mlp-{i}.onnx") for i in range(2))
    networks = [load_onnx(model) for model in models]
    found = score_certificate(models, networks, *image, Perturbation(0.05, clip=(0, 1)), "nll", index=0)
    path = tmp_path_factory.mktemp("certificates") / "ensemble.npz"
    write_certificate(path, found)
    return Case(found, path, models)
