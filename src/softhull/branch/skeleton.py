"""A network as its relaxed entries alone: linear functions of the input, and of what earlier entries become, between.

An activation takes in a number z and gives r. For every entry that is relaxed, one walk each finds functions

    z  >=  a . x + w . r + c,        -z  >=  a' . x + w' . r + c'

over the region, where r are the values of relaxed entries before it: what stands in between, attention and all, is
passed once. A row of the output has such a function, too. From then on a walk is one product of small matrices for
every layer of activations, for many cells at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from ..graph.operator import Elementwise, Lines
from ..graph.rounding import largest
from ..propagate.crown import LinearBounds, LinearWalk
from ..propagate.structure import pieces, positions
from ..propagate.walk import Claim, Step


@dataclass(frozen=True)
class Relaxed:
    """The entries of one entrywise node that are relaxed, and where they are in the vector of all of them."""

    before: int  # the node that is cut
    operator: Elementwise
    entries: Tensor
    every: slice
    base: Lines  # of all entries of the node over the whole region, [1, n]


@dataclass(frozen=True)
class Functions:
    """Numbers ``[N]`` that are at least ``on_input . x + on_values . r + constant``.

    ``size`` is at least the sum of the absolute values of all terms.
    """

    on_input: Tensor  # [N, inputs]
    on_values: Tensor  # [N, E]
    constant: Tensor
    size: Tensor

    def take(self, which: Tensor) -> Functions:
        """Some of them."""
        return Functions(self.on_input[which], self.on_values[which], self.constant[which], self.size[which])

    def to(self, dtype: torch.dtype) -> Functions:
        """The same numbers in another format, rounded to nearest."""
        parts = self.on_input, self.on_values, self.constant, self.size
        return Functions(*(part.to(dtype) for part in parts))


def together(several: Sequence[Functions]) -> Functions:
    """Functions one after the other."""
    parts = ([getattr(each, f.name) for each in several] for f in fields(Functions))
    return Functions(*(torch.cat(part) for part in parts))


@dataclass(frozen=True)
class Layer:
    """The functions below the entries of one activation, then those below their negatives."""

    every: slice
    functions: Functions


class _Stopping(LinearWalk):
    """A linear walk that ends at the input and at the relaxed entries of activations."""

    def __init__(self, bounds: LinearBounds, relaxed: Mapping[int, Relaxed]) -> None:
        super().__init__(bounds)
        self.relaxed = relaxed
        self.met: dict[int, Tensor] = {}

    def step(self, index: int, A: Tensor) -> Step:
        part = self.relaxed.get(index)
        if part is None:
            return super().step(index, A)
        flat = A.flatten(2)
        self.met[index] = flat[:, 0, part.entries]
        others = flat.index_fill(2, part.entries, 0.0)
        rising = others >= 0
        slope = torch.where(rising, part.base.lower_slope, part.base.upper_slope)
        offset = torch.where(rising, part.base.lower_offset, part.base.upper_offset)
        return ((part.before, (others * slope).reshape(A.shape)),), (others * offset).sum(-1)


class Skeleton:
    """The functions of all relaxed entries of one instance."""

    def __init__(self, bounds: LinearBounds, relaxed: Mapping[int, Relaxed]) -> None:
        self.bounds, self.relaxed = bounds, relaxed
        self.count = max((part.every.stop for part in relaxed.values()), default=0)
        region = bounds.region
        self._inputs = largest(region.lower, region.upper).flatten()
        self._values = region.lower.new_zeros(self.count)  # how large r may be
        self.sizes = region.lower.new_zeros(self.count)  # how large z may be
        for index, part in relaxed.items():
            self._values[part.every] = bounds.sizes(index).flatten()[part.entries]
            before = self._inputs if part.before < 0 else bounds.sizes(part.before).flatten()
            self.sizes[part.every] = before[part.entries]
        self.layers: dict[int, Layer] = {}
        for index, part in relaxed.items():
            if len(part.entries):
                shape = bounds.graph.shape_of(part.before)
                units = region.lower.new_zeros(len(part.entries), math.prod(shape))
                units.scatter_(1, part.entries[:, None], 1.0)
                rows = torch.cat((units, -units)).reshape(-1, *shape)
                self.layers[index] = Layer(part.every, self.below(part.before, rows))

    def below(self, node: int, rows: Tensor) -> Functions:
        """Functions below ``<rows [N, *shape], node>``."""
        found = [self._below(node, rows[some]) for some in pieces(positions(rows), self.bounds.chunk(node))]
        return Functions(*(torch.cat(parts) for parts in zip(*found)))

    def _below(self, node: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The parts of these functions, from one walk."""
        self.bounds.check_time()
        walk = _Stopping(self.bounds, self.relaxed)
        claim = walk.back(Claim.on(node, rows[:, None]))
        constant = claim.bound[:, 0]
        none = rows.new_zeros(len(rows), 1, len(self._inputs))
        on_input = claim.pending.get(-1, none).flatten(1)
        on_values = rows.new_zeros(len(rows), self.count)
        for index, met in walk.met.items():
            on_values[:, self.relaxed[index].every] = met
        size = on_input.abs() @ self._inputs + on_values.abs() @ self._values + constant.abs()
        return on_input, on_values, constant, size

    def back(self, start: Functions, lines: Lines, added: Tensor) -> tuple[Claim, Tensor]:
        """What is left of functions ``start [S]`` with only the input pending, and what they met r with, ``[S, E]``.

        ``lines [S, E]`` replace the activations; ``added [S, E]`` are more coefficients on z.
        """
        bounds, met, passed = self.bounds, start.on_values, []
        constant, lost = start.constant, start.size
        for layer in reversed(self.layers.values()):
            found, every = layer.functions, layer.every
            here = met[:, every]
            rising = here >= 0
            slope = torch.where(rising, lines.lower_slope[:, every], lines.upper_slope[:, every])
            offset = torch.where(rising, lines.lower_offset[:, every], lines.upper_offset[:, every])
            on_entries, shift = here * slope + added[:, every], here * offset
            both = torch.cat((on_entries.clamp(min=0), (-on_entries).clamp(min=0)), 1)
            constant = constant + shift.sum(1) + both @ found.constant
            met = met + both @ found.on_values
            passed.append(both)
            if bounds.outward:
                with torch.no_grad():
                    own = (on_entries.abs() + added[:, every].abs()) @ self.sizes[every]
                    lost = lost + shift.abs().sum(1) + own + both @ found.size
        on_input = start.on_input
        if passed:
            on_input = on_input + torch.cat(passed, 1) @ self._on_input
        # A coefficient is a sum over all functions; what it meets is made of a product and a sum for every layer.
        charge = bounds.share(2 * self.count + 4 * len(self.layers)) * lost if bounds.outward else 0 * lost
        shape = bounds.graph.input_shape
        return Claim({-1: on_input.reshape(-1, 1, *shape)}, constant[:, None], charge[:, None]), met

    def seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """About what relaxed entries take in at some inputs ``[S, *shape]``, and what they give: ``[S, E]`` each."""
        flat = x.flatten(1)
        inside = flat.new_zeros(len(flat), self.count)
        values = torch.zeros_like(inside)
        for index, layer in self.layers.items():
            found = layer.functions
            low, high = (flat @ found.on_input.T + values @ found.on_values.T + found.constant).chunk(2, 1)
            inside[:, layer.every] = (low - high) / 2  # half way between what is below it and what is above
            values[:, layer.every] = self.relaxed[index].operator.value(inside[:, layer.every])
        return inside, values

    @cached_property
    def _on_input(self) -> Tensor:
        """The coefficients of all layers on the input, last to first."""
        return torch.cat([layer.functions.on_input for layer in reversed(self.layers.values())])

    def to_search(self, dtype: torch.dtype, bounds: LinearBounds) -> Skeleton:
        """The same in another format, for ``bounds`` whose rounding is free."""
        found = Skeleton.__new__(Skeleton)
        found.bounds, found.relaxed, found.count = bounds, self.relaxed, self.count
        found._inputs, found._values, found.sizes = (t.to(dtype) for t in (self._inputs, self._values, self.sizes))
        found.layers = {i: replace(layer, functions=layer.functions.to(dtype)) for i, layer in self.layers.items()}
        return found
