"""Masked attention is bounded as if what is masked were not there, whatever number the mask is written with."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.gather import Gather
from softhull.graph.ops.guard import Guard
from softhull.graph.ops.softmax import Softmax
from softhull.graph.simplify import simplify
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation

NUMBERS = (-1e4, -1e9, -3.4028234663852886e38, -math.inf)
CAUSAL = torch.triu(torch.ones(16, 16, dtype=torch.bool), 1)


def _attention(
    mask: Tensor | None,
    tokens: int,
    how: str = "add",
    layers: int = 1,
    guard: bool = False,
    sharpness: float = 1.0,
    read: int = 3,
) -> Graph:
    """Attention over the first tokens of 16; ``mask [tokens, tokens]`` is added or takes the place of logits."""
    generator = torch.Generator().manual_seed(3)

    def weights(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / 2

    b = GraphBuilder((16, 4))
    x = b.add(Gather(0, torch.arange(tokens)), -1)
    for _ in range(layers):
        query, key, value = (b.linear(x, weights(4, 4)) for _ in range(3))
        logits = b.scale(b.matmul(query, b.transpose(key, (1, 0))), 0.5 * sharpness)
        if mask is not None and how == "add":
            logits = b.scale(logits, 1.0, mask)
        elif mask is not None:
            logits = b.scale(logits, (mask == 0).double(), mask)
        p = b.add(Softmax(1), logits)
        x = b.sum_of(x, b.matmul(b.add(Guard(), p) if guard else p, value))
    return simplify(b.finish(b.linear(b.add(Gather(0, torch.tensor([read])), x), weights(4, 3))))


def _mask(masked: Tensor, number: float) -> Tensor:
    return torch.where(masked, number, 0.0).double()


def _bounds(graph: Graph, eps: float = 0.05, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Lower bounds on the differences of the outputs by walks, contracted or not; in one layer by second order."""
    centre = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)
    region = Perturbation(eps).around(centre)
    rows = torch.tensor([[1.0, -1, 0], [0, 1, -1], [-1, 0, 1]], dtype=dtype)[:, None, None, :]
    bounds, last = LinearBounds(graph.to(dtype), region, Linear()), len(graph.nodes) - 1
    found = {name: bounds.lower(last, rows, contract=name == "contracted") for name in ("contracted", "term by term")}
    if dtype == torch.float64 and sum(isinstance(node.operator, Softmax) for node in graph.nodes) == 1:
        # Without the search for multipliers, which goes another way where two ways are equally good up to rounding.
        second = SecondOrderBounds.of(bounds)
        quadratic = second.quadratic(rows[:, 0].repeat_interleave(2, 0), torch.arange(2).repeat(3))
        low = quadratic.constant - second.forms.noise.radius(quadratic.linear) - quadratic.dense()[0].abs().sum((1, 2))
        found["second order"] = low.reshape(3, 2)
    return found


def _second_order(graph: Graph, eps: float) -> Tensor:
    centre = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    bounds = LinearBounds(graph, Perturbation(eps).around(centre), Linear())
    rows = torch.tensor([[1.0, -1, 0], [0, 1, -1], [-1, 0, 1]], dtype=torch.float64)[:, None]
    never = torch.full((6,), math.inf, dtype=torch.float64)
    second = SecondOrderBounds.of(bounds)
    return second.lower(rows.repeat_interleave(2, 0), torch.arange(2).repeat(3), 2, never).reshape(3, 2)


def _padding(number: float) -> Tensor:
    """Tokens 11 to 15 are padding: nobody looks at them."""
    return _mask((torch.arange(16) >= 11).expand(16, 16), number)


@pytest.mark.parametrize("how", ["add", "replace"])
def test_bounds_do_not_depend_on_the_number(how):
    first, *others = (_bounds(_attention(_mask(CAUSAL, number), 16, how)) for number in NUMBERS)
    for other in others:
        for name, bound in first.items():
            torch.testing.assert_close(other[name], bound, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize(("number", "layers"), [*((number, 1) for number in NUMBERS), (-1e9, 2), (-math.inf, 2)])
def test_masked_tokens_are_as_if_removed(number, layers):
    graph, left = _attention(_padding(number), 16, layers=layers), _attention(None, 11, layers=layers)
    masked, removed = _bounds(graph), _bounds(left)
    for name, bound in removed.items():
        torch.testing.assert_close(masked[name], bound, rtol=0, atol=1e-9, msg=name)
    if number == -math.inf:
        assert [(n.operator.name, n.shape) for n in graph.nodes] == [(n.operator.name, n.shape) for n in left.nodes]


@pytest.mark.parametrize("row", [0, 3, 15])
def test_keys_that_the_queries_asked_for_do_not_see_are_not_computed(row):
    """Of causal attention that is read at one token, what comes later is left out, in every layer."""
    tokens = row + 1
    graph = _attention(_mask(CAUSAL, -math.inf), 16, layers=2, read=row)
    left = _attention(_mask(CAUSAL[:tokens, :tokens], -math.inf), tokens, layers=2, read=row)
    assert [(n.operator.name, n.shape) for n in graph.nodes] == [(n.operator.name, n.shape) for n in left.nodes]
    x = torch.randn(2, 16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(graph(x), left(x), rtol=0, atol=0)


def test_one_visible_logit_is_certain():
    """Only the first token is seen, by everyone: its probability is 1, less what leaks."""
    seen = _mask((torch.arange(16) >= 1).expand(16, 16), -1e9)
    masked, removed = _bounds(_attention(seen, 16)), _bounds(_attention(seen, 16, how="replace"))
    left = _bounds(_attention(_mask((torch.arange(16) >= 1).expand(16, 16), -math.inf), 16))
    for found in (masked, removed):
        for name, bound in left.items():
            torch.testing.assert_close(found[name], bound, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("sharpness", [1e3, 1e4])
def test_bounds_hold_where_much_leaks(sharpness):
    """With logits in the thousands a mask of -1e4 lets through what it is to hide."""
    for how in ("add", "replace"):
        graph = _attention(_padding(-1e4), 16, how, sharpness=sharpness)
        bound = _bounds(graph, 0.1) | {"second order with multipliers": _second_order(graph, 0.1)}
        centre = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        torch.manual_seed(0)
        for _ in range(40):
            y = graph(centre + 0.1 * torch.sign(torch.randn(2, 16, 4, dtype=torch.float64)))[:, 0]
            margins = torch.stack((y[:, 0] - y[:, 1], y[:, 1] - y[:, 2], y[:, 2] - y[:, 0]))
            for name, low in bound.items():
                assert bool((margins >= low).all()), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", NUMBERS)
def test_sampled_values_are_inside(number, dtype):
    graph = _attention(_mask(CAUSAL, number), 16)
    bound = _bounds(graph, 0.2, dtype)
    if dtype == torch.float64:
        bound["second order with multipliers"] = _second_order(graph, 0.2)
    centre = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    torch.manual_seed(0)
    for _ in range(20):
        x = centre.to(dtype).double() + 0.2 * torch.sign(torch.randn(2, 16, 4, dtype=torch.float64))
        y = graph(x)[:, 0]
        margins = torch.stack((y[:, 0] - y[:, 1], y[:, 1] - y[:, 2], y[:, 2] - y[:, 0]))
        for name, low in bound.items():
            assert bool((margins >= low.double()).all()), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 5e3, 1e6])
def test_intervals_hold_where_logits_are_as_large_as_the_mask(dtype, scale):
    """With logits in the thousands a mask of -1e4 masks little: it leaks, and the intervals say how much."""
    torch.manual_seed(0)
    for replaced in (False, True):
        mask = torch.where(torch.rand(6, 5) < 0.4, torch.tensor(-1e4), torch.tensor(0.0)).to(dtype)
        operator = Softmax(1, mask, replaced)
        lower = scale * torch.randn(3, 6, 5, dtype=dtype)
        upper = lower + scale * torch.rand_like(lower)
        least, most = operator.interval((lower, upper))
        exact = Softmax(1, mask.double(), replaced)
        for _ in range(50):
            part = torch.randint(0, 2, lower.shape).to(dtype) if torch.rand(()) < 0.5 else torch.rand_like(lower)
            y = exact.value((lower + part * (upper - lower)).clamp(lower, upper).double())
            assert bool((y >= least.double()).all())
            assert bool((y <= most.double()).all())


def test_a_guard_behind_visible_rows_is_nothing():
    guarded, plain = (_attention(_mask(CAUSAL, -math.inf), 16, guard=guard) for guard in (True, False))
    assert [n.operator.name for n in guarded.nodes] == [n.operator.name for n in plain.nodes]


def test_a_guarded_row_without_visible_logits_is_zero():
    masked = CAUSAL.clone()
    masked[3] = True  # the row of the token that is read; the others are not computed
    graph = _attention(_mask(masked, -math.inf), 16, layers=1, guard=True)
    x = torch.randn(2, 16, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    others = x.clone()
    others[:, torch.arange(16) != 3] = 1.0
    torch.testing.assert_close(graph(others), graph(x), rtol=0, atol=0)
    torch.testing.assert_close(graph(2 * x), 2 * graph(x))  # what is left is linear
    assert bool((_bounds(graph)["contracted"].isfinite()).all())


_OPEN = torch.eye(3, dtype=torch.float64)
_WRITTEN = {
    "visible logits are raised": (torch.ones_like(_OPEN), 1e4 * _OPEN + 50, -1e4 * _OPEN),
    "and the others replaced": (_OPEN, 1e4 * _OPEN + 50, -1e4 * _OPEN),
    "masked logits have a factor of their own": (100 - 99 * _OPEN, 1e4 * (_OPEN - 1), 100 * (1 - _OPEN)),
}


@pytest.mark.parametrize("written", _WRITTEN)
def test_a_mask_is_the_same_function_however_it_is_written(written):
    """At logits that are as large as the mask, so that every part of it counts."""
    factor, shift, centre = _WRITTEN[written]
    b = GraphBuilder((3, 3))
    graph = simplify(b.finish(b.add(Softmax(1), b.scale(-1, factor, shift))))
    x = centre + torch.randn(100, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(graph(x), (factor * x + shift).softmax(2), rtol=0, atol=1e-9)
