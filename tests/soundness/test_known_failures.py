"""Cases in which other tools were found to be wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb

from softhull import BOUNDS, softmax_bounds, softmax_extrema, softmax_planes
from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.optimize import optimized_lower
from softhull.regions import Region

from .exact import balls, softmax
from .planes import compare, points_in

BOXES = {
    "width 20": ([-20.0, 0.0], [0.0, 20.0]),
    "one side fixed far below": ([-100.0, -100.0], [0.0, -40.0]),
    "width 12": ([-12.0, 0.0], [0.0, 12.0]),
    "half-width 1e-6": ([0.3 - 1e-6, -0.2 - 1e-6, 1.1 - 1e-6], [0.3 + 1e-6, -0.2 + 1e-6, 1.1 + 1e-6]),
    "beyond 88": ([88.5, 0.0, -95.0], [120.0, 100.0, 95.0]),
    "beyond 710": ([709.0, -800.0], [1200.0, 900.0]),
    "width 200": ([-100.0, -100.0, -100.0], [100.0, 100.0, 100.0]),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("label", BOXES)
def test_softmax_bounds(label: str, dtype: str) -> None:
    lower, upper = (np.array([end], dtype=dtype) for end in BOXES[label])
    rng = np.random.default_rng(0)
    for name in BOUNDS:
        if name == "lse2" and lower.shape[-1] != 2:
            continue
        planes = softmax_planes(lower, upper, name)
        points = points_in(rng, lower, upper, lower, 30)
        for side, sign in ((planes.lower, 1), (planes.upper, -1)):
            if side is not None:
                found = compare(points, side.value, side.dense()[0], side.at, sign, name)
                assert not found.violations, found.wrong
                assert np.isfinite(side.value).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_constant_bounds_do_not_saturate(dtype: str) -> None:
    """The minimum of p_2 over [-20, 0] x [0, 20] is 1/2, not .9995."""
    lower, upper = (np.array(end, dtype=dtype) for end in BOXES["width 20"])
    least, most = softmax_bounds(lower, lower, upper, "const")
    assert 0.499 < least[1] <= 0.5
    assert 0.5 <= most[0] < 0.501
    low, high = softmax_extrema(np.array([0.0, 1.0], dtype=dtype), lower, upper)
    assert 0.499 < low <= 0.5
    assert high <= 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_objective_with_its_minimum_inside(dtype: torch.dtype) -> None:
    """p_1 + 0.05 (x_2 - x_1) over [-12, 0] x [0, 12]: the minimum lies in the middle of the box, not at a corner."""
    graph = _probability_and_difference()
    lower, upper = (torch.tensor([end], dtype=dtype) for end in BOXES["width 12"])
    bounds = LinearBounds(graph.to(dtype), Region(lower, upper), Linear())
    C = torch.tensor([1.0, 0.05], dtype=dtype).reshape(1, 1, 2)
    slope = float(C[0, 0, 1])
    found = [
        bounds.lower(len(graph.nodes) - 1, C),
        optimized_lower(bounds, len(graph.nodes) - 1, C, 20, 0.1, torch.full((1,), torch.inf, dtype=dtype)),
    ]
    for x in np.linspace(0, 12, 200):
        point = balls(np.array([-x, x]))
        exact = softmax(point)[0] + arb(slope) * (point[1] - point[0])
        assert all(not arb(float(bound)) > exact for bound in found)


def _probability_and_difference() -> Graph:
    b = GraphBuilder((2,))
    p = b.elementwise(Softmax(0), -1)
    row = b.reshape(p, (1, 2))
    first = b.linear(row, torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
    apart = b.linear(b.reshape(-1, (1, 2)), torch.tensor([[0.0, -1.0], [0.0, 1.0]], dtype=torch.float64))
    return b.finish(b.reshape(b.sum_of(first, apart), (2,)))
