"""A device that is not there: tensors on ``pretend:0`` are held by the processor and behave like those of a GPU.

An operation that takes tensors from both places raises, as it does on a GPU; single numbers (0 dimensions) may come
from the processor. Only explicit copies cross over. One device for the whole process and all its threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
_CPU = torch.device("cpu")
_COPIES = ("aten::_to_copy", "aten::copy_")


class PretendTensor(torch.Tensor):
    """A tensor on the pretended device; ``held`` has its numbers."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> PretendTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=torch.device(NAME, 0)
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        return self.held.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{NAME}:{self.held!r}"

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(operation, args, kwargs or {})


def install() -> None:
    """Make the device known to torch."""
    if hasattr(torch, NAME):
        return
    _setup_privateuseone_for_python_backend(NAME)
    _LIBRARIES.append(everything := torch.library.Library("_", "IMPL"))
    everything.fallback(lambda operation, *args, **kwargs: _run(operation, args, kwargs), "PrivateUse1")
    # torch makes these by resizing an empty tensor, which the wrapper around it would not notice.
    _LIBRARIES.append(made := torch.library.Library("aten", "IMPL"))
    for name in (
        "arange",
        "arange.start",
        "arange.start_step",
        "eye",
        "eye.m",
        "linspace",
        "tril_indices",
        "triu_indices",
        "copy_",
        "_to_copy",
    ):
        operation = getattr(torch.ops.aten, name.partition(".")[0])
        overload = getattr(operation, name.partition(".")[2] or "default")
        made.impl(name, lambda *args, overload=overload, **kwargs: _run(overload, args, kwargs), "PrivateUse1")


_LIBRARIES: list[Any] = []  # what is registered lasts as long as these


def _run(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    ours: list[PretendTensor] = []
    foreign: list[torch.Tensor] = []

    def held(item: Any) -> Any:
        if isinstance(item, PretendTensor):
            ours.append(item)
            return item.held
        if isinstance(item, torch.Tensor):
            foreign.append(item)
        elif isinstance(item, torch.device):
            return _CPU
        elif isinstance(item, list | tuple):
            return type(item)(held(part) for part in item)
        elif isinstance(item, torch.Generator):
            raise RuntimeError(f"{operation}: a random generator of the processor is of no use on {NAME}")
        return item

    there = [held(arg) for arg in args], {name: held(arg) for name, arg in kwargs.items()}
    copies = operation.name() in _COPIES
    if not copies and any(tensor.ndim for tensor in foreign):
        shapes = [tuple(tensor.shape) for tensor in foreign]
        raise RuntimeError(f"{operation}: expected all tensors on one device; on the processor are {shapes}")
    found = operation(*there[0], **there[1])
    if any(tensor.shape != tensor.held.shape for tensor in ours):
        raise NotImplementedError(f"{operation} changed the size of a tensor in place")
    to = kwargs.get("device")
    if (to is not None and to.type == "cpu") or (copies and foreign and args[0] is foreign[0] is found):
        return found
    return _on_device(found, ours)


def _on_device(found: Any, given: list[PretendTensor]) -> Any:
    if isinstance(found, torch.Tensor):  # what was changed in place is the same tensor as before
        same = [tensor for tensor in given if tensor.held is found]
        return same[0] if same else PretendTensor(found)
    if isinstance(found, list | tuple):
        return type(found)(_on_device(part, given) for part in found)
    return found
