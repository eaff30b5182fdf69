"""Operators between two layers: the verifier proves a class, and the checker accepts the certificate of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import softhull
from softhull.certificates.write import class_certificate
from softhull.checker.certificate import write_certificate

from ..formats.onnx_models import Builder, build

EPS = 1e-3
Make = Callable[[Builder, str], str]


def _in_the_middle(kind: str, *constants: Any, **attributes: Any) -> Make:
    return lambda b, x: str(b.op(kind, x, *(b.const(c) for c in constants), **attributes))


def _as(shape: tuple[int, ...], make: Make) -> Make:
    return lambda b, x: make(b, str(b.op("Reshape", x, b.ints(*shape))))


def _positive(make: Make) -> Make:
    return lambda b, x: make(b, str(b.op("Exp", x)))


def _rotated(b: Builder, x: str) -> str:
    angles = np.linspace(0, 1, 6).reshape(1, 3, 2)
    return str(b.op("RotaryEmbedding", x, b.const(np.cos(angles)), b.const(np.sin(angles))))


def _eight_bits(b: Builder, x: str) -> str:
    weights = b.const(np.arange(-70, 74).reshape(12, 12), np.int8)
    return str(b.op("MatMul", x, b.op("DequantizeLinear", weights, b.const(0.01), b.const(3, np.int8))))


def _normalized(b: Builder, x: str) -> str:
    """As torch exports ``F.normalize``."""
    length = b.op("Clip", b.op("ReduceL2", x, axes=[2]), b.const(1e-12))
    return str(b.op("Div", x, b.op("Expand", length, b.ints(1, 4, 3))))


def _two_pictures(b: Builder, x: str) -> str:
    return str(b.op("Reshape", b.op("Conv", x, b.const(KERNEL), auto_pad="SAME_LOWER"), b.ints(1, 24)))


_WRITTEN: dict[str, Any] = {
    "antialias": 0,
    "keep_aspect_ratio_policy": "stretch",
    "extrapolation_value": 0.0,
    "exclude_outside": 0,
}
KERNEL = np.array([[[0.5, -0.25]], [[1.0, 0.75]]])
WIDE = np.random.default_rng(5).normal(size=(12, 3)) / 4

MIDDLES: dict[str, tuple[Make, int]] = {
    "sine": (_in_the_middle("Sin"), 17),
    "cosine": (_in_the_middle("Cos"), 22),
    "fourth power": (_in_the_middle("Pow", 4.0), 17),
    "power 2.5": (_positive(_in_the_middle("Pow", 2.5)), 17),
    "power -2": (_positive(_in_the_middle("Pow", -2.0)), 17),
    "clip": (_in_the_middle("Clip", -1.0, 1.5), 17),
    "clip below": (_in_the_middle("Clip", -1.0), 17),
    "clip above": (lambda b, x: str(b.op("Clip", x, "", b.const(1.5))), 17),
    "clip by attributes": (_in_the_middle("Clip", min=-1.0, max=1.5), 10),
    "rows of length 1": (_as((1, 4, 3), _normalized), 17),
    "logarithms of probabilities": (_in_the_middle("LogSoftmax", axis=-1), 17),
    "an average that is rounded up": (
        _as((1, 1, 3, 4), _in_the_middle("AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)),
        17,
    ),
    "convolution of two pictures": (_as((2, 1, 6), _two_pictures), 17),
    "sums of constants": (_in_the_middle("Einsum", np.ones((12, 2)) / 3, equation="ab,cd->ab"), 17),
    "product": (_as((1, 4, 3), _in_the_middle("ReduceProd", axes=[2])), 17),
    "swish": (_in_the_middle("Swish", alpha=1.5), 24),
    "euclidean norm": (_positive(_as((1, 4, 3), _in_the_middle("ReduceL2", axes=[2]))), 17),
    "sum of absolute values": (_as((1, 4, 3), _in_the_middle("ReduceL1", axes=[2])), 17),
    "log sum exp": (_as((1, 4, 3), _in_the_middle("ReduceLogSumExp", axes=[2])), 17),
    "average pool": (_as((1, 1, 3, 4), _in_the_middle("AveragePool", kernel_shape=[2, 2])), 17),
    "largest of all": (_as((1, 3, 2, 2), _in_the_middle("GlobalMaxPool")), 17),
    "padding": (_as((1, 1, 3, 4), lambda b, x: str(b.op("Pad", x, b.ints(0, 0, 1, 0, 0, 0, 0, 1), b.const(0.5)))), 17),
    "interpolation": (
        _as((1, 1, 3, 4), lambda b, x: str(b.op("Resize", x, "", "", b.ints(1, 1, 5, 3), mode="linear"))),
        17,
    ),
    "interpolation as exporters write it": (
        _as((1, 1, 3, 4), lambda b, x: str(b.op("Resize", x, "", b.const([1, 1, 2, 2]), mode="linear", **_WRITTEN))),
        20,
    ),
    "a product of constants": (
        lambda b, x: str(b.op("MatMul", x, b.op("MatMul", b.const(WIDE), b.const(WIDE.T)))),
        17,
    ),
    "attention": (_as((1, 1, 3, 4), lambda b, x: str(b.op("Attention", x, x, x, is_causal=1))), 23),
    "rotation": (_as((1, 1, 3, 4), _rotated), 23),
    "weights of eight bits": (_eight_bits, 17),
}


@pytest.mark.parametrize("name", MIDDLES)
def test_a_class_is_proved_through_the_operator(name, tmp_path):
    make, opset = MIDDLES[name]
    rng = np.random.default_rng(4)

    def network(b: Builder) -> str:
        x = b.op("MatMul", "x", b.const(0.6 * rng.normal(size=(5, 12))))
        return str(b.op("Flatten", make(b, str(x))))

    body = softhull.load_onnx(_saved(tmp_path / "body.onnx", build((1, 5), network, opset)))
    width = int(np.prod(body.graph.nodes[-1].shape))
    head = rng.normal(size=(width, 3))
    rng = np.random.default_rng(4)
    content = build((1, 5), lambda b: str(b.op("MatMul", network(b), b.const(head))), opset)
    path = _saved(tmp_path / "model.onnx", content)
    x = np.random.default_rng(5).normal(size=(1, 5)).astype(np.float32)
    net = softhull.load_onnx(path)
    label = int(net.graph(torch.from_numpy(x).double()).argmax())
    (instance,) = softhull.verify_robustness(net, x, [label], EPS).to_dict()["instances"]
    assert instance["verdict"] == "certified"
    proof = tmp_path / "proof.npz"
    write_certificate(proof, class_certificate(path, x, label, softhull.Perturbation(EPS)))
    found = softhull.check_certificate(proof, [path])
    assert found.accepted, found.reason


def _saved(path: Any, content: bytes) -> Any:
    path.write_bytes(content)
    return path
