"""Attention without what its masks hide.

A mask of -inf makes a probability 0, so that the keys and values behind it are never computed (``needed.py``). A finite
mask leaves a tiny number, which depends on the logits. Let every row of a softmax give at most d to what it masks, and
let q be the softmax of its visible logits alone. Then no probability is further than d from q, or from 0 where it is
masked, and a product of the probabilities with a matrix V is within ``d sum_k |V_k|`` of that of q. Where this is at
most ``SLACK`` for every input of a region, the network with -inf as its masks and ``Near`` behind these products has
all values that the true one has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import DomainError
from .builder import GraphBuilder
from .graph import Graph
from .needed import keeps_zeros, only_needed
from .operator import Interval
from .ops.matmul import MatMul
from .ops.near import Near
from .ops.softmax import Softmax
from .rounding import largest, share, underflow

SLACK = 2.0**-100  # no digit of a number of ordinary size


@dataclass(frozen=True, eq=False)
class Hidden:
    """A graph without what finite masks hide: ``graph``, for regions that ``negligible`` accepts."""

    whole: Graph
    graph: Graph
    softmaxes: frozenset[int]  # of the whole graph: those whose masks became -inf

    @staticmethod
    def of(whole: Graph) -> Hidden | None:
        """What is left of a graph; None where no finite mask can be left out."""
        found = _hidable(whole)
        if not found:
            return None
        behind = _behind(whole, found)
        builder = GraphBuilder(whole.input_shape)
        position = {-1: -1}
        for index, node in enumerate(whole.nodes):
            builder.label, operator = node.label, node.operator
            if index in found:
                assert isinstance(operator, Softmax)
                assert operator.mask is not None
                shut = operator.mask.masked_fill(operator.mask < 0, -torch.inf)
                operator = replace(operator, mask=shut, replaced=False)
            position[index] = builder.add(operator, *(position[i] for i in node.inputs))
            if isinstance(operator, MatMul) and any(i in behind for i in node.inputs):
                position[index] = builder.add(Near(SLACK), position[index])
        left = only_needed(builder.finish(position[len(whole.nodes) - 1]))
        return Hidden(whole, left, frozenset(found))

    def negligible(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Mask ``[B]`` of the boxes ``[B, *input_shape]`` in which no product changes by more than ``SLACK``."""
        try:
            return self._negligible(lower, upper)
        except DomainError:  # an interval leaves where a function is defined; walks may know better
            if len(lower) == 1:
                return torch.zeros(1, dtype=torch.bool, device=lower.device)
        return torch.cat([self.negligible(*ends) for ends in zip(lower.split(1), upper.split(1))])

    def _negligible(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The same where no interval leaves the domain of a function."""
        graph = self.whole
        accepted = torch.ones(len(lower), dtype=torch.bool, device=lower.device)
        last = {i: index for index, node in enumerate(graph.nodes) for i in node.inputs}
        final = max(index for index, node in enumerate(graph.nodes) if isinstance(node.operator, MatMul))
        intervals: dict[int, Interval] = {-1: (lower, upper)}
        off: dict[int, Tensor] = {}  # by node: how far its entries are from those without what is masked
        for index, node in enumerate(graph.nodes[: final + 1]):
            operator, inputs = node.operator, [intervals[i] for i in node.inputs]
            if isinstance(operator, Softmax) and index in self.softmaxes:
                off[index] = operator.leak(*inputs[0]).expand(len(lower), *node.shape)
            elif isinstance(operator, MatMul) and any(i in off for i in node.inputs):
                parts = [off[i] if i in off else largest(*intervals[i]) for i in node.inputs]
                most = operator.value(*parts) * (1 + share(operator.left[-1] + 2, lower.dtype))
                most = most + operator.left[-1] * underflow(lower.dtype)
                accepted &= (most <= SLACK).flatten(1).all(1)
            elif node.inputs and node.inputs[0] in off:
                moved = operator.value(off[node.inputs[0]]).abs()
                off[index] = moved * (1 + share(2, lower.dtype)) + underflow(lower.dtype)
            intervals[index] = operator.interval(*inputs)
            for i in {i for i in node.inputs if last[i] == index}:
                intervals.pop(i, None)
                off.pop(i, None)
        return accepted


def _hidable(graph: Graph) -> set[int]:
    """The softmaxes with a finite mask, some logit visible in every row, and products behind them, nothing else."""
    found = {
        index
        for index, node in enumerate(graph.nodes)
        if isinstance(node.operator, Softmax) and node.operator.mask is not None
        if bool(((node.operator.mask < 0) & node.operator.mask.isfinite()).any())
        if not bool((node.operator.mask < 0).all(node.operator.axis).any())
    }
    while spoilt := _spoilt(graph, found):
        found -= spoilt
    return found


def _spoilt(graph: Graph, softmaxes: set[int]) -> set[int]:
    """Those whose probabilities are the output, meet each other, or go where the change is not accounted for."""
    behind = _behind(graph, softmaxes)
    last = len(graph.nodes) - 1
    wrong = {behind[last]} if last in behind else set()
    for index, node in enumerate(graph.nodes):
        sources = [behind[i] for i in node.inputs if i in behind]
        if sources and index not in behind and not (isinstance(node.operator, MatMul) and len(sources) == 1):
            wrong |= {*sources}
    return wrong


def _behind(graph: Graph, softmaxes: set[int]) -> dict[int, int]:
    """By node that holds multiples of probabilities, wherever they were moved: their softmax."""
    found: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        if index in softmaxes:
            found[index] = index
        elif len(node.inputs) == 1 and node.inputs[0] in found and keeps_zeros(node.operator):
            found[index] = found[node.inputs[0]]
    return found
