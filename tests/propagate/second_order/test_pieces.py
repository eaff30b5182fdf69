"""The pieces alone: bands around curves, affine probabilities, ranges of products, rows fitted by quadratics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from softhull.cli.plot import command as plot
from softhull.graph.ops.exp import Exp
from softhull.graph.ops.relu import LeakyRelu, Relu
from softhull.graph.ops.sigmoid import Sigmoid
from softhull.graph.ops.square import Square
from softhull.propagate.second_order.affine_form import Basis, Noise
from softhull.propagate.second_order.elementwise import parallel_band
from softhull.propagate.second_order.probabilities import affine_probabilities, tangent_directions
from softhull.propagate.second_order.remainders import Gauge
from softhull.propagate.second_order.row_fit import CELLS, fit_rows

ROUNDING = 1e-12


def _numbers(rng, *shape):
    return torch.from_numpy(rng.normal(size=shape))


@pytest.mark.parametrize("operator", [Relu(), LeakyRelu(0.1), LeakyRelu(3.0), Sigmoid(), Square(), Exp()])
def test_bands_hold_the_curve(operator):
    rng = np.random.default_rng(0)
    for width in (0.0, 1e-9, 0.1, 3.0):
        lower = _numbers(rng, 1, 50)
        upper = lower + width
        rate, middle, radius = parallel_band(operator, lower, upper)
        for share in np.linspace(0, 1, 21):
            x = (lower + share * width).clamp(max=upper)
            apart = (operator.value(x) - rate * x - middle).abs()
            assert bool((apart <= radius + ROUNDING).all())


def test_the_band_of_a_rectifier_is_the_narrowest():
    _, _, radius = parallel_band(Relu(), torch.tensor([[-1.0]]).double(), torch.tensor([[3.0]]).double())
    assert float(radius) == pytest.approx(3 / 8)


@pytest.mark.parametrize("K", [2, 3, 5, 12])
@pytest.mark.parametrize("width", [1e-6, 0.3, 2.0, 30.0])
def test_affine_probabilities_hold(K, width):
    rng = np.random.default_rng(K)
    at = 2 * _numbers(rng, 3, 4, K)
    half = width * torch.from_numpy(rng.uniform(0.1, 1, size=at.shape))
    lower, upper = at - half, at + half
    differences = lower[..., :, None] - upper[..., None, :], upper[..., :, None] - lower[..., None, :]
    directions = tangent_directions(at)

    def reach(c):
        radius = (c.abs() * half[..., None, :]).sum(-1)
        return -radius, radius

    found = affine_probabilities(at, differences, directions, reach)
    assert bool((found.slope.sum(-1).abs() < 1e-12).all())
    for i in range(60):
        share = torch.from_numpy(rng.uniform(-1, 1, size=at.shape))
        x = at + half * (share.sign() if i % 2 else share)
        claimed = found.value + (found.slope @ (x - at)[..., None])[..., 0]
        assert bool(((x.softmax(-1) - claimed).abs() <= found.error + ROUNDING).all())
    if width < 1:
        assert bool((found.error < 0.25 * width).all())


@pytest.mark.parametrize("K", [2, 3, 5, 12])
@pytest.mark.parametrize("width", [0.3, 2.0, 30.0])
def test_affine_probabilities_use_differences_that_were_cut(K, width):
    """Every point claimed about has the differences; they hold on one side of the point of expansion only."""
    rng = np.random.default_rng(K)
    at = 2 * _numbers(rng, 3, 4, K)
    half = width * torch.from_numpy(rng.uniform(0.1, 1, size=at.shape))
    moved = at + torch.from_numpy(rng.uniform(-1, 1, size=at.shape)) * half
    points = [moved + 0.5 * half * torch.from_numpy(rng.uniform(-1, 1, size=at.shape)).sign() for _ in range(60)]
    apart = torch.stack([x[..., :, None] - x[..., None, :] for x in points])
    differences = apart.amin(0), apart.amax(0)

    def reach(c):
        nothing = torch.full(c.shape[:-1], math.inf, dtype=at.dtype)
        return -nothing, nothing

    directions = tangent_directions(at)
    found = affine_probabilities(at, differences, directions, reach)
    assert bool(found.error.isfinite().all())
    for x in points:
        claimed = found.value + (found.slope @ (x - at)[..., None])[..., 0]
        assert bool(((x.softmax(-1) - claimed).abs() <= found.error + ROUNDING).all())


@pytest.mark.parametrize("norm", [math.inf, 2])
def test_ranges_of_products_hold(norm):
    rng = np.random.default_rng(1)
    basis, noise = Basis(_numbers(rng, 2, 5, 9)), Noise(6, norm)
    P, R = _numbers(rng, 2, 3, 2, 5), _numbers(rng, 2, 3, 2, 5)
    gauge = Gauge(basis, noise)
    low, high = gauge.between(gauge.inner(P, P), gauge.inner(P, R), gauge.inner(R, R))
    for _ in range(300):
        eps = torch.from_numpy(rng.uniform(-1, 1, size=(2, 9))).sign()
        if norm == 2:
            eps[:, :6] /= math.sqrt(6)
        z = basis.values(eps)[:, None, :, None]
        product = ((P @ z) * (R @ z)).sum((-2, -1))
        assert bool(((low <= product) & (product <= high)).all())


@pytest.mark.parametrize("m", sorted(CELLS))
@pytest.mark.parametrize("width", [1e-3, 0.5, 3.0])
def test_fitted_rows_stay_below(m, width):
    rng = np.random.default_rng(m)
    N = 2
    A, at = 3 * _numbers(rng, N, m + 1), _numbers(rng, N, m + 1)
    lower = -width * torch.from_numpy(rng.uniform(0.2, 1, size=(N, m)))
    upper = width * torch.from_numpy(rng.uniform(0.2, 1, size=(N, m)))
    apart = lower[:, :, None] - upper[:, None, :], upper[:, :, None] - lower[:, None, :]
    point = lower + 0.3 * (upper - lower)
    fit = fit_rows(A, at, lower, upper, apart, point)
    assert bool(fit.value.isfinite().all())
    closest = torch.full((N,), math.inf, dtype=A.dtype)
    for i in range(120):
        share = torch.from_numpy(rng.uniform(0, 1, size=(N, m)))
        y = lower + (share.round() if i % 4 == 0 else share) * (upper - lower)
        phi = (A * (at + torch.nn.functional.pad(y, (0, 1))).softmax(-1)).sum(-1)
        claimed = fit.value + (fit.slope * y).sum(-1) + (y * (fit.matrix @ y[..., None])[..., 0]).sum(-1)
        assert bool((claimed <= phi + ROUNDING).all())
        closest = torch.minimum(closest, phi - claimed)
    assert bool((closest < 0.15 * (A.amax(-1) - A.amin(-1))).all())


def test_the_figure_is_drawn(tmp_path):
    out = tmp_path / "margins.png"
    run = CliRunner().invoke(plot, ["margins", "--radii", "2", "--eps", "0.01", "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert out.read_bytes().startswith(b"\x89PNG")
