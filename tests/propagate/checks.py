"""Try to break every claim a LinearBounds makes: intermediate intervals, score differences, specifications."""

from __future__ import annotations

import torch
from torch import Tensor

from softhull.attack.pgd import minimize_margin
from softhull.graph.graph import Graph
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear, Paper
from softhull.propagate.optimize import optimized_lower, with_better_differences
from softhull.regions import Region

# The values that claims are compared with are rounded; tests/soundness compares with exact ones.
ROUNDING = 1e-9


def points_of(region: Region, seed: int, count: int = 60) -> Tensor:
    """Random points, corners and points of a few moved coordinates: ``[count, B, *shape]``."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        x = region.sample(generator)
        high = torch.rand(x.shape, generator=generator) < 0.5
        corner = torch.where(high, region.upper, region.lower)
        few = torch.where(torch.rand(x.shape, generator=generator) < 0.2, corner, (region.lower + region.upper) / 2)
        found.append((x, region.project(corner), region.project(few))[i % 3])
    return torch.stack(found)


def assert_claims_hold(graph: Graph, region: Region, method: Linear | Paper, seed: int) -> LinearBounds:
    """Every interval, difference and specification bound survives sampled and attacked points."""
    generator = torch.Generator().manual_seed(seed)
    bounds = LinearBounds(graph, region, method)
    intervals = {i: bounds.interval(i) for i in range(len(graph.nodes))}
    differences = {
        i: found
        for i, node in enumerate(graph.nodes)
        if isinstance(node.operator, Softmax) and (found := bounds.differences(i)) is not None
    }
    last = len(graph.nodes) - 1
    C = torch.randn((4, region.size, *graph.output_shape), generator=generator, dtype=region.lower.dtype)
    low, high = bounds.between(last, C)
    claims = [low, -bounds.lower(last, -C)]
    assert torch.allclose(claims[1], high)
    lower = [low]
    if method.contract:
        lower.append(bounds.lower(last, C, contract=True))
        lower.append(optimized_lower(bounds, last, C, 3, 0.2, C.new_full((region.size,), torch.inf)))
        tightened = with_better_differences(bounds, 2, 0.2)
        intervals |= {i + len(graph.nodes): tightened.interval(i) for i in range(len(graph.nodes))}
        lower.append(tightened.lower(last, C, contract=True))
    points = points_of(region, seed)
    values = [value.unflatten(0, points.shape[:2]) for value in graph.values(points.flatten(0, 1))]
    for i, (least, most) in intervals.items():
        _assert_between(least, values[i % len(graph.nodes)], most)
    for i, (least, most) in differences.items():
        node = graph.nodes[i]
        rows = values[node.inputs[0]].movedim(node.operator.axis + 2, -1).flatten(2, -2)  # type: ignore[attr-defined]
        apart = rows[..., :, None] - rows[..., None, :]
        seen = apart.isfinite()  # masked scores have no differences
        _assert_between(least.expand_as(apart)[seen], apart[seen], most.expand_as(apart)[seen])
    reached = (C[:, None] * values[-1]).flatten(3).sum(-1).movedim(1, 0)
    attacked = _attacked(graph, region, C, seed)
    for bound in lower:
        _assert_between(bound, reached, high)
        _assert_between(bound, attacked, high)
    return bounds


def _attacked(graph: Graph, region: Region, C: Tensor, seed: int) -> Tensor:
    """The smallest value found of every specification, all of them attacked at once: ``[S, B]``."""
    instances = torch.arange(region.size).repeat(len(C))
    rows = C.flatten(0, 1)

    def margin(x: Tensor, which: Tensor) -> Tensor:
        return (rows[which] * graph(x)).flatten(1).sum(1)

    start = ((region.lower + region.upper) / 2)[instances]
    found, _ = minimize_margin(margin, region.take(instances), start, 15, 2, seed, target=-torch.inf)
    return found.reshape(len(C), region.size)


def _assert_between(least: Tensor, value: Tensor, most: Tensor) -> None:
    assert not least.isnan().any()
    assert not most.isnan().any()
    slack = ROUNDING * (1 + value.abs().nan_to_num(posinf=0))
    assert bool((value >= least - slack).all())
    assert bool((value <= most + slack).all())
