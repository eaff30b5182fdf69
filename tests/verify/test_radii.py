"""The search for certified radii, with verdicts that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from softhull import Auto, Branch, Linear, Paper, Perturbation, SecondOrder, certified_radius
from softhull.verify.radii import RadiusSearch
from softhull.verify.result import Record, Verdict
from tests.propagate.networks import random_attention

CAP, STEPS = 0.8, 7


class _Known:
    """Instances of which it is known what a first look, the whole method and the attack decide."""

    def __init__(self, seed: int, count: int = 40) -> None:
        draw = np.random.default_rng(seed)
        self.method = CAP * 2.0 ** draw.uniform(-13, 0.5, count)
        self.look = np.where(draw.uniform(size=count) < 0.1, 0.0, self.method * draw.uniform(0.05, 1, count))
        self.attack = self.method * 2.0 ** draw.uniform(0, 4, count)
        self.refusals = np.zeros(count, dtype=int)

    def records(self, here: np.ndarray, proofs: np.ndarray | None, final: bool) -> dict[int, Record]:
        found = {}
        for i in np.isfinite(here).nonzero()[0].tolist():
            certified = proofs is not None and here[i] <= proofs[i]
            verdict = Verdict.CERTIFIED if certified else Verdict.UNKNOWN
            found[i] = Record(i, Verdict.FALSIFIED if here[i] > self.attack[i] else verdict, 0)
            self.refusals[i] += final and found[i].verdict is Verdict.UNKNOWN
        return found

    def search(self) -> RadiusSearch:
        search = RadiusSearch(np.zeros(len(self.method), dtype=bool), CAP, STEPS)
        for choose in (search.to_attack, search.to_look_at, search.to_certify):
            for _ in range({search.to_attack: 3 * STEPS + 2, search.to_look_at: 2 * STEPS + 1}.get(choose, 99)):
                if (here := choose()) is not None:
                    final = choose == search.to_certify
                    proofs = {search.to_look_at: self.look, search.to_certify: self.method}.get(choose)
                    search.learn(here, self.records(here, proofs, final), final)
        assert search.to_certify() is None
        return search


def _bisected(most: float) -> float:
    low, high = (CAP, CAP) if most >= CAP else (0.0, CAP)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if middle <= most else (low, middle)
    return low


@pytest.mark.parametrize("seed", range(8))
def test_never_less_than_bisection_from_the_cap(seed: int) -> None:
    known = _Known(seed)
    found = known.search().found()
    certified, best = np.asarray(found), np.minimum(known.method, CAP)
    assert (certified <= best).all()
    assert (certified >= [_bisected(most) * (1 - 1e-12) for most in best]).all()
    looked = known.look > CAP / 2.0 ** (2 * STEPS)
    assert (certified[looked] >= best[looked] * 8 / 9).all()
    broken = np.isfinite(found.attacked)
    assert (broken == (known.attack < CAP)).all()
    assert (known.attack[broken] < found.attacked[broken]).all()
    assert (found.attacked[broken] <= known.attack[broken] * (1 + 2.0 ** -(STEPS // 2))).all()
    # Far too large radii are left alone: one refusal on the way up, then bisection.
    finer = np.log2(np.maximum(certified[looked] / (CAP / 2.0**STEPS), 8.0))
    assert (known.refusals[looked] <= finer + 2).all()


def test_what_a_method_tries_first_is_part_of_it() -> None:
    for method in (Auto(), Linear(), SecondOrder(), Branch(), Branch(inner=Linear(bound="lse"))):
        assert method.first.rounding == "outward"
        assert method.first.bound == method.bound
        assert method.first.optimize == 0
    assert Paper().first == Paper()


def test_radii_far_below_the_largest_one_are_found() -> None:
    graph = random_attention(np.random.default_rng(3), depth=1)
    x = torch.rand(3, *graph.input_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    labels = graph(x).flatten(1).argmax(1)
    radii = certified_radius(graph, x, labels, Perturbation(1000.0), method="linear", steps=6)
    near = certified_radius(graph, x, labels, Perturbation(1000.0 / 2**12), method="linear", steps=6)
    assert (np.asarray(radii) > 0).all()
    assert (np.asarray(radii) >= 0.8 * np.asarray(near)).all()
