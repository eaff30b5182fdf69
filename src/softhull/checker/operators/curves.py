"""Functions of single entries, rectifiers of all kinds, and products that are curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb

from ...errors import ModelError
from ..balls import exact
from ..network import Curve, View, _divide, _kink, _limit, _multiply, _Reader, _real, _shape, operator
from .parts import FLOAT, STRING, _combined, _curve, _rectified, _same, _scaled, _view

LARGEST_POWER = 64


for _name, _since, _kind in (
    ("Exp", 6, "exp"),
    ("Log", 6, "log"),
    ("Sqrt", 6, "sqrt"),
    ("Reciprocal", 6, "reciprocal"),
    ("Sigmoid", 6, "sigmoid"),
    ("Tanh", 6, "tanh"),
    ("Erf", 9, "erf"),
    ("Sin", 7, "sin"),
    ("Cos", 7, "cos"),
    ("Softplus", 1, "softplus"),
    ("Softsign", 1, "softsign"),
    ("Mish", 18, "mish"),
):

    @operator(_name, since=_since)
    def _entrywise(reader: _Reader, operands: Any, attributes: Any, kind: str = _kind) -> View:
        return _curve(reader, operands[0], kind)


@operator("Gelu", since=20, approximate=STRING)
def _gelu(reader: _Reader, operands: Any, attributes: Any) -> View:
    kinds = {b"none": "gelu", b"tanh": "tanh gelu"}
    return _curve(reader, operands[0], kinds[attributes.get("approximate", b"none")])


@operator("Pow", since=7, operands=(2, 2))
def _power(reader: _Reader, operands: Any, attributes: Any) -> View:
    """A power with one constant exponent, as the curve that it is."""
    x, exponent = operands
    if isinstance(exponent, View) or len(np.unique(exponent)) != 1:
        raise ModelError("an exponent that is not one constant number")
    shape = np.broadcast_shapes(_shape(x), exponent.shape)
    _limit(math.prod(shape))
    x = _view(x).moved(lambda index: np.broadcast_to(index, shape))
    kinds = {2.0: "square", 3.0: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    power = float(exponent.flat[0])
    if power in (0, 1):  # the standard has 0 ** 0 = 1, as runtimes do
        return x if power else _scaled(reader, x, arb(0), 1.0)
    if not math.isfinite(power) or abs(power) > LARGEST_POWER:
        raise ModelError(f"the power {power}")
    return _curve(reader, x, kinds.get(power, f"power {power!r}"))


def _elu(reader: _Reader, value: Any, alpha: arb, outer: arb) -> View:
    """``outer (alpha elu(x) + (1 - alpha) max(x, 0))`` with the elu of slope 1 at 0."""
    x = _view(value)
    return _combined(
        reader, [(_curve(reader, x, "elu"), outer * alpha), (_rectified(reader, x), outer * (arb(1) - alpha))]
    )


def _setting(attributes: Any, name: str, default: float) -> arb:
    return arb(float(attributes.get(name, float(np.float32(default)))))


@operator("Elu", since=6, alpha=FLOAT)
def _elu_of(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _elu(reader, operands[0], _setting(attributes, "alpha", 1.0), arb(1))


@operator("Selu", since=6, alpha=FLOAT, gamma=FLOAT)
def _selu(reader: _Reader, operands: Any, attributes: Any) -> View:
    alpha = _setting(attributes, "alpha", 1.67326319217681884765625)
    return _elu(reader, operands[0], alpha, _setting(attributes, "gamma", 1.05070102214813232421875))


@operator("Celu", since=12, alpha=FLOAT)
def _celu(reader: _Reader, operands: Any, attributes: Any) -> View:
    alpha = _setting(attributes, "alpha", 1.0)
    if not alpha > 0:
        raise ModelError("an alpha that is not positive")
    return _scaled(reader, _curve(reader, _scaled(reader, _view(operands[0]), arb(1) / alpha), "elu"), alpha)


@operator("Abs", since=6)
def _absolute(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``|x| = 2 max(x, 0) - x``."""
    x = _view(operands[0])
    return _combined(reader, [(_rectified(reader, x), arb(2)), (x, arb(-1))])


@operator("PRelu", since=7, operands=(2, 2))
def _prelu(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``max(x, 0) + s min(x, 0) = s x + (1 - s) max(x, 0)``."""
    x, slope = _view(operands[0]), np.asarray(exact(_real(operands[1])), dtype=object)
    if np.broadcast_shapes(x.shape, slope.shape) != x.shape:
        raise ModelError("slopes of a larger shape")
    return _combined(reader, [(x, slope), (_rectified(reader, x), arb(1) - slope)])


@operator("HardSigmoid", since=6, alpha=FLOAT, beta=FLOAT)
def _hard_sigmoid(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``min(max(y, 0), 1) = max(y, 0) - max(y - 1, 0)``."""
    beta = float(attributes.get("beta", 0.5))
    y = _scaled(reader, _view(operands[0]), _setting(attributes, "alpha", 0.2), beta)
    return _combined(reader, [(_rectified(reader, y), arb(1)), (_rectified(reader, y, -1.0), arb(-1))])


@operator("HardSwish", since=14)
def _hard_swish(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: with c the input clipped to -3 and 3 it is ``(c^2 + 3 c) / 6 + max(x - 3, 0)``."""
    x = _view(operands[0])
    beyond = _rectified(reader, x, -3.0)
    c = _combined(reader, [(_rectified(reader, x, 3.0), arb(1)), (beyond, arb(-1))], -3.0)
    return _combined(reader, [(_curve(reader, c, "square"), arb(1) / 6), (c, arb(1) / 2), (beyond, arb(1))])


@operator("Clip", since=6, until=10, min=FLOAT, max=FLOAT)
@operator("Clip", since=11, operands=(1, 3))
def _clip(reader: _Reader, operands: Any, attributes: Any) -> View:
    """A limit that is left out is the least or the largest number of the dtype, one of -inf is none.

    As an attribute it is the least or the largest single float, of whatever dtype the operand is.
    """
    x, *given = operands
    largest = float(np.finfo(reader.real if reader.opset >= 11 else np.float32).max)
    least, most = (
        np.array(attributes.get(name, default)) if limit is None else _real(limit, masks=True)
        for name, limit, default in zip(("min", "max"), (*given, None, None), (-largest, largest))
    )
    if least.shape != () or most.shape != () or not least < most:
        raise ModelError("limits that are no numbers, or leave nothing")
    if least == 0:
        return _kink(reader, x, 0.0, float(most))
    return _clipped(reader, _view(x), float(least), float(most))


def _clipped(reader: _Reader, x: View, least: float, most: float) -> View:
    """Theorem: ``min(max(x, a), b) = x + max(a - x, 0) - max(x - b, 0)`` for a < b.

    A limit that is not reached adds 0, however large its number.
    """
    parts = [(x, arb(1)), (_rectified(reader, x, -most), arb(-1))]
    if least > -math.inf:
        parts.append((_rectified(reader, _scaled(reader, x, arb(-1), least)), arb(1)))
    return _combined(reader, parts)


@operator("Neg", since=6)
def _negative(reader: _Reader, operands: Any, attributes: Any) -> View:
    return _scaled(reader, _view(operands[0]), arb(-1))


@operator("Swish", since=24, alpha=FLOAT)
def _swish(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Theorem: ``x sigmoid(a x) = silu(a x) / a``, and half of x where a is 0."""
    alpha = _setting(attributes, "alpha", 1.0)
    if alpha == 0:
        return _scaled(reader, _view(operands[0]), arb(0.5))
    return _scaled(reader, _curve(reader, _scaled(reader, _view(operands[0]), alpha), "silu"), arb(1) / alpha)


@operator("Mul", since=7, operands=(2, 2))
def _product_or_curve(reader: _Reader, operands: Any, attributes: Any) -> View:
    """``x sigmoid(x)`` is one curve; all else is a product."""
    for gate, x in (operands, operands[::-1]):
        if isinstance(gate, View) and isinstance(x, View):
            node = reader.networks.nodes[gate.node]
            if not (isinstance(node, Curve) and node.kind == "sigmoid" and gate.shape == x.shape):  # nothing broadcasts
                continue
            if gate.index.flat == list(range(gate.size)) and _same(node.x, x.flat()):
                return _curve(reader, x, "silu")
    return _multiply(reader, operands, attributes)


@operator("Div", since=7, operands=(2, 2))
def _quotient(reader: _Reader, operands: Any, attributes: Any) -> View:
    """By a variable: times its reciprocal."""
    x, y = operands
    if not isinstance(y, View):
        return _divide(reader, operands, attributes)
    return _product_or_curve(reader, [x, _curve(reader, y, "reciprocal")], attributes)
