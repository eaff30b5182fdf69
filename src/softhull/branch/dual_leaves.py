"""Cells of a question about scores: the Lagrangian dual of stacked feedforward networks, with cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..graph.operator import Interval
from ..graph.rounding import ulps
from ..regions import Region
from ..solve.cuts import Cuts
from ..solve.dual import Descent, Dual
from ..solve.lagrangian import Lagrangian
from ..solve.neurons import NeuronBounds, Walks, neuron_bounds, successive
from ..solve.relaxation import Relaxation, StackRelaxation, activation_lines
from ..solve.softmax_boxes import SoftmaxBoxes
from .cuts import Cut
from .halfspaces import Forms, largest_values
from .loop import Cell, Solved
from .losses import NARROW, between, entry_cut

# Coefficients [P, K] and offsets [P] that bound the objective of some problems from above, given ranges [P, K] of the
# mean probabilities, and probabilities [P, K] to touch it at.
Plane = Callable[[Tensor, Interval, Tensor], tuple[Tensor, Tensor]]

ROOT = Dual(steps=100)
# Gradient steps of a cell, and of one that is only tried.
STEPS, TRIED = 10, 3
RATE, DECAY = 0.03, 0.1
# Rivals of the class that loses most, whose differences to it cuts elsewhere may narrow.
RIVALS = 5
# Inputs are cut where there are at most so many.
INPUTS = 32
# Cells keep so many candidates for their cut.
CANDIDATES = 8


@dataclass(frozen=True)
class Warm:
    """What the children of a cell start from."""

    row: Tensor  # bounds of all neurons, multipliers, tangent points, probabilities: one vector
    on_cuts: Tensor  # [C]
    slopes: tuple[Tensor, ...]  # the half-spaces of the cuts, [n] each
    rooms: Tensor  # [2, C]: their constants and the sizes of these
    weights: Tensor  # [R, C]: of the half-spaces in the rows that are bounded

    @property
    def size(self) -> int:
        """The bytes it takes, roughly."""
        last = self.slopes[-1].numel() if self.slopes else 0
        return 8 * (self.row.numel() + 3 * self.on_cuts.numel() + self.weights.numel() + last)


class DualLeaves:
    """Problem p asks for the maximum of ``plane`` over the region ``instance[p]`` of a relaxation; bounds are negated.

    ``start [P, K]`` are probabilities to touch the objective at first.
    """

    together = 1

    def __init__(self, relaxation: Relaxation, instance: Tensor, plane: Plane, start: Tensor) -> None:
        self.root, self.instance, self.plane, self.start = relaxation, instance, plane, start
        self.nodes = [(s, i) for s, part in enumerate(relaxation.stacks) for i in range(len(part.stack.layers))]
        self.number = {place: number for number, place in enumerate(self.nodes)}
        self.shapes = [[*_tensors(part.bounds)] for part in relaxation.stacks]
        self.inputs = relaxation.region.lower[0].numel()
        # Half-spaces of one network fit another where both see the input in the same coordinates, to the last digit.
        costs = {successive(part.stack, self.inputs) for part in relaxation.stacks}
        self.shared = relaxation.region.centre is None and len(costs) == 1
        self.classes: Tensor | None = None  # [P, 1 + RIVALS]: the class that loses most, then its rivals
        self._roots: list[Warm] = []

    # The three things the loop asks for

    def roots(self) -> list[Solved]:
        """The whole regions, bounded by the multipliers alone; every cell starts from what is found here."""
        problems = torch.arange(len(self.instance))
        relaxation = self.root.take(self.instance)
        coefficients, offset = self.plane(problems, relaxation.probabilities(), self.start)
        whole = Lagrangian(relaxation, coefficients)
        run = Descent(ROOT, whole, whole.project(whole.start()), whole.midpoints())
        run.steps(ROOT.learning_rate, None)
        self.classes = self._classes(whole, run, relaxation)
        nothing = [Cell(p, ()) for p in range(len(problems))]
        rows = sum(2 * (self.classes.shape[1] - 1) * len(part.stack.members) for part in self.root.stacks)
        empty = _Path.empty(len(problems), self.inputs, rows, coefficients)
        found = self._finish(nothing, whole, run, offset, relaxation, empty, torch.zeros_like(offset, dtype=torch.bool))
        self._roots = [solved.warm for solved in found]
        return found

    def quick(self, cells: Sequence[Cell]) -> list[float]:
        """Bounds of candidate cells after a few steps, to choose a cut by."""
        problem, relaxation, state, empty, _ = self._start(cells, False)
        _, run, offset = self._descend(problem, relaxation, state, TRIED)
        return torch.where(empty, torch.inf, -(run.best + offset)).tolist()

    def solve(self, cells: Sequence[Cell]) -> list[Solved]:
        """Bounds of cells, with the cuts to try next and the state their children start from."""
        problem, relaxation, state, empty, path = self._start(cells, True)
        whole, run, offset = self._descend(problem, relaxation, state, STEPS)
        return self._finish(cells, whole, run, offset, relaxation, path, empty)

    # What they are made of

    def _start(self, cells: Sequence[Cell], sharpen: bool) -> tuple[Tensor, Relaxation, _State, Tensor, _Path]:
        """Relaxations and starting points of cells, from what their parents left and the cuts that are new."""
        problem = torch.tensor([cell.problem for cell in cells])
        warms: list[Warm] = [self._roots[cell.problem] if cell.warm is None else cell.warm for cell in cells]
        bounds, flat, points, at = self._unpack(torch.stack([warm.row for warm in warms]))
        cuts = self._cuts(cells, flat)
        # New to the warm start: the last cut, or all of them where it was forgotten.
        fresh = [cell.path[len(warm.on_cuts) :] for cell, warm in zip(cells, warms)]
        region = self._region(problem, cells)
        bounds, empty = self._intersect(bounds, fresh)
        bounds = self._refresh(bounds, region, fresh)
        moved = [any(cut.node < 0 for cut in new) for new in fresh]
        path = _Path.of(warms, cuts.count, self.inputs, moved)
        if sharpen and self.shared:
            bounds, none, path = self._sharpen(problem, region, bounds, cells, cuts, path)
            empty = empty | none
        parts = tuple(
            StackRelaxation(
                part.stack,
                known,
                tuple(
                    activation_lines(layer.activation, interval)
                    for layer, interval in zip(part.stack.layers, known.intervals)
                    if layer.activation is not None
                ),
                SoftmaxBoxes.of(_consistent(known), self.root.softmax, self.root.outward),
            )
            for part, known in zip(self.root.stacks, bounds)
        )
        return (
            problem,
            replace(self.root, region=region, stacks=parts),
            _State(flat, points, at, cuts, path),
            empty,
            path,
        )

    def _descend(
        self, problem: Tensor, relaxation: Relaxation, state: _State, steps: int
    ) -> tuple[Lagrangian, Descent, Tensor]:
        coefficients, offset = self.plane(problem, relaxation.probabilities(), state.at)
        whole = Lagrangian(relaxation, coefficients, state.cuts)
        flat = torch.cat((state.flat, state.path.on_cuts), 1)
        run = Descent(Dual(steps=steps, decay=DECAY, refresh=STEPS), whole, flat, state.points)
        run.steps(RATE, None)
        return whole, run, offset

    def _finish(
        self,
        cells: Sequence[Cell],
        whole: Lagrangian,
        run: Descent,
        offset: Tensor,
        relaxation: Relaxation,
        path: _Path,
        empty: Tensor,
    ) -> list[Solved]:
        """Safe bounds of cells, the cuts to try next, and the state to keep for their children."""
        whole.touch(run.best_points)
        bound = whole.safe_value(run.best_flat) + offset
        if self.root.outward:
            bound = torch.nextafter(bound, torch.full_like(bound, torch.inf))
        # Nothing lies in an empty cell; a number that is none proves nothing.
        bound = torch.where(bound.isnan(), torch.inf, torch.where(empty, -torch.inf, bound))
        C = whole.cuts.count
        kept = run.best_flat[:, : run.best_flat.shape[1] - C]
        rows = self._pack([part.bounds for part in relaxation.stacks], kept, run.best_points, run.probabilities)
        on_cuts = whole.of_cuts(run.best_flat)
        found = []
        candidates = self._candidates(whole, run, relaxation)
        for i, (cell, value) in enumerate(zip(cells, bound.tolist())):
            warm = path.warm(i, len(cell.path), rows[i], on_cuts[i])
            found.append(Solved(-value, candidates[i], warm, run.centre[i], warm.size))
        return found

    def _classes(self, whole: Lagrangian, run: Descent, relaxation: Relaxation) -> Tensor:
        whole.touch(run.best_points)
        losses = torch.stack([outputs.sum(1) for _, outputs in whole.losses(run.best_flat, run.centre)]).sum(0)
        own = losses.argmax(1, keepdim=True)
        most = relaxation.probabilities()[1].scatter(1, own, -1.0)
        return torch.cat((own, most.topk(min(RIVALS, most.shape[1] - 1), 1).indices), 1)

    # Where to cut

    def _candidates(self, whole: Lagrangian, run: Descent, relaxation: Relaxation) -> list[list[Cut]]:
        """The cuts of the entries that lose most, by the account of losses at the mean maximiser."""
        scores: list[Tensor] = []
        makers: list[tuple[int, Tensor, Tensor | None, Tensor]] = []  # node, plus, minus, thresholds, [B, n] each
        total = torch.zeros(len(run.best))
        for s, (part, (activations, outputs)) in enumerate(
            zip(relaxation.stacks, whole.losses(run.best_flat, run.centre))
        ):
            values = part.stack.values(run.centre)
            for i, loss in enumerate(activations):
                score, threshold = entry_cut(part.stack.layers[i].activation, part.bounds.intervals[i], values[i], loss)
                scores.append(score.flatten(1))
                plus = torch.arange(score[0].numel()).expand(len(score), -1)
                makers.append((self.number[s, i], plus, None, threshold.flatten(1)))
            score, plus, minus, threshold = _difference(part.bounds.differences, values[-1], outputs)
            scores.append(score)
            makers.append((self.number[s, len(values) - 1], plus, minus, threshold))
            total = total + sum(loss.flatten(1).sum(1) for loss in (*activations, outputs))
        if self.inputs <= INPUTS:
            scores.append(self._input_scores(whole, run, relaxation.region, total))
            lower, upper = (end.flatten(1) for end in (relaxation.region.lower, relaxation.region.upper))
            makers.append((-1, torch.arange(self.inputs).expand(len(total), -1), None, lower + (upper - lower) / 2))
        first = [0]
        for score in scores:
            first.append(first[-1] + score.shape[1])
        best, where = torch.cat(scores, 1).topk(min(CANDIDATES, first[-1]), 1)
        columns = [
            torch.cat([torch.full_like(plus, node) for node, plus, _, _ in makers], 1),
            torch.cat([plus for _, plus, _, _ in makers], 1),
            torch.cat([torch.full_like(plus, -1) if minus is None else minus for _, plus, minus, _ in makers], 1),
        ]
        thresholds = torch.cat([threshold for *_, threshold in makers], 1).gather(1, where).tolist()
        nodes, first_of, second_of = (column.gather(1, where).tolist() for column in columns)
        least = 1e-9 * (1 + total.abs())
        return [
            [
                Cut(n, p, None if m < 0 else m, t)
                for value, n, p, m, t in zip(best[i].tolist(), nodes[i], first_of[i], second_of[i], thresholds[i])
                if value > least[i]
            ]
            for i in range(len(best))
        ]

    def _input_scores(self, whole: Lagrangian, run: Descent, region: Region, total: Tensor) -> Tensor:
        """Inputs are not relaxed, but all losses shrink with them: by their shares of what the bound varies."""
        width = (region.upper - region.lower).flatten(1)
        weight = whole.at_input(run.best_flat).abs() * width + 1e-3 * width
        whole_of = weight.sum(1, keepdim=True)
        return torch.where(whole_of > 0, weight / torch.where(whole_of > 0, whole_of, 1.0), 0.0) * total[:, None]

    # Cuts and what they change

    def _cuts(self, cells: Sequence[Cell], like: Tensor) -> Cuts:
        """The cuts of all cells as tensors, filled up with cuts that say nothing."""
        C = max(len(cell.path) for cell in cells)
        none = (-1, 0, 0, -1, 0.0, 0.0)

        def row(cut: Cut) -> tuple[float, ...]:
            sign = 1.0 if cut.below else -1.0
            if cut.node < 0:  # the region itself is smaller
                return none
            minus = -1 if cut.minus is None else cut.minus
            return (*self.nodes[cut.node], cut.plus, minus, sign, sign * cut.threshold)

        rows = [[row(cut) for cut in cell.path] + [none] * (C - len(cell.path)) for cell in cells]
        table = torch.tensor(rows, dtype=like.dtype).reshape(len(cells), C, 6)
        whole = table[..., :4].long()
        return Cuts(*whole.unbind(-1), *(column.contiguous() for column in table[..., 4:].unbind(-1)))

    def _region(self, problem: Tensor, cells: Sequence[Cell]) -> Region:
        """The regions with their input cuts."""
        region = self.root.region.take(self.instance[problem])
        mine = [(i, cut) for i, cell in enumerate(cells) for cut in cell.path if cut.node < 0]
        if not mine:
            return region
        lower, upper = region.lower.clone().flatten(1), region.upper.clone().flatten(1)
        for i, cut in mine:
            end = upper if cut.below else lower
            end[i, cut.plus] = cut.threshold
        lower, upper = (end.reshape(region.lower.shape) for end in (lower, upper))
        return replace(region, lower=lower, upper=upper, inner=None)

    def _intersect(
        self, bounds: list[NeuronBounds], fresh: Sequence[Sequence[Cut]]
    ) -> tuple[list[NeuronBounds], Tensor]:
        """Intervals and differences with the new cuts; where nothing is left of one, the cell is empty."""
        empty = torch.zeros(len(fresh), dtype=torch.bool)
        found = []
        for s, known in enumerate(bounds):
            lowers = [lower.clone() for lower, _ in known.intervals]
            uppers = [upper.clone() for _, upper in known.intervals]
            low, high = known.differences[0].clone(), known.differences[1].clone()
            for i, cuts in enumerate(fresh):
                for cut in cuts:
                    if cut.node < 0 or self.nodes[cut.node][0] != s:
                        continue
                    layer = self.nodes[cut.node][1]
                    m, e = divmod(cut.plus, lowers[layer].shape[2])
                    other = 0 if cut.minus is None else cut.minus - m * low.shape[2]
                    at: tuple[int, ...] = (i, m, e) if cut.minus is None else (i, m, e, other)
                    least, most = (lowers[layer], uppers[layer]) if cut.minus is None else (low, high)
                    a, b = float(least[at]), float(most[at])
                    a, b = (a, min(b, cut.threshold)) if cut.below else (max(a, cut.threshold), b)
                    if a > b:
                        empty[i], a, b = True, min(a, b), max(a, b)
                    least[at], most[at] = a, b
                    if cut.minus is not None:
                        turned = (i, m, other, e)
                        low[turned], high[turned] = -b, -a
            found.append(NeuronBounds(tuple(zip(lowers, uppers)), (low, high), known.charges))
        return found, empty

    def _refresh(
        self, bounds: list[NeuronBounds], region: Region, fresh: Sequence[Sequence[Cut]]
    ) -> list[NeuronBounds]:
        """Bounds of all neurons again, where the region shrank."""
        some = torch.tensor([any(cut.node < 0 for cut in cuts) for cuts in fresh])
        if not bool(some.any()):
            return bounds
        rows = some.nonzero()[:, 0]
        found = []
        for part, known in zip(self.root.stacks, bounds):
            better = neuron_bounds(part.stack, region.take(rows), self.root.outward, known.take(rows))
            pieces = [old.index_copy(0, rows, new) for old, new in zip(_tensors(known), _tensors(better))]
            found.append(_bounds(pieces))
        return found

    def _sharpen(
        self,
        problem: Tensor,
        region: Region,
        bounds: list[NeuronBounds],
        cells: Sequence[Cell],
        cuts: Cuts,
        path: _Path,
    ) -> tuple[list[NeuronBounds], Tensor, _Path]:
        """Differences of logits, narrowed by the half-spaces of all cuts."""
        assert self.classes is not None
        L, outward = len(cells), self.root.outward
        walks = [Walks(part.stack, region, outward).through(known) for part, known in zip(self.root.stacks, bounds)]
        count = torch.tensor([len(cell.path) for cell in cells])
        ahead = [len(p) - k for p, k in zip((cell.path for cell in cells), map(len, path.before))]
        fresh = [torch.where(k < torch.tensor(ahead), count - torch.tensor(ahead) + k, -1) for k in range(max(ahead))]
        for which in fresh:
            path = self._half_spaces(walks, cuts, which, path)
        own, rivals = self.classes[problem][:, :1], self.classes[problem][:, 1:]
        K = self.root.classes
        unit = torch.eye(K, dtype=path.on_cuts.dtype)
        apart = unit[own] - unit[rivals]  # [L, R, K]
        C = torch.cat((apart, -apart), 1)[:, None]
        slopes, constants, sizes = [], [], []
        for walk, part in zip(walks, self.root.stacks):
            M = len(part.stack.members)
            slope, constant = walk.form(len(part.stack.layers) - 1, C.expand(L, M, -1, -1))
            slopes.append(slope.flatten(1, 2))
            constants.append(constant.flatten(1))
            sizes.append(constant.abs().flatten(1))
        forms = Forms(torch.cat(slopes, 1), torch.cat(constants, 1), torch.cat(sizes, 1))
        half_spaces = Forms(path.slopes, path.rooms[:, 0], path.rooms[:, 1])
        best, weights = largest_values(forms, half_spaces, path.weights, fresh, outward)
        found, empty, position = [], torch.zeros(L, dtype=torch.bool), 0
        here, R = torch.arange(L)[:, None, None], rivals.shape[1]
        for part, known in zip(self.root.stacks, bounds):
            M = len(part.stack.members)
            rows = best[:, position : position + 2 * R * M].reshape(L, M, 2 * R)
            position += 2 * R * M
            low, high = known.differences[0].clone(), known.differences[1].clone()
            at = (here, torch.arange(M)[None, :, None], own[:, None], rivals[:, None])
            turned = (at[0], at[1], at[3], at[2])
            most, least = torch.minimum(high[at], rows[..., :R]), torch.maximum(low[at], -rows[..., R:])
            # Without outward rounding two bounds of one number may cross by rounding alone.
            slack = 0.0 if outward else 1e-9 * (1 + least.abs())
            empty = empty | (least > most + slack).flatten(1).any(1)
            least, most = torch.minimum(least, most), torch.maximum(least, most)
            low[at], high[at], low[turned], high[turned] = least, most, -most, -least
            found.append(replace(known, differences=(low, high)))
        return found, empty, replace(path, weights=weights)

    def _half_spaces(self, walks: list[Walks], cuts: Cuts, which: Tensor, path: _Path) -> _Path:
        """The half-spaces of cuts number ``which [L]`` (-1: none) of every path."""
        L = len(which)
        place = which.clamp(min=0)[:, None]
        stack, layer, plus, minus = (t.gather(1, place)[:, 0] for t in (cuts.stack, cuts.layer, cuts.plus, cuts.minus))
        sign, threshold = (t.gather(1, place)[:, 0] for t in (cuts.sign, cuts.threshold))
        slopes, rooms = path.slopes.clone(), path.rooms.clone()
        for s, i in self.nodes:
            mine = ((stack == s) & (layer == i) & (which >= 0)).nonzero()[:, 0]
            if not len(mine):
                continue
            M, n = self.root.stacks[s].stack.layers[i].bias.shape
            C = torch.zeros(L, M * n, dtype=slopes.dtype)
            C[mine, plus[mine]] = -sign[mine]
            both = mine[minus[mine] >= 0]
            C[both, minus[both]] = sign[both]
            slope, constant = walks[s].form(i, C.reshape(L, M, 1, n))
            m = plus[mine] // n
            slopes[mine, which[mine]] = slope[mine, m, 0]
            rooms[mine, 0, which[mine]] = constant[mine, m, 0] + threshold[mine]
            rooms[mine, 1, which[mine]] = constant[mine, m, 0].abs() + threshold[mine].abs()
        return replace(path, slopes=slopes, rooms=rooms)

    # One vector per cell

    def _pack(self, bounds: list[NeuronBounds], flat: Tensor, points: list[Tensor], at: Tensor) -> Tensor:
        pieces = [tensor.flatten(1) for known in bounds for tensor in _tensors(known)]
        return torch.cat([*pieces, *(point.flatten(1) for point in points), at, flat], 1)

    def _unpack(self, rows: Tensor) -> tuple[list[NeuronBounds], Tensor, list[Tensor], Tensor]:
        """The bounds, multipliers, tangent points and plane of the score that rows of kept numbers hold."""
        position = 0

        def next_piece(shape: tuple[int, ...]) -> Tensor:
            nonlocal position
            size = torch.Size(shape).numel()
            position += size
            return rows[:, position - size : position].reshape(len(rows), *shape)

        bounds = [_bounds([next_piece(tuple(like.shape[1:])) for like in shapes]) for shapes in self.shapes]
        K = self.root.classes
        points = [next_piece((len(part.stack.members), K)) for part in self.root.stacks]
        at = next_piece((K,))
        return bounds, rows[:, position:], points, at


@dataclass(frozen=True)
class _Path:
    """Multipliers and half-spaces of the cuts of a batch of cells, padded to the longest path."""

    on_cuts: Tensor  # [L, C]
    slopes: Tensor  # [L, C, n]
    rooms: Tensor  # [L, 2, C]
    weights: Tensor  # [L, R, C]
    before: list[tuple[Tensor, ...]]  # the half-spaces that each cell shares with its parent

    @staticmethod
    def empty(L: int, n: int, rows: int, like: Tensor) -> _Path:
        return _Path(
            like.new_zeros(L, 0), like.new_zeros(L, 0, n), like.new_zeros(L, 2, 0), like.new_zeros(L, rows, 0), [()] * L
        )

    @staticmethod
    def of(warms: Sequence[Warm], C: int, inputs: int, moved: list[bool]) -> _Path:
        """Where an input was cut, half-spaces no longer fit the box: they say nothing any more."""
        L, like = len(warms), warms[0].row
        on_cuts, slopes, rooms = like.new_zeros(L, C), like.new_zeros(L, C, inputs), like.new_zeros(L, 2, C)
        weights = like.new_zeros(L, len(warms[0].weights), C)
        before = [warm.slopes for warm in warms]
        for i, warm in enumerate(warms):
            known = len(warm.on_cuts)
            on_cuts[i, :known] = warm.on_cuts
            if known and moved[i]:
                before[i] = (like.new_zeros(inputs),) * known
            elif known:
                rooms[i, :, :known], weights[i, :, :known] = warm.rooms, warm.weights
                torch.stack(warm.slopes, out=slopes[i, :known])
        return _Path(on_cuts, slopes, rooms, weights, before)

    def warm(self, i: int, C: int, row: Tensor, on_cuts: Tensor) -> Warm:
        slopes = (*self.before[i], *(self.slopes[i, c].clone() for c in range(len(self.before[i]), C)))
        rooms, weights = (t[i, :, :C].clone() for t in (self.rooms, self.weights))
        return Warm(row.clone(), on_cuts[:C].clone(), slopes, rooms, weights)


@dataclass(frozen=True)
class _State:
    flat: Tensor
    points: list[Tensor]
    at: Tensor
    cuts: Cuts
    path: _Path


def _tensors(bounds: NeuronBounds) -> list[Tensor]:
    return [*(end for pair in bounds.intervals for end in pair), *bounds.differences, *bounds.charges]


def _bounds(tensors: list[Tensor]) -> NeuronBounds:
    """The inverse of ``_tensors``: three tensors per layer, and two."""
    layers = (len(tensors) - 2) // 3
    intervals = tuple((tensors[2 * i], tensors[2 * i + 1]) for i in range(layers))
    return NeuronBounds(intervals, (tensors[2 * layers], tensors[2 * layers + 1]), tuple(tensors[2 * layers + 2 :]))


def _consistent(bounds: NeuronBounds) -> NeuronBounds:
    """Differences that do not contradict the box of the logits by rounding, or because the cell is empty."""
    lower, upper = bounds.logits
    low, high = bounds.differences
    slack = ulps(64, low.dtype) * torch.maximum(lower.abs(), upper.abs()).amax(-1)[..., None, None]
    low = torch.minimum(low, upper[..., :, None] - lower[..., None, :]) - slack
    high = torch.maximum(high, lower[..., :, None] - upper[..., None, :]) + slack
    own = torch.eye(low.shape[-1], dtype=torch.bool, device=low.device)
    return replace(bounds, differences=(low.masked_fill(own, 0.0), high.masked_fill(own, 0.0)))


def _difference(known: Interval, z: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per network, the output that loses most against the rival that moves it most: scores, entries, thresholds."""
    K = z.shape[-1]
    own = losses.argmax(-1, keepdim=True)
    low, high = (end.gather(2, own[..., None].expand(*own.shape, K))[:, :, 0] for end in known)  # z_own - z_j
    width = high - low
    rival = (z.softmax(-1) * -torch.expm1(-width)).scatter(2, own, -1.0).argmax(-1, keepdim=True)
    low, high, width = (t.gather(2, rival)[..., 0] for t in (low, high, width))
    threshold = between(low, high, (z.gather(2, own) - z.gather(2, rival))[..., 0])
    offset = K * torch.arange(z.shape[1])
    score = torch.where(width > NARROW * (1 + high.abs()), losses.sum(-1), 0.0)
    return score, own[..., 0] + offset, rival[..., 0] + offset, threshold
