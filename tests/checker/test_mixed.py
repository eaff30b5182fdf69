"""Rows of a softmax fitted together with the values they mix: what follows holds, and values are never lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flint import arb
from onnx import helper

from softhull.certificates.prover import Proof
from softhull.certificates.second_order import SecondOrder
from softhull.checker import cells, replay
from softhull.checker.balls import ONE, Balls, Floats, exact
from softhull.checker.certificate import Refused
from softhull.checker.check import region_of
from softhull.checker.forms import Mixed
from softhull.checker.network import Networks, Product, Softmax
from softhull.checker.positions import Places
from softhull.checker.replay import Cut, Knowledge
from softhull.checker.session import exactly

from .evaluate import random_attention, save
from .test_cells import make_lines

CENTRE, EPS = np.array([0.5, -0.25, 0.125]), 1.5


def softmax_alone(tmp_path: Path) -> tuple[Knowledge, int]:
    """What is known of a softmax of the input, and its number."""
    nodes = [helper.make_node("Softmax", ["x"], ["p"], axis=-1), helper.make_node("Mul", ["p", "p"], ["y"])]
    networks = Networks([save(tmp_path / "m.onnx", nodes, {}, [1, 3])])
    index = next(i for i, node in enumerate(networks.nodes) if isinstance(node, Softmax))
    return Knowledge(networks, region_of(CENTRE, EPS, "inf", None)), index


def made(rng: np.random.Generator, a: Floats, values: Floats, e: Floats) -> dict[str, Any]:
    """A fit with lines that nothing is lost by at some noise, its value not yet known."""
    (price, _, lines), met, J, x = make_lines(rng, 2), rng.normal(size=2), int(rng.integers(3)), CENTRE + EPS * e
    d, origin, bent = np.delete(x - x[J], J), rng.normal(size=2), -3 * np.eye(2)
    p, U = np.delete(np.exp(x) / np.exp(x).sum(), J), np.delete((values - values[J]) @ e, J) - met
    weights = np.delete(a - a[J], J) + met
    # There, squares are 0: the price times p - l is half of -U. And there the row is least above its quadratic.
    off = -U / (2 * price)
    level = p - off - lines @ (d - origin)
    slopes = np.diag(p) - np.outer(p, p)
    slope = slopes @ weights - 2 * (price * off) @ (slopes - lines) - 2 * bent @ (d - origin)
    rule = {"fit": np.array([J]), "origin": origin[None], "slope": slope[None], "matrix": bent[None], "met": met[None]}
    return rule | {"price": price[None], "level": level[None], "lines": lines[None]}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(6))
@exactly
def test_what_follows_is_never_above_rows_and_values(
    seed: int, weighted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At corners and inside, by balls and without any tolerance, with a fit that can hardly be higher."""
    monkeypatch.setattr(cells, "MOST_CELLS", 500)
    known, index = softmax_alone(tmp_path)
    rng = np.random.default_rng(seed)
    weights, moving, at = rng.normal(size=3), rng.normal(size=(3, 3)), rng.uniform(-0.5, 0.5, 3)
    rule, A = made(rng, weights, moving, at), exact(weights[None])
    centre, values = exact(rng.uniform(0, 0.5, 3)), exact(moving)
    centre[2] = ONE - centre[0] - centre[1]
    if weighted:  # a fit that is for others
        J, given = int(rule["fit"][0]), weights.copy()
        given[np.arange(3) != J] += rule["met"][0]
        rule["weights"] = (given + 0.3 * rng.normal(size=3))[None]
    mixed, low, high, found = Mixed(index, centre, values, None), -100.0, 10.0, None
    while high - low > 0.01:
        rule["value"] = np.array([(low + high) / 2])
        try:
            found, low = known._fitted(index, A, rule, mixed), float(rule["value"][0])
        except Refused:
            high = float(rule["value"][0])
    assert found is not None
    (on_logits,), constant, *parts = found[0].values(), *found[1:]
    least = np.inf
    corners = np.array(np.meshgrid(*[[-1.0, 0.0, 1.0]] * 3)).reshape(3, -1).T
    for point in np.concatenate((at[None], corners, rng.uniform(-1, 1, (200, 3)))):
        e = exact(point)
        x = exact(CENTRE) + arb(EPS) * e
        p = np.array([v.exp() for v in x], dtype=object)
        p = p / p.sum()
        true = (A[0] * p).sum() + ((p - centre) * (values @ e)).sum()
        bound = (on_logits[0] * x).sum() + constant[0]
        for part in parts:
            bound += (part.linear * e).sum() + ((part.left @ e) * (part.C @ (part.right @ e))).sum()
        assert true >= bound
        least = min(least, float(true - bound))
    assert least < (0.6 if weighted else 0.05)  # or the test would see nothing


@exactly
def test_fits_of_a_part_are_not_those_of_the_whole(tmp_path: Path) -> None:
    """What was proved in a cell is known in smaller ones, in no others, and of this fit alone."""
    known, index = softmax_alone(tmp_path)
    node = known.networks.nodes[index]
    assert isinstance(node, Softmax)
    A, weights = exact(np.array([[1.0, -2.0, 0.5]])), np.array([[1.0, -2.0, 0.5]])
    rule = {"fit": np.array([2]), "weights": weights, "origin": np.zeros((1, 2)), "slope": np.zeros((1, 2))}
    rule |= {"matrix": np.zeros((1, 2, 2)), "value": np.array([0.5])}
    below = Cut(node.x.at(Places([1, 2], 3)), -2.5, 1)
    with pytest.raises(Refused, match="not proved"):
        known._fitted(index, A, rule, None)
    above = Cut(node.x.at(Places([0, 1], 3)), 2.0, -1)
    part = known.within(known.region, [below, above])
    part._fitted(index, A, rule, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "below", lambda *_: False)
        part.within(part.region, [])._fitted(index, A, rule, None)
        for name in ("value", "slope", "origin", "matrix", "weights"):
            with pytest.raises(Refused, match="not proved"):
                part._fitted(index, A, rule | {name: rule[name] + 2.0**-40}, None)
        with pytest.raises(Refused, match="not proved"):
            part._fitted(index, A, rule | {"fit": np.array([1])}, None)
    for larger in (known, known.within(known.region, [below])):
        with pytest.raises(Refused, match="not proved"):
            larger._fitted(index, A, rule, None)


@exactly
def test_lines_need_values_and_values_lines(tmp_path: Path) -> None:
    known, index = softmax_alone(tmp_path)
    rule = made(np.random.default_rng(0), np.ones(3), np.ones((3, 3)), np.zeros(3)) | {"value": np.array([-1e3])}
    A = exact(np.ones((1, 3)))
    mixed = Mixed(index, exact(np.array([0.5, 0.5, 0.0])), exact(np.ones((3, 3))), None)
    known._fitted(index, A, rule, mixed)
    with pytest.raises(Refused, match="mix no values"):
        known._fitted(index, A, rule, None)
    with pytest.raises(Refused, match="without lines"):
        known._fitted(index, A, {key: part for key, part in rule.items() if key != "price"}, mixed)
    for price in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(Refused, match="price"):
            known._fitted(index, A, rule | {"price": np.array([[1.0, price]])}, mixed)


@exactly
def test_values_are_never_lost(tmp_path: Path) -> None:
    """A walk whose softmax does not take what it mixes proves nothing, early or late; parts of rows are not mixed."""
    rng = np.random.default_rng(0)
    proof = Proof([random_attention(tmp_path / "m.onnx", rng)], rng.uniform(-0.5, 0.5, 6), 0.05, "inf", None)
    view = proof.networks.logits[0]
    proof.prepare([view])
    second = SecondOrder.claimed(proof, [view])
    assert second.lead(view, 0, 1) > -np.inf
    (product,) = [
        i
        for i, node in enumerate(proof.networks.nodes)
        if isinstance(node, Product) and isinstance(proof.networks.nodes[node.x.node], Softmax)
    ]

    def mixing(changed: Any) -> Any:
        def choose(index: int, A: Balls) -> Any:
            if index != product:
                return None
            rule = second._choose(index, A)
            assert rule is not None
            return changed({**rule, "mixed": 1})

        return choose

    assert second.lead(view, 0, 1, first=mixing(lambda rule: rule)) == -np.inf
    for changed in (
        lambda rule: {key: part for key, part in rule.items() if key != "reference"},
        lambda rule: rule | {"reference": np.where(rule["reference"] == rule["reference"][0], -1, rule["reference"])},
        lambda rule: rule | {"split": 1, "reference": None},
    ):
        with pytest.raises(Refused, match="not mixed by all rows"):
            second.lead(view, 0, 1, first=mixing(changed))
