"""Whether a graph and the runtime compute the same, up to the rounding the runtime may have.

How far a runtime may be off cannot be read from the output alone: numbers of 1e6 that cancel leave an error of 0.1
behind, numbers that are multiplied by 0 leave none. So every value of the graph is disturbed by what one operator of
that dtype may round, at random, and the output shows how much of it arrives (stochastic arithmetic). The runtime adds
up in another order and fuses operators: ten times the largest deviation seen, and sixteen units of the output, are
granted. Where the disturbance leaves the domain of an operator, as near a division by 0, any error is possible.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..graph.curves import Valley
from ..graph.graph import Graph, Node
from ..graph.operator import Affine, Operator, Shape
from ..graph.ops.elu import Elu
from ..graph.ops.erf import Erf
from ..graph.ops.matmul import MatMul
from ..graph.ops.sigmoid import Sigmoid
from ..graph.ops.sine import Sine
from ..graph.ops.softmax import Softmax
from ..graph.ops.softplus import Softplus
from ..graph.ops.tanh import Tanh

if TYPE_CHECKING:
    from .network import Network

SAMPLES = 4
GRANTED = 10
UNITS = 16
_ENTRIES = 1 << 22  # of all values of the inputs that are evaluated together


def probes(shape: Shape) -> np.ndarray:
    """Inputs of many sizes and signs: ``[P, *shape]``, the same ones for every network of this shape."""
    rng = np.random.default_rng(0)

    def normal() -> np.ndarray:
        return rng.normal(size=shape)

    def spikes(background: np.ndarray, size: float) -> np.ndarray:
        chosen = rng.random(shape) < max(0.02, 1.5 / max(1, math.prod(shape)))
        return np.where(chosen, size * np.sign(normal()), background)

    found = [np.zeros(shape), rng.random(shape), rng.random(shape)]
    for size in (1e-3, 0.1, 1.0, 10.0, 100.0):
        found += [size * normal(), size * np.abs(normal()), -size * np.abs(normal())]
    found += [np.full(shape, number) for number in (1.0, -1.0, 10.0, -10.0)]
    for size in (10.0, 100.0):
        found += [spikes(np.zeros(shape), size), spikes(rng.random(shape), size)]
    found += [np.sign(normal()) * 10.0 ** rng.uniform(-3, 2, size=shape) for _ in range(3)]
    return np.stack(found)


def disagreements(network: Network, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compare at inputs ``[B, *input_shape]``: how far the outputs are apart, and how much rounding explains.

    The third array ``[B]`` says where the runtime overflows or gives no finite numbers, so that any difference may be
    its own; without a finite number on either side the outputs are infinitely far apart.
    """
    x = np.asarray(x, dtype=network.input_dtype).reshape((-1, *network.input_shape))
    limits = torch.finfo(getattr(torch, network.runtime_dtype))
    entries = sum(math.prod(node.shape) for node in network.graph.nodes) + math.prod(network.input_shape)
    step = max(1, _ENTRIES // max(1, entries))
    parts = [_compared(network, x[start : start + step], limits) for start in range(0, len(x), step)]
    apart, explained, overflow = (np.concatenate(found) for found in zip(*parts))
    return apart, explained, overflow


def _compared(network: Network, x: np.ndarray, limits: torch.finfo) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By input, how far the graph is from onnxruntime, what rounding explains of it, and whether either overflows."""
    theirs = network.replay(x).astype(np.float64)
    ours, too_large = _plain(network.graph, torch.from_numpy(x).double(), limits.max)
    if ours.shape != theirs.shape:
        raise ValueError(f"the output has the shape {ours.shape[1:]} here, {theirs.shape[1:]} in onnxruntime")
    theirs, plain = theirs.reshape(len(x), -1), ours.numpy().reshape(len(x), -1)
    overflow = too_large.numpy() | ~np.isfinite(theirs).all(1)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(theirs == plain, 0.0, np.abs(theirs - plain)).max(1, initial=0.0)
    apart = np.where(np.isnan(apart), np.inf, apart)
    sizes = np.where(np.isfinite(theirs), np.abs(theirs), 0.0).max(1, initial=0.0)
    explained = UNITS * (limits.eps * sizes + limits.tiny)
    doubtful = np.flatnonzero(~(apart <= explained))
    if len(doubtful):
        with np.errstate(over="ignore"):
            explained[doubtful] += GRANTED * rounding(network.graph, torch.from_numpy(x[doubtful]).double(), limits)
    # No rounding of the runtime explains that the graph itself has no value where the runtime has one.
    explained[np.isnan(plain).any(1) & ~np.isnan(theirs).any(1)] = 0.0
    return apart, explained, overflow


def _plain(graph: Graph, x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """The output, and for every input whether a value on the way is too large for the dtype of the runtime."""
    overflow = torch.zeros(len(x), dtype=torch.bool)

    def look(node: Node, inputs: list[Tensor], y: Tensor) -> Tensor:
        nonlocal overflow
        size = y.masked_fill(y.isneginf(), 0.0).abs()  # masks are meant
        overflow = overflow | (size > largest).reshape(len(x), -1).any(1)
        return y

    return graph.evaluate(x, look), overflow


def rounding(graph: Graph, x: Tensor, limits: torch.finfo) -> np.ndarray:
    """How far the output of every input moves when every value on the way is disturbed by its rounding: ``[B]``."""
    generator = torch.Generator().manual_seed(0)

    def disturb(node: Node, inputs: list[Tensor], y: Tensor) -> Tensor:
        terms = node.operator.terms(*(tuple(v.shape[1:]) for v in inputs)) if isinstance(node.operator, Affine) else 1
        if not terms:
            return y  # entries are only placed
        noise = 2 * torch.rand((SAMPLES, 1, *y.shape[1:]), generator=generator, dtype=y.dtype) - 1
        error = limits.eps * _local(node.operator, terms, inputs, y) + limits.tiny
        moved = (noise * error.unflatten(0, (SAMPLES, -1))).flatten(0, 1)
        return y + torch.where(y.isinf(), 0.0, moved)

    disturbed = graph.evaluate(x.repeat(SAMPLES, *[1] * (x.ndim - 1)), disturb).unflatten(0, (SAMPLES, -1))
    moved = (disturbed - graph(x)).abs().nan_to_num(math.inf).reshape(SAMPLES, len(x), -1)
    found: np.ndarray = moved.amax((0, 2)).numpy()
    return found


# Runtimes approximate these to a few units of 1, not of the result.
_BOUNDED = (Sigmoid, Sine, Tanh, Erf, Elu, Softplus, Softmax)


def _local(operator: Operator, terms: int, inputs: list[Tensor], y: Tensor) -> Tensor:
    """The error of one operator in units of the dtype, as large as it commonly gets: sums grow with their root."""
    sizes = [v.masked_fill(v.isinf(), 0.0).abs() for v in inputs]
    if isinstance(operator, Affine):
        return (math.sqrt(terms) + 4) * operator.magnitude(*sizes)
    if isinstance(operator, MatMul):
        return (math.sqrt(inputs[0].shape[-1]) + 4) * operator.value(*sizes)
    if isinstance(operator, _BOUNDED):
        return 4 * (y.abs() + 1)
    if isinstance(operator, Valley):
        return 4 * (y.abs() + sizes[0])
    return 4 * y.abs()
