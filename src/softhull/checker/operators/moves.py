"""Operators that move entries, and constants of eight bits."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ...errors import ModelError
from ..balls import exact
from ..network import Value, View, _axes, _axis, _limit, _list, _moved, _Reader, _real, _shape, operator
from .parts import FLOAT, INT, INTS, STRING, _view


@operator("Slice", since=1, until=9, starts=INTS, ends=INTS, axes=INTS)
@operator("Slice", since=10, operands=(3, 5))
def _slice(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """A range of entries along some axes."""
    x, *more = operands
    first, last = (list(attributes[key]) if key in attributes else _list(more.pop(0)) for key in ("starts", "ends"))
    axes = _list(more[0]) if more and more[0] is not None else list(attributes.get("axes", range(len(first))))
    steps = _list(more[1]) if len(more) > 1 and more[1] is not None else [1] * len(first)
    if not len(first) == len(last) == len(axes) == len(steps) or 0 in steps:
        raise ModelError("starts, ends, axes and steps that do not fit each other")
    chosen = _axes(reader, axes, len(_shape(x)))
    where = [slice(None)] * len(_shape(x))
    for axis, start, end, step in zip(chosen, first, last, steps):
        picked = range(*slice(start, end, step).indices(_shape(x)[axis]))
        if not picked:
            raise ModelError("a slice that is empty")
        stop: int | None = picked.stop if picked.stop >= 0 else None
        where[axis] = slice(picked.start, stop, picked.step)
    return _moved(lambda t: t[tuple(where)], x)


@operator("Split", since=2, until=12, axis=INT, split=INTS)
@operator("Split", since=13, until=17, operands=(1, 2), axis=INT)
@operator("Split", since=18, operands=(1, 2), axis=INT, num_outputs=INT)
def _split(reader: _Reader, operands: Any, attributes: Any) -> list[Value]:
    """Consecutive parts along one axis."""
    x, *given = operands
    axis = _axis(reader, attributes.get("axis", 0), len(_shape(x)))
    size, count = _shape(x)[axis], reader.outputs
    if given or "split" in attributes:
        parts = _list(given[0]) if given else list(attributes["split"])
    elif (size % count and "num_outputs" not in attributes) or attributes.get("num_outputs", count) != count:
        raise ModelError(f"{size} entries in {count} parts of unknown size")
    else:  # with their number given, the last one may be smaller
        each = -(-size // count)
        parts = [min(each, size - each * i) for i in range(count)]
    if sum(parts) != size or min(parts) < 1 or len(parts) != count:
        raise ModelError(f"{size} entries in parts of {parts}")
    stops = np.cumsum(parts)
    ranges = [slice(int(stop) - n, int(stop)) for n, stop in zip(parts, stops)]
    return [_moved(partial(_part, axis=axis, chosen=chosen), x) for chosen in ranges]


def _part(t: Any, axis: int, chosen: slice) -> Any:
    return t[(slice(None),) * axis + (chosen,)]


@operator("Expand", since=8, operands=(2, 2))
def _expand(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, wanted = operands
    shape = np.broadcast_shapes(_shape(x), tuple(_list(wanted)))
    _limit(math.prod(shape))
    return _moved(lambda t: np.broadcast_to(t, shape), x)


@operator("GatherND", since=11, until=11, operands=(2, 2))
@operator("GatherND", since=12, operands=(2, 2), batch_dims=INT)
def _gather_nd(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """Entries at constant index tuples."""
    x, where = operands
    if attributes.get("batch_dims", 0):
        raise ModelError("batched indices")
    if isinstance(where, View) or where.dtype != np.int64 or not 1 <= where.shape[-1] <= len(_shape(x)):
        raise ModelError("indices that are not constant whole numbers, or of too many axes")
    sizes = np.array(_shape(x)[: where.shape[-1]])
    if ((where < -sizes) | (where >= sizes)).any():
        raise ModelError("an index out of range")
    _limit(where.size * math.prod(_shape(x)))
    return _moved(lambda t: t[tuple(np.moveaxis(where, -1, 0))], x)


@operator("GatherElements", since=11, operands=(2, 2), axis=INT)
def _gather_elements(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """For every position of constant indices, the entry that they name along one axis."""
    x, where = operands
    shape = _shape(x)
    axis = _axis(reader, attributes.get("axis", 0), len(shape))
    if isinstance(where, View) or where.dtype not in (np.int64, np.int32) or where.ndim != len(shape):
        raise ModelError("indices that are not constant whole numbers, or of other axes than the operand")
    if any(n > most for place, (n, most) in enumerate(zip(where.shape, shape)) if place != axis):
        raise ModelError("indices of a shape that the operand does not hold")
    if ((where < -shape[axis]) | (where >= shape[axis])).any():
        raise ModelError("an index out of range")
    _limit(where.size)
    chosen = list(np.indices(where.shape, sparse=True))
    chosen[axis] = where
    return _moved(lambda t: t[tuple(chosen)], x)


@operator("Cast", since=6, to=INT)
def _cast(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """To the type of the input, which a variable has."""
    if attributes["to"] != {np.float32: 1, np.float64: 11}[reader.real.type]:
        raise ModelError("another type than that of the input")
    return _view(operands[0])


@operator("Dropout", since=7, until=11, ratio=FLOAT)
@operator("Dropout", since=12, operands=(1, 3), seed=INT)
def _dropout(reader: _Reader, operands: Any, attributes: Any) -> list[Value]:
    """What goes in, outside of training; the mask that it has beside is kept from everybody."""
    if reader.outputs > 2:
        raise ModelError("more than a result and a mask")
    if len(operands) > 2 and operands[2] is not None and (isinstance(operands[2], View) or operands[2].any()):
        raise ModelError("training")
    return [_view(operands[0])]


@operator("Tile", since=6, operands=(2, 2))
def _tile(reader: _Reader, operands: Any, attributes: Any) -> Value:
    x, times = operands[0], _list(operands[1])
    if len(times) != len(_shape(x)) or min(times, default=1) < 1:
        raise ModelError("repeats that do not fit the operand")
    _limit(math.prod(_shape(x)) * math.prod(times))
    return _moved(lambda t: np.tile(t, times), x)


@operator("DepthToSpace", since=1, until=10, blocksize=INT)
@operator("DepthToSpace", since=11, blocksize=INT, mode=STRING)
def _depth_to_space(reader: _Reader, operands: Any, attributes: Any) -> Value:
    n, c, h, w = _view(operands[0]).shape
    size = attributes["blocksize"]
    inner, outer = (n, size, size, c // size**2, h, w), (n, c // size**2, h * size, w * size)
    if attributes.get("mode", b"DCR") == b"DCR":
        return _moved(lambda t: t.reshape(inner).transpose(0, 3, 4, 1, 5, 2).reshape(outer), operands[0])
    if attributes["mode"] != b"CRD":
        raise ModelError("another order than DCR and CRD")
    inner = (n, c // size**2, size, size, h, w)
    return _moved(lambda t: t.reshape(inner).transpose(0, 1, 4, 2, 5, 3).reshape(outer), operands[0])


@operator("SpaceToDepth", since=1, blocksize=INT)
def _space_to_depth(reader: _Reader, operands: Any, attributes: Any) -> Value:
    n, c, h, w = _view(operands[0]).shape
    size = attributes["blocksize"]
    inner, outer = (n, c, h // size, size, w // size, size), (n, c * size**2, h // size, w // size)
    return _moved(lambda t: t.reshape(inner).transpose(0, 3, 5, 1, 2, 4).reshape(outer), operands[0])


@operator("Size", since=1)
def _size(reader: _Reader, operands: Any, attributes: Any) -> Value:
    return np.array(math.prod(_shape(operands[0])), dtype=np.int64)


@operator("Pad", since=2, until=10, mode=STRING, pads=INTS, value=FLOAT)
@operator("Pad", since=11, until=17, operands=(2, 3), mode=STRING)
@operator("Pad", since=18, operands=(2, 4), mode=STRING)
def _pad(reader: _Reader, operands: Any, attributes: Any) -> View:
    """Entries repeated, or a constant where the padding is: a sum in which they have no part."""
    x, *more = operands
    x, sizes = _view(x), list(attributes["pads"]) if "pads" in attributes else _list(more.pop(0))
    fill = float(_real(more[0]).reshape(())) if more and more[0] is not None else attributes.get("value", 0.0)
    rank = len(x.shape)
    axes = list(range(rank)) if len(more) < 2 else list(_axes(reader, _list(more[1]), rank))
    if len(sizes) != 2 * len(axes) or min(sizes, default=0) < 0:
        raise ModelError("pads that do not fit the operand, or negative ones")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        widths[axis] = sizes[i], sizes[len(axes) + i]
    _limit(math.prod(n + before + behind for n, (before, behind) in zip(x.shape, widths)))
    mode = attributes.get("mode", b"constant")
    if mode == b"edge":
        return x.moved(lambda index: np.pad(index, widths, mode="edge"))
    if mode == b"reflect" and all(max(pair) < n for pair, n in zip(widths, x.shape)):
        return x.moved(lambda index: np.pad(index, widths, mode="reflect"))
    if mode != b"constant":
        raise ModelError("padding by another mode, or of more than is reflected")
    inside = np.pad(np.ones(x.shape), widths)
    spread = x.moved(lambda index: np.pad(index, widths, mode="edge"))
    return reader.sum([spread], [exact(inside)], np.where(inside, 0.0, fill), inside.shape)


@operator("DequantizeLinear", since=10, until=12, operands=(2, 3))
@operator("DequantizeLinear", since=13, operands=(2, 3), axis=INT)
def _dequantize(reader: _Reader, operands: Any, attributes: Any) -> Value:
    """Weights of 8 bits, ``(x - zero) scale``: one product of floats of the type of the file, as in runtimes."""
    x, scale, *zero = operands
    if isinstance(x, View) or x.dtype not in (np.int8, np.uint8) or (zero and zero[0].dtype != x.dtype):
        raise ModelError("anything but constants of 8 bits")
    scale = _real(scale)
    base = zero[0].astype(np.int64) if zero else np.zeros(scale.shape, dtype=np.int64)
    if scale.ndim > (reader.opset >= 13) or base.shape != scale.shape:
        raise ModelError("scales in blocks, or of another shape than the zero points")
    if scale.ndim == 1:
        axis = _axis(reader, attributes.get("axis", 1), x.ndim)
        wide = (-1, *(1 for _ in x.shape[axis + 1 :]))
        if len(scale) != x.shape[axis]:
            raise ModelError("scales that do not fit the axis")
        scale, base = scale.reshape(wide), base.reshape(wide)
    found = (x.astype(np.int64) - base).astype(reader.real) * scale.astype(reader.real)
    if not np.isfinite(found).all():
        raise ModelError("a weight that is not finite")
    return found.astype(np.float64)
