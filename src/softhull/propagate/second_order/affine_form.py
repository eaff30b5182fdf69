"""Affine forms: every entry of a tensor as a centre plus a linear function of noise.

Two layers keep this small. The *noise* ``eps`` (n numbers in [-1, 1], the first of them the input's) is what bounds are
taken over. The *basis* ``z = map @ eps`` (r numbers) is what forms are written in: where a network passes through a
narrow layer, its few entries serve as basis, and all that follows is worked out in r dimensions instead of n. Where
memory is short, noise of little effect is merged: what it adds to a basis entry becomes one fresh number of that entry.

Centres and slopes are rounded; ``error`` is a running bound on what that, and nothing else, has cost an entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ...graph.operator import Bilinear
from ...graph.rounding import euclidean, extreme_eigenvalues, share, ulps, underflow
from ...regions import Region
from .noise_parts import NoisePart, noise_parts, with_single

# Numbers that are worked on at once where a copy of all would leave the cache.
PIECE = 1 << 20


@dataclass(frozen=True)
class Noise:
    """What is known of the noise: all in ``[-1, 1]``, the first ``inputs`` in the unit ball of ``norm`` as well."""

    inputs: int
    norm: float = math.inf
    # Of the noise in a ball, [inputs]: 1 where it is never below 0, -1 where it is never above; None: nowhere.
    held: Tensor | None = field(default=None, compare=False)

    def radius(self, slope: Tensor) -> Tensor:
        """The largest ``|slope . eps|`` along the last axis."""
        outward = 1 + share(slope.shape[-1], slope.dtype)
        if self.norm == math.inf:
            return slope.abs().sum(-1) * outward
        own, others = slope[..., : self.inputs], slope[..., self.inputs :]
        length = euclidean(own, -1) if self.norm == 2 else own.abs().amax(-1)
        return (length + others.abs().sum(-1)) * outward

    def length(self, slopes: Tensor) -> Tensor:
        """At least the largest Euclidean norm of ``slopes [..., N, n] @ eps``."""
        N, n = slopes.shape[-2:]
        found = self.radius(slopes).square().sum(-1).sqrt()  # each of them at its own worst
        if self.norm != math.inf:
            own, others = slopes[..., : self.inputs], slopes[..., self.inputs :]
            together = self._stretch(own) + others.abs().sum(-1).square().sum(-1).sqrt()
            found = torch.minimum(found, together)
        # Squares may vanish.
        return found * (1 + share(n + N, slopes.dtype)) + 2 * math.sqrt(n * N * underflow(slopes.dtype))

    def _stretch(self, slopes: Tensor) -> Tensor:
        """The same for noise in the ball alone."""
        if self.norm == 1:  # a convex function is largest at a corner
            return slopes.square().sum(-2).amax(-1).sqrt()
        N, n = slopes.shape[-2:]
        gram = slopes @ slopes.mT
        _, most = extreme_eigenvalues(gram)
        # Rounding of the inner products, and of eigenvalues by orthogonal steps.
        most = most + 4 * share(n + N * N, slopes.dtype) * gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return torch.where(most.isnan(), math.inf, most.clamp(min=0)).sqrt()

    def ball(self, n: int, device: torch.device) -> Tensor | None:
        """The mask ``[n]`` of the noise in an l_2 ball (an l_1 ball lies in it), or None."""
        return None if self.norm == math.inf else torch.arange(n, device=device) < self.inputs


@dataclass(frozen=True)
class Basis:
    """``z = map @ eps`` for every instance: ``map [B, r, n]``, or ``map [B, n]`` where it is diagonal.

    ``numbers [n]`` says which noise the columns stand for, the input's first; None: that of numbers 0 to n - 1.
    ``parts``: the order of its entries in which parts that share no noise follow each other, and these, where known.
    """

    map: Tensor
    numbers: Tensor | None = None
    parts: tuple[Tensor, list[NoisePart]] | None = None

    @property
    def size(self) -> int:
        """The number of basis entries."""
        return self.map.shape[1]

    @property
    def noise(self) -> int:
        """The number of noise symbols."""
        return self.map.shape[-1]

    @property
    def bytes(self) -> int:
        """The memory it takes."""
        return self.map.nbytes

    def numbered(self) -> Tensor:
        """The numbers of the noise, whether they were written down or not."""
        return torch.arange(self.noise, device=self.map.device) if self.numbers is None else self.numbers

    @cached_property
    def reach(self) -> Tensor:
        """How large the basis entries may be: ``[B, r]``."""
        return self.map.abs() if self.map.ndim == 2 else self.map.abs().sum(-1)

    def densified(self) -> Basis:
        """The same with a map ``[B, r, n]``."""
        return Basis(torch.diag_embed(self.map), self.numbers) if self.map.ndim == 2 else self

    def over_noise(self, slope: Tensor) -> Tensor:
        """Slopes ``[B or 1, entries, r']`` over the first r' of the basis as ``[B, entries, n]`` over the noise."""
        r = slope.shape[-1]
        if self.map.ndim == 3 and self.parts is None:
            return slope @ self.map[:, :r]
        if self.parts is not None:
            slope = torch.nn.functional.pad(slope, (0, self.size - r)) if r < self.size else slope
            found = slope.new_zeros(max(len(slope), len(self.map)), slope.shape[1], self.noise)
            for rows, part in self.by_part():
                found[..., part.columns] = part.over(slope[..., rows])
            return found
        return torch.nn.functional.pad(slope * self.map[:, None, :r], (0, self.noise - r))

    def by_part(self) -> Iterator[tuple[Tensor, NoisePart]]:
        """The basis entries of every part, where parts are known."""
        assert self.parts is not None
        order, parts = self.parts
        return zip(order.split([part.count for part in parts]), parts)

    def values(self, noise: Tensor) -> Tensor:
        """The basis ``[B, r]`` for all the noise there is, ``[B, N]``."""
        noise = noise[:, : self.noise] if self.numbers is None else noise[:, self.numbers]
        return self.map * noise if self.map.ndim == 2 else (self.map @ noise[..., None])[..., 0]

    def extended(self, count: int, first: int) -> Basis:
        """``count`` fresh noise numbers, from ``first`` on, which are basis entries, too."""
        numbers = self._followed_by(count, first)
        if self.map.ndim == 2:
            return Basis(torch.cat((self.map, self.map.new_ones(len(self.map), count)), 1), numbers)
        B, r, n = self.map.shape
        wide = self.map.new_zeros(B, r + count, n + count)
        wide[:, :r, :n] = self.map
        fresh = torch.arange(count, device=self.map.device)
        wide[:, r + fresh, n + fresh] = 1
        return Basis(wide, numbers, self.parts and with_single(*self.parts, r + fresh, n + fresh))

    def merged(self, kept: Tensor, first: int) -> Basis:
        """The same basis with the noise outside the mask ``kept [n]`` merged: at most one fresh number, from ``first``
        on, for every basis entry, as large as all that it stands for."""
        radius = self.map[..., ~kept].abs().sum(-1) * (1 + share(self.noise, self.map.dtype))  # [B, r]
        used = (radius != 0).any(0).nonzero()[:, 0]
        own = torch.diag_embed(radius)[..., used]
        numbers = Basis(self.map[..., kept], self.numbered()[kept])._followed_by(len(used), first)
        return Basis(torch.cat((self.map[..., kept], own), -1), numbers)

    def _followed_by(self, count: int, first: int) -> Tensor | None:
        if self.numbers is None and first == self.noise:
            return None
        return torch.cat((self.numbered(), torch.arange(first, first + count, device=self.map.device)))

    def take(self, instances: Tensor) -> Basis:
        """The basis of some of the instances."""
        # One instance is shared, not copied: its map may be most of what is held.
        found = self.map.expand(len(instances), *self.map.shape[1:]) if len(self.map) == 1 else self.map[instances]
        parts = None
        if self.parts is not None:
            parts = self.parts[0], [part.take(instances) for part in self.parts[1]]
        return Basis(found, self.numbers, parts)

    def in_parts(self) -> Basis:
        """The same, with its parts known."""
        known = self.map.ndim == 2 or self.parts is not None
        return self if known else replace(self, parts=noise_parts(self.map))


@dataclass(frozen=True)
class AffineForm:
    """``centre [B, *shape] + sum_s z_s slope[:, s]``, up to ``error [B, *shape]``.

    ``slope [B or 1, r, *shape]`` is over the first r of the basis.
    """

    centre: Tensor
    slope: Tensor
    error: Tensor

    def take(self, instances: Tensor) -> AffineForm:
        """The form of some of the instances."""
        slope = self.slope if self.slope.shape[0] == 1 else self.slope[instances]
        return AffineForm(self.centre[instances], slope, self.error[instances])

    def size(self, basis: Basis) -> Tensor:
        """At least the sum of the absolute values of all terms of an entry: ``[B, *shape]``."""
        return self.centre.abs() + self.spread(basis)

    def spread(self, basis: Basis) -> Tensor:
        """The same without the centre."""
        return absolute_sum(self.slope, basis.reach[:, : self.slope.shape[1]]).reshape(self.centre.shape)

    def padded(self, r: int) -> Tensor:
        """The slope over ``r`` basis entries, those it does not know being zero."""
        missing = r - self.slope.shape[1]
        if not missing:
            return self.slope
        return torch.cat((self.slope, self.slope.new_zeros(self.slope.shape[0], missing, *self.slope.shape[2:])), 1)

    def noise_slope(self, basis: Basis) -> Tensor:
        """The slope over the noise: ``[B, entries, n]``."""
        return basis.over_noise(self.slope.flatten(2).mT)


def absolute_sum(slope: Tensor, weights: Tensor) -> Tensor:
    """``sum_s weights[:, s] |slope[:, s]|`` of slopes ``[B or 1, r, *shape]``, as ``[B, *shape]``; copies no slopes."""
    size = max(1, PIECE // max(1, math.prod(slope.shape[2:])))
    parts = zip(slope.split(size, 1), weights[:, None].split(size, 2))
    found = sum((reach @ part.flatten(2).abs() for part, reach in parts), start=slope.new_zeros(()))
    return found.reshape(-1, *slope.shape[2:])


def worth_noise(radius: Tensor, centre: Tensor) -> Tensor:
    """Where a radius is more than what is rounded, or vanishes, and so worth a noise number."""
    return radius > ulps(256, centre.dtype) * centre.abs() + math.sqrt(underflow(centre.dtype))


def product_error(operator: Bilinear, x: AffineForm, y: AffineForm, basis: Basis, operations: int) -> Tensor:
    """What rounding of so many operations costs the tangent of a product, and what errors of both factors do."""
    sizes, n = [form.size(basis) for form in (x, y)], x.centre.shape[-1]
    error = 4 * share(operations, x.centre.dtype) * operator.value(*sizes)
    error = error + operator.value(x.error, sizes[1] + y.error) + operator.value(sizes[0], y.error)
    return error * (1 + share(n, error.dtype)) + 2 * n * vanishing(basis, error)


def vanishing(basis: Basis, like: Tensor) -> Tensor:
    """What is lost where a product of every slope vanishes, and a few more: a number for every instance."""
    return underflow(like.dtype) * (basis.reach.sum(-1) + 4).reshape(-1, *[1] * (like.ndim - 1))


def input_noise(region: Region) -> tuple[Tensor, Basis, Noise]:
    """The centre of a region; its noise and a basis in which every input is one entry."""
    centre, radius = centre_and_radius(region)
    edges, held = region.at_edge, None
    if edges is not None:  # in every instance
        below, above = (mask.all(0) for mask in edges)
        held = below.to(centre) - (above & ~below).to(centre) if bool((below | above).any()) else None
    noise = Noise(math.prod(centre.shape[1:]), math.inf if region.centre is None else region.norm, held)
    return centre, Basis(radius.flatten(1)), noise


def own_form(centre: Tensor, error: Tensor) -> AffineForm:
    """A form ``[B, *shape]`` whose entries are those of the basis."""
    size = centre[0].numel()
    identity = torch.eye(size, dtype=centre.dtype, device=centre.device).reshape(1, size, *centre.shape[1:])
    return AffineForm(centre, identity, error)


def centre_and_radius(region: Region) -> tuple[Tensor, Tensor]:
    """Every input of the region is ``centre + radius * eps`` with noise of at most one, in the norm of the region."""
    if region.centre is None:
        radius = (region.upper - region.lower) / 2
        centre = region.lower + radius
    else:
        centre = region.centre.to(region.lower.dtype)
        eps = torch.as_tensor(region.eps, dtype=centre.dtype, device=centre.device)
        radius = (eps.reshape(-1, *[1] * (centre.ndim - 1)) * region.unit).expand(centre.shape)
    slack = share(4, centre.dtype)
    if region.centre is None:
        return centre, radius * (1 + slack) + torch.where(radius > 0, slack * centre.abs(), 0.0)
    # A centre that was rounded is off in every entry; the ball grows by the norm of all of them, at most. A point that
    # was not rounded stays one.
    off = (slack * centre.abs()).flatten(1).sum(1).reshape(-1, *[1] * (centre.ndim - 1))
    rounded = (centre.double() != region.centre.double()).flatten(1).any(1).reshape(off.shape)
    if region.reach is not None:
        # In entries of several units the two parts do not add up to one ball: 15/16 of the noise is for the ball, 1/16
        # for what the rounded centre is off by.
        grown = radius * (1 + slack) * (16 / 15) + 16 * off
        return centre, torch.where(rounded, grown, radius * (1 + slack) + torch.where(radius > 0, off, 0.0))
    return centre, radius * (1 + slack) + torch.where((radius > 0) | rounded, off, 0.0)
