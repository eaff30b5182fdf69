"""Networks so small that their values over a region are known, each with a structure that a proof can get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from softhull.regions import Perturbation

from ...formats.onnx_models import Builder


@dataclass(frozen=True)
class Instance:
    """Models, an input and a region around it; numbers are short, so that the ends of the region are floats."""

    name: str
    paths: tuple[Path, ...]
    models: tuple[onnx.ModelProto, ...]
    x: np.ndarray
    region: Perturbation
    share: int = 1  # of the forgeries


def _weights(seed: int, *shape: int) -> np.ndarray:
    """Multiples of 1/8: sums and products of them are exact, so that bounds can be tight to the last bit."""
    return np.random.default_rng(seed).integers(-8, 9, shape) / 8


def _affine(b: Builder) -> str:
    h = b.op("MatMul", "x", b.const([[0.1, -0.7], [1.3, 0.3]]))
    return str(b.op("Add", h, b.const([[0.3, -0.1]])))


def _relu(b: Builder) -> str:
    h = b.op("Relu", b.op("Gemm", "x", b.const(_weights(1, 2, 3)), b.const([-0.125, 0.0, 0.125])))
    h = b.op("Sub", h, b.const([[0.125, 0.0, 0.25]]))
    return str(b.op("Gemm", h, b.const(_weights(3, 2, 3)), b.const([0.5, 0.0]), transB=1))


def _leaky(b: Builder) -> str:
    """Rounding everywhere, several kinks, one logit."""
    h = b.op("Div", b.op("MatMul", "x", b.const([[0.1, -0.7], [1.3, 0.3]])), b.const([[3.0, 7.0]]))
    h = b.op("LeakyRelu", h, alpha=0.25)
    h = b.op("LeakyRelu", b.op("Add", h, b.op("Identity", h)), alpha=0.1)
    return str(b.op("Gemm", h, b.const([[1.1], [-0.9]]), b.const([0.05])))


def _product(b: Builder) -> str:
    """``(x0 x1 + 1/2, 0)``: a stop between the product and the input leaves out what was split off."""
    first = b.op("MatMul", "x", b.const([[1.0], [0.0]]))
    second = b.op("Gather", "x", b.ints(1), axis=1)
    return str(b.op("MatMul", b.op("Mul", first, second), b.const([[1.0, 0.0]])) and _plus(b, [[0.5, 0.0]]))


def _plus(b: Builder, bias: Any) -> str:
    """The last value plus a constant."""
    return str(b.op("Add", b.nodes[-1].output[0], b.const(bias)))


def _shared(b: Builder) -> str:
    """Squares and products of one node with itself, used twice."""
    h = b.op("MatMul", "x", b.const(_weights(4, 2, 2)))
    square = b.op("Mul", h, h)
    outer = b.op("Einsum", h, h, equation="bi,bj->bij")
    both = b.op("Add", b.op("Reshape", outer, b.ints(2, 2)), b.op("Transpose", square, perm=[1, 0]))
    return str(b.op("MatMul", b.op("Reshape", both, b.ints(1, 4)), b.const(_weights(5, 4, 2))))


def _attention(b: Builder) -> str:
    """Two tokens of width 1 with queries, keys and values; two rows of two logits."""
    t = b.op("Reshape", "x", b.ints(1, 2, 1))
    q = b.op("MatMul", t, b.const([[[1.5]]]))
    scores = b.op("MatMul", q, b.op("Transpose", t, perm=[0, 2, 1]))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), t)
    flat = b.op("Flatten", b.op("Add", mixed, t), axis=1)
    return str(b.op("Gemm", flat, b.const([[1.0, -0.5], [0.25, 0.75]]), b.const([0.25, 0.0])))


def _weighted(b: Builder) -> str:
    """Softmax of affine logits times affine values, the softmax output moved before it is used."""
    p = b.op("Softmax", b.op("MatMul", "x", b.const(_weights(6, 2, 3))), axis=1)
    p = b.op("Gather", p, b.ints(2, 0, 1), axis=1)
    v = b.op("Reshape", b.op("MatMul", "x", b.const(_weights(7, 2, 6))), b.ints(3, 2))
    return str(b.op("MatMul", p, v) and _plus(b, [[0.25, 0.0]]))


def _residual(b: Builder) -> str:
    """Probabilities beside an affine function of the input, so that neither end of their range need be the worst."""
    p = b.op("Softmax", b.op("MatMul", "x", b.const([[2.0, -1.0], [1.0, 0.5]])), axis=-1)
    mixed = b.op("MatMul", p, b.const([[1.0, -1.0], [0.5, 0.25]]))
    return str(b.op("Add", mixed, b.op("Gemm", "x", b.const([[-0.5, 0.0], [0.0, 0.25]]), b.const([0.5, 0.0]))))


def _repeated(b: Builder) -> str:
    """A softmax over one logit twice and another, multiplied with values behind it."""
    logits = b.op("MatMul", "x", b.const([[1.0, -0.5], [0.5, 1.0]]))
    p = b.op("Softmax", b.op("Gather", logits, b.ints(0, 0, 1), axis=1), axis=-1)
    v = b.op("Reshape", b.op("MatMul", "x", b.const(_weights(8, 2, 6))), b.ints(3, 2))
    return str(b.op("MatMul", p, v) and _plus(b, [[0.5, 0.0]]))


def _twins(b: Builder) -> str:
    """The output is a softmax whose first two classes are one logit."""
    logits = b.op("MatMul", "x", b.const([[1.0, -0.5], [0.5, 1.0]]))
    return str(b.op("Softmax", b.op("Gather", logits, b.ints(0, 0, 1), axis=1), axis=-1))


def _masked(b: Builder) -> str:
    """One of three logits is masked; the rows of the softmax are columns of the tensor."""
    logits = b.op("Reshape", b.op("MatMul", "x", b.const(_weights(9, 2, 6))), b.ints(1, 3, 2))
    masked = b.op("Add", logits, b.const([[[0.0], [-1e4], [0.0]]]))
    p = b.op("Softmax", masked, axis=1)
    v = b.op("Unsqueeze", b.op("Relu", "x"), b.ints(1))
    return str(b.op("Squeeze", b.op("Gather", b.op("Mul", p, v), b.ints(0), axis=1), b.ints(1)))


def _spread(b: Builder) -> str:
    """Rows and columns that are broadcast against each other, by sums and by products."""
    row, column = b.op("Reshape", "x", b.ints(1, 2)), b.op("Transpose", "x", perm=[1, 0])
    both = b.op("Mul", b.op("Add", row, column), b.op("Sub", row, b.op("Mul", column, b.const(0.5))))
    return str(b.op("MatMul", b.op("Reshape", both, b.ints(1, 4)), b.const(_weights(10, 4, 2))))


def _single(b: Builder) -> str:
    """Softmax rows of one entry are 1 whatever the logits are."""
    p = b.op("Softmax", b.op("Unsqueeze", "x", b.ints(2)), axis=-1)
    scaled = b.op("Mul", b.op("Squeeze", p, b.ints(2)), b.op("MatMul", "x", b.const(_weights(11, 2, 2))))
    return str(b.op("Add", scaled, b.const([[0.25, 0.0]])))


def _old(b: Builder) -> str:
    """Before operator set 13 the default softmax runs over all axes from the first on."""
    p = b.op("Softmax", b.op("Reshape", "x", b.ints(1, 2, 1)))
    return str(b.op("Reshape", p, b.ints(1, 2)))


def _curved(b: Builder) -> str:
    """Curves that bend both ways, one of them of a product that is one curve."""
    h = b.op("MatMul", "x", b.const(_weights(12, 2, 3)))
    bent = b.op("Tanh", b.op("Add", h, b.const([[0.5, 0.0, -0.25]])))
    gated = b.op("Mul", h, b.op("Sigmoid", h))
    return str(b.op("Gemm", b.op("Sub", bent, gated), b.const(_weights(13, 3, 2)), b.const([0.25, 0.0])))


def _normed(b: Builder) -> str:
    """A normalisation over three numbers: squares, a root in a denominator, and a product of both."""
    h = b.op("Gemm", "x", b.const(_weights(14, 2, 3)), b.const([0.5, -0.25, 0.0]))
    y = b.op("LayerNormalization", h, b.const([1.0, -0.5, 2.0]), b.const([0.0, 0.25, 0.0]), axis=-1, epsilon=0.5)
    return str(b.op("MatMul", y, b.const(_weights(15, 3, 2))) and _plus(b, [[0.5, 0.0]]))


def _pooled(b: Builder) -> str:
    """A convolution whose windows lie partly in the padding, and the largest entries of overlapping windows."""
    h = b.op("Conv", b.op("Reshape", "x", b.ints(1, 1, 2)), b.const(_weights(16, 2, 1, 2)), b.const([0.125, 0.0]),
             pads=[1, 1], kernel_shape=[2])  # fmt: skip
    h = b.op("Flatten", b.op("MaxPool", h, kernel_shape=[2], pads=[1, 0], strides=[1]), axis=1)
    return str(b.op("MatMul", h, b.const(_weights(17, 6, 2))) and _plus(b, [[0.25, 0.0]]))


def _clipped(b: Builder) -> str:
    """Limits of which some are reached, none of them 0: below alone, above alone, and both."""
    h = b.op("MatMul", "x", b.const(_weights(43, 2, 3)))
    low, high = b.const(-0.25), b.const(0.125)
    some = [b.op("Clip", h, low), b.op("Clip", h, "", high), b.op("Clip", h, low, high)]
    return str(b.op("MatMul", b.op("Concat", *some, axis=1), b.const(_weights(44, 9, 2))) and _plus(b, [[0.5, 0.0]]))


def _logarithms(b: Builder) -> str:
    """Logarithms of probabilities that the network goes on with, which are not their order alone."""
    p = b.op("LogSoftmax", b.op("MatMul", "x", b.const(_weights(45, 2, 3))), axis=-1)
    return str(b.op("MatMul", p, b.const(_weights(46, 3, 2))) and _plus(b, [[0.5, 0.0]]))


def _steep(b: Builder) -> str:
    """Kinks of slopes above 1 and below 0."""
    h = b.op("LeakyRelu", b.op("MatMul", "x", b.const(_weights(55, 2, 3))), alpha=3.0)
    h = b.op("LeakyRelu", b.op("MatMul", h, b.const(_weights(56, 3, 2))), alpha=-0.5)
    return str(b.op("MatMul", h, b.const(_weights(57, 2, 2))) and _plus(b, [[0.25, 0.0]]))


def _jumping(b: Builder) -> str:
    """Softplus with jumps within reach, of entries that are turned around and repeated."""
    h = b.op("Add", b.op("MatMul", "x", b.const(_weights(58, 2, 3))), b.const([[1.0, 0.75, 1.25]]))
    h = b.op("Where", b.op("Greater", h, b.const(1.0)), h, b.op("Softplus", h))
    h = b.op("GatherElements", h, b.const([[2, 0, -1, 1]], np.int64), axis=1)
    return str(b.op("MatMul", h, b.const(_weights(59, 4, 2))) and _plus(b, [[0.5, 0.0]]))


def _scaled(b: Builder) -> str:
    """Products and summands that count with numbers of their own, one of them 0."""
    h = b.op("Gemm", "x", b.const(_weights(58, 2, 3)), b.const([0.3, -0.1, 0.2]), alpha=0.3, beta=-0.7)
    h = b.op("Gemm", b.op("Relu", h), b.const(_weights(59, 3, 2)), "x", alpha=-1.5, beta=0.1)
    h = b.op("Gemm", h, b.const(_weights(60, 2, 2)), "x", beta=0.0)
    return str(b.op("Gemm", h, b.const(_weights(61, 2, 2)), b.const([0.25, 0.0]), alpha=0.5, beta=2.0))


def _subtracted(b: Builder) -> str:
    """Logits that are taken from a mask."""
    logits = b.op("MatMul", "x", b.const(_weights(53, 2, 3)))
    p = b.op("Softmax", b.op("Sub", b.const([[-np.inf, 0.5, 0.0]]), logits), axis=-1)
    v = b.op("Reshape", b.op("MatMul", "x", b.const(_weights(54, 2, 6))), b.ints(3, 2))
    return str(b.op("MatMul", p, v) and _plus(b, [[0.25, 0.0]]))


def _removed(b: Builder) -> str:
    """Logits removed by -inf, in every row another one."""
    logits = b.op("Reshape", b.op("MatMul", "x", b.const(_weights(18, 2, 6))), b.ints(1, 2, 3))
    keep = b.const([[[True, False, True], [True, True, False]]], np.bool_)
    p = b.op("Softmax", b.op("Where", keep, logits, b.const(-np.inf)), axis=-1)
    v = b.op("Reshape", b.op("MatMul", "x", b.const(_weights(19, 2, 3))), b.ints(1, 3, 1))
    return str(b.op("Flatten", b.op("MatMul", p, v), axis=1) and _plus(b, [[0.25, 0.0]]))


def _emptied(b: Builder) -> str:
    """Two rows of logits, one of them removed completely and made 0 by a guard."""
    logits = b.op("Reshape", b.op("MatMul", "x", b.const(_weights(18, 2, 4))), b.ints(1, 2, 2))
    p = b.op("Softmax", b.op("Add", logits, b.const([[[-np.inf, -np.inf], [0.0, 0.0]]])), axis=-1)
    p = b.op("Where", b.op("IsNaN", p), b.const(0.0), p)
    v = b.op("Reshape", b.op("MatMul", "x", b.const(_weights(19, 2, 2))), b.ints(1, 2, 1))
    return str(b.op("Flatten", b.op("MatMul", p, v), axis=1) and _plus(b, [[0.25, 0.0]]))


def _leaking(b: Builder) -> str:
    """A mask that a large logit overcomes in a part of the region: what it hides is all there is."""
    logits = b.op("Add", b.op("MatMul", "x", b.const([[1.0, 16384.0], [0.5, 0.0]])), b.const([[0.0, -12288.0]]))
    return str(b.op("MatMul", b.op("Softmax", logits, axis=-1), b.const([[1.0, 0.0], [0.0, 0.5]])))


def _narrow(b: Builder) -> str:
    """Products and probabilities behind a layer of fewer numbers than the noise has before it."""
    h = b.op("Relu", b.op("Gemm", "x", b.const(_weights(40, 2, 3)), b.const([0.125, 0.0, -0.125])))
    h = b.op("MatMul", h, b.const(_weights(41, 3, 2)))
    p = b.op("Softmax", b.op("MatMul", b.op("Mul", h, h), b.const(_weights(42, 2, 2))), axis=-1)
    return str(b.op("Mul", p, b.op("Add", h, b.const([[0.5, -0.25]]))) and _plus(b, [[0.25, 0.0]]))


def _square(b: Builder) -> str:
    """``(1/2 - (x0 - x1)^2, 0)``: the square of one combination of the noise."""
    h = b.op("MatMul", "x", b.const([[1.0], [-1.0]]))
    return str(b.op("MatMul", b.op("Mul", h, h), b.const([[-1.0, 0.0]])) and _plus(b, [[0.5, 0.0]]))


def _small(seed: int, scale: float) -> Callable[[Builder], str]:
    def make(b: Builder) -> str:
        h = b.op("Relu", b.op("Gemm", "x", b.const(_weights(seed, 2, 2)), b.const(_weights(seed + 1, 2) / 8)))
        return str(
            b.op("Gemm", h, b.const(scale * _weights(seed + 2, 2, 3)), b.const(scale * _weights(seed + 3, 3) / 4))
        )

    return make


SHORT, TINY = 2.0**-3, 2.0**-20

# Models with their operator set, the input, regions, and how many of the forgeries they get.
FAMILIES: dict[str, tuple[list[tuple[Callable[[Builder], str], int]], list[float], list[Perturbation], int]] = {
    "affine": ([(_affine, 13)], [0.25, -0.5], [Perturbation(0.0), Perturbation(0.25, norm=2)], 2),
    "relu": (
        [(_relu, 13)],
        [0.25, 0.125],
        [Perturbation(0.5, clip=(-0.125, 0.5)), Perturbation(0.25, norm=1), Perturbation(SHORT, norm=2)],
        2,
    ),
    "leaky": ([(_leaky, 13)], [1.0, -0.125], [Perturbation(0.0), Perturbation(SHORT)], 2),
    "product": ([(_product, 13)], [0.0, 0.0], [Perturbation(1.0), Perturbation(1.0, norm=2, clip=(-0.5, 1.0))], 3),
    "shared": ([(_shared, 13)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.5, norm=1)], 2),
    "attention": (
        [(_attention, 13)],
        [0.75, -0.25],
        [Perturbation(0.25), Perturbation(SHORT, norm=2), Perturbation(TINY)],
        2,
    ),
    "weighted": (
        [(_weighted, 13)],
        [0.5, 0.25],
        [Perturbation(0.5), Perturbation(0.25, norm=1), Perturbation(TINY)],
        2,
    ),
    "residual": ([(_residual, 13)], [0.25, -0.5], [Perturbation(0.5), Perturbation(0.5, norm=2)], 2),
    "repeated": (
        [(_repeated, 13)],
        [0.5, 0.25],
        [Perturbation(0.5), Perturbation(0.25, norm=2), Perturbation(TINY)],
        2,
    ),
    "narrow": ([(_narrow, 13)], [0.5, 0.25], [Perturbation(0.5), Perturbation(0.25, norm=2)], 1),
    "square": ([(_square, 13)], [0.0, 0.0], [Perturbation(1.0), Perturbation(1.0, norm=2)], 1),
    "twins": ([(_twins, 13)], [0.5, -0.25], [Perturbation(0.25)], 2),
    "masked": ([(_masked, 13)], [0.5, -0.25], [Perturbation(0.25, clip=(-0.25, 0.5))], 1),
    "spread": ([(_spread, 13)], [0.5, -0.25], [Perturbation(SHORT, norm=1), Perturbation(0.0)], 1),
    "single": ([(_single, 13)], [0.5, -0.25], [Perturbation(SHORT)], 1),
    "old": ([(_old, 12)], [0.5, -0.25], [Perturbation(0.25)], 1),
    "curved": ([(_curved, 13)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.25, norm=2)], 2),
    "normed": ([(_normed, 17)], [0.5, -0.25], [Perturbation(SHORT), Perturbation(SHORT, norm=1)], 1),
    "pooled": ([(_pooled, 13)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.25, norm=2)], 1),
    "clipped": ([(_clipped, 13)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.25, norm=2)], 1),
    "logarithms": ([(_logarithms, 13)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.25, norm=1)], 1),
    "jumping": ([(_jumping, 16)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.25, norm=2)], 1),
    "steep": ([(_steep, 16)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.25, norm=2)], 1),
    "scaled": ([(_scaled, 13)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.25, norm=2)], 1),
    "subtracted": ([(_subtracted, 13)], [0.5, -0.25], [Perturbation(0.5), Perturbation(0.25, norm=2)], 1),
    "removed": ([(_removed, 13)], [0.5, -0.25], [Perturbation(0.25)], 1),
    "emptied": ([(_emptied, 13)], [0.5, -0.25], [Perturbation(0.25)], 1),
    "leaking": ([(_leaking, 13)], [0.6875, -0.25], [Perturbation(SHORT)], 1),
    "ensemble": (
        [(_small(20, 1.0), 13), (_small(30, 8.0), 13)],
        [0.5, -0.25],
        [Perturbation(SHORT), Perturbation(TINY)],
        2,
    ),
}


def instances(folder: Path) -> list[Instance]:
    """Every family over each of its regions, the models written to a folder."""
    found = []
    for name, (makers, x, regions, share) in FAMILIES.items():
        models, paths = [], []
        for number, (make, opset) in enumerate(makers):
            b = Builder(opset)
            output = make(b)
            models.append(b.model(output, (1, len(x))))
            paths.append(folder / f"{name}-{number}.onnx")
            onnx.save(models[-1], str(paths[-1]))
        for i, region in enumerate(regions):
            found.append(Instance(f"{name} {i}", tuple(paths), tuple(models), np.array(x), region, share))
    return found


def refused(folder: Path) -> list[Instance]:
    """Files that the checker must not read at all."""
    return [two_imports(folder), turned(folder)]


def turned(folder: Path) -> Instance:
    """A mask with its sign turned around: a logit of +inf is ahead of all others, and no probability is a number."""
    b = Builder(13)
    masked = b.op("Add", "x", b.const([[-np.inf, 0.0]]))
    model = b.model(b.op("Softmax", b.op("Neg", masked), axis=-1), (1, 2))
    onnx.save(model, str(folder / "turned.onnx"))
    return Instance("turned", (folder / "turned.onnx",), (model,), np.array([0.5, -0.25]), Perturbation(0.25))


def two_imports(folder: Path) -> Instance:
    """A file that imports one operator set twice: the runtime takes the last, and a softmax changes its meaning."""
    b = Builder(12)
    model = b.model(_old(b), (1, 2))
    model.opset_import.append(helper.make_opsetid("", 13))
    onnx.save(model, str(folder / "imports.onnx"))
    region = Perturbation(0.25)
    return Instance("imports", (folder / "imports.onnx",), (model,), np.array([0.5, -0.25]), region)
