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
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..attack.pgd import minimize_margin
from ..errors import DomainError
from ..graph.operator import Elementwise, Interval
from ..graph.ops.relu import LeakyRelu, Relu
from ..graph.ops.softmax import Softmax
from ..propagate.crown import LinearBounds
from ..propagate.second_order.affine_form import centre_and_radius
from ..propagate.second_order.central_path import Begun, Cuts
from ..propagate.second_order.dual import Pursuit
from ..propagate.second_order.fitted_rows import KnownFits
from ..propagate.second_order.forward import NoAffineForms
from ..propagate.second_order.joint import JOINT, kink_cuts, solved_jointly
from ..propagate.second_order.row_fit import CELLS
from ..propagate.second_order.specification import TOWARDS, Quadratic, SecondOrderBounds, solve_quadratic
from ..propagate.structure import pieces, positions
from ..propagate.walk import Claim
from .cuts import Cut
from .loop import Cell, Solved
from .losses import NARROW

# Steps on the quadratic of a cell: at first, where multipliers that are nearly right are known, and in the end.
STEPS, AGAIN, FINAL = 8, 3, 100
# Multipliers of the last cut, in units of what the parent misses by the width that is cut.
GRID, COARSE = (0.0, 0.3, 1.0, 3.0), (0.0, 0.3, 1.0)
# And around the best of them.
NEARBY = (0.6, 1.7)
# Cuts of the whole region that are tried at first, those that lose most, shared by the problems of an instance but not
# fewer than some for each. What they gained there chooses all cuts that follow: to try a few in every cell costs more
# than the better choice gains.
FIRST, FEWEST, CANDIDATES = 24, 8, 1
# What an entry loses now counts beside it, with this weight.
LOST = 0.1
# Steps and restarts of the attack that whole regions are fitted near, and how often they are fitted anew.
ATTACK, RESTARTS, ROUNDS = 20, 2, 2
# Where rows are fitted and the multipliers of noise and cuts are found together: the most steps for these, and for
# candidates, how exact they are, when one is given up (in units of what the path has left to gain), and for how many
# cuts.
PATH, SHORT, EXACT, HOPELESS, COUNTED = 30, 10, 2e-3, 1.5, 6

# What may be cut, by node and entries (-1: one entry alone), and how wide it is and where its middle or its kink.
Place = tuple[int, int, int]
Spans = dict[Place, tuple[float, float]]
# A cut that says what a rectifier is: its node, its entry, and which of the three.
Bend = tuple[int, int, int]


@dataclass(frozen=True)
class Warm:
    """What the children of a cell start from: multipliers of its cuts, and what its bound misses of the margin."""

    on_cuts: Tensor  # [C]
    missed: float
    open: Spans
    noise: Tensor | None = None  # of the inputs [n], where its children are fitted: towards where it is least
    fits: dict[int, KnownFits] | None = None  # of the rows of every softmax
    # The path of its multipliers: what noise stands for, d, those of cuts, mu, and those of rectifiers.
    begun: tuple[Tensor, Tensor, Tensor, Tensor, dict[Bend, float]] | None = None
    losses: dict[Place, float] = field(default_factory=dict)  # by the width of what may be cut
    # What the bound comes from, for its certificate: noise of the inputs [n] near which rows are fitted, and the
    # multipliers of rectifiers that stay.
    near: Tensor | None = None
    kinks: dict[Bend, float] = field(default_factory=dict)


class ProductLeaves:
    """Problem p: ``<rows[p], output> - offsets[p]`` over instance ``instance[p]`` of ``bounds``.

    ``sharp``: by all that second order can tell of rectifiers and of differences of logits, not only by what has
    certificates.
    """

    together = 1

    def __init__(
        self,
        bounds: LinearBounds,
        instance: Tensor,
        rows: Tensor,
        offsets: Tensor,
        most: int = 64,
        sharp: bool = True,
    ) -> None:
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
        # Where rows of a softmax are short enough, quadratics are fitted to them, which tell what every row loses.
        short = (entries.shape[1] - 1 in CELLS for _, entries in self.softmaxes.values())
        self.fitted = any(short) and bounds.region.centre is None
        self.sharp = self.fitted and sharp
        if self.sharp:  # what is known of logits holds in all cells
            self.bounds = self._sharp(bounds)
        # By problem: what a cut gained on the whole region, by its width.
        self.gains: list[dict[Place, float]] = [{} for _ in range(len(instance))]

    @staticmethod
    def _sharp(bounds: LinearBounds) -> LinearBounds:
        """Bounds that know as much of logits as second order can tell."""
        try:
            return SecondOrderBounds.of(bounds, planes=False, sharp=True).bounds
        except (NoAffineForms, DomainError, torch.linalg.LinAlgError):
            return bounds

    def roots(self) -> list[Solved]:
        """The whole regions, without cuts; every cut that may be worth it is tried once, to rank them for all cells."""
        found = self._bounded([Cell(p, ()) for p in range(len(self.instance))], GRID)
        self._fit_again(found)
        for p, root in enumerate(found):
            if root.bound > 0 or root.warm is None or (root.warm.begun is None and root.warm.losses):
                continue  # the few steps of a trial say less than the account where multipliers take many
            count = max(FEWEST, FIRST // int((self.instance == self.instance[p]).sum()))
            cuts = self._widest(root.warm.open, {}, count, root.warm.losses)
            tried = [Cell(p, (side,), root.warm) for cut in cuts for side in cut.sides]
            (whole, *values) = self.quick([Cell(p, (), root.warm), *tried])
            ends = iter(values)
            for cut in cuts:
                # The whole region had more steps: what does not gain over them does not count.
                low, high = sorted(min(max(next(ends), whole), 0.0) - whole for _ in range(2))
                place = cut.node, cut.plus, -1 if cut.minus is None else cut.minus
                self.gains[p][place] = (low + 0.2 * high) / root.warm.open[place][0]
            root.cuts = self._widest(root.warm.open, self.gains[p], CANDIDATES, root.warm.losses)
        return found

    def _fit_again(self, found: list[Solved]) -> None:
        """Fits of whole regions depend on where they are near to: a few times over, towards where a bound is least."""
        last = list(found)
        for _ in range(ROUNDS if self.fitted else 0):
            left = [p for p, root in enumerate(found) if root.bound <= 0 and root.warm is not None]
            cells = [Cell(p, (), replace(last[p].warm, fits=None)) for p in left]
            for p, other in zip(left, self._bounded(cells, GRID)):
                last[p] = other
                if other.bound > found[p].bound:
                    found[p] = other

    def quick(self, cells: Sequence[Cell]) -> list[float]:
        """Bounds of candidate cells after few steps, to choose a cut by."""
        return [found.bound for found in self._bounded(cells, COARSE)]

    def solve(self, cells: Sequence[Cell]) -> list[Solved]:
        """Bounds of cells, with the cuts to try next and the state their children start from."""
        return self._bounded(cells, GRID)

    def _bounded(self, cells: Sequence[Cell], grid: Sequence[float]) -> list[Solved]:
        found: dict[int, Solved] = {}
        known = torch.tensor([cell.warm is not None for cell in cells], dtype=torch.bool)
        for some in (known, ~known):
            for part in pieces(some.nonzero()[:, 0], self.most):
                self.bounds.check_time()
                numbers = part.tolist()
                found |= dict(zip(numbers, self._some([cells[k] for k in numbers], grid)))
        return [found[k] for k in range(len(cells))]

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
            noise = None if batch.noise is None else batch.noise[s].clone()
            fits = {index: fit.take(torch.tensor([s])) for index, fit in batch.fits.items()}
            begun = None
            if batch.begun is not None and batch.names is not None:
                b = batch.begun_b[s, : len(cell.path)].clone()
                kinks = batch.begun_kinks[s] if batch.begun_kinks else {}
                begun = batch.names[s].clone(), batch.begun.d[s].clone(), b, batch.begun.mu[s].clone(), kinks
            on_cuts = batch.on_cuts[s, : len(cell.path)].clone()
            losses = batch.losses[s] if batch.losses else {}
            near = None if batch.near is None else batch.near[s, : batch.second.forms.noise.inputs].clone()
            warm = Warm(
                on_cuts,
                max(missed, 0.0),
                own,
                noise,
                fits or None,
                begun,
                losses,
                near,
                batch.kinks[s] if batch.kinks else {},
            )
            cuts = self._widest(own, self.gains[cell.problem], CANDIDATES, losses)
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

    def _widest(
        self, spans: Spans, gains: dict[Place, float], count: int, losses: dict[Place, float] | None = None
    ) -> list[Cut]:
        """Candidates, by what they gained on the whole region and what is left of their width; a little by losses."""

        def worth(place: Place) -> float:
            gained = gains.get(place, 0.0) if gains or losses else 1.0
            return spans[place][0] * (gained + LOST * (losses or {}).get(place, 0.0))

        order = sorted(spans, key=lambda place: -worth(place))
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
        self.second = SecondOrderBounds.of(
            bounds, planes=not leaves.fitted or cells[0].warm is None, sharp=leaves.sharp
        )
        S, C = len(cells), max(len(cell.path) for cell in cells)
        self.on_cuts, self.sign, self.threshold = (self.offsets.new_zeros(S, C) for _ in range(3))
        self.unit = self.offsets.new_zeros(S)  # of the multiplier of the last cut
        self.entries: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # by node: which cuts are of it, of what entries
        for s, cell in enumerate(cells):
            for c, cut in enumerate(cell.path):
                self.sign[s, c], self.threshold[s, c] = (1.0 if cut.below else -1.0), cut.threshold
                if cut.node not in self.entries:
                    nowhere = torch.zeros(S, C, dtype=torch.long)
                    self.entries[cut.node] = nowhere.bool(), nowhere, nowhere - 1
                here, plus, minus = self.entries[cut.node]
                here[s, c], plus[s, c], minus[s, c] = True, cut.plus, -1 if cut.minus is None else cut.minus
            if cell.path and cell.warm is not None:
                last = cell.path[-1]
                span = cell.warm.open.get((last.node, last.plus, -1 if last.minus is None else last.minus))
                self.on_cuts[s, : len(cell.path) - 1] = cell.warm.on_cuts
                self.unit[s] = cell.warm.missed / span[0] if span is not None else 0.0
        self.last = torch.tensor([max(len(cell.path) - 1, 0) for cell in cells])
        self.near: Tensor | None = None  # noise that rows are fitted near
        self.noise: Tensor | None = None  # of the inputs, where the bound is attained
        self.fits: dict[int, KnownFits] = {}
        self.begun: Begun | None = None
        self.names: Tensor | None = None
        self.begun_b = torch.zeros_like(self.on_cuts)
        self.begun_kinks: list[dict[Bend, float]] = []
        self.kinks: list[dict[Bend, float]] = []
        self.losses: list[dict[Place, float]] = []
        self.value = self.offsets.new_full((S,), -math.inf)
        self.d = self.offsets.new_full((S, self.second.forms.noise_count), math.nan)
        region = self.second.bounds.region
        self.x = region.lower + (region.upper - region.lower) / 2

    def solve(self, grid: Sequence[float]) -> None:
        """The best bounds, by quadratics of rows where these are short; else over few multipliers of the last cuts."""
        if self.leaves.fitted and self._fitted(PATH if len(grid) > len(COARSE) else SHORT):
            return
        if not self.entries:
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

    # Rows of a softmax by fitted quadratics, multipliers of noise and cuts together

    def _fitted(self, steps: int) -> bool:
        """Bounds by fits near where the cell before was least; whether there are any, or at least fits."""
        everything, noise = positions(self.rows), self.second.forms.noise
        warm = [cell.warm for cell in self.cells if cell.warm is not None and cell.warm.noise is not None]
        known: dict[int, KnownFits] = {}
        if len(warm) == len(self.cells):
            near = torch.stack([w.noise for w in warm])
            near = torch.nn.functional.pad(near, (0, self.second.forms.noise_count - near.shape[1]))
            fits = [w.fits for w in warm if w.fits is not None]
            if len(fits) == len(warm):
                known = {index: KnownFits.together([fit[index] for fit in fits]) for index in fits[0]}
        else:
            quadratic = self.second.quadratic(self.rows, everything)
            if quadratic.linear.shape[1] <= JOINT:
                near = self._least(quadratic, False, steps)
            else:
                _, d = solve_quadratic(quadratic, noise, Pursuit(STEPS, self.offsets, hopeless=True))
                near = quadratic.minimiser(noise, d)
            near = self._attacked(near)
        self.near = near = near[:, : self.second.forms.noise_count].clamp(-1, 1)
        kinked = self.second.forms.noise_count <= JOINT
        quadratic = self.second.quadratic(self.rows, everything, near, known=known, mixed=True, kinked=kinked)
        self.fits = {index: fit.known() for index, fit in quadratic.fits.items()}
        if quadratic.linear.shape[1] > JOINT:
            self.d = self.offsets.new_full(quadratic.linear.shape, math.nan)
            return False
        x = self._least(quadratic, True, steps)
        least = x[:, : noise.inputs].clamp(-1, 1)
        self.noise = TOWARDS * least + (1 - TOWARDS) * near[:, : noise.inputs]
        self.x = self._inputs(least, everything)
        self.losses = [{} for _ in self.cells]
        self._account(quadratic, x.clamp(-1, 1), self.d_found, everything)
        return True

    def _attacked(self, noise: Tensor) -> Tensor:
        """Where the margins are small, from where bounds are: the better a fit is, the nearer are these."""
        region, rows = self.second.bounds.region, self.rows.flatten(1)

        def margin(x: Tensor, which: Tensor) -> Tensor:
            return (self.leaves.graph(x).flatten(1) * rows[which]).sum(1)

        inputs = noise[:, : self.second.forms.noise.inputs].clamp(-1, 1)
        start = self._inputs(inputs, positions(self.rows))
        _, x = minimize_margin(margin, region, start, ATTACK, RESTARTS, target=-math.inf)
        centre, radius = centre_and_radius(region)
        found = torch.where(radius > 0, (x - centre) / torch.where(radius > 0, radius, 1.0), 0.0).flatten(1)
        return torch.nn.functional.pad(found, (0, self.second.forms.noise_count - found.shape[1]))

    def _account(self, quadratic: Quadratic, noise: Tensor, d: Tensor, part: Tensor) -> None:
        """What entries lose in some cells, where the quadratics are least with multipliers ``d [P, n]``."""
        for k, rows in zip(part.tolist(), self._row_losses(quadratic, noise, part)):
            self.losses[k] |= rows
        names, named = self._names(d.shape[1]), self.second.forms.named
        if names is None:
            return
        # What activations lose is the multiplier of the noise that is between their lines.
        names = names[part]
        table = d.new_zeros(len(part), int(names.max()) + 1).scatter(1, names, d.nan_to_num(0.0))
        for index, node in enumerate(self.leaves.graph.nodes):
            if index not in named or not isinstance(node.operator, Elementwise):
                continue
            lower, upper = (end.flatten(1)[part] for end in self.second.bounds.interval(node.inputs[0], node.operator))
            lost = table[:, named[index] : named[index] + lower.shape[1]] / (upper - lower).clamp(min=1e-12)
            for k, own in zip(part.tolist(), lost.tolist()):
                self.losses[k] |= {(node.inputs[0], entry, -1): loss for entry, loss in enumerate(own) if loss > 0}

    def _least(self, quadratic: Quadratic, counted: bool, steps: int) -> Tensor:
        """Multipliers of noise and of cuts, if these are counted, what they prove, and where that is least ``[S, n]``.

        Rectifiers that stay in the quadratic have cuts, too; they come first.
        """
        n = quadratic.linear.shape[1]
        kinks, which = kink_cuts(quadratic), None
        cuts, many = kinks, kinks.constant.shape[1]
        if counted and bool((self.sign != 0).any()):
            own, which = self._cuts(n)
            cuts = kinks.and_those(own)
        begun = self._begun(n, which, self._bending(quadratic) if many else None)
        value, found = solved_jointly(quadratic, cuts, steps, self.offsets, EXACT, HOPELESS, begun)
        if which is not None:
            b, on_path = found.b[:, many:], found.begun.b[:, many:]
            self.on_cuts = torch.zeros_like(self.on_cuts).scatter(1, which, b * (self.sign.gather(1, which) != 0))
            self.begun_b = torch.zeros_like(self.on_cuts).scatter(1, which, on_path)
        if many:
            places = self._bending(quadratic)
            self.begun_kinks, self.kinks = (
                [
                    {place: float(b[s, k]) for k, place in enumerate(own) if place is not None}
                    for s, own in enumerate(places)
                ]
                for b in (found.begun.b[:, :many], found.b[:, :many])
            )
        self.begun, self.names, self.d_found = found.begun, self._names(n), found.d
        self.value = self._less(value, self.offsets)
        return found.x

    @staticmethod
    def _bending(quadratic: Quadratic) -> list[list[Bend | None]]:
        """By cell, in the order of their cuts: rectifier, entry and kind of every cut of one that bends."""
        found: list[list[Bend | None]] = [[] for _ in quadratic.linear]
        for index, (kinks, _) in quadratic.kinks.items():
            for own, order, used in zip(found, *(t.tolist() for t in kinks.bending())):
                own += [(index, e, kind) if u else None for kind in range(3) for e, u in zip(order, used)]
        return found

    def _begun(self, n: int, which: Tensor | None, bends: list[list[Bend | None]] | None) -> Begun | None:
        """Where the cells before were not far along their paths, where these have as much noise."""
        S, names = len(self.cells), self._names(n)
        d, mu = self.offsets.new_full((S, n), math.nan), self.offsets.new_full((S,), math.nan)
        b = self.offsets.new_zeros(S, self.sign.shape[1])
        kinks = self.offsets.new_zeros(S, len(bends[0]) if bends else 0)
        for s, cell in enumerate(self.cells):
            if names is not None and cell.warm is not None and cell.warm.begun is not None:
                known, d_known, b_known, mu[s], k_known = cell.warm.begun
                # Noise that the cell before did not have is like the rest of what is not an input.
                most = max(int(known.max()), int(names[s].max())) + 2
                table = d.new_full((most,), float(d_known[self.second.forms.noise.inputs :].mean())).scatter(
                    0, known, d_known
                )
                d[s] = table[names[s]]
                b[s, : len(b_known)] = b_known
                for k, bend in enumerate(bends[s] if bends else ()):
                    kinks[s, k] = k_known.get(bend, 0.0)
        return Begun(d, torch.cat((kinks, b.gather(1, which) if which is not None else b[:, :0]), 1), mu)

    def _names(self, n: int) -> Tensor | None:
        """What all noise stands for ``[S, n]``, the last for remainders of fits; None: unknown."""
        names = self.second.forms.names
        if names is None:
            return None
        names = names.expand(len(self.cells), -1)
        beyond = self.second.forms.entries
        extra = torch.arange(n - names.shape[1]) + beyond + 1
        return torch.cat((torch.where(names < 0, beyond, names), extra.expand(len(names), -1)), 1)

    def _cuts(self, n: int) -> tuple[Cuts, Tensor]:
        """The quadratics of the cuts that count most ``[S, k]`` over n noise numbers, and which these are."""
        S, C = self.sign.shape
        weight = self.on_cuts.clone()
        weight.scatter_(1, self.last[:, None], math.inf)
        weight = torch.where(self._superseded() | (self.sign == 0), -1.0, weight)
        which = weight.topk(min(COUNTED, C), 1).indices
        cell = positions(self.rows)[:, None].expand(which.shape).flatten()
        units = torch.zeros(cell.shape[0], C, dtype=weight.dtype).scatter(1, which.flatten()[:, None], 1.0)
        counts = (weight.gather(1, which) >= 0).flatten()
        units = units * counts[:, None]
        found = self.second.quadratic(self.rows[cell], cell, start=self._claim(cell, units, False))
        V, S_ = found.factors()
        used = counts[:, None]
        # A place without a cut: minus one is always at most zero.
        constant, linear = torch.where(counts, found.constant, -1.0), torch.where(used, found.linear, 0.0)
        V = torch.where(used[..., None], V, 0.0)
        linear, V = (torch.nn.functional.pad(t, (0, n - t.shape[-1])) for t in (linear, V))
        k = which.shape[1]
        parts = (t.reshape(S, k, *t.shape[1:]) for t in (constant, linear, V, (S_ + S_.mT) / 2))
        return Cuts.of(*parts), which

    def _superseded(self) -> Tensor:
        """The cuts ``[S, C]`` that a later one of the same cell makes needless."""
        found = torch.zeros_like(self.sign, dtype=torch.bool)
        for s, cell in enumerate(self.cells):
            later: set[tuple[int, int, int | None, bool]] = set()
            for c in range(len(cell.path) - 1, -1, -1):
                cut = cell.path[c]
                name = (cut.node, cut.plus, cut.minus, cut.below)
                found[s, c] = name in later
                later.add(name)
        return found

    def _row_losses(self, quadratic: Quadratic, noise: Tensor, part: Tensor) -> list[dict[Place, float]]:
        """What every difference of logits may have cost, in proportion to its width, in some cells."""
        found: list[dict[Place, float]] = [{} for _ in part]
        bounds, graph = self.second.bounds, self.leaves.graph
        forms = self.second.forms
        for node, (index, entries) in self.leaves.softmaxes.items():
            if index not in quadratic.fits:
                continue
            fit = quadratic.fits[index]
            z = forms.bases[fit.logits.basis].take(part).values(noise[:, : forms.noise_count])
            loss = fit.losses(z)
            for product, split in quadratic.splits.items():
                factor = graph.nodes[product].inputs[split.factors.kept]
                if bounds.structure.source(factor) == index:
                    zs = forms.bases[split.factors.basis].take(part).values(noise[:, : forms.noise_count])
                    met = split.losses(zs).flatten(1)
                    placed = torch.zeros_like(met)
                    placed[:, bounds.structure.order(factor)] = met
                    loss = loss + placed[:, entries].sum(-1)
            low, high = fit.differences
            width = high - low
            p = self._probabilities(fit.logits.at, low, high)
            share = width * p[..., :, None] * p[..., None, :]
            share = share / (share * width).sum((-2, -1), keepdim=True).clamp(min=1e-12)
            score = (loss.clamp(min=0)[..., None, None] * share).tolist()
            for s, own in enumerate(score):
                for r, row in enumerate(entries.tolist()):
                    for j in range(len(row)):
                        for k in range(j + 1, len(row)):
                            found[s][node, row[j], row[k]] = own[r][j][k]
        return found

    @staticmethod
    def _probabilities(at: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Probabilities ``[S, R, K]`` in the middle of the differences, about."""
        middle = (low + (high - low) / 2).mean(-1)
        return middle.softmax(-1)

    def _try(self, on_cuts: Tensor, steps: int, final: bool = False) -> None:
        """Bounds with some multipliers, kept where they are the best so far."""
        for part in pieces((~(self.value > 0)).nonzero()[:, 0], 64):
            value, d, noise = self._lower(part, on_cuts[part], steps, None if final else self.d[part], final)
            better = value > self.value[part]
            self.value[part] = torch.where(better, value, self.value[part])
            self.on_cuts[part] = torch.where(better[:, None], on_cuts[part], self.on_cuts[part])
            self.d[part] = torch.where(better[:, None], d, self.d[part])
            x = self._inputs(noise, part)
            self.x[part] = torch.where(better.reshape(-1, *[1] * (x.ndim - 1)), x, self.x[part])
            if self.near is not None:
                near = self.near[:, : noise.shape[1]]
                self.noise = near.clone() if self.noise is None else self.noise
                noise = TOWARDS * noise + (1 - TOWARDS) * near[part]
                self.noise[part] = torch.where(better[:, None], noise, self.noise[part])

    def _lower(
        self, part: Tensor, on_cuts: Tensor, steps: int, start: Tensor | None, final: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Lower bounds ``[P]`` on the margins of some cells, their multipliers, and noise of inputs where they are
        small; in the end what is lost where is written down."""
        second = self.second
        near = None if self.near is None else self.near[part]
        fits = {index: fit.take(part) for index, fit in self.fits.items()}
        claim = self._claim(part, on_cuts)
        quadratic = second.quadratic(self.rows[part], part, near, start=claim, known=fits, mixed=True)
        target, noise = self.offsets[part], second.forms.noise
        # Cells are compared by their bounds: how low one is matters where no bound can prove it, too.
        value, d = solve_quadratic(quadratic, noise, Pursuit(steps, target, start, hopeless=True))
        least = quadratic.corner() if near is None else quadratic.minimiser(noise, d)
        if final and near is not None:
            self.losses = self.losses or [{} for _ in self.cells]
            self._account(quadratic, least, d, part)
        return self._less(value, target), d, least[:, : noise.inputs]

    def _less(self, value: Tensor, target: Tensor) -> Tensor:
        """What a bound exceeds its target by."""
        value = value - target
        if self.second.bounds.outward:  # the difference may be rounded up
            down = torch.nextafter(value, torch.full_like(value, -math.inf))
            value = torch.where(target == 0, value, down)
        return value

    def _inputs(self, noise: Tensor, part: Tensor) -> Tensor:
        """The inputs of some cells that noise ``[P, n]`` stands for."""
        region = self.second.bounds.region.take(part)
        centre, radius = centre_and_radius(region)
        return region.project(centre + radius * noise.reshape(centre.shape))

    def _claim(self, cell: Tensor, on_cuts: Tensor, margin: bool = True) -> Claim:
        """The cuts of some cells ``[N]``, repetitions allowed, times multipliers ``[N, C]``, beside their margins."""
        graph, bounds = self.leaves.graph, self.second.bounds
        sign, threshold = self.sign[cell], self.threshold[cell]
        pending = {self.leaves.last: self.rows[cell][None]} if margin else {}
        constant = -(on_cuts * sign * threshold).sum(1)
        lost = (on_cuts * threshold).abs().sum(1)
        for node, (nodes, plus, minus) in self.entries.items():
            shape = graph.shape_of(node)
            here, first, second = nodes[cell], plus[cell], minus[cell]
            weights, two = on_cuts * sign * here, second >= 0
            added = constant.new_zeros(len(cell), math.prod(shape)).scatter_add(1, first, weights)
            added = added.scatter_add(1, second.clamp(min=0), -weights * two)
            pending[node] = added.reshape(1, len(cell), *shape)
            if bounds.outward:
                size = bounds.sizes(node).flatten(1)[cell]
                size = size.gather(1, first) + torch.where(two, size.gather(1, second.clamp(min=0)), 0.0)
                lost = lost + (weights.abs() * size).sum(1)
        # Multipliers of one entry are added up, and all products with thresholds.
        charge = bounds.share(2 * on_cuts.shape[1] + 2) * lost
        return Claim(pending, constant[None], charge[None])


def _ordered(lower: Tensor, upper: Tensor) -> Interval:
    return torch.minimum(lower, upper), torch.maximum(lower, upper)
