"""Smooth functions of one number in ball arithmetic: how far they stay from a line over an interval.

A line has any slope; its offset is found here, not believed. The least value of ``f(x) - s x`` over an interval is
enclosed by cutting the interval where neither the sign of the derivative nor the mean value theorem decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flint import arb

from .balls import ONE, ZERO

MOST_PIECES = 400
CLOSE = 1e-10  # how far below the least value the enclosure may end, as a share of the values at hand


@dataclass(frozen=True)
class Function:
    """A function and its derivative, each of a ball: the result contains all values over it."""

    value: Callable[[arb], arb]
    derivative: Callable[[arb], arb]


def _sigma(x: arb) -> arb:
    return ONE / (ONE + (-x).exp())


def _bell(x: arb) -> arb:
    """The derivative of the sigmoid, written so that it does not overflow."""
    return _sigma(x) * _sigma(-x)


def _softplus(x: arb) -> arb:
    """``log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)``."""
    return x.max(ZERO) + (ONE + (-abs(x)).exp()).log()


def _gelu(x: arb) -> arb:
    return x / 2 * (-x / arb(2).sqrt()).erfc()


def _gelu_slope(x: arb) -> arb:
    return (-x / arb(2).sqrt()).erfc() / 2 + x * (-x * x / 2).exp() / (2 * arb.pi()).sqrt()


def _tanh_argument(x: arb) -> arb:
    return (8 / arb.pi()).sqrt() * (x + arb("0.044715") * x * x * x)


def _tanh_gelu_slope(x: arb) -> arb:
    y = _tanh_argument(x)
    rise = (8 / arb.pi()).sqrt() * (1 + 3 * arb("0.044715") * x * x)
    return _sigma(y) + x * rise * _bell(y)


def _gate(x: arb) -> arb:
    """``tanh(log(1 + e^x))``."""
    return _softplus(x).tanh()


def _mish_slope(x: arb) -> arb:
    gate = _gate(x)
    return gate + x * (ONE - gate) * (ONE + gate) * _sigma(x)


CURVES: dict[str, Function] = {
    "square": Function(lambda x: _power(x, 2), lambda x: 2 * x),
    "cube": Function(lambda x: x * x * x, lambda x: 3 * (x * x)),
    "exp": Function(lambda x: x.exp(), lambda x: x.exp()),
    "log": Function(lambda x: x.log(), lambda x: ONE / x),
    "sqrt": Function(lambda x: x.sqrt(), lambda x: ONE / (2 * x.sqrt())),
    "reciprocal": Function(lambda x: ONE / x, lambda x: -ONE / (x * x)),
    "rsqrt": Function(lambda x: x.rsqrt(), lambda x: -x.rsqrt() / (2 * x)),
    "sigmoid": Function(_sigma, _bell),
    "tanh": Function(lambda x: x.tanh(), lambda x: 4 * _bell(2 * x)),
    "erf": Function(lambda x: x.erf(), lambda x: 2 * (-x * x).exp() / arb.pi().sqrt()),
    "gelu": Function(_gelu, _gelu_slope),
    "tanh gelu": Function(lambda x: x * _sigma(_tanh_argument(x)), _tanh_gelu_slope),
    "silu": Function(lambda x: x * _sigma(x), lambda x: _sigma(x) + x * _bell(x)),
    "softplus": Function(_softplus, _sigma),
    "mish": Function(lambda x: x * _gate(x), _mish_slope),
    "softsign": Function(lambda x: x / (ONE + abs(x)), lambda x: ONE / ((ONE + abs(x)) * (ONE + abs(x)))),
    "elu": Function(lambda x: x.max(ZERO) + x.min(ZERO).expm1(), lambda x: x.min(ZERO).exp()),
    "sin": Function(lambda x: x.sin(), lambda x: x.cos()),
    "cos": Function(lambda x: x.cos(), lambda x: -x.sin()),
}


def function_of(kind: str) -> Function:
    """One of the curves, or ``power p`` with a float p, whole or for positive numbers only.

    Where it is no real number, the ball is no number either.
    """
    if kind in CURVES:
        return CURVES[kind]
    power = float(kind.removeprefix("power "))
    if power == round(power):
        return Function(lambda x: _power(x, int(power)), lambda x: arb(power) * _power(x, int(power) - 1))
    return Function(lambda x: x ** arb(power), lambda x: arb(power) * x ** (arb(power) - 1))


def _power(x: arb, power: int) -> arb:
    """Theorem: whole powers are products, of any numbers."""
    around = power > 0 and power % 2 == 0 and x.contains(ZERO)  # its products forget that they are not negative
    found, square, left = ONE, x.abs_upper() if around else x, abs(power)
    while left:
        found, square, left = found * square if left & 1 else found, square * square, left >> 1
    if around:
        return ZERO.union(found)
    return found if power >= 0 else ONE / found


def least_above(kind: str, slope: arb, low: float, high: float, sign: int = 1) -> arb:
    """A number that ``sign (f(x) - slope x)`` is nowhere below for ``low <= x <= high``.

    Theorem: over a piece ``[a, b]`` with middle m the function g is at least ``g(m) + g'([a, b]) ([a, b] - m)``; where
    ``g'`` does not change its sign, the least value stands at an end; and g is in the ball that g makes of ``[a, b]``.
    """
    function = function_of(kind)

    def g(x: arb) -> arb:
        return sign * (function.value(x) - slope * x)

    ends = [g(arb(low)), g(arb(high))]
    known = ends[0].min(ends[1])  # the least value is not above this
    found, pieces, count = known, [(low, high)], 0
    size = abs(ends[0]) + abs(ends[1])  # a least value of 0 has no share of its own
    while pieces:
        a, b = pieces.pop()
        count += 1
        middle = a + (b - a) / 2
        over = arb(a).union(arb(b))
        steep = sign * (function.derivative(over) - slope)
        if steep >= 0 or steep <= 0:
            found = found.min(g(arb(a if steep >= 0 else b)))
            continue
        at = g(arb(middle))
        lowest = at + steep * (over - arb(middle))
        plain = g(over)
        bound = _larger(lowest.lower(), plain.lower())
        if at < known:
            known = at
        enough = bound >= known - arb(CLOSE) * (abs(known) + abs(at) + size)
        if enough or count >= MOST_PIECES or not a < middle < b:
            found = found.min(bound)
        else:
            pieces += [(a, middle), (middle, b)]
    return found


def _larger(a: arb, b: arb) -> arb:
    """The larger of two lower bounds; one that is no number says nothing."""
    if not a.is_finite():
        return b if b.is_finite() else arb.neg_inf()
    return a.max(b) if b.is_finite() else a
