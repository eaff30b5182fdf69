"""What is certified is true in exact arithmetic; rounded to nearest it is not, which shows that these tests can tell.

Points are the hardest regions: nothing but rounding separates a bound from the truth.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction

import numpy as np
import pytest
import torch

from softhull.attack.score import ScoreAttack
from softhull.errors import InvalidInput
from softhull.graph.graph import Graph, Node
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.scale import Scale
from softhull.regions import Perturbation
from softhull.solve.dual import Dual
from softhull.solve.lagrangian import Lagrangian
from softhull.solve.layers import stack_networks
from softhull.solve.neurons import neuron_bounds
from softhull.solve.optimum import trivial_bound
from softhull.solve.relaxation import relax
from softhull.solve.safe import Rows, safe_maximum
from softhull.solve.softmax_boxes import parse_bounds
from softhull.verify.scores import SCORES
from softhull.verify.uncertainty import verify_uncertainty

from .ensembles import ACTIVATIONS, random_graph
from .exact import balls, exact_score, node_values

QUICK = ScoreAttack(steps=2, restarts=1)
SEED = int(os.environ.get("SOFTHULL_SEED", "0"))


@pytest.fixture
def draw():
    return np.random.default_rng(SEED)


def folded(generator):
    """Normalised inputs and two affine maps in a row: the layers are products that were rounded when folded."""

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    nodes = (
        Node(Scale(normal(1, 4), normal(1, 4)), (-1,), (1, 4), "normalised"),
        Node(Dense(normal(4, 7), normal(7)), (0,), (1, 7), "wide"),
        Node(Dense(normal(7, 5), normal(5)), (1,), (1, 5), "narrow"),
        Node(Relu(), (2,), (1, 5), "relu"),
        Node(Scale(normal(1, 5), normal(1, 5)), (3,), (1, 5), "scaled"),
        Node(Dense(normal(5, 3), normal(3)), (4,), (1, 3), "logits"),
    )
    return Graph((1, 4), nodes)


def random_case(draw):
    """A network, what it computes before activations as positions of nodes, and an input."""
    generator = torch.Generator().manual_seed(int(draw.integers(2**31)))
    if draw.random() < 0.25:
        graph = folded(generator)
    else:
        graph = random_graph(
            generator,
            hidden=tuple(int(n) for n in draw.integers(2, 7, draw.integers(1, 4))),
            activation=str(draw.choice(list(ACTIVATIONS))),
            scale=float(10 ** draw.uniform(-2, 1.5)),
            softmax=False,
        )
    x = torch.randn(1, 4, generator=generator, dtype=torch.float64) * float(10 ** draw.uniform(-3, 2))
    inputs_of_activations = [n.inputs[0] for n in graph.nodes if type(n.operator) in map(type, ACTIVATIONS.values())]
    return graph, [*inputs_of_activations, len(graph.nodes) - 1], x


def outside(lower, value, upper):
    """How many claims ``lower <= value <= upper`` are certainly wrong."""
    pairs = zip(balls(lower).ravel(), value.ravel(), balls(upper).ravel())
    return sum(bool(low > v) + bool(v > high) for low, v, high in pairs)


@pytest.mark.parametrize("outward", [True, False])
def test_neuron_bounds_hold_in_exact_arithmetic(draw, outward):
    wrong = checked = 0
    for _ in range(60):
        graph, nodes, x = random_case(draw)
        eps = float(draw.choice([0.0, 1e-14, 1e-3]))
        region = Perturbation(eps).around(x[None])
        (stack,) = stack_networks([graph])
        found = neuron_bounds(stack, region, outward)
        for point in (x, region.lower[0], region.upper[0])[: 1 if eps == 0 else 3]:
            values = node_values(graph, point)
            for (lower, upper), node in zip(found.intervals, nodes):
                wrong += outside(lower, values[node], upper)
                checked += 2 * lower.numel()
            z = values[-1].ravel()
            low, high = found.differences
            wrong += outside(low, z[:, None] - z[None], high) if outward else 0
    assert checked > 1000
    assert (wrong == 0) if outward else (wrong > 100)


@pytest.mark.parametrize("bound", ["er/lse", "lse*/lse", "lin/lin", "all"])
def test_any_multipliers_hold_in_exact_arithmetic(draw, bound):
    for _ in range(15):
        cases = [random_case(draw) for _ in range(int(draw.integers(1, 4)))]
        graphs, x = [graph for graph, _, _ in cases], cases[0][2]
        stacks = stack_networks(graphs)
        region = Perturbation(float(draw.choice([0.0, 1e-14, 1e-3]))).around(x[None])
        relaxation = relax(stacks, region, parse_bounds(bound))
        coefficients = torch.from_numpy(draw.normal(size=(1, 3)))
        whole = Lagrangian(relaxation, coefficients)
        whole.touch(whole.midpoints())
        flat = whole.start()
        flat = whole.project(
            flat + torch.from_numpy(draw.normal(size=flat.shape)) * float(draw.choice([0.0, 0.1, 1.0]))
        )
        p = mean_probabilities(graphs, x)
        attained = (balls(coefficients)[0] * p).sum()
        assert not balls(whole.safe_value(flat))[0] < attained
        assert not balls(trivial_bound(relaxation, coefficients))[0] < attained
        for least, most, value in zip(*(balls(side)[0] for side in relaxation.probabilities()), p):
            assert not value < least
            assert not value > most


def mean_probabilities(graphs, x):
    found = []
    for graph in graphs:
        terms = np.array([v.exp() for v in node_values(graph, x)[-1].ravel()], dtype=object)
        found.append(terms / terms.sum())
    return sum(found) / len(found)


@pytest.mark.parametrize("method", [Dual(steps=8), "lp"], ids=["dual", "lp"])
@pytest.mark.parametrize("score", SCORES)
def test_certified_scores_hold_in_exact_arithmetic(draw, score, method):
    for _ in range(3):
        cases = [random_case(draw) for _ in range(2)]
        graphs, x = [graph for graph, _, _ in cases], cases[0][2]
        eps = float(draw.choice([0.0, 1e-14, 1e-3]))
        bound = str(draw.choice(["all", "er/lse"]))
        separate = bool(draw.integers(2))
        label = int(draw.integers(3))
        result = verify_uncertainty(graphs, x[None], [label], Perturbation(eps), score, method, bound, separate, QUICK)
        if not math.isfinite(result[0].bound):
            assert score == "nll"  # a probability that is not bounded away from 0
            continue
        claimed = balls(result[0].bound).item()
        for point in (x, torch.from_numpy(result[0].worst_input)):
            true = exact_score(score, mean_probabilities(graphs, point), label)
            assert not (true > claimed if SCORES[score].worst_when == "high" else true < claimed)


def test_rounding_to_nearest_is_caught(draw):
    """The same questions without outward rounding: some answers are wrong, and the result says what they are worth."""
    wrong = 0
    for _ in range(60):
        graph, _, x = random_case(draw)
        asked = (graph, x[None], [0], Perturbation(0.0), "error", Dual(steps=2), "er/lse")
        result = verify_uncertainty(*asked, attack=QUICK, rounding="nearest")
        wrong += bool(exact_score("error", mean_probabilities([graph], x), 0) > balls(result[0].bound).item())
        assert "not proved for the real-valued networks" in str(result)
        assert result.to_dict()["rounding"] == "nearest"
    assert wrong > 0


def test_there_are_two_ways_of_rounding():
    graph = random_graph(torch.Generator().manual_seed(0))
    with pytest.raises(InvalidInput, match="unknown rounding 'up'; choose outward or nearest"):
        verify_uncertainty(graph, torch.zeros(1, 4), [0], Perturbation(0.1), rounding="up")


def test_folded_layers_know_what_they_were_made_of():
    generator = torch.Generator().manual_seed(1)
    (stack,) = stack_networks([folded(generator)])
    first, last = stack.layers
    assert first.operations > 0
    assert first.terms is not None
    for layer in (first, last):
        assert layer.terms is not None
        for s, matrix in layer.weights.items():
            assert (layer.terms[s] >= matrix.abs() * (1 - 1e-12)).all()
        assert (layer.terms[-1] >= layer.bias.abs() * (1 - 1e-12)).all()
    (plain,) = stack_networks([random_graph(generator)])
    assert all(layer.terms is None and layer.operations == 0 for layer in plain.layers)


def test_safe_values_hold_in_exact_arithmetic(draw):
    """Rational arithmetic: any dual, rows that the point satisfies by a hair, boxes at whose corners it lies."""
    for _ in range(200):
        n, m = int(draw.integers(1, 8)), int(draw.integers(1, 8))
        size = float(10 ** draw.uniform(-6, 6))
        matrix = draw.normal(size=(m, n)) * 10 ** draw.uniform(-3, 3, size=(m, n))
        x, cost = draw.normal(size=n) * size, draw.normal(size=n)
        activity = [sum(Fraction(a) * Fraction(v) for a, v in zip(row, x)) for row in matrix]
        upper = np.array([up(value) for value in activity])
        lower = np.where(draw.random(m) < 0.5, -np.array([up(-value) for value in activity]), -np.inf)
        starts, columns = np.arange(0, n * m + 1, n), np.tile(np.arange(n), m)
        rows = Rows(starts, columns, matrix.ravel(), lower, upper, np.zeros(m))
        box_lower = np.where(draw.random(n) < 0.5, x, x - abs(x))
        box_upper = np.where(draw.random(n) < 0.5, x, x + abs(x))
        dual = draw.normal(size=m) * 10 ** draw.uniform(-6, 3)
        safe = safe_maximum(cost, rows, box_lower, box_upper, dual)
        assert Fraction(safe) >= sum(Fraction(c) * Fraction(v) for c, v in zip(cost, x))


def up(value):
    """The smallest floating-point number that is not below a fraction."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
