"""The code in the README and in every page of the documentation runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

import softhull
from softhull.cli.app import COMMANDS, app

from .documents import PAGES, ROOT, blocks, commands

# Commands that take minutes: their options are read, the work is not done.
LONG = {"tightness", "paper", "demo", "plot"}
RUN_ANYWAY = {"--only-files", "sigmoid"}


def read_only(arguments: list[str]) -> None:
    """Parse a command with all its options and stop before it runs."""
    command: click.Command | None = app
    left = list(arguments)
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), left.pop(0))
    assert command is not None, arguments
    command.make_context(command.name, left)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, str(page), "exec"), names)
            assert "print" not in block.text or capsys.readouterr().out.strip()
        elif block.language == "sh":
            for arguments in commands(block.text):
                if arguments[0] in LONG and not RUN_ANYWAY & set(arguments):
                    read_only(arguments)
                else:
                    done = CliRunner().invoke(app, arguments)
                    assert done.exit_code == 0, (arguments, done.output)


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
