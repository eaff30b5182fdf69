"""Every method on random attention networks, margins and scores: nothing certified is false, and the suite can tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from softhull.graph.graph import Graph
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order import blocks, low_rank, quadratic, specification
from softhull.propagate.second_order.quadratic import quadratic_lower_bound
from softhull.regions import Perturbation, Region
from softhull.verify.uncertainty import verify_uncertainty

from .exact import values
from .methods import WAYS, check_margins, check_scores, exact_score, method_round, probabilities
from .networks import random_encoder, random_transformer
from .planes import Tally

PLANTED = 1e-9


@pytest.mark.parametrize("way", WAYS)
def test_no_margin_is_above_the_truth(way: str) -> None:
    found = Tally()
    for seed in range(2):  # thousands in ``python -m tests.soundness``
        found.merge(check_margins(np.random.default_rng(seed), 2, way))
    assert found.checks > 15
    assert not found.violations, found.wrong


@pytest.mark.parametrize(
    ("way", "depth"),
    [("linear", 3), ("joint", 3), ("second order", 6), ("fitted rows", 2), ("whole proofs", 2), ("intervals", 3)],
)
def test_no_margin_of_an_encoder_is_above_the_truth(way: str, depth: int) -> None:
    """Stacks of layers with LayerNorm or RMSNorm; ``python -m tests.soundness`` has more of them."""
    network = partial(random_encoder, depth=depth, inputs=(1, 2))
    found = check_margins(np.random.default_rng(depth), 1, way, network)
    assert found.checks
    assert not found.violations, found.wrong


def test_no_score_is_better_than_the_truth() -> None:
    found = Tally()
    for seed in range(3):
        found.merge(check_scores(np.random.default_rng(seed)))
    assert found.checks > 9
    assert not found.violations, found.wrong


@pytest.mark.parametrize("seed", [2510])
def test_networks_that_once_failed(seed: int) -> None:
    """2510: a normalised network over a region of one point, where no input moves."""
    found = method_round(seed)
    assert found.checks
    assert not found.violations, found.wrong


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_a_point_is_its_own_worst_for_every_method(norm: float) -> None:
    """On a region of one point every bound is below the truth, and second order by next to nothing."""
    rng = np.random.default_rng(3)
    for dtype, close in ((torch.float64, 1e-10), (torch.float32, 1e-2)):
        graph = random_transformer(rng, depth=1).to(dtype)
        x = torch.from_numpy(rng.uniform(0, 1, (1, *graph.input_shape)))  # more digits than a short format has
        rows = torch.from_numpy(rng.normal(size=(1, 1, *graph.output_shape))).to(dtype)
        region = Perturbation(0.0, norm).around(x, dtype=dtype)
        truth = sum(
            float(c) * v for c, v in zip(rows.flatten().tolist(), values(graph.to(torch.float64), x[0])[-1].flat)
        )
        for way in WAYS:
            for name, low in bounds_by(way, graph, region, rows).items():
                assert not float(low) > truth, name
                if name == "second order":
                    assert float(low) > float(truth.mid()) - close


def bounds_by(way: str, graph: Graph, region: Region, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return WAYS[way][1](np.random.default_rng(0), graph, region, rows)


def _raised(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with too large a bound, whether it returns this alone or with what gave it."""

    def planted(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        return (found[0] + PLANTED, *found[1:]) if isinstance(found, tuple) else found + PLANTED

    return planted


@pytest.mark.parametrize("place", ["solve_quadratic", "dual_value"])
def test_a_planted_error_in_the_quadratic_bound_is_caught(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A billionth too much, in the whole or in the dual value alone, shows within a few networks."""
    if place == "solve_quadratic":
        monkeypatch.setattr(specification, place, _raised(specification.solve_quadratic))
    else:
        for module in (quadratic, low_rank, blocks):
            monkeypatch.setattr(module, place, _raised(quadratic.dual_value))
    assert any(check_margins(np.random.default_rng(seed), 4, "second order").violations for seed in range(6))


def test_a_planted_error_in_a_score_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in second order under a certified score."""
    rng = np.random.default_rng(1)
    graph = random_transformer(rng)
    x = torch.from_numpy(rng.uniform(0, 1, (1, *graph.input_shape)))

    def broken() -> bool:
        (record,) = verify_uncertainty(graph, x, [0], Perturbation(0.0), "error", SecondOrder()).records
        return bool(record.bound < exact_score("error", probabilities([graph], x[0]), 0))

    assert not broken()
    monkeypatch.setattr(specification, "solve_quadratic", _raised(specification.solve_quadratic))
    assert broken()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_quadratics_with_a_known_minimum(dtype: torch.dtype) -> None:
    """Falling along every coordinate from the middle on both sides, a quadratic is smallest at a corner it knows."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 12):
        linear, fall = (torch.from_numpy(rng.normal(size=(20, n))).to(dtype) for _ in range(2))
        low = quadratic_lower_bound(linear, -torch.diag_embed(fall.abs())).value
        for i in range(20):
            minimum = -sum((abs(Fraction(v)) for v in (*linear[i].tolist(), *fall[i].tolist())), Fraction(0))
            assert Fraction(float(low[i])) <= minimum
            assert float(low[i]) > float(minimum) * (1 + 200 * torch.finfo(dtype).eps)


def test_products_of_two_inputs_are_exact_at_their_worst_corner() -> None:
    """``c (x0 x1)`` over boxes: its minimum over the four corners is the truth."""
    from softhull.graph.builder import GraphBuilder
    from softhull.graph.ops.slice import Slice

    rng = np.random.default_rng(2)
    b = GraphBuilder((2,))
    first, second = (b.add(Slice(((start, start + 1, 1),)), -1) for start in (0, 1))
    graph = b.finish(b.product(first, second))
    x = torch.from_numpy(rng.normal(size=(30, 2)))
    size = torch.from_numpy(10.0 ** rng.uniform(-9, 0, 30))
    region = Perturbation(1.0).around(x, size)
    rows = torch.from_numpy(rng.choice([-1.0, 1.0], (1, 30, 1)))
    found = {
        name: low for way in ("linear", "second order") for name, low in bounds_by(way, graph, region, rows).items()
    }
    least, most = region.inner or (region.lower, region.upper)
    for i in range(30):
        ends = [(Fraction(float(least[i, j])), Fraction(float(most[i, j]))) for j in range(2)]
        truth = min(Fraction(float(rows[0, i, 0])) * a * c for a in ends[0] for c in ends[1])
        for name, low in found.items():
            assert Fraction(float(low[0, i])) <= truth, name
        assert float(found["second order"][0, i]) > float(truth) - 1e-9 - float(size[i]) ** 2
