"""What every operator of every graph must fulfil, tested by sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from softhull.graph.graph import Graph, Node
from softhull.graph.operator import Affine, Bilinear, Elementwise, Interval

_SAMPLES = 64
_ROUNDING = 1e-9


def assert_sound(graph: Graph, seed: int, radius: float = 0.1, centre: Tensor | None = None) -> None:
    """Intervals contain sampled values, lines enclose, affine operators and products transpose exactly."""
    torch.manual_seed(seed)
    batch = 2
    if centre is None:
        centre = torch.rand((batch, *graph.input_shape), dtype=torch.float64)
    lower, upper = centre - radius * torch.rand_like(centre), centre + radius * torch.rand_like(centre)
    inside = lower + (upper - lower) * torch.rand((_SAMPLES, *lower.shape), dtype=torch.float64)
    corners = torch.where(torch.rand_like(inside) < 0.5, lower, upper)
    points = torch.cat((inside, corners))
    bounds: list[Interval] = []
    samples = [value.unflatten(0, points.shape[:2]) for value in graph.values(points.flatten(0, 1))]
    for index, node in enumerate(graph.nodes):
        inputs = [(lower, upper) if i < 0 else bounds[i] for i in node.inputs]
        bounds.append(node.operator.interval(*inputs))
        least, most = bounds[-1]
        assert least.shape == (batch, *node.shape), node
        slack = _ROUNDING * (1 + least.nan_to_num(neginf=0).abs() + most.nan_to_num(neginf=0).abs())
        assert bool((samples[index] >= least - slack).all()), node
        assert bool((samples[index] <= most + slack).all()), node
        arguments = [points if i < 0 else samples[i] for i in node.inputs]
        _assert_relaxed(node, inputs, arguments, graph)


def _assert_relaxed(node: Node, bounds: list[Interval], arguments: list[Tensor], graph: Graph) -> None:
    operator = node.operator
    shapes = tuple(graph.shape_of(i) for i in node.inputs)
    if isinstance(operator, Affine):
        _assert_transposed(operator, shapes, node.shape)
    elif isinstance(operator, Elementwise):
        lower, upper = bounds[0]
        for free in (None, torch.rand((2, *lower.shape), dtype=lower.dtype)):
            lines = operator.lines(lower, upper, free)
            (x,) = arguments
            y = operator.value(x)
            slack = _ROUNDING * (1 + y.abs())
            assert bool((lines.lower_slope * x + lines.lower_offset <= y + slack).all()), node
            assert bool((lines.upper_slope * x + lines.upper_offset >= y - slack).all()), node
    elif isinstance(operator, Bilinear):
        _assert_contracted(operator, shapes, node.shape)


def _assert_transposed(operator: Affine, shapes: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> None:
    """``<C, f(x)>`` equals ``sum <back, x> + constant`` for the operator's own rule and for the default one."""
    inputs = [torch.randn((2, *shape), dtype=torch.float64) for shape in shapes]
    coefficients = torch.randn((3, 2, *output), dtype=torch.float64)
    y = operator.value(*inputs)
    masked = ~y.isfinite()
    coefficients = torch.where(masked, torch.zeros_like(coefficients), coefficients)
    expected = (coefficients * torch.where(masked, torch.zeros_like(y), y)).reshape(3, 2, -1).sum(2)
    back, constant = operator.backward(coefficients, shapes)
    assert [tuple(b.shape) for b in back] == [(3, 2, *shape) for shape in shapes]
    found = constant + sum((b * x).reshape(3, 2, -1).sum(2) for b, x in zip(back, inputs))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    none, nothing = operator.backward(coefficients[:0], shapes)
    assert [tuple(b.shape) for b in none] == [(0, 2, *shape) for shape in shapes]
    assert tuple(nothing.shape) == (0, 2)
    if not bool(masked.any()):
        for ours, theirs in zip(back, Affine.backward(operator, coefficients, shapes)[0]):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def _assert_contracted(operator: Bilinear, shapes: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> None:
    """Both gradients of ``<C, x*y>`` give the product back."""
    x, y = (torch.randn((2, *shape), dtype=torch.float64) for shape in shapes)
    coefficients = torch.randn((3, 2, *output), dtype=torch.float64)
    expected = (coefficients * operator.value(x, y)).reshape(3, 2, -1).sum(2)
    for side, (own, other) in enumerate(((x, y), (y, x))):
        gradient = operator.contract(coefficients, side, other[None])
        assert tuple(gradient.shape) == (3, 2, *shapes[side])
        torch.testing.assert_close((gradient * own).reshape(3, 2, -1).sum(2), expected, rtol=1e-9, atol=1e-9)
