"""What every bound needs from an array framework, written once on the array API."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_jax_array, is_torch_array

Array = Any  # numpy, torch, jax or any other array of the array API


def namespace(*arrays: Array) -> Any:
    """The array API functions of the framework the arrays come from."""
    return array_namespace(*arrays)


def device(array: Array) -> Any:
    """The device an array lives on; None for frameworks without devices."""
    return getattr(array, "device", None)


def is_traced(array: Array) -> bool:
    """True inside a jax transformation, where values cannot be inspected."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


def constant(array: Array) -> Array:
    """The same numbers, invisible to automatic differentiation."""
    if is_torch_array(array):
        return array.detach()
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return jax.lax.stop_gradient(array)
    return array


def is_differentiated(*arrays: Array) -> bool:
    """True when somebody may ask for the gradient with respect to one of the arrays."""
    return any((is_torch_array(a) and a.requires_grad) or is_traced(a) for a in arrays)


def limits(array: Array) -> tuple[float, float]:
    """(relative spacing, largest exponent that exp and its square both survive) of the array's dtype."""
    info = namespace(array).finfo(array.dtype)
    return float(info.eps), 0.45 * float(np.log(float(info.max)))


def maximum(a: Array, b: Array | float) -> Array:
    """The larger of both, entry by entry; ``b`` may be a number in every framework."""
    if isinstance(b, float | int) and is_torch_array(a):
        return a.clamp(min=b)
    return namespace(a).maximum(a, b)


def minimum(a: Array, b: Array | float) -> Array:
    """The smaller of both, entry by entry; ``b`` may be a number in every framework."""
    if isinstance(b, float | int) and is_torch_array(a):
        return a.clamp(max=b)
    return namespace(a).minimum(a, b)


def clip(a: Array, low: Array | float, high: Array | float) -> Array:
    """``a`` moved into ``[low, high]``, entry by entry."""
    return minimum(maximum(a, low), high)


def where_true(
    condition: Array, work: Callable[..., tuple[Array, ...]], given: tuple[Array, ...], otherwise: tuple[Array, ...]
) -> tuple[Array, ...]:
    """``work(*given)`` where the condition holds, ``otherwise`` elsewhere; worked out only where needed if possible."""
    xp = namespace(condition)
    if is_jax_array(condition) or not len(condition.shape):  # jax: shapes must not depend on values
        return tuple(xp.where(condition, new, old) for new, old in zip(work(*given), otherwise))
    if not bool(xp.any(condition)):
        return otherwise
    found = work(*(xp.broadcast_to(array, condition.shape)[condition] for array in given))
    results = []
    for new, old in zip(found, otherwise):
        result = xp.broadcast_to(old, condition.shape) + 0
        result[condition] = new
        results.append(result)
    return tuple(results)


def sigmoid(v: Array) -> Array:
    """The logistic function, accurate relative to itself on both tails."""
    xp = namespace(v)
    if is_torch_array(v):
        return xp.sigmoid(v)
    small = xp.exp(-xp.abs(v))
    return xp.where(v >= 0, xp.ones_like(v), small) / (1 + small)


def softplus(v: Array) -> Array:
    """log(1 + e^v)"""
    xp = namespace(v)
    return maximum(v, 0.0) + xp.log1p(xp.exp(-xp.abs(v)))


def logsumexp(a: Array, axis: int = -1, keepdims: bool = False) -> Array:
    """log(sum(exp(a))); entries of -inf count as nothing, at least one entry must be finite."""
    xp = namespace(a)
    top = constant(xp.max(a, axis=axis, keepdims=True))
    total = xp.log(xp.sum(xp.exp(a - top), axis=axis, keepdims=True)) + top
    return total if keepdims else xp.squeeze(total, axis=axis)


def one_hot(index: Array, like: Array) -> Array:
    """Boolean mask ``[..., K]``, true at ``index [...]``, for arrays with the last dimension of ``like``."""
    xp = namespace(like)
    positions = xp.arange(like.shape[-1], dtype=index.dtype, device=device(like))
    return positions == index[..., None]


def pick(a: Array, index: Array) -> Array:
    """``a[..., index]`` along the last axis with one index per leading position; both broadcast."""
    xp = namespace(a)
    chosen = one_hot(index, a)
    return xp.sum(xp.where(chosen, a, xp.zeros_like(a)), axis=-1)


def log_sinhc(h: Array) -> Array:
    """log(sinh(h) / h) for h >= 0, without overflow and with the limit 0 at h = 0."""
    xp = namespace(h)
    series_below = 0.02  # the first omitted term, h^6 / 2835, is then below 3e-14 of the first
    near = h < series_below
    far = xp.where(near, xp.ones_like(h), h)
    square = xp.where(near, h * h, xp.zeros_like(h))
    series = square / 6 - square * square / 180 + square * square * square / 2835
    return xp.where(near, series, far + xp.log(-xp.expm1(-2 * far) / (2 * far)))


State = tuple[Array, ...]


def repeat(
    count: int, body: Callable[[Any, State], State], state: State, settled: Callable[[State, State], bool]
) -> State:
    """``state = body(step, state)`` for step = 0, ..., count - 1, or until it is settled.

    Inside a jax transformation the loop is compiled once and runs to the end. Elsewhere jax arrays are looped over as
    all others: a compiled loop would be compiled anew at every call.
    """
    if any(is_traced(array) for array in state):
        found: State = sys.modules["jax"].lax.fori_loop(0, count, body, state)
        return found
    for step in range(count):
        before, state = state, body(step, state)
        if settled(before, state):
            break
    return state


def in_chunks(count: int, row_size: int, work: Callable[[int, int], Any], budget: int = 1 << 22) -> list[Any]:
    """``work(start, stop)`` over ``range(count)`` in pieces whose rows of ``row_size`` numbers fit the budget."""
    step = max(1, budget // max(1, row_size))
    return [work(start, min(start + step, count)) for start in range(0, count, step)]
