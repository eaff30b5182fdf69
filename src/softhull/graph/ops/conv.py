"""Convolution with a constant kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from ..operator import Affine, Interval, Shape

_FORWARD: tuple[Callable[..., Tensor], ...] = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED: tuple[Callable[..., Tensor], ...] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


@dataclass(frozen=True)
class Conv(Affine):
    """Convolution of ``[N, C, *space]``; ``pads`` counts zeros in front for all space axes, then behind."""

    name: ClassVar[str] = "Conv"
    kernel: Tensor
    bias: Tensor | None
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1

    @property
    def _space(self) -> int:
        return len(self.strides)

    def in_patches(self, shape: Shape) -> bool:
        """Whether every input entry of this shape is read by one position of the kernel, and by no other."""
        sizes = tuple(self.kernel.shape[2:])
        apart = sizes == self.strides and all(d == 1 for d in self.dilations)
        fits = all(n % k == 0 for n, k in zip(shape[2:], sizes))
        return apart and fits and self.groups == 1 and not any(self.pads)

    def patches(self, x: Tensor) -> Tensor:
        """What the positions of the kernel read of ``[B, N, C, *space]``, where these are patches: ``[B, N P, n]``."""
        space, sizes = self._space, self.kernel.shape[2:]
        split = [part for n, k in zip(x.shape[3:], sizes) for part in (n // k, k)]
        apart = x.reshape(*x.shape[:3], *split)
        seen, inside = (range(3 + first, 3 + 2 * space, 2) for first in (0, 1))
        return apart.permute(0, 1, *seen, 2, *inside).reshape(len(x), -1, self.kernel[0].numel())

    def _convolve(self, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution of ``[B, N, C, *space]``; of patches, one product of matrices."""
        if self.in_patches(tuple(x.shape[1:])):
            y = self.patches(x) @ kernel.flatten(1).T
            y = y if bias is None else y + bias
            seen = (n // k for n, k in zip(x.shape[3:], kernel.shape[2:]))
            return y.reshape(*x.shape[:2], *seen, -1).movedim(-1, 2)
        flat = x.flatten(0, 1)
        if any(self.pads):
            # torch lists the last axis first, in front and behind side by side.
            front, behind = self.pads[: self._space], self.pads[self._space :]
            pairs = [size for axis in reversed(range(self._space)) for size in (front[axis], behind[axis])]
            flat = functional.pad(flat, pairs)
        y = _FORWARD[self._space - 1](flat, kernel, bias, self.strides, 0, self.dilations, self.groups)
        return y.unflatten(0, x.shape[:2])

    def _padded(self, space: Shape) -> tuple[int, ...]:
        return tuple(n + a + b for n, a, b in zip(space, self.pads[: self._space], self.pads[self._space :]))

    def shape(self, *shapes: Shape) -> Shape:
        kernel = tuple(self.kernel.shape)
        if len(shapes[0]) != len(kernel) or shapes[0][1] != kernel[1] * self.groups or kernel[0] % self.groups:
            raise ValueError(f"a kernel of shape {kernel} in {self.groups} groups does not fit an input {shapes[0]}")
        steps = [
            (size - dilation * (length - 1) - 1) // stride
            for size, length, stride, dilation in zip(
                self._padded(shapes[0][2:]), kernel[2:], self.strides, self.dilations
            )
        ]
        if min(*steps, *(n - 1 for n in kernel)) < 0:
            raise ValueError(f"a kernel of shape {kernel} does not fit into the padded input {shapes[0]}")
        return (shapes[0][0], kernel[0], *(step + 1 for step in steps))

    def work(self, *shapes: Shape) -> int:
        """The padded input, and a column of it for every output entry of a channel."""
        n, channels, *space = shapes[0]
        columns = channels * math.prod(self.kernel.shape[2:]) * math.prod(self.shape(*shapes)[2:])
        return n * (channels * math.prod(self._padded(tuple(space))) + columns)

    def value(self, *inputs: Tensor) -> Tensor:
        return self._convolve(inputs[0], self.kernel, self.bias)

    def range(self, *inputs: Interval) -> Interval:
        lower, upper = inputs[0]
        up, down = self.kernel.clamp(min=0), self.kernel.clamp(max=0)
        return (
            self._convolve(lower, up, self.bias) + self._convolve(upper, down, None),
            self._convolve(upper, up, self.bias) + self._convolve(lower, down, None),
        )

    def magnitude(self, *sizes: Tensor) -> Tensor:
        return self._convolve(sizes[0], self.kernel.abs(), None if self.bias is None else self.bias.abs())

    def terms(self, *shapes: Shape) -> int:
        return 2 * self.kernel[0].numel()

    def _transposed(self, y: Tensor) -> Tensor:
        """The transposed convolution of ``[N, C, *seen]``; where kernels do not overlap, one product of matrices."""
        kernel, space = self.kernel, self._space
        if self.groups > 1 or tuple(kernel.shape[2:]) != tuple(self.strides) or any(d > 1 for d in self.dilations):
            settings: dict[str, Any] = {"stride": self.strides, "groups": self.groups, "dilation": self.dilations}
            return _TRANSPOSED[space - 1](y, kernel, **settings)
        patches = (y.movedim(1, -1) @ kernel.flatten(1)).unflatten(-1, kernel.shape[1:])  # [N, *seen, C, *kernel]
        axes = [axis for i in range(space) for axis in (1 + i, 2 + space + i)]  # positions and kernels in turn
        shape = (len(y), kernel.shape[1], *(n * k for n, k in zip(y.shape[2:], kernel.shape[2:])))
        return patches.permute(0, 1 + space, *axes).reshape(shape)

    def backward(self, coefficients: Tensor, shapes: tuple[Shape, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        leading = coefficients.shape[:3]
        size, seen = shapes[0][2:], coefficients.shape[4:]
        front, behind = self.pads[: self._space], self.pads[self._space :]
        # Rows that no position of the kernel reaches come back as zeros behind.
        unreached = [
            size[i] + front[i] + behind[i]
            - ((seen[i] - 1) * self.strides[i] + self.dilations[i] * (self.kernel.shape[2 + i] - 1) + 1)
            for i in range(self._space)
        ]  # fmt: skip
        padded = self._transposed(coefficients.flatten(0, 2))
        pairs = [
            size for axis in reversed(range(self._space))
            for size in (-front[axis], unreached[axis] - behind[axis])
        ]  # fmt: skip
        back = (functional.pad(padded, pairs) if any(pairs) else padded).unflatten(0, leading)
        if self.bias is None:
            return (back,), coefficients.new_zeros(coefficients.shape[:2])
        per_channel = coefficients.flatten(4).sum(4).sum(2)
        return (back,), (per_channel * self.bias).sum(2)
