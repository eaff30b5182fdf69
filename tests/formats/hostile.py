"""Small files that ask for much memory, and how much they get: ``python -m tests.formats.hostile``."""

from __future__ import annotations

import resource
from collections.abc import Callable

import numpy as np
from onnx import numpy_helper

from softhull.errors import ModelError
from softhull.formats.onnx import parse_onnx

from .onnx_models import Builder, build

Make = Callable[[Builder], str]


def _doubled(b: Builder, x: str, times: int, by: Callable[[str], str]) -> str:
    for _ in range(times):
        x = by(x)
    return x


def _plus(b: Builder, constant: str) -> str:
    return str(b.op("Add", "x", constant))


def _ones(b: Builder, *shape: int) -> str:
    value = numpy_helper.from_array(np.ones(1, dtype=np.float32))
    return str(b.op("ConstantOfShape", b.ints(*shape), value=value))


BIG = 1 << 20
HOSTILE: dict[str, tuple[tuple[int, ...], Make]] = {
    "convolution with huge pads": (
        (1, 1, 1, 1),
        lambda b: b.op("Conv", "x", b.const(np.ones((1, 1, 1, 1))), pads=[4 * 10**8] * 4),
    ),
    "convolution in one dimension with huge pads": (
        (1, 1, 1),
        lambda b: b.op("Conv", "x", b.const(np.ones((1, 1, 1))), pads=[4 * 10**8] * 2),
    ),
    "convolution with pads and a large stride": (
        (1, 1, 1, 1),
        lambda b: b.op("Conv", "x", b.const(np.ones((1, 1, 1, 1))), pads=[20_000] * 4, strides=[10_000] * 2),
    ),
    "convolution that is unfolded": (
        (1, 1, 3000, 3000),
        lambda b: b.op("Conv", "x", b.const(np.ones((1, 1, 50, 50)))),
    ),
    "pool with a huge kernel": (
        (1, 1, 1, 1),
        lambda b: b.op("AveragePool", "x", kernel_shape=[40_000] * 2, pads=[30_000] * 4),
    ),
    "pool with huge pads": (
        (1, 1, 4),
        lambda b: b.op("AveragePool", "x", kernel_shape=[10**9], pads=[9 * 10**8] * 2, count_include_pad=1),
    ),
    "doubling concats": ((1, 1024), lambda b: _doubled(b, "x", 40, lambda v: b.op("Concat", v, v, axis=0))),
    "doubling concats of constants": (
        (1, 4),
        lambda b: _plus(b, _doubled(b, b.const(np.ones((64, 4))), 40, lambda v: b.op("Concat", v, v, axis=0))),
    ),
    "outer product of a constant with itself": (
        (1, 4),
        lambda b: (lambda c: _plus(b, b.op("Einsum", *[c] * 5, equation="a,b,c,d,e->abcde")))(b.const(np.ones(50))),
    ),
    "a constant beside itself": (
        (1, 4),
        lambda b: (lambda c: _plus(b, b.op("Concat", *[c] * 5000, axis=0)))(b.const(np.ones(60_000))),
    ),
    "expand": ((1, 4), lambda b: b.op("Expand", "x", b.ints(BIG, BIG, 4))),
    "many expands": (
        (1, 4),
        lambda b: _doubled(b, "x", 100, lambda v: b.op("Relu", b.op("Expand", v, b.ints(BIG, 4)))),
    ),
    "expand of a constant": ((1, 4), lambda b: _plus(b, b.op("Expand", b.const(np.ones(4)), b.ints(BIG, 64, 4)))),
    "tile of a constant": ((1, 4), lambda b: _plus(b, b.op("Tile", b.const(np.ones((1, 4))), b.ints(BIG * 64, 1)))),
    "constant of a shape": ((1, 4), lambda b: _plus(b, _ones(b, BIG, BIG))),
    "many constants of a shape": (
        (1, 4),
        lambda b: _doubled(b, "x", 100, lambda v: b.op("Add", v, _ones(b, BIG, 4))),
    ),
    "one constant in many places": (
        (1, 4),
        lambda b: (lambda c: _doubled(b, "x", 60, lambda v: b.op("Add", v, c)))(_ones(b, BIG, 4)),
    ),
    "range": ((1, 4), lambda b: b.op("Mul", "x", b.op("Range", *(b.const(v) for v in (0.0, 1e12, 1.0))))),
    "outer sum of constants": (
        (1, 4),
        lambda b: b.op("Add", "x", b.op("Sum", *(b.const(np.ones((200, *(1,) * i))) for i in range(5)))),
    ),
    "outer product of constants": (
        (1, 4),
        lambda b: _plus(b, b.op("Einsum", *(b.const(np.ones(2000)) for _ in "abc"), equation="a,b,c->")),
    ),
    "outer product": (
        (40_000,),
        lambda b: b.op("Einsum", "x", "x", equation="a,b->ab"),
    ),
    "product of broadcast stacks": (
        (1, 2, 1, 1000, 500),
        lambda b: b.op("MatMul", "x", b.op("Reshape", "x", b.ints(1, 1, 2000, 500, 1))),
    ),
    "linear layer with a broadcast stack": (
        (1, 2, 1, 1000, 500),
        lambda b: b.op("MatMul", "x", b.const(np.ones((1, 1, 500, 500, 1)))),
    ),
    "gather": (
        (BIG, 4),
        lambda b: b.op("Gather", "x", b.const(np.zeros(1000), np.int64), axis=1),
    ),
    "where": (
        (1, 1),
        lambda b: b.op("Where", b.const(np.ones((8000, 1)), np.bool_), "x", b.const(np.ones((1, 8000)))),
    ),
    "sum that broadcasts": ((20_000, 1), lambda b: b.op("Add", "x", b.op("Transpose", "x"))),
    "power that broadcasts": ((20_000, 1), lambda b: b.op("Pow", "x", b.const(np.full((1, 20_000), 2.0)))),
    "deep chain": ((1, BIG), lambda b: _doubled(b, "x", 400, lambda v: b.op("Tanh", v))),
    "pad of a constant": (
        (1, 4),
        lambda b: _plus(b, b.op("Pad", b.const(np.ones((1, 4))), b.ints(0, 0, 0, 4 * 10**8))),
    ),
    "pad": ((1, 4), lambda b: b.op("Pad", "x", b.ints(0, 0, 10**5, 10**5))),
    "tile": ((1, 4), lambda b: b.op("Tile", "x", b.ints(BIG, BIG))),
    "maximum over a huge window": (
        (1, 1, 1, 1),
        lambda b: b.op("MaxPool", "x", kernel_shape=[40_000] * 2, pads=[30_000] * 4),
    ),
    "maximum with huge pads": ((1, 1, 4), lambda b: b.op("MaxPool", "x", kernel_shape=[10**9], pads=[9 * 10**8] * 2)),
    "transposed convolution with a huge stride": (
        (1, 1, 2, 2),
        lambda b: b.op("ConvTranspose", "x", b.const(np.ones((1, 1, 1, 1))), strides=[10**5] * 2),
    ),
    "transposed convolution with huge holes": (
        (1, 1, 2, 2),
        lambda b: b.op("ConvTranspose", "x", b.const(np.ones((1, 1, 2, 2))), dilations=[10**5] * 2),
    ),
    "resize": ((1, 1, 2, 2), lambda b: b.op("Resize", "x", "", b.const([1, 1, 1e5, 1e5], np.float32))),
    "resize to a size": ((1, 1, 2, 2), lambda b: b.op("Resize", "x", "", "", b.ints(1, 1, 10**5, 10**5))),
    "gather of points": (
        (1, BIG),
        lambda b: b.op("GatherND", "x", b.const(np.zeros((1000, 1)), np.int64)),
    ),
    "scores of all tokens": (
        (1, 20_000, 1),
        lambda b: b.op("MatMul", "x", b.op("Transpose", "x", perm=[0, 2, 1])),
    ),
    "shapes without end": ((1, 4), lambda b: b.op("Reshape", "x", b.const(np.ones(10**6), np.int64))),
}


def main() -> None:
    parse_onnx(build((1, 4), lambda b: b.op("Relu", _plus(b, _ones(b, 4)))), "start", None)
    before = _peak()
    for name, (shape, make) in HOSTILE.items():
        content = build(shape, make)
        try:
            parse_onnx(content, name, None)
        except ModelError as error:
            outcome = str(error)
        else:
            outcome = "accepted"
        print(f"{_peak() - before:.0f} MB after {len(content)} bytes: {outcome}", flush=True)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
