"""The code in the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_python_blocks_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_commands_it_names_exist() -> None:
    from softhull.cli.app import COMMANDS

    named = set(re.findall(r"^softhull (\w+)", README, flags=re.MULTILINE))
    assert named
    assert named <= set(COMMANDS)


def test_there_is_code_to_run() -> None:
    assert BLOCKS
