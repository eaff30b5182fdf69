"""A first layer of patches together with a box of inputs: never beyond the ends that exact arithmetic finds."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.conv import Conv
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.relu import Relu
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.stem import Stem
from softhull.propagate.structure import Structure
from softhull.regions import Region

SHAPE = (2, 2, 4, 6)


def layer(generator: torch.Generator, size: float, dtype: torch.dtype) -> Conv:
    kernel = torch.randn(3, 2, 2, 3, dtype=dtype, generator=generator) * size
    return Conv(kernel, torch.randn(3, dtype=dtype, generator=generator), (2, 3), (0, 0, 0, 0), (1, 1))


def box(generator: torch.Generator, centre: float, radius: float, dtype: torch.dtype) -> Region:
    middle = centre * torch.randn(2, *SHAPE, dtype=torch.float64, generator=generator)
    wide = radius * torch.rand(2, *SHAPE, dtype=torch.float64, generator=generator)
    wide[torch.rand(wide.shape, generator=generator) < 0.1] = 0
    lower, upper = (middle - wide).to(dtype), (middle + wide).to(dtype)
    return Region(torch.minimum(lower, upper), torch.maximum(lower, upper))


def ends(operator: Conv, region: Region, row: Tensor, instance: int) -> tuple[Fraction, Fraction]:
    """The least and the largest ``<row, layer>`` over one box, in exact arithmetic."""
    N, _, height, width = SHAPE
    coefficient = [Fraction(a) for a in row.double().flatten().tolist()]
    back = [Fraction(0)] * (N * 2 * height * width)
    total = Fraction(0)
    kernel, bias = operator.kernel.double(), operator.bias
    assert bias is not None
    entries = [(n, c, i, j) for n in range(N) for c in range(3) for i in range(2) for j in range(2)]
    for a, (n, c, i, j) in zip(coefficient, entries):
        total += a * Fraction(float(bias[c]))
        for d in range(2):
            for p in range(2):
                for q in range(3):
                    place = ((n * 2 + d) * height + 2 * i + p) * width + 3 * j + q
                    back[place] += a * Fraction(float(kernel[c, d, p, q]))
    sides = (region.lower[instance].flatten().tolist(), region.upper[instance].flatten().tolist())
    terms = [(b * Fraction(low), b * Fraction(high)) for b, low, high in zip(back, *sides)]
    return total + sum(map(min, terms)), total + sum(map(max, terms))


def test_rows_without_coefficients_are_zero() -> None:
    generator = torch.Generator().manual_seed(1)
    stem = Stem.of(layer(generator, 1.0, torch.float64), box(generator, 1.0, 0.1, torch.float64))
    assert stem is not None
    middle, reach = stem.around(torch.zeros(3, 1, 2, 3, 2, 2, dtype=torch.float64))
    assert not middle.any()
    assert bool((reach >= 0).all() & (reach < 1e-30).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e25])
@pytest.mark.parametrize(("centre", "radius"), [(1.0, 0.01), (1.0, 0.0), (1e6, 1e-9), (0.0, 1.0), (1.0, 1e-39)])
def test_a_first_layer_over_a_box_is_never_above_its_least_value(
    dtype: torch.dtype, size: float, centre: float, radius: float
) -> None:
    generator = torch.Generator().manual_seed(7)
    operator, region = layer(generator, size, dtype), box(generator, centre, radius, dtype)
    stem = Stem.of(operator, region)
    assert stem is not None
    shape = (1, 2, 3, 2, 2)
    rows = torch.randn(6, *shape, dtype=dtype, generator=generator)
    rows[1] *= 10.0 ** torch.randint(-44, 8, shape, generator=generator)
    rows[2] = 0
    rows[3, ..., 1:] = 0
    rows[4, :, 0] = 0
    own = stem.around(rows.expand(-1, 2, *shape[1:]).contiguous())
    alone = stem.take(torch.tensor([1])).around(rows)
    for b, (middle, reach) in enumerate((stem.around(rows), own, alone)):
        number, place = (0, 0) if b == 0 else (1, 1 if b == 1 else 0)
        for s in range(len(rows)):
            low, high = ends(operator, region, rows[s], number)
            below, above = middle[s, place] - reach[s, place], middle[s, place] + reach[s, place]
            # What is not finite says nothing.
            assert not below.isfinite() or Fraction(float(below)) <= low
            assert not above.isfinite() or Fraction(float(above)) >= high


def test_what_single_precision_costs_is_a_share_of_the_radius() -> None:
    generator = torch.Generator().manual_seed(3)
    operator, region = layer(generator, 1.0, torch.float64), box(generator, 100.0, 0.01, torch.float64)
    stem = Stem.of(operator, region)
    assert stem is not None
    rows = torch.randn(8, 1, 2, 3, 2, 2, dtype=torch.float64, generator=generator)
    middle, reach = stem.around(rows)
    for s in range(len(rows)):
        exact = float(ends(operator, region, rows[s], 0)[0])
        assert exact - float(middle[s, 0] - reach[s, 0]) <= 1e-4 * float(reach[s, 0])


def patches_and_more() -> Graph:
    """Patches, a curve, and the sum with a second reader of the patches."""
    generator = torch.Generator().manual_seed(11)
    builder = GraphBuilder(SHAPE)
    flat = builder.reshape(builder.add(layer(generator, 1.0, torch.float64), -1), (1, 24))
    matrix = torch.randn(24, 5, dtype=torch.float64, generator=generator)
    bent = builder.add(Dense(matrix), builder.add(Relu(), flat))
    builder.sum_of(bent, builder.add(Dense(matrix.flip(0)), flat))
    return Graph(SHAPE, tuple(builder.nodes))


def test_walks_that_end_at_patches_hold_and_say_the_same() -> None:
    graph = patches_and_more()
    assert Structure(graph).stem == 0
    generator = torch.Generator().manual_seed(5)
    region = box(generator, 1.0, 0.1, torch.float64)
    bounds, plain = (LinearBounds(graph, region, Linear(optimize=0)) for _ in range(2))
    plain.structure.stem = None
    last = len(graph.nodes) - 1
    rows = torch.randn(7, 1, 1, 5, dtype=torch.float64, generator=generator)
    (low, high), (least_known, most_known) = bounds.between(last, rows), plain.between(last, rows)
    assert torch.allclose(low, least_known, rtol=1e-4, atol=1e-4)
    assert torch.allclose(high, most_known, rtol=1e-4, atol=1e-4)
    for _ in range(200):
        x = region.sample(generator)
        values = (rows[:, 0].flatten(1) @ graph(x).flatten(1).T).flatten(1)
        assert bool((values >= low).all())
        assert bool((values <= high).all())


def test_a_ball_or_a_box_without_ends_is_not_taken_with_the_first_layer() -> None:
    generator = torch.Generator().manual_seed(5)
    operator, region = layer(generator, 1.0, torch.float64), box(generator, 1.0, 0.1, torch.float64)
    ball = Region(region.lower, region.upper, (region.lower + region.upper) / 2, 0.1, 2)
    assert Stem.of(operator, ball) is None
    assert Stem.of(operator, Region(region.lower - torch.inf, region.upper)) is None
