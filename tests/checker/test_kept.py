"""Kinks that stay in the quadratic: what follows holds at every point of the region, whatever the multipliers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flint import arb
from onnx import helper

from softhull.certificates.prover import Proof
from softhull.certificates.second_order import SecondOrder
from softhull.checker.balls import Balls, exact
from softhull.checker.certificate import Refused
from softhull.checker.check import region_of
from softhull.checker.network import Kink, Networks
from softhull.checker.replay import Knowledge, Region, Rule
from softhull.checker.session import exactly

from .evaluate import random_attention, save

INPUTS, ENTRIES = 3, 6


def kinks(path: Path, rng: np.random.Generator, slope: float) -> tuple[Networks, int]:
    """A layer of kinks, one of them straight and one that begins to bend at the end of its range, and its number."""
    W, b = rng.integers(-4, 5, (INPUTS, ENTRIES)) / 4, rng.integers(-2, 3, ENTRIES) / 4
    W[:, 0], b[0] = 0.0, 1.0
    W[:, 1], b[1] = (1.0, 0.0, 0.0), 1.0  # from 0 to 2 where the first input is within 1 of 0
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("LeakyRelu", ["h"], ["r"], alpha=slope),
        helper.make_node("Mul", ["r", "r"], ["y"]),
    ]
    constants = {"w": W.astype(np.float32), "b": b.astype(np.float32)}
    networks = Networks([save(path, nodes, constants, [1, INPUTS])])
    return networks, next(i for i, node in enumerate(networks.nodes) if isinstance(node, Kink))


@pytest.mark.parametrize("eps", [0.0, 2.0**-40, 0.25, 1.0, 2.0**20])
@pytest.mark.parametrize("slope", [0.0, 0.25])
@pytest.mark.parametrize("seed", range(3))
@exactly
def test_what_follows_is_never_above_the_kinks(seed: int, slope: float, eps: float, tmp_path: Path) -> None:
    """By balls and without any tolerance, at corners, inside, and where kinks bend; at some points next to nothing is
    lost, as one of the two factors is 0 everywhere."""
    rng = np.random.default_rng(seed)
    networks, index = kinks(tmp_path / "m.onnx", rng, slope)
    node = networks.nodes[index]
    assert isinstance(node, Kink)
    centre = np.array([0.0, *(rng.integers(-4, 5, INPUTS - 1) / 8)])
    known = Knowledge(networks, region_of(centre, eps, "inf", None))
    A = exact(rng.integers(-8, 9, (1, ENTRIES)) / 4)
    kept = rng.integers(0, 9, (3, ENTRIES)) / 4 * rng.choice([0.0, 1.0], (3, ENTRIES))
    kept[2] *= rng.choice([-1.0, 1.0], ENTRIES)
    found, constant, part = known._kept(index, A, {"kept": kept})
    assert part.linear is not None
    ((before, on_x),) = found.items()
    x, y = known.forms.kept(index)
    X, Y = (known.forms.over_noise(form.slope, form.basis) for form in (x, y))
    points = [*np.array(np.meshgrid(*[[-1.0, 0.0, 1.0]] * INPUTS)).reshape(INPUTS, -1).T]
    points += [*rng.integers(-16, 17, (40, INPUTS)) / 16]
    lost = []
    for point in points:
        e = np.concatenate((exact(point), exact(np.zeros(known.forms.count - INPUTS))))
        into = x.centre + X[:, :INPUTS] @ e[:INPUTS]
        out = np.array([v.max(arb(node.slope) * v) for v in into], dtype=object)
        for i in range(ENTRIES):  # the noise that stands for what an entry is beside its chord
            for own in np.flatnonzero([not v.is_zero() for v in Y[i, INPUTS:]]).tolist():
                e[INPUTS + own] = (out[i] - y.centre[i] - (Y[i, :INPUTS] * e[:INPUTS]).sum()) / Y[i, INPUTS + own]
                assert not abs(e[INPUTS + own]) > 1
        true = (A[0] * out).sum()
        bound = constant[0] + (on_x[0] * into).sum()
        over = [known.forms.over_noise(side, part.basis) for side in (part.left, part.right, part.linear[None])]
        bound += (over[2][0] * e).sum() + ((over[0] @ e) * np.diagonal(part.C) * (over[1] @ e)).sum()
        assert not true < bound
        lost.append(float(true - bound))
    assert before == node.x.node
    if eps == 0.25 and (kept[:2] == 0).any():
        assert min(lost) < 10  # or the test would see nothing


def kept_by(multipliers: Any, proof: Proof, index: int, A: Balls) -> Rule | None:
    node = proof.networks.nodes[index]
    return {"kept": multipliers(node.size)} if isinstance(node, Kink) else None


@pytest.mark.parametrize("seed", range(4))
@exactly
def test_margins_hold(seed: int, tmp_path: Path) -> None:
    """Whole walks, with the multipliers of nobody in particular, are below the margin at points of the region."""
    rng = np.random.default_rng(seed)
    x, eps = rng.uniform(-0.5, 0.5, 6), float(rng.choice([0.05, 0.3]))
    proof = Proof([random_attention(tmp_path / "m.onnx", rng)], x, eps, "inf", None)
    view = proof.networks.logits[0]
    proof.prepare([view])
    second = SecondOrder.claimed(proof, [view], own=True)
    found = {}
    for size in (0.0, 0.01, 0.1, 1.0):

        def drawn(n: int, size: float = size) -> np.ndarray:
            return size * rng.uniform(0, 1, (3, n))

        found[size] = second.lead(view, 0, 1, first=partial(kept_by, drawn, proof))
    assert all(np.isfinite(value) for value in found.values())
    for _ in range(100):
        at = x + eps * rng.choice([-1.0, 1.0, 0.5], 6)
        at = np.clip(at, proof.known.region.lower, proof.known.region.upper)
        here = Knowledge(proof.networks, Region(at, at))
        low, high = here.box(view)
        assert max(found.values()) <= high.ravel()[0] - low.ravel()[1]


@exactly
def test_refusals(tmp_path: Path) -> None:
    """Multipliers below 0 where they count, of another length, or no numbers; several rows at once."""
    networks, index = kinks(tmp_path / "m.onnx", np.random.default_rng(0), 0.0)
    known = Knowledge(networks, region_of(np.zeros(INPUTS), 0.5, "inf", None))
    A, rule = exact(np.ones((1, ENTRIES))), np.zeros((3, ENTRIES))
    known._kept(index, A, {"kept": rule})
    for row in (0, 1):
        changed = rule.copy()
        changed[row, -1] = -1e-300
        with pytest.raises(Refused, match="below 0"):
            known._kept(index, A, {"kept": changed})
    known._kept(index, A, {"kept": rule - [[0.0], [0.0], [1.0]]})
    for wrong in (np.zeros((2, ENTRIES)), np.zeros((3, ENTRIES + 1)), np.full((3, ENTRIES), np.nan)):
        with pytest.raises(Refused):
            known._kept(index, A, {"kept": wrong})
    with pytest.raises(Refused, match="several rows"):
        known._kept(index, exact(np.ones((2, ENTRIES))), {"kept": rule})
