"""Attention as one operator, positions as rotations, and logarithms of probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb

from ...errors import ModelError
from ..balls import exact
from ..network import Value, View, _add, _axis, _Reader, _real, _rows_softmax, _shape, _whole, operator
from .parts import FLOAT, INT, _curve, _view
from .sums import _reduced


@operator("LogSoftmax", since=1, until=12, axis=INT)
def _log_softmax_of_the_rest(reader: _Reader, operands: Any, attributes: Any) -> Any:
    """Before operator set 13: over all dimensions from the axis on."""
    shape = _shape(operands[0])
    axis = _axis(reader, attributes.get("axis", 1), len(shape))
    return _log_probabilities(reader, operands[0], tuple(range(axis, len(shape))))


@operator("LogSoftmax", since=13, axis=INT)
def _log_softmax(reader: _Reader, operands: Any, attributes: Any) -> Any:
    axis = _axis(reader, attributes.get("axis", -1), len(_shape(operands[0])))
    return _log_probabilities(reader, operands[0], (axis,))


def _log_probabilities(reader: _Reader, x: Value, axes: tuple[int, ...]) -> Any:
    """``x - log(sum of exp(x))``; at the end of a network as a softmax.

    Theorem: the logarithm keeps the order, and softmax(log p) is p. But the one entry of a row of one is 0, and not 1:
    such rows have no order and are refused.
    """
    if not reader.final:
        total = _reduced(reader, _curve(reader, x, "exp"), axes, True, False)
        return _add(reader, [x, _curve(reader, total, "log")], {}, -1)
    count = math.prod(_shape(x)[axis] for axis in axes)
    if count < 2:
        raise ModelError("the logarithm of rows of one probability")
    return _rows_softmax(reader, x, lambda p: np.moveaxis(p, axes, range(-len(axes), 0)).reshape(-1, count))


@operator("RotaryEmbedding", since=23, operands=(3, 4), interleaved=INT, num_heads=INT, rotary_embedding_dim=INT)
def _rotary_embedding(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Pairs of entries turned by constant angles: ``(c a - s b, c b + s a)``; entries behind them stay as they are."""
    x, cosines, sines, *tokens = operands
    flat = len(x.shape) == 3
    y = _heads(_view(x), attributes.get("num_heads", 0)) if flat else _view(x)
    batch, _, count, width = y.shape
    turning = attributes.get("rotary_embedding_dim", 0) or width
    if turning % 2 or not 0 < turning <= width:
        raise ModelError("a rotation of more entries than there are, or of an odd number")
    first = np.arange(0, turning, 2) if attributes.get("interleaved", 0) else np.arange(turning // 2)
    second = first + 1 if attributes.get("interleaved", 0) else first + turning // 2
    partner = np.arange(width)
    partner[first], partner[second] = second, first
    own = np.ones((batch, 1, count, width))
    other = np.zeros_like(own)
    for table, full, sign in ((_real(cosines), own, 1.0), (_real(sines), other, -1.0)):
        if tokens:
            if _whole(tokens[0]).min(initial=0) < 0:
                raise ModelError("a token before the first")
            table = table[tokens[0]]
        if table.shape != (batch, count, turning // 2):
            raise ModelError("angles that do not fit the tokens")
        full[..., first], full[..., second] = sign * table[:, None], table[:, None]
    turned = y.moved(lambda index: index[..., partner])
    y = reader.sum([y, turned], [exact(own), exact(other)], 0.0, y.shape)
    return y.moved(lambda index: index.transpose(0, 2, 1, 3).reshape(x.shape)) if flat else y


def _heads(x: View, heads: int) -> View:
    batch, tokens, width = x.shape
    if heads < 1 or width % heads:
        raise ModelError("heads that do not fit the width")
    return x.moved(lambda index: index.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3))


_ATTENTION = {"is_causal": INT, "q_num_heads": INT, "kv_num_heads": INT, "scale": FLOAT, "softcap": FLOAT}


_ATTENTION |= {"qk_matmul_output_mode": INT, "softmax_precision": INT}


@operator("Attention", since=23, operands=(3, 4), **_ATTENTION)
def _attention(reader: _Reader, operands: Any, attributes: Any) -> View:
    """``softmax(scale q k' + mask) v`` by heads; fewer heads of keys are shared by neighbouring queries.

    What an output that is not there would hold, and how exactly the runtime computes, is no matter here.
    """
    if attributes.get("softcap", 0.0) or attributes.get("softmax_precision", 1) not in (1, 11):
        raise ModelError("capped logits, or a softmax in anything but float or double")
    flat = len(operands[0].shape) == 3
    names = ("q_num_heads", "kv_num_heads", "kv_num_heads")
    q, k, v = (_heads(_view(x), attributes.get(name, 0)) if flat else _view(x) for x, name in zip(operands, names))
    (batch, heads, tokens, width), (_, shared, keys, _) = q.shape, k.shape
    named = attributes.get("q_num_heads", heads), attributes.get("kv_num_heads", shared)
    if named != (heads, shared) or heads % shared or v.shape[:3] != k.shape[:3]:
        raise ModelError("heads of queries, keys and values that do not fit each other")
    each = np.arange(heads) // (heads // shared)
    k, v = (t.moved(lambda index: index[:, each]) for t in (k, v))
    scale = arb(float(attributes["scale"])) if "scale" in attributes else arb(1) / arb(width).sqrt()
    if not scale > 0:
        raise ModelError("a scale that is not positive")
    mask = np.zeros((tokens, keys))
    if len(operands) > 3:
        mask = operands[3]
        mask = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else _real(mask, masks=True)
        if not 2 <= mask.ndim <= 4 or mask.shape[-2:] != (tokens, keys):
            raise ModelError("a mask of another shape than tokens by keys")
    if attributes.get("is_causal", 0):
        mask = mask + np.where(np.arange(keys) > np.arange(tokens)[:, None], -np.inf, 0.0)
    logits = reader.einsum(q, k, [0, 1, 2, 4], [0, 1, 3, 4], [0, 1, 2, 3])
    hidden = reader.sum([logits], [np.array(scale, dtype=object)], mask, logits.shape)
    p = _rows_softmax(reader, hidden, lambda places: places.reshape(-1, keys))
    y = reader.einsum(p, v, [0, 1, 2, 3], [0, 1, 3, 4], [0, 1, 2, 4])
    return y.moved(lambda index: index.transpose(0, 2, 1, 3).reshape(batch, tokens, -1)) if flat else y
