"""Every method on random attention networks: margins and scores against ball arithmetic, with no tolerance.

A bound is wrong when it is certainly above the true value at one point of the real region. Most regions are tiny or a
single point: there bounds are tight to a few roundings, and an error of 1e-9 shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from flint import arb, ctx
from torch import Tensor

from softhull.attack.pgd import minimize_margin
from softhull.attack.score import ScoreAttack
from softhull.errors import SofthullError
from softhull.graph.graph import Graph
from softhull.graph.ops.softmax import Softmax
from softhull.graph.simplify import simplify
from softhull.propagate.crown import LinearBounds
from softhull.propagate.interval import interval_bounds
from softhull.propagate.methods import Auto, Branch, Linear, Method, SecondOrder
from softhull.propagate.optimize import optimized_lower, with_better_differences
from softhull.propagate.products import prepare_jointly
from softhull.propagate.second_order.forward import NoAffineForms
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Choices, Region
from softhull.verify.engine import solve
from softhull.verify.ensemble import Ensemble, Joined
from softhull.verify.enumerate import Enumerate
from softhull.verify.margins import Margins
from softhull.verify.problem import Effort, Problem
from softhull.verify.robustness import _rounded_inside
from softhull.verify.scores import SCORES
from softhull.verify.uncertainty import verify_uncertainty
from tests.solve.ensembles import ACTIVATIONS
from tests.solve.ensembles import random_graph as random_dense

from .exact import DIGITS, Balls, balls, softmax, values
from .graphs import adversary
from .networks import CLASSES, random_encoder, random_perturbation, random_region, random_transformer
from .planes import Tally

BOUNDS_TRIED = ("hull", "hull", "lse*/lse", "er", "best")
PROGRAMS = ("dual", "lp", "conic")
METHODS: tuple[Method, ...] = (Linear(optimize=1), SecondOrder(), SecondOrder(row_fit=False), Auto(optimize=1))
Lows = dict[str, Tensor]


def check_margins(
    rng: np.random.Generator,
    batch: int = 4,
    way: str | None = None,
    network: Callable[[np.random.Generator], Graph] = random_transformer,
) -> Tally:
    """Bounds of one way on random rows of the output, at attacked points and others of every region."""
    dtype = torch.float32 if rng.random() < 0.2 else torch.float64
    original = network(rng)
    # What simplification makes of a network is another spelling of the same function, where its numbers are kept.
    graph = simplify(original) if rng.random() < 0.8 else original
    if dtype == torch.float32:
        original = graph = graph.to(dtype).to(torch.float64)
    x = torch.from_numpy(rng.uniform(0, 1, (batch, *graph.input_shape)))
    region = random_region(rng, x, dtype)
    rows = torch.from_numpy(rng.normal(size=(2, batch, *graph.output_shape))).to(dtype)
    way = way or str(rng.choice(list(WAYS), p=[share for share, _ in WAYS.values()]))
    tally, note = Tally(), f"{dtype} {type(region).__name__} {region.norm} {way}"
    try:
        with torch.no_grad():
            # Without what finite masks hide, as questions are answered.
            asked = Joined((Ensemble(graph.to(dtype)),)).over(region).graphs[0].graph
            bounds = WAYS[way][1](rng, asked, region, rows)
    except SofthullError:  # said, not hidden
        return tally
    lowest = attacked(original, region, rows.double(), int(rng.integers(1 << 30)))
    for b in range(batch):
        here = region.take(torch.tensor([b]))
        for point in _points(rng, original, here, rows[:, b], [worst[b] for worst in lowest]):
            exact = values(original, point)[-1]
            for s in range(len(rows)):
                value = _in_balls(lambda: (balls(rows[s, b]) * exact).sum())  # noqa: B023
                for name, low in bounds.items():
                    wrong = math.isnan(low[s, b]) or bool(arb(float(low[s, b])) > value)
                    tally.add(1, 1, int(wrong), f"{name} {note}: {float(low[s, b])!r} against {value}" if wrong else "")
    return tally


def _points(rng: np.random.Generator, graph: Graph, here: Region, rows: Tensor, worst: list[Tensor]) -> list[Tensor]:
    """Points of the real region of one instance: all of a small finite set, otherwise attacked ones and others."""
    if isinstance(here, Choices):
        points = here.points(32)
        assert points is not None
        return list(points.double())
    found = [adversary(rng, graph, here, rows) for _ in range(2)]
    inside = [_inside(point, here) for point in worst]
    return [point for point in (*found, *inside) if point is not None and here.contains(point)]


def _linear(rng: np.random.Generator, graph: Graph, region: Region, rows: Tensor) -> Lows:
    """Walks as they are, with contracted products, and after a gradient step."""
    bound = str(rng.choice(BOUNDS_TRIED))
    last, method = len(graph.nodes) - 1, Linear(bound, mixture=float(rng.choice((0.0, 0.5, 1.0))))
    bounds = LinearBounds(graph, region, method)
    found = {"linear": bounds.lower(last, rows), "contracted": bounds.lower(last, rows, contract=True)}
    if rng.random() < 0.3:
        never = rows.new_full((rows.shape[1],), math.inf)
        found["gradient"] = optimized_lower(bounds, last, rows, 2, 0.2, never)
        better = with_better_differences(bounds, 1, 0.2)
        found["better differences"] = better.lower(last, rows)
    return found


def _joint(rng: np.random.Generator, graph: Graph, region: Region, rows: Tensor) -> Lows:
    """Walks that know how the lines of factors move together."""
    bounds = LinearBounds(graph, region, SecondOrder(str(rng.choice(BOUNDS_TRIED))).linear, joint=True)
    if rng.random() < 0.5:
        prepare_jointly(bounds)
    return {"joint": bounds.lower(len(graph.nodes) - 1, rows)}


def _second_order(rng: np.random.Generator, graph: Graph, region: Region, rows: Tensor, fitted: bool = False) -> Lows:
    """The quadratic of every row, with planes or with quadratics fitted to attention rows."""
    S, B = rows.shape[:2]
    bounds = LinearBounds(graph, region, SecondOrder(str(rng.choice(BOUNDS_TRIED))).linear)
    try:
        second = SecondOrderBounds.of(bounds)
    except NoAffineForms:
        return {"linear": bounds.lower(len(graph.nodes) - 1, rows)}
    row, instance = (t.flatten() for t in torch.meshgrid(torch.arange(S), torch.arange(B), indexing="ij"))
    never = rows.new_full((S * B,), math.inf)
    low = second.lower(rows[row, instance], instance, 6, never, fitted).reshape(S, B)
    return {"fitted rows" if fitted else "second order": low}


def _whole(rng: np.random.Generator, graph: Graph, region: Region, rows: Tensor) -> Lows:
    """What ``verify`` does, with every stage of a method having its turn."""
    method = WHOLE[rng.integers(len(WHOLE))]
    # Nothing is to be proved before the last stage has had its turn.
    offsets = LinearBounds(graph, region, Linear()).lower(len(graph.nodes) - 1, rows).nan_to_num(neginf=0.0) + 1
    problem = Problem(
        Joined((Ensemble(graph),)), region, region.lower, Margins(rows.flatten(2), offsets, torch.arange(len(rows)))
    )
    asked = Enumerate(method) if isinstance(region, Choices) else method
    less = solve(problem, asked, Effort(attack="never", proofs=True)).bounds
    # These bounds are less their offsets: what they say is that the sum is a bound.
    return {type(method).__name__: _sum_below(less, offsets)}


def _nodes(rng: np.random.Generator, graph: Graph, region: Region, rows: Tensor) -> Lows:
    """Intervals of the output by interval arithmetic and by walks, as bounds on its rows."""
    found = {}
    bounds = LinearBounds(graph, region, Linear(contract=False))
    for name, ends in (
        ("intervals", interval_bounds(graph, (region.lower, region.upper))[-1]),
        ("walked", bounds.interval(len(graph.nodes) - 1)),
    ):
        found[name] = Region(*ends).minimum(rows)
    return found


WHOLE: tuple[Method, ...] = (
    Linear(optimize=1),
    SecondOrder(),
    Auto(optimize=1),
    Branch(inner=SecondOrder(row_fit=False), nodes=6, cells=2, tries=1),
)
WAYS: dict[str, tuple[float, Callable[..., Lows]]] = {
    "linear": (0.25, _linear),
    "joint": (0.1, _joint),
    "second order": (0.45, _second_order),
    "fitted rows": (0.08, partial(_second_order, fitted=True)),
    "whole proofs": (0.07, _whole),
    "intervals": (0.05, _nodes),
}


def _sum_below(a: Tensor, b: Tensor) -> Tensor:
    """The number next below the real sum, so that the sum itself is what is checked."""
    total = a.double() + b.double()
    return torch.nextafter(total, torch.full_like(total, -math.inf))


def attacked(graph: Graph, region: Region, rows: Tensor, seed: int) -> list[Tensor]:
    """For every row the inputs of the batch where gradient descent found it smallest."""
    if isinstance(region, Choices):
        return []
    region = replace(region, lower=region.lower.double(), upper=region.upper.double())
    start = region.lower + (region.upper - region.lower) / 2
    found = []
    for row in rows:

        def margin(x: Tensor, which: Tensor) -> Tensor:
            return (row[which] * graph(x)).flatten(1).sum(1)  # noqa: B023

        found.append(minimize_margin(margin, region, start, 8, 1, seed, target=-math.inf)[1])
    return found


def _inside(x: Tensor, region: Region) -> Tensor | None:
    point = _rounded_inside(x.double(), region, np.dtype(np.float64))
    return None if point is None else torch.from_numpy(point)


def _in_balls(work: Callable[[], arb]) -> arb:
    before, ctx.dps = ctx.dps, DIGITS
    try:
        return work()
    finally:
        ctx.dps = before


def check_scores(rng: np.random.Generator, batch: int = 2) -> Tally:
    """A score of an ensemble by one method, at attacked points and others of every region."""
    members = int(rng.integers(1, 3))
    if rng.random() < 0.4:
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
        activation, features = str(rng.choice(list(ACTIVATIONS))), int(rng.integers(2, 5))
        graphs = [random_dense(generator, features, (4, 3), CLASSES, activation) for _ in range(members)]
        method: str | Method = str(rng.choice(PROGRAMS, p=(0.8, 0.15, 0.05)))
    else:
        inputs = int(rng.integers(1, 3)), int(rng.integers(2, 4))
        graphs = [random_transformer(rng, inputs, depth=1 + (rng.random() < 0.15)) for _ in range(members)]
        method = METHODS[rng.integers(len(METHODS))]
    perturbation = random_perturbation(rng, graphs[0].input_shape)
    x = torch.from_numpy(rng.uniform(0, 1, (batch, *graphs[0].input_shape)))
    y = torch.from_numpy(rng.integers(CLASSES, size=batch))
    name = str(rng.choice(list(SCORES)))
    separate = members > 1 and rng.random() < 0.3
    attack = ScoreAttack(steps=6, restarts=1)
    tally = Tally()
    bounded = [simplify(graph) if rng.random() < 0.8 else graph for graph in graphs]
    try:
        result = verify_uncertainty(bounded, x, y, perturbation, name, method, separate=separate, attack=attack)
    except SofthullError:
        return tally
    high = SCORES[name].worst_when == "high"
    for b, record in enumerate(result.records):
        here = perturbation.around(x[b : b + 1])
        row = torch.from_numpy(rng.normal(size=(2, *graphs[0].output_shape)))
        worst = torch.as_tensor(record.worst_input).reshape(x.shape[1:])
        for point in _points(rng, graphs[0], here, row, [worst]):
            true = _in_balls(lambda: exact_score(name, probabilities(graphs, point), int(y[b])))  # noqa: B023
            bound = arb(record.bound)
            wrong = math.isnan(record.bound) or bool(bound < true if high else bound > true)
            note = f"{name} {method} {perturbation} {separate}: {record.bound!r} against {true}"
            tally.add(1, 1, int(wrong), note)
    return tally


def probabilities(graphs: list[Graph], x: Tensor) -> Balls:
    """The mean class probabilities of networks with or without a final softmax."""
    found = []
    for graph in graphs:
        last = values(graph, x)[-1].reshape(-1)
        found.append(last if isinstance(graph.nodes[-1].operator, Softmax) else softmax(last))
    total = found[0]
    for p in found[1:]:
        total = total + p
    return total / arb(len(graphs))


def exact_score(name: str, p: Balls, label: int) -> arb:
    """The scores again, in balls."""
    others = [q for k, q in enumerate(p) if k != label]
    if name == "nll":
        return -p[label].log()
    if name == "brier":
        return sum((q * q for q in others), (p[label] - 1) ** 2)
    if name == "confidence":
        return _largest(list(p))
    if name == "error":
        return 1 - p[label]
    if name == "margin":
        return p[label] - _largest(others)
    if name == "entropy":
        return -sum((q * q.log() for q in p), arb(0))
    raise KeyError(name)


def _largest(numbers: list[arb]) -> arb:
    best = numbers[0]
    for number in numbers[1:]:
        best = arb.max(best, number)
    return best


def method_round(seed: int) -> Tally:
    """One random network: its margins by one way, or a score of an ensemble of such; every fourth is an encoder."""
    rng = np.random.default_rng([seed, 2])
    if seed % 4 == 3:
        return check_scores(rng)
    return check_margins(rng, network=random_encoder if seed % 4 == 1 else random_transformer)
