"""Every method on random attention networks: margins and scores against ball arithmetic, with no tolerance.

A bound is wrong when it is certainly above the true value at one point of the real region. Most regions are tiny or a
single point: there bounds are tight to a few roundings, and an error of 1e-9 shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from flint import arb, ctx
from torch import Tensor

from softhull.attack.pgd import minimize_margin
from softhull.attack.score import ScoreAttack
from softhull.errors import DomainError
from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.operator import Operator
from softhull.graph.ops.centre import Centre
from softhull.graph.ops.gelu import Gelu
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.rsqrt import Rsqrt
from softhull.graph.ops.softmax import Softmax
from softhull.graph.ops.square import Square
from softhull.graph.ops.tanh import Tanh
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Auto, Linear, Method, SecondOrder
from softhull.propagate.second_order.forward import NoAffineForms
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation, Region
from softhull.verify.engine import solve
from softhull.verify.ensemble import Ensemble, Joined
from softhull.verify.margins import Margins
from softhull.verify.problem import Effort, Problem
from softhull.verify.robustness import _rounded_inside
from softhull.verify.scores import SCORES
from softhull.verify.uncertainty import verify_uncertainty
from tests.solve.ensembles import ACTIVATIONS
from tests.solve.ensembles import random_graph as random_dense

from .exact import DIGITS, Balls, balls, softmax, values
from .graphs import adversary
from .planes import Tally

CLASSES = 3
LINEAR, SECOND_ORDER, AUTO = Linear(optimize=1), SecondOrder(), Auto(optimize=1)
METHODS: tuple[Method, ...] = (LINEAR, SECOND_ORDER, AUTO)
PROGRAMS = ("dual", "lp", "conic")


def random_transformer(rng: np.random.Generator, features: int | None = None, depth: int | None = None) -> Graph:
    """One to three layers of attention over a few tokens, with masks, normalisations, residuals and activations."""
    tokens, heads, size = (int(n) for n in rng.integers((1, 1, 1), (5, 3, 3)))
    features, width = features or int(rng.integers(2, 5)), heads * size
    scale = float(10 ** rng.uniform(-1, 0.7))
    b = GraphBuilder((1, features))
    x = b.reshape(b.linear(-1, _normal(rng, features, tokens * width)), (tokens, width))
    x = b.scale(x, 1.0, _normal(rng, tokens, width))
    hidden: tuple[Operator | None, ...] = (None, Relu(), Gelu(), Tanh())
    mask = _mask(rng, tokens)
    normalised = rng.integers(3)
    for _ in range(depth or int(rng.choice((1, 2, 3), p=(0.5, 0.3, 0.2)))):
        q, k, v = (b.linear(x, scale * _normal(rng, width, width)) for _ in range(3))
        q, k, v = (b.transpose(b.reshape(t, (tokens, heads, size)), (1, 0, 2)) for t in (q, k, v))
        scores = b.scale(b.matmul(q, b.transpose(k, (0, 2, 1))), 1 / math.sqrt(size), mask)
        p = b.elementwise(Softmax(2), scores)
        mixed = b.reshape(b.transpose(b.matmul(p, v), (1, 0, 2)), (tokens, width))
        y = b.linear(mixed, _normal(rng, width, width))
        x = b.sum_of(x, y) if rng.random() < 0.6 else y
        x = _normalised(b, x, int(normalised))
        operator = hidden[rng.integers(len(hidden))]
        if operator is not None:
            y = b.elementwise(operator, b.scale(b.linear(x, _normal(rng, width, width)), 1.0, _normal(rng, width)))
            x = b.sum_of(x, y) if rng.random() < 0.5 else y
    flat = b.reshape(x, (1, tokens * width))
    return b.finish(b.scale(b.linear(flat, _normal(rng, tokens * width, CLASSES)), 1.0, _normal(rng, CLASSES)))


def _normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape) / np.sqrt(shape[0]))


def _mask(rng: np.random.Generator, tokens: int) -> Tensor:
    """Nothing, what comes later, or what pads the end, kept out by -inf."""
    kind, mask = rng.integers(3), torch.zeros(tokens, tokens, dtype=torch.float64)
    if kind == 1:
        return mask.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -math.inf)
    if kind == 2:
        mask[:, int(rng.integers(1, tokens + 1)) :] = -math.inf
    return mask


def _normalised(b: GraphBuilder, x: int, kind: int) -> int:
    """As it is, less the mean over the features, or that divided by the standard deviation as well."""
    if kind == 0:
        return x
    centred = b.elementwise(Centre((1,)), x)
    if kind == 1:
        return centred
    variance = b.scale(b.total(b.elementwise(Square(), centred), (1,), mean=True), 1.0, 0.1)
    return b.product(centred, b.elementwise(Rsqrt(), variance))


def random_perturbation(rng: np.random.Generator, batch: int) -> tuple[Perturbation, Tensor]:
    """A norm, clipped or not, and radii: none at all, tiny ones, some that matter."""
    size = 10.0 ** rng.uniform(-16, -6, batch)
    size = np.where(rng.random(batch) < 0.3, 10.0 ** rng.uniform(-6, -0.5, batch), size)
    size = size * (rng.random(batch) < 0.8)
    clip = (0.0, 1.0) if rng.random() < 0.4 else None
    return Perturbation(1.0, (math.inf, 2, 1)[rng.integers(3)], clip), torch.from_numpy(size)


def check_margins(rng: np.random.Generator, batch: int = 4) -> Tally:
    """Bounds of all methods on random rows of the output, at attacked points and others of every region."""
    dtype = torch.float32 if rng.random() < 0.2 else torch.float64
    graph = random_transformer(rng).to(dtype).to(torch.float64)
    perturbation, size = random_perturbation(rng, batch)
    x = torch.from_numpy(rng.uniform(0, 1, (batch, *graph.input_shape)))
    region = perturbation.around(x, size, dtype)
    rows = torch.from_numpy(rng.normal(size=(2, batch, *graph.output_shape))).to(dtype)
    method = METHODS[rng.integers(len(METHODS))] if rng.random() < 0.4 else None  # a whole proof takes its time
    tally, note = Tally(), f"{dtype} {perturbation.norm} {size.tolist()} {method}"
    try:
        bounds = margins(graph.to(dtype), region, rows, method)
    except DomainError:  # said, not hidden
        return tally
    lowest = attacked(graph, region, rows.double(), int(rng.integers(1 << 30)))
    for b in range(batch):
        here = region.take(torch.tensor([b]))
        points = [adversary(rng, graph, here, rows[:, b]) for _ in range(2)]
        points += [point for point in (_inside(worst[b], here) for worst in lowest) if point is not None]
        for point in points:
            exact = values(graph, point)[-1]
            for s in range(len(rows)):
                value = _in_balls(lambda: (balls(rows[s, b]) * exact).sum())  # noqa: B023
                for name, low in bounds.items():
                    wrong = bool(arb(float(low[s, b])) > value)
                    tally.add(1, 1, int(wrong), f"{name} {note}: {float(low[s, b])!r} against {value}" if wrong else "")
    return tally


def margins(graph: Graph, region: Region, rows: Tensor, method: Method | None) -> dict[str, Tensor]:
    """Lower bounds ``[S, B]`` on rows of the output ``[S, B, *shape]``: of a whole proof, and of second order alone."""
    S, B = rows.shape[:2]
    with torch.no_grad():
        bounds = LinearBounds(graph, region, SECOND_ORDER.linear)
        found = {"linear walks": bounds.lower(len(graph.nodes) - 1, rows)}
        if method is not None:
            # Nothing is to be proved before the last stage has had its turn.
            offsets = found["linear walks"].nan_to_num(neginf=0.0) + 1
            claims = Margins(rows.flatten(2), offsets, torch.arange(S))
            effort = Effort(attack="never")
            problem = Problem(Joined((Ensemble(graph),)), region, region.lower, claims)
            bounds_less = solve(problem, method, effort).bounds
            # These bounds are less their offsets: what they say is that the sum is a bound.
            found[type(method).__name__] = _sum_below(bounds_less, offsets)
        row, instance = (t.flatten() for t in torch.meshgrid(torch.arange(S), torch.arange(B), indexing="ij"))
        never = rows.new_full((S * B,), math.inf)
        try:
            second = SecondOrderBounds.of(bounds)
        except NoAffineForms:
            return found
        for fitted in (False, True):
            low = second.lower(rows[row, instance], instance, 6, never, fitted)
            found["fitted rows" if fitted else "second order"] = low.reshape(S, B)
    return found


def _sum_below(a: Tensor, b: Tensor) -> Tensor:
    """The number next below the real sum, so that the sum itself is what is checked."""
    total = a.double() + b.double()
    return torch.nextafter(total, torch.full_like(total, -math.inf))


def attacked(graph: Graph, region: Region, rows: Tensor, seed: int) -> list[Tensor]:
    """For every row the inputs of the batch where gradient descent found it smallest."""
    region = Region(region.lower.double(), region.upper.double(), region.centre, region.eps, region.norm, region.inner)
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


def check_scores(rng: np.random.Generator, batch: int = 3) -> Tally:
    """A score of an ensemble by one method, at attacked points and others of every region."""
    by_programs = bool(rng.random() < 0.5)
    members = int(rng.integers(1, 3))
    features = int(rng.integers(2, 5))
    if by_programs:
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 30)))
        activation = str(rng.choice(list(ACTIVATIONS)))
        graphs = [random_dense(generator, features, (4, 3), CLASSES, activation) for _ in range(members)]
        method: str | Method = str(rng.choice(PROGRAMS, p=(0.6, 0.25, 0.15)))
    else:
        graphs = [random_transformer(rng, features, depth=1 + (rng.random() < 0.2)) for _ in range(members)]
        method = METHODS[rng.integers(len(METHODS))]
    perturbation, size = random_perturbation(rng, 1)
    perturbation = Perturbation(float(size[0]), perturbation.norm, perturbation.clip)
    x = torch.from_numpy(rng.uniform(0, 1, (batch, *graphs[0].input_shape)))
    y = torch.from_numpy(rng.integers(CLASSES, size=batch))
    name = str(rng.choice(list(SCORES)))
    separate = members > 1 and rng.random() < 0.3
    attack = ScoreAttack(steps=6, restarts=1)
    tally = Tally()
    try:
        result = verify_uncertainty(graphs, x, y, perturbation, name, method, separate=separate, attack=attack)
    except DomainError:
        return tally
    high = SCORES[name].worst_when == "high"
    for b, record in enumerate(result.records):
        here = perturbation.around(x[b : b + 1])
        row = torch.from_numpy(rng.normal(size=(2, *graphs[0].output_shape)))
        points = [adversary(rng, graphs[0], here, row), _inside(torch.as_tensor(record.worst_input), here)]
        for point in points:
            if point is not None:
                true = _in_balls(lambda: exact_score(name, probabilities(graphs, point), int(y[b])))  # noqa: B023
                bound = arb(record.bound)
                wrong = bool(bound < true) if high else bool(bound > true)
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
    """One random network: its margins by all methods, or a score of an ensemble of such."""
    rng = np.random.default_rng([seed, 2])
    return check_scores(rng) if seed % 4 == 3 else check_margins(rng)
