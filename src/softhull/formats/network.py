"""A network that came from a file, together with what is needed to replay it there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..graph.graph import Graph
from ..graph.operator import Shape
from ..show import data_frame, html_table, new_axes
from .cut import Front
from .runtime import Session

# A network is read for inputs up to this size: limits of a Clip that none of them reaches are dropped.
LARGEST_INPUT = 2.0**60


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """A graph in float64 and the ONNX model it was read from."""

    graph: Graph
    path: str
    sha256: str
    input_name: str
    final: str | None  # "softmax", "log-softmax" or "sigmoid" when the graph ends in one
    model: bytes  # self-contained: external data is inside
    input_dtype: str = "float32"
    runtime_dtype: str = "float32"  # the shortest one that the runtime computes in
    front: Front | None = None  # what computes the input, where a tensor inside of a model file is perturbed
    changed: bool = False  # the model is not the file itself: inputs were fixed, or it was cut

    def __repr__(self) -> str:
        taken, given = (" x ".join(map(str, s)) for s in (self.input_shape, self.graph.output_shape))
        return f"<Network {self.path}: {taken} -> {given}, {len(self.graph.nodes)} nodes, sha256 {self.sha256[:8]}>"

    def to_dict(self) -> dict[str, Any]:
        """What the network is, without its weights: path, hash, shapes, and its nodes as ``softhull inspect`` lists."""
        from .describe import describe

        shapes = {"input_shape": list(self.input_shape), "output_shape": list(self.graph.output_shape)}
        nodes = [asdict(row) for row in describe(self)]
        return {"path": self.path, "sha256": self.sha256, "final": self.final, **shapes, "nodes": nodes}

    def to_pandas(self) -> Any:
        """The nodes as a data frame; needs the extra ``pandas``."""
        return data_frame(self.to_dict()["nodes"])

    def plot(self, axes: Any = None) -> Any:
        """How many parameters every node has; returns the axes (extra ``plot``)."""
        axes, nodes = new_axes(axes), self.to_dict()["nodes"]
        axes.barh([f"{node['index']} {node['operator']}" for node in nodes], [node["parameters"] for node in nodes])
        axes.invert_yaxis()
        axes.set_xlabel("parameters")
        return axes

    def _repr_html_(self) -> str:
        return html_table(repr(self).strip("<>"), self.to_dict()["nodes"])

    @property
    def input_shape(self) -> Shape:
        """The shape of one input, without the batch."""
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
