"""Where tensors live: the processor, or whatever else torch can compute on."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .errors import InvalidInput

T = TypeVar("T")


def find_device(name: torch.device | str) -> torch.device:
    """A device by its name; InvalidInput when double precision cannot be computed there and brought back.

    On a GPU products of single precision are no longer shortened to TF32, which no error model of ours covers.
    """
    try:
        device = torch.device(name)
        if device.type != "cpu":
            torch.ones(1, dtype=torch.float64, device=device).cpu()
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as problem:
        reason = str(problem).strip().partition("\n")[0]
        raise InvalidInput(f"device {str(name)!r} cannot be used here: {reason}") from None
    return device


def device_of(given: Any, name: torch.device | str | None) -> torch.device:
    """The device that is named, or else the one the given input is on: the processor unless it is a tensor."""
    return find_device(name or (given.device if isinstance(given, Tensor) else "cpu"))


def moved(item: T, device: torch.device | str, dtype: torch.dtype | None = None) -> T:
    """The same thing with all tensors inside in another place, the real ones in another precision if one is given."""
    if isinstance(item, Tensor):
        return item.to(device, dtype if item.is_floating_point() else None)  # type: ignore[return-value]
    if isinstance(item, tuple | list):
        return type(item)(moved(part, device, dtype) for part in item)  # type: ignore[return-value]
    if isinstance(item, dict):
        return {key: moved(part, device, dtype) for key, part in item.items()}  # type: ignore[return-value]
    if is_dataclass(item) and not isinstance(item, type):
        return replace(item, **{f.name: moved(getattr(item, f.name), device, dtype) for f in fields(item)})
    return item
