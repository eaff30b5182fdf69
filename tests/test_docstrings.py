"""Every public function of the package, and every one over ten lines, says what it is for.

A method that overrides another may leave that to the one it overrides; functions inside functions, special methods and
versions of a function for one type (named ``_``) are exempt.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path

import pytest

import softhull
from softhull.verify.methods import TABLE

from .documents import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
LONG = 10


def functions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and methods of its classes, with their dotted names."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{owner}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner + node.name, node
        elif isinstance(node, ast.If | ast.Try):
            yield from functions(node.body, owner)


def needs_docstring(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if node.name.startswith("__") or node.name == "_":
        return False
    is_long = (node.end_lineno or 0) - node.lineno + 1 > LONG
    return is_long or not any(part.startswith("_") for part in name.split("."))


def inherited(source: Path, name: str) -> str | None:
    """The docstring of what a method overrides."""
    owner, _, method = name.rpartition(".")
    if not owner:
        return None
    found = import_module(".".join(source.relative_to(ROOT / "src").with_suffix("").parts))
    for part in owner.split("."):
        found = getattr(found, part)
    return inspect.getdoc(inspect.getattr_static(found, method)) or inspect.getdoc(getattr(found, method))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT / "src/softhull")))
def test_functions_say_what_they_are_for(source: Path) -> None:
    missing = [
        f"{source.name}:{node.lineno} {name}"
        for name, node in functions(ast.parse(source.read_text(encoding="utf-8")).body)
        if needs_docstring(name, node) and not ast.get_docstring(node) and not inherited(source, name)
    ]
    assert not missing


def settings_classes() -> list[type]:
    """The public classes that are made of settings which a user writes down."""
    public = [getattr(softhull, name) for name in dir(softhull) if not name.startswith("_")]
    return [
        each for each in public if is_dataclass(each) and isinstance(each, type) and "Args:" in (each.__doc__ or "")
    ]


def test_every_setting_of_a_method_is_documented() -> None:
    found = settings_classes()
    methods = {entry.settings() for entry in TABLE.values()}
    assert methods | {softhull.Perturbation, softhull.Alternatives, softhull.ScoreAttack} <= set(found)
    for each in found:
        listed = re.findall(r"^ {8}(\w+)(?: \(.*?\))?: ", each.__doc__ or "", flags=re.MULTILINE)
        assert listed == [f.name for f in fields(each)], each.__name__
