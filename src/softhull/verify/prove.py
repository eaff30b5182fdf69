"""One batch of instances against their unsafe outputs: bounds, attack, gradient steps, only on what is still open."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attack.pgd import minimize_margin
from ..graph.graph import Graph
from ..propagate.crown import LinearBounds, OutOfTime
from ..propagate.methods import Method
from ..propagate.optimize import optimize_differences, optimized_lower
from ..propagate.perturbation import Region
from ..propagate.structure import Structure, pieces
from .unsafe import Unsafe


@dataclass
class Bracket:
    """What is known of every instance so far: certified bounds per row, the smallest attacked margin, and where."""

    rows: Tensor  # [S, B]
    attack: Tensor  # [B], infinite where there was none
    worst: Tensor  # [B, *input_shape]
    stopped: str = ""  # "time" or "interrupt" when the work was cut short


@dataclass(frozen=True)
class Effort:
    """How much work to spend: seconds on the clock of ``time.monotonic``, attack steps, bytes of one tensor."""

    deadline: float = math.inf
    attack: str = "open"  # "never", "open": what bounds leave open, "always"
    attack_steps: int = 40
    restarts: int = 4
    seed: int = 0
    memory: int = 1 << 24


def prove(
    graph: Graph, structure: Structure, region: Region, start: Tensor, unsafe: Unsafe, method: Method, effort: Effort
) -> Bracket:
    """Bounds and attacks on one batch; a deadline or an interrupt leaves the best found so far."""
    S, B = unsafe.offsets.shape
    found = Bracket(start.new_full((S, B), -math.inf), start.new_full((B,), math.inf), start.clone())
    try:
        with torch.no_grad():
            _work(graph, structure, region, unsafe, method, effort, found)
    except OutOfTime:
        found.stopped = "time"
    except KeyboardInterrupt:
        found.stopped = "interrupt"
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
    S, B = unsafe.offsets.shape
    last = len(graph.nodes) - 1
    rows = unsafe.rows.reshape(S, B, *graph.output_shape)
    if effort.attack == "always":
        _attack(graph, region, unsafe, effort, found, torch.arange(B))
    bounds = LinearBounds(graph, region, method, structure, effort.memory, effort.deadline)
    bounds.check_time()
    bounds.prepare(last)
    for part in pieces(torch.arange(S), bounds.chunk(last)):
        found.rows[part] = bounds.lower(last, rows[part]) - unsafe.offsets[part]

    def improve(on: LinearBounds, places: Tensor | None, steps: int) -> None:
        """Walk again for the best row of every open group, with contracted products and gradient steps."""
        row, instance = _open_rows(unsafe, found)
        for part in pieces(torch.arange(len(row)), _together(bounds)):
            on.check_time()
            s, b = row[part], instance[part]
            pairs = on.take(b if places is None else places[b])
            if steps:
                low = optimized_lower(pairs, last, rows[s, b][None], steps, method.learning_rate, unsafe.offsets[s, b])
            else:
                low = pairs.lower(last, rows[s, b][None], contract=True)
            found.rows[s, b] = torch.maximum(found.rows[s, b], low[0] - unsafe.offsets[s, b])

    if method.contract:
        improve(bounds, None, 0)
    if effort.attack == "open":
        _attack(graph, region, unsafe, effort, found, _open(unsafe, found).any(0).nonzero()[:, 0])
    if method.optimize:
        left = _open(unsafe, found).any(0).nonzero()[:, 0]
        if len(left):
            places = torch.full((B,), -1)
            places[left] = torch.arange(len(left))
            tightened = bounds.take(left)
            optimize_differences(tightened, max(1, method.optimize // 2), method.learning_rate)
            improve(tightened, places, method.optimize)


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
    if not len(instances) or time.monotonic() > effort.deadline:
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
    for part in pieces(torch.arange(len(group)), 4096):
        run(group[part], instances[position[part]], effort.seed)
