"""Files whose odd part ordinary inputs do not see: read as the runtime does, or refused; never certified otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from softhull.errors import ModelError
from softhull.formats import agreement
from softhull.formats import onnx as importer
from softhull.formats.onnx import parse_onnx

from .onnx_models import Builder

LARGEST = float(np.finfo(np.float32).max)


def _gated(b: Builder, dtype: Any = np.float32) -> str:
    """Nothing unless an entry of the input is above 5."""
    return str(b.op("Relu", b.op("Sub", "x", b.const(5.0, dtype))))


def _write(make: Callable[[Builder], str], shape: tuple[int, ...], opset: int, kind: int = TensorProto.FLOAT) -> Any:
    builder = Builder(opset)
    return builder.model(make(builder), shape, kind)


def _same_size(kind: str) -> Callable[[Builder], str]:
    """Broadcasting turns the entries round, and the shape at the end does not show it."""
    constant = np.full((4, 1, 1), 2.0 if kind == "Pow" else 0.5)

    def make(b: Builder) -> str:
        y = b.op("Mul", b.op(kind, _gated(b), b.const(constant)), b.const(np.arange(16.0).reshape(4, 1, 4)))
        return str(b.op("ReduceSum", y, b.ints(0), keepdims=0))

    return make


def _folded_softmax(b: Builder) -> str:
    weights = b.op("Softmax", b.const(np.arange(8.0).reshape(2, 2, 2)), axis=1)
    return str(b.op("Mul", b.op("Reshape", _gated(b), b.ints(2, 2, 2)), weights))


def _folded_norm(b: Builder) -> str:
    """A part of a model that depends on no input, such as a decoder on learned queries."""
    normed = b.op("LayerNormalization", b.const(np.arange(8.0).reshape(1, 8) ** 2), b.const(np.full(8, 0.5)), axis=-1)
    return str(b.op("Mul", _gated(b), b.op("Gelu", normed)))


def _half(kind: int) -> Callable[[Builder], str]:
    return lambda b: str(b.op("Cast", b.op("Cast", b.op("Mul", _gated(b), b.const(1000.123)), to=kind), to=1))


def _clipped(*limits: float | None) -> Callable[[Builder], str]:
    def make(b: Builder) -> str:
        far = b.op("Mul", _gated(b), b.const(3e38))
        given = ["" if limit is None else b.const(limit) for limit in limits]
        return str(b.op("Mul", b.op("Clip", far, *given), b.const(1e-38)))

    return make


def _clipped_double(b: Builder) -> str:
    far = b.op("Mul", _gated(b, np.float64), b.const(1e39, np.float64))
    y = b.op("Clip", far, b.const(0.0, np.float64), b.const(LARGEST, np.float64))
    return str(b.op("Mul", y, b.const(1e-38, np.float64)))


def _pool(**settings: Any) -> Callable[[Builder], str]:
    return lambda b: str(b.op("AveragePool", _gated(b), **settings))


def _leaky(b: Builder) -> str:
    return str(b.op("LeakyRelu", b.op("Mul", _gated(b, np.float64), b.const(-1.0, np.float64))))


def _batch_norm(b: Builder) -> str:
    constants = [b.const(value * np.ones(2), np.float64) for value in (1.0, 0.0, 0.0, 1e-9)]
    return str(b.op("BatchNormalization", _gated(b, np.float64), *constants))


def _layer_norm(b: Builder) -> str:
    spread = b.op("Mul", b.op("Add", _gated(b), b.const([[1.0, 2.0, 3.0]])), b.const(1e-4))
    return str(b.op("LayerNormalization", spread, b.const(np.ones(3))))


CASES: dict[str, tuple[Callable[[Builder], str], tuple[int, ...], int, int]] = {
    "power that broadcasts": (_same_size("Pow"), (4, 4), 13, 1),
    "maximum that broadcasts": (_same_size("Max"), (4, 4), 13, 1),
    "minimum of higher rank": (lambda b: b.op("Min", _gated(b), b.const([[[[0.5]]]])), (1, 4), 13, 1),
    "constant normalisation and curve": (_folded_norm, (1, 8), 20, 1),
    "constant softmax of version 11": (_folded_softmax, (1, 8), 11, 1),
    "constant softmax of version 1": (_folded_softmax, (1, 8), 9, 1),
    "cast to half": (_half(TensorProto.FLOAT16), (1, 4), 13, 1),
    "cast to bfloat16": (_half(TensorProto.BFLOAT16), (1, 4), 13, 1),
    "cast to integers": (_half(TensorProto.INT32), (1, 4), 13, 1),
    "cast to booleans": (_half(TensorProto.BOOL), (1, 4), 13, 1),
    "clip at the largest float": (_clipped(0.0, LARGEST), (1, 4), 13, 1),
    "clip below the largest float": (_clipped(0.0, 3.4e38), (1, 4), 13, 1),
    "clip without an upper limit": (_clipped(0.0, None), (1, 4), 13, 1),
    "clip without limits": (_clipped(), (1, 4), 13, 1),
    "clip in double at the largest float": (_clipped_double, (1, 4), 13, TensorProto.DOUBLE),
    "pool with a stride above the kernel": (
        _pool(kernel_shape=[1], strides=[3], auto_pad="SAME_UPPER"),
        (1, 1, 5),
        11,
        1,
    ),
    "dilated pool": (_pool(kernel_shape=[2], dilations=[2], auto_pad="SAME_UPPER"), (1, 1, 5), 19, 1),
    "pool rounding up": (
        _pool(kernel_shape=[3], strides=[2], pads=[1, 1], ceil_mode=1, count_include_pad=1),
        (1, 1, 6),
        19,
        1,
    ),
    "default slope": (_leaky, (1, 4), 16, TensorProto.DOUBLE),
    "default epsilon of a batch": (_batch_norm, (1, 2), 15, TensorProto.DOUBLE),
    "default epsilon of a layer": (_layer_norm, (2, 3), 17, 1),
    "sum of version 6": (lambda b: b.op("Add", _gated(b), b.const(np.ones(2)), broadcast=1, axis=0), (2, 2), 6, 1),
    "dropout in training": (
        lambda b: b.op("Dropout", _gated(b), b.const(0.5), b.op("Not", b.const(False, np.bool_))),
        (1, 4),
        13,
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("probed", [True, False])
def test_read_as_the_runtime_does_or_refused(name, probed, monkeypatch):
    """With the probes of the importer and without: the rules alone must be right."""
    make, shape, opset, kind = CASES[name]
    if not probed:
        monkeypatch.setattr(importer, "_compare", lambda network: None)
    try:
        network = parse_onnx(_write(make, shape, opset, kind).SerializeToString(), name, None)
    except ModelError as error:
        if "please report" in str(error):  # a rule that is wrong, found by the probes alone
            raise
        return
    rng = np.random.default_rng(0)
    for x in (rng.random(shape), rng.uniform(5, 12, size=shape), 20 * rng.normal(size=shape)):
        x = x.astype(network.input_dtype)[None]
        ours, theirs = network.graph(torch.from_numpy(x).double()).numpy(), network.replay(x)
        precision = 1e-5 if network.input_dtype == "float32" else 1e-12
        np.testing.assert_allclose(ours, theirs, rtol=precision, atol=precision * np.abs(theirs).max(initial=0))


ACCEPTED = ("power that broadcasts", "minimum of higher rank", "constant softmax of version 11", "default slope")


@pytest.mark.parametrize("name", [*ACCEPTED, "clip at the largest float", "clip in double at the largest float"])
def test_what_can_be_right_is_not_refused(name):
    make, shape, opset, kind = CASES[name]
    parse_onnx(_write(make, shape, opset, kind).SerializeToString(), name, None)


@pytest.mark.parametrize("domains", [("", "ai.onnx"), ("", ""), ("ai.onnx", ""), ("", "other", "other")])
def test_an_operator_set_is_imported_once(domains):
    model = _write(lambda b: b.op("Softmax", _gated(b), axis=1), (2, 2, 2), 13)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain, 13 - 2 * i) for i, domain in enumerate(domains))
    with pytest.raises(ModelError, match="imported twice"):
        parse_onnx(model.SerializeToString(), "two", None)


@pytest.mark.parametrize(("version", "known"), [(6, False), (7, True), (99, False)])
def test_operator_sets_that_nobody_knows_are_refused(version, known):
    model = _write(_gated, (1, 4), version)
    if known:
        parse_onnx(model.SerializeToString(), "old", None)
        return
    with pytest.raises(ModelError, match=f"version {version} of the operator set"):
        parse_onnx(model.SerializeToString(), "unknown", None)


def _one_relu() -> Any:
    return _write(lambda b: b.op("Relu", b.op("Add", "x", b.const(np.ones(4)))), (1, 4), 13)


def test_a_name_is_defined_once():
    constant = numpy_helper.from_array(np.ones(4, dtype=np.float32), "c0")
    model = _one_relu()
    model.graph.initializer.append(constant)
    with pytest.raises(ModelError, match="'c0' is empty or defined twice"):
        parse_onnx(model.SerializeToString(), "twice", None)
    model = _one_relu()
    model.graph.node[1].output[0] = model.graph.node[0].output[0]
    with pytest.raises(ModelError, match="defined twice"):
        parse_onnx(model.SerializeToString(), "twice", None)
    model = _one_relu()
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "c0"
    with pytest.raises(ModelError, match="'c0' is empty or defined twice"):
        parse_onnx(model.SerializeToString(), "twice", None)
    model = _one_relu()
    model.graph.initializer[0].name = ""
    with pytest.raises(ModelError, match="'' is empty or defined twice"):
        parse_onnx(model.SerializeToString(), "nameless", None)


def test_a_constant_among_the_inputs_is_a_constant():
    model = _one_relu()
    model.graph.input.append(helper.make_tensor_value_info("c0", TensorProto.FLOAT, (4,)))
    assert parse_onnx(model.SerializeToString(), "listed", None).input_name == "x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda node: node.attribute.append(helper.make_attribute("odd", 1)), "'odd' is unknown"),
        (lambda node: node.attribute.extend([helper.make_attribute("axis", 0)] * 2), "given twice"),
        (lambda node: node.attribute.append(helper.make_attribute("axis", 1.0)), "'axis' is of the wrong type"),
        (lambda node: node.input.append("x"), "2 inputs"),
        (lambda node: node.output.append("more"), "2 outputs"),
    ],
)
def test_what_a_rule_does_not_declare_is_refused(change, message):
    model = _write(lambda b: b.op("Softmax", _gated(b)), (2, 3), 13)
    change(model.graph.node[-1])
    with pytest.raises(ModelError, match=message):
        parse_onnx(model.SerializeToString(), "odd", None)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_constants_that_are_no_numbers_are_refused(number):
    for kind in ("Add", "Mul", "Sub", "Max"):
        builder = Builder(13)
        model = builder.model(builder.op(kind, "x", builder.const(number)), (1, 4))
        with pytest.raises(ModelError):
            parse_onnx(model.SerializeToString(), "odd", None)


def test_names_in_messages_are_printable():
    model = _one_relu()
    model.graph.node[0].op_type = "Odd\x1b[2J"
    model.graph.node[0].name = "\x1b[31m"
    with pytest.raises(ModelError) as caught:
        parse_onnx(model.SerializeToString(), "odd", None)
    assert str(caught.value).isprintable()


def test_the_probes_see_many_sizes():
    model = onnx.load_from_string(_one_relu().SerializeToString())
    network = parse_onnx(model.SerializeToString(), "probes", None)
    x = importer.probes(network.input_shape)
    sizes = np.abs(x).max(tuple(range(1, x.ndim)))
    assert sizes.min() == 0
    assert sizes.max() > 50
    for size in (1e-2, 0.5, 5, 50):
        assert ((sizes > size / 5) & (sizes < size * 5)).any()
    assert (x > 5).any()
    assert (x < -5).any()


def test_the_rounding_of_an_output_without_dimensions():
    builder = Builder(13)
    total = builder.op("ReduceSum", builder.op("Mul", "x", builder.const(np.pi)), keepdims=0)
    graph = parse_onnx(builder.model(total, (8,)).SerializeToString(), "one.onnx", None).graph
    moved = agreement.rounding(graph, torch.ones(3, 8, dtype=torch.float64), torch.finfo(torch.float32))
    assert moved.shape == (3,)
    assert (moved > 0).all()
    assert (moved < 1e-4).all()
