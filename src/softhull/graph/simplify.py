"""Rewriting a graph into fewer operators that are relaxed more tightly; the function computed stays the same.

Files spell one idea in many ways: a softmax as five operators, a gelu as four. Relaxed one by one they lose
what the idea as a whole knows. Each rule below recognises one spelling. Constants are joined only where their product
or sum is a number of the format (as products of single-precision constants are in double precision): otherwise the
joined network would be another function.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .broadcast import broadcast
from .builder import GraphBuilder
from .exact import exact_product, exact_sum
from .graph import Graph, Node
from .needed import only_needed
from .operator import Operator, Shape
from .ops.add import Add, Subtract
from .ops.centre import Centre
from .ops.conv import Conv
from .ops.cube import Cube
from .ops.dense import Dense
from .ops.erf import Erf
from .ops.exp import Exp
from .ops.expand import Expand
from .ops.gelu import Gelu, TanhGelu
from .ops.guard import Guard
from .ops.matmul import MatMul
from .ops.normalize import InverseDeviation, Normalized
from .ops.product import Product
from .ops.reciprocal import Reciprocal
from .ops.reshape import Reshape
from .ops.rsqrt import Rsqrt
from .ops.scale import Scale
from .ops.sigmoid import Sigmoid
from .ops.silu import Mish, Silu
from .ops.softmax import MASKED_BELOW, Softmax
from .ops.softplus import Softplus
from .ops.sqrt import Sqrt
from .ops.square import Square
from .ops.sum import Sum
from .ops.tanh import Tanh
from .ops.transpose import Transpose

PREVIOUS = -2  # as an input of a step: the output of the step before


class Step(NamedTuple):
    """One operator of a replacement; inputs are positions in the old graph, or PREVIOUS."""

    operator: Operator
    inputs: tuple[int, ...]


class View(NamedTuple):
    """The graph being rewritten and how often each value is used."""

    graph: Graph
    uses: Counter[int]

    def node(self, index: int) -> Node | None:
        """The node with this index; None for the input."""
        return self.graph.nodes[index] if index >= 0 else None

    def operator(self, index: int) -> Operator | None:
        """The operator of the node with this index; None for the input."""
        return self.graph.nodes[index].operator if index >= 0 else None

    def only_use(self, index: int) -> bool:
        """Whether exactly one other node uses the output of this one."""
        return self.uses[index] == 1


Rule = Callable[[View, Node], "list[Step] | None"]


def simplify(graph: Graph) -> Graph:
    """The same function in fewer operators and entries."""
    return _rewritten(only_needed(_rewritten(graph)))


def _rewritten(graph: Graph) -> Graph:
    """Apply the rules until none fits."""
    while True:
        uses = Counter(i for node in graph.nodes for i in node.inputs)
        view = View(graph, uses)
        builder = GraphBuilder(graph.input_shape)
        position = {-1: -1}
        changed = False
        for index, node in enumerate(graph.nodes):
            builder.label = node.label
            steps = next((found for rule in RULES if (found := rule(view, node)) is not None), None)
            if steps is None:
                position[index] = builder.add(node.operator, *(position[i] for i in node.inputs))
                continue
            changed = True
            previous = position[node.inputs[0]] if not steps else -1
            for step in steps:
                inputs = tuple(previous if i == PREVIOUS else position[i] for i in step.inputs)
                previous = builder.add(step.operator, *inputs)
            position[index] = previous
        if not changed:
            return graph
        graph = builder.finish(position[len(graph.nodes) - 1])


def _drop_identity(view: View, node: Node) -> list[Step] | None:
    """A reshape, transpose or scale that changes nothing is its input."""
    operator = node.operator
    same = (
        (isinstance(operator, Reshape | Expand) and operator.target == view.graph.shape_of(node.inputs[0]))
        or (isinstance(operator, Transpose) and operator.order == tuple(range(len(operator.order))))
        or (isinstance(operator, Scale) and _is(operator.factor, 1) and _is(operator.shift, 0))
    )
    return [] if same else None


def _join_movement(view: View, node: Node) -> list[Step] | None:
    """Two reshapes, or two transposes, in a row are one."""
    inner = view.node(node.inputs[0])
    if inner is None:
        return None
    if isinstance(node.operator, Reshape) and isinstance(inner.operator, Reshape):
        return [Step(node.operator, inner.inputs)]
    if isinstance(node.operator, Transpose) and isinstance(inner.operator, Transpose):
        order = tuple(inner.operator.order[axis] for axis in node.operator.order)
        return [Step(Transpose(order), inner.inputs)]
    return None


def _transpose_without_unit_axes(view: View, node: Node) -> list[Step] | None:
    """Moving an axis of size one is a reshape, and reshapes join their neighbours."""
    if not isinstance(node.operator, Transpose) or 1 not in node.shape:
        return None
    before = view.graph.shape_of(node.inputs[0])
    order = [axis for axis in node.operator.order if before[axis] != 1]
    kept = sorted(order)
    if order == kept:
        return [Step(Reshape(node.shape), node.inputs)]
    if not isinstance(view.operator(node.inputs[0]), Reshape):
        return None
    return [
        Step(Reshape(tuple(before[axis] for axis in kept)), node.inputs),
        Step(Transpose(tuple(kept.index(axis) for axis in order)), (PREVIOUS,)),
        Step(Reshape(node.shape), (PREVIOUS,)),
    ]


def _pull_scale(view: View, node: Node) -> list[Step] | None:
    """A scale behind a reshape or transpose moves in front of it, towards the layer that may take it in."""
    inner = view.node(node.inputs[0])
    if not isinstance(node.operator, Scale) or inner is None or not view.only_use(node.inputs[0]):
        return None
    if not isinstance(inner.operator, Reshape | Transpose) or not bool(node.operator.shift.isfinite().all()):
        return None
    before = view.graph.shape_of(inner.inputs[0])
    factor, shift = (
        constant if constant.numel() == 1 else _undo(inner.operator, constant.expand(node.shape), before)
        for constant in (node.operator.factor, node.operator.shift)
    )
    factor, shift = (c.reshape(()) if c.numel() == 1 else c for c in (factor, shift))
    return [Step(Scale(factor, shift), inner.inputs), Step(inner.operator, (PREVIOUS,))]


def _undo(movement: Reshape | Transpose, constant: Tensor, before: Shape) -> Tensor:
    if isinstance(movement, Reshape):
        return constant.reshape(before)
    return constant.permute(sorted(range(len(movement.order)), key=movement.order.__getitem__)).contiguous()


def _scale_before_matmul(view: View, node: Node) -> list[Step] | None:
    """A common factor of attention logits belongs to the queries, whose layer takes it in."""
    inner = view.node(node.inputs[0])
    if not isinstance(node.operator, Scale) or inner is None or not view.only_use(node.inputs[0]):
        return None
    factor = _number(node.operator.factor)
    if not isinstance(inner.operator, MatMul) or factor is None or not _is(node.operator.shift, 0):
        return None
    x, y = inner.inputs
    if x == y:
        return None
    return [Step(_factor(factor), (x,)), Step(inner.operator, (PREVIOUS, y))]


def _softmax_at_matmul(view: View, node: Node) -> list[Step] | None:
    """A transpose, or axes of size one, between attention logits and their softmax move behind it."""
    inner = view.node(node.inputs[0])
    if not isinstance(node.operator, Softmax) or inner is None:
        return None
    if not isinstance(view.operator(inner.inputs[0]), MatMul) or node.shape[node.operator.axis] == 1:
        return None
    before = view.graph.shape_of(inner.inputs[0])
    if isinstance(inner.operator, Transpose):
        axis = inner.operator.order[node.operator.axis]
        moved = replace(node.operator, axis=axis, mask=_moved_mask(node, inner.operator, before))
        return [Step(moved, inner.inputs), Step(inner.operator, (PREVIOUS,))]
    same = [size for size in before if size != 1] == [size for size in node.shape if size != 1]
    if not isinstance(inner.operator, Reshape) or not same:
        return None
    rank = sum(size != 1 for size in node.shape[: node.operator.axis])
    axis = [i for i, size in enumerate(before) if size != 1][rank]
    moved = replace(node.operator, axis=axis, mask=_moved_mask(node, inner.operator, before))
    return [Step(moved, inner.inputs), Step(Reshape(node.shape), (PREVIOUS,))]


def _moved_mask(node: Node, movement: Reshape | Transpose, before: Shape) -> Tensor | None:
    """The mask of a softmax in the order its logits had before they were moved."""
    assert isinstance(node.operator, Softmax)
    mask = node.operator.mask
    return None if mask is None else _undo(movement, mask.expand(node.shape), before)


def _mask(view: View, node: Node) -> list[Step] | None:
    """What is hugely negative beside the other constants of its row masks a logit, however it was written.

    Added it stays added; where it took the place of the logit, the logit comes back and the softmax replaces it.
    """
    inner = view.node(node.inputs[0])
    if not isinstance(node.operator, Softmax) or node.operator.mask is not None or inner is None:
        return None
    if not isinstance(inner.operator, Scale):
        return None
    axis, shape = node.operator.axis, node.shape
    factor, shift = (_with_axis(c, axis, shape) for c in (inner.operator.factor, inner.operator.shift))
    least = torch.finfo(shift.dtype).min
    far = shift - shift.clamp(min=least).amax(axis, keepdim=True) <= MASKED_BELOW
    masked = shift.isneginf() | far & (shift < 0)  # a softmax takes what is below 0 for its mask
    if not bool(masked.any()):
        return None
    mask = torch.where(masked, shift, 0.0)
    gone, finite = masked & (factor == 0), masked & ~mask.isinf()
    replaced = bool((gone == masked)[finite.expand(gone.shape)].all())
    if not replaced and bool(gone[finite.expand(gone.shape)].any()):
        return None  # some replaced, some added: nobody writes that
    return [
        Step(Scale(_filled(factor, gone | mask.isinf()), torch.where(masked, 0.0, shift)), inner.inputs),
        Step(Softmax(axis, mask, replaced), (PREVIOUS,)),
    ]


def _with_axis(constant: Tensor, axis: int, shape: Shape) -> Tensor:
    """A constant that broadcasts to a shape, with all of one axis and size one where it does not vary."""
    constant = constant.reshape((1,) * (len(shape) - constant.ndim) + tuple(constant.shape))
    return constant.expand(*(shape[i] if i == axis else size for i, size in enumerate(constant.shape)))


def _filled(factor: Tensor, free: Tensor) -> Tensor:
    """Factors with those that do not matter like the others, where the others are one number."""
    factor, free = torch.broadcast_tensors(factor, free)
    others = factor[~free]
    usual = others[0] if others.numel() and bool((others == others[0]).all()) else torch.ones_like(factor[..., :1])
    filled = torch.where(free, usual, factor)
    number = _number(filled)
    return filled if number is None else torch.tensor(number, dtype=filled.dtype)


def _guarded_softmax(view: View, node: Node) -> list[Step] | None:
    """``where(isnan(p), 0, p)``: only a row without any visible logit has no probabilities, and it becomes 0."""
    inner = view.node(node.inputs[0])
    if not isinstance(node.operator, Guard) or inner is None or not isinstance(inner.operator, Softmax):
        return None
    softmax, before = inner.operator, view.operator(inner.inputs[0])
    if softmax.mask is None:
        # A mask that stands before the softmax is taken into it first.
        infinite = isinstance(before, Scale) and not bool(before.shift.isfinite().all())
        return None if infinite else [Step(softmax, inner.inputs)]
    empty = softmax.mask.isneginf().all(softmax.axis, keepdim=True)
    if not bool(empty.any()):
        return [Step(softmax, inner.inputs)]
    shown = replace(softmax, mask=torch.where(empty, 0.0, softmax.mask))
    zero = torch.zeros((), dtype=torch.float64)
    return [Step(shown, inner.inputs), Step(Scale((~empty).double(), zero), (PREVIOUS,))]


def _join_scales(view: View, node: Node) -> list[Step] | None:
    """Two scales in a row are one."""
    inner = view.node(node.inputs[0])
    if not isinstance(node.operator, Scale) or inner is None or not isinstance(inner.operator, Scale):
        return None
    if not view.only_use(node.inputs[0]) or not bool(inner.operator.shift.isfinite().all()):
        return None
    outer, first = node.operator, inner.operator
    factor, moved = exact_product(outer.factor, first.factor), exact_product(outer.factor, first.shift)
    shift = None if moved is None else exact_sum(moved, outer.shift)
    return None if factor is None or shift is None else [Step(Scale(factor, shift), inner.inputs)]


def _scale_into_layer(view: View, node: Node) -> list[Step] | None:
    """A linear layer or convolution takes in the scale behind it."""
    inner = view.node(node.inputs[0])
    if not isinstance(node.operator, Scale) or inner is None or not view.only_use(node.inputs[0]):
        return None
    scale, layer = node.operator, inner.operator
    if not isinstance(layer, Dense | Conv) or not bool(scale.shift.isfinite().all()):
        return None
    axis = 1 if isinstance(layer, Conv) else len(node.shape) - (2 if layer.left else 1)
    factor = _along(scale.factor, axis, node.shape)
    if factor is None:
        return None
    if isinstance(layer, Conv):
        shift = _along(scale.shift, axis, node.shape)
        if shift is None:
            return None
        kernel = exact_product(layer.kernel, factor.reshape(-1, *(1,) * (layer.kernel.ndim - 1)))
        bias = shift.expand(node.shape[1]) if layer.bias is None else _exact_affine(factor, layer.bias, shift)
        return (
            None if kernel is None or bias is None else [Step(replace(layer, kernel=kernel, bias=bias), inner.inputs)]
        )
    matrix = exact_product(layer.matrix, factor.reshape(-1, 1) if layer.left else factor)
    bias = scale.shift if layer.bias is None else _exact_affine(scale.factor, layer.bias, scale.shift)
    if matrix is None or bias is None:
        return None
    return [Step(replace(layer, matrix=matrix, bias=None if _is(bias, 0) else bias), inner.inputs)]


def _exact_affine(factor: Tensor, constant: Tensor, shift: Tensor) -> Tensor | None:
    product = exact_product(factor, constant)
    return None if product is None else exact_sum(product, shift)


def _along(constant: Tensor, axis: int, shape: Shape) -> Tensor | None:
    """The entries of a constant that varies along one axis only, as a vector or a single number."""
    if constant.numel() == 1:
        return constant.reshape(1)
    full = constant.expand(shape).movedim(axis, 0).flatten(1)
    return full[:, 0].clone() if bool((full == full[:, :1]).all()) else None


def _is(constant: Tensor, number: float) -> bool:
    return bool((constant == number).all())


def _square(view: View, node: Node) -> list[Step] | None:
    """``x * x``."""
    if isinstance(node.operator, Product) and node.inputs[0] == node.inputs[1]:
        return [Step(Square(), node.inputs[:1])]
    return None


def _unexpanded_product(view: View, node: Node) -> list[Step] | None:
    """A product broadcasts by itself: the fewer distinct factors it sees, the tighter it is relaxed."""
    if type(node.operator) is not Product:
        return None
    for side in (0, 1):
        inner = view.node(node.inputs[side])
        if inner is not None and isinstance(inner.operator, Expand):
            inputs = list(node.inputs)
            inputs[side] = inner.inputs[0]
            shapes = [view.graph.shape_of(i) for i in inputs]
            if broadcast(*shapes) == node.shape:
                return [Step(Product(*shapes), tuple(inputs))]
    return None


def _rsqrt(view: View, node: Node) -> list[Step] | None:
    """``1 / sqrt(x)`` and ``sqrt(1 / x)``."""
    inner = view.node(node.inputs[0])
    if inner is None:
        return None
    kinds = (type(node.operator), type(inner.operator))
    return [Step(Rsqrt(node.label), inner.inputs)] if kinds in ((Reciprocal, Sqrt), (Sqrt, Reciprocal)) else None


def _centre(view: View, node: Node) -> list[Step] | None:
    """``x - mean(x)``."""
    if not isinstance(node.operator, Subtract):
        return None
    x, y = node.inputs
    spread = view.node(y)
    mean = view.node(spread.inputs[0]) if spread is not None and isinstance(spread.operator, Expand) else spread
    if mean is None or not isinstance(mean.operator, Sum) or mean.inputs != (x,):
        return None
    axes = mean.operator.axes
    count = 1
    for axis in axes:
        count *= node.shape[axis]
    return [Step(Centre(axes), (x,))] if mean.operator.divisor == count else None


def _normalized(view: View, node: Node) -> list[Step] | None:
    """``z / sqrt(mean(z^2) + epsilon)``, which knows more of itself than its five operators do."""
    if type(node.operator) is not Product:
        return None
    for x, inverse in (node.inputs, node.inputs[::-1]):
        chain = [view.node(inverse)]
        for kind in (Rsqrt, Scale, Sum, Square):
            last = chain[-1]
            if last is None or not isinstance(last.operator, kind):
                break
            chain.append(view.node(last.inputs[0]))
        else:
            root, steadied, mean, square = (part for part in chain[:4] if part is not None)
            assert isinstance(steadied.operator, Scale)
            assert isinstance(mean.operator, Sum)
            axes, epsilon = mean.operator.axes, _number(steadied.operator.shift)
            shape = view.graph.shape_of(x)
            if square.inputs != (x,) or math.prod(shape[axis] for axis in axes) != mean.operator.divisor:
                continue
            if epsilon is None or not 0 < epsilon < math.inf or not _is(steadied.operator.factor, 1):
                continue
            return [
                Step(InverseDeviation(axes, epsilon), (x,)),
                Step(Normalized(shape, root.shape, axes, epsilon), (x, PREVIOUS)),
            ]
    return None


def _softmax(view: View, node: Node) -> list[Step] | None:
    """``exp(x) / sum(exp(x))``."""
    if not isinstance(node.operator, Product):
        return None
    for exponential, inverse in (node.inputs, node.inputs[::-1]):
        top, bottom = view.node(exponential), view.node(inverse)
        if top is None or bottom is None or not isinstance(top.operator, Exp):
            continue
        total = view.node(bottom.inputs[0]) if isinstance(bottom.operator, Reciprocal) else None
        if total is None or not isinstance(total.operator, Sum) or total.inputs != (exponential,):
            continue
        if len(total.operator.axes) == 1 and total.operator.divisor == 1:
            return [Step(Softmax(total.operator.axes[0]), top.inputs)]
    return None


def _unshifted_softmax(view: View, node: Node) -> list[Step] | None:
    """Subtracting one number from all entries of a softmax changes nothing."""
    inner = view.node(node.inputs[0])
    if not isinstance(node.operator, Softmax) or inner is None or not isinstance(inner.operator, Subtract):
        return None
    x, y = inner.inputs
    spread = view.node(y)
    if spread is None or not isinstance(spread.operator, Expand):
        return None
    before = view.graph.shape_of(spread.inputs[0])
    axis = node.operator.axis - (len(node.shape) - len(before))
    constant_along = axis < 0 or before[axis] == 1
    return [Step(node.operator, (x,))] if constant_along else None


def _gelu(view: View, node: Node) -> list[Step] | None:
    """``(a*x) * (c*erf(g*x) + c)`` is ``2*a*c`` times a gelu of gain ``g``."""
    if not isinstance(node.operator, Product):
        return None
    for gate_index, other in (node.inputs, node.inputs[::-1]):
        gate = view.node(gate_index)
        if gate is None or not isinstance(gate.operator, Scale):
            continue
        erf = view.node(gate.inputs[0])
        c = _number(gate.operator.factor)
        if erf is None or not isinstance(erf.operator, Erf) or c is None or _number(gate.operator.shift) != c:
            continue
        gain, x = _multiple(view, erf.inputs[0])
        a, base = (1.0, other) if other == x else _multiple(view, other)
        if gain is not None and gain > 0 and a is not None and base == x:
            exact = exact_product(*(torch.tensor(number, dtype=torch.float64) for number in (2 * a, c)))
            return None if exact is None else [Step(Gelu(gain), (x,)), Step(_factor(float(exact)), (PREVIOUS,))]
    return None


def _gated(view: View, node: Node) -> list[Step] | None:
    """``x * sigmoid(x)`` is a silu, ``x * tanh(softplus(x))`` a mish."""
    if not isinstance(node.operator, Product):
        return None
    for gate, x in (node.inputs, node.inputs[::-1]):
        inner = view.node(gate)
        if inner is None:
            continue
        if isinstance(inner.operator, Sigmoid) and inner.inputs == (x,):
            return [Step(Silu(), (x,))]
        plus = view.node(inner.inputs[0]) if isinstance(inner.operator, Tanh) else None
        if plus is not None and isinstance(plus.operator, Softplus) and plus.inputs == (x,):
            return [Step(Mish(), (x,))]
    return None


def _tanh_gelu(view: View, node: Node) -> list[Step] | None:
    """``(a*x) * (c*tanh(r*(x + q*x^3)) + c)`` is ``2*a*c`` times a gelu in its approximation by tanh."""
    if not isinstance(node.operator, Product):
        return None
    for gate_index, other in (node.inputs, node.inputs[::-1]):
        gate = view.node(gate_index)
        tanh = view.node(gate.inputs[0]) if gate is not None and isinstance(gate.operator, Scale) else None
        if gate is None or tanh is None or not isinstance(tanh.operator, Tanh):
            continue
        assert isinstance(gate.operator, Scale)
        c = _number(gate.operator.factor)
        rate, total = _multiple(view, tanh.inputs[0])
        found = _with_cube(view, total)
        if c is None or _number(gate.operator.shift) != c or rate is None or rate <= 0 or found is None:
            continue
        x, cubic = found
        a, base = (1.0, other) if other == x else _multiple(view, other)
        if a is None or base != x or cubic <= 0:
            continue
        exact = exact_product(*(torch.tensor(number, dtype=torch.float64) for number in (2 * a, c)))
        return None if exact is None else [Step(TanhGelu(rate, cubic), (x,)), Step(_factor(float(exact)), (PREVIOUS,))]
    return None


def _with_cube(view: View, index: int) -> tuple[int, float] | None:
    """A value as ``x + q*x^3``: where x stands, and q."""
    node = view.node(index)
    if node is None or not isinstance(node.operator, Add):
        return None
    for x, power in (node.inputs, node.inputs[::-1]):
        cubic, base = _multiple(view, power)
        cube = view.node(base)
        if cubic is not None and cube is not None and isinstance(cube.operator, Cube) and cube.inputs == (x,):
            return x, cubic
    return None


def _multiple(view: View, index: int) -> tuple[float | None, int]:
    """A value as a number times another value."""
    node = view.node(index)
    if node is not None and isinstance(node.operator, Scale) and _is(node.operator.shift, 0):
        return _number(node.operator.factor), node.inputs[0]
    return 1.0, index


def _number(constant: Tensor) -> float | None:
    """The one number all entries of a constant have."""
    first = constant.reshape(-1)[0]
    return float(first) if bool((constant == first).all()) else None


def _factor(number: float) -> Scale:
    return Scale(torch.tensor(number, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))


RULES: tuple[Rule, ...] = (
    _drop_identity,
    _gelu,
    _tanh_gelu,
    _gated,
    _square,
    _softmax,
    _unshifted_softmax,
    _mask,
    _guarded_softmax,
    _centre,
    _rsqrt,
    _normalized,
    _join_movement,
    _transpose_without_unit_axes,
    _join_scales,
    _scale_into_layer,
    _pull_scale,
    _scale_before_matmul,
    _softmax_at_matmul,
    _unexpanded_product,
)
