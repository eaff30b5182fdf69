"""All rectifiers of a network in one quadratic."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.branch.cut_leaves import CutLeaves
from softhull.branch.rectifiers import Multipliers, Rectifiers
from softhull.branch.skeleton import Functions
from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.relu import Relu
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.regions import Perturbation, Region
from tests.propagate.networks import random_attention
from tests.solve.ensembles import random_graph


class Case:
    """A row of a network with rectifiers over a region around ``x``, and all that rectifiers ask for."""

    def __init__(self, graph: Graph, x: Tensor, region: Region, row: Tensor, offset: Tensor) -> None:
        self.graph, self.x, self.region, self.row, self.offset = graph, x, region, row, offset
        bounds = LinearBounds(graph, region, SecondOrder().linear)
        self.leaves = CutLeaves(bounds, torch.zeros(1, dtype=torch.long), row, offset, sharpen=True)
        (self.root,) = self.leaves.parts.values()
        with torch.no_grad():
            self.root.shorten()
            self.root.sharpen()
        self.lower, self.upper = self.root.warm.lower, self.root.warm.upper
        self.skeleton = self.root.skeleton
        self.found = None if self.skeleton is None else Rectifiers.of(self.skeleton, self.lower, self.upper)

    def start(self) -> Functions:
        assert self.skeleton is not None
        with torch.no_grad():
            return self.skeleton.below(len(self.graph.nodes) - 1, self.row)

    def values(self, x: Tensor) -> Tensor:
        return (self.graph(x).flatten(1) * self.row.flatten()).sum(1) - self.offset

    def points(self, seed: int) -> Tensor:
        """Points of the region: corners and others, and descents from the best."""
        rng = np.random.default_rng([seed, 5])
        n, ball = self.x.numel(), self.region.centre is not None
        share = rng.uniform(-1, 1, (1000, n))
        share[:300] = np.sign(share[:300])
        lower, upper = self.region.lower, self.region.upper
        half = ((upper - lower) / 2).flatten()

        def inside(move: Tensor) -> Tensor:
            if ball:
                move = move / move.norm(dim=1, keepdim=True).clamp(min=1)
            moved = self.x + (move.clamp(-1, 1) * half * (1 - 1e-12)).reshape(-1, *self.x.shape[1:])
            return torch.minimum(torch.maximum(moved.to(lower.dtype), lower), upper)

        move = torch.from_numpy(share)
        best = move[self.values(inside(move)).argsort()[:20]]
        for step in range(20):
            best = best.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.values(inside(best)).sum(), best)
            slope = slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-12) if ball else slope.sign()
            best = best.detach() - 0.4 * 0.85**step * slope
        return inside(torch.cat((move, best.detach())))


def case(
    seed: int, kind: str, norm: float = math.inf, eps: float | None = None, dtype: torch.dtype = torch.float64
) -> Case:
    rng = np.random.default_rng([seed, 31])
    if kind == "attention":
        graph = random_attention(rng)
    else:
        generator = torch.Generator().manual_seed(seed)
        graph = random_graph(generator, int(rng.integers(2, 7)), (6, 5), 3, activation="relu", softmax=False)
    graph = graph.to(dtype, torch.device("cpu"))
    x = torch.from_numpy(rng.uniform(0, 1, (1, *graph.input_shape))).to(dtype)
    region = Perturbation(float(rng.uniform(0.05, 0.5)) if eps is None else eps, norm=norm).around(x)
    row = torch.from_numpy(rng.normal(size=(1, *graph.output_shape))).to(dtype)
    return Case(graph, x, region, row, torch.from_numpy(rng.normal(size=1)).to(dtype))


def wild(start: Multipliers, seed: int) -> Multipliers:
    """Multipliers from next to nothing to far too much; those of ranges and noise are rather more than they were."""
    generator = torch.Generator().manual_seed(seed)

    def moved(t: Tensor) -> Tensor:
        return 3 * torch.randn(t.shape, generator=generator, dtype=t.dtype)

    linear, products, most = start.entries.split((3, 2, 1))
    entries = torch.cat((linear + moved(linear), products + moved(products) - 2, most + moved(most).abs()))
    return Multipliers(start.noise + moved(start.noise).abs(), entries)


@pytest.mark.parametrize("norm", [math.inf, 2])
@pytest.mark.parametrize("kind", ["relu", "attention"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_multipliers_the_bound_holds(seed: int, kind: str, norm: float) -> None:
    asked = case(seed, kind, norm)
    if asked.found is None:
        assert not len(asked.lower)  # nothing is relaxed
        return
    least = float(asked.values(asked.points(seed)).min())
    row = asked.found._of_noise([asked.start().to(torch.float64)])
    row = replace(row, constant=row.constant - asked.offset.double(), size=row.size + asked.offset.abs())
    start = asked.found._start(row, asked.root.warm.lines[0])
    proofs = [asked.found.certified(row, wild(start, 100 * seed + k)) for k in range(40)]
    assert all(proof <= least for proof in proofs)
    assert sum(math.isfinite(proof) for proof in proofs) >= 5  # enough of them are definite


@pytest.mark.parametrize("norm", [math.inf, 2])
@pytest.mark.parametrize("kind", ["relu", "attention"])
@pytest.mark.parametrize("seed", range(4))
def test_gradient_steps_end_below_the_network_and_lose_little_to_lines(seed: int, kind: str, norm: float) -> None:
    asked = case(seed, kind, norm)
    if asked.found is None:
        return
    with torch.no_grad():
        root = asked.leaves.roots()[0]
    least = float(asked.values(asked.points(seed)).min())
    proof = asked.found.lower(asked.start(), asked.offset, root.warm.lines[0], enough=math.inf)
    assert root.bound <= least
    assert proof <= least
    assert proof >= root.bound - 0.25 * (least - root.bound) - 1e-3


@pytest.mark.parametrize("eps", [1e-9, 1e-3, 10.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_and_huge_regions(eps: float, dtype: torch.dtype) -> None:
    for seed in range(3):
        asked = case(seed, "relu", eps=eps, dtype=dtype)
        if asked.found is None:
            continue
        proof = asked.found.lower(asked.start(), asked.offset, asked.root.warm.lines[0], math.inf)
        exact = asked.graph.to(torch.float64, torch.device("cpu"))
        x = asked.points(seed).double()
        values = (exact(x).flatten(1) * asked.row.double().flatten()).sum(1) - asked.offset.double()
        assert proof <= float(values.min())
        assert math.isfinite(proof)


def test_entries_whose_sign_is_known_are_exact() -> None:
    """With all signs known the network is affine, and so is the bound, but for what steps leave."""
    asked = case(3, "relu", eps=0.3)
    x = asked.points(3)
    assert asked.skeleton is not None
    values, inside = asked.graph.values(x[:1]), torch.zeros_like(asked.lower)
    for part in asked.skeleton.relaxed.values():
        inside[part.every] = values[part.before].flatten(1)[0, part.entries]
    lower = torch.where(inside > 0, asked.lower.clamp(min=0), asked.lower)
    upper = torch.where(inside > 0, asked.upper, asked.upper.clamp(max=0))
    found = Rectifiers.of(asked.skeleton, lower, upper)
    assert found is not None
    proof = found.lower(asked.start(), asked.offset, asked.root.warm.lines[0], enough=math.inf)
    # Those points of the cell at which all signs are as they are here.
    every = torch.cat(
        [asked.graph.values(x)[p.before].flatten(1)[:, p.entries] for p in asked.skeleton.relaxed.values()], 1
    )
    there = ((every > 0) == (inside > 0)).all(1)
    assert bool(there.any())
    assert proof <= float(asked.values(x[there]).min())


def test_two_rectifiers_that_cannot_both_be_at_their_worst() -> None:
    """``relu(x) + relu(-x)`` is at most 1 on [-1, 1]: chords say 2 half way between, one quadratic says 1."""
    builder = GraphBuilder((1, 1))
    hidden = builder.elementwise(Relu(), builder.linear(-1, torch.tensor([[1.0, -1.0]], dtype=torch.float64)))
    graph = builder.finish(builder.linear(hidden, torch.tensor([[-1.0], [-1.0]], dtype=torch.float64)))
    x = torch.zeros(1, 1, 1, dtype=torch.float64)
    asked = Case(graph, x, Perturbation(1.0).around(x), torch.ones(1, 1, 1).double(), torch.zeros(1).double())
    assert asked.found is not None
    proof = asked.found.lower(asked.start(), asked.offset, asked.root.warm.lines[0], enough=math.inf)
    assert -1.01 <= proof <= -1


def test_a_root_is_the_better_of_lines_and_rectifiers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    gained = 0
    for seed in range(5):
        asked = case(seed, "relu")
        if asked.found is None:
            continue
        with torch.no_grad():
            together = asked.leaves.roots()[0].bound
            monkeypatch.setattr(Rectifiers, "of", staticmethod(lambda *_: None))
            lines = case(seed, "relu").leaves.roots()[0].bound
            monkeypatch.undo()
        assert together >= lines
        gained += together > lines + 1e-3
    assert gained >= 2


@pytest.mark.parametrize("kind", ["tanh", "leaky"])
def test_other_activations_are_left_to_lines(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    graph = random_graph(generator, 3, (5, 4), 3, activation=kind, softmax=False)
    x = torch.rand(1, *graph.input_shape, generator=generator, dtype=torch.float64)
    row = torch.ones(1, *graph.output_shape, dtype=torch.float64)
    asked = Case(graph, x, Perturbation(0.3).around(x), row, torch.zeros(1).double())
    assert asked.skeleton is not None
    assert asked.found is None
