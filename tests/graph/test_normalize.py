"""Normalisation as one operator: exact over boxes, planes that hold, at most sqrt(d) whatever happens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.centre import Centre
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.normalize import InverseDeviation, Normalized
from softhull.graph.ops.rsqrt import Rsqrt
from softhull.graph.ops.square import Square
from softhull.graph.simplify import simplify
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear, SecondOrder
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation

EPSILON = 1e-5
DTYPES = [torch.float32, torch.float64]
# Half-widths and centres of boxes: ordinary, tiny, huge, points, around zero.
BOXES = [
    (1e-1, 1.0),
    (1.0, 1.0),
    (1e3, 1.0),
    (1e-9, 1.0),
    (0.0, 1.0),
    (1e-3, 0.0),
    (1e12, 1e12),
    (1e-12, 1e-12),
    (3.0, 0.1),
    (1e19, 1e19),  # squares overflow in float32
    (1e154, 1e154),  # and in float64
    (1e200, 1e200),
]


def box(rng: np.random.Generator, half: float, centre: float, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    middle = centre * rng.normal(size=(6, d))
    width = half * rng.uniform(0, 1, size=(6, d))
    return torch.from_numpy(middle - width).to(dtype), torch.from_numpy(middle + width).to(dtype)


def points(rng: np.random.Generator, lower: Tensor, upper: Tensor, count: int = 60) -> np.ndarray:
    """Points of the box ``[count, B, d]`` in extended precision: corners, faces and the inside."""
    low, high = (end.numpy().astype(np.longdouble) for end in (lower, upper))
    share = rng.uniform(0, 1, size=(count, *low.shape)).astype(np.longdouble)
    share[::3] = np.round(share[::3])
    share[1::6, :, : low.shape[1] // 2] = np.round(share[1::6, :, : low.shape[1] // 2])
    return np.clip(low + share * (high - low), low, high)


def inverse(z: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt((z * z).mean(-1, keepdims=True) + np.longdouble(EPSILON))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("half", "centre"), BOXES)
@pytest.mark.parametrize("d", [1, 7])
def test_intervals_and_planes_hold(half, centre, d, dtype):
    rng = np.random.default_rng(d)
    lower, upper = box(rng, half, centre, d, dtype)
    if not (lower.isfinite() & upper.isfinite()).all():
        pytest.skip("no box of this dtype")
    z = points(rng, lower, upper)
    r, y = inverse(z), z * inverse(z)
    operator = InverseDeviation((0,), EPSILON)
    low, high = (end.numpy() for end in operator.interval((lower, upper)))
    assert (low <= r).all()
    assert (r <= high).all()
    product = Normalized((d,), (1,), (0,), EPSILON)
    least, most = product.interval((lower, upper), operator.interval((lower, upper)))
    assert (least.numpy() <= y).all()
    assert (y <= most.numpy()).all()
    assert float(torch.maximum(least.abs(), most.abs()).max()) <= math.sqrt(d) * (1 + 1e-4)
    planes = operator.planes(lower, upper, *operator.mean_square(lower, upper))
    slopes = [t.numpy().astype(np.longdouble) for t in (planes.below, planes.above)]
    below, above = ((slope * z).sum(-1, keepdims=True) for slope in slopes)
    assert (below + planes.below_offset.numpy() <= r).all()
    assert (r <= above + planes.above_offset.numpy()).all()


@pytest.mark.parametrize("half", [1e-3, 0.1, 1.0, 30.0])
def test_the_range_over_a_box_is_attained(half):
    rng = np.random.default_rng(3)
    lower, upper = box(rng, half, 1.0, 5, torch.float64)
    least, most = Normalized((5,), (1,), (0,), EPSILON).interval(
        (lower, upper), (lower[:, :1] * 0, lower[:, :1] * 0 + 1e9)
    )
    for entry in range(5):
        for end, sign in ((least, -1), (most, 1)):
            own = (upper if sign > 0 else lower)[:, entry : entry + 1]
            nearest, farthest = torch.zeros_like(lower).clamp(lower, upper), torch.where(-lower > upper, lower, upper)
            z = torch.where(sign * own > 0, nearest, farthest)
            z[:, entry] = own[:, 0]
            y = (z * (z.square().mean(1, keepdim=True) + EPSILON).rsqrt())[:, entry]
            torch.testing.assert_close(end[:, entry], y, rtol=1e-9, atol=1e-12)


def norm(b: GraphBuilder, x: int, centred: bool) -> int:
    x = b.add(Centre((1,)), x) if centred else x
    variance = b.scale(b.total(b.elementwise(Square(), x), (1,), mean=True), 1.0, EPSILON)
    return b.product(x, b.elementwise(Rsqrt(), variance))


def encoder(rng: np.random.Generator, centred: bool, layers: int, tokens: int = 3, width: int = 5) -> Graph:
    """Normalised attention-free layers that mix tokens and features, with residual connections."""

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape) / math.sqrt(shape[0]))

    b = GraphBuilder((1, tokens, width))
    x = b.reshape(-1, (tokens, width))
    for _ in range(layers):
        mixed = b.linear(norm(b, x, centred), normal(tokens, tokens), left=True)
        x = b.sum_of(x, b.linear(mixed, normal(width, width)))
    flat = b.reshape(norm(b, x, centred), (1, tokens * width))
    return simplify(b.finish(b.linear(flat, normal(tokens * width, 3))))


@pytest.mark.parametrize("centred", [False, True])
def test_the_chain_is_recognised(centred):
    graph = encoder(np.random.default_rng(0), centred, 2)
    names = [node.operator.name for node in graph.nodes]
    assert names.count("Normalized") == names.count("InverseDeviation") == 3
    assert not {"Square", "Rsqrt", "Product"} & set(names)


@pytest.mark.parametrize("norm_of_ball", [math.inf, 2, 1])
@pytest.mark.parametrize(("layers", "dtype", "centred"), [(1, torch.float32, False), (3, torch.float64, True)])
def test_walks_hold_and_have_no_cliff(norm_of_ball, layers, dtype, centred):
    rng = np.random.default_rng(layers)
    graph = encoder(rng, centred, layers)
    x = torch.from_numpy(rng.normal(size=(2, *graph.input_shape)))
    rows = torch.cat((torch.eye(3, dtype=dtype), -torch.eye(3, dtype=dtype)))[:, None, None]
    last = graph.nodes[-1].operator
    assert isinstance(last, Dense)
    worst = -last.matrix.abs().sum(0).max() * math.sqrt(5) * 1.01
    for eps in (1e-3, 0.1, 1.0, 30.0):
        region = Perturbation(eps, norm=norm_of_ball).around(x.to(dtype))
        bounds = LinearBounds(graph.to(dtype), region, Linear())
        bounds.prepare(len(graph.nodes) - 1)
        low = bounds.lower(len(graph.nodes) - 1, rows, contract=True).double()
        draw = torch.from_numpy(rng.normal(size=(200, *x.shape)))
        lengths = draw.flatten(2).norm(norm_of_ball, dim=2).reshape(200, 2, *(1,) * (x.ndim - 1))
        inside = x.to(dtype).double() + (eps * (1 - 1e-12)) * draw / lengths
        y = graph(inside.flatten(0, 1)).reshape(200, 2, 3)
        found = torch.cat((y, -y), 2).permute(2, 1, 0)
        assert bool((low <= found.amin(-1)).all())
        assert float(low.min()) >= float(worst)


@pytest.mark.parametrize("norm_of_ball", [math.inf, 2, 1])
@pytest.mark.parametrize("centred", [False, True])
def test_second_order_holds(norm_of_ball, centred):
    rng = np.random.default_rng(5)
    graph = encoder(rng, centred, 2)
    x = torch.from_numpy(rng.normal(size=(2, *graph.input_shape)))
    rows = torch.cat((torch.eye(3), -torch.eye(3))).double()[:, None]
    for eps in (1e-3, 0.1, 1.0):
        region = Perturbation(eps, norm=norm_of_ball).around(x)
        second = SecondOrderBounds.of(LinearBounds(graph, region, SecondOrder().linear))
        never = torch.full((12,), math.inf, dtype=torch.float64)
        low = second.lower(rows.repeat_interleave(2, 0), torch.arange(2).repeat(6), 4, never).reshape(6, 2)
        draw = torch.from_numpy(rng.normal(size=(300, *x.shape)))
        draw[::2] *= torch.from_numpy(rng.uniform(size=draw[::2].shape) < 0.3)  # corners of the l_1 ball
        draw[..., 0] += 1e-6
        lengths = draw.flatten(2).norm(norm_of_ball, dim=2).reshape(300, 2, *(1,) * (x.ndim - 1))
        y = graph((x + (eps * (1 - 1e-12)) * draw / lengths).flatten(0, 1)).reshape(300, 2, 3)
        assert bool((low <= torch.cat((y, -y), 2).permute(2, 1, 0).amin(-1)).all())
