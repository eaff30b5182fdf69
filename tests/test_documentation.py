"""The code in the README and in every page of the documentation runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import softhull
from softhull.cli.app import COMMANDS

from .documents import GALLERY, PAGES, ROOT, blocks, output_after, pictures, run, same


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs_in_order_and_prints_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block, printed in run(page):
        assert "print" not in block.text or printed.strip()
        shown = output_after(page, block)
        assert shown is None or same(shown.text, printed), printed
    for name in pictures(page):
        if (tmp_path / name).exists():
            assert looks_like(page.parent / name, tmp_path / name), f"{name} is stale: make outputs"


def looks_like(kept: Path, drawn: Path) -> bool:
    """Whether two pictures are of one size and nearly the same everywhere; fonts may differ a little."""
    from matplotlib.image import imread

    one, other = imread(kept), imread(drawn)
    return one.shape == other.shape and float(np.abs(one - other).mean()) < 0.01


@pytest.mark.parametrize("page", GALLERY, ids=lambda page: page.name)
def test_gallery_pictures_are_drawn_by_the_page_itself(page: Path) -> None:
    code = "".join(block.text for block in blocks(page) if block.language in ("python", "sh"))
    assert all(name in code for name in pictures(page))


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a 1.234 in 3.1 s", "a 1.235 in 99 s", True),
        ("a 1.234", "a 1.334", False),
        ("19 certified", "18 certified", False),
        ("head\n...\ntail 3", "head\nanything 7\ntail 3", True),
        ("certified", "falsified", False),
        ("[0.1 0.2]", "[0.1 0.2 0.3]", False),
    ],
)
def test_outputs_are_compared_up_to_times_and_last_digits(shown: str, printed: str, expected: bool) -> None:
    assert same(shown, printed) is expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_is_in_a_language_that_says_whether_it_runs(page: Path) -> None:
    known = {"python", "sh", "toml", "text", "json", "bash", "yaml", "console"}
    assert {block.language for block in blocks(page)} <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_commands_it_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`softhull (\w+)", text):
        assert name in COMMANDS
    for path in re.findall(r"`((?:src/softhull|bounds|propagate|solve|verify|examples|tests)/[\w./]+\.py)`", text):
        assert (ROOT / path).is_file() or (ROOT / "src/softhull" / path).is_file(), path


def test_the_readme_has_code_to_run() -> None:
    assert {"python", "sh"} <= {block.language for block in blocks(ROOT / "README.md")}


def test_every_public_name_is_in_the_reference() -> None:
    reference = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^(?:::: softhull\.|### )(\w+)$", reference, flags=re.MULTILINE))
    public = {name for name in dir(softhull) if not name.startswith("_") and public_object(name)}
    assert public <= named, public - named
    assert named <= public, named - public


def public_object(name: str) -> bool:
    """Whether a name of the package is its own, neither a module nor something it imports for itself."""
    found = getattr(softhull, name)
    return not isinstance(found, ModuleType) and (
        name == "BOUNDS" or str(getattr(found, "__module__", "")).startswith("softhull.")
    )
