"""One implementation, every framework: results follow the framework, dtype and device of the input."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import array_api_strict
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from softhull import BOUNDS, softmax_bounds, softmax_extrema, softmax_planes

jax.config.update("jax_enable_x64", True)

FRAMEWORKS = {"torch": torch.tensor, "jax": jnp.asarray, "strict": array_api_strict.asarray}
NAMES = [name for name in BOUNDS if name != "lse2"]

RNG = np.random.default_rng(0)
MIDDLE, HALF = RNG.normal(0, 2, (3, 5)), RNG.uniform(0.3, 1, (3, 5))
LOWER, UPPER = MIDDLE - HALF, MIDDLE + HALF
X = RNG.uniform(LOWER, UPPER)
SPAN = 0.7 * (HALF[:, :, None] + HALF[:, None, :])
DIFFERENCES = (MIDDLE[:, :, None] - MIDDLE[:, None, :] - SPAN, MIDDLE[:, :, None] - MIDDLE[:, None, :] + SPAN)


# jax compiles: without differences below, and with them the portfolio, which is made of the others.
PLAIN = [(framework, known, name) for framework in ("torch", "strict") for known in (False, True) for name in NAMES]


@pytest.mark.parametrize(("framework", "with_differences", "name"), [*PLAIN, ("jax", True, "best")])
def test_same_planes_as_numpy(framework: str, with_differences: bool, name: str) -> None:
    convert: Any = FRAMEWORKS[framework]
    known = DIFFERENCES if with_differences else None
    expected = softmax_planes(LOWER, UPPER, name, at=None if with_differences else X, differences=known, outputs=[1, 4])
    found = softmax_planes(
        convert(LOWER),
        convert(UPPER),
        name,
        at=None if with_differences else convert(X),
        differences=None if known is None else tuple(convert(d) for d in known),
        outputs=[1, 4],
    )
    for a, b in ((found.lower, expected.lower), (found.upper, expected.upper)):
        assert (a is None) == (b is None)
        if a is not None:
            for mine, theirs in zip(a.dense(), b.dense()):
                assert type(mine) is type(convert(X))
                np.testing.assert_allclose(np.asarray(mine), theirs, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(np.asarray(a.value), b.value, rtol=1e-9)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_functions_and_extrema_follow_the_framework(framework: str) -> None:
    convert: Any = FRAMEWORKS[framework]
    lower, upper, x = convert(LOWER), convert(UPPER), convert(X)
    for found, expected in zip(softmax_bounds(x, lower, upper), softmax_bounds(X, LOWER, UPPER)):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-9)
    for found, expected in zip(softmax_extrema(x, lower, upper), softmax_extrema(X, LOWER, UPPER)):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    A, b = softmax_planes(torch.tensor(LOWER, dtype=dtype), torch.tensor(UPPER, dtype=dtype)).lower.dense()
    assert A.dtype == b.dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_differentiable_in_box_and_anchor(name: str) -> None:
    arguments = tuple(torch.tensor(a, requires_grad=True) for a in (LOWER[:1], UPPER[:1], X[:1]))

    def planes(lower: torch.Tensor, upper: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = softmax_planes(lower, upper, name, at=at)
        return tuple(t for side in (found.lower, found.upper) if side is not None for t in side.dense())

    assert torch.autograd.gradcheck(planes, arguments, atol=1e-5, rtol=1e-4)


def test_differentiable_in_the_free_parameters() -> None:
    free = (torch.full((5,), 0.1), torch.full((5,), 0.05), torch.full((5,), 0.2), torch.full((5,), -0.3))
    arguments = tuple(f.double().requires_grad_() for f in free)

    def planes(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen: dict[str, Any] = dict(zip(("w", "alpha", "gamma", "tangent"), given))
        found = softmax_planes(torch.tensor(LOWER[0]), torch.tensor(UPPER[0]), **chosen)
        return found.lower.value, found.upper.value, found.lower.dense()[0]

    assert torch.autograd.gradcheck(planes, arguments, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "best"])  # the portfolio is made of the others
def test_jit_gives_the_same(name: str) -> None:
    def planes(lower: Any, upper: Any, x: Any) -> Any:
        found = softmax_planes(lower, upper, name, at=x)
        sides = [side for side in (found.lower, found.upper) if side is not None]
        return [side.value for side in sides], [side.dense() for side in sides]

    compiled = jax.jit(planes)(*(jnp.asarray(a) for a in (LOWER, UPPER, X)))
    (values, slopes), (expected_values, expected_slopes) = compiled, planes(LOWER, UPPER, X)
    for a, b in zip(jax.tree.leaves(values), jax.tree.leaves(expected_values)):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    for a, b in zip(jax.tree.leaves(slopes), jax.tree.leaves(expected_slopes)):
        # compiled, a root search runs to its last step; otherwise it stops once the value has settled
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_import_needs_the_base_dependencies_alone(tmp_path: Path) -> None:
    """A virtual environment that sees NumPy, array-api-compat and softhull, and nothing else."""
    home = tmp_path / "bare"
    venv.EnvBuilder(with_pip=False).create(home)
    site = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    installed = Path(sysconfig.get_paths()["purelib"])
    for package in ("numpy", "numpy.libs", "array_api_compat"):
        if (installed / package).exists():
            (site / package).symlink_to(installed / package)
    (site / "softhull").symlink_to(Path(__file__).parents[2] / "src" / "softhull")
    check = (
        "import sys, numpy, softhull; "
        "A, b = softhull.softmax_planes([0.0, 1.0], [1.0, 2.0]).lower.dense(); "
        "heavy = {'torch', 'jax', 'cvxpy', 'highspy', 'onnx', 'matplotlib', 'scipy', 'click'} & set(sys.modules); "
        "print(A.shape, sorted(heavy))"
    )
    run = subprocess.run([home / "bin" / "python", "-c", check], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "(2, 2) []", run.stderr
