"""What certified scores ask of propagation: second order at any node, planes of a softmax tangent anywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb

from softhull.graph.builder import GraphBuilder
from softhull.graph.ops.softmax import Softmax
from softhull.propagate import softmax_steps as softmaxes
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear, SecondOrder
from softhull.propagate.optimize import optimized_lower
from softhull.propagate.second_order.specification import SecondOrderBounds, bound_quadratic
from softhull.propagate.second_order.sums import sum_of
from softhull.regions import Perturbation
from softhull.verify.ensemble import join
from tests.propagate.checks import points_of
from tests.propagate.networks import random_attention
from tests.soundness.exact import balls, values

POINTS = 6


def case(seed, norm=torch.inf):
    rng = np.random.default_rng(seed)
    ensemble = join([random_attention(rng, depth=1)], ["network"])
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *ensemble.graph.input_shape)))
    return ensemble, Perturbation(10 ** rng.uniform(-2.5, -0.5), norm).around(x)


def assert_below(low, rows, node, graph, region, seed):
    for x in points_of(region, seed, POINTS):
        for b in range(region.size):
            exact = (balls(rows[b]) * values(graph, x[b])[node].reshape(rows[b].shape)).sum()
            assert not arb(float(low[b])) > exact


@pytest.mark.parametrize("norm", [torch.inf, 2])
@pytest.mark.parametrize("seed", range(2))
def test_second_order_bounds_logits_and_probabilities_of_one_graph(seed, norm):
    ensemble, region = case(seed, norm)
    second = SecondOrderBounds.of(LinearBounds(ensemble.graph, region, SecondOrder().linear))
    rows = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    never = torch.full((2,), torch.inf, dtype=torch.float64)
    for node in (*ensemble.logits, *ensemble.softmaxes):
        for fitted in (False, True):
            low = second.lower(rows, torch.arange(2), 6, never, fitted, index=node)
            assert_below(low, rows, node, ensemble.graph, region, seed)


@pytest.mark.parametrize("norm", [torch.inf, 2])
@pytest.mark.parametrize("seed", range(3))
def test_quadratics_of_networks_that_share_their_input_add_up(seed, norm):
    """The sum is below that of the networks everywhere, and no looser than inputs of their own would make it."""
    rng = np.random.default_rng(200 + seed)
    graphs = [random_attention(rng, depth=1) for _ in range(12)]
    size = graphs[0].input_shape
    graphs = [graph for graph in graphs if graph.input_shape == size][:3]
    assert len(graphs) > 1
    x = torch.from_numpy(rng.uniform(0, 1, size=(2, *size)))
    region = Perturbation(10 ** rng.uniform(-2.5, -1), norm).around(x)
    seconds = [SecondOrderBounds.of(LinearBounds(graph, region, SecondOrder().linear)) for graph in graphs]
    rows = torch.from_numpy(rng.normal(size=(2, *graphs[0].output_shape)))
    never, both, noise = torch.full((2,), torch.inf, dtype=torch.float64), torch.arange(2), seconds[0].forms.noise
    parts = [second.quadratic(rows, both) for second in seconds]
    low = bound_quadratic(sum_of(parts, noise.inputs), noise, 12, never)
    for point in points_of(region, seed, POINTS):
        for b in range(region.size):
            exact = sum(((balls(rows[b]) * values(graph, point[b])[-1]).sum() for graph in graphs), arb(0))
            assert not arb(float(low[b])) > exact
    apart = torch.stack([bound_quadratic(part, noise, 12, never) for part in parts]).sum(0)
    assert bool((low > apart - 0.02 * (1 + apart.abs())).all())  # up to where the searches for multipliers end


@pytest.mark.parametrize("seed", range(4))
def test_planes_touch_where_asked_and_are_never_mixed_with_those_of_another_anchor(seed):
    ensemble, region = case(100 + seed)
    graph, (index,), (logits,) = ensemble.graph, ensemble.softmaxes, ensemble.logits
    bounds = LinearBounds(graph, region, Linear())
    at = graph.values(region.sample(torch.Generator().manual_seed(seed)))[logits][:, None]
    bounds = softmaxes.touching(bounds, index, at)
    planes = softmaxes.row_planes(bounds, index)
    assert torch.allclose(planes.at, at, atol=1e-12)
    rows = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert_below(bounds.lower(index, rows[None])[0], rows, index, graph, region, seed)
    never = torch.full((2,), torch.inf, dtype=torch.float64)
    assert_below(optimized_lower(bounds, index, rows[None], 5, 0.3, never)[0], rows, index, graph, region, seed)


def test_planes_of_long_rows_stay_where_they_are():
    generator = torch.Generator().manual_seed(0)
    b = GraphBuilder((1, 3))
    weights = torch.randn(3, 200, generator=generator, dtype=torch.float64)
    graph = b.finish(b.elementwise(Softmax(1), b.linear(-1, weights)))
    region = Perturbation(0.1).around(torch.rand(1, 1, 3, generator=generator, dtype=torch.float64))
    bounds = LinearBounds(graph, region, Linear())
    before = softmaxes.row_planes(bounds, 1)
    bounds = softmaxes.touching(bounds, 1, torch.zeros(1, 1, 200, dtype=torch.float64))
    assert softmaxes.row_planes(bounds, 1) is before
