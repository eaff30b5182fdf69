"""Quadratics of the noise and affine forms in the checker, against points and against matrices that just fail."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import numpy as np
import pytest
from flint import arb, ctx

from softhull.certificates.prover import Proof
from softhull.certificates.second_order import SecondOrder
from softhull.checker.balls import PRECISION, exact, zeros
from softhull.checker.certificate import Refused
from softhull.checker.check import region_of
from softhull.checker.forms import Basis
from softhull.checker.network import Networks, Softmax
from softhull.checker.quadratic import Noise, ProductRanges, Squares, least, least_by_corners, root_above, semidefinite
from softhull.checker.replay import Knowledge
from softhull.data import bundled

from .evaluate import values


@pytest.fixture(autouse=True)
def precision():
    with ctx.workprec(PRECISION):
        yield


def test_functions_of_a_basis_over_the_noise() -> None:
    """Combinations and what stands alone beside them, whether a function knows all of the numbers or the first."""
    rng = np.random.default_rng(0)
    basis = Basis(exact(rng.integers(-8, 9, (3, 5)).astype(float)), (6, 5, 8))
    for m in range(3, basis.size + 1):
        slope = exact(rng.integers(1, 9, (2, m)).astype(float))
        found, wanted = basis.over_noise(slope, 9), slope @ basis.map(9)[:m]
        assert bool((found == wanted).all())  # exact balls


@pytest.mark.parametrize("seed", range(20))
def test_semidefinite(seed: int) -> None:
    """Clearly definite matrices of any scale are recognised; one whose least eigenvalue is below zero never is."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 30))
    scale = 2.0 ** rng.integers(-20, 20, n)
    G = rng.integers(-8, 9, (n, n)).astype(float)
    base = exact(G) @ exact(G.T)  # whole numbers: exact
    outer = exact(np.outer(scale, scale))
    assert semidefinite((base + np.diag(exact(np.full(n, 1.0)))) * outer)
    singular = exact(G[:, :-1]) @ exact(G[:, :-1].T)  # of rank n - 1 at most: zero is an eigenvalue
    below = singular.copy()
    np.fill_diagonal(below, np.diagonal(below) - arb(2) ** -40)
    assert not semidefinite(below * outer)


def test_semidefinite_at_the_edge() -> None:
    assert semidefinite(zeros(3, 3))  # noise that enters nowhere
    assert not semidefinite(exact(np.array([[0.0, 1.0], [1.0, 5.0]])))
    assert not semidefinite(exact(np.array([[1.0, 1.0 + 2**-52], [1.0 + 2**-52, 1.0]])))
    assert not semidefinite(exact(np.array([[np.inf, 0.0], [0.0, 1.0]])))
    wide = exact(np.eye(2))
    wide[0, 1] = wide[1, 0] = arb(0, 1.5)  # a ball that contains indefinite matrices
    assert not semidefinite(wide)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("norm", [0, 1, 2])
def test_least_is_below_every_point(seed: int, norm: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    noise = Noise(int(rng.integers(1, n)) if norm else n, norm)
    B = rng.normal(size=(n, n)) * 10.0 ** rng.integers(-3, 3)
    B, l_ = (B + B.T) / 2, rng.normal(size=n)
    d = np.abs(B).sum(1) * rng.choice([0.5, 1.0, 1.5])
    point = rng.normal(size=n) if seed % 2 else -np.linalg.solve(B + np.diag(d), l_) / 2
    found = least(exact(l_), Squares(None, exact(B)), d, point, noise)
    if found is None:
        assert np.linalg.eigvalsh(B + np.diag(d)).min() < 1e-9 * np.abs(B).max()
        return
    points = np.array(list(itertools.product([-1.0, 1.0], repeat=n)))
    points = np.concatenate((points, rng.uniform(-1, 1, (200, n))))
    if norm:
        own = points[:, : noise.inputs]
        own /= np.maximum(np.linalg.norm(own, norm, axis=1, keepdims=True), 1)
    lowest = ((points @ B) * points).sum(1) + points @ l_
    assert float(found) <= lowest.min() + 1e-9 * np.abs(lowest).max()


def test_least_wants_multipliers_that_prove() -> None:
    B, l_ = Squares(None, exact(np.array([[0.0, 1.0], [1.0, 0.0]]))), exact(np.zeros(2))
    assert least(l_, B, np.array([0.99, 0.99]), np.zeros(2), Noise(2, 0)) is None
    assert least(l_, B, np.array([-1.0, 4.0]), np.zeros(2), Noise(2, 0)) is None
    found = least(l_, B, np.array([1.0, 1.0 + 1e-9]), np.zeros(2), Noise(2, 0))
    assert found is not None
    assert -2.001 < float(found) <= -2  # the truth is -2


@pytest.mark.parametrize("seed", range(20))
def test_few_combinations_prove_what_the_matrix_proves(seed: int) -> None:
    """Squares of few combinations of the noise are covered by multipliers from a certain size on, and not before."""
    rng = np.random.default_rng(seed)
    n, r = int(rng.integers(4, 20)), int(rng.integers(1, 4))
    U, C = rng.integers(-4, 5, (r, n)).astype(float), rng.integers(-4, 5, (r, r)).astype(float)
    U[:, rng.integers(n)] = 0.0  # noise that no combination holds
    C = C + C.T - 40 * np.eye(r)  # negative definite
    few, dense = Squares(exact(U), exact(C)), U.T @ C @ U
    assert (few.dense().astype(float) == dense).all()
    e = rng.integers(-4, 5, n).astype(float)
    assert (few.times(exact(e)).astype(float) == dense @ e).all()
    d = np.abs(U).sum(0) + rng.uniform(0.1, 1, n) * (U != 0).any(0)
    unit = np.where(d > 0, d, 1.0)
    # Multipliers t d cover the squares for t from here on.
    edge = -np.linalg.eigvalsh(dense / np.sqrt(np.outer(unit, unit))).min()
    assert edge > 0
    assert few.covered(exact(d * edge * (1 + 1e-9)))
    assert not few.covered(exact(d * edge * (1 - 1e-9)))
    assert Squares(None, exact(dense)).covered(exact(d * edge * (1 + 1e-9)))
    missing = d * edge * 2
    missing[np.flatnonzero(d)[0]] = 0.0
    assert not few.covered(exact(missing))
    found = least(exact(rng.normal(size=n)), few, -d, np.zeros(n), Noise(n, 0))
    assert found is None


@pytest.mark.parametrize("seed", range(10))
def test_a_root_is_above(seed: int) -> None:
    """``L L' - W`` is semidefinite in exact arithmetic, also where W is singular or of many scales."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    scale = 2.0 ** rng.integers(-20, 20, n)
    G = rng.integers(-8, 9, (n, max(1, n - 2))) * scale[:, None]
    W = exact(G) @ exact(G.T)
    L = root_above(W)
    assert L is not None
    assert (np.diagonal(L) > 0).all()
    assert np.abs(L @ L.T - W.astype(float)).max(initial=0) <= 1e-9 * np.abs(W.astype(float)).max(initial=1)
    left = (exact(L) @ exact(L.T) - W) / exact(np.outer(scale, scale))
    assert semidefinite(left)
    assert root_above(-W - exact(np.eye(n))) is None
    assert root_above(W + arb(0, 1e9) * exact(np.outer(scale, scale))) is None


@pytest.mark.parametrize("seed", range(40))
def test_corners_of_an_l1_ball_are_below_every_point(seed: int) -> None:
    """Whole numbers and points of a grid, so that every value is exact: no tolerance."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    noise = Noise(int(rng.integers(1, n + 1)), 1)
    B, l_ = rng.integers(-8, 9, (n, n)).astype(float), rng.integers(-8, 9, n).astype(float)
    B = B + B.T
    grid = np.array(list(itertools.product(np.arange(-4, 5) / 4, repeat=n)))
    grid = grid[np.abs(grid[:, : noise.inputs]).sum(1) <= 1]
    lowest = (((grid @ B) * grid).sum(1) + grid @ l_).min()
    found = least_by_corners(exact(l_), exact(B), noise)
    assert found <= arb(lowest)
    if noise.inputs == n:  # without other noise, a smallest term at a corner, not between two, is attained
        at_corners = min(0.0, *(B[i, i] + sign * l_[i] for i in range(n) for sign in (-1, 1)))
        assert at_corners >= lowest
        assert float(found) <= at_corners
    wide = least_by_corners(exact(l_), exact(B) + arb(0, 0.125), noise)
    assert wide.lower() <= found  # what holds of all matrices of a ball holds of this one


def test_corners_are_for_l1_balls_alone() -> None:
    """Over a cube, pairs of corners of the l_1 ball prove nothing: both numbers may be 1 at once."""
    steep = exact(np.array([-1.0, -1.0]))
    assert least_by_corners(steep, zeros(2, 2), Noise(2, 1)) == -1
    with np.load(bundled("digits.npz")) as data:
        x = data["x"][1].ravel() / 255
    for norm, refused in (("1", False), ("inf", True)):
        proof = Proof([bundled("digits-attention.onnx")], x, 0.01, norm, None)
        logits = proof.networks.logits[0]
        proof.prepare([logits], contract=False)
        second = SecondOrder.claimed(proof, [logits])
        second._multipliers = lambda linear, B: {"corners": 1}  # type: ignore[method-assign]
        with pytest.raises(Refused, match="l_1 ball alone") if refused else nullcontext():
            second.lead(logits, 0, 1)


@pytest.mark.parametrize("norm", [0, 1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_product_ranges(seed: int, norm: int) -> None:
    rng = np.random.default_rng(seed)
    n, a, b = (int(rng.integers(2, 9)) for _ in range(3))
    noise = Noise(int(rng.integers(1, n)) if norm else n, norm)
    X, Y = rng.normal(size=(a, n)), rng.normal(size=(b, n)) * 10.0 ** rng.integers(-4, 4)
    X[:, rng.integers(n)] = Y[:, 0] = 0.0
    left, right = rng.permutation(a)[:2], rng.permutation(b)[:2]
    C = rng.normal(size=(2, 2))
    ranges = ProductRanges(exact(X), exact(Y), noise)
    (low, high), own_ends = (ranges.between(left, exact(C), right, own) for own in (False, True))
    points = rng.choice([-1.0, 1.0], (500, n)) * rng.choice([1.0, 0.5], (500, 1))
    if norm:
        own = points[:, : noise.inputs]
        own /= np.maximum(np.linalg.norm(own, norm, axis=1, keepdims=True), 1)
    got = ((points @ X[left].T) * (points @ (C @ Y[right]).T)).sum(1)
    for below, above in ((low, high), own_ends):
        assert float(below) <= got.min()
        assert got.max() <= float(above)
    assert float(own_ends[1] - own_ends[0]) <= 1.0001 * float(high - low) or norm


@pytest.mark.parametrize("scale", [2.0**-500, 2.0**-60, 1.0, 2.0**60, 2.0**400])
@pytest.mark.parametrize("kind", ["nothing", "one number", "one factor", "the same", "far apart", "one row"])
def test_ranges_by_weights_of_their_own(kind: str, scale: float) -> None:
    """By balls at all corners, for factors of any size, without any tolerance."""
    rng = np.random.default_rng(0)
    n, m = 6, 1 if kind == "one row" else 2
    X, Y = (rng.integers(-8, 9, (m, n)).astype(float) for _ in range(2))
    if kind == "nothing":
        X[:], Y[:] = 0.0, 0.0
    elif kind == "one number":
        X[:, 1:], Y[:, 1:] = 0.0, 0.0
    elif kind == "one factor":
        Y[:] = 0.0
    elif kind == "the same":
        Y = X.copy()
    elif kind == "far apart":
        X, Y = X * 2.0 ** rng.integers(-100, 100, n), Y * 2.0 ** rng.integers(-100, 100, n)
    X = X * scale
    ranges, all_rows = ProductRanges(exact(X), exact(Y), Noise(n, 0)), np.arange(m)
    low, high = ranges.between(all_rows, exact(np.eye(m)), all_rows, own=True)
    assert low <= 0 <= high
    for corner in np.array(np.meshgrid(*[[-1.0, 1.0]] * n)).reshape(n, -1).T:
        e = exact(corner)
        value = ((exact(X) @ e) * (exact(Y) @ e)).sum()
        assert not value < low
        assert not value > high


@pytest.mark.parametrize("norm", ["inf", "2"])
def test_forms_hold(norm: str) -> None:
    """At inputs of the region every entry is within the noise of its form, and every difference within its bounds."""
    rng = np.random.default_rng(0)
    with np.load(bundled("digits.npz")) as data:
        x = data["x"][1].ravel() / 255
    proof = Proof([bundled("digits-attention.onnx")], x, 0.04 if norm == "inf" else 0.15, norm, None)
    logits = proof.networks.logits[0]
    proof.prepare([logits])
    SecondOrder.claimed(proof, [logits])
    forms = proof.known.forms
    for index, node in enumerate(proof.networks.nodes):
        if not isinstance(node, Softmax) or index >= proof.networks.probabilities[0].node:
            continue
        form = forms.rows(proof.networks.whole(index))
        centre, slope = form.centre.astype(np.float64), forms.over_noise(form.slope, form.basis).astype(np.float64)
        pairs, lower, upper = forms.differences(index)
        assert (upper > lower).all()
        for _ in range(20):
            step = rng.choice([-1.0, 1.0], x.shape) * (1 if norm == "inf" else 1 / np.sqrt(x.size))
            radius = proof.region["eps"]
            found = values(proof.networks, x + radius * step)
            known = centre + slope[:, : x.size] @ step
            rest = np.abs(slope[:, x.size :]).sum(1)
            assert (np.abs(found[index] - known) <= rest + 1e-9).all()
            logits_ = node.x.index.of(found[node.x.node])
            apart = pairs.of(logits_)[:, 0] - pairs.of(logits_)[:, 1]
            assert (lower.astype(np.float64) - 1e-9 <= apart).all()
            assert (apart <= upper.astype(np.float64) + 1e-9).all()


def test_form_of_a_softmax_must_be_claimed() -> None:
    networks = Networks([bundled("digits-attention.onnx")])
    known = Knowledge(networks, region_of(np.zeros(networks.input_size), 0.01, "inf", None))
    with pytest.raises(Refused, match="not claimed"):
        known.forms.rows(networks.probabilities[0])
