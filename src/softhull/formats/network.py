"""A network that came from a file, together with what is needed to replay it there."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..graph.graph import Graph
from ..graph.operator import Shape
from .cut import Front
from .runtime import Session

# A network is read for inputs up to this size: limits of a Clip that none of them reaches are dropped.
LARGEST_INPUT = 2.0**60


@dataclass(frozen=True, eq=False)
class Network:
    """A graph in float64 and the ONNX model it was read from."""

    graph: Graph
    path: str
    sha256: str
    input_name: str
    final: str | None  # "softmax", "log-softmax" or "sigmoid" when the graph ends in one
    model: bytes = field(repr=False)  # self-contained: external data is inside
    input_dtype: str = "float32"
    runtime_dtype: str = "float32"  # the shortest one that the runtime computes in
    front: Front | None = None  # what computes the input, where a tensor inside of a model file is perturbed
    changed: bool = False  # the model is not the file itself: inputs were fixed, or it was cut

    @property
    def input_shape(self) -> Shape:
        return self.graph.input_shape

    @cached_property
    def logits(self) -> Graph:
        """The graph without a final softmax, log-softmax or sigmoid: what questions about classes are asked of."""
        if self.final is None:
            return self.graph
        # Nodes stand in the order they are computed: the logits come before all that is made of them.
        return Graph(self.graph.input_shape, self.graph.nodes[: self.graph.nodes[-1].inputs[0] + 1])

    @cached_property
    def _session(self) -> Session:
        return Session(self.model)

    def __getstate__(self) -> dict[str, Any]:
        # A session belongs to its process; everything else may travel to another one.
        return {name: value for name, value in self.__dict__.items() if name != "_session"}

    def replay(self, x: np.ndarray) -> np.ndarray:
        """What onnxruntime computes from the original model for inputs ``[B, *input_shape]``, one by one."""
        rows = np.asarray(x, dtype=self.input_dtype).reshape((-1, *self.input_shape))
        outputs = [self._session.run({self.input_name: row}) for row in rows]
        return np.stack(outputs)
