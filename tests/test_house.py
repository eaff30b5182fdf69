"""The table of rooms in CONTRIBUTING.md is complete, and no import goes against it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import softhull

HOUSE = Path(softhull.__file__).parent
FRONT_DOOR = "__init__.py"  # exports what is public, and tells the version to everyone
ALONE = re.compile(r"[Ii]mports `([^`]+)` alone")


def rooms() -> dict[str, str]:
    """Every room with what is said of it, in the order of the table."""
    text = (HOUSE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## The house")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+?)/?` \| (.+) \|$", section, re.MULTILINE))


def imported(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Line, room and names of everything that a module imports from the package, wherever in the file it does."""
    package = ("softhull", *path.relative_to(HOUSE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [alias.name for alias in node.names]
            if module == ["softhull"]:
                for name in names:
                    yield node.lineno, _room(name), [name]
            elif module[:1] == ["softhull"]:
                yield node.lineno, _room(module[1]), names
        elif isinstance(node, ast.Import):
            for alias in node.names:
                module = alias.name.split(".")
                if module[0] == "softhull":
                    yield node.lineno, _room(module[1]) if module[1:] else FRONT_DOOR, [alias.name]


def _room(name: str) -> str:
    if (HOUSE / name).is_dir():
        return name
    return f"{name}.py" if (HOUSE / f"{name}.py").is_file() else FRONT_DOOR


def wrong_imports(order: dict[str, str], path: Path) -> list[str]:
    place = {room: number for number, room in enumerate(order)}
    own = path.relative_to(HOUSE).parts[0]
    found = []
    for line, room, names in imported(path):
        where = f"{path.relative_to(HOUSE)}:{line}: {own} imports {', '.join(names)} from {room}"
        only = ALONE.search(order[own])
        if room == own:
            continue
        if room == FRONT_DOOR:
            if names != ["__version__"]:
                found.append(f"{where}; from the front door only the version")
        elif only is not None and room != only[1]:
            found.append(f"{where}; it imports {only[1]} alone")
        elif place[room] > place[own]:
            found.append(f"{where}, which is listed after it")
    return found


def test_the_table_lists_every_room() -> None:
    there = {p.name for p in HOUSE.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))}
    assert set(rooms()) == there - {FRONT_DOOR}


def test_no_import_goes_against_the_table() -> None:
    order = rooms()
    files = [path for path in sorted(HOUSE.rglob("*.py")) if path != HOUSE / FRONT_DOOR]
    assert len(files) > 100
    assert not [line for path in files for line in wrong_imports(order, path)]
    assert ALONE.search(order["checker"])  # it is independent of all that it checks


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("bounds", "from ..verify.result import Result"),
        ("graph", "def f():\n    from softhull.formats import onnx"),
        ("errors.py", "import softhull.cli.app"),
        ("checker", "from ..bounds.table import BOUNDS"),
        ("runs", "from .. import report"),
        ("verify", "from .. import load_onnx"),
    ],
)
def test_an_import_against_it_is_seen(room: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    order = rooms()
    path = HOUSE / room if room.endswith(".py") else HOUSE / room / "anew.py"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: line)
    assert len(wrong_imports(order, path)) == 1
