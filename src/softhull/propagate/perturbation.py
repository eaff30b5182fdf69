"""The inputs a question speaks about: norm balls, clipped or not, and boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidInput


@dataclass(frozen=True)
class Perturbation:
    """All inputs within ``eps`` of a given one in the l_1, l_2 or l_inf norm, inside ``clip`` where it is given."""

    eps: float
    norm: float = math.inf
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise InvalidInput(f"eps must be a finite number of at least 0, got {self.eps!r}")
        if self.norm not in (1, 2, math.inf):
            raise InvalidInput(f"norm must be 1, 2 or inf, got {self.norm!r}")
        if self.clip is not None and not self.clip[0] <= self.clip[1]:
            raise InvalidInput(f"clip must be (low, high) with low <= high, got {self.clip!r}")

    def around(self, x: Tensor, eps: Tensor | None = None) -> Region:
        """The perturbed inputs around ``x [B, *shape]``, with an ``eps [B]`` of their own where given."""
        size = self.eps if eps is None else eps
        wide = size.reshape(-1, *[1] * (x.ndim - 1)) if isinstance(size, Tensor) else size
        lower, upper = x - wide, x + wide
        if self.clip is not None:
            low, high = self.clip
            outside = (x < low) | (x > high)
            if outside.any():
                index = tuple(outside.nonzero()[0].tolist())
                raise InvalidInput(
                    f"input {float(x[index])!r} at index {index} lies outside the clip range {self.clip}"
                )
            lower, upper = lower.clamp(min=low), upper.clamp(max=high)
        if self.norm == math.inf:
            return Region(lower, upper)
        return Region(lower, upper, centre=x, eps=size, norm=self.norm)


@dataclass(frozen=True)
class Region:
    """A box ``[B, *shape]``, met with the balls of radius ``eps`` (a number or ``[B]``) around ``centre`` if given."""

    lower: Tensor
    upper: Tensor
    centre: Tensor | None = None
    eps: float | Tensor = math.inf
    norm: float = math.inf

    def __post_init__(self) -> None:
        if not (self.lower <= self.upper).all():
            raise InvalidInput("the input box has a lower bound above its upper bound, or a NaN")

    @property
    def size(self) -> int:
        return self.lower.shape[0]

    def minimum(self, coefficients: Tensor) -> Tensor:
        """A lower bound ``[S, B]`` on ``<coefficients, x>``, exact for boxes; coefficients ``[S, B or 1, *shape]``.

        For a ball met with a box it is the better of the two alone.
        """
        flat = coefficients.flatten(2)
        middle = (self.lower + (self.upper - self.lower) / 2).flatten(1)
        radius = ((self.upper - self.lower) / 2).flatten(1)
        best = _inner(flat, middle) - _inner(flat.abs(), radius)
        if self.centre is None:
            return best
        dual = {1: math.inf, 2: 2}[int(self.norm)]
        return torch.maximum(best, _inner(flat, self.centre.flatten(1)) - self.eps * flat.norm(p=dual, dim=-1))

    def take(self, instances: Tensor) -> Region:
        """The regions of some instances, in the order given."""
        centre = None if self.centre is None else self.centre[instances]
        eps = self.eps[instances] if isinstance(self.eps, Tensor) else self.eps
        return Region(self.lower[instances], self.upper[instances], centre, eps, self.norm)

    def project(self, x: Tensor) -> Tensor:
        """A point of the region near ``x``: inside the box always, inside the ball up to rounding."""
        if self.centre is not None:
            x = self.centre + _shrink((x - self.centre).flatten(1), self.eps, self.norm).reshape(x.shape)
        return torch.minimum(torch.maximum(x, self.lower), self.upper)

    def sample(self, generator: torch.Generator) -> Tensor:
        """One random point of every instance's region."""
        share = torch.rand(self.lower.shape, generator=generator, dtype=self.lower.dtype).to(self.lower.device)
        return self.project(self.lower + share * (self.upper - self.lower))


def _inner(coefficients: Tensor, x: Tensor) -> Tensor:
    """``[S, B or 1, n]`` with ``[B, n]`` gives ``[S, B]``."""
    if coefficients.shape[1] == 1:
        return coefficients[:, 0] @ x.T
    return torch.einsum("sbn,bn->sb", coefficients, x)


def _shrink(step: Tensor, eps: float | Tensor, norm: float) -> Tensor:
    """The steps ``[B, n]`` projected onto the balls of radius ``eps`` around zero."""
    eps = torch.as_tensor(eps, dtype=step.dtype, device=step.device).reshape(-1, 1)
    if norm == 2:
        length = step.norm(dim=1, keepdim=True)
        return torch.where(length > eps, step * (eps / torch.where(length > eps, length, 1.0)), step)
    descending = step.abs().sort(dim=1, descending=True).values
    excess = descending.cumsum(1) - eps
    count = torch.arange(1, step.shape[1] + 1, dtype=step.dtype, device=step.device)
    kept = (descending - excess / count > 0).sum(1, keepdim=True).clamp(min=1)
    threshold = (excess.gather(1, kept - 1) / kept).clamp(min=0)
    return step.sign() * (step.abs() - threshold).clamp(min=0)
