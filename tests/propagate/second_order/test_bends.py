"""Rectifiers bent together: the quadratics are above, forms hold what they are of, bounds hold, and they gain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import SecondOrder
from softhull.propagate.second_order.affine_form import centre_and_radius
from softhull.propagate.second_order.bends import Rectifiers, above, best_bends, best_bends_over_pairs
from softhull.propagate.second_order.rectified import bent_lower, rectified
from softhull.propagate.second_order.specification import SecondOrderBounds
from softhull.regions import Perturbation
from tests.propagate.second_order.test_sharpen import NORMS, attention, inside

EPS = {math.inf: 0.1, 2: 0.4, 1: 0.6}


def test_quadratics_above_touch_and_are_convex_in_the_bend():
    rng = np.random.default_rng(0)
    low, high = (torch.from_numpy(sign * 10.0 ** rng.uniform(-2, 1, 200)) for sign in (-1, 1))
    scale = 1 / (high - low)
    k = scale * torch.from_numpy(10.0 ** rng.uniform(-3, 2, 200))
    x = low + torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None] * (high - low)

    def at(k):
        a, b, c = above(k, low, high).value
        return a + b * x + c * x.square()

    slack = at(k) - x.clamp(min=0)
    assert bool((slack >= -1e-12 * (high - low)).all())
    assert bool((slack.amin(0) < 1e-3 * (high - low)).all())
    step = 1e-4 * k
    first = above(k, low, high).first
    slopes = first[0] + first[1] * x + first[2] * x.square()
    assert torch.allclose((at(k + step) - at(k - step)) / (2 * step), slopes, rtol=1e-4, atol=1e-6)
    assert bool((at(k + step) + at(k - step) - 2 * at(k) >= -1e-10 * at(k).abs() - 1e-12).all())


@pytest.mark.parametrize("over", ["l_2", "l_inf", "l_1"])
def test_together_they_cost_less_than_one_by_one(over):
    """With orthogonal slopes, the sum of m rectifiers is far from m times the largest on a ball, and equal in a box."""
    m = 16
    eye = torch.eye(m, dtype=torch.float64)
    ones, none = torch.ones(m, dtype=torch.float64), torch.zeros(m, dtype=torch.float64)
    met = Rectifiers(-ones, none, eye, -ones, ones)
    zero = torch.zeros((), dtype=torch.float64)
    if over == "l_1":
        found = best_bends_over_pairs(zero, none, 0 * eye, met, none, none, 60, math.inf)
        exact = -1.0
    else:
        groups = torch.arange(m) if over == "l_inf" else torch.zeros(m, dtype=torch.long)
        found = best_bends(zero, none, 0 * eye, met, groups, none, 60, math.inf)
        exact = -m if over == "l_inf" else -math.sqrt(m)
    assert found is not None
    assert found.value <= exact + 1e-6
    # Nothing is lost in a box and an l_2 ball; chords would lose m / 2 beside what is linear.
    assert found.value >= (-m / 4 if over == "l_1" else 1.01 * exact)
    assert bool((found.bend > 0).all())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("clip", [None, (-1.0, 1.0)])
def test_forms_and_bounds_hold_and_gain(norm, clip):
    rng = np.random.default_rng(2)
    graph, eps = attention(rng), EPS[norm]
    x = torch.from_numpy(rng.normal(size=(2, *graph.input_shape)))
    x = x if clip is None else x.clamp(*clip)
    rows = torch.tensor([[[1.0, -1, 0]], [[0, 1, -1]]], dtype=torch.float64)
    never = torch.full((2,), math.inf, dtype=torch.float64)
    points = inside(rng, x, eps, norm)
    points = points if clip is None else points.clamp(*clip)
    gained = []
    with torch.no_grad():
        for i in range(2):
            region = Perturbation(eps, norm=norm, clip=clip).around(x[i : i + 1])
            assert (region.at_edge is not None) == (clip is not None and norm != math.inf)
            second = SecondOrderBounds.of(LinearBounds(graph, region, SecondOrder().linear))
            bent = rectified(second)
            assert bent is not None
            values = graph.values(points[:, i])
            centre, radius = centre_and_radius(region)
            noise = ((points[:, i] - centre) / radius).flatten(1)
            inputs, known = second.forms.noise.inputs, second.forms.noise_count
            for index, (form, _) in bent.forms.rectified.items():
                slope = form.slope[0].flatten(1)
                near = form.centre.flatten() + noise @ slope[:inputs]
                # Noise beyond the input is anything: that of the form's own entries, and of what it was made from.
                beyond = slope[inputs:known].abs().sum(0) + slope[known:].abs().sum(0) + form.error.flatten()
                lower, upper = (end.flatten() for end in second.bounds.interval(graph.nodes[index].inputs[0]))
                crossing = (lower < 0) & (upper > 0)
                off = (values[graph.nodes[index].inputs[0]].flatten(1) - near).abs() - beyond
                assert bool((off[:, crossing] <= 0).all())
            low = bent_lower(bent, rows, never)
            least = (values[-1].flatten(1)[:, None] * rows.flatten(1)).sum(-1).amin(0)
            assert bool((low <= least).all())
            plain = second.lower(rows, torch.zeros(2, dtype=torch.long), 12, never)
            assert bool((low >= plain - 1e-3 * (1 + plain.abs())).all())
            gained.append(low - plain)
    assert bool((torch.cat(gained) > 1e-3).any())
