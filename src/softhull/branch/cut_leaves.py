"""Cells of a question about margins: one walk with cuts inside the network, the bounds of the root shared by all.

What is known of the nodes is proved once, for the whole region. A cell differs from it by the intervals of the entries
that are relaxed, by where their lines lie, and by a multiplier for every cut. For any multiplier ``beta >= 0`` and all
inputs that keep the cut ``g <= t``

    margin  >=  margin + beta (g - t),

so that a cut is a claim with more coefficients to begin with, and the cells of an instance are rows of one walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from ..graph.operator import Elementwise, Lines
from ..graph.rounding import largest
from ..propagate.crown import LinearBounds, LinearWalk
from ..propagate.free import Free
from ..propagate.knowledge import brought
from ..propagate.rules import charged
from ..propagate.structure import pieces, positions
from ..propagate.walk import Claim, Step
from .cuts import Cut
from .loop import Cell, Solved
from .losses import entry_cut
from .rectifiers import Rectifiers
from .skeleton import Functions, Relaxed, Skeleton, together

# Gradient steps of a root, of a cell, and of one that is only tried; and how far they go.
ROOT, STEPS, TRIED = 30, 10, 2
# Steps of a cell that nothing can be cut of any more: its multipliers are all that is left to gain; and how many times
# over, as long as they gain this share of what is missing.
LAST, OVER, GAINED = 150, 4, 0.1
RATE = 0.15
# Cells keep so many candidates for their cut; those that are deeper than this one: the account is right so often that
# trying others pays only where all that follows depends on it.
CANDIDATES, DEEP = 8, 6
# Bytes of walks that are kept for differentiation at once: more cells together gain nothing.
TOGETHER = 1 << 26
# Functions between relaxed entries may take this many times what one coefficient tensor may.
SHORT = 8
# Gradient steps for the interval of one relaxed entry, by walks or by functions, and how many entries of an instance
# get them, at most.
SHARPENED, BY_FUNCTIONS, ENTRIES = 10, 40, 256
# Steps are taken in this format, in which what is larger than this share of the outputs is surely positive.
FORMAT, POSITIVE = torch.float32, 1e-5


@dataclass(frozen=True)
class Warm:
    """What the children of a cell start from: intervals and lines of the relaxed entries, multipliers of the cuts."""

    lower: Tensor  # [E]
    upper: Tensor
    lines: Tensor  # [2, E]: where in their range the lines are
    on_cuts: Tensor  # [C]

    @property
    def size(self) -> int:
        """The bytes it takes, roughly."""
        return 8 * (4 * len(self.lower) + len(self.on_cuts))


class CutLeaves:
    """Problem p: ``<rows[p], output> - offsets[p]`` over instance ``instance[p]`` of ``bounds``.

    ``sharpen``: what goes into relaxed entries is bounded again first, by gradient steps on the lines before it.
    """

    together = 1

    def __init__(
        self, bounds: LinearBounds, instance: Tensor, rows: Tensor, offsets: Tensor, sharpen: bool = False
    ) -> None:
        self.instance = instance.tolist()
        self.rows, self.offsets = rows, offsets
        self.parts = {i: _Root(bounds.take(torch.tensor([i], device=instance.device))) for i in set(self.instance)}
        # How much of the loss of every root is that of entries that can be cut: the share, and the loss itself.
        self.shares: dict[int, float] = {}
        self.lost: dict[int, float] = {}
        self.sharpen = sharpen
        self.starts: dict[int, Functions] = {}  # of every problem, where the skeleton of its instance is known

    @property
    def short(self) -> bool:
        """Whether cells are bounded by functions between what can be cut, not by walks through the network."""
        return all(root.skeleton is not None for root in self.parts.values())

    def roots(self) -> list[Solved]:
        """The whole regions, without cuts."""
        if self.sharpen:
            for i, root in self.parts.items():
                root.shorten()
                root.sharpen()
                if root.skeleton is not None:
                    mine = [p for p, owner in enumerate(self.instance) if owner == i]
                    found = root.skeleton.below(root.last, self.rows[mine])
                    self.starts |= {p: found.take(torch.tensor([k])) for k, p in enumerate(mine)}
        by_lines = self._bounded([Cell(p, ()) for p in range(len(self.instance))], ROOT)
        return [self._together(p, each) for p, each in enumerate(by_lines)]

    def quick(self, cells: Sequence[Cell]) -> list[float]:
        """Bounds of candidate cells after few steps, to choose a cut by."""
        return [found.bound for found in self._bounded(cells, TRIED, explain=False)]

    def solve(self, cells: Sequence[Cell]) -> list[Solved]:
        """Bounds of cells, with the cuts to try next and the state their children start from."""
        return self._bounded(cells, STEPS)

    def slopes(self, problem: int, warm: Warm) -> dict[int, tuple[Tensor, Tensor]]:
        """By entrywise node the slopes of the lines below and above its entries with which a cell ended."""
        found = {}
        for index, part in self.parts[self.instance[problem]].relaxed.items():
            own = part.operator.lines(warm.lower[part.every], warm.upper[part.every], warm.lines[:, part.every])
            below, above = (base[0].clone() for base in (part.base.lower_slope, part.base.upper_slope))
            below[part.entries], above[part.entries] = own.lower_slope, own.upper_slope
            found[index] = below, above
        return found

    def _bounded(self, cells: Sequence[Cell], steps: int, explain: bool = True) -> list[Solved]:
        """Bounds of cells, those of one instance together; with ``explain`` also the cuts to try next."""
        found: dict[int, Solved] = {}
        for i, root in self.parts.items():
            mine = torch.tensor([k for k, cell in enumerate(cells) if self.instance[cell.problem] == i])
            for part in pieces(mine, root.together):
                batch = self._batch(root, [cells[k] for k in part.tolist()])
                found |= zip(part.tolist(), batch.solved(steps, explain))
                self.shares |= {cell.problem: share for cell, share in zip(batch.cells, batch.shares) if not cell.path}
                self.lost |= {cell.problem: lost for cell, lost in zip(batch.cells, batch.lost) if not cell.path}
                last = [k for k in part.tolist() if explain and not found[k].cuts and found[k].bound <= 0]
                for _ in range(OVER):
                    if not last:
                        break
                    batch = self._batch(root, [replace(cells[k], warm=found[k].warm) for k in last])
                    better = {k: now for k, now in zip(last, batch.solved(LAST, explain)) if now.bound > found[k].bound}
                    last = [
                        k
                        for k, now in better.items()
                        if not now.cuts and now.bound <= 0 and now.bound - found[k].bound > -GAINED * now.bound
                    ]
                    found |= better
        return [found[k] for k in range(len(cells))]

    def _together(self, problem: int, found: Solved) -> Solved:
        """The same root with all rectifiers in one quadratic; cells are cut faster than such quadratics are found."""
        skeleton, warm = self.parts[self.instance[problem]].skeleton, found.warm
        if skeleton is None or found.bound > 0:
            return found
        rectifiers = Rectifiers.of(skeleton, warm.lower, warm.upper)
        if rectifiers is None:
            return found
        bound = rectifiers.lower(self.starts[problem], self.offsets[problem], warm.lines[0])
        return replace(found, bound=max(bound, found.bound))

    def _batch(self, root: _Root, cells: Sequence[Cell]) -> _Batch:
        problems = torch.tensor([cell.problem for cell in cells])
        start = None
        if root.skeleton is not None:
            start = together([self.starts[cell.problem] for cell in cells])
        return _Batch(root, cells, self.rows[problems], self.offsets[problems], start=start)


class _Root:
    """One instance: what is known of it, and which of its entries are relaxed."""

    def __init__(self, bounds: LinearBounds) -> None:
        self.bounds, self.graph = bounds, bounds.graph
        self.last = len(self.graph.nodes) - 1
        bounds.prepare(self.last)
        self.relaxed: dict[int, Relaxed] = {}
        start = bounds.region.lower.new_zeros(0)
        lowers, uppers, lines, first = [start], [start], [start.expand(2, 0)], 0
        for index, node in enumerate(self.graph.nodes):
            if not isinstance(node.operator, Elementwise):
                continue
            low, high = (end.flatten(1) for end in bounds.interval(node.inputs[0], node.operator))
            plain = node.operator.lines(low, high)
            apart = (plain.lower_slope != plain.upper_slope) | (plain.lower_offset != plain.upper_offset)
            entries = apart[0].nonzero()[:, 0]
            every = slice(first, first + len(entries))
            base = charged(bounds, index, plain, torch.arange(low.shape[1], device=low.device))
            self.relaxed[index] = Relaxed(node.inputs[0], node.operator, entries, every, base)
            first += len(entries)
            lowers.append(low[0, entries])
            uppers.append(high[0, entries])
            lines.append(node.operator.start(low[0, entries], high[0, entries]))
        self.warm = Warm(torch.cat(lowers), torch.cat(uppers), torch.cat(lines, 1), start)
        volume = bounds.structure.volume(self.last)
        self.together = max(1, min(TOGETHER, 32 * bounds.memory) // (16 * volume))
        # Facts that are shared by all walks must be proved: by this one. What searches takes them over.
        bounds.lower(self.last, bounds.region.lower.new_ones(1, 1, *self.graph.output_shape))
        # By node and entry that are cut: which of the relaxed entries that narrows.
        self.narrowed: dict[tuple[int, int], list[int]] = {}
        for part in self.relaxed.values():
            for k, entry in enumerate(part.entries.tolist()):
                self.narrowed.setdefault((part.before, entry), []).append(part.every.start + k)
        self.skeleton: Skeleton | None = None

    def shorten(self) -> None:
        """Find the functions between relaxed entries, where they are not too many."""
        count, inputs = len(self.warm.lower), math.prod(self.graph.input_shape)
        finite = all(
            bool(self.sizes(i).isfinite().all())
            for i in (-1, *self.relaxed, *(p.before for p in self.relaxed.values()))
        )
        if count and finite and 2 * count * (count + inputs) * 8 <= SHORT * self.bounds.memory:
            self.skeleton = Skeleton(self.bounds.jointly(), self.relaxed)
            self.together = max(1, min(TOGETHER, 32 * self.bounds.memory) // (16 * (inputs + 16 * count)))

    @cached_property
    def quick(self) -> _Root:
        """The same to search with: rounding is not charged, and numbers are short. Only the last walk is a proof."""
        found = copy(self)
        found.bounds = self.bounds.to_search(FORMAT)
        found.graph = found.bounds.graph
        found.relaxed = {i: replace(part, base=brought(part.base, FORMAT)) for i, part in self.relaxed.items()}
        found.skeleton = self.skeleton and self.skeleton.to_search(FORMAT, found.bounds)
        return found

    def sharpen(self) -> None:
        """Better intervals of relaxed entries behind others, first to last, the widest of them."""
        before: set[int] = set()
        for part in self.relaxed.values():
            lower, upper = self.warm.lower[part.every], self.warm.upper[part.every]
            chosen = (upper - lower).topk(min(len(lower), ENTRIES)).indices
            if len(chosen) and before and part.before >= 0:
                low = self._ends(part, chosen, 1.0)
                high = -self._ends(part, chosen, -1.0)
                lower[chosen], upper[chosen] = torch.maximum(lower[chosen], low), torch.minimum(upper[chosen], high)
                crossed = lower > upper  # by rounding, where it is nearly a point
                lower[crossed], upper[crossed] = upper[crossed], lower[crossed]
            if len(lower):
                before.add(part.before)

    def _ends(self, part: Relaxed, chosen: Tensor, sign: float) -> Tensor:
        """Lower bounds on some of the entries that are relaxed at a node, or on their negatives."""
        found = []
        for some_of in pieces(chosen, self.together):
            some = part.entries[some_of]
            self.bounds.check_time()
            rows = self.warm.lower.new_zeros(len(some), math.prod(self.graph.shape_of(part.before)))
            rows.scatter_(1, some[:, None], sign)
            rows = rows.reshape(-1, *self.graph.shape_of(part.before))
            cells = [Cell(0, ())] * len(some)
            start = None
            if self.skeleton is not None:
                own = next(layer for layer in self.skeleton.layers.values() if layer.every == part.every).functions
                start = own.take(some_of + (0 if sign > 0 else len(part.entries)))
            batch = _Batch(self, cells, rows, rows.new_zeros(len(some)), part.before, start)
            steps = SHARPENED if start is None else BY_FUNCTIONS
            low, _ = batch.lower_bounds(*batch.ascended(steps, rows.new_full((len(some),), math.inf)))
            found.append(torch.where(low.isnan(), -math.inf, low))
        return torch.cat(found)

    def sizes(self, node: int) -> Tensor:
        """The largest absolute value of every entry of a node, flat."""
        found = largest(self.bounds.region.lower, self.bounds.region.upper) if node < 0 else self.bounds.sizes(node)
        return found.flatten()


# By activation: the coefficients [S, n] that its relaxed entries were met with, and their lines.
Met = dict[int, tuple[Tensor, Lines]]


class _Batch:
    """Some cells of one instance: row s of a walk is cell s; ``rows`` are about a node, by default the output."""

    def __init__(
        self,
        root: _Root,
        cells: Sequence[Cell],
        rows: Tensor,
        offsets: Tensor,
        node: int | None = None,
        start: Functions | None = None,
    ) -> None:
        self.root, self.cells, self.rows, self.offsets, self.start = root, cells, rows, offsets, start
        self.node = root.last if node is None else node
        warms: list[Warm] = [root.warm if cell.warm is None else cell.warm for cell in cells]
        self.lower = torch.stack([warm.lower for warm in warms])  # [S, E]
        self.upper = torch.stack([warm.upper for warm in warms])
        self.lines = torch.stack([warm.lines for warm in warms], 1)  # [2, S, E]
        S, C = len(cells), max(len(cell.path) for cell in cells)
        self.on_cuts, self.sign, self.threshold = (rows.new_zeros(S, C) for _ in range(3))
        for s, warm in enumerate(warms):
            self.on_cuts[s, : len(warm.on_cuts)] = warm.on_cuts
            earlier: dict[Cut, int] = {}  # a cut that a later one makes needless hands its multiplier on
            for c, cut in enumerate(cells[s].path):
                same = replace(cut, threshold=0.0)
                if same in earlier:
                    self.on_cuts[s, c] += self.on_cuts[s, earlier[same]]
                    self.on_cuts[s, earlier[same]] = 0.0
                earlier[same] = c
        # By node: row, cut, and the two entries of every cut of it (-1: none). By row and cut: the relaxed entry.
        self.places: dict[int, Tensor] = {}
        self.entries = torch.zeros_like(self.sign, dtype=torch.long)
        self.shares, self.lost = [0.0] * S, [0.0] * S  # of the loss, by entries that can be cut, and how much
        self._place()

    def _place(self) -> None:
        """The cuts of all cells by the node that they cut, and the intervals that they narrow."""
        table, narrowed, every = [], [], self.lower.shape[1]
        for s, cell in enumerate(self.cells):
            for c, cut in enumerate(cell.path):
                own = self.root.narrowed.get((cut.node, cut.plus), ()) if cut.minus is None else ()
                minus = -1 if cut.minus is None else cut.minus
                table.append((s, c, cut.node, cut.plus, minus, own[0] if own else 0, 1 if cut.below else -1))
                narrowed += [(s * every + e, cut.threshold, cut.below) for e in own]
        if table:
            s, c, node, plus, minus, entry, sign = torch.tensor(table, device=self.rows.device).T
            self.sign[s, c], self.entries[s, c] = sign.to(self.sign), entry
            self.threshold[s, c] = self.rows.new_tensor([cut.threshold for cell in self.cells for cut in cell.path])
            for number in node.unique().tolist():
                self.places[number] = torch.stack((s, c, plus, minus))[:, node == number]
        for ends, side, kind in ((self.upper, True, "amin"), (self.lower, False, "amax")):
            mine = [(place, threshold) for place, threshold, below in narrowed if below is side]
            if mine:
                places, thresholds = zip(*mine)
                at = torch.tensor(places, device=ends.device)
                ends.view(-1).scatter_reduce_(0, at, ends.new_tensor(thresholds), kind)
        self.empty = (self.lower > self.upper).any(1)
        self.lower, self.upper = torch.minimum(self.lower, self.upper), torch.maximum(self.lower, self.upper)

    def solved(self, steps: int, explain: bool) -> list[Solved]:
        """Bounds of the cells of one instance; with ``explain`` also the cuts to try next."""
        sizes = self.rows.flatten(1).abs() @ self.root.sizes(self.node) + self.offsets.abs()
        lines, on_cuts = self.ascended(steps, POSITIVE * sizes)
        met: Met = {}
        bound, claim = self.lower_bounds(lines, on_cuts, met)
        value = torch.where(self.empty, math.inf, torch.where(bound.isnan(), -math.inf, bound)).tolist()
        if not explain:
            return [Solved(low) for low in value]
        nothing = self.rows.new_zeros(len(self.cells), 1, *self.root.graph.input_shape)
        x = self.root.bounds.region.attained(claim.pending.get(-1, nothing))
        cuts = self._candidates(met, x, bound)
        found = []
        for s, (cell, low) in enumerate(zip(self.cells, value)):
            warm = Warm(self.lower[s], self.upper[s], lines[:, s].clone(), on_cuts[s, : len(cell.path)].clone())
            found.append(Solved(low, cuts[s], warm, x[s], warm.size))
        return found

    def lower_bounds(self, lines: Tensor, on_cuts: Tensor, met: Met | None = None) -> tuple[Tensor, Claim]:
        """Lower bounds ``[S]`` with some lines and multipliers, and the claim at the input that they come from.

        ``met`` is told what the relaxed entries were met with.
        """
        met = {} if met is None else met
        skeleton = self.root.skeleton
        if self.start is None or skeleton is None:
            return self._lower(_CutWalk(self.root.bounds, self, lines, met), on_cuts)
        parts = self.root.relaxed.values()
        found = [
            part.operator.lines(self.lower[:, part.every], self.upper[:, part.every], lines[:, :, part.every])
            for part in parts
        ]
        every = Lines(*(torch.cat([getattr(own, f.name) for own in found], 1) for f in fields(Lines)))
        weights = on_cuts * self.sign
        added = torch.zeros_like(self.lower).scatter_add(1, self.entries, weights)
        claim, coefficients = skeleton.back(self.start, every, added)
        claim.constant = claim.constant - (weights * self.threshold).sum(1, keepdim=True)
        bounds = self.root.bounds
        if bounds.outward:  # multipliers of one entry are added up, and all products with thresholds
            lost = weights.abs() * (self.threshold.abs() + skeleton.sizes[self.entries])
            claim.charge = claim.charge + bounds.share(on_cuts.shape[1] + 1) * lost.sum(1, keepdim=True)
        for (index, part), own in zip(self.root.relaxed.items(), found):
            met[index] = coefficients[:, part.every].detach(), own
        return self._less_offsets(claim), claim

    def ascended(self, steps: int, enough: Tensor) -> tuple[Tensor, Tensor]:
        """The best lines and multipliers after some gradient steps on both.

        Rows whose bounds are above ``enough [S]`` take none, and the steps end when all are.
        """
        quick = self._quick()
        value, _ = quick.lower_bounds(quick.lines, quick.on_cuts)
        left = (~(value > enough) & ~self.empty).nonzero()[:, 0]
        lines, on_cuts = self.lines, self.on_cuts
        if steps and len(left):
            found = quick._take(left)._climbed(steps, enough[left])
            lines = lines.index_copy(1, left, found[0].to(lines.dtype))
            on_cuts = on_cuts.index_copy(0, left, found[1].to(on_cuts.dtype))
        return lines, on_cuts

    def _quick(self) -> _Batch:
        """The same to search with."""
        found = copy(self)
        found.root = self.root.quick
        for name in ("rows", "offsets", "lower", "upper", "lines", "on_cuts", "sign", "threshold"):
            setattr(found, name, getattr(self, name).to(FORMAT))
        found.start = None if self.start is None else self.start.to(FORMAT)
        return found

    def _take(self, some: Tensor) -> _Batch:
        """Some of the cells, in order."""
        if len(some) == len(self.cells):
            return self
        found = copy(self)
        found.cells = [self.cells[s] for s in some.tolist()]
        for name in ("rows", "offsets", "lower", "upper", "on_cuts", "sign", "threshold", "entries", "empty"):
            setattr(found, name, getattr(self, name)[some])
        found.start = None if self.start is None else self.start.take(some)
        found.lines = self.lines[:, some]
        place = torch.full((len(self.cells),), -1, dtype=torch.long, device=some.device)
        place[some] = positions(some)
        tables = {node: table[:, place[table[0]] >= 0] for node, table in self.places.items()}
        found.places = {node: torch.cat((place[table[:1]], table[1:])) for node, table in tables.items()}
        return found

    def _climbed(self, steps: int, enough: Tensor) -> tuple[Tensor, Tensor]:
        """Lines and multipliers after gradient steps, the best of all that were tried."""
        free, bounds = Free(), self.root.bounds
        best = torch.full_like(self.offsets, -math.inf)
        best_lines, best_cuts = self.lines, self.on_cuts
        for step in range(steps + 1):
            bounds.check_time()
            with torch.set_grad_enabled(step < steps):
                lines = free(-1, "lines", self.lines)
                on_cuts = free(-1, "cuts", self.on_cuts, 0, high=math.inf)
                value, _ = self.lower_bounds(lines, on_cuts)
                objective = torch.where(value.isfinite(), value, 0.0).sum()
            better = (value.detach() > best)[:, None]
            best = torch.maximum(best, value.detach())
            best_lines = torch.where(better, lines.detach(), best_lines)
            best_cuts = torch.where(better, on_cuts.detach(), best_cuts)
            if step == steps or bool((best > enough).all()):
                break
            free.ascend(objective, RATE * (1 - step / steps))
        return best_lines, best_cuts

    def _lower(self, walk: _CutWalk, on_cuts: Tensor) -> tuple[Tensor, Claim]:
        """Lower bounds ``[S]`` on the margins in the cells, and the claim at the input that they come from."""
        bounds, root, S = walk.bounds, self.root, len(self.cells)
        pending = {self.node: self.rows[:, None]}
        constant = -(on_cuts * self.sign * self.threshold).sum(1, keepdim=True)
        lost = (on_cuts * self.threshold).detach().abs().sum(1)
        for node, (s, c, plus, minus) in self.places.items():
            shape = root.graph.shape_of(node)
            weights = on_cuts[s, c] * self.sign[s, c]
            two = minus >= 0
            added = constant.new_zeros(S, math.prod(shape)).index_put((s, plus), weights, accumulate=True)
            added = added.index_put((s[two], minus[two]), -weights[two], accumulate=True).reshape(S, 1, *shape)
            pending[node] = pending[node] + added if node in pending else added
            if bounds.outward:
                size = root.sizes(node)
                size = size[plus] + torch.where(two, size[minus.clamp(min=0)], 0.0)
                lost = lost.index_put((s,), weights.detach().abs() * size, accumulate=True)
        # Multipliers of one entry are added up, and all products with thresholds.
        charge = bounds.share(on_cuts.shape[1] + 1) * lost[:, None]
        claim = walk.back(Claim(pending, constant, charge))
        return self._less_offsets(claim), claim

    def _less_offsets(self, claim: Claim) -> Tensor:
        """The bound that a claim at the input gives on what is asked for."""
        bounds = self.root.bounds
        apart = bounds.input_minimum(claim)[:, 0] - self.offsets
        if bounds.outward:  # the difference may be rounded up
            apart = torch.where(self.offsets == 0, apart, torch.nextafter(apart, torch.full_like(apart, -math.inf)))
        return apart

    # Where to cut

    def _seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What goes into the relaxed entries ``[S, E]`` at some inputs, and the margin there; for cells nearly so."""
        if self.start is not None and self.root.skeleton is not None and all(cell.path for cell in self.cells):
            quick, start = self.root.quick, self.start.to(FORMAT)
            assert quick.skeleton is not None
            inside, given = quick.skeleton.seen(x.to(FORMAT))
            margin = (start.on_input * x.flatten(1)).sum(1) + (start.on_values * given).sum(1) + start.constant
            return inside.to(x), margin.to(x) - self.offsets
        values, inside = list(self.root.graph.values(x)), torch.zeros_like(self.lower)
        for part in self.root.relaxed.values():
            inside[:, part.every] = (x if part.before < 0 else values[part.before]).flatten(1)[:, part.entries]
        return inside, (values[-1].flatten(1) * self.rows.flatten(1)).sum(1) - self.offsets

    def _candidates(self, met: Met, x: Tensor, bound: Tensor) -> list[list[Cut]]:
        """The cuts of the entries that lose most, by the account of losses where the bound is attained."""
        inside, margin = self._seen(x)
        scores, nodes, entries, thresholds = [], [], [], []
        for index, (A, lines) in met.items():
            part = self.root.relaxed[index]
            ends = self.lower[:, part.every], self.upper[:, part.every]
            # Where the point is not in the cell, multipliers are what is missing: no cut of the entry helps that.
            z = torch.minimum(torch.maximum(inside[:, part.every], ends[0]), ends[1])
            below = lines.lower_slope * z + lines.lower_offset
            above = lines.upper_slope * z + lines.upper_offset
            loss = A * (part.operator.value(z) - torch.where(A >= 0, below, above))
            score, threshold = entry_cut(part.operator, ends, z, loss)
            scores.append(score)
            thresholds.append(threshold)
            nodes += [part.before] * len(part.entries)
            entries += part.entries.tolist()
        if not nodes:
            return [[] for _ in self.cells]
        every = torch.cat(scores, 1)
        self.shares, self.lost = (every.sum(1) / (margin - bound)).tolist(), every.sum(1).tolist()
        best, where = every.topk(min(CANDIDATES, len(nodes)), 1)
        at = torch.cat(thresholds, 1).gather(1, where)
        found = []
        for cell, *rows in zip(self.cells, best, where, at):
            kept = CANDIDATES if len(cell.path) < DEEP else 1
            places = zip(*(row[:kept].tolist() for row in rows))
            found.append([Cut(nodes[place], entries[place], None, t) for score, place, t in places if score > 0])
        return found


class _CutWalk(LinearWalk):
    """Entrywise nodes by the lines of the cells, all others by the relaxation of the root."""

    def __init__(self, bounds: LinearBounds, batch: _Batch, lines: Tensor, met: Met) -> None:
        super().__init__(bounds)
        self.batch, self.lines, self.met = batch, lines, met

    def step(self, index: int, A: Tensor) -> Step:
        batch = self.batch
        part = batch.root.relaxed.get(index)
        if part is None:
            return super().step(index, A)
        ends = batch.lower[:, part.every], batch.upper[:, part.every]
        own = part.operator.lines(*ends, self.lines[:, :, part.every])
        lines = charged(self.bounds, index, own, part.entries)
        self.met[index] = A.detach().flatten(1)[:, part.entries], lines
        rising = A.flatten(1) >= 0  # [S, n]
        some, base = rising[:, part.entries], part.base
        slope = torch.where(rising, base.lower_slope, base.upper_slope)
        offset = torch.where(rising, base.lower_offset, base.upper_offset)
        slope = slope.index_copy(1, part.entries, torch.where(some, lines.lower_slope, lines.upper_slope))
        offset = offset.index_copy(1, part.entries, torch.where(some, lines.lower_offset, lines.upper_offset))
        backs = ((part.before, A * slope.reshape(A.shape)),)
        return backs, (A.flatten(1) * offset).sum(1, keepdim=True)
