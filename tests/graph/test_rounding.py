"""What rounding costs is said in one place, and is at least what it may be."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import softhull
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.matmul import MatMul
from softhull.graph.ops.product import Product
from softhull.graph.ops.scale import Scale
from softhull.graph.rounding import accumulated, euclidean, extreme_eigenvalues, share, ulps, underflow

SOURCE = Path(softhull.__file__).parent
# Where a search ends, not what anything costs.
STOPS = {"graph/curves.py": 2, "solve/envelope.py": 1}


@pytest.mark.parametrize("folder", ["graph", "propagate", "solve", "branch", "verify"])
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_is_not_lost_with_its_squares(dtype):
    for size in (underflow(dtype), underflow(dtype) ** 0.7, 1.0):
        x = torch.full((1, 9), size, dtype=dtype)
        assert 3 * size * (1 - share(9, dtype)) <= float(euclidean(x, 1)) <= 9 * size * (1 + share(9, dtype))
    assert float(euclidean(torch.zeros(1, 9, dtype=dtype), 1)) == 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ranges_that_overflow_hold_finite_numbers(sign):
    """Also where what overflows first is brought back by what is added then."""
    large = 1e30 * torch.ones(1, 1, 1)
    x, y = (sign * large, sign * large), (large, large)
    one, many = torch.ones(1, 4), sign * torch.tensor([[3e38], [3e38], [-3e38], [-2e38]])
    ranges = [
        Product((1, 1), (1, 1)).interval(x, y),
        MatMul((1, 1), (1, 1)).interval(x, y),
        MatMul((1, 4), (4, 1)).interval((one[None], one[None]), (many[None], many[None])),
        Scale(torch.tensor(1e30), torch.tensor(0.0)).interval(x),
        Dense(many).interval((one[None], one[None])),
    ]
    for lower, upper in ranges:
        assert not bool((lower == torch.inf).any())
        assert not bool((upper == -torch.inf).any())
    for lower, upper in (ranges[2], ranges[4]):
        assert not bool((lower > sign * 1e38).any())  # NaN is unbounded
        assert not bool((upper < sign * 1e38).any())


def test_masks_stay_exact():
    mask = Scale(torch.ones(2), torch.tensor([0.0, -torch.inf]))
    masked = mask.interval((torch.zeros(1, 2), torch.ones(1, 2)))
    for lower, upper in (masked, Scale(torch.full((2,), 3.0), torch.zeros(2)).interval(masked)):
        assert float(upper[0, 1]) == float(lower[0, 1]) == -torch.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eigenvalues_of_sparse_matrices_are_the_extreme_ones(dtype):
    """Products of two tokens of many: blocks of low rank, on which routines of float32 failed."""
    draw = torch.Generator().manual_seed(2)
    for n, width, rank in ((24, 3, 1), (36, 4, 2), (64, 8, 1), (64, 12, 3)):
        blocks = [torch.randn(200, *shape, generator=draw, dtype=dtype) for shape in ((width, rank), (rank, width))]
        matrices = torch.zeros(200, n, n, dtype=dtype)
        matrices[:, :width, width : 2 * width] = blocks[0] @ blocks[1]
        matrices = (matrices + matrices.mT) / 2 * 10.0 ** -torch.randint(0, 12, (200, 1, 1), generator=draw)
        low, high = extreme_eigenvalues(matrices)
        values = torch.from_numpy(np.linalg.eigvalsh(matrices.double().numpy()))
        off = share(n * n, dtype) * matrices.abs().sum((1, 2))
        assert bool(((low - values[:, 0]).abs() <= off).all())
        assert bool(((high - values[:, -1]).abs() <= off).all())


@pytest.mark.parametrize("wrong", [0.0, 0.9, torch.nan])
def test_wrong_eigenvalues_are_not_believed(wrong, monkeypatch):
    matrices = torch.diag(torch.tensor([-3.0, 0.0, 1.0]))[None]
    assert extreme_eigenvalues(matrices) == (torch.tensor([-3.0]), torch.tensor([1.0]))
    true_rule = torch.linalg.eigvalsh
    for entry in range(3):
        spoilt = torch.ones(3, dtype=torch.float64)
        spoilt[entry] = wrong
        monkeypatch.setattr(torch.linalg, "eigvalsh", lambda given, spoilt=spoilt: true_rule(given) * spoilt)
        expected = (-torch.inf, torch.inf) if entry != 1 or wrong != wrong else (-3.0, 1.0)
        assert tuple(float(end) for end in extreme_eigenvalues(matrices)) == expected
    monkeypatch.setattr(torch.linalg, "eigvalsh", true_rule)
    assert extreme_eigenvalues(matrices * torch.inf) == (torch.tensor([-torch.inf]), torch.tensor([torch.inf]))
