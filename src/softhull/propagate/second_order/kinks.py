"""Rectifiers that stay in the quadratic: each as a noise number of its own, and what is known of it.

A form has ``y = relu(x)`` as ``rate x + middle + radius e`` with one fresh noise number e. Lines around y charge e at
its worst wherever it occurs, each time on its own. Here y stays what it is: a walk goes on with ``rate x`` and leaves
``radius e`` in the linear part, and what makes y a rectifier comes as cuts of the noise,

    -y <= 0,        x - y <= 0,        y (y - x) <= 0        (it is zero),

whose multipliers are found together with those of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...graph.rounding import share
from .affine_form import AffineForm, Basis
from .central_path import Cuts, Squares


@dataclass(frozen=True)
class Kinks:
    """The rectifiers of one node: what goes in and what comes out as forms over the basis of number ``basis``.

    ``rate`` and ``radius`` are ``[B, *shape]``; entries of radius 0 are lines.
    """

    x: AffineForm
    y: AffineForm
    rate: Tensor
    radius: Tensor
    basis: int

    def take(self, instances: Tensor) -> Kinks:
        """The rectifiers of some of the instances."""
        rate, radius = self.rate[instances], self.radius[instances]
        return replace(self, x=self.x.take(instances), y=self.y.take(instances), rate=rate, radius=radius)

    def met(self, A: Tensor, basis: Basis) -> tuple[Tensor, Tensor, Tensor]:
        """``<A [P, *shape], y>`` as coefficients on x, a constant ``[P]``, and a linear function ``[P, r]`` of z."""
        r = self.y.slope.shape[1]
        left = (self.y.slope - self.rate[:, None] * self.x.padded(r)).flatten(2)
        on_basis = (left.expand(len(A), *left.shape[1:]) @ A.flatten(1)[..., None])[..., 0]
        constant = (A * (self.y.centre - self.rate * self.x.centre)).flatten(1).sum(1)
        rate = self.rate.abs()
        size = self.y.size(basis) + rate * self.x.size(basis)
        # Two products and sums an entry, all entries, and for every entry of the basis its way to the noise.
        rounded = 2 * share(A[0].numel() + r + 4, A.dtype) * size + self.y.error + rate * self.x.error
        return A * self.rate, constant - (A.abs() * rounded).flatten(1).sum(1), on_basis

    def bending(self) -> tuple[Tensor, Tensor]:
        """The entries that bend ``[P, c]``, and which of them are more than others have."""
        bends = self.radius.flatten(1) > 0
        count = int(bends.sum(1).max()) if len(bends) else 0
        order = bends.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :count]
        return order, bends.gather(1, order)

    def cuts(self, basis: Basis, n: int) -> Cuts:
        """What makes them rectifiers, over ``n`` noise numbers: three cuts for every one that bends ``[P, 3 c]``.

        Instances that have fewer than others have cuts that say nothing: minus one is at most zero.
        """
        order, used = self.bending()
        P, count = order.shape
        numbers = basis.numbered()

        def chosen(t: Tensor) -> Tensor:
            return t.flatten(1).expand(P, -1).gather(1, order)

        def over_noise(form: AffineForm) -> Tensor:
            slope = form.slope.flatten(2).mT.expand(P, -1, -1)
            slope = slope.gather(1, order[..., None].expand(-1, -1, slope.shape[-1]))
            found = slope.new_zeros(P, count, n)
            found[..., numbers] = basis.over_noise(slope)
            return torch.where(used[..., None], found, 0.0)

        x, y, at, out = over_noise(self.x), over_noise(self.y), chosen(self.x.centre), chosen(self.y.centre)
        size = chosen(self.x.size(basis) + self.y.size(basis))
        error = chosen(self.x.error + self.y.error)
        # Slopes are sums over the basis and a difference; a product of two such has their errors twice.
        rounded = 4 * share(self.y.slope.shape[1] + 8, size.dtype) * size + error
        steep, apart = y - x, out - at
        swap = x.new_tensor(((0.0, 0.5), (0.5, 0.0))).expand(P, count, 2, 2)
        product = out * apart - 2 * rounded * (size + rounded), out[..., None] * steep + apart[..., None] * y
        constant = torch.cat((product[0], -out - rounded, -apart - rounded), 1)
        constant = torch.where(used.repeat(1, 3), constant, -1.0)
        linear = torch.cat((torch.where(used[..., None], product[1], 0.0), -y, -steep), 1)
        return Cuts(constant, linear, (Squares(0, torch.stack((y, steep), 2), swap),))
