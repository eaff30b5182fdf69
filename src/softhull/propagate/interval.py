"""Interval propagation: the cheapest sound bounds, node by node."""

from __future__ import annotations

from ..graph.graph import Graph
from ..graph.operator import Interval


def interval_bounds(graph: Graph, lower_upper: Interval) -> list[Interval]:
    """Bounds of every node for all inputs within the given box ``[B, *input_shape]``."""
    found: list[Interval] = []
    for node in graph.nodes:
        found.append(node.operator.interval(*(lower_upper if i < 0 else found[i] for i in node.inputs)))
    return found
