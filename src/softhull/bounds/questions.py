"""The public questions about one softmax: bounds at a point, and planes over the whole box."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from .._arrays import Array, device, maximum, namespace, sigmoid
from ..boxes import Box, as_arrays, as_index, make_box, masked_out, place_inside
from ..errors import InvalidInput
from .constant import const_lower, const_upper
from .log_odds import log_odds_range
from .planes import LowRankPlanes, Planes, RowPlanes, SinglePlane, choose, restrict
from .rounding import check_rounding, move_outward
from .table import Curvature, Side, find_bound

Outputs = int | Sequence[int] | None

# Where numbers may overflow, what comes out is looked at instead.
QUIET = partial(np.errstate, over="ignore", invalid="ignore", divide="ignore")


@dataclass(frozen=True)
class SoftmaxPlanes:
    """Planes below and above softmax over a box; a side the bound does not have is None."""

    lower: Any  # Planes, SinglePlane for a single output, or None
    upper: Any


def softmax_bounds(
    x: Any,
    lower: Any,
    upper: Any,
    bound: str = "hull",
    outputs: Outputs = None,
    differences: tuple[Any, Any] | None = None,
    rounding: str = "outward",
) -> tuple[Any, Any]:
    """Bounds ``L(x) <= softmax(x) <= U(x)`` at points x of a box: ``L`` is convex in x, ``U`` concave.

    Arrays of NumPy, torch or jax, logits on the last axis; leading dimensions are a batch and broadcast.

    Args:
        x (array [..., K]): Points of the box at which the bounds are evaluated.
        lower (array [..., K]): Lower ends of the logits; ``-inf`` on both sides is a masked logit.
        upper (array [..., K]): Upper ends of the logits.
        bound: The name of a bound in ``BOUNDS``, or a pair such as ``"lse*/lse"``: lower bound from the first.
        outputs: Which probabilities; an int drops the axis, None is all of them.
        differences (pair of arrays [..., K, K]): Bounds on ``x_j - x_k`` at place ``[j, k]``, if you have them.
        rounding: ``"outward"`` moves the bounds by what rounding may have cost, so that they hold in exact arithmetic;
            ``"nearest"`` leaves them as computed.

    Returns:
        The lower and the upper bounds; None for a side that the bound does not have.
    """
    check_rounding(rounding)
    box, x, chosen, single = _prepare(lower, upper, x, "x", outputs, differences)
    row = find_bound(bound)

    def value(side: Side | None, from_below: bool) -> Array | None:
        if side is None:
            return None
        outward = rounding == "outward"
        found = tangent_planes(side, box, x, from_below, outward, chosen, flatten=False, name=bound).value
        return found[..., 0] if single else found

    return value(row.lower, True), value(row.upper, False)


def softmax_planes(
    lower: Any,
    upper: Any,
    bound: str = "hull",
    at: Any = None,
    differences: tuple[Any, Any] | None = None,
    outputs: Outputs = None,
    rounding: str = "outward",
    **free: Any,
) -> SoftmaxPlanes:
    """Affine bounds on softmax that hold on the whole box: tangent planes of a bound.

    Each side gives ``dense() -> (A, b)`` with ``p_k >= A[k] . x + b[k]`` (or ``<=``), can be called as a function of x,
    and composes with coefficient vectors from both sides without forming ``A``.

    Args:
        lower (array [..., K]): Lower ends of the logits; ``-inf`` on both sides is a masked logit.
        upper (array [..., K]): Upper ends of the logits.
        bound: The name of a bound in ``BOUNDS``, or a pair such as ``"lse*/lse"``: lower bound from the first.
        at (array [..., K]): Where the planes touch the bound; the midpoint of the box by default.
        differences (pair of arrays [..., K, K]): Bounds on ``x_j - x_k`` at place ``[j, k]``, if you have them.
        outputs: Which probabilities; an int drops the axis, None is all of them.
        rounding: ``"outward"`` moves the planes by what rounding may have cost: with their coefficients taken as exact
            numbers, they hold in exact arithmetic. ``"nearest"`` leaves them as computed.
        **free (array): Free parameters of the bound; every choice is sound. The hull has ``w``, ``alpha`` and ``gamma``
            below, and ``tangent`` above.

    Returns:
        Planes below (``.lower``) and above (``.upper``); None for a side that the bound does not have.
    """
    check_rounding(rounding)
    box, point, chosen, single = _prepare(lower, upper, at, "at", outputs, differences)
    row = find_bound(bound)
    known = {name for side in (row.lower, row.upper) if side for name in side.free}
    if unknown := sorted(set(free) - known):
        raise InvalidInput(f"bound {bound!r} has no free parameter {unknown[0]!r}; it has: {sorted(known) or 'none'}")
    given = {name: as_arrays(**{name: value, "lower": box.lower})[name] for name, value in free.items()}

    def planes(side: Side | None, from_below: bool) -> Any:
        if side is None:
            return None
        mine = {name: value for name, value in given.items() if name in side.free}
        found = tangent_planes(side, box, point, from_below, rounding == "outward", chosen, mine, name=bound)
        anchor = masked_out(box, box.given(found.at) if at is None else as_arrays(at=at, lower=box.lower)["at"])
        found = replace(found, at=anchor, masked=box.ignored)  # type: ignore[type-var]
        return SinglePlane(found) if single else found

    return SoftmaxPlanes(planes(row.lower, True), planes(row.upper, False))


def _prepare(
    lower: Any, upper: Any, point: Any, name: str, outputs: Outputs, differences: tuple[Any, Any] | None
) -> tuple[Box, Array, Array | None, bool]:
    box = make_box(lower, upper, differences, of_any_size=True)
    placed = box.midpoint if point is None else place_inside(box, point, lower, upper, name)
    single = outputs is not None and not _is_list(outputs)
    chosen = None if outputs is None else _output_indices(box, outputs)
    return box, placed, chosen, single


def _is_list(outputs: Any) -> bool:
    return isinstance(outputs, Iterable) and getattr(outputs, "shape", None) != ()


def _output_indices(box: Box, outputs: Any) -> Array:
    xp = namespace(box.lower)
    wanted = [as_index(output, "outputs") for output in (outputs if _is_list(outputs) else [outputs])]
    for output in wanted:
        if not -box.size <= output < box.size:
            raise InvalidInput(f"outputs: there is no output {output} among {box.size}")
    return xp.asarray([o % box.size for o in wanted], dtype=xp.int64, device=device(box.lower))


def tangent_planes(
    side: Side,
    box: Box,
    at: Array,
    from_below: bool,
    outward: bool,
    outputs: Array | None = None,
    free: Mapping[str, Array] = MappingProxyType({}),
    flatten: bool = True,
    name: str = "",
) -> Planes:
    """Value and planes of one side of a bound at a point of the shifted box, for the chosen outputs.

    Everything that works with softmax planes gets them here: what is too steep, overflows or is masked becomes a
    constant, and with ``outward`` planes are moved by what rounding may have cost. Without ``flatten`` only the values
    count.
    """
    how = (from_below, outward, outputs)
    if side.parts:
        usable = [part for part in side.parts if box.size == 1 or part.only_for in (None, box.size)]
        parts = [tangent_planes(part, box, at, *how, flatten=flatten, name=name) for part in usable]
        return choose(parts, largest=from_below)
    if side.only_for is not None and box.size not in (1, side.only_for):
        raise InvalidInput(f"bound {name!r} is defined for K = {side.only_for} only, not for K = {box.size}; use 'lse'")
    if box.differences is not None and not side.in_differences:
        plain = replace(side, in_differences=True)
        forms = [
            tangent_planes(plain, form, at, *how, free, flatten, name) for form in (box, box.without_differences())
        ]
        return choose(forms, largest=from_below)
    assert side.tangent is not None
    if box.size == 1:
        return _select(_certain(at), outputs)
    with np.errstate() if box.modest else QUIET():
        planes = side.tangent(box, at, outputs, **free)
        if isinstance(planes, LowRankPlanes) and planes.outputs is None:
            planes = _select(planes, outputs)
        planes = _steep_ones_flat(planes, box, outputs, from_below) if flatten else planes
        if outward:
            planes = move_outward(planes, box, from_below, flatten, side.curvature is Curvature.CONSTANT)
        if not box.modest:
            planes = _overflowing_ones_flat(planes, box, outputs, from_below, flatten, outward)
    return _silence_masked(planes, box, outputs, outward and not from_below)


def _select(planes: LowRankPlanes, outputs: Array | None) -> LowRankPlanes:
    return planes if outputs is None else planes.select(outputs)


def _certain(at: Array) -> LowRankPlanes:
    """A single logit has probability 1."""
    xp = namespace(at)
    nothing = xp.zeros_like(at)
    return LowRankPlanes(at, xp.ones_like(at), nothing, nothing[..., None], nothing[..., None, :])


def _steep_ones_flat(planes: Any, box: Box, outputs: Array | None, from_below: bool) -> Planes:
    """Planes too steep to be written in floating point become the constant bound."""
    if planes.steep is None:
        return planes
    xp = namespace(planes.value)
    extreme = restrict(sigmoid(log_odds_range(box)[0 if from_below else 1]), outputs)
    terms = None if planes.terms is None else xp.where(planes.steep, extreme, planes.terms)
    return replace(planes, value=xp.where(planes.steep, extreme, planes.value), terms=terms)


def _overflowing_ones_flat(
    planes: Any, box: Box, outputs: Array | None, from_below: bool, flatten: bool, outward: bool
) -> Planes:
    """The constant bound for huge boxes and where anything overflowed, the intercept of ``dense`` included."""
    xp = namespace(planes.value)
    bad = ~xp.isfinite(planes.value)
    if box.huge is not None:
        bad = bad | box.huge
    if flatten:
        reach = maximum(box.upper - planes.at, planes.at - box.lower)
        slopes = planes.slopes if isinstance(planes, RowPlanes) else planes.size_within(1 + reach)
        far = xp.max(1 + xp.abs(planes.at) + xp.abs(box.shift), axis=-1, keepdims=True)
        bad = bad | ~xp.isfinite(4 * slopes * far)
    constant_bound: Any = (const_lower if from_below else const_upper)(box, planes.at)
    constant_bound = _select(constant_bound, outputs)
    if outward:
        constant_bound = move_outward(constant_bound, box, from_below, flatten, True)
    value = xp.where(bad, constant_bound.value, planes.value)
    if isinstance(planes, RowPlanes):
        return replace(planes, value=value, gradient=_rows_but(planes, bad))
    assert isinstance(planes, LowRankPlanes)
    zero = xp.zeros_like(value)
    return replace(
        planes,
        value=value,
        diagonal=xp.where(bad, zero, planes.diagonal),
        left=xp.where(bad[..., None], zero[..., None], planes.left),
        # what is not finite here belongs to none of the planes kept: their sizes would not be finite either
        right=xp.where(xp.isfinite(planes.right), planes.right, xp.zeros_like(planes.right)),
    )


def _silence_masked(planes: Any, box: Box, outputs: Array | None, raised: bool) -> Planes:
    """Masked outputs are 0, whatever the others do; those that are only remote stay below the smallest number."""
    xp = namespace(planes.value)
    if box.masked is not None:
        silent = restrict(box.masked, outputs)
        value = xp.where(silent, xp.zeros_like(planes.value), planes.value)
        if raised and box.remote is not None:
            smallest = float(xp.finfo(value.dtype).smallest_normal)
            value = xp.where(restrict(box.remote, outputs), xp.full_like(value, smallest), value)
        planes = replace(planes, value=value)
        if isinstance(planes, LowRankPlanes):
            nothing = xp.zeros_like(planes.diagonal)
            planes = replace(
                planes,
                diagonal=xp.where(silent, nothing, planes.diagonal),
                left=xp.where(silent[..., None], nothing[..., None], planes.left),
                right=masked_out_columns(box, planes.right),
            )
        elif isinstance(planes, RowPlanes):
            rows = _rows_but(planes, silent)
            planes = replace(planes, gradient=lambda start, stop: masked_out_columns(box, rows(start, stop)))
    return planes


def _rows_but(planes: RowPlanes, flat: Array) -> Callable[[int, int], Array]:
    """The gradients, zero for the outputs that are ``flat [..., O]``."""

    def rows(start: int, stop: int) -> Array:
        with QUIET():
            found = planes.gradient(start, stop)
        return namespace(found).where(flat[..., start:stop, None], namespace(found).zeros_like(found), found)

    return rows


def masked_out_columns(box: Box, rows: Array) -> Array:
    """Rows of slopes with zeros at masked logits: a masked logit moves no output."""
    xp = namespace(rows)
    assert box.masked is not None
    return xp.where(box.masked[..., None, :], xp.zeros_like(rows), rows)
