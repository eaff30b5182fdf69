"""Cells of a question about margins: linear walks and second order over boxes of inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import DomainError
from ..graph.graph import Graph
from ..graph.operator import Bilinear
from ..propagate.crown import LinearBounds
from ..propagate.methods import SecondOrder
from ..propagate.second_order.forward import NoAffineForms
from ..propagate.second_order.specification import SecondOrderBounds
from ..propagate.structure import Structure, pieces, positions
from ..regions import Region
from .cuts import Cut
from .loop import Cell, Solved

# Cells keep so many candidates for their cut.
CANDIDATES = 8
# Factorisations spent on a row of a cell that is only tried.
TRIED = 2


@dataclass(frozen=True)
class Rows:
    """Problem p is proved where, for every group, one of its rows has ``<rows[s, p], output> > offsets[s, p]``.

    ``rows [S, P, *output_shape]``, ``offsets [S, P]``, ``group [S]``.
    """

    rows: Tensor
    offsets: Tensor
    group: Tensor

    def worst(self, low: Tensor) -> tuple[Tensor, Tensor]:
        """The best row of every group, and of these the worst: its value and its number, ``[B]`` for ``low [S, B]``."""
        groups = [(self.group == number).nonzero()[:, 0] for number in range(int(self.group.max()) + 1)]
        best = [low[members].max(0) for members in groups]
        value, group = torch.stack([found.values for found in best]).min(0)
        rows = torch.stack([members[found.indices] for members, found in zip(groups, best)])
        return value, rows.gather(0, group[None])[0]


class WalkLeaves:
    """Problem p asks for its rows over instance p of ``region``, a box; ``start [S, P]`` is what is known of them."""

    together = 64

    def __init__(
        self,
        graph: Graph,
        structure: Structure,
        region: Region,
        rows: Rows,
        method: SecondOrder,
        memory: int,
        deadline: float = math.inf,
    ) -> None:
        self.graph, self.structure, self.region, self.rows = graph, structure, region, rows
        self.method, self.memory, self.deadline = method, memory, deadline
        self.last = len(graph.nodes) - 1
        self.products = any(isinstance(node.operator, Bilinear) for node in graph.nodes)
        self.inputs = math.prod(graph.input_shape)

    def roots(self) -> list[Solved]:
        """The whole regions, without cuts."""
        return self.solve([Cell(p, ()) for p in range(self.region.size)])

    def quick(self, cells: Sequence[Cell]) -> list[float]:
        """Bounds of candidate cells after few steps, to choose a cut by."""
        low, _, _ = self._bound(cells, TRIED)
        return self.rows.worst(low)[0].tolist()

    def solve(self, cells: Sequence[Cell]) -> list[Solved]:
        """Bounds of cells and the input entries to cut next, by slope times width."""
        low, region, problem = self._bound(cells, self.method.steps)
        bound, row = self.rows.worst(low)
        slopes, x = self._slopes(region, problem, row)
        weight = (slopes.abs() * (region.upper - region.lower)).flatten(1)
        where = weight.topk(min(CANDIDATES, weight.shape[1]), 1).indices
        lower, upper = region.lower.flatten(1), region.upper.flatten(1)
        ends = (lower + (upper - lower) / 2, lower, upper)
        middle, least, most = (t.gather(1, where).tolist() for t in ends)
        found = []
        for i, value in enumerate(bound.tolist()):
            cuts = [
                Cut(-1, entry, None, t)
                for entry, t, a, b in zip(where[i].tolist(), middle[i], least[i], most[i])
                if a < t < b
            ]
            found.append(Solved(value, cuts, low[:, i].clone(), x[i], 8 * len(low)))
        return found

    def _region(self, problem: Tensor, cells: Sequence[Cell]) -> Region:
        region = self.region.take(problem)
        lower, upper = region.lower.clone().flatten(1), region.upper.clone().flatten(1)
        for i, cell in enumerate(cells):
            for cut in cell.path:
                (upper if cut.below else lower)[i, cut.plus] = cut.threshold
        return replace(
            region, lower=lower.reshape(region.lower.shape), upper=upper.reshape(region.upper.shape), inner=None
        )

    def _bound(self, cells: Sequence[Cell], steps: int) -> tuple[Tensor, Region, Tensor]:
        """Lower bounds on all rows less their offsets ``[S, L]``; only those that matter get more than a walk."""
        problem = torch.tensor([cell.problem for cell in cells])
        region = self._region(problem, cells)
        found = [
            self._bound_some(region.take(part), problem[part], steps)
            for part in pieces(positions(problem), max(1, self.memory // (8 * self.structure.width(self.last))))
        ]
        low = torch.cat(found, 1)
        known = [
            low.new_full((len(low),), -math.inf) if cell.warm is None else cell.warm for cell in cells
        ]  # what holds in a cell holds in its children
        return torch.maximum(low, torch.stack(known, 1)), region, problem

    def _bound_some(self, region: Region, problem: Tensor, steps: int) -> Tensor:
        """Linear bounds of the rows over boxes, then second order where these prove nothing and it applies."""
        rows, offsets = self.rows.rows[:, problem], self.rows.offsets[:, problem]
        bounds = LinearBounds(self.graph, region, self.method.linear, self.structure, self.memory, self.deadline)
        bounds.check_time()
        bounds.prepare(self.last)
        low = torch.cat(
            [bounds.lower(self.last, rows[part]) for part in pieces(positions(rows), bounds.chunk(self.last))]
        )
        low = low - offsets
        if not self.products:
            return low
        value, _ = self.rows.worst(low)
        left = (~(value > 0)).nonzero()[:, 0]
        if not len(left):
            return low
        try:
            second = SecondOrderBounds.of(bounds.take(left))
        except (NoAffineForms, DomainError, torch.linalg.LinAlgError):
            return low
        row, place = (~(low[:, left] > 0)).nonzero(as_tuple=True)
        instance = left[place]
        target = offsets[row, instance]
        better = second.lower(rows[row, instance], place, steps, target) - target
        better = torch.where(better.isnan(), -math.inf, better)
        low[row, instance] = torch.maximum(low[row, instance], better)
        return low

    def _slopes(self, region: Region, problem: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of the worst row in the middle of every box, and the corner it points to."""
        middle = region.lower + (region.upper - region.lower) / 2
        with torch.enable_grad():
            x = middle.clone().requires_grad_()
            value = (self.graph(x).flatten(1) * self.rows.rows[row, problem].flatten(1)).sum()
            (slope,) = torch.autograd.grad(value, x)
        slope = torch.where(slope.isfinite(), slope, 0.0)
        return slope, torch.where(slope > 0, region.lower, region.upper)
