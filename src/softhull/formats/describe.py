"""A network as a table: what each operator is, and what bound propagation does with it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import one_line
from ..graph.operator import Affine, Bilinear, Elementwise, Operator, Shape
from ..graph.ops.softmax import Softmax
from .network import Network


@dataclass(frozen=True)
class NetworkRow:
    """One node of the graph."""

    index: int
    node: str
    operator: str
    inputs: tuple[int, ...]  # -1 is the network input
    shape: Shape
    parameters: int
    relaxation: str


def describe(network: Network) -> list[NetworkRow]:
    """The nodes of a network in the order they are computed."""
    return [
        NetworkRow(
            index,
            one_line(node.label),
            node.operator.name,
            node.inputs,
            node.shape,
            node.operator.parameters(),
            _relaxation(node.operator),
        )
        for index, node in enumerate(network.graph.nodes)
    ]


def _relaxation(operator: Operator) -> str:
    if isinstance(operator, Affine):
        return "exact"
    if isinstance(operator, Elementwise):
        return "two lines per entry"
    if isinstance(operator, Bilinear):
        return "planes per product"
    if isinstance(operator, Softmax):
        return "softmax bounds"
    return "not relaxed"
