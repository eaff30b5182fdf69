"""Networks straight from torch, through the ONNX importer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..errors import MissingExtra, ModelError
from .network import Network
from .onnx import parse_onnx


def from_torch(module: torch.nn.Module, example: Tensor) -> Network:
    """Translate a torch module; ``example`` is one input as the module takes it, batch dimension included."""
    name = type(module).__name__
    training = module.training
    try:
        module.eval()
        with _quiet():
            program = torch.onnx.export(module, (example,), dynamo=True, verbose=False)
            if program is None:
                raise ModelError(f"torch module {name}: torch could not export it to ONNX")
            content = program.model_proto.SerializeToString()
    except ImportError as error:
        raise MissingExtra(f"exporting a torch module needs 'pip install softhull[from-torch]' ({error})") from None
    except ModelError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"torch module {name}: torch could not export it to ONNX: {reason}") from None
    finally:
        module.train(training)
    return parse_onnx(content, f"torch module {name}", None)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter talks about packages that are not installed and calls it makes to itself; nobody asked."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
