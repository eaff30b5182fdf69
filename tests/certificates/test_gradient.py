"""What gradient steps prove has a certificate, made of what they chose."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from softhull.certificates.write import class_certificate
from softhull.checker.certificate import write_certificate
from softhull.checker.check import check_certificate
from softhull.formats.network import Network
from softhull.formats.onnx import load_onnx
from softhull.propagate.methods import Linear
from softhull.regions import Perturbation
from softhull.verify.result import Record, Verdict
from softhull.verify.robustness import verify_robustness

from ..checker.evaluate import random_attention, save


def dense(path: Path, rng: np.random.Generator, activation: str, outputs: int) -> Path:
    """Three layers with activations between them."""
    sizes, constants, nodes, x = (6, 10, 10, outputs), {}, [], "x"
    for layer, shape in enumerate(pairwise(sizes)):
        constants[f"w{layer}"] = (1.5 * rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [x, f"w{layer}"], [x := f"h{layer}" if layer < 2 else "y"]))
        if layer < 2:
            nodes.append(helper.make_node(activation, [x], [x := f"a{layer}"]))
    return save(path, nodes, constants, (1, 6))


def found_by_gradient(network: Network, x: np.ndarray, label: int) -> tuple[Perturbation, Record] | None:
    """The first radius of some at which gradient steps prove what walks do not."""
    for eps in 0.02 * 1.08 ** np.arange(9, 60):
        region = Perturbation(float(eps))
        (record,) = verify_robustness(network, x[None], [label], region, method=Linear(), proofs=True).records
        if record.verdict is not Verdict.CERTIFIED:
            return None
        if "gradient" in (record.proved_by or {}).values():
            return region, record
    return None


# With the seed to begin with: one that was seen to have what is looked for. The others follow.
KINDS = {"attention": 0, "two layers of attention": 0, "Relu": 1, "LeakyRelu": 1, "Tanh": 8, "one logit": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_steps_have_certificates(kind: str, tmp_path: Path) -> None:
    """The walks of the run, derived again: at least what it reported, without any other method."""
    done = 0
    for seed in range(KINDS[kind], KINDS[kind] + 12):
        rng = np.random.default_rng(seed)
        model = tmp_path / f"m{seed}.onnx"
        if "attention" in kind:
            random_attention(model, rng, layers=2 if "two" in kind else 1)
        else:
            dense(model, rng, "Relu" if kind == "one logit" else kind, 1 if kind == "one logit" else 3)
        network, x = load_onnx(model), rng.uniform(-0.5, 0.5, 6)
        logits = network.replay(x[None])[0].ravel()
        label = int(logits.argmax()) if len(logits) > 1 else int(logits[0] > 0)
        found = found_by_gradient(network, x, label)
        if found is None:
            continue
        region, record = found
        certificate = class_certificate(model, x, label, region, run=record, network=network)
        steps = certificate.header["steps"]
        by_second_order = any("split" in rule for step in steps for rule in step.get("rules", {}).values())
        write_certificate(tmp_path / "c.npz", certificate)
        verdict = check_certificate(tmp_path / "c.npz", [model])
        assert verdict.accepted, verdict.reason
        done += not by_second_order
        if done:
            return
    assert done
