"""Which token every entry of a node belongs to: a number, or -1 for none.

A token is what a network works on alone, from one mix to the next. An entry belongs to the one token of all entries
that it is made of, as far as these belong to any.
"""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import Tensor

from ..graph.operator import Affine, Bilinear, Elementwise, Operator
from ..graph.ops.matmul import MatMul
from ..graph.ops.normalize import InverseDeviation
from ..graph.ops.softmax import Softmax

# A change of an entry that nothing but a weight of zero hides.
_LARGE = 2.0**100
# Entries and tokens that are looked at together.
_TOGETHER = 1 << 22

# The labels of a node, and which of its inputs it mixes: these must not have anything of their tokens left.
Labels = tuple[Tensor, tuple[int, ...]]


@singledispatch
def labels(operator: Operator, like: Tensor, *before: Tensor) -> Labels | None:
    """The labels of a node from those of its inputs, whose numbers have the format of ``like``; None: no rule."""
    return None


@labels.register
def _(operator: Affine, like: Tensor, *before: Tensor) -> Labels:
    at_zero = operator.magnitude(*(like.new_zeros(1, *tokens.shape) for tokens in before))
    found = torch.full(at_zero.shape[1:], -1, device=like.device)
    mixed = torch.zeros_like(found, dtype=torch.bool)
    count = 1 + max(int(tokens.max()) for tokens in before)
    for first in range(0, count, step := max(1, _TOGETHER // found.numel())):
        numbers = torch.arange(first, min(first + step, count), device=like.device)
        own = (numbers.reshape(-1, *[1] * tokens.ndim) == tokens for tokens in before)
        # What a constant hides is less than its own rounding, which is charged.
        reads = operator.magnitude(*(mask.to(like) * _LARGE for mask in own)) > at_zero
        often, (_, which) = reads.sum(0), reads.to(torch.int8).max(0)
        mixed |= (often > 1) | ((often > 0) & (found >= 0))
        found = torch.where(often > 0, numbers[which], found)
    found[mixed] = -1
    return found, tuple(range(len(before))) if bool(mixed.any()) else ()


@labels.register
def _(operator: Elementwise, like: Tensor, *before: Tensor) -> Labels:
    return before[0], ()


@labels.register
def _(operator: InverseDeviation, like: Tensor, *before: Tensor) -> Labels:
    return _of_lines(before[0], operator.axes)


@labels.register
def _(operator: Softmax, like: Tensor, *before: Tensor) -> Labels:
    found, mixed = _of_lines(before[0], (operator.axis,))
    return found.expand(before[0].shape), mixed


@labels.register
def _(operator: Bilinear, like: Tensor, *before: Tensor) -> Labels:
    x, y = torch.broadcast_tensors(*before)
    differ = bool(((x >= 0) & (y >= 0) & (x != y)).any())
    return torch.where(x >= 0, x, y), (1,) if differ else ()


@labels.register
def _(operator: MatMul, like: Tensor, *before: Tensor) -> Labels:
    """Those of the rows on the left; what is on the right may be of other tokens."""
    shape = operator.shape(operator.left, operator.right)
    if len(operator.left) < 2 or operator.left[:-2] != operator.right[:-2]:
        return torch.full(shape, -1, device=like.device), (0, 1)
    found, mixed = _of_lines(before[0], (len(operator.left) - 1,))
    return found.expand(shape), mixed


def common(tokens: Tensor, axes: tuple[int, ...]) -> Tensor | None:
    """The token of all entries along axes, which keep size one, that have any; None where some have several."""
    most = tokens.amax(axes, keepdim=True)
    least = torch.where(tokens < 0, most, tokens).amin(axes, keepdim=True)
    return most if bool((least == most).all()) else None


def _of_lines(tokens: Tensor, axes: tuple[int, ...]) -> Labels:
    found = common(tokens, axes)
    return (found, ()) if found is not None else (torch.full_like(tokens.amax(axes, keepdim=True), -1), (0,))


def entries_by_token(tokens: Tensor) -> Tensor | None:
    """The entries ``[T, D]`` of every token; None where some have none, or some tokens more than others."""
    flat = tokens.flatten()
    counts = flat.unique(return_counts=True)[1]
    if bool((flat < 0).any()) or bool((counts != counts[0]).any()):
        return None
    return flat.argsort(stable=True).reshape(len(counts), -1)


def by_last_axis(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The entries ``[T, D]`` where all along the last axis are one token."""
    return torch.arange(math.prod(shape), device=device).reshape(-1, shape[-1] if shape else 1)


def labelled(order: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The labels of a node whose entries by token are ``order [T, D]``."""
    found = torch.empty_like(order.flatten())
    found[order] = torch.arange(len(order), device=order.device)[:, None].expand(order.shape)
    return found.reshape(shape)
