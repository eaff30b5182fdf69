"""One batch of instances against their unsafe outputs: bounds, attack, gradient steps, only on what is still open."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ..attack.pgd import minimize_margin
from ..deadlines import interrupt, passed, why_stopped
from ..errors import DomainError
from ..graph.graph import Graph
from ..graph.operator import Bilinear
from ..propagate.crown import LinearBounds, OutOfTime
from ..propagate.methods import Auto, Branch, Linear, Method, Paper, SecondOrder
from ..propagate.optimize import optimized_lower, with_better_differences
from ..propagate.second_order.forward import TENSORS, NoAffineForms
from ..propagate.second_order.specification import SecondOrderBounds
from ..propagate.structure import Structure, pieces, positions
from ..regions import Region
from .bracket import Bracket, Effort
from .branching import Margins, by_boxes
from .unsafe import Unsafe


def prove(
    graph: Graph, structure: Structure, region: Region, start: Tensor, unsafe: Unsafe, method: Method, effort: Effort
) -> Bracket:
    """Bounds and attacks on one batch; a deadline or an interrupt leaves the best found so far."""
    S, B = unsafe.offsets.shape
    found = Bracket(start.new_full((S, B), -math.inf), start.new_full((B,), math.inf), start.clone())
    try:
        with torch.no_grad():
            _work(graph, structure, region, unsafe, method, effort, found)
        if passed(effort.deadline):
            found.stopped = why_stopped()
    except OutOfTime:
        found.stopped = why_stopped()
    except KeyboardInterrupt:
        interrupt()
        found.stopped = why_stopped()
    return found


def _work(
    graph: Graph,
    structure: Structure,
    region: Region,
    unsafe: Unsafe,
    method: Method,
    effort: Effort,
    found: Bracket,
) -> None:
    work = _Work(graph, structure, region, unsafe, effort, found)
    if isinstance(method, Branch):
        margins = Margins(unsafe, method, effort, found)
        if by_boxes(graph):
            _work(graph, structure, region, unsafe, method.inner, effort, found)
            margins.boxes(graph, structure, region, _open(unsafe, found).any(0).nonzero()[:, 0])
            return
        if effort.attack == "always":
            work.attack(positions(region.lower))
        bounds = work.linear(method.second_order.linear)
        work.attack_open()
        stuck = margins.inside(bounds, _open(unsafe, found), lambda: work.products(bounds, method.second_order))
        margins.boxes(graph, structure, region, stuck)
        return
    if effort.attack == "always":
        work.attack(positions(region.lower))
    products = any(isinstance(node.operator, Bilinear) for node in graph.nodes)
    if isinstance(method, SecondOrder | Auto) and products:
        second = method if isinstance(method, SecondOrder) else method.second_order
        bounds = work.linear(second.linear)
        work.attack_open()
        gained = work.second_order(bounds, second)
        if isinstance(method, Auto) and method.optimize:
            work.by_gradient(
                LinearBounds(graph, region, method.linear, structure, effort.memory, effort.deadline), ~gained
            )
        return
    if isinstance(method, SecondOrder):
        work.note(range(region.size), "linear bounds only: the network has no products of variable tensors")
    plain = method if isinstance(method, Linear | Paper) else method.linear
    bounds = work.linear(plain)
    if plain.contract:
        work.contracted(bounds)
    work.attack_open()
    if plain.optimize:
        work.by_gradient(bounds, None)


class _Work:
    """The stages of a proof on one batch; each works on what is open and leaves its results in ``found``."""

    def __init__(
        self, graph: Graph, structure: Structure, region: Region, unsafe: Unsafe, effort: Effort, found: Bracket
    ) -> None:
        self.graph, self.structure, self.region = graph, structure, region
        self.unsafe, self.effort, self.found = unsafe, effort, found
        self.last = len(graph.nodes) - 1
        self.rows = unsafe.rows.reshape(*unsafe.offsets.shape, *graph.output_shape)

    def linear(self, method: Linear | Paper) -> LinearBounds:
        """Linear bounds on every row."""
        bounds = self._bounds(method, self.region)
        for part in pieces(positions(self.rows), bounds.chunk(self.last)):
            self.found.rows[part] = _less(bounds.lower(self.last, self.rows[part]), self.unsafe.offsets[part])
        return bounds

    def _bounds(self, method: Linear | Paper, region: Region) -> LinearBounds:
        bounds = LinearBounds(self.graph, region, method, self.structure, self.effort.memory, self.effort.deadline)
        bounds.check_time()
        bounds.prepare(self.last)
        return bounds

    def contracted(self, bounds: LinearBounds) -> None:
        self._improve(bounds, *_open_rows(self.unsafe, self.found), steps=0)

    def attack_open(self) -> None:
        if self.effort.attack == "open":
            self.attack(self._open_instances())

    def attack(self, instances: Tensor) -> None:
        _attack(self.graph, self.region, self.unsafe, self.effort, self.found, instances)

    def by_gradient(self, bounds: LinearBounds, among: Tensor | None) -> None:
        """Gradient steps on the free parameters of linear bounds, first for score differences, then for the rows."""
        method = bounds.method
        assert isinstance(method, Linear)

        def left_open() -> Tensor:
            left = self._open_instances()
            return left if among is None else left[among[left]]

        # Steps start from the mean of the two planes of a product. One of them alone may be far better, by where the
        # factors sit in their intervals (probabilities near 0), and is tried first.
        for mixture in (1.0, 0.0):
            if len(left := left_open()):
                again = self._bounds(replace(method, mixture=mixture, contract=False), self.region.take(left))
                places = self._places(left)
                self._improve(again, *self._rows_among(places), steps=0, places=places, contract=False)
        if not len(left := left_open()):
            return
        places = self._places(left)
        tightened = bounds.take(left)
        if among is not None:  # these bounds were not used before: contracted products come first
            self._improve(tightened, *self._rows_among(places), steps=0, places=places)
        rate, steps = method.learning_rate, method.optimize
        tightened = with_better_differences(tightened, max(1, steps // 2), rate)
        self._improve(tightened, *self._rows_among(places), steps=steps, places=places)

    def _places(self, instances: Tensor) -> Tensor:
        """Where every instance of the batch is among some of them; -1 for the others."""
        places = instances.new_full((self.region.size,), -1)
        places[instances] = positions(instances)
        return places

    def _rows_among(self, places: Tensor) -> tuple[Tensor, Tensor]:
        row, instance = _open_rows(self.unsafe, self.found)
        wanted = places[instance] >= 0
        return row[wanted], instance[wanted]

    def _improve(
        self,
        bounds: LinearBounds,
        row: Tensor,
        instance: Tensor,
        steps: int,
        places: Tensor | None = None,
        contract: bool = True,
    ) -> None:
        """Walk again for the best row of every open group, with contracted products and gradient steps."""
        rate = bounds.method.learning_rate
        for part in pieces(positions(row), _together(bounds)):
            bounds.check_time()
            s, b = row[part], instance[part]
            pairs = bounds.take(b if places is None else places[b])
            if steps:
                low = optimized_lower(pairs, self.last, self.rows[s, b][None], steps, rate, self.unsafe.offsets[s, b])
            else:
                low = pairs.lower(self.last, self.rows[s, b][None], contract=contract)
            self._keep(s, b, low[0], "gradient" if steps else "contracted" if contract else "linear")

    def products(self, bounds: LinearBounds, method: SecondOrder) -> None:
        """Second order where it is worth less than other work that waits: without fitted rows."""
        if any(isinstance(node.operator, Bilinear) for node in self.graph.nodes):
            self.second_order(bounds, replace(method, row_fit=False))

    def second_order(self, bounds: LinearBounds, method: SecondOrder) -> Tensor:
        """Second-order bounds on what is open; returns where they gained anything, ``[B]``.

        The worst row of every instance comes first: where it cannot be proved the others need not be.
        """
        before = self._worst()
        left = self._open_instances()
        for part in pieces(left, instances_together(bounds)):
            try:
                second = SecondOrderBounds.of(bounds.take(part))
            except (NoAffineForms, DomainError, torch.linalg.LinAlgError) as problem:
                self.note(part.tolist(), f"linear bounds only: {' '.join(str(problem).split())}")
                continue
            if second.forms.forgotten:
                self.note(part.tolist(), f"{second.forms.forgotten} products relaxed linearly to save memory")
            places = self._places(part)
            for _ in range(2):
                row, instance = self._rows_among(places)
                if not len(row):
                    break
                worst = self._worst_rows(row, instance)
                self._second_order_rows(second, row[worst], instance[worst], places, method)
                broken = self._worst_rows_open(row[worst], instance[worst])
                places[instance[worst][broken]] = -1
                rest = ~worst & (places[instance] >= 0)
                self._second_order_rows(second, row[rest], instance[rest], places, method)
        return self._worst() > before

    def note(self, instances: Iterable[int], line: str) -> None:
        self.found.notes |= dict.fromkeys(instances, line)

    def _second_order_rows(
        self, second: SecondOrderBounds, row: Tensor, instance: Tensor, places: Tensor, method: SecondOrder
    ) -> None:
        """Multipliers for the planes; where they fail, for the quadratics fitted to attention rows."""
        for fitted in (False, True) if method.row_fit else (False,):
            still = ~(self.found.rows[row, instance] > 0)
            row, instance = row[still], instance[still]
            if not len(row):
                return
            target = self.unsafe.offsets[row, instance]
            low = second.lower(self.rows[row, instance], places[instance], method.steps, target, fitted)
            self._keep(row, instance, low, "fitted rows" if fitted else "second order")

    def _keep(self, row: Tensor, instance: Tensor, low: Tensor, how: str) -> None:
        found = self.found.rows
        better = _less(low, self.unsafe.offsets[row, instance])
        proved = (better > 0) & ~(found[row, instance] > 0)
        self.found.proved_by |= dict.fromkeys(zip(row[proved].tolist(), instance[proved].tolist()), how)
        found[row, instance] = torch.maximum(found[row, instance], torch.where(better.isnan(), -math.inf, better))

    def _open_instances(self) -> Tensor:
        return _open(self.unsafe, self.found).any(0).nonzero()[:, 0]

    def _worst(self) -> Tensor:
        best, _ = self.unsafe.best_rows(self.found.rows)
        return best.amin(0)

    def _worst_rows(self, row: Tensor, instance: Tensor) -> Tensor:
        """Mask of one row per instance, the one with the smallest bound."""
        bound = self.found.rows[row, instance]
        worst = torch.zeros(len(row), dtype=torch.bool, device=row.device)
        seen: set[int] = set()
        for place in bound.argsort().tolist():
            if int(instance[place]) not in seen:
                seen.add(int(instance[place]))
                worst[place] = True
        return worst

    def _worst_rows_open(self, row: Tensor, instance: Tensor) -> Tensor:
        return ~(self.found.rows[row, instance] > 0)


def _less(low: Tensor, offset: Tensor) -> Tensor:
    """A bound less an offset, below the real difference where it is not exact, and of the same sign."""
    apart = low - offset
    below = torch.nextafter(apart, torch.full_like(apart, -math.inf))
    return torch.where((offset == 0) | (apart == 0) | ((apart > 0) & (below <= 0)), apart, below)


def instances_together(bounds: LinearBounds) -> int:
    """How many instances to hold affine forms of at once, with some ten tensors of slopes each."""
    slopes = math.prod(bounds.graph.input_shape) * bounds.structure.width(len(bounds.graph.nodes) - 1)
    return max(1, (TENSORS * bounds.memory) // (8 * 10 * slopes))


def _open(unsafe: Unsafe, found: Bracket) -> Tensor:
    """Mask ``[groups, B]`` of what is neither excluded nor already broken by the attack."""
    best, _ = unsafe.best_rows(found.rows)
    return ~(best > 0) & ~(found.attack < 0)


def _open_rows(unsafe: Unsafe, found: Bracket) -> tuple[Tensor, Tensor]:
    group, instance = _open(unsafe, found).nonzero(as_tuple=True)
    _, row = unsafe.best_rows(found.rows)
    return row[group, instance], instance


def _together(bounds: LinearBounds) -> int:
    """How many (row, instance) pairs to work on at once, with about a thousand contracted factors each."""
    return max(1, (32 * bounds.memory) // (8 * 1024 * bounds.structure.volume(len(bounds.graph.nodes) - 1)))


def _attack(graph: Graph, region: Region, unsafe: Unsafe, effort: Effort, found: Bracket, instances: Tensor) -> None:
    """First every group at once, then each open group of what is not broken by then."""
    if not len(instances) or passed(effort.deadline):
        return
    start = found.worst

    def run(group: Tensor, instance: Tensor, seed: int) -> None:
        def margin(x: Tensor, which: Tensor) -> Tensor:
            return unsafe.margins(graph(x).flatten(1), instance[which], group[which])

        value, x = minimize_margin(
            margin,
            region.take(instance),
            start[instance],
            effort.attack_steps,
            effort.restarts,
            seed,
            deadline=effort.deadline,
        )
        for place in value.argsort(descending=True).tolist():  # the smallest of an instance is written last
            if value[place] < found.attack[instance[place]]:
                found.attack[instance[place]] = value[place]
                found.worst[instance[place]] = x[place]

    still = _open(unsafe, found)[:, instances]
    group, position = still.nonzero(as_tuple=True)
    for part in pieces(positions(group), 4096):
        run(group[part], instances[position[part]], effort.seed)
