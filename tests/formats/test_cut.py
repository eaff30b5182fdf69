"""Models of several inputs, and models cut at the tensor that is perturbed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from softhull.errors import InvalidInput, ModelError
from softhull.formats.onnx import load_onnx
from softhull.verify.robustness import verify_robustness

WORDS, LENGTH, SIZE = 7, 3, 4


def text_model(path: Path, beside: bool = False, batch: int | None = None) -> np.ndarray:
    """A table of embeddings, a mask, a linear layer; ``beside``: the ids are used a second time. Returns the table."""
    rng = np.random.default_rng(0)
    table, weights = rng.normal(size=(WORDS, SIZE)).astype(np.float32), rng.normal(size=(LENGTH * SIZE, 5))
    constants = {
        "table": table,
        "weights": weights.astype(np.float32),
        "head": rng.normal(size=(5, 2)).astype(np.float32),
        "flat": np.array([0, -1]),
        "axis": np.array([2]),
        "one": np.float32(1),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "axis"], ["column"]),
        helper.make_node("Mul", ["embedded", "column"], ["kept"]),
        helper.make_node("Shape", ["ids"], ["shape of ids"]),
        helper.make_node("Gather", ["shape of ids", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "minus"], ["target"], axis=0),
        helper.make_node("Reshape", ["kept", "target"], ["row"]),
        helper.make_node("MatMul", ["row", "weights"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "head"], ["logits"]),
    ]
    constants |= {"first": np.array([0]), "minus": np.array([-1])}
    if beside:
        nodes[-1:] = [
            helper.make_node("MatMul", ["hidden", "head"], ["product"]),
            helper.make_node("Cast", ["ids"], ["real ids"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["real ids", "last"], ["total"]),
            helper.make_node("Add", ["product", "total"], ["logits"]),
        ]
        constants["last"] = np.array([1])
    size = "batch" if batch is None else batch
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info(name, TensorProto.INT64, [size, LENGTH]) for name in ("ids", "mask")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [size, 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return table


MASK = np.array([[1, 1, 0]])


def test_a_cut_model_computes_what_the_whole_does(tmp_path: Path) -> None:
    table = text_model(tmp_path / "m.onnx")
    whole = ReferenceEvaluator(onnx.load(tmp_path / "m.onnx"))
    for perturb in ("embeddings", "embedded", "kept"):
        network = load_onnx(tmp_path / "m.onnx", {"mask": MASK}, perturb)
        assert network.input_shape == (1, LENGTH, SIZE)
        assert network.front is not None
        ids = np.random.default_rng(1).integers(0, WORDS, (5, LENGTH))
        x = network.front.compute(ids[:, None])
        expected = np.concatenate([whole.run(None, {"ids": row[None], "mask": MASK})[0] for row in ids])
        np.testing.assert_allclose(network.replay(x)[:, 0], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(network.graph(torch.from_numpy(x)).numpy()[:, 0], expected, rtol=1e-5, atol=1e-5)
        if perturb != "kept":
            np.testing.assert_array_equal(x[:, 0], table[ids])
    other = load_onnx(tmp_path / "m.onnx", {"mask": np.ones((1, 3))}, "embeddings")
    assert other.sha256 != load_onnx(tmp_path / "m.onnx", {"mask": MASK}, "embeddings").sha256


def test_questions_take_what_the_file_takes_or_the_tensor(tmp_path: Path) -> None:
    text_model(tmp_path / "m.onnx")
    network = load_onnx(tmp_path / "m.onnx", {"mask": MASK[0]}, "embeddings")
    assert network.front is not None
    ids = np.random.default_rng(1).integers(0, WORDS, (6, LENGTH))
    x = network.front.compute(ids[:, None])
    y = network.replay(x)[:, 0].argmax(1)
    by_ids, by_tensor = (verify_robustness(network, given, y, 1e-3) for given in (ids.astype(np.uint8), x))
    assert [r.bound for r in by_ids.records] == [r.bound for r in by_tensor.records]
    with pytest.raises(InvalidInput, match="takes whole numbers"):
        verify_robustness(network, ids + 0.5, y, 1e-3)
    with pytest.raises(InvalidInput, match="onnxruntime cannot compute the perturbed tensor"):
        verify_robustness(network, ids + 100, y, 1e-3)


@pytest.mark.parametrize(
    ("fixed", "perturb", "message"),
    [
        ({}, None, r"2 inputs and 1 outputs; .* fix all inputs \('ids', 'mask'\) but one"),
        ({"mask": MASK}, None, "input 'ids' is not of type float or double; .* --perturb, for example embeddings"),
        ({"masks": MASK}, None, "there is no input 'masks' to fix; inputs: 'ids', 'mask'"),
        ({"mask": np.ones((1, 4))}, "embeddings", r"input 'mask' takes the shape \(1, 3\), not \(1, 4\)"),
        ({"mask": MASK + 0.5}, "embeddings", "takes int64, which does not hold the numbers given"),
        ({"mask": MASK}, "embeded", "there is no tensor 'embeded'; near it: 'embedded'"),
        ({"mask": MASK}, "rows", "the tensor 'rows' holds int64"),
    ],
)
def test_what_cannot_be_cut_is_said_in_one_line(
    fixed: dict[str, np.ndarray], perturb: str | None, message: str, tmp_path: Path
) -> None:
    text_model(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=message) as raised:
        load_onnx(tmp_path / "m.onnx", fixed, perturb)
    assert "\n" not in str(raised.value)


def test_any_tensor_may_be_named(tmp_path: Path) -> None:
    text_model(tmp_path / "m.onnx")
    assert load_onnx(tmp_path / "m.onnx", {"ids": MASK}, "real").input_shape == (1, LENGTH)
    assert load_onnx(tmp_path / "m.onnx", {"mask": MASK}, "sum").input_shape == (1, 5)


def test_values_that_pass_by_the_cut_are_refused(tmp_path: Path) -> None:
    text_model(tmp_path / "m.onnx", beside=True)
    with pytest.raises(ModelError, match="the output depends on the input 'ids' beside the tensor 'embedded', through"):
        load_onnx(tmp_path / "m.onnx", {"mask": MASK}, "embeddings")


def test_values_that_pass_by_the_cut_are_those_of_an_example(tmp_path: Path) -> None:
    """The sum of the ids goes around the embeddings: it stays, and inputs with another one are refused."""
    text_model(tmp_path / "m.onnx", beside=True)
    ids = np.array([[1, 2, 3], [3, 3, 0], [6, 0, 0]])
    network = load_onnx(tmp_path / "m.onnx", {"mask": MASK}, "embeddings", example=ids[:1])
    whole = ReferenceEvaluator(str(tmp_path / "m.onnx"))
    for row in ids:
        wanted = whole.run(None, {"ids": row[None], "mask": MASK})[0]
        assert network.front is not None
        found = network.graph(torch.from_numpy(network.front.compute(row[None])).reshape(1, *network.input_shape))
        np.testing.assert_allclose(found.numpy().ravel(), wanted.ravel(), rtol=1e-5)
    labels = np.array([int(whole.run(None, {"ids": row[None], "mask": MASK})[0].argmax()) for row in ids])
    assert verify_robustness(network, ids, labels, 1e-6).summary()["certified"] == 3
    with pytest.raises(InvalidInput, match=r"'total' \(a mask\?\) of input 1 is not that of the first one"):
        verify_robustness(network, np.array([[1, 2, 3], [1, 1, 1]]), np.array([0, 0]), 1e-6)
    with pytest.raises(ModelError, match=r"the example has the shape \(2,\), the input takes \(1, 3\)"):
        load_onnx(tmp_path / "m.onnx", {"mask": MASK}, "embeddings", example=np.zeros(2))


def test_one_of_several_outputs(tmp_path: Path) -> None:
    text_model(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.output.append(helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", 5]))
    onnx.save(model, tmp_path / "two.onnx")
    given = tmp_path / "two.onnx", {"mask": MASK}, "embeddings"
    with pytest.raises(
        ModelError, match=r"name one of the outputs \('logits', 'hidden'\), with output= or --output NAME"
    ):
        load_onnx(*given)
    with pytest.raises(ModelError, match="there is no output 'logit'; outputs: 'logits', 'hidden'"):
        load_onnx(*given, output="logit")
    one, alone = load_onnx(*given, output="logits"), load_onnx(tmp_path / "m.onnx", {"mask": MASK}, "embeddings")
    assert load_onnx(*given, output="hidden").graph.output_shape == (1, 5)
    x = torch.randn(3, *one.input_shape, dtype=torch.float64)
    torch.testing.assert_close(one.graph(x), alone.graph(x), rtol=0, atol=0)
    assert one.changed
    assert b"hidden" in one.model  # the tensor is computed, and is no output
    assert len(onnx.load_model_from_string(one.model).graph.output) == 1


def test_a_batch_that_is_fixed_is_refused_by_questions(tmp_path: Path) -> None:
    text_model(tmp_path / "m.onnx", batch=4)
    network = load_onnx(tmp_path / "m.onnx", {"mask": np.tile(MASK, (4, 1))}, "embeddings")
    with pytest.raises(ModelError, match="a batch of 4 is fixed in the file; export it again with one example"):
        verify_robustness(network, np.zeros((4, LENGTH), dtype=int), np.zeros(4, dtype=int), 0.1)


def test_the_last_word_that_is_no_padding_may_be_picked(tmp_path: Path) -> None:
    """Generative classifiers read the logits of the last word, which they find by ArgMax of the ids."""
    rng = np.random.default_rng(0)
    constants = {
        "table": rng.normal(size=(WORDS, SIZE)).astype(np.float32),
        "head": rng.normal(size=(SIZE, 2)).astype(np.float32),
        "pad": np.array(0),
        "places": np.arange(LENGTH),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "head"], ["all"]),
        helper.make_node("Equal", ["ids", "pad"], ["padded"]),
        helper.make_node("Not", ["padded"], ["kept"]),
        helper.make_node("Cast", ["kept"], ["counted"], to=TensorProto.INT64),
        helper.make_node("Mul", ["counted", "places"], ["scored"]),
        helper.make_node("ArgMax", ["scored"], ["last"], axis=1, keepdims=0),
        helper.make_node("Gather", ["all", "last"], ["logits"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "last word",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, LENGTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1, 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    ids = np.array([[3, 2, 0]])
    network = load_onnx(path, perturb="embeddings", example=ids)
    assert network.front is not None
    expected = ReferenceEvaluator(onnx.load(path)).run(None, {"ids": ids})[0]
    x = network.front.compute(ids)
    np.testing.assert_allclose(network.graph(torch.from_numpy(x)).numpy()[0], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(expected[0], constants["table"][[2]] @ constants["head"], rtol=1e-6, atol=1e-6)
    with pytest.raises(InvalidInput, match=r"\(a mask\?\) of input 0 is not that of"):
        network.front.compute(np.array([[3, 2, 1]]))


def test_what_is_too_costly_is_not_run(tmp_path: Path) -> None:
    """The part before the cut is computed at import: nothing unknown, and nothing that fills the memory."""
    text_model(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 20, 1 << 20, 4]), "huge"))
    large = helper.make_node("Expand", ["embedded", "huge"], ["large"])
    model.graph.node.insert(1, large)
    onnx.save(model, tmp_path / "large.onnx")
    with pytest.raises(ModelError):
        load_onnx(tmp_path / "large.onnx", {"mask": MASK}, "large")
    del model.graph.node[1]
    model.graph.node.insert(1, helper.make_node("RandomUniformLike", ["embedded"], ["drawn"]))
    model.graph.node[4].input[0] = "drawn"
    onnx.save(model, tmp_path / "drawn.onnx")
    with pytest.raises(ModelError, match=r"'drawn' \(RandomUniformLike\) before the perturbed tensor"):
        load_onnx(tmp_path / "drawn.onnx", {"mask": MASK}, "kept")
