"""Small networks, their scores and linear programs in ball arithmetic of 50 digits."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb, ctx
from torch import Tensor

from softhull.graph.graph import Graph
from softhull.graph.ops.add import Add
from softhull.graph.ops.dense import Dense
from softhull.graph.ops.relu import LeakyRelu, Relu
from softhull.graph.ops.scale import Scale
from softhull.graph.ops.sigmoid import Sigmoid
from softhull.graph.ops.softmax import Softmax
from softhull.graph.ops.tanh import Tanh

ctx.dps = 50


def balls(x: Any) -> np.ndarray:
    """Floating-point numbers as the exact numbers they are."""
    numbers = np.asarray(x.numpy() if isinstance(x, Tensor) else x, dtype=np.float64)
    return np.array([arb(float(v)) for v in numbers.ravel()], dtype=object).reshape(numbers.shape)


def node_values(graph: Graph, x: Any) -> list[np.ndarray]:
    """Every node for one input ``[*shape]``; parameters are taken as the numbers they are."""
    found: list[np.ndarray] = []
    for node in graph.nodes:
        given = [balls(x) if i < 0 else found[i] for i in node.inputs]
        found.append(_apply(node.operator, given))
    return found


def _apply(operator: Any, inputs: list[np.ndarray]) -> np.ndarray:
    x = inputs[0]
    if isinstance(operator, Dense):
        y = np.matmul(x, balls(operator.matrix))
        return y if operator.bias is None else y + balls(operator.bias)
    if isinstance(operator, Scale):
        return balls(operator.factor) * x + balls(operator.shift)
    if isinstance(operator, Add):
        return inputs[0] + inputs[1]
    if isinstance(operator, Softmax):
        terms = np.array([v.exp() for v in x.ravel()], dtype=object)
        return (terms / terms.sum()).reshape(x.shape)
    slope = arb(operator.slope) if isinstance(operator, LeakyRelu) else arb(0)
    functions: dict[type, Any] = {
        Relu: lambda v: v.max(arb(0)),
        LeakyRelu: lambda v: v.max(slope * v),
        Sigmoid: lambda v: 1 / (1 + (-v).exp()),
        Tanh: lambda v: v.tanh(),
    }
    function = functions[type(operator)]
    return np.array([function(v) for v in x.ravel()], dtype=object).reshape(x.shape)


def exact_score(score: str, p: np.ndarray, label: int) -> arb:
    """A score of an exact distribution ``[K]``, written out again."""
    rest = [k for k in range(len(p)) if k != label]
    best = max((p[k] for k in rest), key=lambda v: float(v.mid()))
    if score == "nll":
        return -p[label].log()
    if score == "error":
        return 1 - p[label]
    if score == "brier":
        return sum(((p[k] - (k == label)) ** 2 for k in range(len(p))), arb(0))
    if score == "margin":
        return p[label] - best
    if score == "confidence":
        return max(p, key=lambda v: float(v.mid()))
    return sum((-v * v.log() for v in p), arb(0))
