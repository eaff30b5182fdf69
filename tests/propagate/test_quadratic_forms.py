"""Quadratic forms: whatever they say holds, without tolerance, and they say more than affine ones."""

from __future__ import annotations

import math
from contextlib import closing
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from softhull.graph.builder import GraphBuilder
from softhull.graph.graph import Graph
from softhull.graph.ops.clip import Clip
from softhull.graph.ops.normalize import InverseDeviation, Normalized
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax
from softhull.propagate import quadratic_rules
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Linear
from softhull.propagate.quadratic_forms import QuadraticForms, output_form
from softhull.propagate.quadratics import Rest, trace
from softhull.propagate.second_order.affine_form import AffineForm
from softhull.propagate.second_order.rules import NoAffineForms
from softhull.propagate.zonotopes import known_by_forms
from softhull.regions import Perturbation, Region
from tests.propagate.checks import points_of
from tests.propagate.test_shadow import encoder, one_token
from tests.propagate.test_zonotopes import held


def known_by_quadratic_forms(bounds: LinearBounds) -> LinearBounds:
    """The same bounds, which know all that forms say."""
    output_form(bounds)
    return bounds


def violations(graph: Graph, region: Region, seed: int) -> int:
    """How many sampled values lie outside of all that forms made known, and of what they say of rows of the output."""
    bounds, last = known_by_quadratic_forms(LinearBounds(graph, region, Linear())), len(graph.nodes) - 1
    points = points_of(region, seed, 200)[:, 0]
    values, count = graph.values(points), 0

    def outside(least: Tensor, value: Tensor, most: Tensor) -> int:
        seen = (most > least + 1e-12).expand(value.shape)  # of what does not move the value is as rounded as its bounds
        return int((~((least <= value) & (value <= most)) & seen).sum())

    def known(kind: str) -> dict[int, Any]:
        return {i: bounds.knowledge.find(kind, i, dict) for i in bounds.knowledge.known(kind)}

    for index, (low, high) in known("interval").items():
        count += outside(low, values[index], high)
    for index, found in known("shadow").items():
        if found is not None:
            x = points.flatten(1)[:, found.moving]
            least, most = (
                x @ a[0].T + b for a, b in ((found.below, found.below_offset), (found.above, found.above_offset))
            )
            count += outside(least, values[index].flatten(1), most)
    for index, (low, high) in known("differences").items():
        logits = values[graph.nodes[index].inputs[0]]
        rows = logits.reshape(len(points), -1, logits.shape[-1])
        count += outside(low, rows[..., :, None] - rows[..., None, :], high)
    C = torch.randn((4, 1, *graph.output_shape), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    C = torch.cat((C, -C))
    met = torch.einsum("sk,pk->ps", C.flatten(1), values[last].flatten(1))
    forms = output_form(bounds)
    for least in (bounds.lower(last, C), *(forms._least_from(last, C, cut) for cut in forms._cuts)):
        count += outside(least[:, 0], met, torch.full_like(least[:, 0], math.inf))
    return count


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_forms_hold(norm: float) -> None:
    rng = np.random.default_rng(4)
    for depth, centred in ((1, False), (2, True)):
        graph = encoder(rng, depth, centred, 2, 4)
        for eps in (1e-6, 0.3) if depth == 1 else (0.05, 30.0) if norm == math.inf else (0.3,):
            assert violations(graph, one_token(rng, graph, eps, norm), depth) == 0


def test_forms_of_random_networks_hold() -> None:
    assert held(violations, 24) > 8


def tenth(found: Any) -> Any:
    return 0.1 * found


def fifth_of_what_bounds(found: tuple[AffineForm | Tensor, Tensor]) -> Any:
    return found[0], 0.2 * found[1]


PLANTED = [
    (QuadraticForms, "squared", fifth_of_what_bounds),
    (QuadraticForms, "_between", fifth_of_what_bounds),
    (QuadraticForms, "noise_in", tenth),
    (QuadraticForms, "_by_eigenvalues", lambda found: (found[0], 0.1 * found[1])),
    (QuadraticForms, "weights", lambda found: (0.1 * found[0], 0.1 * found[1])),
    (QuadraticForms, "around", lambda found: (0.0 * found[0], found[1])),
    (quadratic_rules, "_log_mean", lambda found: AffineForm(found.centre, 0.0 * found.slope, found.error)),
    (quadratic_rules, "_mean_square", fifth_of_what_bounds),
]


@pytest.mark.parametrize(("owner", "name", "less"), PLANTED, ids=[name for _, name, _ in PLANTED])
def test_a_planted_error_is_found(owner: Any, name: str, less: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of what is charged is left out, and sampled values tell."""
    true_rule = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given: less(true_rule(*given)))
    rng = np.random.default_rng(5)
    graph = encoder(rng, 2 if name == "weights" else 1, True)
    assert any(violations(graph, one_token(rng, graph, eps, math.inf), 5) for eps in (0.2, 0.5, 0.05, 0.3, 0.1))


def numbered_rows(seed: int, norm: float, scale: float) -> tuple[QuadraticForms, Tensor, Rest, Tensor, Tensor]:
    """Forms of four inputs with fresh numbers: twenty alone, a group and a ball, which differ in size.

    With points ``[p, 5]``, 1 and what moves; four entries, their slopes over the numbers, and the numbers ``[p, 27]``
    at their worst.
    """
    b = GraphBuilder((1, 4))
    graph = b.finish(b.elementwise(Relu(), b.scale(-1, 1.0, 0.0)))
    region = Perturbation(1.0, norm).around(torch.zeros(1, 1, 4).double())
    forms, draw = QuadraticForms(LinearBounds(graph, region, Linear())), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=draw)

    def kept(metrics: Tensor) -> Tensor:
        metrics = metrics / forms.most(metrics)[:, None, None]
        forms._keep(metrics)
        return metrics

    t = torch.cat((2 * torch.rand(400, 4, dtype=torch.float64, generator=draw) - 1, normal(400, 4).sign()))
    t = t / t.norm(norm, 1, keepdim=True).clamp(min=1)
    ones = torch.cat((torch.ones_like(t[:, :1]), t), 1)
    roots = normal(20, 5, 2) * 10 ** normal(20, 1, 1).clamp(-2, 0)
    metrics = roots @ roots.mT
    if norm < math.inf:
        metrics[::2] = torch.diag(torch.tensor([1.0, -1, -1, -1, -1], dtype=torch.float64))
    worst = [along(kept(metrics), ones) * normal(len(t), 20).sign()]
    forms.groups.append((20, roots[0] @ roots[0].T / forms.most((roots[0] @ roots[0].T)[None])))
    forms.balls.append((24, 27))
    forms._keep(metrics.new_zeros(7, 5, 5))
    worst.append(t * along(forms.groups[0][1][None], ones) * normal(len(t), 1).sign())
    worst.append(torch.nn.functional.normalize(normal(len(t), 3), dim=1) * (1 - 1e-9))
    slope = 0.3 * scale * normal(27, 4) * 10 ** normal(27, 1).clamp(-2, 0)
    linear, square = scale * normal(4, 4), 0.2 * scale * normal(4, 4, 4)
    square = square + square.mT
    noise, (shift, curve) = forms.noise_in(slope), forms.around(square)
    entries = Rest(linear, square, noise, curve, shift, forms.noise.radius(linear), forms.most(noise + curve))
    return forms, ones, entries, slope, torch.cat(worst, 1)


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_quadratics_around_numbers(share: float, norm: float) -> None:
    """In exact arithmetic at corners, in between and at 0: diagonals, single squares, sums, of all sizes."""
    forms, ones, *_ = numbered_rows(1, norm, 1.0)
    draw = torch.Generator().manual_seed(3)
    lines = torch.randn(12, 4, dtype=torch.float64, generator=draw)
    eye = torch.eye(4, dtype=torch.float64)
    kinds = [eye.expand(12, 4, 4), lines[:, :, None] * lines[:, None], torch.diag_embed(lines)]
    square = torch.cat([*kinds, kinds[0] + 0.1 * kinds[1], kinds[0] - kinds[1] / 2, 0 * kinds[1]])
    square = square * (10.0 ** torch.randint(-150, 90, (len(square), 1, 1), generator=draw).double())
    shift, found = forms.around(square)
    points = torch.cat((ones[:4], ones[-4:], ones[:1] * torch.tensor([1.0, 0, 0, 0, 0])))
    missed = 0
    for t in points.tolist():
        both = [[Fraction(x) * Fraction(y) for y in t] for x in t]
        for k in range(len(square)):
            value, most = (
                sum(Fraction(m) * b for row, others in zip(rows, of) for m, b in zip(row, others))
                for rows, of in ((square[k].tolist(), [row[1:] for row in both[1:]]), (found[k].tolist(), both))
            )
            missed += abs(value - Fraction(float(shift[k]))) > Fraction(share) * most
    assert (missed == 0) == (share == 1)


def test_errors_meet_factors_that_are_shifted() -> None:
    """Noise that is too small for a number of its own is an error, and grows: times a square that counts from 3."""
    b, column = GraphBuilder((1, 3)), torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)
    one, three = (torch.tensor([[-size]], dtype=torch.float64) for size in (1.0, 3.0))
    u = b.linear(-1, torch.eye(3, 2, dtype=torch.float64))
    y = b.scale(b.matmul(u, b.transpose(u, (1, 0))), 1.0, three)  # t1^2 + t2^2 - 3
    above = b.elementwise(Clip(0.0, math.inf), b.linear(-1, 4e-154 * column))
    x = b.scale(b.sum_of(above, b.linear(-1, -2e-154 * column)), 1e154, one)  # 2 |t3| - 1
    product = b.matmul(x, y)
    graph = b.finish(b.scale(product, 1.0, 0.0))
    bounds = LinearBounds(graph, Perturbation(1.0).around(torch.zeros(1, 1, 3).double()), Linear())
    with closing(output_form(bounds)):
        low, high = bounds.interval(product)
        for last, true in ((1.0, -3.0), (0.0, 3.0)):
            assert float(graph(torch.tensor([[[0.0, 0.0, last]]], dtype=torch.float64))) == true
            assert float(low) <= true <= float(high)


def along(matrices: Tensor, ones: Tensor) -> Tensor:
    """Quadratics ``[E, q, q]`` at points ``[p, q]``, ``[p, E]``."""
    return torch.einsum("pi,eij,pj->pe", ones, matrices, ones)


@pytest.mark.parametrize("scale", [1.0, 1e-79])
@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_rows_by_their_numbers(share: float, norm: float, scale: float) -> None:
    """Mean squares, and noise times deviations of one number, with numbers at their worst; less is not enough."""
    missed = 0
    for seed in range(6):
        forms, ones, x, slope, numbers = numbered_rows(seed, norm, scale)
        beside = torch.einsum("pi,eij,pj->pe", ones[:, 1:], x.square, ones[:, 1:]) + numbers @ slope
        middle, half = quadratic_rules._mean_square(forms, x, slope)
        true = (ones[:, 1:] @ x.linear.T + beside).square().mean(1)
        missed += int(((true - along(middle[None], ones)[:, 0]).abs() > share * along(half[None], ones)[:, 0]).sum())
        inner, which, shared = quadratic_rules._number_by_number(forms, slope, x, x, 0)
        assert bool((which < 20).all())  # those alone
        deviation = (ones[:, 1:] @ x.linear[0] + along(x.beside, ones)[:, 0])[:, None]
        most = along(inner, ones) + along(shared, ones) @ slope[which].abs()
        missed += int(((deviation * (beside - x.shift)).abs() > share * most).sum())
        missed += int(((numbers[:, which] * deviation).abs() > share * along(shared, ones)).sum())
    assert (missed == 0) == (share == 1)


def test_they_say_more_than_affine_forms() -> None:
    """Where third order is small, ranges are narrower by far behind products."""
    rng = np.random.default_rng(8)
    graph = encoder(rng, 2, True)
    region, last = one_token(rng, graph, 0.05, math.inf), len(graph.nodes) - 1
    widths = []
    for make in (known_by_forms, known_by_quadratic_forms):
        low, high = make(LinearBounds(graph, region, Linear())).interval(last)
        widths.append(float((high - low).mean()))
    assert widths[1] < 0.8 * widths[0]


def test_quadratics_are_exact_and_rectifiers_close() -> None:
    """A square is a quadratic: nothing is lost but what the quadratic is bounded by; stable rectifiers lose nothing."""
    b = GraphBuilder((1, 3))
    graph = b.finish(b.elementwise(Relu(), b.scale(-1, 1.0, 5.0)))
    bounds = known_by_quadratic_forms(
        LinearBounds(graph, Perturbation(0.5).around(torch.zeros(1, 1, 3).double()), Linear())
    )
    low, high = bounds.interval(1)
    assert torch.allclose(low, torch.full_like(low, 4.5), atol=1e-9)
    assert torch.allclose(high, torch.full_like(high, 5.5), atol=1e-9)


def test_wide_rows_end_at_the_normalised_ball() -> None:
    """However large the region is, what a row of weights makes of normalised rows is at most that of the ball."""
    rng = np.random.default_rng(8)
    graph = encoder(rng, 2, True)
    last = max(i for i, node in enumerate(graph.nodes) if isinstance(node.operator, Normalized))
    C = torch.tensor([1.0, -1.0], dtype=torch.float64).reshape(1, 1, *graph.output_shape)
    matrix = graph.nodes[-1].operator.matrix  # type: ignore[attr-defined]
    limit = math.sqrt(graph.nodes[last].shape[-1]) * float((matrix @ C.flatten()).norm())
    for eps in (1.0, 1e3, 1e6):
        bounds = known_by_quadratic_forms(LinearBounds(graph, one_token(rng, graph, eps, math.inf), Linear()))
        assert float(output_form(bounds).lower(len(graph.nodes) - 1, C)) >= -limit - 1e-9


@pytest.mark.parametrize("scale", [1e-165, 1e-160, 1e-130, 1e140])
def test_numbers_whose_squares_vanish(scale: float) -> None:
    """Rectifiers of tiny or huge numbers, brought back: what is said of them holds, or there are no forms."""
    rng = np.random.default_rng(3)
    b = GraphBuilder((1, 4))
    weights = torch.from_numpy(rng.normal(size=(4, 6)))
    y = b.scale(b.elementwise(Relu(), b.scale(b.linear(-1, weights), scale, 0.0)), 1 / scale, 0.0)
    graph = b.finish(b.linear(y, torch.from_numpy(rng.normal(size=(6, 2)))))
    region = Perturbation(0.5).around(torch.from_numpy(rng.normal(size=(1, 1, 4))))
    try:
        assert violations(graph, region, 3) == 0
    except NoAffineForms:
        assert scale < 1e-140 or scale > 1e139


@pytest.mark.parametrize("scale", [1e-54, 3e-54, 1e46, 1e52])
def test_mean_squares_whose_powers_vanish_or_overflow(scale: float) -> None:
    """Normalised rows of tiny or huge numbers: what is said of them holds, or there are no forms."""
    b = GraphBuilder((1, 4))
    z = b.scale(-1, scale, 0.0)
    r = b.add(InverseDeviation((1,), 1e-109), z)
    graph = b.finish(b.add(Normalized((1, 4), (1, 1), (1,), 1e-109), z, r))
    region = Perturbation(0.3).around(torch.tensor([[[1.0, -0.5, 0.25, 2.0]]], dtype=torch.float64))
    try:
        assert violations(graph, region, 3) == 0
    except NoAffineForms:
        assert not 1e-45 < scale < 1e45


def test_what_is_not_a_number_bounds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that overflowed on the way are no bounds, wherever they are met with others."""
    rng = np.random.default_rng(4)
    graph = encoder(rng, 1, True, 2, 4)
    forms = output_form(LinearBounds(graph, one_token(rng, graph, 0.1, math.inf), Linear()))
    last = len(graph.nodes) - 1
    C = torch.ones(1, 1, *graph.output_shape, dtype=torch.float64)
    monkeypatch.setattr(forms, "noise_in", lambda slope: torch.full((slope.shape[1], 5, 5), math.nan))
    assert bool(forms.lower(last, C).isfinite().all())
    assert all(bool((forms._least_from(last, C, cut) == -math.inf).all()) for cut in forms._cuts)


def test_probabilities_far_below_others() -> None:
    """The exponent of a logit hundreds below the largest is rounded by itself, against sixty digits."""
    b = GraphBuilder((1, 3))
    graph = b.finish(
        b.elementwise(Softmax(1), b.scale(-1, 1.0, torch.tensor([0.0, 0.25, -520.0], dtype=torch.float64)))
    )
    region = Perturbation(1e-8).around(torch.zeros(1, 1, 3, dtype=torch.float64))
    forms = output_form(LinearBounds(graph, region, Linear()))
    C = torch.tensor([[[[0.0, 0.0, 1.0]]], [[[0.0, 0.0, -1.0]]]], dtype=torch.float64)
    low, high = (
        Decimal(end) for end in (forms.lower(len(graph.nodes) - 1, C)[:, 0] * torch.tensor([1.0, -1.0])).tolist()
    )
    with localcontext(prec=60):
        eps = [Decimal(sign * 1e-8) for sign in (-1, 1)]
        shift = (Decimal(0), Decimal("0.25"), Decimal(-520))
        for e in eps:
            terms = [(part + e * (-1 if k < 2 else 1)).exp() for k, part in enumerate(shift)]
            assert low <= terms[2] / sum(terms) <= high


def test_traces_are_means_over_corners() -> None:
    matrix = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 2)
    corners = torch.cat((torch.ones(4, 1, dtype=torch.float64), corners), 1)
    values = torch.einsum("pi,ij,pj->p", corners, matrix, corners)
    assert float((trace(matrix) - values.mean()).abs()) < 1e-12
