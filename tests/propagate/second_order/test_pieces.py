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

    def variance(p, weights):
        c = torch.eye(K, dtype=p.dtype) - p[..., None, :]
        return (weights * reach(c)[1].square()).sum(-1)

    found = affine_probabilities(at, differences, directions, reach, variance)
    assert bool((found.slope.sum(-1).abs() < 1e-12).all())
    for i in range(60):
        share = torch.from_numpy(rng.uniform(-1, 1, size=at.shape))
        x = at + half * (share.sign() if i % 2 else share)
        claimed = found.value + (found.slope @ (x - at)[..., None])[..., 0]
        assert bool(((x.softmax(-1) - claimed).abs() <= found.error + ROUNDING).all())
    if width < 1:
        assert bool((found.error < 0.25 * width).all())


def _noise(rng, shape, norm, inputs):
    """Noise at the rim of what is possible: the first of it in a ball, often at a corner."""
    eps = torch.from_numpy(rng.uniform(-1, 1, size=shape)).sign()
    own = torch.from_numpy(rng.normal(size=(*shape[:-1], inputs)))
    if norm == 2:
        eps[..., :inputs] = own / own.norm(dim=-1, keepdim=True)
    elif norm == 1:
        own = own * torch.from_numpy(rng.uniform(size=own.shape) < 0.4)
        eps[..., :inputs] = own / own.abs().sum(-1, keepdim=True).clamp(min=1e-300)
    return eps


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("scale", [0.0, 1e-160, 1e-8, 1.0, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lengths_are_no_shorter(norm, scale, dtype):
    rng = np.random.default_rng(2)
    slopes, noise = (scale * _numbers(rng, 3, 4, 11)).to(dtype), Noise(8, norm)
    most = noise.length(slopes).double()
    for _ in range(200):
        eps = _noise(rng, (3, 11), norm, 8)
        value = (slopes.double() @ eps[..., None])[..., 0]
        unit = scale or 1.0  # squares of tiny numbers vanish
        assert bool(((value / unit).norm(dim=-1) * (1 - 1e-15) <= most / unit).all())
    if norm == 2:  # the length is attained, up to the noise outside the ball
        singular = torch.linalg.svdvals(slopes[..., :8].double())[..., 0]
        others = slopes[..., 8:].double().abs().sum(-1).norm(dim=-1)
        assert bool((most <= (singular + others) * (1 + 1e-3) + 1e-17).all())


@pytest.mark.parametrize("norm", [2, 1])
@pytest.mark.parametrize("width", [1e-6, 0.3, 2.0, 30.0])
def test_affine_probabilities_know_the_logits_together(norm, width):
    """Logits that share a ball: nothing is violated, and the error is below that of the box around them."""
    rng = np.random.default_rng(3)
    K, inputs, noise = 9, 20, Noise(20, norm)
    at, slopes = _numbers(rng, 2, 3, K), width * _numbers(rng, 2, 3, K, inputs + 2) / math.sqrt(inputs)
    slopes[..., inputs:] *= 0.01

    def reach(c):
        radius = noise.radius(c @ slopes)
        return -radius, radius

    def variance(p, weights):
        c = torch.eye(K, dtype=p.dtype) - p[..., None, :]
        return noise.length(weights.sqrt()[..., None] * (c @ slopes)).square()

    eye = torch.eye(K, dtype=at.dtype)
    apart = noise.radius((eye[:, None] - eye) @ slopes[..., None, :, :])
    middle = at[..., :, None] - at[..., None, :]
    found, alone = (
        affine_probabilities(at, (middle - apart, middle + apart), tangent_directions(at), reach, together)
        for together in (variance, lambda p, weights: torch.full_like(p[..., 0], math.inf))
    )
    assert bool((found.error <= alone.error).all())
    if width == 0.3:
        assert bool((found.error < 0.8 * alone.error).any())
    for i in range(200):
        s = (slopes @ _noise(rng, (2, 3, inputs + 2), norm, inputs)[..., None])[..., 0] * (
            rng.uniform() if i % 2 else 1
        )
        claimed = found.value + (found.slope @ s[..., None])[..., 0]
        assert bool((((at + s).softmax(-1) - claimed).abs() <= found.error + ROUNDING).all())


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

    def variance(p, weights):
        apart = torch.stack([x - at - (p * (x - at)).sum(-1, keepdim=True) for x in points])
        return (weights * apart.square()).sum(-1).amax(0) * (1 + ROUNDING)

    found = affine_probabilities(at, differences, tangent_directions(at), reach, variance)
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
@pytest.mark.parametrize("width", [1e-308, 1e-9, 1e-3, 0.5, 3.0])
@pytest.mark.parametrize("priced", [False, True])
def test_fitted_rows_stay_below(m, width, priced):
    rng = np.random.default_rng(m)
    N = 2
    A, at = 3 * _numbers(rng, N, m + 1), _numbers(rng, N, m + 1)
    lower = -width * torch.from_numpy(rng.uniform(0.2, 1, size=(N, m)))
    upper = width * torch.from_numpy(rng.uniform(0.2, 1, size=(N, m)))
    apart = lower[:, :, None] - upper[:, None, :], upper[:, :, None] - lower[:, None, :]
    point = lower + 0.3 * (upper - lower)
    price = torch.from_numpy(rng.uniform(0, 4, size=A.shape) * (rng.uniform(size=A.shape) < 0.8)) if priced else None
    fit = fit_rows(A, at, lower, upper, apart, point, price)
    assert bool(fit.value.isfinite().all())
    closest = torch.full((N,), math.inf, dtype=A.dtype)
    for i in range(120):
        share = torch.from_numpy(rng.uniform(0, 1, size=(N, m)))
        y = lower + (share.round() if i % 4 == 0 else share) * (upper - lower)
        p = (at + torch.nn.functional.pad(y, (0, 1))).softmax(-1)
        phi = (A * p).sum(-1)
        if price is not None:
            phi = phi - (price * (p - fit.level - (fit.lines @ y[..., None])[..., 0]).square()).sum(-1)
        claimed = fit.value + (fit.slope * y).sum(-1) + (y * (fit.matrix @ y[..., None])[..., 0]).sum(-1)
        assert bool((claimed <= phi + ROUNDING).all())
        closest = torch.minimum(closest, phi - claimed)
    assert bool((closest < 0.15 * (A.amax(-1) - A.amin(-1))).all())


def test_the_figure_is_drawn(tmp_path):
    out = tmp_path / "margins.png"
    run = CliRunner().invoke(plot, ["margins", "--radii", "2", "--eps", "0.01", "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert out.read_bytes().startswith(b"\x89PNG")
