"""A small file cannot take the memory of the machine: refused by its shapes, before anything is computed."""

from __future__ import annotations

import re
import subprocess
import sys

from .hostile import HOSTILE


def test_hostile_files_are_refused_in_little_memory():
    done = subprocess.run(
        [sys.executable, "-m", "tests.formats.hostile"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(HOSTILE)
    for name, line in zip(HOSTILE, lines):
        found = re.fullmatch(rf"(\d+) MB after \d+ bytes: {name}: node .*", line)
        assert found is not None, line
        assert int(found[1]) < 500, line
