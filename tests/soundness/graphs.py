"""Random graphs, formats, scales and regions: every claim of a propagation against ball arithmetic."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from softhull.errors import DomainError
from softhull.graph.graph import Graph
from softhull.graph.operator import Operator
from softhull.graph.ops.conv import Conv
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.scale import Scale
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.optimize import optimized_lower
from softhull.regions import Perturbation, Region
from tests.graph.random_graphs import random_graph
from tests.propagate.networks import random_attention

from .exact import balls, count_violations, values
from .planes import Tally


def random_network(rng: np.random.Generator, dtype: torch.dtype) -> Graph:
    """A small network whose parameters are numbers of the format, some of them very large or very small."""
    graph = random_attention(rng) if rng.random() < 0.4 else random_graph(rng, blocks=int(rng.integers(1, 4)))
    if rng.random() < 0.3:
        graph = Graph(
            graph.input_shape,
            tuple(replace(node, operator=_rescaled(node.operator, 10 ** rng.uniform(-2, 2))) for node in graph.nodes),
        )
    return graph.to(dtype).to(torch.float64)


def _rescaled(operator: Operator, factor: float) -> Operator:
    if not isinstance(operator, Dense | Conv | Scale):
        return operator
    held = {f.name: getattr(operator, f.name) for f in fields(operator)}
    changed = {name: held[name] * factor for name in ("matrix", "kernel") if name in held}
    return replace(operator, **changed)


def random_region(rng: np.random.Generator, graph: Graph, batch: int, dtype: torch.dtype) -> Region:
    """Balls from single points over a few units in the last place to wide ones."""
    x = torch.from_numpy(rng.uniform(0, 1, (batch, *graph.input_shape))).to(dtype)
    spread = 10.0 ** rng.uniform(-16, -0.7, batch) * (rng.random(batch) < 0.8)
    clip = (0.0, 1.0) if rng.random() < 0.3 else None
    ball = Perturbation(1.0, (math.inf, math.inf, 2, 1)[rng.integers(4)], clip)
    return ball.around(x, torch.from_numpy(spread))


def check_graph(rng: np.random.Generator, dtype: torch.dtype, rounding: str, batch: int) -> Tally:
    """Intervals of all nodes and bounds on random specifications, at a centre or an attacked point of every region."""
    graph = random_network(rng, dtype)
    region = random_region(rng, graph, batch, dtype)
    contract = bool(rng.random() < 0.7)
    bounds = LinearBounds(graph.to(dtype), region, Linear(optimize=0, contract=contract, rounding=rounding))
    last = len(graph.nodes) - 1
    tally = Tally()
    C = torch.from_numpy(rng.normal(size=(2, batch, *graph.output_shape))).to(dtype)
    try:
        intervals = [bounds.interval(i) for i in range(last + 1)]
        low, high = bounds.between(last, C)
        lows = [low, bounds.lower(last, C, contract)]
        if rng.random() < 0.3:
            lows.append(optimized_lower(bounds, last, C, 2, 0.2, C.new_full((batch,), torch.inf)))
    except DomainError:  # said, not hidden
        return tally
    for b in range(batch):
        x = adversary(rng, graph, region.take(torch.tensor([b])), C[:, b])
        found = values(graph, x)
        checked = wrong = 0
        for (least, most), exact in zip(intervals, found):
            some = count_violations(least[b], exact, most[b])
            checked, wrong = checked + some[0], wrong + some[1]
        for s in range(len(C)):
            exact = np.array([(balls(C[s, b]) * found[-1]).sum()], dtype=object)
            for bound in lows:
                some = count_violations(bound[s, b].reshape(1), exact, high[s, b].reshape(1))
                checked, wrong = checked + some[0], wrong + some[1]
        tally.add(checked, checked, wrong, f"{dtype} {rounding} instance {b}: {[n.operator.name for n in graph.nodes]}")
    return tally


def adversary(rng: np.random.Generator, graph: Graph, region: Region, C: Tensor) -> Tensor:
    """A point inside the real ball: its centre, or where a specification or an output falls to first order."""
    least, most = region.inner or (region.lower, region.upper)
    middle = (least + (most - least) / 2).clamp(least, most)
    kind = rng.random()
    if kind < 0.25:
        tried = middle
    else:
        x = middle.clone().requires_grad_()
        row = C[0].double() if kind < 0.7 else -C[1].double()
        (gradient,) = torch.autograd.grad((graph(x)[0] * row).sum(), x)
        tried = torch.where(gradient > 0, least, most)
        if kind > 0.9:
            tried = least + torch.from_numpy(rng.random(least.shape)) * (most - least)
    if region.centre is not None:
        centre = region.centre.double()
        for shrink in (1.0, 0.5, 0.1, 0.0):
            moved = (centre + shrink * (region.project(tried.to(region.lower.dtype)).double() - centre)).clamp(
                least, most
            )
            if region.contains(moved[0]):
                return moved[0]
        return centre[0]
    return tried.detach()[0].clamp(least[0], most[0])
