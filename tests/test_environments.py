"""Whatever is not installed is one line with the command to run; what a release needs is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import softhull
from softhull.errors import EXTRAS

from .documents import ROOT
from .environments import COMMANDS, SMALLEST, WITH_IT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("extras", ["cli", "cli,torch", "cli,check", SMALLEST])
def test_every_command_works_or_says_what_to_install(extras: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.environments", "--pretend", extras],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = [line.split("\t") for line in run.stdout.splitlines()]
    assert len(lines) == len(COMMANDS)
    assert [line for line in lines if line[2] != "True"] == []
    found = {name: outcome for name, outcome, _ in lines}
    asked = [outcome for outcome in found.values() if "pip install 'softhull[" in outcome]
    assert asked  # something is always missing in a small environment
    assert all(re.search(r"pip install 'softhull\[(\w|-)+\]'$", outcome) for outcome in asked)
    if extras == SMALLEST:
        assert {name: found[name] for name in WITH_IT} == dict.fromkeys(WITH_IT, "works")
    else:
        assert found["bounds"] == "works"
        assert "softhull[onnx]" in found["verify"]


def test_without_the_command_line_one_line_says_so() -> None:
    hide = "import sys; sys.modules['click'] = None; import softhull.cli; softhull.cli.main()"
    run = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == (
        "softhull: the command line needs click, which is not installed: pip install 'softhull[cli]'\n"
    )


def test_every_extra_that_a_message_names_exists() -> None:
    assert set(EXTRAS.values()) <= PROJECT["optional-dependencies"].keys()


def test_the_release_has_one_version_and_date() -> None:
    version = softhull.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    heading = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    assert heading[1] == version
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
    assert f'\ndate-released: "{heading[2]}"\n' in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation


def test_the_dockerfile_names_what_exists() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"}
    assert {line.split()[0] for line in lines} == known
    assert lines[0].startswith("FROM ")
    for line in lines:
        if line.startswith("COPY "):
            *sources, _ = line.split()[1:]
            assert all((ROOT / source).exists() for source in sources), line
    (extras,) = re.findall(r"'\.\[([\w,-]+)\]'", text)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    image = re.search(r"python:(\d+)\.(\d+)", lines[0])
    assert image is not None
    assert (int(image[1]), int(image[2])) >= (3, 11)  # requires-python
    for file in PROJECT["license-files"]:
        assert any(file == part or file.startswith(f"{part}/") for line in lines for part in line.split()), file
