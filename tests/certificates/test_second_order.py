"""What better intervals and gradient steps inside second order prove has a certificate, made of what the run chose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from softhull.certificates.write import NoProof, class_certificate
from softhull.checker.certificate import write_certificate
from softhull.checker.check import check_certificate
from softhull.formats.onnx import load_onnx
from softhull.regions import Perturbation
from softhull.verify.result import Verdict
from softhull.verify.robustness import verify_robustness
from softhull.verify.walks import Quadratics

from ..formats.onnx_models import Builder


def encoder(path: Path, seed: int) -> Path:
    """One layer of attention with a residual connection, a rectified layer behind it, two logits."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    b = Builder(13)
    t = b.op("Reshape", b.op("Gemm", "x", b.const(weights(5, 9)), b.const(weights(9))), b.ints(1, 3, 3))
    q, k, v = (b.op("MatMul", t, b.const(scale * weights(3, 3))) for scale in (2, 2, 1))
    p = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    h = b.op("Add", b.op("MatMul", p, v), t)
    m = b.op("MatMul", b.op("Relu", b.op("MatMul", h, b.const(weights(3, 6)))), b.const(weights(6, 3)))
    y = b.op("Gemm", b.op("Reshape", m, b.ints(1, 9)), b.const(weights(9, 2)))
    onnx.save(b.model(y, (1, 5)), str(path))
    return path


@pytest.mark.parametrize(
    ("seed", "eps", "how", "without"),
    [
        (4, 0.113, "second order", "sharpened"),
        (9, 0.072, "second order, bent rectifiers", "chosen"),
        (9, 0.072, "second order, gradient", "chosen"),
    ],
)
def test_what_the_run_chose_is_needed(
    seed: int, eps: float, how: str, without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it the certificate is written and accepted, without it there is none."""
    if how == "second order, gradient":  # which comes after rectifiers that are bent together
        monkeypatch.setattr(Quadratics, "bent", lambda self, work: iter(()))
    model = encoder(tmp_path / "m.onnx", seed)
    network, x = load_onnx(model), np.random.default_rng(seed).uniform(-0.5, 0.5, 5)
    label, region = int(network.replay(x[None])[0].argmax()), Perturbation(eps)
    (record,) = verify_robustness(network, x[None], [label], region, proofs=True).records
    assert record.verdict is Verdict.CERTIFIED
    assert set((record.proved_by or {}).values()) == {how}
    write_certificate(tmp_path / "c.npz", class_certificate(model, x, label, region, None, 0, record, network))
    assert check_certificate(tmp_path / "c.npz", [model], eps=eps, label=label).accepted
    left: dict[str, Any] = {without: {}}
    with pytest.raises(NoProof, match="prove a margin of -"):
        class_certificate(model, x, label, region, None, 0, replace(record, **left), network)
