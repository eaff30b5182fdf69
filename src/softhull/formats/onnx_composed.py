"""Operators that are compositions of others: no relaxation of their own, and none to trust.

``max(a, b) = a + relu(b - a)`` makes every maximum a tournament of rectifiers, whose inputs are bounded by walks of
their own. What only picks, repeats or interleaves entries is a gather from the entries in a row, with one constant
entry more where something is filled in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..errors import ModelError
from ..graph.builder import GraphBuilder, check_size
from ..graph.operator import Operator, Shape
from ..graph.ops.centre import Centre
from ..graph.ops.clip import Clip
from ..graph.ops.concat import Concat
from ..graph.ops.conv import Conv
from ..graph.ops.elu import Elu
from ..graph.ops.gather import Gather
from ..graph.ops.log_sum_exp import LogSumExp
from ..graph.ops.relu import Relu
from ..graph.ops.rsqrt import Rsqrt
from ..graph.ops.silu import Mish, Silu
from ..graph.ops.softmax import Softmax
from ..graph.ops.softplus import Softplus
from ..graph.ops.softsign import Softsign
from ..graph.ops.sqrt import Sqrt
from ..graph.ops.square import Square
from .onnx_rules import (
    FLOAT,
    INT,
    INTS,
    MANY,
    REDUCTION,
    STRING,
    WINDOW,
    Context,
    Value,
    activation,
    axis_of,
    clipped,
    finite_attribute,
    integers,
    number,
    positions,
    real,
    reduced_axes,
    rule,
    shape_of,
    stretched,
    variable,
    window,
)

# Maxima of more entries than this are a tournament that nobody wants to wait for.
MOST_RIVALS = 1024


# Maxima


def greater(g: GraphBuilder, a: int, b: int) -> int:
    """``max(a, b)`` of two values of one shape."""
    return g.sum_of(a, g.elementwise(Relu(), g.difference(b, a)))


def largest(g: GraphBuilder, x: int, count: int) -> int:
    """The largest of the first axis, which has ``count`` entries and is dropped: rounds of pairs."""
    if count > MOST_RIVALS:
        raise ModelError(f"a maximum of {count} entries; at most {MOST_RIVALS} are supported")
    while count > 1:
        half = -(-count // 2)
        first, second = (g.add(Gather(0, torch.arange(start, start + half)), x) for start in (0, count - half))
        x, count = greater(g, first, second), half
    return g.reshape(x, g.shape(x)[1:])


def multiplied(g: GraphBuilder, x: int, count: int) -> int:
    """The product of the first axis, which has ``count`` entries and is dropped: rounds of pairs."""
    if count > MOST_RIVALS:
        raise ModelError(f"a product of {count} entries; at most {MOST_RIVALS} are supported")
    while count > 1:
        half = count // 2
        first, second = (g.add(Gather(0, torch.arange(start, start + half)), x) for start in (0, half))
        y = g.product(first, second)
        if count % 2:
            y = g.add(Concat(0, (None, None)), y, g.add(Gather(0, torch.tensor([count - 1])), x))
        x, count = y, half + count % 2
    return g.reshape(x, g.shape(x)[1:])


def _reduced(context: Context, x: Value, axes: Value, reduce: Callable[[GraphBuilder, int, int], int]) -> int:
    """The entries of some axes brought to the front and made one."""
    g, chosen = context.graph, reduced_axes(context, variable(x), axes)
    shape = g.shape(variable(x))
    if not chosen:
        return variable(x)
    rest = tuple(axis for axis in range(len(shape)) if axis not in chosen)
    count = math.prod(shape[axis] for axis in chosen)
    y = g.transpose(variable(x), (*chosen, *rest))
    y = reduce(g, g.reshape(y, (count, *(shape[axis] for axis in rest))), count)
    kept = tuple(1 if axis in chosen else size for axis, size in enumerate(shape))
    return g.reshape(y, kept if context.attributes["keepdims"] else tuple(shape[a] for a in rest))


@rule("ReduceMax", versions=(1, 11, 12, 13, 18, 20), inputs=(1, 2), attributes=REDUCTION)
def _reduce_max(context: Context, x: Value, axes: Value = None) -> Value:
    return _reduced(context, x, axes, largest)


@rule("ReduceMin", versions=(1, 11, 12, 13, 18, 20), inputs=(1, 2), attributes=REDUCTION)
def _reduce_min(context: Context, x: Value, axes: Value = None) -> Value:
    g = context.graph
    return g.scale(_reduced(context, g.scale(variable(x), -1.0), axes, largest), -1.0)


@rule("ReduceProd", versions=(1, 11, 13, 18), inputs=(1, 2), attributes=REDUCTION)
def _reduce_product(context: Context, x: Value, axes: Value = None) -> Value:
    return _reduced(context, x, axes, multiplied)


def _pairwise(context: Context, operands: tuple[Value, ...], sign: float) -> Value:
    """Against a single constant a clip, otherwise pair by pair."""
    g = context.graph
    constants = [v for v in operands if isinstance(v, np.ndarray)]
    variables = [v for v in operands if isinstance(v, int)]
    found = g.scale(variables[0], sign) if len(variables) > 1 else variables[0]
    for other in variables[1:]:
        other = g.scale(other, sign)
        shape = np.broadcast_shapes(g.shape(found), g.shape(other))
        found = greater(g, g.expand(found, shape), g.expand(other, shape))
    found = g.scale(found, sign) if len(variables) > 1 else found
    for constant in constants:
        found = stretched(g, found, constant)
        if constant.size == 1:
            limit = number(constant)
            found = clipped(g, found, *((limit, math.inf) if sign > 0 else (-math.inf, limit)))
        else:  # max(x, c) = c + relu(x - c)
            limits = real(constant)
            found = g.scale(g.elementwise(Relu(), g.scale(found, sign, -sign * limits)), sign, limits)
    return found


@rule("Max", versions=(8, 12, 13), inputs=(1, MANY))
def _max(context: Context, *operands: Value) -> Value:
    return _pairwise(context, operands, 1.0)


@rule("Min", versions=(8, 12, 13), inputs=(1, MANY))
def _min(context: Context, *operands: Value) -> Value:
    return _pairwise(context, operands, -1.0)


@rule(
    "MaxPool",
    versions=(1, 8, 10, 11, 12, 22),
    attributes={**WINDOW, "ceil_mode": INT, "storage_order": INT},
)
def _max_pool(context: Context, x: Value) -> Value:
    """The entries of every window side by side; what lies in the padding repeats an entry of the same window."""
    g, shape = context.graph, context.shape(variable(x))
    kernel = tuple(int(v) for v in context.attributes["kernel_shape"])
    strides, pads, dilations = window(context, shape[2:], kernel)
    rank = len(kernel)
    lines = []
    for i, (size, k, stride, dilation) in enumerate(zip(shape[2:], kernel, strides, dilations)):
        over = size + pads[i] + pads[rank + i] - dilation * (k - 1) - 1
        ceil = bool(context.attributes.get("ceil_mode"))
        steps = (-(-over // stride) if ceil else over // stride) + 1
        if ceil and (steps - 1) * stride >= size + pads[i]:  # a window may not start in the padding behind
            steps -= 1
        if over < 0 or steps < 1 or max(pads[i], pads[rank + i]) > dilation * (k - 1):
            raise ModelError(f"a kernel {kernel} with pads {pads} that does not fit the input {shape}")
        check_size((steps, k))
        at = np.arange(steps)[:, None] * stride - pads[i] + np.arange(k) * dilation
        inside = (at >= 0) & (at < size)
        if not inside.any(1).all():
            raise ModelError(f"a window of the kernel {kernel} lies in the padding alone")
        first = at[np.arange(steps), inside.argmax(1)]
        lines.append(np.where(inside, at, first[:, None]))
    check_size((*shape[:2], *(line.size for line in lines)))
    where = np.arange(math.prod(shape)).reshape(shape)
    for i, line in enumerate(lines):
        where = np.take(where, line.T, axis=2 + 2 * i)  # [k, steps] in place of the axis
    order = (*range(2, 2 + 2 * rank, 2), 0, 1, *range(3, 3 + 2 * rank, 2))
    where = where.transpose(order)
    found = (*where.shape[:rank], *where.shape[rank:])
    count = math.prod(kernel)
    return largest(g, picked(g, variable(x), where.reshape(count, *found[rank:])), count)


@rule("GlobalMaxPool", versions=(1, 22))
def _global_max_pool(context: Context, x: Value) -> Value:
    g, shape = context.graph, context.shape(variable(x))
    if len(shape) < 3:
        raise ModelError(f"pooling of a value with {len(shape)} dimensions")
    count = math.prod(shape[2:])
    y = g.transpose(g.reshape(variable(x), (*shape[:2], count)), (2, 0, 1))
    return g.reshape(largest(g, y, count), (*shape[:2], *(1 for _ in shape[2:])))


# Entries that are only placed


def picked(g: GraphBuilder, x: int, where: np.ndarray, fill: float = 0.0) -> int:
    """The entries of ``x`` at positions in a row; -1 stands for the constant ``fill``."""
    check_size(where.shape)
    size = math.prod(g.shape(x))
    flat = g.reshape(x, (size,))
    if (where < 0).any():
        flat = g.add(Concat(0, (None, torch.tensor([fill], dtype=torch.float64))), flat)
        where = np.where(where < 0, size, where)
    return g.reshape(g.add(Gather(0, torch.from_numpy(where.reshape(-1).astype(np.int64))), flat), where.shape)


def _places(g: GraphBuilder, x: int) -> np.ndarray:
    return np.arange(math.prod(g.shape(x))).reshape(g.shape(x))


_PADDING: dict[bytes, dict[str, Any]] = {
    b"constant": {"mode": "constant", "constant_values": -1},
    b"edge": {"mode": "edge"},
    b"reflect": {"mode": "reflect"},
}


@rule(
    "Pad",
    versions=(2, 11, 13, 18, 19, 21, 23, 24, 25),
    inputs=(1, 4),
    attributes={"mode": STRING, "pads": INTS, "value": FLOAT},
)
def _pad(context: Context, x: Value, pads: Value = None, fill: Value = None, axes: Value = None) -> Value:
    """A padded tensor: entries are picked, or added as constants."""
    g, rank = context.graph, len(context.shape(variable(x)))
    sizes = [int(v) for v in context.attributes["pads"]] if pads is None else integers(pads)
    chosen = list(range(rank)) if axes is None else [axis_of(a, rank) for a in integers(axes)]
    if len(sizes) != 2 * len(chosen) or min(sizes, default=0) < 0 or len(set(chosen)) < len(chosen):
        raise ModelError(f"pads {sizes} of {len(chosen)} axes; negative ones are not supported")
    value = float(context.attributes.get("value", 0.0)) if fill is None else number(fill)
    mode = context.attributes["mode"]
    if mode not in _PADDING or not math.isfinite(value):
        raise ModelError(f"padding by mode {mode!r}, or with a value that is not finite")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(chosen):
        widths[axis] = (sizes[i], sizes[len(chosen) + i])
    shape = context.shape(variable(x))
    if mode == b"reflect" and any(max(pair) >= size for pair, size in zip(widths, shape)):
        raise ModelError(f"pads {sizes} that reflect more than the input of shape {shape} has")
    check_size(tuple(size + sum(pair) for size, pair in zip(shape, widths)))
    return picked(g, variable(x), np.pad(_places(g, variable(x)), widths, **_PADDING[mode]), value)


@rule("Tile", versions=(6, 13), inputs=2)
def _tile(context: Context, x: Value, repeats: Value) -> Value:
    times, shape = integers(repeats), context.shape(variable(x))
    if len(times) != len(shape) or min(times, default=1) < 1:
        raise ModelError(f"repeats {times} of a value of shape {shape}")
    check_size(tuple(size * n for size, n in zip(shape, times)))
    return picked(context.graph, variable(x), np.tile(_places(context.graph, variable(x)), times))


@rule("GatherND", versions=(11, 12, 13), inputs=2, attributes={"batch_dims": INT})
def _gather_nd(context: Context, x: Value, indices: Value) -> Value:
    """Entries at constant index tuples."""
    where = positions(indices)
    shape = context.shape(variable(x))
    if context.attributes.get("batch_dims", 0) or not 1 <= where.shape[-1] <= len(shape):
        raise ModelError("batched indices, or indices of more axes than there are")
    sizes = np.array(shape[: where.shape[-1]])
    if ((where < -sizes) | (where >= sizes)).any():
        raise ModelError(f"an index is outside a value of shape {shape}")
    check_size((*where.shape[:-1], *shape[where.shape[-1] :]))
    found = _places(context.graph, variable(x))[tuple(np.moveaxis(where % sizes, -1, 0))]
    return picked(context.graph, variable(x), found)


@rule("GatherElements", versions=(11, 13), inputs=2, attributes={"axis": INT})
def _gather_elements(context: Context, x: Value, indices: Value) -> Value:
    """For every position of constant indices, the entry that they name along one axis."""
    where, shape = positions(indices), context.shape(variable(x))
    axis = axis_of(int(context.attributes.get("axis", 0)), len(shape))
    size = shape[axis]
    fits = [n <= most for place, (n, most) in enumerate(zip(where.shape, shape)) if place != axis]
    if where.ndim != len(shape) or not where.size or not all(fits):
        raise ModelError(f"indices of shape {where.shape} for a value of shape {shape}")
    if ((where < -size) | (where >= size)).any():
        raise ModelError(f"an index is outside a value of shape {shape}")
    check_size(where.shape)
    chosen: list[np.ndarray] = list(np.indices(where.shape, sparse=True))
    chosen[axis] = where % size
    return picked(context.graph, variable(x), _places(context.graph, variable(x))[tuple(chosen)])


@rule("DepthToSpace", versions=(1, 11, 13), attributes={"blocksize": INT, "mode": STRING})
def _depth_to_space(context: Context, x: Value) -> Value:
    """Blocks of channels laid out in space, in either order of the standard."""
    n, c, h, w = _image(context, x)
    size = int(context.attributes["blocksize"])
    if size < 1 or c % (size * size):
        raise ModelError(f"{c} channels in blocks of {size}")
    places = _places(context.graph, variable(x))
    if context.attributes.get("mode", b"DCR") == b"DCR":
        found = places.reshape(n, size, size, c // size**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        found = places.reshape(n, c // size**2, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return picked(context.graph, variable(x), found.reshape(n, c // size**2, h * size, w * size))


@rule("SpaceToDepth", versions=(1, 13), attributes={"blocksize": INT})
def _space_to_depth(context: Context, x: Value) -> Value:
    n, c, h, w = _image(context, x)
    size = int(context.attributes["blocksize"])
    if size < 1 or h % size or w % size:
        raise ModelError(f"a picture of {h} x {w} in blocks of {size}")
    places = _places(context.graph, variable(x)).reshape(n, c, h // size, size, w // size, size)
    found = places.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * size * size, h // size, w // size)
    return picked(context.graph, variable(x), found)


def _image(context: Context, x: Value) -> Shape:
    shape = context.shape(variable(x))
    if len(shape) != 4:
        raise ModelError(f"a value of shape {shape} is no picture")
    return shape


@rule(
    "ConvTranspose",
    versions=(1, 11, 22),
    inputs=(2, 3),
    attributes={**WINDOW, "group": INT, "output_padding": INTS, "output_shape": INTS},
)
def _conv_transpose(context: Context, x: Value, kernel: Value, bias: Value = None) -> Value:
    """A convolution of the input with zeros between its entries, the kernel turned around."""
    g, shape, weights = context.graph, context.shape(variable(x)), real(kernel)
    size = tuple(weights.shape[2:])
    if "output_shape" in context.attributes or context.attributes["auto_pad"] != b"NOTSET":
        raise ModelError("an output shape or automatic pads; export the pads themselves")
    if tuple(context.attributes.get("kernel_shape", size)) != size or not 1 <= len(size) <= 3:
        raise ModelError(f"a kernel of shape {size} that declares another one, or has too many axes")
    strides, pads, dilations = window(context, shape[2:], size)
    rank, groups = len(size), int(context.attributes["group"])
    extra = tuple(int(v) for v in context.attributes.get("output_padding", (0,) * rank))
    if groups < 1 or shape[1] % groups or weights.shape[0] != shape[1] or len(extra) != rank or min(extra) < 0:
        raise ModelError(f"a kernel of shape {tuple(weights.shape)} in {groups} groups, output padding {extra}")
    room = [dilations[i] * (size[i] - 1) for i in range(rank)]
    grown = [(shape[2 + i] - 1) * strides[i] + 1 for i in range(rank)]
    before = [room[i] - pads[i] for i in range(rank)]
    behind = [room[i] - pads[rank + i] + extra[i] for i in range(rank)]
    check_size((*shape[:2], *grown))
    where = np.full((*shape[:2], *grown), -1)
    where[(slice(None), slice(None), *(slice(None, None, stride) for stride in strides))] = _places(g, variable(x))
    # Pads larger than what the kernel reaches cut entries off.
    cut = (slice(None), slice(None), *(slice(max(0, -a), n - max(0, -b)) for a, b, n in zip(before, behind, grown)))
    where = where[cut]
    if not where.size:
        raise ModelError(f"pads {pads} leave nothing of the input {shape}")
    y = picked(g, variable(x), where)
    # [in, out / groups, *size] to [out, in / groups, *size], turned around
    turned = weights.reshape(groups, -1, *weights.shape[1:]).transpose(1, 2).flip(tuple(range(3, 3 + rank)))
    turned = turned.reshape(-1, shape[1] // groups, *size)
    shift = None if bias is None else real(bias)
    if shift is not None and tuple(shift.shape) != (len(turned),):
        raise ModelError("a bias that does not have one entry per channel")
    around = (*(max(0, a) for a in before), *(max(0, b) for b in behind))
    return g.add(Conv(turned, shift, (1,) * rank, around, dilations, groups), y)


@rule(
    "Resize",
    versions=(11, 13, 18, 19),
    inputs=(1, 4),
    attributes={
        "mode": STRING,
        "coordinate_transformation_mode": STRING,
        "nearest_mode": STRING,
        "cubic_coeff_a": FLOAT,
        "exclude_outside": INT,
        "extrapolation_value": FLOAT,
        "antialias": INT,
        "axes": INTS,
        "keep_aspect_ratio_policy": STRING,
    },
)
def _resize(context: Context, x: Value, roi: Value = None, scales: Value = None, sizes: Value = None) -> Value:
    """Axis by axis a matrix of weights: one 1 in a row for the nearest entry, two numbers for linear interpolation."""
    g, shape, attributes = context.graph, context.shape(variable(x)), context.attributes
    mode, how = attributes["mode"], attributes["coordinate_transformation_mode"]
    plain = not attributes.get("antialias") and "axes" not in attributes
    if mode not in (b"nearest", b"linear") or not plain:
        raise ModelError(f"mode {mode!r}, antialiasing or axes; only nearest and linear are supported")
    if attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise ModelError("a policy on the aspect ratio")
    given = isinstance(scales, np.ndarray) and scales.size > 0
    if given == (isinstance(sizes, np.ndarray) and sizes.size > 0):
        raise ModelError("neither scales nor sizes, or both")
    rates = real(scales).tolist() if given else [n / size for n, size in zip(integers(sizes), shape)]
    if len(rates) != len(shape) or min(rates) <= 0:
        raise ModelError(f"scales {rates} of a value of shape {shape}")
    wanted = [math.floor(size * rate) for size, rate in zip(shape, rates)] if given else integers(sizes)
    if given and wanted != [math.floor(np.float32(size) * np.float32(rate)) for size, rate in zip(shape, rates)]:
        raise ModelError("a size that rounding changes")
    check_size(tuple(wanted))
    y = variable(x)
    for axis, (size, target, rate) in enumerate(zip(shape, wanted, rates)):
        if target < 1:
            raise ModelError("a size of 0")
        if target == size and rate == 1:
            continue
        matrix = _weights(size, target, rate, mode, how, attributes["nearest_mode"])
        last = len(shape) - 1
        order = (*(i for i in range(last + 1) if i != axis), axis)
        back = tuple(order.index(i) for i in range(last + 1))
        y = g.transpose(g.linear(g.transpose(y, order), torch.from_numpy(matrix)), back)
    return y


def _coordinates(size: int, target: int, rate: Any, how: bytes) -> np.ndarray:
    """Where the entries of a resized axis stand in the operand, in the precision of the rate."""
    at = np.arange(target, dtype=rate.dtype)
    ways: dict[bytes, Callable[[], np.ndarray]] = {
        b"half_pixel": lambda: (at + 0.5) / rate - 0.5,
        b"pytorch_half_pixel": lambda: (at + 0.5) / rate - 0.5 if target > 1 else 0 * at,
        b"align_corners": lambda: at * (size - 1) / (target - 1) if target > 1 else 0 * at,
        b"asymmetric": lambda: at / rate,
    }
    if how not in ways:
        raise ModelError(f"coordinates by {how!r}")
    return ways[how]()


def _weights(size: int, target: int, rate: float, mode: bytes, how: bytes, rounding: bytes) -> np.ndarray:
    """``[size, target]``: what every entry contributes to every entry of the resized axis."""
    where, single = (_coordinates(size, target, number(rate), how) for number in (np.float64, np.float32))
    matrix = np.zeros((size, target))
    if mode == b"linear":
        low = np.floor(where)
        share = where - low
        for entry, weight in ((low, 1 - share), (low + 1, share)):
            np.add.at(matrix, (np.clip(entry, 0, size - 1).astype(int), np.arange(target)), weight)
        return matrix
    kinds: dict[bytes, Callable[[np.ndarray], np.ndarray]] = {
        b"round_prefer_floor": lambda at: np.ceil(at - 0.5),
        b"round_prefer_ceil": lambda at: np.floor(at + 0.5),
        b"floor": np.floor,
        b"ceil": np.ceil,
    }
    if rounding not in kinds:
        raise ModelError(f"the nearest entry by {rounding!r}")
    nearest = kinds[rounding](where)
    if (nearest != kinds[rounding](single.astype(np.float64))).any():
        raise ModelError("a nearest entry that rounding changes")
    matrix[np.clip(nearest, 0, size - 1).astype(int), np.arange(target)] = 1.0
    return matrix


# Activations


@rule("Abs", versions=(6, 13))
def _abs(context: Context, x: Value) -> Value:
    """``2 relu(x) - x``: one rectifier, and the same lines as the function has."""
    return absolute(context.graph, variable(x))


def absolute(g: GraphBuilder, x: int) -> int:
    """Adds ``|x| = 2 relu(x) - x``; returns its index."""
    return g.difference(g.scale(g.elementwise(Relu(), x), 2.0), x)


@rule("PRelu", versions=(7, 9, 16), inputs=2)
def _prelu(context: Context, x: Value, slope: Value) -> Value:
    """``slope x + (1 - slope) relu(x)``, with a slope for every channel."""
    g, rates = context.graph, real(slope)
    if tuple(np.broadcast_shapes(g.shape(variable(x)), tuple(rates.shape))) != g.shape(variable(x)):
        raise ModelError(f"slopes of shape {tuple(rates.shape)} for a value of shape {g.shape(variable(x))}")
    return g.sum_of(g.scale(variable(x), rates), g.scale(g.elementwise(Relu(), variable(x)), 1 - rates))


def _elu(context: Context, x: Value, alpha: float, outer: float = 1.0) -> Value:
    """``outer (alpha elu(x) + (1 - alpha) relu(x))`` with the convex elu of slope 1."""
    g = context.graph
    y = g.scale(g.elementwise(Elu(), variable(x)), outer * alpha)
    return y if alpha == 1 else g.sum_of(y, g.scale(g.elementwise(Relu(), variable(x)), outer * (1 - alpha)))


@rule("Elu", versions=(6, 22), attributes={"alpha": FLOAT})
def _elu_of(context: Context, x: Value) -> Value:
    return _elu(context, x, finite_attribute(context, "alpha"))


@rule("Selu", versions=(6, 22), attributes={"alpha": FLOAT, "gamma": FLOAT})
def _selu(context: Context, x: Value) -> Value:
    return _elu(context, x, finite_attribute(context, "alpha"), finite_attribute(context, "gamma"))


@rule("Celu", versions=(12,), attributes={"alpha": FLOAT})
def _celu(context: Context, x: Value) -> Value:
    alpha = finite_attribute(context, "alpha")
    if alpha <= 0:
        raise ModelError(f"alpha {alpha}")
    g = context.graph
    return g.scale(g.elementwise(Elu(), g.scale(variable(x), 1 / alpha)), alpha)


@rule("HardSigmoid", versions=(6, 22), attributes={"alpha": FLOAT, "beta": FLOAT})
def _hard_sigmoid(context: Context, x: Value) -> Value:
    alpha, beta = (finite_attribute(context, name) for name in ("alpha", "beta"))
    return clipped(context.graph, context.graph.scale(variable(x), alpha, beta), 0.0, 1.0)


@rule("HardSwish", versions=(14, 22))
def _hard_swish(context: Context, x: Value) -> Value:
    """``(c^2 + 3 c) / 6 + relu(x - 3)`` with c the input clipped to -3 and 3."""
    g = context.graph
    middle = g.elementwise(Clip(-3.0, 3.0), variable(x))
    bowl = g.sum_of(g.elementwise(Square(), middle), g.scale(middle, 3.0))
    return g.sum_of(g.scale(bowl, 1 / 6), g.elementwise(Relu(), g.scale(variable(x), 1.0, -3.0)))


def _curve(name: str, versions: tuple[int, ...], make: Callable[[], Operator]) -> None:
    activation(name, versions, lambda context: make())


_curve("Softplus", (1, 22), Softplus)
_curve("Softsign", (1, 22), Softsign)
_curve("Mish", (18, 22), Mish)


@rule("Swish", versions=(24,), attributes={"alpha": FLOAT})
def _swish(context: Context, x: Value) -> Value:
    """``x sigmoid(alpha x)``, a SiLU of ``alpha x`` over alpha."""
    alpha = finite_attribute(context, "alpha")
    if alpha == 0:
        return context.graph.scale(variable(x), 0.5)
    y = context.graph.elementwise(Silu(), context.graph.scale(variable(x), alpha))
    return context.graph.scale(y, 1 / alpha)


# Logarithms of softmax


@rule("LogSoftmax", versions=(1, 11, 13), attributes={"axis": INT})
def _log_softmax(context: Context, x: Value) -> Value:
    g, shape = context.graph, context.shape(variable(x))
    axis = axis_of(int(context.attributes["axis"]), len(shape))
    # Before version 13 everything from the axis on is one distribution.
    axes = (axis,) if context.version >= 13 else tuple(range(axis, len(shape)))
    return g.difference(variable(x), g.add(LogSumExp(axes), variable(x)))


@rule("ReduceLogSumExp", versions=(1, 11, 13, 18), inputs=(1, 2), attributes=REDUCTION)
def _reduce_log_sum_exp(context: Context, x: Value, axes: Value = None) -> Value:
    chosen = reduced_axes(context, variable(x), axes)
    if not chosen:
        return variable(x)
    y = context.graph.add(LogSumExp(chosen), variable(x))
    if context.attributes["keepdims"]:
        return y
    return context.graph.reshape(y, tuple(n for i, n in enumerate(context.shape(variable(x))) if i not in chosen))


@rule("ReduceL1", versions=(1, 11, 13, 18), inputs=(1, 2), attributes=REDUCTION)
def _reduce_l1(context: Context, x: Value, axes: Value = None) -> Value:
    chosen = reduced_axes(context, variable(x), axes)
    return context.graph.total(absolute(context.graph, variable(x)), chosen, bool(context.attributes["keepdims"]))


@rule("ReduceSumSquare", versions=(1, 11, 13, 18), inputs=(1, 2), attributes=REDUCTION)
def _reduce_sum_square(context: Context, x: Value, axes: Value = None) -> Value:
    return _sum_of_squares(context, x, axes)


def _sum_of_squares(context: Context, x: Value, axes: Value) -> int:
    chosen = reduced_axes(context, variable(x), axes)
    squares = context.graph.elementwise(Square(), variable(x))
    return context.graph.total(squares, chosen, bool(context.attributes["keepdims"]))


@rule("ReduceL2", versions=(1, 11, 13, 18), inputs=(1, 2), attributes=REDUCTION)
def _reduce_l2(context: Context, x: Value, axes: Value = None) -> Value:
    return context.graph.elementwise(Sqrt(context.graph.label), _sum_of_squares(context, x, axes))


@rule("Mean", versions=(8, 13), inputs=(1, MANY))
def _mean(context: Context, *operands: Value) -> Value:
    g = context.graph
    variables = [v for v in operands if isinstance(v, int)]
    total = variables[0]
    for other in variables[1:]:
        total = g.sum_of(total, other)
    for constant in (v for v in operands if not isinstance(v, int)):
        total = g.scale(total, 1.0, real(constant))
    return g.scale(total, 1 / len(operands))


# Normalisation


def _steady(g: GraphBuilder, x: int, axes: tuple[int, ...], epsilon: float) -> int:
    """``x / sqrt(mean(x^2) + epsilon)`` over axes; the only product of two variables is the last."""
    variance = g.total(g.elementwise(Square(), x), axes, mean=True)
    return g.product(x, g.elementwise(Rsqrt(g.label), g.scale(variance, 1.0, epsilon)))


@rule(
    "RMSNormalization",
    versions=(23,),
    inputs=2,
    attributes={"axis": INT, "epsilon": FLOAT, "stash_type": INT},
)
def _rms_normalization(context: Context, x: Value, scale: Value) -> Value:
    g, shape = context.graph, context.shape(variable(x))
    axes = tuple(range(axis_of(int(context.attributes["axis"]), len(shape)), len(shape)))
    y = _steady(g, variable(x), axes, finite_attribute(context, "epsilon"))
    return g.scale(y, real(scale))


@rule("InstanceNormalization", versions=(6, 22), inputs=3, attributes={"epsilon": FLOAT})
def _instance_normalization(context: Context, x: Value, scale: Value, bias: Value) -> Value:
    shape = context.shape(variable(x))
    return _grouped(context, variable(x), shape[1], scale, bias)


@rule(
    "GroupNormalization",
    versions=(21,),
    inputs=3,
    attributes={"epsilon": FLOAT, "num_groups": INT, "stash_type": INT},
)
def _group_normalization(context: Context, x: Value, scale: Value, bias: Value) -> Value:
    return _grouped(context, variable(x), int(context.attributes["num_groups"]), scale, bias)


def _grouped(context: Context, x: int, groups: int, scale: Value, bias: Value) -> Value:
    """Channels in groups, each centred and divided by its deviation; a scale and a shift for every channel."""
    g, shape = context.graph, context.shape(x)
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise ModelError(f"{groups} groups of the channels of a value of shape {shape}")
    flat = g.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups))
    y = _steady(g, g.add(Centre((2,)), flat), (2,), finite_attribute(context, "epsilon"))
    constants = [real(value) for value in (scale, bias)]
    if any(tuple(constant.shape) != (shape[1],) for constant in constants):
        raise ModelError("a scale or bias that does not have one entry per channel")
    wide = (shape[1], *(1 for _ in shape[2:]))
    return g.scale(g.reshape(y, shape), *(constant.reshape(wide) for constant in constants))


# Attention of current operator sets


@rule(
    "Attention",
    versions=(23, 24, 25),
    inputs=(3, 4),
    attributes={
        "left_window_size": INT,
        "right_window_size": INT,
        "is_causal": INT,
        "q_num_heads": INT,
        "kv_num_heads": INT,
        "scale": FLOAT,
        "softcap": FLOAT,
        "qk_matmul_output_mode": INT,
        "softmax_precision": INT,
    },
)
def _attention(context: Context, query: Value, key: Value, value: Value, mask: Value = None) -> Value:
    """``softmax(scale q k' + mask) v`` by heads; fewer heads of keys are shared by neighbouring queries."""
    g, attributes = context.graph, context.attributes
    if attributes.get("softcap"):
        raise ModelError("capped attention logits are not supported")
    if any(int(attributes.get(f"{side}_window_size", -1)) >= 0 for side in ("left", "right")):
        raise ModelError("a window, which onnxruntime does not compute yet; write it as a mask")
    flat = len(shape_of(g, query)) == 3
    q, k, v = (
        _heads(g, variable(t), int(attributes.get(name, 0))) if flat else variable(t)
        for t, name in ((query, "q_num_heads"), (key, "kv_num_heads"), (value, "kv_num_heads"))
    )
    (batch, heads, tokens, width), (_, shared, keys, _) = g.shape(q), g.shape(k)
    if heads % shared:
        raise ModelError(f"{heads} heads of queries for {shared} of keys")
    if shared < heads:
        each = torch.arange(heads) // (heads // shared)
        k, v = (g.add(Gather(1, each), t) for t in (k, v))
    scale = float(attributes.get("scale", 1 / math.sqrt(width)))
    logits = g.scale(g.matmul(q, g.transpose(k, (0, 1, 3, 2))), scale)
    if mask is not None:
        given = np.asarray(mask)
        added = np.where(given, 0.0, -np.inf) if given.dtype == np.bool_ else given
        if added.shape[-1:] != (keys,):  # a shorter one is filled up with -inf by some versions
            raise ModelError(f"a mask of shape {added.shape} for {keys} keys")
        logits = g.scale(logits, 1.0, real(added, masks=True))
    if attributes.get("is_causal"):
        later = np.arange(keys)[None, :] > np.arange(tokens)[:, None]
        logits = g.scale(logits, 1.0, real(np.where(later, -np.inf, 0.0), masks=True))
    y = g.matmul(g.elementwise(Softmax(3), logits), v)
    if not flat:
        return y
    y = g.transpose(y, (0, 2, 1, 3))
    return g.reshape(y, (batch, tokens, math.prod(g.shape(y)[2:])))


def _heads(g: GraphBuilder, x: int, heads: int) -> int:
    batch, tokens, width = g.shape(x)
    if heads < 1 or width % heads:
        raise ModelError(f"{heads} heads of a width of {width}")
    return g.transpose(g.reshape(x, (batch, tokens, heads, width // heads)), (0, 2, 1, 3))


@rule(
    "RotaryEmbedding",
    versions=(23,),
    inputs=(3, 4),
    attributes={"interleaved": INT, "num_heads": INT, "rotary_embedding_dim": INT},
)
def _rotary_embedding(context: Context, x: Value, cosines: Value, sines: Value, tokens: Value = None) -> Value:
    """Pairs of entries turned by constant angles, given for every token; entries behind them stay as they are."""
    g, attributes = context.graph, context.attributes
    shape = g.shape(variable(x))
    flat = len(shape) == 3
    y = _heads(g, variable(x), int(attributes.get("num_heads", 0))) if flat else variable(x)
    width = g.shape(y)[-1]
    turning = int(attributes.get("rotary_embedding_dim", 0)) or width
    if turning % 2 or not 0 < turning <= width:
        raise ModelError(f"a rotation of {turning} entries of {width}")
    half = turning // 2
    first = np.arange(0, turning, 2) if attributes.get("interleaved") else np.arange(half)
    second = first + 1 if attributes.get("interleaved") else first + half
    partner = np.arange(width)
    partner[first], partner[second] = second, first
    own = np.ones((g.shape(y)[0], 1, g.shape(y)[2], width))
    other = np.zeros_like(own)
    for table, full, sign in ((cosines, own, 1.0), (sines, other, -1.0)):
        angles = real(table).numpy()
        if tokens is not None:
            where = positions(tokens)
            if where.min(initial=0) < 0 or where.max(initial=0) >= len(angles):
                raise ModelError(f"a token outside the {len(angles)} of the table")
            angles = angles[where]
        full[..., first], full[..., second] = sign * angles[:, None], angles[:, None]
    turned = g.scale(g.add(Gather(3, torch.from_numpy(partner)), y), torch.from_numpy(other))
    y = g.sum_of(g.scale(y, torch.from_numpy(own)), turned)
    return g.reshape(g.transpose(y, (0, 2, 1, 3)), shape) if flat else y
