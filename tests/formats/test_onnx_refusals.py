"""Files that cannot be used get one line naming file, node and operator; nothing outside the folder is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from softhull.errors import ModelError
from softhull.formats.onnx import load_onnx, parse_onnx

from .onnx_models import Builder, build, weights


def _write(tmp_path, content: bytes):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    return path


def _linear(b: Builder) -> str:
    return b.op("Gemm", "x", b.const(weights(4, 2)))


REFUSED: dict[str, tuple[tuple[int | str, ...], Callable[[Builder], str], str]] = {
    "unknown operator": ((1, 4), lambda b: b.op("Tan", "x"), r"node 'n0' \(Tan\).*not supported"),
    "another domain": ((1, 4), lambda b: b.op("Relu", "x", domain="com.example"), r"domain 'com.example'"),
    "maximum of many": ((1, 2000), lambda b: b.op("ReduceMax", "x"), r"\(ReduceMax\).*2000 entries; at most 1024"),
    "a question about numbers": (
        (1, 4),
        lambda b: b.op("Where", b.op("IsNaN", b.op("Exp", "x")), b.const(0.0), b.op("Neg", "x")),
        r"\(Where\).*condition depends on the network input",
    ),
    "a row that sees nothing": (
        (2, 3),
        lambda b: b.op("Softmax", b.op("Add", "x", b.const([[0.0, 0, 0], [-np.inf, -np.inf, -np.inf]])), axis=-1),
        r"\(Softmax\): all logits of a row are masked",
    ),
    "a row that sees nothing, in finite numbers": (
        (2, 3),
        lambda b: b.op("Softmax", b.op("Add", "x", b.const([[0.0, 0, -3e38], [-3e38, -3e38, -3e38]])), axis=-1),
        r"\(Softmax\): all logits of a row are masked",
    ),
    "two powers": ((1, 2), lambda b: b.op("Pow", "x", b.const([2.0, 3.0])), r"\(Pow\).*one constant exponent"),
    "shape from values": ((1, 4), lambda b: b.op("Reshape", "x", "x"), r"\(Reshape\).*depends on the network input"),
    "impossible reshape": ((1, 4), lambda b: b.op("Reshape", "x", b.ints(3, 2)), r"cannot reshape \(1, 4\)"),
    "impossible product": ((1, 4), lambda b: b.op("MatMul", "x", b.const(weights(3, 2))), r"\(MatMul\).*shape"),
    "division by zero": ((1, 4), lambda b: b.op("Div", "x", b.const(0.0)), r"\(Div\).*constant 0"),
    "huge expansion": ((1, 4), lambda b: b.op("Expand", "x", b.ints(10**6, 10**6, 4)), r"\(Expand\).*larger"),
    "huge constant": (
        (1, 4),
        lambda b: b.op("Add", "x", b.op("ConstantOfShape", b.ints(10**6, 10**6))),
        r"\(ConstantOfShape\).*too large",
    ),
    "huge range": (
        (1, 4),
        lambda b: b.op("Add", "x", b.op("Range", *(b.const(v) for v in (0.0, 1e12, 1.0)))),
        r"\(Range\).*too large",
    ),
    "huge outer sum": (
        (1, 4),
        lambda b: b.op("Add", "x", b.op("Add", b.const(np.zeros((10**5, 1))), b.const(np.zeros(10**5)))),
        r"\(Add\).*too large",
    ),
    "least whole number over -1": (  # the processor would end the process
        (1, 4),
        lambda b: b.op("Add", "x", b.op("Cast", b.op("Div", b.ints(-(2**63)), b.ints(-1)), to=TensorProto.FLOAT)),
        r"\(Div\).*beyond its range",
    ),
    "symbolic size": (("N", "M"), lambda b: b.op("Relu", "x"), "symbolic; export the model with fixed sizes"),
    "constant output": ((1, 4), lambda b: b.op("Identity", b.const(1.0)), "does not depend on the input"),
    "random": ((1, 4), lambda b: b.op("Add", "x", b.op("RandomNormal", shape=[4])), r"\(RandomNormal\)"),
    "dropout in training": (
        (1, 4),
        lambda b: b.op("Dropout", "x", b.const(0.5), b.const(True, np.bool_)),
        r"\(Dropout\).*evaluation mode",
    ),
    "unknown gelu": ((1, 4), lambda b: b.op("Gelu", "x", approximate="cosh"), r"\(Gelu\).*'cosh' is unknown"),
    "undefined input": ((1, 4), lambda b: b.op("Add", "x", "nowhere"), r"'nowhere' is not computed before it"),
    "not finite": ((1, 4), lambda b: b.op("Log", b.op("Neg", b.op("Exp", "x"))), "not finite"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name, tmp_path):
    shape, make, message = REFUSED[name]
    path = _write(tmp_path, build(shape, make, opset=20))
    with pytest.raises(ModelError, match=message) as caught:
        load_onnx(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_several_inputs_are_refused():
    builder = Builder()
    model = builder.model(builder.op("Add", "x", "z"), (1, 4))
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 4)))
    with pytest.raises(ModelError, match="2 inputs and 1 outputs"):
        parse_onnx(model.SerializeToString(), "two", None)


def test_integer_inputs_are_refused():
    with pytest.raises(ModelError, match="not of type float"):
        parse_onnx(build((1, 4), _linear, dtype=TensorProto.INT64), "integers", None)


def test_missing_file(tmp_path):
    with pytest.raises(ModelError, match=r"nothing.onnx: cannot be read \(No such file"):
        load_onnx(tmp_path / "nothing.onnx")
    with pytest.raises(ModelError, match="cannot be read"):
        load_onnx(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04\x95pickle", bytes(range(256)) * 10])
def test_not_onnx(tmp_path, content):
    with pytest.raises(ModelError, match="not an ONNX file"):
        load_onnx(_write(tmp_path, content))


def test_damaged_files_never_escape_as_other_errors(tmp_path):
    rng = np.random.default_rng(3)
    whole = build((1, 4), lambda b: b.op("Softmax", b.op("Relu", _linear(b))))
    messages = []
    for _ in range(150):
        content = bytearray(whole)
        for position in rng.integers(0, len(content), size=rng.integers(1, 6)):
            content[position] = rng.integers(0, 256)
        if rng.random() < 0.3:
            content = content[: rng.integers(0, len(content))]
        try:
            parse_onnx(bytes(content), "damaged", None)
        except ModelError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)


def _external(location: str) -> bytes:
    model = onnx.load_from_string(build((1, 4), _linear))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "32")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return model.SerializeToString()


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "C:\\x.bin", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(bytes(32))
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelError, match="outside the folder"):
        load_onnx(_write(folder, _external(location)))


@pytest.mark.parametrize("location", ["a\x00b.bin", "\x1b[2J.bin", "a\nb.bin"])
def test_external_data_with_an_odd_name_is_refused_in_one_line(tmp_path, location):
    with pytest.raises(ModelError, match="cannot be printed") as caught:
        load_onnx(_write(tmp_path, _external(location)))
    assert str(caught.value).isprintable()


def test_external_data_through_links_in_a_circle_is_refused(tmp_path):
    (tmp_path / "a.bin").symlink_to(tmp_path / "b.bin")
    (tmp_path / "b.bin").symlink_to(tmp_path / "a.bin")
    with pytest.raises(ModelError, match=r"cannot be read|no such file"):
        load_onnx(_write(tmp_path, _external("a.bin")))


def test_external_data_through_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(32))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match="outside the folder"):
        load_onnx(_write(folder, _external("link.bin")))


def test_external_data_that_is_missing_or_short(tmp_path):
    path = _write(tmp_path, _external("weights.bin"))
    with pytest.raises(ModelError, match="no such file"):
        load_onnx(path)
    (tmp_path / "weights.bin").write_bytes(bytes(7))
    with pytest.raises(ModelError, match="shorter than the model says"):
        load_onnx(path)


def test_external_data_of_a_model_in_memory_is_refused():
    with pytest.raises(ModelError, match="no folder"):
        parse_onnx(_external("weights.bin"), "memory", None)
