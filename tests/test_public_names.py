"""The flat public namespace: complete, lazy, and clear about what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import softhull


@pytest.mark.parametrize("name", sorted(softhull._ON_FIRST_USE))
def test_every_lazy_name_exists(name: str) -> None:
    assert getattr(softhull, name).__name__ == name
    assert name in dir(softhull)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'softmin_planes'"):
        _ = softhull.softmin_planes


def test_a_missing_package_is_named_with_its_extra() -> None:
    hide = "import sys; sys.modules['torch'] = None; import softhull\ntry:\n    softhull.verify_robustness\n"
    show = "except softhull.MissingExtra as problem:\n    print(problem)"
    run = subprocess.run([sys.executable, "-c", hide + show], capture_output=True, text=True, check=False)
    assert (
        run.stdout.strip() == "verify_robustness needs torch, which is not installed: pip install 'softhull[onnx]'"
    ), run.stderr
