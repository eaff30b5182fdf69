"""A network that came from a file, together with what is needed to replay it there."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..graph.graph import Graph
from ..graph.operator import Shape


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
    runtime_dtype: str = "float32"  # the shortest one that the runtime computes in

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
