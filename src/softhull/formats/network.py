"""A network that came from a file, together with what is needed to replay it there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..errors import SofthullError
from ..graph.graph import Graph
from ..graph.operator import Shape

# Units in the last place, relative to the largest output, that the runtime's order of operations and its approximations
# of functions may cost.
ROUNDING = 1024
# How far apart two evaluations in the precision of the file may be, as a multiple of how far ours is from the truth.
SPREAD = 16
# Entries of all nodes for all inputs that are evaluated together.
TOGETHER = 1 << 24


@dataclass(frozen=True, eq=False)
class Network:
    """A graph in float64 and the ONNX model it was read from."""

    graph: Graph
    path: str
    sha256: str
    input_name: str
    final: str | None  # "softmax" or "sigmoid" when the graph ends in one
    model: bytes = field(repr=False)  # self-contained: external data is inside
    input_dtype: str = "float32"

    @property
    def input_shape(self) -> Shape:
        return self.graph.input_shape

    @cached_property
    def logits(self) -> Graph:
        """The graph without a final softmax or sigmoid: what questions about classes are asked of."""
        return Graph(self.graph.input_shape, self.graph.nodes[:-1]) if self.final else self.graph

    @cached_property
    def _session(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(self.model, options, providers=["CPUExecutionProvider"], enable_fallback=0)

    def __getstate__(self) -> dict[str, Any]:
        # A session belongs to its process; everything else may travel to another one.
        return {name: value for name, value in self.__dict__.items() if name != "_session"}

    def replay(self, x: np.ndarray) -> np.ndarray:
        """What onnxruntime computes from the original model for inputs ``[B, *input_shape]``, one by one."""
        rows = np.asarray(x, dtype=self.input_dtype).reshape((-1, *self.input_shape))
        outputs = [self._session.run(None, {self.input_name: row})[0] for row in rows]
        return np.stack(outputs)

    def disagreement(self, x: np.ndarray) -> np.ndarray:
        """How far graph and onnxruntime are apart at inputs ``[B, *input_shape]``: ``[B]``, 0 where it may be rounding.

        Infinite where one of them is not a number and the other differs, or where the shapes do. What rounding may be
        is measured only where it is in question: the graph in the precision of the file against the graph in float64.
        """
        x = np.asarray(x, dtype=self.input_dtype).reshape(-1, *self.input_shape)
        try:
            theirs = self.replay(x).astype(np.float64)
        except Exception as problem:
            reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            raise SofthullError(f"{self.path}: onnxruntime cannot compute it: {reason}") from None
        ours = self._evaluated(x, torch.float64)
        if ours.shape != theirs.shape:
            return np.full(len(x), np.inf)
        apart = _furthest(ours, theirs)
        size = np.abs(theirs).reshape(len(x), -1).max(1)
        allowed = ROUNDING * np.finfo(self.input_dtype).eps * (0.1 + np.where(np.isfinite(size), size, 0.0))
        if (apart > allowed).any():
            noise = _furthest(self._evaluated(x, getattr(torch, self.input_dtype)), ours)
            allowed = allowed + SPREAD * np.where(np.isfinite(noise), noise, 0.0)
        return np.where(apart > allowed, apart, 0.0)

    def _evaluated(self, x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
        graph = self.graph if dtype == torch.float64 else self.graph.to(dtype)
        entries = sum(math.prod(node.shape) for node in graph.nodes)
        with torch.no_grad():
            parts = torch.from_numpy(x).to(dtype).split(max(1, TOGETHER // entries))
            return torch.cat([graph(part) for part in parts]).double().numpy()


def _furthest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The largest difference of every row; a NaN is infinitely far from anything."""
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b))
    return np.where(np.isnan(apart), np.inf, apart).reshape(len(a), -1).max(1)
