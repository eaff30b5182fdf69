"""What rounding costs is said in one place, and is at least what it may be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import softhull
from softhull.graph.rounding import accumulated, share, ulps

SOURCE = Path(softhull.__file__).parent
# Where a search ends, not what anything costs.
STOPS = {"graph/curves.py": 2, "solve/envelope.py": 1}


@pytest.mark.parametrize("folder", ["graph", "propagate", "solve", "verify"])
def test_no_charge_without_a_name(folder):
    bare = {}
    for path in sorted((SOURCE / folder).rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name != "graph/rounding.py" and (found := re.findall(r"finfo\(.*?\)\.eps", path.read_text())):
            bare[name] = len(found)
    assert bare == {name: count for name, count in STOPS.items() if name.startswith(folder)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_costs_cover_what_operations_round(n, dtype):
    """A sum of n equal terms, each rounded the same way, is the worst that may happen."""
    unit = torch.finfo(dtype).eps / 2
    worst = (1 + unit) ** n - 1
    assert accumulated(n, dtype) >= worst
    assert share(n, dtype) >= accumulated(n, dtype)
    assert ulps(n, dtype) >= accumulated(n, dtype)
    assert accumulated(10**20, dtype) == torch.inf
