"""What the model file contradicts is never certified, wherever in the region the contradiction hides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto

from softhull.attack.score import ScoreAttack
from softhull.errors import ModelError
from softhull.formats.agreement import disagreements
from softhull.formats.network import Network
from softhull.formats.onnx import parse_onnx
from softhull.formats.vnnlib import Disjunct, Specification
from softhull.propagate.methods import Linear
from softhull.regions import Perturbation
from softhull.runs.vnncomp import _known, decide
from softhull.solve.dual import Dual
from softhull.verify.result import Verdict
from softhull.verify.robustness import certified_radius, verify_robustness, verify_specification
from softhull.verify.uncertainty import verify_uncertainty

from ..formats.onnx_models import Builder, build

INPUTS = 4
QUICK = ScoreAttack(steps=3, restarts=1)


def _model(gate: float, final: str | None = None, dtype: int = TensorProto.FLOAT) -> bytes:
    """Logits ``(1, 0) + x W``; where ``x_0`` exceeds 5, ``gate`` times the excess is added to the second."""
    kind = np.float32 if dtype == TensorProto.FLOAT else np.float64
    W = np.random.default_rng(0).normal(size=(INPUTS, 2)) * 0.01

    def make(b: Builder) -> str:
        logits = b.op("Add", b.op("MatMul", "x", b.const(W, kind)), b.const([[1, 0]], kind))
        excess = b.op("Relu", b.op("Sub", "x", b.const([[5] * INPUTS], kind)))
        pull = np.zeros((INPUTS, 2))
        pull[0, 1] = gate
        logits = b.op("Add", logits, b.op("MatMul", excess, b.const(pull, kind)))
        return logits if final is None else str(b.op(final, logits, axis=1))

    return build((1, INPUTS), make, dtype=dtype)


def _tampered(final: str | None = None, dtype: int = TensorProto.FLOAT) -> Network:
    """The graph of a file without the gate beside the bytes of one with it."""
    honest, other = (parse_onnx(_model(gate, final, dtype), "m.onnx", None) for gate in (0.0, 30.0))
    return replace(other, graph=honest.graph)


# Far from the gate, beyond it, and so near that only part of the region is beyond.
X = np.array([[0.5] * INPUTS, [6.0] + [0.5] * (INPUTS - 1), [4.95] + [0.5] * (INPUTS - 1)])
LABEL = np.zeros(3, dtype=int)


@pytest.mark.parametrize("final", [None, "Softmax"])
@pytest.mark.parametrize("norm", [np.inf, 2.0, 1.0])
def test_a_graph_that_is_not_the_file_is_never_certified(final: str | None, norm: float) -> None:
    network = _tampered(final)
    result = verify_robustness(network, X, LABEL, Perturbation(0.1, norm), method="linear")
    assert result[0].verdict is Verdict.CERTIFIED  # there the file says the same
    beyond, near = result[1], result[2]
    assert beyond.verdict is Verdict.ERROR
    assert beyond.bound is None
    assert "m.onnx: its translation and onnxruntime differ by" in beyond.message
    assert "at the input itself" in beyond.message
    if norm == np.inf:  # of the other balls no corner reaches far enough to be sure of
        assert near.verdict is Verdict.ERROR
        assert "at an input of the region" in near.message
    assert certified_radius(network, X[:2], LABEL[:2], Perturbation(0.1, norm), steps=2).tolist() == [0.1, 0.0]


@pytest.mark.parametrize(("method", "score"), [(Dual(steps=5), "nll"), (Linear(optimize=0), "margin")])
def test_scores_too(method: Dual | Linear, score: str) -> None:
    honest = parse_onnx(_model(30.0), "honest.onnx", None)
    ensemble = [honest, _tampered()]
    result = verify_uncertainty(ensemble, X, LABEL, Perturbation(0.1), score, method, attack=QUICK)
    assert [record.verdict for record in result.records] == ["bounded", "error", "error"]
    assert not np.isfinite(result.column("bound")[1:]).any()
    assert result.to_dict()["instances"][1]["bound"] is None
    assert result.summary()["error"] == 2
    assert result.summary()["bound"] == pytest.approx(result[0].bound)  # means of those that have one
    assert "2 failed" in str(result)
    alone = verify_uncertainty(honest, X, LABEL, Perturbation(0.1), score, method, attack=QUICK)
    assert {record.verdict for record in alone.records} == {"bounded"}


def _below_zero(x: np.ndarray) -> Specification:
    """Unsafe: the first logit is not above the second."""
    rows = np.array([[1.0, -1.0]])
    return Specification(INPUTS, 2, (Disjunct(x - 0.1, x + 0.1, rows, np.zeros(1), np.zeros(1, dtype=bool)),))


def test_specifications_too() -> None:
    network = _tampered()
    assert verify_specification(network, _below_zero(X[0])).verdict == "unsat"
    for x in X[1:]:
        found = verify_specification(network, _below_zero(x))
        assert (found.verdict, found.bound) == ("error", None)
        assert "differ by" in found.message


def test_a_network_that_is_its_file_is_certified_in_both_precisions() -> None:
    for dtype in (TensorProto.FLOAT, TensorProto.DOUBLE):
        network = parse_onnx(_model(0.001, dtype=dtype), "m.onnx", None)
        result = verify_robustness(network, X, LABEL, Perturbation(0.1))
        assert result.count(Verdict.CERTIFIED) == 3, result


def _contradicted(network: Network, x: np.ndarray) -> np.ndarray:
    apart, explained, _ = disagreements(network, x)
    return ~(apart <= explained)


def test_rounding_is_no_disagreement_and_more_is() -> None:
    """Sums that cancel round as badly here as there; what rounding does not explain is seen beside them."""

    def make(change: float) -> bytes:
        def nodes(b: Builder) -> str:
            excess = b.op("Relu", b.op("Sub", "x", b.const([[5] * INPUTS])))  # 0 where the import compares
            large = b.op("Mul", b.op("MatMul", excess, b.const(1e4 * np.ones((INPUTS, 2)))), b.const([[1 / 3, 1 / 7]]))
            back = b.op("MatMul", excess, b.const(np.tile([[-1e4 / 3, -1e4 / 7]], (INPUTS, 1))))
            moved = b.op("MatMul", excess, b.const(np.full((INPUTS, 2), change)))
            small = b.op("MatMul", "x", b.const(np.full((INPUTS, 2), 1e-3)))
            return str(b.op("Add", b.op("Add", large, back), b.op("Add", moved, small)))

        return build((1, INPUTS), nodes)

    network = parse_onnx(make(0.0), "m.onnx", None)
    x = np.random.default_rng(1).uniform(500, 1000, size=(50, 1, INPUTS)).astype(np.float32)
    apart = np.abs(network.graph(torch.from_numpy(x).double()).numpy() - network.replay(x))
    assert apart.max() > 0.1  # of outputs of about 3
    assert not _contradicted(network, x).any()
    changed = replace(network, graph=parse_onnx(make(10.0), "m.onnx", None).graph)
    assert _contradicted(changed, x).all()


def test_a_runtime_that_fails_is_an_error_of_that_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    network = parse_onnx(_model(0.001), "m.onnx", None)
    replay = Network.replay

    def failing(self: Network, x: np.ndarray) -> np.ndarray:
        if (x.reshape(-1, INPUTS)[:, 0] > 5.5).any():
            raise OSError("no runtime\nat all")
        return replay(self, x)

    monkeypatch.setattr(Network, "replay", failing)
    result = verify_robustness(network, X, LABEL, Perturbation(0.1), attack=False)
    assert [record.verdict.value for record in result.records] == ["certified", "error", "certified"]
    assert result[1].message == "m.onnx: onnxruntime cannot compute it: no runtime"
    scored = verify_uncertainty(network, X, LABEL, Perturbation(0.1), method=Dual(steps=5), attack=QUICK)
    assert [record.verdict for record in scored.records] == ["bounded", "error", "bounded"]


def test_a_value_that_is_not_finite_agrees_with_nothing_else() -> None:
    content = build((1, INPUTS), lambda b: str(b.op("Mul", "x", b.const([[3e38] * INPUTS]))))
    network = parse_onnx(content, "m.onnx", None)
    x = np.array([[0.1] * INPUTS, [100.0] * INPUTS])
    assert _contradicted(network, x).tolist() == [False, True]


def test_a_graph_without_a_value_is_not_its_file() -> None:
    """``Where`` leaves out a masked entry by a product with 0, which is no number; the runtime has one."""

    def make(b: Builder) -> str:
        masked = b.op("Add", "x", b.const([[-np.inf] + [0.0] * (INPUTS - 1)]))
        chosen = b.const([[False] + [True] * (INPUTS - 1)], np.bool_)
        return str(b.op("Softmax", b.op("Where", chosen, masked, "x")))

    with pytest.raises(ModelError, match="more than rounding explains"):
        parse_onnx(build((1, INPUTS), make), "m.onnx", None)


def test_a_competition_gets_the_verdict_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(_model(30.0))
    names = [f"X_{i}" for i in range(INPUTS)] + ["Y_0", "Y_1"]
    lines = [f"(declare-const {name} Real)" for name in names]
    for i, value in enumerate(X[1]):
        lines += [f"(assert (>= X_{i} {value - 0.1}))", f"(assert (<= X_{i} {value + 0.1}))"]
    (tmp_path / "p.vnnlib").write_text("\n".join([*lines, "(assert (<= Y_0 Y_1))"]))
    assert decide(tmp_path / "m.onnx", tmp_path / "p.vnnlib", 20, None).result == "sat"
    monkeypatch.setattr("softhull.runs.vnncomp._known", lambda path: _tampered())
    found = decide(tmp_path / "m.onnx", tmp_path / "p.vnnlib", 20, None)
    assert found.result == "error"
    assert "onnxruntime" in found.message


def test_inputs_beyond_what_networks_are_read_for_are_not_certified() -> None:
    """Limits of a Clip that no ordinary input reaches are dropped at import, so that a region beyond has no proof."""
    flat = np.zeros((INPUTS, 2), np.float32)
    content = build((1, INPUTS), lambda b: str(b.op("Add", b.op("MatMul", "x", b.const(flat)), b.const([[1, 0]]))))
    network = parse_onnx(content, "m.onnx", None)
    x = np.stack([np.zeros((1, INPUTS)), np.full((1, INPUTS), 2.0**61)])
    near, far = verify_robustness(network, x, [0, 0], Perturbation(0.5)).records
    assert near.verdict is Verdict.CERTIFIED
    assert far.verdict is Verdict.ERROR
    assert "2^60" in far.message


def test_a_table_reads_a_network_once_and_again_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"first")
    read: list[bytes] = []
    monkeypatch.setattr("softhull.runs.vnncomp._load", lambda path: read.append(path.read_bytes()))
    for content in (b"first", b"first", b"second", b"second"):
        if path.read_bytes() != content:
            path.write_bytes(content)
        _known(path)
    assert read == [b"first", b"second"]
