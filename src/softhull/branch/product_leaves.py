"""Cells of a question about margins of networks with attention: second order, with cuts of logits and activations.

A cell narrows differences of the logits of a softmax, or what goes into an activation, and everything that rests on
them is bounded anew. Its cuts enter the quadratic of the margin, too: for any ``beta >= 0`` and all inputs that keep
the cut ``g <= t``

    margin  >=  margin + beta (g - t),

so that a walk starts with the coefficients of ``g`` beside those of the margin. Differences of logits are products of
the input, and cuts of them change the quadratic itself: that is why one of them may gain more than many activations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DomainError
from ..graph.operator import Elementwise, Interval
from ..graph.ops.relu import LeakyRelu, Relu
from ..graph.ops.softmax import Softmax
from ..propagate.crown import LinearBounds
from ..propagate.second_order.affine_form import centre_and_radius
from ..propagate.second_order.dual import Pursuit
from ..propagate.second_order.forward import NoAffineForms
from ..propagate.second_order.specification import SecondOrderBounds, solve_quadratic
from ..propagate.structure import pieces, positions
from ..propagate.walk import Claim
from .cuts import Cut
from .loop import Cell, Solved
from .losses import NARROW

# Steps on the quadratic of a cell: at first, where multipliers that are nearly right are known, and in the end.
STEPS, AGAIN, FINAL = 8, 3, 14
# Multipliers of the last cut, in units of what the parent misses by the width that is cut.
GRID, COARSE = (0.0, 0.3, 1.0, 3.0), (0.0, 0.3, 1.0)
# And around the best of them.
NEARBY = (0.6, 1.7)
# Cuts of the whole region that are tried at first. What they gained there chooses all cuts that follow: to try a few in
# every cell costs more than the better choice gains.
FIRST, CANDIDATES = 64, 1


# What may be cut, by node and entries (-1: one entry alone), and how wide it is and where its middle or its kink.
Place = tuple[int, int, int]
Spans = dict[Place, tuple[float, float]]


@dataclass(frozen=True)
class Warm:
    """What the children of a cell start from: multipliers of its cuts, and what its bound misses of the margin."""

    on_cuts: Tensor  # [C]
    missed: float
    open: Spans


class ProductLeaves:
    """Problem p: ``<rows[p], output> - offsets[p]`` over instance ``instance[p]`` of ``bounds``."""

    together = 1

    def __init__(self, bounds: LinearBounds, instance: Tensor, rows: Tensor, offsets: Tensor, most: int = 64) -> None:
        self.bounds, self.graph = bounds, bounds.graph
        self.most = most  # cells at once
        self.instance, self.rows, self.offsets = instance, rows, offsets
        self.last = len(self.graph.nodes) - 1
        bounds.prepare(self.last)
        # By the node that a softmax is taken of: the softmax, and the entries of its rows.
        self.softmaxes: dict[int, tuple[int, Tensor]] = {}
        self.activations: dict[int, Elementwise] = {}
        for index, node in enumerate(self.graph.nodes):
            operator, before = node.operator, node.inputs[0] if node.inputs else -1
            if isinstance(operator, Softmax) and operator.mask is None and bounds.differences(index) is not None:
                entries = torch.arange(math.prod(node.shape)).reshape(node.shape).movedim(operator.axis, -1)
                self.softmaxes[before] = index, entries.reshape(-1, node.shape[operator.axis])
            elif isinstance(operator, Elementwise) and before >= 0:
                self.activations[before] = operator
        # By problem: what a cut gained on the whole region, by its width.
        self.gains: list[dict[Place, float]] = [{} for _ in range(len(instance))]

    def roots(self) -> list[Solved]:
        """The whole regions, without cuts; every cut that may be worth it is tried once, to rank them for all cells."""
        cells = [Cell(p, ()) for p in range(len(self.instance))]
        found = self._bounded(cells, GRID)
        for p, root in enumerate(found):
            if root.bound > 0 or root.warm is None:
                continue
            cuts = self._widest(root.warm.open, {}, FIRST)
            tried = [Cell(p, (side,), root.warm) for cut in cuts for side in cut.sides]
            values = iter(self.quick(tried))
            for cut in cuts:
                # The whole region had more steps: what does not gain over them does not count.
                low, high = sorted(min(max(next(values), root.bound), 0.0) - root.bound for _ in range(2))
                place = cut.node, cut.plus, -1 if cut.minus is None else cut.minus
                self.gains[p][place] = (low + 0.2 * high) / root.warm.open[place][0]
            root.cuts = self._widest(root.warm.open, self.gains[p], CANDIDATES)
        return found

    def quick(self, cells: Sequence[Cell]) -> list[float]:
        """Bounds of candidate cells after few steps, to choose a cut by."""
        return [found.bound for found in self._bounded(cells, COARSE)]

    def solve(self, cells: Sequence[Cell]) -> list[Solved]:
        """Bounds of cells, with the cuts to try next and the state their children start from."""
        return self._bounded(cells, GRID)

    def _bounded(self, cells: Sequence[Cell], grid: Sequence[float]) -> list[Solved]:
        found: list[Solved] = []
        for part in pieces(torch.arange(len(cells)), self.most):
            self.bounds.check_time()
            found += self._some([cells[k] for k in part.tolist()], grid)
        return found

    def _some(self, cells: Sequence[Cell], grid: Sequence[float]) -> list[Solved]:
        """Bounds of as many cells as fit at once; a cell that holds no point is proved."""
        problem = torch.tensor([cell.problem for cell in cells])
        bounds, empty = self._narrowed(cells, self.instance[problem])
        try:
            batch = _Batch(self, bounds, cells, problem)
            batch.solve(grid)
        except (NoAffineForms, DomainError, torch.linalg.LinAlgError):
            return [Solved(math.inf if nothing else -math.inf) for nothing in empty.tolist()]
        value = torch.where(batch.value.isnan(), -math.inf, batch.value)
        value = torch.where(empty, math.inf, value)
        margin = (self.graph(batch.x).flatten(1) * self.rows[problem].flatten(1)).sum(1) - self.offsets[problem]
        found = []
        spans = self._spans(batch.second.bounds)
        for s, (cell, low) in enumerate(zip(cells, value.tolist())):
            own = {place: (w[s], at[s]) for place, (w, at) in spans.items() if w[s] > 0}
            missed = float(margin[s]) - low if math.isfinite(low) else 1.0
            warm = Warm(batch.on_cuts[s, : len(cell.path)].clone(), max(missed, 0.0), own)
            cuts = self._widest(own, self.gains[cell.problem], CANDIDATES)
            found.append(Solved(low, cuts, warm, batch.x[s], 128 * len(own)))
        return found

    # What is cut

    def _narrowed(self, cells: Sequence[Cell], instances: Tensor) -> tuple[LinearBounds, Tensor]:
        """Bounds that know on which side of their cuts the cells are, and the cells that are empty."""
        bounds = self.bounds.take(instances)
        knowledge, empty = bounds.knowledge, torch.zeros(len(cells), dtype=torch.bool)
        for node in sorted({cut.node for cell in cells for cut in cell.path}):
            if node in self.softmaxes:
                index, entries = self.softmaxes[node]
                known = bounds.differences(index)
                assert known is not None
                ends = [end.clone() for end in known]
                place = {int(e): (r, k) for r, row in enumerate(entries.tolist()) for k, e in enumerate(row)}
                for s, cut in ((s, cut) for s, cell in enumerate(cells) for cut in cell.path if cut.node == node):
                    assert cut.minus is not None
                    (r, j), (_, k) = place[cut.plus], place[cut.minus]
                    low, high = (0, 1) if cut.below else (1, 0)
                    for side, (a, b), t in ((high, (j, k), cut.threshold), (low, (k, j), -cut.threshold)):
                        meet = min if side else max
                        ends[side][s, r, a, b] = meet(float(ends[side][s, r, a, b]), t)
                empty |= (ends[0] > ends[1]).flatten(1).any(1)
                knowledge = knowledge.with_differences(index, _ordered(ends[0], ends[1]))
                continue
            shape = self.graph.shape_of(node)
            lower, upper = (end.flatten(1).clone() for end in bounds.interval(node, self.activations[node]))
            for s, cut in ((s, cut) for s, cell in enumerate(cells) for cut in cell.path if cut.node == node):
                if cut.below:
                    upper[s, cut.plus] = min(float(upper[s, cut.plus]), cut.threshold)
                else:
                    lower[s, cut.plus] = max(float(lower[s, cut.plus]), cut.threshold)
            empty |= (lower > upper).any(1)
            lower, upper = _ordered(lower, upper)
            knowledge = knowledge.with_interval(node, (lower.reshape(-1, *shape), upper.reshape(-1, *shape)))
        return bounds.knowing(knowledge), empty

    def _spans(self, bounds: LinearBounds) -> dict[Place, tuple[list[float], list[float]]]:
        """How wide everything is that may be cut in every cell, and where to cut it; 0 where a cut gains nothing."""
        found: dict[Place, tuple[list[float], list[float]]] = {}

        def add(place: Place, lower: Tensor, upper: Tensor, at: Tensor | None = None) -> None:
            width, middle = upper - lower, lower + (upper - lower) / 2
            cut = middle if at is None else at
            inside = (lower < cut) & (cut < upper) & (width > NARROW * (1 + upper.abs()))
            if bool(inside.any()):
                found[place] = torch.where(inside, width, 0.0).tolist(), cut.tolist()

        for node, (index, entries) in self.softmaxes.items():
            known = bounds.differences(index)
            for r, row in enumerate(entries.tolist() if known is not None else ()):
                for j in range(len(row)):
                    for k in range(j + 1, len(row)):
                        assert known is not None
                        add((node, row[j], row[k]), known[0][:, r, j, k], known[1][:, r, j, k])
        for node, operator in self.activations.items():
            lower, upper = (end.flatten(1) for end in bounds.interval(node, operator))
            kinked = isinstance(operator, Relu | LeakyRelu)
            for entry in range(lower.shape[1]):
                ends = lower[:, entry], upper[:, entry]
                add((node, entry, -1), *ends, torch.zeros_like(ends[0]) if kinked else None)
        return found

    def _widest(self, spans: Spans, gains: dict[Place, float], count: int) -> list[Cut]:
        """Candidates, by what they gained on the whole region and what is left of their width."""
        order = sorted(spans, key=lambda place: -spans[place][0] * gains.get(place, 0.0 if gains else 1.0))
        return [
            Cut(node, plus, None if minus < 0 else minus, spans[node, plus, minus][1])
            for node, plus, minus in order[:count]
        ]


class _Batch:
    """Some cells, bounded together: row s of everything is cell s."""

    def __init__(self, leaves: ProductLeaves, bounds: LinearBounds, cells: Sequence[Cell], problem: Tensor) -> None:
        self.leaves, self.cells = leaves, cells
        self.rows, self.offsets = leaves.rows[problem], leaves.offsets[problem]
        bounds.prepare(leaves.last)
        self.second = SecondOrderBounds.of(bounds)
        S, C = len(cells), max(len(cell.path) for cell in cells)
        self.on_cuts, self.sign, self.threshold = (self.offsets.new_zeros(S, C) for _ in range(3))
        self.unit = self.offsets.new_zeros(S)  # of the multiplier of the last cut
        places: dict[int, list[tuple[int, int, int, int]]] = {}
        for s, cell in enumerate(cells):
            for c, cut in enumerate(cell.path):
                self.sign[s, c], self.threshold[s, c] = (1.0 if cut.below else -1.0), cut.threshold
                places.setdefault(cut.node, []).append((s, c, cut.plus, -1 if cut.minus is None else cut.minus))
            if cell.path and cell.warm is not None:
                last = cell.path[-1]
                span = cell.warm.open.get((last.node, last.plus, -1 if last.minus is None else last.minus))
                self.on_cuts[s, : len(cell.path) - 1] = cell.warm.on_cuts
                self.unit[s] = cell.warm.missed / span[0] if span is not None else 0.0
        self.last = torch.tensor([max(len(cell.path) - 1, 0) for cell in cells])
        self.places = {node: torch.tensor(found).T for node, found in places.items()}
        self.value = self.offsets.new_full((S,), -math.inf)
        self.d = self.offsets.new_full((S, self.second.forms.noise_count), math.nan)
        region = self.second.bounds.region
        self.x = region.lower + (region.upper - region.lower) / 2

    def solve(self, grid: Sequence[float]) -> None:
        """The best bounds over a few multipliers of the last cuts; those before keep theirs."""
        if not self.places:
            self._try(self.on_cuts, FINAL, True)
            return
        start, steps = self.on_cuts.clone(), STEPS
        for share in grid:
            self._try(start.scatter(1, self.last[:, None], (share * self.unit)[:, None]), steps)
            steps = AGAIN
        if len(grid) <= 3:
            return
        for share in NEARBY:
            own = self.on_cuts.gather(1, self.last[:, None])
            self._try(self.on_cuts.scatter(1, self.last[:, None], share * own), steps)
        self._try(self.on_cuts, FINAL, True)

    def _try(self, on_cuts: Tensor, steps: int, final: bool = False) -> None:
        """Bounds with some multipliers, kept where they are the best so far."""
        for part in pieces((~(self.value > 0)).nonzero()[:, 0], 64):
            value, d, x = self._lower(part, on_cuts[part], steps, None if final else self.d[part])
            better = value > self.value[part]
            self.value[part] = torch.where(better, value, self.value[part])
            self.on_cuts[part] = torch.where(better[:, None], on_cuts[part], self.on_cuts[part])
            self.d[part] = torch.where(better[:, None], d, self.d[part])
            where = better.reshape(-1, *[1] * (x.ndim - 1))
            self.x[part] = torch.where(where, x, self.x[part])

    def _lower(self, part: Tensor, on_cuts: Tensor, steps: int, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Lower bounds ``[P]`` on the margins of some cells, their multipliers, and inputs where they are small."""
        second, graph = self.second, self.leaves.graph
        bounds = second.bounds.take(part)
        pending = {self.leaves.last: self.rows[part][None]}
        constant = -(on_cuts * self.sign[part] * self.threshold[part]).sum(1)
        lost = (on_cuts * self.threshold[part]).abs().sum(1)
        place = torch.full((len(self.cells),), -1, dtype=torch.long)
        place[part] = positions(part)
        for node, table in self.places.items():
            s, c, plus, minus = table[:, place[table[0]] >= 0]
            s = place[s]
            shape = graph.shape_of(node)
            weights, two = on_cuts[s, c] * self.sign[part][s, c], minus >= 0
            added = constant.new_zeros(len(part), math.prod(shape)).index_put((s, plus), weights, accumulate=True)
            added = added.index_put((s[two], minus[two]), -weights[two], accumulate=True)
            pending[node] = added.reshape(1, len(part), *shape)
            if bounds.outward:
                size = bounds.sizes(node).flatten(1)
                size = size[s, plus] + torch.where(two, size[s, minus.clamp(min=0)], 0.0)
                lost = lost.index_put((s,), weights.abs() * size, accumulate=True)
        # Multipliers of one entry are added up, and all products with thresholds.
        charge = bounds.share(on_cuts.shape[1] + 1) * lost
        quadratic = second.quadratic(self.rows[part], part, start=Claim(pending, constant[None], charge[None]))
        target = self.offsets[part]
        # Cells are compared by their bounds: how low one is matters where no bound can prove it, too.
        pursuit = Pursuit(steps, target, start, hopeless=True)
        value, d = solve_quadratic(quadratic, second.forms.noise, pursuit)
        value = value - target
        if bounds.outward:  # the difference may be rounded up
            down = torch.nextafter(value, torch.full_like(value, -math.inf))
            value = torch.where(target == 0, value, down)
        centre, radius = centre_and_radius(bounds.region)
        noise = quadratic.corner()[:, : second.forms.noise.inputs].reshape(centre.shape)
        return value, d, bounds.region.project(centre + radius * noise)


def _ordered(lower: Tensor, upper: Tensor) -> Interval:
    return torch.minimum(lower, upper), torch.maximum(lower, upper)
