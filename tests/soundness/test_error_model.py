"""The error model: library functions are accurate to a few units in the last place, sampled densely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, ctx

from softhull.graph.curves import OPERATIONS

# Half of what is charged: the other half pays for the operations around a function.
ALLOWED = OPERATIONS // 2

Exact = Callable[[arb], arb]
FUNCTIONS: dict[str, tuple[Exact, float, float]] = {
    "exp": (arb.exp, -80.0, 80.0),
    "expm1": (arb.expm1, -30.0, 30.0),
    "log": (arb.log, 1e-30, 1e30),
    "log1p": (arb.log1p, -0.99, 1e6),
    "tanh": (arb.tanh, -20.0, 20.0),
    "sigmoid": (lambda v: 1 / (1 + (-v).exp()), -80.0, 80.0),
    "erf": (arb.erf, -6.0, 6.0),
    "erfc": (arb.erfc, -6.0, 5.0),
    "sqrt": (arb.sqrt, 1e-30, 1e30),
    "rsqrt": (lambda v: 1 / v.sqrt(), 1e-30, 1e30),
    "reciprocal": (lambda v: 1 / v, -1e6, 1e6),
}
CASES = [("torch", name) for name in FUNCTIONS] + [
    ("numpy", name) for name in ("exp", "expm1", "log", "log1p", "tanh", "sqrt")
]


def samples(low: float, high: float, dtype: Any, count: int) -> np.ndarray:
    """Uniform and logarithmic, both signs where allowed, and the neighbourhoods of 0 and 1."""
    rng = np.random.default_rng(5)
    uniform = rng.uniform(low, high, count)
    spread = 10.0 ** rng.uniform(-20, np.log10(high), count) * rng.choice([-1, 1], count)
    near = np.concatenate([[1.0, 0.5, 2.0], 1 + rng.normal(0, 1e-3, count // 4), rng.normal(0, 1e-2, count // 4)])
    found = np.concatenate([uniform, spread, near]).astype(dtype)
    return found[(found > low) & (found < high) & (found != 0)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("library", "name"), CASES)
def test_functions_are_accurate_to_a_few_units(library: str, name: str, dtype: str) -> None:
    exact, low, high = FUNCTIONS[name]
    x = samples(low, high, dtype, 1500)
    y = getattr(torch, name)(torch.from_numpy(x)).numpy() if library == "torch" else getattr(np, name)(x)
    unit = np.finfo(dtype).eps
    before, ctx.dps = ctx.dps, 40
    try:
        for point, value in zip(x, y):
            true = exact(arb(float(point)))
            error = abs(arb(float(value)) - true)
            assert not error > ALLOWED * unit * abs(true) + np.finfo(dtype).smallest_normal, (
                float(point),
                float(value),
            )
    finally:
        ctx.dps = before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_of_products_are_off_by_less_than_one_unit_a_term(dtype: torch.dtype) -> None:
    """Matrix products and convolutions of the library, whatever the order they add in."""
    generator = torch.Generator().manual_seed(3)
    unit = torch.finfo(dtype).eps / 2
    for n in (3, 64, 700):
        a, b = (torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in ((20, n), (n, 20)))
        longer = a.double().numpy().astype(np.longdouble), b.double().numpy().astype(np.longdouble)
        error = np.abs((a @ b).double().numpy() - longer[0] @ longer[1])
        assert (error <= n * unit * (np.abs(longer[0]) @ np.abs(longer[1]))).all()
    image = torch.randn(2, 8, 12, 12, generator=generator, dtype=torch.float64).to(dtype)
    kernel = torch.randn(16, 8, 3, 3, generator=generator, dtype=torch.float64).to(dtype)
    found = torch.nn.functional.conv2d(image, kernel)
    exact = torch.nn.functional.conv2d(image.double(), kernel.double())
    size = torch.nn.functional.conv2d(image.double().abs(), kernel.double().abs())
    slack = 72 * (unit + (0 if dtype == torch.float32 else unit))
    assert bool(((found.double() - exact).abs() <= slack * size).all())
