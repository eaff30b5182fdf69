"""Constant choices, guards behind a softmax, and the cases of a softplus."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb

from ...errors import ModelError
from ..balls import exact
from ..network import Curve, Emptied, Softmax, View, _Reader, _real, _shape, operator
from .parts import _same, _scaled, _view


@operator("Where", since=9, operands=(3, 3))
def _where(reader: _Reader, operands: Any, attributes: Any) -> View:
    """A constant choice between variables and constants; or a guard behind a softmax, or the cases of a softplus.

    Theorem: probabilities are numbers where a row has a visible logit, and in other rows the guard makes them 0.
    """
    condition, a, b = operands
    if isinstance(condition, Above):
        return _straight(reader, condition, a, b)
    if isinstance(condition, Undefined):
        if not _same(condition.view, b) or isinstance(a, View) or _real(a).any():
            raise ModelError("anything but 0 where a softmax is not a number")
        if np.broadcast_shapes(_shape(a), b.shape) != b.shape:
            raise ModelError("a constant of a larger shape")
        if isinstance(b, View):
            return b
        return reader.sum([b.view], [exact((~b.empty).astype(np.float64))], 0.0, b.shape)
    if isinstance(condition, View) or condition.dtype != np.bool_ or not (isinstance(a, View) or isinstance(b, View)):
        raise ModelError("anything but a constant choice")
    shape = np.broadcast_shapes(condition.shape, _shape(a), _shape(b))
    if isinstance(a, View) and isinstance(b, View):
        return reader.sum([a, b], [exact(c.astype(np.float64)) for c in (condition, ~condition)], 0.0, shape)
    chosen = np.broadcast_to(condition if isinstance(a, View) else ~condition, shape)
    x, constant = (a, b) if isinstance(a, View) else (b, a)
    bias = np.where(chosen, 0.0, np.broadcast_to(_real(constant, masks=True), shape))
    return reader.sum([x], [exact(chosen.astype(np.float64))], bias, shape)


class Undefined:
    """Whether the entries of a tensor are numbers; only a guard may ask."""

    def __init__(self, view: View | Emptied) -> None:
        self.view, self.shape, self.size = view, view.shape, view.size


class Above:
    """Whether the entries of a tensor are above a threshold; only the cases of a softplus may ask."""

    def __init__(self, view: View, threshold: float) -> None:
        self.view, self.threshold, self.shape, self.size = view, threshold, view.shape, view.size


@operator("Greater", since=7, operands=(2, 2))
def _is_above(reader: _Reader, operands: Any, attributes: Any) -> Any:
    x, threshold = operands
    if isinstance(threshold, View) or threshold.size != 1 or threshold.ndim > len(_view(x).shape):
        raise ModelError("a comparison with anything but one constant")
    return Above(x, float(_real(threshold).ravel()[0]))


def _straight(reader: _Reader, above: Above, x: Any, curve: Any) -> View:
    """``where(x > t, x, softplus(x))``.

    Theorem: for t > 0 it is ``c softplus(x)`` with ``1 - log(1 + exp(-t)) / t <= c <= 1``, because above t it is less
    than softplus by ``log(1 + exp(-x))``, and softplus is more than t. From t = 1 on, c is above 2/3.
    """
    node = reader.networks.nodes[curve.node] if isinstance(curve, View) else None
    if not isinstance(node, Curve) or node.kind != "softplus" or not isinstance(x, View) or not above.threshold >= 1:
        raise ModelError("other cases than those of a softplus with a threshold of 1 or more")
    if curve.shape != x.shape or curve.index.flat != list(range(curve.size)):
        raise ModelError("a softplus whose entries are in another order")
    if not _same(above.view, x) or above.shape != x.shape or not _same(node.x, x.flat()):
        raise ModelError("a softplus of another value than the one that is compared")
    t = arb(above.threshold)
    return _scaled(reader, curve, arb(1).union(1 - (-t).exp().log1p() / t))


@operator("IsNaN", since=9)
def _is_nan(reader: _Reader, operands: Any, attributes: Any) -> Any:
    x = operands[0]
    if not isinstance(x, Emptied) and not isinstance(reader.networks.nodes[_view(x).node], Softmax):
        raise ModelError("a question about anything but a softmax")
    return Undefined(x)
