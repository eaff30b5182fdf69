"""Products as pairs of functions: true for any functions, pairs and weights, and refused where they are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flint import ctx

from softhull.certificates.prover import Proof
from softhull.checker.balls import PRECISION, exact
from softhull.checker.certificate import Refused
from softhull.checker.network import Product
from softhull.checker.replay import Functions

from .evaluate import random_attention, values
from .forgery.writer import paired


@pytest.fixture
def proof(tmp_path: Path) -> Proof:
    rng = np.random.default_rng(5)
    model = random_attention(tmp_path / "m.onnx", rng)
    with ctx.workprec(PRECISION):
        made = Proof([model], rng.uniform(-0.5, 0.5, 6), 0.1, "inf", None)
        made.prepare([made.networks.logits[0]])
    return made


def products(proof: Proof) -> list[int]:
    return [i for i, node in enumerate(proof.networks.nodes) if isinstance(node, Product)]


@pytest.mark.parametrize("seed", range(6))
def test_any_pairs_bound_a_product_from_below(seed: int, proof: Proof) -> None:
    """Functions that have nothing to do with the coefficients are as true as their singular vectors, if weaker."""
    rng, known, networks = np.random.default_rng(seed), proof.known, proof.networks
    for index in products(proof):
        node = networks.nodes[index]
        assert isinstance(node, Product)
        A = rng.standard_normal((1, node.size)) * (rng.random((1, node.size)) < 0.7)
        with ctx.workprec(PRECISION):
            rule: Any = paired(proof, index, exact(A))
            assert rule is not None
            if seed % 2:
                for number, view in zip((-1, -2), (node.x, node.y)):
                    rows = rng.standard_normal((4, networks.nodes[view.node].size))
                    low, high = known._box(view.node)
                    up, down = np.maximum(rows, 0), np.minimum(rows, 0)
                    ends = up @ low + down @ high - 1e-9, up @ high + down @ low + 1e-9
                    known.functions[number] = Functions(view.node, rows, *ends)
                pairs = rng.integers(0, 4, (5, 2))
                rule = {"left": [-1], "right": [-2], "pairs": pairs, "weight": rng.random(5)}
            found, constant = known._paired(node, exact(A), rule)
        for _ in range(40):
            x = proof.x + 0.1 * rng.choice([-1.0, 0.3, 1.0], 6)
            at = values(networks, x)
            claimed = float(constant[0]) + sum(float(rows[0].astype(np.float64) @ at[i]) for i, rows in found.items())
            assert claimed <= float(A[0] @ at[index]) + 1e-9


@pytest.mark.parametrize(
    "change",
    [
        {"pairs": np.array([[0, 10**6]])},
        {"pairs": np.array([[-1, 0]])},
        {"pairs": np.array([0, 1])},
        {"pairs": np.zeros((0, 2), dtype=np.int64)},
        {"pairs": np.array([[0.0, 0.0]])},
        {"weight": np.array([1.5])},
        {"weight": np.array([np.nan])},
        {"left": [10**6]},
        {"left": "right"},
    ],
)
def test_what_is_no_pair_is_refused(change: dict[str, Any], proof: Proof) -> None:
    index = products(proof)[0]
    node = proof.networks.nodes[index]
    assert isinstance(node, Product)
    with ctx.workprec(PRECISION):
        A = exact(np.ones((1, node.size)))
        rule: Any = paired(proof, index, A)
        proof.known._paired(node, A, rule)
        with pytest.raises(Refused):
            proof.known._paired(node, np.concatenate((A, A)), rule)
        with pytest.raises(Refused):
            proof.known._paired(node, A, rule | {k: rule[v] if isinstance(v, str) else v for k, v in change.items()})
