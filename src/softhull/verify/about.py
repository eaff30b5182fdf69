"""What a result is about, so that it can be understood away from the call that made it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from torch import Tensor

from .. import __version__
from ..formats.network import Network
from ..regions import AnyPerturbation, as_perturbation
from ..show import plain

PACKAGES = ("numpy", "torch", "onnxruntime")  # whose versions may change the last digits of an answer


def describe(
    question: str,
    networks: Sequence[Any],
    x: Tensor,
    labels: Tensor,
    perturbation: AnyPerturbation,
    method: Any,
    **settings: Any,
) -> dict[str, Any]:
    """What was asked, as plain values: models and data with hashes, region, property, method, versions, time."""
    return {
        "question": question,
        "models": [model_of(network) for network in networks],
        "data": {"inputs": len(x), "sha256": hash_of(x, labels)},
        "region": as_perturbation(perturbation).settings(),
        "method": plain(method),
        "settings": plain({name: value for name, value in settings.items() if value is not None}),
        "versions": versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def model_of(network: Any) -> dict[str, Any]:
    """Path and hash of a network; one that was not read from a file has neither."""
    if isinstance(network, Network):
        return {"path": network.path, "sha256": network.sha256}
    return {"path": None, "sha256": None}


def hash_of(x: Tensor, labels: Tensor) -> str:
    """The hash of inputs and labels as 64-bit numbers: the same for the same numbers, whatever file they were in."""
    digest = hashlib.sha256(np.ascontiguousarray(x.detach().cpu().numpy(), dtype="<f8").tobytes())
    digest.update(np.ascontiguousarray(labels.cpu().numpy(), dtype="<i8").tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of softhull, Python, and the packages that compute."""
    found = {"softhull": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
