"""Models in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class Session:
    """A self-contained ONNX model, computed by one thread."""

    def __init__(self, model: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        # Where weights have eight bits, it would round what they are multiplied with to eight bits, too.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The first output."""
        found: np.ndarray = self._session.run(None, dict(inputs))[0]
        return found

    def run_all(self, outputs: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """Some outputs by their names; None: all of them."""
        return list(self._session.run(outputs and list(outputs), dict(inputs)))
