"""Backward linear bounds (CROWN, DeepPoly) of a graph over a region of inputs.

A walk (``walk.py``) starts with coefficients ``[S, B, *shape]`` on one node (S specifications of B instances; a B of 1
is shared by all instances) and ends at the network input, where the region gives a number. Upper bounds are lower
bounds of the negated specification; up to the first relaxation both sides share one walk.

With outward rounding a claim is charged a share of ``<|A|, sizes of the terms of the node>``: in ``charge`` where a
step is affine (both sides share it), in the constant where it is a relaxation. Additions of coefficients that meet at a
node are charged when they happen.

Relaxations ask for intervals of their inputs, which are found on demand by walks of their own, met with interval
arithmetic, and kept. What is done at a node is a rule of its operator (``rules.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..deadlines import passed
from ..graph.graph import Graph
from ..graph.operator import Affine, Elementwise, Interval
from ..graph.ops.conv import Conv
from ..graph.rounding import largest, share, underflow
from ..regions import Region, inner
from . import log_sum_exp as log_sum_exp  # registers its rules
from . import normalize as normalize  # the same
from . import products as products  # the same
from . import softmax_steps as softmaxes
from .free import Free
from .knowledge import Knowledge, brought
from .methods import Linear, Paper
from .rules import step, tightest
from .second_order.elementwise import parallel_band
from .stem import Stem
from .structure import Structure, pieces, positions
from .tokens import Some, by_position, some, some_step
from .walk import Claim, Step, Walk

# Bytes of one coefficient tensor that is walked with at once, and specifications that always are: larger tensors leave
# the cache, and fewer specifications are not worth the calls.
_NEAR, _ROWS = 1 << 22, 64


class OutOfTime(Exception):
    """The deadline passed in the middle of a computation."""


class LinearBounds:
    """Sound bounds on linear functions of the nodes of ``graph`` for all inputs of ``region``.

    ``memory`` bounds the bytes of one coefficient tensor; specifications are walked in chunks that fit. What is found
    of the nodes is kept in ``knowledge``; better knowledge makes other bounds (``knowing``).
    """

    def __init__(
        self,
        graph: Graph,
        region: Region,
        method: Linear | Paper,
        structure: Structure | None = None,
        memory: int = 1 << 24,
        deadline: float = math.inf,
        knowledge: Knowledge | None = None,
        joint: bool = False,
    ) -> None:
        self.graph = graph
        self.joint = joint
        self.region = region
        self.method = method
        self.memory = memory
        self.structure = structure or Structure(graph)
        self.size = region.size
        self.deadline = deadline
        self.outward = method.rounding == "outward"
        self.knowledge = knowledge or Knowledge(self.structure)

    def take(self, instances: Tensor) -> LinearBounds:
        """The same bounds for some of the instances, in the order given; repetitions are allowed."""
        return self._like(self.region.take(instances), self.knowledge.take(instances))

    def knowing(self, knowledge: Knowledge) -> LinearBounds:
        """The same bounds with other knowledge."""
        return self._like(self.region, knowledge)

    def jointly(self) -> LinearBounds:
        """The same bounds, of which those behind values mixed by probabilities know how these move together."""
        found = self._like(self.region, self.knowledge)
        found.joint = True
        return found

    def to_search(self, dtype: torch.dtype) -> LinearBounds:
        """Nearly the same bounds in another format, rounding free of charge: quick, and no proofs."""
        device = self.region.lower.device
        method = replace(self.method, rounding="nearest")
        graph, region = self.graph.to(dtype, device), brought(self.region, dtype)
        knowledge = self.knowledge.to(dtype)
        return LinearBounds(graph, region, method, self.structure, self.memory, self.deadline, knowledge, self.joint)

    def _like(self, region: Region, knowledge: Knowledge) -> LinearBounds:
        graph, method = self.graph, self.method
        return LinearBounds(graph, region, method, self.structure, self.memory, self.deadline, knowledge, self.joint)

    def check_time(self) -> None:
        """Raise OutOfTime after the deadline or an interrupt; called between pieces of work."""
        if passed(self.deadline):
            raise OutOfTime

    # What is known of a node on its own

    def interval(self, index: int, consumer: Elementwise | None = None) -> Interval:
        """The best bounds ``[B, *shape]`` at hand for one node, found by a walk where that can gain something.

        Entries on which ``consumer`` is already linear need no better bounds and get none.
        """
        if index < 0:
            return self.region.lower, self.region.upper
        return self.knowledge.find("interval", index, lambda: self._tightest(index, consumer))

    def prepare(self, index: int) -> None:
        """Find what the entrywise relaxations up to a node need, first to last, so that walks do not nest deeply."""
        for node in self.graph.nodes[: index + 1]:
            if isinstance(node.operator, Elementwise):
                self.interval(node.inputs[0], node.operator)

    def rough(self, index: int) -> Interval:
        """Bounds by interval arithmetic on whatever is known of earlier nodes; starts no walk."""
        if index < 0:
            return self.region.lower, self.region.upper
        knowledge = self.knowledge
        if index in knowledge.known("interval"):
            return self.interval(index)

        def prove() -> Interval:
            for earlier in sorted(set(range(index)) - knowledge.known("rough")):  # so that rules do not nest deeply
                self.rough(earlier)
            node = self.graph.nodes[index]
            return node.operator.interval(*(self.rough(i) for i in node.inputs))

        return knowledge.find("rough", index, prove)

    def _tightest(self, index: int, consumer: Elementwise | None) -> Interval:
        node, source = self.graph.nodes[index], self.structure.source(index)
        if source != index:
            lower, upper = self.interval(source, consumer if source >= 0 else None)
            order = self.structure.order(index)
            return reorder(lower, order, node.shape), reorder(upper, order, node.shape)
        if self.method.everywhere:
            return self.walked(index, None)
        return _ordered(*self.knowledge.met("rough", index, tightest(node.operator, self, index, consumer)))

    def walked(self, index: int, consumer: Elementwise | None) -> Interval:
        """Bounds by one walk for every entry that can gain from it, met with interval arithmetic."""
        node, everywhere = self.graph.nodes[index], self.method.everywhere
        lower, upper = (
            node.operator.interval(*(self.interval(i) for i in node.inputs)) if everywhere else self.rough(index)
        )
        useful = torch.ones_like(lower, dtype=torch.bool).flatten(1)
        if consumer is not None:
            useful = ~_already_linear(consumer, lower, upper)
        wanted = useful.any(0).nonzero()[:, 0]
        if self.structure.end(index, len(wanted)) == index:
            return lower, upper
        lower, upper = lower.clone(), upper.clone()
        ordered, together = by_position(wanted, node.shape)
        for entries in pieces(ordered, max(1, min(together, self.chunk(index)))):
            self.check_time()
            units = lower.new_zeros(len(entries), 1, math.prod(node.shape))
            units[positions(entries), 0, entries] = 1
            low, high = self.between(index, units.reshape(len(entries), 1, *node.shape), together=len(wanted))
            flat_lower, flat_upper = lower.flatten(1), upper.flatten(1)
            # Only where the instance itself needs it: its bounds must not depend on the company it is in.
            low, high = (
                torch.where(useful[:, entries], end.T, nothing) for end, nothing in ((low, -math.inf), (high, math.inf))
            )
            flat_lower[:, entries] = torch.maximum(flat_lower[:, entries], low)
            flat_upper[:, entries] = torch.minimum(flat_upper[:, entries], high)
            lower, upper = flat_lower.reshape(lower.shape), flat_upper.reshape(upper.shape)
        return _ordered(lower, upper)

    def differences(self, index: int) -> Interval | None:
        """Bounds ``[B, rows, K, K]`` on ``x_j - x_k`` within the rows of a softmax, if known."""
        return self.knowledge.find("differences", index, lambda: softmaxes.differences(self, index))

    # What rounding costs

    def share(self, operations: int) -> float:
        """The share of the sum of absolute values that so many successive operations cost; 0 when rounding is free."""
        return share(operations, self.region.lower.dtype) if self.outward else 0.0

    def sizes(self, index: int) -> Tensor:
        """The largest absolute value ``[B, *shape]`` of every entry of a node, without a walk for its own sake."""

        def prove() -> Tensor:
            self.prepare(index)  # functions defined on a part of the line must not meet rough bounds
            return largest(*self.rough(index))

        return self.knowledge.find("sizes", index, prove)

    def charge(self, A: Tensor, weights: Tensor) -> Tensor:
        """``<|A|, weights>``; coefficients of zero cost nothing, not even where the node is unbounded."""
        sizes = A.detach().abs().flatten(2)
        flat = weights.flatten(1)
        if bool(flat.isfinite().all()):
            return inner(sizes, flat)
        unbounded = ~flat.isfinite()
        met = inner((sizes != 0).to(sizes), unbounded.to(sizes)) > 0
        return torch.where(met, math.inf, inner(sizes, torch.where(unbounded, 0.0, flat)))

    def charge_of_step(self, index: int, A: Tensor, where: Some | None = None) -> Tensor:
        """What the rounding of an affine step costs, and the underflow of any step, where errors are not relative.

        ``where``: the coefficients are those of some positions, the others being zero.
        """
        weights, floor = self.knowledge.find("costs", index, lambda: self._costs(index))
        if weights is None:
            return floor
        return floor + self.charge(A, weights if where is None else where.of(weights, 1))

    def _costs(self, index: int) -> tuple[Tensor | None, Tensor]:
        """What one unit of every coefficient costs, ``[B, *shape]`` (None: nothing), and what any step costs."""
        node = self.graph.nodes[index]
        sizes = [self.sizes(i) for i in node.inputs]
        entries = math.prod(node.shape)
        reach = torch.stack([torch.where(s.isfinite(), s, 0.0).flatten(1).sum(1) for s in sizes]).sum(0)
        weights = None
        if isinstance(node.operator, Affine) and not node.operator.exact_backward:
            # Every coefficient passed back, and the constant, is a sum over at most all entries of the node.
            weights = self.share(entries) * node.operator.magnitude(*sizes)
        if isinstance(node.operator, Affine) and node.operator.slack:
            weights = (0.0 if weights is None else weights) + torch.full_like(sizes[0], node.operator.slack)
        return weights, (entries + 1) * underflow(reach.dtype) * (1 + reach)

    # Linear functions of a node

    def between(self, index: int, coefficients: Tensor, contract: bool = False, together: int = 0) -> Interval:
        """Lower and upper bounds ``[S, B]`` on ``<coefficients, node>`` for one chunk of specifications.

        ``together``: how many there are in all chunks, if they may end before the input where that is very much work.
        """
        return self._walk(index, coefficients, True, contract, None, self.structure.end(index, together))

    def lower(self, index: int, coefficients: Tensor, contract: bool = False, free: Free | None = None) -> Tensor:
        """Lower bounds ``[S, B]`` on ``<coefficients, node>``."""
        return self._walk(index, coefficients, False, contract, free)[0]

    def chunk(self, index: int) -> int:
        """How many specifications on a node fit the memory at once, and stay near the processor."""
        each = 8 * self.size * self.structure.width(index, self._stem() is None)
        return max(1, min(self.memory // each, max(_ROWS, _NEAR // each)))

    def remembers(self, index: int, specifications: int) -> bool:
        """Whether the walks of so many specifications on a node may be kept for differentiation."""
        return 2 * specifications * self.size * self.structure.volume(index) * 8 <= 32 * self.memory

    def _walk(self, index: int, C: Tensor, both: bool, contract: bool, free: Free | None, end: int = -1) -> Interval:
        """Bounds by a walk that ends at the input, or at the first node that is not behind ``end``."""
        walk = _Concretised(self, index, both, contract, free)
        # The rows that are asked about are walked to the end: there are few of them, and every digit counts.
        first = self._stem() if both and end < 0 and free is None and not C.requires_grad else None
        walk.sources = range(-1, end + 1) if first is None else (-1, first[0])
        claim = walk.back(Claim.on(index, C))
        if first is not None and first[0] in claim.pending:
            middle, reach = first[1].around(claim.pending[first[0]])
            lower = self._total(claim.bound.expand(-1, self.size), middle - reach)
            upper = -self._total(claim.negated().bound.expand(-1, self.size), -middle - reach)
        else:
            lower = self.input_minimum(claim)
            upper = -self.input_minimum(claim.negated()) if walk.shared else lower
        if walk.shared:
            return _sound(lower, -math.inf), _sound(upper, math.inf)
        lower = _sound(lower if walk.best is None else torch.maximum(lower, walk.best), -math.inf)
        half = C.shape[0]
        return lower[:half], -lower[half:]

    def functions(self, index: int, coefficients: Tensor) -> tuple[Claim, Claim]:
        """Claims on ``<coefficients, node>`` and on its negation in which nothing but the input is pending."""
        walk = _Concretised(self, index, True, False, None)
        claim = walk.back(Claim.on(index, coefficients))
        if walk.shared:
            return claim, claim.negated()
        half = coefficients.shape[0]
        pending = [
            dict(zip(claim.pending, parts)) for parts in zip(*((A[:half], A[half:]) for A in claim.pending.values()))
        ] or [{}, {}]
        below, above = (
            Claim(pending[k], claim.constant[part], claim.charge[part])
            for k, part in enumerate((slice(half), slice(half, None)))
        )
        return below, above

    def parallel(self, index: int, coefficients: Tensor) -> tuple[Claim, Tensor]:
        """Claims on ``<coefficients [S, B or 1, *shape], node>`` with only the input pending, and noise.

        What activations add to their lines is ``[S, B, n]`` times n numbers between -1 and 1, the same for all claims.
        """
        walk = _Parallel(self)
        claim = walk.back(Claim.on(index, coefficients))
        return claim, torch.cat((coefficients.new_zeros(len(coefficients), self.size, 0), *walk.noise), 2)

    def input_minimum(self, claim: Claim) -> Tensor:
        """The bound that the region gives and, for a walk that ended before the input, what is known of nodes there."""
        return self._minimum(claim, self.rough)

    def concretised(self, claim: Claim) -> Tensor:
        """The bound that the intervals of the pending nodes give, without walking further."""
        return self._minimum(claim, self.interval)

    def _minimum(self, claim: Claim, known: Callable[[int], Interval]) -> Tensor:
        """The bound over all that is pending; adding its parts is the last operation that rounds."""
        total = claim.bound.expand(-1, self.size)
        for index, A in claim.pending.items():
            region = self.region if index < 0 else Region(*known(index))
            total = self._total(total, region.minimum(A, self.outward))
        return total

    def _total(self, one: Tensor, other: Tensor) -> Tensor:
        """A sum, less what its rounding costs."""
        return one + other - self.share(1) * (one.detach().abs() + other.detach().abs())

    def _stem(self) -> tuple[int, Stem] | None:
        """A first layer that is taken together with the region, and its node."""
        index = self.structure.stem
        if index is None or not self.outward or self.method.everywhere:
            return None
        operator = self.graph.nodes[index].operator
        assert isinstance(operator, Conv)
        found = self.knowledge.find("stem", index, lambda: Stem.of(operator, self.region))
        return None if found is None else (index, found)


class LinearWalk(Walk):
    """Every node by the linear relaxation that ``bounds`` has of it; rounding is charged as ``bounds`` says."""

    def __init__(self, bounds: LinearBounds, contract: bool = False, free: Free | None = None) -> None:
        self.bounds, self.contract, self.free = bounds, contract, free

    def arrive(self, index: int, claim: Claim) -> Claim:
        self.bounds.check_time()
        return claim

    def step(self, index: int, A: Tensor) -> Step:
        node = self.bounds.graph.nodes[index]
        backs, shift = step(node.operator, self.bounds, index, A, self.contract, self.free)
        return zip(node.inputs, backs), shift

    def cost_of_step(self, index: int, A: Tensor, constant: Tensor) -> Tensor | float:
        bounds = self.bounds
        return bounds.charge_of_step(index, A) + bounds.share(1) * constant.detach().abs() if bounds.outward else 0.0

    def cost_of_sum(self, index: int, A: Tensor) -> Tensor | float:
        bounds = self.bounds
        return bounds.share(1) * bounds.charge(A, bounds.sizes(index)) if bounds.outward else 0.0


class _Parallel(LinearWalk):
    """A walk that takes activations by parallel lines, and what is between them as noise of their own."""

    def __init__(self, bounds: LinearBounds) -> None:
        super().__init__(bounds)
        self.noise: list[Tensor] = []  # what every row is moved by, [S, B, noise]

    def step(self, index: int, A: Tensor) -> Step:
        node, bounds = self.bounds.graph.nodes[index], self.bounds
        if not isinstance(node.operator, Elementwise):
            return super().step(index, A)
        (before,) = node.inputs
        rate, middle, radius = parallel_band(node.operator, *bounds.interval(before, node.operator))
        noisy = (radius > 0).flatten(1).any(0)
        self.noise.append(A.flatten(2)[..., noisy] * radius.flatten(1)[:, noisy])
        shift = A * middle
        # A product for the slope and one for the constant, a sum over all entries.
        cost = bounds.share(1) * rate.abs() * bounds.sizes(before) + bounds.share(math.prod(node.shape)) * middle.abs()
        return ((before, A * rate),), shift.flatten(2).sum(-1) - bounds.charge(A, cost)


class _Concretised(LinearWalk):
    """A walk for one side or for both, which share it (``shared``) up to the first relaxation.

    Where the method says so it takes the bound that intervals give at every node and keeps the best.
    """

    def __init__(self, bounds: LinearBounds, index: int, both: bool, contract: bool, free: Free | None) -> None:
        super().__init__(bounds, contract, free)
        self.first, self.shared = index, both
        self.best: Tensor | None = None
        self.some: dict[int, Some] = {}  # by pending node: where its coefficients are, which are kept without zeros

    def back(self, claim: Claim) -> Claim:
        ((index, A),) = claim.pending.items()
        plain = self.contract or self.free is not None or self.bounds.method.everywhere or A.requires_grad
        where = None if plain else some(A)
        if where is None:
            return super().back(claim)
        self.some = {index: where}
        claim = Claim({index: where.of(A, 2)}, claim.constant, claim.charge)
        while inner := [i for i in claim.pending if i not in self.sources]:
            claim = self._next(max(inner), self.arrive(max(inner), claim))
        return replace(claim, pending={i: self._whole(i, A) for i, A in claim.pending.items()})

    def _next(self, top: int, claim: Claim) -> Claim:
        """The claim with one node replaced, coefficients without their zeros as long as there is a rule for that."""
        pending, bounds = dict(claim.pending), self.bounds
        A, where, node = pending.pop(top), self.some.get(top), bounds.graph.nodes[top]
        found = None if where is None else some_step(node.operator, bounds, top, A, where)
        if found is None:
            A, where = self._whole(top, A), None
            backs, shift = self.step(top, A)
            found = [(back, None) for _, back in backs], shift
        self.some.pop(top, None)
        placed, shift = found
        constant, charge = claim.constant + shift, claim.charge
        if bounds.outward:
            charge = charge + bounds.charge_of_step(top, A, where) + bounds.share(1) * constant.abs()
        for i, (back, there) in zip(node.inputs, placed):
            if i not in pending:
                pending[i] = back
                self.some |= {} if there is None else {i: there}
                continue
            if there is None or not there.same(self.some.get(i)):
                back = back if there is None else there.whole(back, bounds.graph.shape_of(i))
                pending[i], there = self._whole(i, pending[i]), None
            pending[i] = pending[i] + back
            if bounds.outward:
                sizes = bounds.sizes(i)
                charge = charge + bounds.share(1) * bounds.charge(
                    pending[i], sizes if there is None else there.of(sizes, 1)
                )
        return Claim(pending, constant, charge)

    def _whole(self, index: int, A: Tensor) -> Tensor:
        """The coefficients of a pending node with their zeros, from now on."""
        where = self.some.pop(index, None)
        return A if where is None else where.whole(A, self.bounds.graph.shape_of(index))

    def arrive(self, index: int, claim: Claim) -> Claim:
        claim = super().arrive(index, claim)
        bounds, everywhere = self.bounds, self.bounds.method.everywhere
        if self.shared and (everywhere or not isinstance(bounds.graph.nodes[index].operator, Affine)):
            claim, self.shared = claim.both_sides(), False
        if everywhere and index != self.first:
            here = _sound(bounds.concretised(claim), -math.inf)
            self.best = here if self.best is None else torch.maximum(self.best, here)
        return claim


def _already_linear(operator: Elementwise, lower: Tensor, upper: Tensor) -> Tensor:
    """Mask ``[B, entries]``: relaxing these loses nothing."""
    lines = operator.lines(lower, upper)
    same = (lines.lower_slope == lines.upper_slope) & (lines.lower_offset == lines.upper_offset)
    return same.flatten(1)


def reorder(t: Tensor, order: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The entries of every instance in the order of a node that repeats them."""
    return t.flatten(1)[:, order.to(t.device)].reshape(t.shape[0], *shape)


def _ordered(lower: Tensor, upper: Tensor) -> Interval:
    """Two sound bounds of one value may cross by rounding where it is nearly a point; keep them in order."""
    return torch.minimum(lower, upper), torch.maximum(lower, upper)


def _sound(bound: Tensor, nothing: float) -> Tensor:
    """A NaN or an infinity (overflow on the way) says nothing."""
    return torch.where(bound.isfinite(), bound, torch.full_like(bound, nothing))
