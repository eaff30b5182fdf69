"""Free parameters of a walk: every value in its range is sound, so a gradient method may move them as it likes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.operator import Interval


@dataclass
class _Parameter:
    value: Tensor
    low: float
    high: float
    axis: int  # the dimension that counts instances
    mean: Tensor
    square: Tensor


class Free:
    """Parameters by node and name, created at their defaults when a relaxation first asks for them.

    They belong to one batch of specifications: every parameter has dimensions S and B, ``axis`` is that of B.
    """

    def __init__(self) -> None:
        self._parameters: dict[tuple[int, str], _Parameter] = {}
        self._remembered: dict[tuple[int, str], Interval | None] = {}
        self._noted: dict[tuple[int, str], tuple[Tensor, int]] = {}
        self._steps = 0

    def __call__(
        self, index: int, name: str, default: Tensor, axis: int = 1, low: float = 0.0, high: float = 1.0
    ) -> Tensor:
        key = (index, name)
        if key not in self._parameters:
            value = default.detach().clone().requires_grad_()
            zeros = torch.zeros_like(value, requires_grad=False)
            self._parameters[key] = _Parameter(value, low, high, axis, zeros, zeros.clone())
        return self._parameters[key].value

    def put(self, index: int, name: str, where: tuple[Tensor, Tensor], value: Tensor) -> None:
        """Set entries of a parameter of one specification, by its first dimension and by its last ones as one."""
        parameter = self._parameters[index, name]
        flat = parameter.value.detach().clone().reshape(len(parameter.value), -1)
        flat[where] = value.detach()
        parameter.value = flat.reshape(parameter.value.shape).requires_grad_()

    def remember(self, index: int, name: str, find: Callable[[], Interval | None]) -> Interval | None:
        """Bounds ``[S, B, ...]`` that no parameter has a part in: found once."""
        key = (index, name)
        if key not in self._remembered:
            with torch.no_grad():
                self._remembered[key] = find()
        return self._remembered[key]

    def note(self, index: int, name: str, value: Tensor, axis: int = 1) -> None:
        """What a relaxation made of its parameters in this walk, for proofs; ``axis`` counts instances."""
        self._noted[index, name] = value.detach(), axis

    @property
    def held(self) -> dict[tuple[int, str], tuple[Tensor, int]]:
        """The parameters of the last walk and what was made of them, each with the axis that counts instances."""
        return {key: (p.value.detach(), p.axis) for key, p in self._parameters.items()} | self._noted

    def ascend(self, objective: Tensor, rate: float) -> None:
        """One projected step (Adam) uphill; gradients that are not finite count as zero."""
        self._steps += 1
        moving = list(self._parameters.values())
        if not moving or not objective.requires_grad:
            return
        gradients = torch.autograd.grad(objective, [p.value for p in moving], allow_unused=True)
        fast, slow = 0.9, 0.99
        for parameter, gradient in zip(moving, gradients):
            if gradient is None:
                continue
            gradient = torch.where(gradient.isfinite(), gradient, torch.zeros_like(gradient))
            parameter.mean = fast * parameter.mean + (1 - fast) * gradient
            parameter.square = slow * parameter.square + (1 - slow) * gradient**2
            mean = parameter.mean / (1 - fast**self._steps)
            spread = (parameter.square / (1 - slow**self._steps)).sqrt()
            # Where no gradient was ever seen the step is zero, not zero by zero.
            move = torch.where(spread > 0, mean / torch.where(spread > 0, spread, torch.ones_like(spread)), spread)
            value = parameter.value.detach() + rate * move
            parameter.value = value.clamp(parameter.low, parameter.high).requires_grad_()

    def retreat(self, earlier: dict[tuple[int, str], Tensor]) -> None:
        """Half way back to earlier values, and at rest there."""
        for key, value in earlier.items():
            parameter = self._parameters[key]
            parameter.mean = torch.zeros_like(parameter.mean)
            parameter.value = ((parameter.value.detach() + value) / 2).requires_grad_()

    def take(self, instances: Tensor) -> None:
        """Keep some of the instances, in the order given."""
        for p in self._parameters.values():
            p.value = p.value.detach().index_select(p.axis, instances).requires_grad_()
            p.mean, p.square = (t.index_select(p.axis, instances) for t in (p.mean, p.square))
        for key, pair in self._remembered.items():
            self._remembered[key] = pair and (pair[0].index_select(1, instances), pair[1].index_select(1, instances))
