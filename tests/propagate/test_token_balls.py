"""Forms over balls: what they say of the nodes of a network holds, without tolerance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.operator import Operator
from softhull.graph.ops.centre import Centre
from softhull.graph.ops.gelu import Gelu
from softhull.graph.ops.matmul import MatMul
from softhull.graph.ops.normalize import InverseDeviation, Normalized
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax
from softhull.propagate import token_balls
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.second_order.affine_form import AffineForm
from softhull.propagate.second_order.rules import NoAffineForms
from softhull.propagate.token_balls import TokenBalls, known_by_token_balls, worth_balls
from softhull.regions import Perturbation, Region
from tests.graph.random_graphs import random_graph
from tests.propagate.networks import random_attention
from tests.propagate.test_shadow import encoder
from tests.propagate.test_zonotopes import violations

TOKENS, WIDTH, HEADS = 3, 4, 2
MASKS = {"causal": -math.inf, "leaking": -5.0}


def network(rng: np.random.Generator, kind: str, depth: int = 2) -> Graph:
    """Layers of attention: before or after a normalisation, without one, of which tokens are mixed, gated, masked.

    A mask of -5 lets something through.
    """

    def weights(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape) / np.sqrt(shape[0]))

    def normalised(x: int) -> int:
        z = x if kind == "rms" else b.add(Centre((1,)), x)
        r = b.add(InverseDeviation((1,), 1e-5), z)
        return b.add(Normalized((TOKENS, WIDTH), (TOKENS, 1), (1,), 1e-5), z, r)

    curve: Operator = Gelu() if kind in ("pre", "gated") else Relu()
    b = GraphBuilder((TOKENS, WIDTH))
    x = b.scale(-1, 1.0, weights(TOKENS, WIDTH))
    for _ in range(depth):
        y = normalised(x) if kind in ("pre", "rms", "gated", *MASKS) else x
        q, k, v = (b.linear(y, weights(WIDTH, WIDTH)) for _ in range(3))
        q, k, v = (b.transpose(b.reshape(t, (TOKENS, HEADS, WIDTH // HEADS)), (1, 0, 2)) for t in (q, k, v))
        mask = torch.full((1, TOKENS, TOKENS), MASKS[kind], dtype=torch.float64).triu(1) if kind in MASKS else None
        p = b.elementwise(Softmax(2, mask), b.matmul(q, b.transpose(k, (0, 2, 1))))
        y = b.reshape(b.transpose(b.matmul(p, v), (1, 0, 2)), (TOKENS, WIDTH))
        y = b.linear(y, weights(WIDTH, WIDTH))
        x = y if kind == "chain" else b.sum_of(x, y)
        if kind == "post":
            x = normalised(x)
        if kind == "mixer":
            turned = b.elementwise(curve, b.linear(b.transpose(x, (1, 0)), weights(TOKENS, TOKENS)))
            x = b.sum_of(x, b.transpose(turned, (1, 0)))
        hidden = b.elementwise(curve, b.linear(x, weights(WIDTH, 6)))
        if kind == "gated":
            hidden = b.product(hidden, b.linear(x, weights(WIDTH, 6)))
        x = b.sum_of(x, b.linear(hidden, weights(6, WIDTH)))
    return b.finish(b.linear(b.total(x, (0,), mean=True), weights(WIDTH, 2)))


def ball(rng: np.random.Generator, graph: Graph, eps: float, norm: float, dtype: torch.dtype) -> Region:
    x = torch.from_numpy(rng.normal(size=(1, *graph.input_shape))).to(dtype)
    return Perturbation(eps, norm).around(x)


# Balls of both precisions: every kind of network meets all of them, none of them twice.
BALLS = {
    torch.float64: ((math.inf, 0.0), (math.inf, 1e-3), (math.inf, 1e4), (2, 0.05)),
    torch.float32: ((math.inf, 1e-9), (math.inf, 0.1), (1, 0.0), (1, 0.3)),
}


@pytest.mark.parametrize("kind", ["pre", "rms", "post", "chain", "plain", "mixer", "gated", *MASKS])
@pytest.mark.parametrize("dtype", BALLS)
def test_forms_hold(kind: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    graph = network(rng, kind)
    for norm, eps in BALLS[dtype]:
        region = ball(rng, graph, eps, norm, dtype)
        assert violations(graph, region, 1, known_by_token_balls) == 0
        if kind in MASKS:
            assert violations(graph, region, 1) == 0


def test_deep_and_random_networks_hold() -> None:
    rng = np.random.default_rng(2)
    for centred, eps in ((False, 3e-3), (True, 1e-4)):
        graph = encoder(rng, 6, centred, 2, 4)
        assert violations(graph, ball(rng, graph, eps, math.inf, torch.float64), 2, known_by_token_balls) == 0
    made = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng) if seed % 2 else random_attention(rng)
        region = ball(rng, graph, float(rng.choice((1e-3, 0.05, 0.5))), math.inf, torch.float64)
        try:
            assert violations(graph, region, seed, known_by_token_balls) == 0
        except NoAffineForms:
            continue
        made += 1
    assert made > 12


def test_long_rows_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_balls, "_LONG", 2)
    rng = np.random.default_rng(7)
    graph = network(rng, "pre")
    for eps in (1e-3, 0.1):
        assert violations(graph, ball(rng, graph, eps, math.inf, torch.float64), 7, known_by_token_balls) == 0


@pytest.mark.parametrize("planted", ["_of_tokens", "_ellipsoids", "_on_the_right"])
def test_a_planted_error_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def less(self, *given):
        return true_rule(self, *given) * 1e-3

    true_rule = getattr(TokenBalls, planted)
    monkeypatch.setattr(TokenBalls, planted, less)

    def found(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        graph = network(rng, "rms", depth=3)
        balls = (ball(rng, graph, eps, math.inf, torch.float64) for eps in (0.03, 0.1))
        return any(violations(graph, region, 5, known_by_token_balls) for region in balls)

    assert any(found(seed) for seed in range(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_ellipsoid_holds_all_noise_that_it_stands_for(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no direction does noise reach further: numbers of at most one each, and whole balls."""
    rng, generator = np.random.default_rng(4), torch.Generator().manual_seed(4)
    merge, attend, seen = TokenBalls._ellipsoids, TokenBalls._attended, []

    def reach(forms: TokenBalls, slopes: Tensor) -> Tensor:
        parts = forms._parts(slopes.shape[-1])
        return torch.stack([torch.linalg.vector_norm(slopes[..., part], 1 + one, dim=-1) for part, one in parts]).sum(0)

    def directions(like: Tensor, *shape: int) -> Tensor:
        random = torch.randn(40, *shape, generator=generator, dtype=torch.float64)
        return torch.where(torch.rand(40, *shape, generator=generator) < 0.5, random, 0.0)

    def merged(self: TokenBalls, slopes: Tensor, order: Tensor) -> Tensor:
        found = merge(self, slopes, order)
        d, lines = directions(found, *order.shape), slopes[0].flatten(1)[:, order].double()
        held = torch.einsum("stj,tjk,stk->st", d, found.double(), d).sqrt()
        assert bool((reach(self, torch.einsum("stj,ktj->stk", d, lines)) <= held).all())
        seen.append("merged")
        return found

    def attended(self: TokenBalls, operator: MatMul, index: int, x: AffineForm, slopes: Tensor) -> Tensor | None:
        found = attend(self, operator, index, x, slopes)
        if found is not None:
            d = directions(found, *found.shape[1:])
            moved = torch.einsum("shij,him,khmj->simk", d, x.centre[0].double(), slopes[0].double())
            held = torch.einsum("shij,khij->sik", d, found.double()).norm(dim=-1)
            assert bool((reach(self, moved).sum(-1) <= held).all())
            seen.append("attended")
        return found

    monkeypatch.setattr(TokenBalls, "_ellipsoids", merged)
    monkeypatch.setattr(TokenBalls, "_attended", attended)
    for kind in ("pre", "post", "plain", "gated"):
        graph = network(rng, kind, 3)
        for eps in (1e-12, 1e-3, 0.05):
            region = ball(rng, graph, eps, math.inf, dtype)
            known_by_token_balls(LinearBounds(graph.to(dtype, "cpu"), region, Linear()))
    assert seen.count("merged") > 20
    assert seen.count("attended") > 20


def test_attention_is_not_charged_entry_by_entry() -> None:
    """Noise of six layers stays far below what inputs do, where numbers for every entry would be far above."""
    rng = np.random.default_rng(6)
    graph = encoder(rng, 6, True, 6, 8)
    forms = TokenBalls(LinearBounds(graph, ball(rng, graph, 1e-6, math.inf, torch.float64), Linear()))
    forms.tell_all()
    first, other = forms.parts(forms.form(len(graph.nodes) - 1).slope)
    assert bool((other < 0.01 * first).all())


def test_small_networks_are_walked_and_large_ones_fit_or_say_so() -> None:
    rng = np.random.default_rng(9)
    graph = encoder(rng, 2, True)
    region = ball(rng, graph, 0.1, math.inf, torch.float64)
    assert not worth_balls(LinearBounds(graph, region, Linear()))
    with pytest.raises(NoAffineForms, match="memory"):
        known_by_token_balls(LinearBounds(graph, region, Linear(), memory=64))


def test_weights_whose_squares_vanish() -> None:
    """Tiny weights of huge balls: what is attended to still moves."""
    b = GraphBuilder((2, 2))
    x = b.elementwise(Relu(), -1)
    graph = b.finish(b.scale(b.matmul(b.scale(x, 1e-38, 1e-23), x), 1e13, 0.0))
    region = Perturbation(1e10).around(torch.zeros(1, 2, 2))
    bounds = known_by_token_balls(LinearBounds(graph.to(torch.float32, "cpu"), region, Linear()))
    value = graph(region.upper.double())
    assert bool((value <= bounds.interval(len(graph.nodes) - 1)[1]).all())
    assert bool((bounds.interval(len(graph.nodes) - 1)[1] <= 2 * value).all())
