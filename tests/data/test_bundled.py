"""The networks and images that come with the package."""

from __future__ import annotations

import numpy as np
import pytest

import softhull
from softhull.data import BUNDLED

NETWORKS = [name for name in BUNDLED if name.endswith(".onnx")]


def test_there_are_an_attention_network_an_ensemble_and_images() -> None:
    ensemble = {f"digits-mlp-{i}.onnx" for i in range(5)}
    assert set(BUNDLED) == ensemble | {"digits-attention.onnx", "digits.npz", "digits.toml"}


def test_all_together_are_small() -> None:
    assert sum(softhull.bundled(name).stat().st_size for name in BUNDLED) < 500_000


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_load_and_know_most_digits(name: str) -> None:
    network, data = softhull.load_onnx(softhull.bundled(name)), softhull.load_dataset(softhull.bundled("digits.npz"))
    assert len(data) == 100
    outputs = network.replay(data.x).reshape(100, 10)
    assert np.mean(outputs.argmax(1) == data.y) > 0.9


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_tell_nothing_of_the_machine_they_were_written_on(name: str) -> None:
    content = softhull.bundled(name).read_bytes()
    assert b".py" not in content
    assert b"/home" not in content
    assert b"stack_trace" not in content


@pytest.mark.parametrize("name", ["digits", "../__init__.py", "README.md", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(softhull.InvalidInput, match=r"digits-attention\.onnx"):
        softhull.bundled(name)
