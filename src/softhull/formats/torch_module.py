"""Networks straight from torch, through the ONNX importer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..errors import MissingExtra, ModelError
from .agreement import GRANTED, rounding
from .inputs import as_tensor, in_units
from .network import Network
from .onnx import parse_onnx

ALIKE = 1e-3  # of the largest output: a difference that needs no explanation


def from_torch(
    module: torch.nn.Module,
    example: Tensor | tuple[Any, ...] | Mapping[str, Any],
    perturb: str | None = None,
    output: str | None = None,
) -> Network:
    """Export a torch module to ONNX and read it; raises ModelError with the reason where torch cannot export it.

    Args:
        module: The module, in evaluation mode.
        example: One input as the module takes it, batch dimension included. For a module with several inputs, a tuple
            or a dictionary of arguments: the first one varies, all others stay as they are in the example.
        perturb: As for ``load_onnx``, which gets the same example.
        output: As for ``load_onnx``; the names are those that the exporter gives, which an error lists.
    """
    name = f"torch module {type(module).__name__}"
    named = dict(example) if isinstance(example, Mapping) else {}
    listed = () if named else example if isinstance(example, tuple) else (example,)
    training = module.training
    try:
        module.eval()
        with _quiet():
            answer = _try(module, listed, named, name)
            program = torch.onnx.export(module, listed, kwargs=named or None, dynamo=True, verbose=False)
            if program is None:
                raise ModelError(f"{name}: torch could not export it to ONNX")
            content = program.model_proto.SerializeToString()
            inputs = [entry.name for entry in program.model_proto.graph.input]
    except ImportError as error:
        raise MissingExtra(f"exporting a torch module needs 'pip install softhull[from-torch]' ({error})") from None
    except ModelError:
        raise
    except Exception as error:
        reason = _last_cause(error)
        branches = "data-dependent" in reason
        advice = "; it decides by values; if by a mask of nn.Transformer, give is_causal=" if branches else ""
        raise ModelError(f"{name}: torch could not export it to ONNX: {reason}{advice}") from None
    finally:
        module.train(training)
    given = [value for value in (*listed, *named.values()) if isinstance(value, Tensor)]
    fixed = {key: value.detach().cpu().numpy() for key, value in zip(inputs[1:], given[1:])}
    first = given[0].detach().cpu().numpy() if given else None
    network = parse_onnx(content, name, None, fixed, perturb, output, None if perturb is None else first)
    if first is not None:
        _compare(network, first, answer)
    return network


def _compare(network: Network, example: np.ndarray, answer: Any) -> None:
    """ModelError where the network is not the module: for the example they differ by more than rounding."""
    x = example if network.front is None else network.front.compute(example)
    x = np.asarray(x, dtype=network.input_dtype).reshape(1, *network.input_shape)
    ours = network.replay(x).astype(np.float64).ravel()
    leaves = [leaf for leaf in tree_leaves(answer) if isinstance(leaf, Tensor) and leaf.numel() == ours.size]
    theirs = [leaf.detach().cpu().double().numpy().ravel() for leaf in leaves]
    if not theirs:
        return
    apart = min(float(np.where(ours == other, 0.0, np.abs(ours - other)).max(initial=0.0)) for other in theirs)
    if apart <= ALIKE * np.abs(ours).max(initial=0.0):
        return
    limits = torch.finfo(getattr(torch, network.runtime_dtype))
    if apart <= GRANTED * float(rounding(network.graph, torch.from_numpy(x).double(), limits)[0]):
        return
    raise ModelError(
        f"{network.path}: what torch exports differs from the module by {apart:.2g} for the example; randomness, or a "
        "shortcut that the module takes (nn.TransformerEncoder: set enable_nested_tensor=False)"
    )


def _try(module: torch.nn.Module, listed: tuple[Any, ...], named: dict[str, Any], name: str) -> Any:
    """What the module gives for the example; ModelError in its own words, if it does not take it."""
    given = [*listed, *named.values()]
    shapes = ", ".join(str(tuple(part.shape)) if isinstance(part, Tensor) else type(part).__name__ for part in given)
    try:
        with torch.no_grad():
            return module(*listed, **named)
    except Exception as error:
        advice = "" if any(isinstance(part, Tensor) for part in given) else "; give a tensor (torch.as_tensor)"
        if len(given) == 1 and _takes_channels_first(module, given[0]):
            advice = "; its axes are in another order: give x.permute(0, 3, 1, 2)"
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{name} does not take the example {shapes}, batch dimension first: {line}{advice}") from None


def _takes_channels_first(module: torch.nn.Module, example: Any) -> bool:
    """Whether a module takes images whose channels came last."""
    if not isinstance(example, Tensor) or example.ndim != 4:
        return False
    try:
        with torch.no_grad():
            module(example.permute(0, 3, 1, 2))
    except Exception:
        return False
    return True


def open_network(network: Any, x: Any, single: bool = False) -> Any:
    """A torch module translated with the first of the inputs as its example; anything else as it is.

    ``single``: ``x`` is one input without a batch dimension.
    """
    if not isinstance(network, torch.nn.Module):
        return network
    x = as_tensor(x)
    first = x[None] if single else x[:1]
    like = next((p for p in (*network.parameters(), *network.buffers()) if p.is_floating_point()), torch.zeros(()))
    if first.is_floating_point() or first.dtype == torch.uint8:
        first = in_units(first).to(like)
    return from_torch(network, first.to(like.device))


def _last_cause(error: BaseException) -> str:
    """The first line of what went wrong first: torch wraps it in advice about itself."""
    seen = {id(error)}
    while (deeper := error.__cause__ or error.__context__) is not None and id(deeper) not in seen:
        seen.add(id(deeper))
        error = deeper
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter talks about packages that are not installed and calls it makes to itself; nobody asked."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
