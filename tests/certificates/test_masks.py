"""Certificates of masked attention: accepted whatever number the mask is written with, and only where they are true."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from softhull.certificates.write import class_certificate
from softhull.checker.certificate import write_certificate
from softhull.checker.check import check_certificate
from softhull.checker.network import Networks, Softmax
from softhull.checker.replay import Knowledge, Region
from softhull.checker.session import exactly
from softhull.errors import ModelError
from softhull.regions import Perturbation

from ..checker.evaluate import save, values

TOKENS, WIDTH = 3, 2


def _causal(path: Path, number: float, how: str, empty: int = 0, guard: str = "Where") -> Path:
    """Causal attention over three tokens; the mask is added or takes the place of logits; ``empty`` rows see nothing.

    Behind the softmax comes the guard that exporters write, or a product with 0 or 1 instead.
    """
    rng = np.random.default_rng(3)
    later = np.triu(np.ones((TOKENS, TOKENS), dtype=bool), 1) | (np.arange(TOKENS) < empty)[:, None]
    constants: dict[str, Any] = {f"w{part}": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for part in "qkv"}
    constants |= {"out": rng.normal(size=(TOKENS * WIDTH, 3)).astype(np.float32), "flat": np.array([1, TOKENS * WIDTH])}
    constants |= {"mask": np.where(later, number, 0).astype(np.float32), "seen": ~later}
    constants |= {"number": np.array(number, dtype=np.float32), "nothing": np.array(0, dtype=np.float32)}
    nodes = [helper.make_node("MatMul", ["x", f"w{part}"], [part]) for part in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
    ]
    masked = {"add": ("Add", ["s", "mask"]), "replace": ("Where", ["seen", "s", "number"])}[how]
    nodes += [helper.make_node(*masked, ["m"]), helper.make_node("Softmax", ["m"], ["p"], axis=-1)]
    constants |= {"kept": (np.arange(TOKENS) >= empty).astype(np.float32)[:, None]}
    if guard == "Where":
        nodes += [helper.make_node("IsNaN", ["p"], ["n"]), helper.make_node("Where", ["n", "nothing", "p"], ["g"])]
    else:
        nodes += [helper.make_node("Mul", ["p", "kept"], ["g"])]
    nodes += [helper.make_node("MatMul", ["g", "v"], ["a"]), helper.make_node("Reshape", ["a", "flat"], ["f"])]
    return save(path, [*nodes, helper.make_node("MatMul", ["f", "out"], ["y"])], constants, [1, TOKENS, WIDTH])


@pytest.mark.parametrize("how", ["add", "replace"])
@pytest.mark.parametrize("number", [-1e4, -1e9, -3.4028234663852886e38, -math.inf])
def test_a_masked_model_has_an_accepted_certificate(tmp_path, number, how):
    model = _causal(tmp_path / "m.onnx", number, how)
    x = np.random.default_rng(0).normal(size=TOKENS * WIDTH)
    networks = Networks([model])
    label = int(np.argmax(values(networks, x)[networks.logits[0].node]))
    write_certificate(tmp_path / "c.npz", class_certificate(model, x, label, Perturbation(0.01)))
    assert check_certificate(tmp_path / "c.npz", [model]).accepted


@pytest.mark.parametrize("how", ["add", "replace"])
@pytest.mark.parametrize("number", [-1e4, -1e9, -math.inf])
@pytest.mark.parametrize("scale", [0.1, 1.0, 60.0])
@exactly
def test_probabilities_and_planes_hold_where_the_mask_leaks(tmp_path, number, how, scale):
    """With inputs of 60 logits reach thousands, and a mask of -1e4 is not far from them."""
    networks = Networks([_causal(tmp_path / "m.onnx", number, how)])
    index, node = next((i, n) for i, n in enumerate(networks.nodes) if isinstance(n, Softmax))
    assert node.hidden is not None
    rng = np.random.default_rng(1)
    centre = scale * rng.normal(size=TOKENS * WIDTH)
    region = Region(centre - 0.3 * scale, centre + 0.3 * scale)
    known = Knowledge(networks, region)
    lower, upper = known.box(networks.whole(index))
    R, K = node.rows.shape
    below, above = np.zeros((1, R, K, 4)), np.zeros((1, R, K, K))
    below[..., 0], below[..., 2:] = -1, (0.1, 0.05)
    above[...] = 0.05
    planes = known.derive_planes(index, below, above)
    for _ in range(20):
        found = values(networks, rng.uniform(region.lower, region.upper))
        p, logits = found[index], node.rows.of(node.x.index.of(found[node.x.node]))
        assert (p >= lower - 1e-12).all()
        assert (p <= upper + 1e-12).all()
        for slope, offset, sign in (
            (planes.below_slope, planes.below, 1),
            (planes.above_slope, planes.above, -1),
        ):
            line = (slope[0].astype(float) * logits[:, None]).sum(-1) + offset[0].astype(float)
            assert (sign * (node.outputs.of(p) - line) >= -1e-9 * (1 + np.abs(logits).max())).all()


@pytest.mark.parametrize("how", ["add", "replace"])
@pytest.mark.parametrize("empty", [1, 2])
def test_guarded_rows_without_visible_logits_are_zero_and_proved(tmp_path, how, empty):
    model = _causal(tmp_path / "m.onnx", -math.inf, how, empty)
    x = np.random.default_rng(0).normal(size=TOKENS * WIDTH)
    networks = Networks([model])
    session = onnxruntime.InferenceSession(model)
    logits = session.run(None, {"x": x.reshape(1, TOKENS, WIDTH).astype(np.float32)})[0].ravel()
    np.testing.assert_allclose(values(networks, x)[networks.logits[0].node].ravel(), logits, rtol=0, atol=1e-5)
    write_certificate(tmp_path / "c.npz", class_certificate(model, x, int(logits.argmax()), Perturbation(1e-3)))
    assert check_certificate(tmp_path / "c.npz", [model]).accepted


def test_nothing_but_a_guard_makes_them_numbers(tmp_path):
    """0 times what is not a number is not a number."""
    with pytest.raises(ModelError, match="masked completely"):
        Networks([_causal(tmp_path / "m.onnx", -math.inf, "add", 1, "Mul")])


def test_a_row_without_visible_logits_is_refused(tmp_path):
    nodes = [helper.make_node("Add", ["x", "m"], ["z"]), helper.make_node("Softmax", ["z"], ["y"])]
    model = save(tmp_path / "m.onnx", nodes, {"m": np.full(2, -np.inf, dtype=np.float32)}, [1, 2])
    with pytest.raises(ModelError, match="masked completely"):
        Networks([model])
