"""Products of lines that both move: what their tangent leaves out is never more than what is said."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

import softhull
from softhull import Linear, Perturbation, load_onnx, verify_robustness
from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.softmax import Softmax
from softhull.propagate import scalar_products
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.products import prepare_jointly
from softhull.propagate.scalar_products import around, largest_products, remainders
from softhull.propagate.spread import Spread, _gram
from softhull.regions import Region
from softhull.verify.walks import SPREAD
from tests.propagate.checks import points_of
from tests.propagate.networks import random_attention

METHOD = SecondOrder().linear
SHAPES = ("plain", "one direction", "zeros", "nearly one direction", "mixed sizes")


def exact(t: Tensor) -> list[list[Fraction]]:
    """A matrix as it is, without rounding."""
    return [[Fraction(float(v)) for v in row] for row in t.double()]


def slopes(rng: np.random.Generator, kind: str, d: int, n: int, scale: float, dtype: torch.dtype) -> Tensor:
    """How d entries of a line follow n noise numbers."""
    found = torch.from_numpy(rng.normal(size=(d, n)))
    if kind == "one direction":
        found = found[:, :1] * found[:1]
    elif kind == "nearly one direction":
        found = found[:, :1] * found[:1] + 1e-9 * found
    elif kind == "zeros":
        found[:, ::2] = 0
        found[: d // 2] = 0
    elif kind == "mixed sizes":
        found = found * torch.from_numpy(10.0 ** rng.uniform(-12, 3, (d, 1)))
    return (scale * found).to(dtype)


def moved(F: list[list[Fraction]], rest: list[Fraction], signs: np.ndarray, ends: np.ndarray) -> list[Fraction]:
    """The deviation of a line where noise and rest are at their ends."""
    return [sum((f * int(s) for f, s in zip(row, signs)), Fraction(0)) + r * int(e) for row, r, e in zip(F, rest, ends)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", SHAPES)
def test_no_product_in_exact_arithmetic_is_larger(kind: str, dtype: torch.dtype) -> None:
    """Also where numbers nearly vanish or overflow; noise is pushed to where the product is largest."""
    region = Region(torch.zeros(1, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype))
    far = 150 if dtype == torch.float64 else 16
    tight = 0.0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        d, n = int(rng.integers(1, 6)), int(rng.integers(1, 7))
        scales = 10.0 ** (rng.uniform(-far, far, 2) if seed % 3 == 0 else np.zeros(2))
        lines, given = [], []
        for scale in scales:
            F = slopes(rng, kind, d, n, float(scale), dtype)
            rest = torch.from_numpy(rng.uniform(0, 1, d) * scale * rng.choice((0.0, 1e-9, 0.3))).to(dtype)
            zero = torch.zeros(d, dtype=dtype)
            lines.append(around(Spread(zero, rest, _gram(region, 1, F)), zero, zero))
            given.append((exact(F), [Fraction(float(r)) for r in rest], F.double().numpy()))
        most = float(largest_products(lines[0][None], lines[1][None])[0, 0])
        for _ in range(6):
            signs, ends = rng.choice((-1, 1), n), rng.choice((-1, 1), (2, d))
            for _ in range(4):  # one side follows the other
                towards = [given[side][2].astype(float) @ signs for side in (0, 1)]
                step = given[0][2].T @ towards[1] / (scales[0] * scales[1])
                ends = np.where(np.array(towards[::-1]) >= 0, 1, -1)
                x, y = (moved(F, rest, signs, e) for (F, rest, _), e in zip(given, ends))
                product = abs(sum((a * b for a, b in zip(x, y)), Fraction(0)))
                assert math.isinf(most) or product <= Fraction(most)
                if 0 < most < math.inf:
                    tight = max(tight, float(product / Fraction(most)))
                signs = np.where(step >= 0, 1, -1)
    assert tight > 0.5 or kind == "zeros"  # it is not true for want of saying anything


def test_a_wrong_factor_only_costs() -> None:
    """Whatever a factorisation returns, the bound is one."""
    A = torch.tensor([[[1.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    B = torch.eye(2, dtype=torch.float64)[None]
    assert float(largest_products(A, B)) >= math.sqrt(2)
    assert float(largest_products(A - 3 * torch.eye(2), B)) >= 0  # no factor
    assert float(largest_products(A * math.inf, B)) == math.inf
    assert float(largest_products(A * math.nan, B)) == math.inf


def attention_logits(weights: tuple[Tensor, Tensor], tokens: int = 2) -> Graph:
    """Queries and keys of every token, and their products as probabilities."""
    width = weights[0].shape[0]
    b = GraphBuilder((tokens, width))
    q, k = (b.linear(-1, w) for w in weights)
    return b.finish(b.elementwise(Softmax(1), b.matmul(q, b.transpose(k, (1, 0)))))


def pair_of(graph: Graph) -> int:
    """The node of the first product."""
    return next(i for i, node in enumerate(graph.nodes) if node.operator.name == "MatMul")


def test_queries_and_keys_in_many_dimensions_move_together() -> None:
    """A sum over the inner dimension takes every entry at its own worst, and is another one in another basis."""
    rng = np.random.default_rng(0)
    q, k, turn = (torch.from_numpy(rng.normal(size=shape)) for shape in ((3, 12), (3, 12), (12, 12)))
    region = Perturbation(0.3).around(torch.from_numpy(rng.normal(size=(1, 2, 3))))
    sums, found, widths = [], [], []
    for weights in ((q, k), (q @ turn, k @ torch.linalg.inv(turn).mT)):
        graph = attention_logits(weights)
        plain, joint = (LinearBounds(graph, region, METHOD, joint=joint) for joint in (False, True))
        index = pair_of(graph)
        x, y = ((high - low) / 2 for low, high in (joint.interval(i) for i in graph.nodes[index].inputs))
        sums.append(x @ y)
        found.append(remainders(joint, index))
        widths.append([float((high - low).sum()) for low, high in (each.interval(index) for each in (plain, joint))])
        assert (found[-1] < sums[-1] / 2).all()
        assert widths[-1][1] < 0.9 * widths[-1][0]
    assert (torch.maximum(*found) < 1.5 * torch.minimum(*found)).all()
    assert (sums[1] > 1.5 * sums[0]).all()


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("seed", range(6))
def test_what_tangents_leave_out_is_no_more(seed: int, norm: float) -> None:
    """At points of the region of random networks, and never more than without: only the constant of a plane changes."""
    rng = np.random.default_rng(seed)
    graph = random_attention(rng)
    x = torch.from_numpy(rng.normal(size=(3, *graph.input_shape)))
    region = Perturbation(float(10 ** rng.uniform(-6, 0)), norm=norm).around(x)
    joint = LinearBounds(graph, region, METHOD, joint=True)
    prepare_jointly(joint)
    points = points_of(region, seed)
    values = [value.unflatten(0, points.shape[:2]) for value in graph.values(points.flatten(0, 1))]
    pairs = [i for i in range(len(graph.nodes)) if scalar_products.are_pairs(joint, i)]
    assert pairs
    for index in pairs:
        left, right = graph.nodes[index].inputs
        centres = [low + (high - low) / 2 for low, high in (joint.interval(left), joint.interval(right))]
        apart = ((values[left] - centres[0]) @ (values[right] - centres[1])).abs()
        slack = 1e-14 * (values[left].abs() @ values[right].abs())  # of the values of this test
        assert (apart <= remainders(joint, index) + slack).all()
    # Alone, an instance has the bounds that it has among others.
    alone = LinearBounds(graph, region.take(torch.tensor([1])), METHOD, joint=True)
    for index in pairs:
        assert torch.allclose(remainders(alone, index)[0], remainders(joint, index)[1], rtol=1e-6)


def test_a_stage_proves_more_and_takes_nothing_away() -> None:
    """Where it can help it is tried, and no bound is worse than one that was found without it."""
    network = load_onnx(softhull.bundled("digits-attention.onnx"))
    digits = softhull.load_dataset(softhull.bundled("digits.npz"))
    x, y, ball = digits.x[:30], digits.y[:30], Perturbation(0.06, clip=(0, 1))
    method = Linear(optimize=0)
    found = verify_robustness(network, x, y, ball, method=method, attack=False).records
    kept = verify_robustness(network, x, y, ball, method=method, attack=False, proofs=True).records
    assert not any(step.by == SPREAD for record in kept for step in record.tried)
    assert any(step.by == SPREAD for record in found for step in record.tried)
    both = [(a.bound, b.bound) for a, b in zip(found, kept) if a.bound is not None and b.bound is not None]
    assert all(a >= b for a, b in both if b <= 0)
    assert all(a > 0 for a, b in both if b > 0)
    assert sum(a > 0 for a, _ in both) > sum(b > 0 for _, b in both)
