"""What finite masks hide is left out only where it is negligible, and what is left out is charged everywhere."""

from __future__ import annotations

import pytest
import torch
from flint import arb, ctx
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.masks import SLACK, Hidden
from softhull.graph.ops.near import Near
from softhull.graph.ops.reciprocal import Reciprocal
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.crown import LinearBounds
from softhull.propagate.interval import interval_bounds
from softhull.propagate.methods import Linear
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation

TOKENS, WIDTH = 5, 3


def _attention(mask: Tensor, slack: float = 0.0, output: str = "product", halved: bool = False) -> Graph:
    """Attention with logits and values that are linear in the input; ``Near`` behind it where there is a slack."""
    generator = torch.Generator().manual_seed(7)

    def weights(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    b = GraphBuilder((TOKENS, WIDTH))
    query, key, value = (b.linear(-1, weights(WIDTH, WIDTH)) for _ in range(3))
    p = b.add(Softmax(1, mask), b.matmul(query, b.transpose(key, (1, 0))))
    if output == "probabilities":
        return b.finish(p)
    p = b.scale(p, -0.5) if halved else p
    mixed = b.matmul(p, value)
    if output == "both":
        mixed = b.sum_of(mixed, b.linear(p, weights(TOKENS, WIDTH)))
    if slack:
        mixed = b.add(Near(slack), mixed)
    again = b.linear(b.matmul(mixed, b.transpose(mixed, (1, 0))), weights(TOKENS, 2))
    return b.finish(b.sum_of(again, b.linear(b.elementwise(Relu(), mixed), weights(WIDTH, 2))))


def _masks(number: float) -> Tensor:
    """Tokens 3 and 4 are masked for all, token 2 for the first two."""
    masked = torch.zeros(TOKENS, TOKENS, dtype=torch.bool)
    masked[:, 3:], masked[:2, 2] = True, True
    return torch.where(masked, number, 0.0).double()


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("number", [-60.0, -72.0, -75.0, -80.0, -120.0])
def test_what_is_called_negligible_is(number, halved):
    """Around -72 the change is as large as the slack: in many digits it is below wherever it is said to be."""
    graph = _attention(_masks(number), halved=halved)
    hidden = Hidden.of(graph)
    assert hidden is not None
    torch.manual_seed(0)
    scale = torch.logspace(-2, 0.5, 40, dtype=torch.float64)[:, None, None]
    centre = scale * torch.randn(40, TOKENS, WIDTH, dtype=torch.float64)
    lower, upper = centre - 0.05 * scale, centre + 0.05 * scale
    accepted = hidden.negligible(lower, upper)
    if number in (-60.0, -120.0):
        assert bool(accepted.any()) == (number == -120.0)
    softmax, factor = (
        next(i for i, n in enumerate(graph.nodes) if isinstance(n.operator, Softmax)),
        0.5 if halved else 1,
    )
    with ctx.workprec(300):
        for i in accepted.nonzero()[:, 0].tolist():
            for part in (torch.rand(TOKENS, WIDTH), torch.randint(0, 2, (TOKENS, WIDTH))):
                found = graph.values((lower[i] + part * (upper[i] - lower[i]))[None])
                logits, value = found[graph.nodes[softmax].inputs[0]][0], found[2][0]
                for row, mask in zip(logits.tolist(), _masks(number).tolist()):
                    assert factor * _change(row, mask, value.tolist()) <= SLACK


def _change(logits: list[float], mask: list[float], values: list[list[float]]) -> float:
    """How much the masked tokens move one row of the product at most."""
    weights = [(arb(x) + arb(m)).exp() for x, m in zip(logits, mask)]
    seen = [w if m == 0 else arb(0) for w, m in zip(weights, mask)]
    changes = [w / sum(weights) - s / sum(seen) for w, s in zip(weights, seen)]
    totals = (sum(c * arb(v) for c, v in zip(changes, column)) for column in zip(*values))
    return max(float(abs(total).upper()) for total in totals)


@pytest.mark.parametrize(("slack", "eps"), [(0.05, 0.02), (0.3, 1e-9)])
def test_a_value_off_by_the_slack_stays_inside_all_bounds(slack, eps):
    graph = _attention(_masks(-torch.inf), slack)
    centre = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    region = Perturbation(eps).around(centre)
    bounds, last = LinearBounds(graph, region, Linear()), len(graph.nodes) - 1
    rows = torch.randn(6, TOKENS, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    never = torch.full((12,), torch.inf, dtype=torch.float64)
    both = rows[:, None].expand(-1, 2, -1, -1)
    lower, upper = bounds.between(last, both)
    found = {
        "contracted": bounds.lower(last, both, contract=True),
        "both sides": torch.maximum(lower, -bounds.between(last, -both)[1]),
        "second order": SecondOrderBounds.of(bounds)
        .lower(rows.repeat_interleave(2, 0), torch.arange(2).repeat(6), 4, never)
        .reshape(6, 2),
    }
    intervals = interval_bounds(graph, (region.lower, region.upper))[-1]
    torch.manual_seed(0)
    for _ in range(200):
        x = centre + eps * torch.sign(torch.randn(2, TOKENS, WIDTH, dtype=torch.float64))
        off = slack * torch.sign(torch.randn(2, TOKENS, WIDTH, dtype=torch.float64))
        y = graph.evaluate(x, lambda node, _, value: value + off if isinstance(node.operator, Near) else value)  # noqa: B023
        assert bool((intervals[0] <= y).all() and (y <= intervals[1]).all())
        margins = torch.einsum("sij,bij->sb", rows, y)
        assert bool((margins <= upper).all())
        for name, low in found.items():
            assert bool((margins >= low).all()), name
    plain = LinearBounds(_attention(_masks(-torch.inf)), region, Linear())
    assert bool((plain.lower(last - 1, both) > lower).all())


def test_a_function_that_intervals_leave_the_domain_of_keeps_the_masks():
    """``1 / (1 + x - x)`` is defined everywhere, which intervals do not see on the second box."""
    b = GraphBuilder((TOKENS, WIDTH))
    same = b.scale(b.difference(b.linear(-1, torch.eye(WIDTH, dtype=torch.float64)), -1), 1.0, 1.0)
    logits = b.matmul(b.elementwise(Reciprocal(), same), b.transpose(-1, (1, 0)))
    graph = b.finish(b.matmul(b.add(Softmax(1, _masks(-1e9)), logits), -1))
    hidden = Hidden.of(graph)
    assert hidden is not None
    lower = torch.zeros(3, TOKENS, WIDTH, dtype=torch.float64)
    upper = lower + torch.tensor([0.1, 3.0, 0.1], dtype=torch.float64)[:, None, None]
    assert hidden.negligible(lower, upper).tolist() == [True, False, True]


def test_probabilities_that_go_elsewhere_keep_their_masks():
    assert Hidden.of(_attention(_masks(-1e9), output="probabilities")) is None
    assert Hidden.of(_attention(_masks(-1e9), output="both")) is None
    assert Hidden.of(_attention(_masks(-torch.inf))) is None
    every = torch.full((TOKENS, TOKENS), -1e9, dtype=torch.float64)
    assert Hidden.of(_attention(every)) is None  # a row that masks all of its logits has no visible ones


def test_what_is_hidden_is_not_computed():
    hidden = Hidden.of(_attention(_masks(-1e9)))
    assert hidden is not None
    (product,) = (n for n in hidden.graph.nodes if isinstance(n.operator, Softmax))
    assert product.shape == (TOKENS, 3)
    x = torch.randn(3, TOKENS, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(hidden.graph(x), hidden.whole(x), rtol=1e-14, atol=1e-14)
