"""Every operator the importer knows agrees with onnxruntime and is sound in the graph."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from softhull.formats.describe import describe
from softhull.formats.onnx import load_onnx, parse_onnx
from softhull.regions import Perturbation
from softhull.verify.robustness import verify_robustness

from ..graph.checks import assert_sound
from .onnx_models import CASES, Builder, Case, build, weights


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_agrees_with_onnxruntime_and_is_sound(case: Case):
    network = parse_onnx(build(case.shape, case.make, case.opset), case.name, None)
    x = np.random.default_rng(1).normal(size=(4, *network.input_shape)).astype(np.float32)
    ours = network.graph(torch.from_numpy(x).double()).numpy()
    theirs = network.replay(x)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert_sound(network.graph, seed=2)
    if case.operators is not None:
        assert " ".join(row.operator for row in describe(network)) == case.operators


def _classifier(b: Builder) -> str:
    hidden = b.op("Relu", b.op("Gemm", "x", b.const(weights(5, 8)), b.const(weights(8))))
    return b.op("Gemm", hidden, b.const(weights(8, 3)))


@pytest.mark.parametrize("final", ["Softmax", "Sigmoid", None])
def test_a_final_softmax_or_sigmoid_is_recognised_and_can_be_dropped(final):
    def make(b: Builder) -> str:
        logits = _classifier(b)
        return b.op(final, logits) if final else logits

    network = parse_onnx(build(("N", 5), make), "classifier", None)
    assert network.final == (final.lower() if final else None)
    x = torch.rand((2, 1, 5), dtype=torch.float64)
    logits = network.logits(x)
    assert logits.shape == (2, 1, 3)
    last = {"Softmax": lambda y: y.softmax(-1), "Sigmoid": torch.sigmoid, None: lambda y: y}[final]
    torch.testing.assert_close(last(logits), network.graph(x))


@pytest.mark.parametrize("final", ["Softmax", "Sigmoid"])
def test_a_reshape_behind_the_probabilities_does_not_hide_them(final):
    def make(b: Builder) -> str:
        image = b.op("Conv", "x", b.const(weights(3, 1, 2, 2)))
        return b.op("Flatten", b.op(final, image, **({"axis": 1} if final == "Softmax" else {})))

    network = parse_onnx(build(("N", 1, 2, 2), make), "image", None)
    assert network.final == final.lower()
    assert network.logits.output_shape == (1, 3)


def test_a_network_can_be_sent_to_another_process():
    network = parse_onnx(build((1, 5), _classifier), "classifier", None)
    again = pickle.loads(pickle.dumps(network))
    x = np.random.default_rng(0).random((2, 1, 5))
    np.testing.assert_array_equal(again.replay(x), network.replay(x))
    torch.testing.assert_close(again.graph(torch.from_numpy(x)), network.graph(torch.from_numpy(x)))


def test_a_softmax_inside_is_not_final():
    network = parse_onnx(build((2, 3), lambda b: b.op("Softmax", "x")), "rows", None)
    assert network.final is None


def test_a_softmax_of_one_entry_is_not_final():
    """It is 1 for every input: class 1 by its sign, whatever the sign of the logit before it."""
    network = parse_onnx(
        build((1, 2), lambda b: b.op("Softmax", b.op("MatMul", "x", b.const([[1], [1]])))), "one", None
    )
    x = np.full((1, 2), -1.0)
    assert network.replay(x).item() == 1
    verdicts = [verify_robustness(network, x, [label], Perturbation(0.1))[0].verdict.value for label in (0, 1)]
    assert verdicts == ["misclassified", "certified"]


def test_double_models_are_read_in_double():
    def make(b: Builder) -> str:
        return b.op("Gemm", "x", b.const(weights(4, 2), np.float64))

    network = parse_onnx(build((1, 4), make, dtype=TensorProto.DOUBLE), "double", None)
    x = np.random.default_rng(0).normal(size=(3, 1, 4))
    np.testing.assert_allclose(network.graph(torch.from_numpy(x)).numpy(), network.replay(x), rtol=1e-13)


def test_the_graph_moves_to_another_precision():
    network = parse_onnx(build((1, 5), _classifier), "classifier", None)
    single = network.graph.to(torch.float32)
    x = torch.rand((2, 1, 5), dtype=torch.float64)
    y = single(x.float())
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), network.graph(x), rtol=1e-5, atol=1e-5)


def test_hash_and_path_name_the_file(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(build((1, 5), _classifier))
    first, second = load_onnx(path), load_onnx(str(path))
    assert first.sha256 == second.sha256
    assert len(first.sha256) == 64
    assert first.path == str(path)


def test_describe_counts_parameters_and_names_the_relaxation():
    network = parse_onnx(build((1, 5), lambda b: b.op("Softmax", _classifier(b))), "classifier", None)
    rows = describe(network)
    assert [(row.operator, row.parameters, row.relaxation) for row in rows] == [
        ("Dense", 48, "exact"),
        ("Relu", 0, "two lines per entry"),
        ("Dense", 24, "exact"),
        ("Softmax", 0, "softmax bounds"),
    ]
    assert rows[0].inputs == (-1,)
    assert rows[-1].shape == (1, 3)


def test_external_data_beside_the_model_is_read(tmp_path):
    path = tmp_path / "model.onnx"
    model = onnx.load_from_string(build((1, 5), _classifier))
    onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    network = load_onnx(path)
    inside = parse_onnx(build((1, 5), _classifier), "inside", None)
    assert network.graph.nodes[0].operator.parameters() == inside.graph.nodes[0].operator.parameters()
    (tmp_path / "weights.bin").unlink()
    assert network.replay(np.zeros((1, 1, 5))).shape == (1, 1, 3)
