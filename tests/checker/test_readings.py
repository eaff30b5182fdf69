"""Places where the checker read something else than the runtime computes, or would have proved too much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flint import ctx
from onnx import helper

from softhull.certificates.prover import Proof
from softhull.checker.balls import PRECISION, exact
from softhull.checker.certificate import Refused
from softhull.checker.network import Networks, Softmax
from softhull.errors import ModelError
from softhull.formats.onnx import load_onnx
from softhull.regions import Perturbation
from softhull.verify.uncertainty import verify_uncertainty

from .evaluate import save, values

MASK = np.array([[0.0, 0.0, -1e9]], dtype=np.float32)


def test_a_gate_that_broadcasts_is_no_silu(tmp_path: Path) -> None:
    """``sigmoid(x)`` as a row times ``x`` as a column is a matrix."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["gate"]),
        helper.make_node("Reshape", ["x", "column"], ["a"]),
        helper.make_node("Mul", ["gate", "a"], ["m"]),
        helper.make_node("ReduceSum", ["m", "axes"], ["r"], keepdims=0),
        helper.make_node("Reshape", ["r", "row"], ["y"]),
    ]
    constants = {"column": np.array([2, 1]), "axes": np.array([1]), "row": np.array([1, 2])}
    model = save(tmp_path / "m.onnx", nodes, constants, [1, 2])
    x = np.array([1.0, 2.0])
    with ctx.workprec(PRECISION):
        networks = Networks([model])
        view = networks.logits[0]
        found = view.index.of(values(networks, x)[view.node]).ravel()
    np.testing.assert_allclose(found, x * (1 / (1 + np.exp(-x))).sum(), rtol=1e-6)


def test_pads_beside_automatic_ones_are_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], auto_pad="VALID", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["h"], ["p"]),
        helper.make_node("Reshape", ["p", "row"], ["y"]),
    ]
    constants = {"w": np.ones((2, 1, 2, 2), dtype=np.float32), "row": np.array([1, 2])}
    with pytest.raises(ModelError, match="pads beside automatic ones"):
        Networks([save(tmp_path / "m.onnx", nodes, constants, [1, 1, 3, 3])])


@pytest.mark.parametrize("last", ["Softmax", "LogSoftmax"])
def test_a_final_mask_is_part_of_the_probabilities(last: str, tmp_path: Path) -> None:
    """They are not a softmax of themselves, nor one of logits without the mask."""
    nodes = [helper.make_node("Add", ["x", "mask"], ["a"]), helper.make_node(last, ["a"], ["y"], axis=-1)]
    model = save(tmp_path / "m.onnx", nodes, {"mask": MASK}, [1, 3])
    x = np.array([5.0, 0.0, 7.0])
    with ctx.workprec(PRECISION):
        networks = Networks([model])
        view = networks.probabilities[0]
        found = view.index.of(values(networks, x)[view.node]).ravel()
    np.testing.assert_allclose(found, [1 / (1 + np.exp(-5)), 1 / (1 + np.exp(5)), 0], atol=1e-9)
    asked = (x[None], [0], Perturbation(0.1))
    if last == "Softmax":
        with pytest.raises(ModelError, match="masks some classes"):
            verify_uncertainty(load_onnx(model), *asked)
    else:
        clean = verify_uncertainty(load_onnx(model), *asked)[0].clean
        assert clean == pytest.approx(np.log1p(np.exp(-5)), rel=1e-6)


def test_no_quadratic_is_fitted_behind_a_mask(tmp_path: Path) -> None:
    """Its cells would be those of the visible logits, its weights those of all."""
    nodes = [helper.make_node("Add", ["x", "mask"], ["a"]), helper.make_node("Softmax", ["a"], ["y"], axis=-1)]
    model = save(tmp_path / "m.onnx", nodes, {"mask": MASK}, [1, 3])
    with ctx.workprec(PRECISION):
        proof = Proof([model], np.zeros(3), 0.1, "inf", None)
        (index,) = [i for i, node in enumerate(proof.networks.nodes) if isinstance(node, Softmax)]
        rule = {"fit": np.array([0]), "origin": np.zeros((1, 2)), "slope": np.zeros((1, 2))}
        rule |= {"matrix": np.zeros((1, 2, 2)), "value": np.zeros(1)}
        with pytest.raises(Refused, match="behind a mask"):
            proof.known._fitted(index, exact(np.array([[1.0, 0.0, 0.0]])), rule, None)
