"""What follows from what: claims about linear functions of tensors, each derived from the model and earlier claims.

A *walk* starts with coefficients C on a tensor and replaces node after node, last first, by a linear lower bound in its
inputs; after every step ``<C, tensor> >= sum_i <A_i, pending node i> + constant`` for every input of the region. All
coefficients are balls; where the sign of a coefficient decides which side of a relaxation is used, its positive and
its negative part take one side each. What a walk needs to choose (slopes, weights, planes) is asked of ``rules``: the
certificate when checking. Any choice within its range gives a true bound, so nothing of it has to be believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from flint import arb, arb_mat

from .balls import (
    ONE,
    ZERO,
    Balls,
    Floats,
    euclidean,
    exact,
    is_zero,
    largest,
    magnitude,
    matrix,
    minimum_over,
    negative,
    outward,
    positive,
    round_down,
    round_up,
    times,
    zeros,
)
from .cells import Lines, RowQuadratic, below
from .certificate import Refused
from .curves import least_above
from .forms import LARGEST_FORM, Form, Forms, Mixed, Part, identity, pairs_within
from .network import Curve, Input, Kink, Matrix, Networks, Node, Product, Softmax, Sum, View, inputs_of
from .positions import Places
from .quadratic import least, least_by_corners
from .softmax_planes import Logits, NotAPlane, lower_plane, upper_plane

Rule = Mapping[str, Any]
Rules = Callable[[int, Any], Rule | None]  # of a node and its coefficients; of the input, linear part and squares


@dataclass(frozen=True)
class Region:
    """A box, met with a ball of radius ``eps`` around ``centre`` in the l_1 or l_2 norm where one is given.

    ``scale``: the unit of every entry in that norm, 0 for one that does not move; None: 1.
    """

    lower: Floats
    upper: Floats
    centre: Floats | None = None
    eps: float = 0.0
    norm: int = 0
    scale: Floats | None = None

    @property
    def is_box(self) -> bool:
        """Whether it is nothing but its box."""
        return self.centre is None

    def minimum(self, rows: Balls) -> Balls:
        """Theorem: over a box ``a.x >= a.m - |a|.r`` (middle, reach), over a ball ``a.x >= a.c - eps |a s|_*``.

        The region lies in both, so the larger holds; ``|.|_*`` is the largest entry for l_1, the l_2 norm for l_2. With
        units s a point of the ball is ``c + s w``, ``|w| <= eps``. Where c is at the lower end of the box ``x >= c``,
        so that a_i >= 0 adds at least ``a_i c_i``: such entries have no part in the norm, nor a_i <= 0 at an upper end.
        """
        best = minimum_over(rows, self.lower, self.upper)
        if self.centre is None:
            return best
        size = magnitude(rows) if self.scale is None else magnitude(rows) * exact(self.scale)
        for edge, sign in ((self.lower >= self.centre, 1), (self.upper <= self.centre, -1)):
            for entry in np.flatnonzero(edge):
                held = [bool(sign * a >= 0) for a in rows[:, entry]]
                size[held, entry] = arb(0)
        reach = [(largest if self.norm == 1 else euclidean)(row) for row in size]
        ball = times(rows, matrix(exact(self.centre)[:, None]))[:, 0] - arb(self.eps) * np.array(reach, dtype=object)
        return np.array([a.max(b) for a, b in zip(best, ball)], dtype=object)


@dataclass(frozen=True)
class Choices(Region):
    """Finitely many points in a box: position p holds a row of ``options[p] [n, d]``, the first being its own.

    At most ``at_most`` positions hold another than their own; None: any number.
    """

    options: tuple[Floats, ...] = ()
    at_most: int | None = None

    @property
    def is_box(self) -> bool:
        """It is not: points of it are chosen, position by position."""
        return False

    def minimum(self, rows: Balls) -> Balls:
        """Theorem: a point is its own rows with those of some positions S replaced, ``|S| <= at_most``.

        So ``a.x`` is the sum of ``a_p.own_p`` and of ``a_p.(option - own_p)`` over S; each of the latter is at least
        the least such difference of its position, or 0, and S takes no more than the ``at_most`` least of them.
        """
        d = self.options[0].shape[1]
        found, gains = zeros(len(rows)), []
        for p, options in enumerate(self.options):
            values = times(rows[:, p * d : (p + 1) * d], matrix(exact(options).T))
            found = found + values[:, 0]
            gains.append([min(round_down(v - row[0]) for v in row) for row in values])
        least = np.sort(np.minimum(np.array(gains), 0.0), axis=0)[: self.at_most]
        return found + exact(least).sum(0)


@dataclass(frozen=True)
class Functions:
    """Proved linear functions of one node: ``lower <= rows @ node <= upper``."""

    node: int
    rows: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True)
class ProvedPlanes:
    """Proved planes of one softmax: ``[P, rows, K]`` offsets and ``[P, rows, K, K]`` slopes, below and above."""

    node: int
    below_slope: Balls
    below: Balls
    above_slope: Balls
    above: Balls


@dataclass(frozen=True)
class Cut:
    """One side of a cut: ``sign (x - value) <= 0`` for the one entry x of a view, or the difference x of its two."""

    view: View
    value: float
    sign: int  # 1: at most the value, -1: at least

    def row(self) -> Balls:
        """The coefficients of x on what stands in the view."""
        return exact(np.array([1.0, -1.0])[: self.view.size])


@dataclass
class Walk:
    """Where a walk stands: ``<C, tensor>`` is at least the sum of all of this, for every input of the region.

    ``sum_i <pending[i], node i> + constant + sum of the quadratics, and of what is mixed``: one number per row of C.
    What a step takes off a node comes back through ``step`` and nothing leaves: ``Knowledge.least`` is the only way to
    a number.
    """

    pending: dict[int, Balls]
    constant: Balls
    quadratics: list[Part] = field(default_factory=list)
    mixed: dict[int, Mixed] = field(default_factory=dict)  # by softmax

    @property
    def top(self) -> int:
        """The last node that coefficients stand on."""
        return max(self.pending)

    def step(self, found: dict[int, Balls], shift: Balls, *quadratics: Part | Mixed) -> None:
        """Replaces a node: coefficients go to its inputs, the rest to the constant or to the quadratics."""
        for i, back in found.items():
            self.pending[i] = self.pending[i] + back if i in self.pending else back
        self.constant = self.constant + shift
        for part in quadratics:
            if isinstance(part, Part):
                self.quadratics.append(part)
            elif self.mixed.setdefault(part.node, part) is not part:
                raise Refused("a softmax that mixes the values of two products")


class Knowledge:
    """Everything proved so far about the tensors of the networks over one region."""

    def __init__(self, networks: Networks, region: Region) -> None:
        self.networks, self.region = networks, region
        self.cuts: tuple[Cut, ...] = ()
        self.functions: dict[int, Functions] = {}
        self.planes: dict[int, ProvedPlanes] = {}
        self.forms = Forms(self)
        self._claimed: dict[int, tuple[Floats, Floats]] = {}
        self._apart: dict[int, dict[tuple[int, int], float]] = {}
        self._boxes: dict[int, tuple[Floats, Floats]] = {}
        self._lines: dict[tuple[Any, ...], Balls] = {}  # offsets of lines beside curves
        self._weights: dict[int, arb_mat] = {}  # by identity of the node; the networks keep them alive
        self._below: dict[tuple[Any, ...], list[Floats]] = {}  # by fit: the boxes that it is proved in

    @property
    def size(self) -> int:
        """How many numbers were claimed, which every cell gets a copy of."""
        claimed = sum(low.size for low, _ in self._claimed.values())
        return claimed + sum(len(known) for known in self._apart.values())

    def within(self, region: Region, cuts: Sequence[Cut]) -> Knowledge:
        """What is known in a cell: the part of ``region``, itself a part of this one, where all ``cuts`` hold.

        Theorem: what holds for every input of a region holds for every input of a part of it. So all that was proved
        stays, and an entry or a difference that is cut lies on its side of the value, too. Affine forms are found anew.
        """
        found = Knowledge(self.networks, region)
        found.cuts = (*self.cuts, *cuts)
        found.functions, found.planes = dict(self.functions), dict(self.planes)
        found._claimed = {i: (low.copy(), high.copy()) for i, (low, high) in self._claimed.items()}
        found._apart = {i: dict(known) for i, known in self._apart.items()}
        found._lines, found._weights = self._lines, self._weights  # of ranges and nodes that their keys name
        found._below = self._below  # of weights and boxes
        if region is self.region:
            found._boxes = dict(self._boxes)
        for cut in cuts:
            low, high = (np.array([end]) for end in ((-np.inf, cut.value) if cut.sign > 0 else (cut.value, np.inf)))
            if cut.view.size == 2:
                found.learn_differences(cut.view, Places([(0, 1)], 2), low, high)
                continue
            node, boxes = cut.view.node, found._boxes
            found.learn_entries(cut.view, cut.view.places(), low, high)
            if node in boxes:  # those of later nodes stay true, and need not be found again
                (lower, upper), (low, high) = boxes[node], found._claimed[node]
                found._boxes = boxes | {node: (np.maximum(lower, low), np.minimum(upper, high))}
        return found

    # What is known of a node

    def box(self, view: View) -> tuple[Floats, Floats]:
        """Proved ranges of the entries of a view."""
        lower, upper = self._box(view.node)
        return view.index.of(lower), view.index.of(upper)

    def _box(self, index: int) -> tuple[Floats, Floats]:
        for i in self.networks.before([index], self._boxes) if index not in self._boxes else ():
            lower, upper = self._interval(self.networks.nodes[i])
            if i in self._claimed:
                lower, upper = np.maximum(lower, self._claimed[i][0]), np.minimum(upper, self._claimed[i][1])
            self._boxes[i] = lower, upper
        return self._boxes[index]

    def _interval(self, node: Node) -> tuple[Floats, Floats]:
        """Interval arithmetic on the boxes of the inputs of a node.

        Theorem: monotone nodes take their ends to their ends; ``x y`` lies between the least and the largest of its
        four corners; an affine function has its least value over a box at a corner.
        """
        if isinstance(node, Input):
            return self.region.lower, self.region.upper
        if isinstance(node, Kink):
            lower, upper = (exact(np.minimum(end, node.limit)) for end in self.box(node.x))
            slope = arb(node.slope)
            return outward(*(positive(end) + slope * negative(end) for end in (lower, upper)))
        if isinstance(node, Curve):
            flat = np.zeros(node.size)
            return outward(self.offsets(node, flat, 1), self.offsets(node, flat, -1))
        if isinstance(node, Softmax):
            ends = [end for row in range(len(node.rows.at)) for end in self._probabilities(node, row)]
            found = np.empty((2, node.size))
            found[:, node.outputs.flat] = np.array(ends).T  # each entry stands in one row
            return found[0], found[1]
        if isinstance(node, Product):
            (lx, ux), (ly, uy) = ((exact(end) for end in self.box(view)) for view in (node.x, node.y))
            corners = [node.left.of(a) * node.right.of(b) for a in (lx, ux) for b in (ly, uy)]
            return outward(*(node.out.spread(_fold(end, corners)[None])[0] for end in (arb.min, arb.max)))
        at_input = any(view.node == 0 for view in inputs_of(node)) and not self.region.is_box
        widest = max(node.size, *(self.networks.nodes[view.node].size for view in inputs_of(node)))
        if not at_input or node.size * widest > LARGEST_FORM:  # the box of the region will have to do
            return outward(*self._ends(node))
        units = identity(node.size)
        least, most = (minimum_of(self, self.back(node, sign * units)) for sign in (ONE, -ONE))
        bias = exact(node.bias) if isinstance(node, Sum) else ZERO
        return outward(least + bias, -most + bias)

    def _ends(self, node: Sum | Matrix) -> tuple[Balls, Balls]:
        """The least and the largest value of every entry of an affine node over the boxes of its inputs.

        Theorem: ``c.x`` lies within ``|c|.r`` of ``c.m`` (middle, reach), where all coefficients of an entry of x are
        one number. An entry of x that counts 0 times must be a number all the same.
        """
        if isinstance(node, Matrix):
            entries, same = np.unique(node.x.index.at, return_inverse=True)
            rows = Places(same, len(entries)).spread(exact(node.weights))
            middle, reach = (matrix(part[entries][:, None]) for part in self._middle_and_reach(node.x.node))
            centre, apart = times(rows, middle)[:, 0], times(magnitude(rows), reach)[:, 0]
            return centre - apart, centre + apart
        centre, apart = exact(node.bias), zeros(node.size)
        for index in {view.node for view in node.views}:
            middle, reach = self._middle_and_reach(index)
            mine = [(v.index.at, s) for v, s in zip(node.views, node.scales) if v.node == index]
            if len(mine) == 1:
                ((entries, c),) = mine
                centre, apart = centre + c * middle[entries], apart + magnitude(c) * reach[entries]
                continue
            counts = [np.flatnonzero(~is_zero(scale).astype(bool)) for _, scale in mine]
            keys, same = np.unique(
                np.concatenate([at * len(middle) + entries[at] for at, (entries, _) in zip(counts, mine)]),
                return_inverse=True,
            )
            c = Places(same, len(keys)).spread(np.concatenate([s[at] for at, (_, s) in zip(counts, mine)])[None])[0]
            own, theirs = keys // len(middle), keys % len(middle)
            np.add.at(centre, own, c * middle[theirs])
            np.add.at(apart, own, magnitude(c) * reach[theirs])
            low, high = self._box(index)
            known = np.isfinite(low) & np.isfinite(high)
            for entries, _ in mine:
                centre[~known[entries]] = arb.nan()
        return centre - apart, centre + apart

    def _middle_and_reach(self, index: int) -> tuple[Balls, Balls]:
        """Of the box of a node; no numbers for an entry of which nothing is known."""
        low, high = (exact(end) for end in self._box(index))
        return (low + high) / 2, (high - low) / 2

    def visible(self, node: Softmax, row: int) -> list[int]:
        """The outputs of a row that no mask hides."""
        found: list[int] = np.flatnonzero(~node.hides[node.rows.at[row]]).tolist()
        return found

    def leak(self, node: Softmax, row: int) -> arb:
        """At least the hidden probabilities of a row together.

        Theorem: with the logit ``y_j`` of a hidden place and a visible one ``x_k``, ``p_j <= e^(y_j - x_k)``; so all of
        them together are at most their number times ``e^(largest upper end - largest lower end of a visible logit)``.
        """
        shown = self.visible(node, row)
        count = node.rows.shape[1] - len(shown)
        if not count or node.behind is None:
            return ZERO
        places = node.rows.at[row]
        away = np.delete(places, shown)
        _, highest = self.box(node.behind.at(Places(away, node.size)))
        lowest, _ = self.box(node.x.at(Places(places[shown], node.size)))
        top = float(highest.max())
        return ZERO if top == -np.inf else count * (arb(top) - arb(float(lowest.max()))).exp().min(ONE)

    def _probabilities(self, node: Softmax, row: int) -> list[tuple[float, float]]:
        """Theorem: with hidden probabilities d in all, ``p_k = (1 - d) q_k``, q the softmax of the visible logits."""
        shown, leak, x = self.visible(node, row), self.leak(node, row), self.logits(node, row)
        ends = [(0.0, min(1.0, round_up(leak)))] * node.rows.shape[1]
        for own, k in enumerate(shown):
            low, high = x.probability(own)
            ends[k] = max(0.0, round_down(arb(low) - leak)), high
        return ends

    def logits(self, node: Softmax, row: int) -> Logits:
        """What is known of the visible logits of one row, from what is known of the entries that stand there."""
        x = node.x.at(Places(node.rows.at[row][self.visible(node, row)], node.size))
        if x.size**2 > LARGEST_FORM:
            raise Refused("a softmax over more logits than the checker allows")
        low, high = self.box(x)
        known = self._apart.get(x.node, {})
        apart = np.array(
            [
                [
                    0.0 if i == j else max(known.get((i, j), -np.inf), round_down(arb(float(p)) - arb(float(q))))
                    for j, q in zip(x.index.flat, high)
                ]
                for i, p in zip(x.index.flat, low)
            ]
        )
        return Logits(low, high, apart)

    def difference(self, view: View, i: int, j: int) -> float:
        """A proved lower bound on the difference of what stands at two places of a tensor."""
        first, second = view.at(Places([i, j], view.size)).index.flat
        return 0.0 if first == second else self._apart.get(view.node, {}).get((first, second), -np.inf)

    # New claims

    def learn_entries(self, view: View, places: Places, lower: Floats, upper: Floats) -> None:
        """Theorem: what stands at a place is one entry of the node; all bounds proved of it hold at once."""
        size = self.networks.nodes[view.node].size
        low, high = self._claimed.setdefault(view.node, (np.full(size, -np.inf), np.full(size, np.inf)))
        entries = view.at(places).index
        np.maximum.at(low, entries.at, lower)
        np.minimum.at(high, entries.at, upper)
        self._renew(view.node)

    def learn_differences(self, view: View, pairs: Places, lower: Floats, upper: Floats) -> None:
        """Theorem: ``lower <= x_i - x_j <= upper`` gives ``x_j - x_i >= -upper``."""
        known = self._apart.setdefault(view.node, {})
        for (i, j), low, high in zip(view.at(pairs).index.at.tolist(), lower.tolist(), upper.tolist()):
            known[i, j] = max(known.get((i, j), -np.inf), low)
            known[j, i] = max(known.get((j, i), -np.inf), -high)
        self._renew(view.node)

    def learn_logits(self, index: int, own: bool = False) -> None:
        """The differences of the logits of a softmax as their forms give them; ``own``: by weights of their own.

        Theorem: ``centre + slope . e + rest`` lies within ``reach(slope)`` of the centre, plus the range of the rest.
        """
        node = self.networks.nodes[index]
        assert isinstance(node, Softmax)
        if not pairs_within(node).size:  # rows of which one entry is visible have no differences
            return
        pairs, lower, upper = self.forms.differences(index, own)
        self.learn_differences(node.x, pairs, *outward(lower, upper))

    def _renew(self, index: int) -> None:
        self._boxes = {i: box for i, box in self._boxes.items() if i < index}

    def derive_planes(self, index: int, below: Floats, above: Floats) -> ProvedPlanes:
        """Planes from ``below [P, R, K, 4]`` (reference, theta, alpha, gamma) and ``above [Q, R, K, K]`` (pulls)."""
        node = self.networks.nodes[index]
        if not isinstance(node, Softmax):
            raise Refused("planes of a node that is no softmax")
        R, K = node.rows.shape
        if below.shape[1:] != (R, K, 4) or above.shape[1:] != (R, K, K):
            raise Refused("planes of the wrong shape")
        found = [np.empty((len(p), R, K, *rest), dtype=object) for p in (below, above) for rest in ((K,), ())]
        for r in range(R):
            x, shown, leak = self.logits(node, r), self.visible(node, r), self.leak(node, r)
            for k in range(K):
                if k not in shown:  # between 0 and what leaks
                    for some, offset in ((found[:2], ZERO), (found[2:], leak)):
                        some[0][:, r, k], some[1][:, r, k] = ZERO, offset
                    continue
                own = shown.index(k)
                try:
                    for p, (J, theta, alpha, gamma) in enumerate(below[:, r, k].tolist()):
                        if int(J) != J or (J >= 0 and int(J) not in shown):
                            raise NotAPlane("a reference that is no whole number, or hidden")
                        J = shown.index(int(J)) if J >= 0 else -1
                        slope, offset = lower_plane(x, own, J, theta, alpha, gamma)
                        found[0][p, r, k], found[1][p, r, k] = _placed(slope, shown, K), offset - leak
                    for p in range(len(above)):
                        slope, offset = upper_plane(x, own, above[p, r, k][shown])
                        found[2][p, r, k], found[3][p, r, k] = _placed(slope, shown, K), offset
                except NotAPlane as problem:
                    raise Refused(f"plane of row {r}, output {k}: {problem}") from None
        return ProvedPlanes(index, *found)

    # Walks

    def lower_bounds(
        self, start: list[tuple[View, Balls]], rules: Rules, stops: bool = False, on_cuts: Floats | None = None
    ) -> Balls:
        """Lower bounds ``[S]`` on the sum of all ``<rows, tensor>``; with ``stops`` the best on the way.

        ``on_cuts [S, cuts]``: multipliers of the cuts of a cell. Theorem: where ``s (x - t) <= 0``,
        ``f >= f + b s (x - t)`` for every ``b >= 0``.
        """
        walk = Walk({}, zeros(len(start[0][1])))
        for view, rows in start:
            self.put(walk.pending, view, rows)
        if on_cuts is not None:
            if on_cuts.ndim != 2 or on_cuts.shape[1] != len(self.cuts):
                raise Refused("multipliers that are not one for every cut of the cell")
            shares = exact(_array({"cuts": on_cuts}, "cuts", len(walk.constant), len(self.cuts), low=0.0))
            for share, cut in zip(shares.T, self.cuts):
                self.put(walk.pending, cut.view, cut.sign * share[:, None] * cut.row())
                walk.constant = walk.constant - cut.sign * share * arb(cut.value)
        best = []
        while (top := walk.top) > 0:
            if stops:
                best.append(self.least(walk, rules))
            node, A = self.networks.nodes[top], walk.pending.pop(top)
            if isinstance(node, Sum | Matrix):
                shift = times(A, matrix(node.bias[:, None]))[:, 0] if isinstance(node, Sum) else zeros(len(A))
                walk.step(self.back(node, A), shift)
                continue
            rule = rules(top, A)
            if rule is None:
                raise Refused("the proof does not say how to pass this node")
            if isinstance(node, Product) and "split" in rule:
                walk.step(*self._split(node, A, rule))
            elif isinstance(node, Kink) and "bend" in rule:
                walk.step(*self._bent(top, A, rule))
            elif isinstance(node, Kink) and "kept" in rule:
                walk.step(*self._kept(top, A, rule))
            elif isinstance(node, Softmax) and "fit" in rule:
                walk.step(*self._fitted(top, A, rule, walk.mixed.pop(top, None)))
            else:
                rules_of = {Kink: self._kink, Curve: self._curve, Softmax: self._softmax, Product: self._product}
                pass_node = rules_of[type(node)]
                walk.step(*pass_node(top, A, rule))
        return _fold(arb.max, [*best, self.least(walk, rules)])

    def least(self, walk: Walk, rules: Rules) -> Balls:
        """The least value ``[S]`` of a walk wherever it stands; -inf where nothing is known of it.

        Theorem: the least value of a sum is at least the sum of the least values of its parts. Quadratics are bounded
        together with the coefficients on the input: a walk that carries some has no value before it is there, and none
        at all while a softmax has not taken what it mixes.
        """
        if not walk.quadratics and not walk.mixed:
            return walk.constant + minimum_of(self, walk.pending)
        if walk.top > 0 or walk.mixed:
            return np.full(len(walk.constant), arb.neg_inf(), dtype=object)
        return walk.constant + self._quadratic(walk.pending[0], walk.quadratics, rules)

    def put(self, pending: dict[int, Balls], view: View, rows: Balls) -> None:
        """Coefficients on the places of a view, added to those on the entries of its node.

        Theorem: ``sum_p c_p x_(index p) = sum_e (sum of c_p over all places p of e) x_e``.
        """
        if view.node not in pending:
            pending[view.node] = zeros(len(rows), self.networks.nodes[view.node].size)
        view.index.add(pending[view.node], rows)

    def back(self, node: Sum | Matrix, A: Balls) -> dict[int, Balls]:
        """Coefficients on the inputs of an affine node; exact up to the rounding that the balls contain.

        Theorem: ``<a, W x> = <W'a, x>`` and ``<a, sum_i s_i x_i> = sum_i <a s_i, x_i>``.
        """
        found: dict[int, Balls] = {}
        if isinstance(node, Matrix):
            key = id(node)
            if key not in self._weights:
                self._weights[key] = matrix(node.weights)
            self.put(found, node.x, times(A, self._weights[key]))
        else:
            for view, scale in zip(node.views, node.scales):
                self.put(found, view, A * scale)
        return found

    def _kink(self, index: int, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls]:
        """Below: through the kink with a chosen slope between both sides. Above: the chord.

        Theorem: ``y = max(x, s x)`` is convex, so it is below its chord over ``[l, u]``, and ``y >= t x`` for
        ``s <= t <= 1``. Where l >= 0 or u <= 0 it is linear.
        """
        node = self.networks.nodes[index]
        assert isinstance(node, Kink)
        share = _array(rule, "slope", len(A), node.size, low=0.0, high=1.0)
        share = share if np.ndim(rule["slope"]) > 1 else share[0]  # one slope per entry serves all rows
        slope, offset = self.chords(node)
        lower, upper = self._below_limit(node)
        left = arb(node.slope)
        below = np.where((lower < 0) & (upper > 0), left + (ONE - left) * exact(share), slope)
        up, down = positive(A), negative(A)
        found: dict[int, Balls] = {}
        self.put(found, node.x, up * below + down * slope)
        return found, times(down, matrix(offset[:, None]))[:, 0]

    def _bent(self, index: int, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls, Part]:
        """Kinks by parabolas of any slope s and any bend ``k >= 0``, below ``[0]`` and above ``[1]`` them.

        Theorem: over ``[l, u]`` with ``l < 0 < u``, ``g(x) = y - s x - k (x - l)(x - u)`` is concave on both sides of
        0. So it is at least the least of ``g(l)``, ``g(0)`` and ``g(u)``; and at most, on each side, the largest value
        at its ends of a tangent to it. With ``x = c + S e``, ``x^2 = 2 c x - c^2 + (S e)^2``, exactly. Where y is
        linear in x nothing is bent.
        """
        node = self.networks.nodes[index]
        assert isinstance(node, Kink)
        if len(A) != 1:
            raise Refused("parabolas for several rows of coefficients")
        slopes, bends = _array(rule, "slope", 2, node.size), _array(rule, "bend", 2, node.size, low=0.0)
        x, left = self.forms.bent(index), arb(node.slope)
        pull, bend, constant = zeros(node.size), zeros(node.size), ZERO
        for i, (low, high) in enumerate(zip(*(end.tolist() for end in self._below_limit(node)))):
            if low >= 0 or high <= 0:
                pull[i] = A[0, i] * (ONE if low >= 0 else left)
                continue
            first, last, c = arb(low), arb(high), x.centre[i]
            for side, part in enumerate((A[0, i].max(ZERO), A[0, i].min(ZERO))):
                s, k = arb(float(slopes[side, i])), arb(float(bends[side, i]))
                ends = [(first, left), (ZERO, ONE), (last, ONE)]
                if side == 0:
                    offset = reduce(arb.min, [(r - s) * e - k * (e - first) * (e - last) for e, r in ends])
                else:
                    offset = _peak(left - s, k, first, last, first, ZERO).max(
                        _peak(ONE - s, k, first, last, ZERO, last)
                    )
                pull[i] += part * (s + k * (2 * c - first - last))
                bend[i] += part * k
                constant += part * (offset + k * (first * last - c * c))
        found: dict[int, Balls] = {}
        self.put(found, node.x, pull[None])
        used = np.flatnonzero(~is_zero(bend).astype(bool))
        C = zeros(len(used), len(used))
        np.fill_diagonal(C, bend[used])
        return found, np.array([constant], dtype=object), Part(x.slope[used], C, x.slope[used], x.basis)

    def _kept(self, index: int, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls, Part]:
        """Kinks that stay in the quadratic, with multipliers ``kept [3, size]`` for what is known of them.

        Theorem: with the proved slope r of a chord, ``A y = A r x + A (y - r x)``. Of ``y = max(x, s x)``, ``s <= 1``,
        ``u = y - s x`` and ``v = y - x`` are not negative, and one of them is 0. So for any ``a, b >= 0`` and any c
        ``A y >= A y - a u - b v + c u v``. Where forms are ``x = x_c + X e`` and ``y = y_c + Y e``, so are u and v, and
        ``u v = u_c v_c + (u_c V + v_c U) e + (U e)(V e)``, exactly. Where y is linear in x it goes on as it is.
        """
        node = self.networks.nodes[index]
        assert isinstance(node, Kink)
        if len(A) != 1:
            raise Refused("kinks that stay for several rows of coefficients")
        kept = _array(rule, "kept", 3, node.size)
        if not (kept[:2] >= 0).all() or not node.slope <= 1:
            raise Refused("multipliers below 0")
        (rate, _), (low, high) = self.chords(node), self._below_limit(node)
        bent = np.flatnonzero((low < 0) & (high > 0))
        x, y = self.forms.kept(index)
        a, b, c = (exact(row[bent]) for row in kept)
        pull, r, s = A[0, bent], rate[bent], arb(node.slope)
        (x_c, X), (y_c, Y) = ((form.centre[bent], form.slope[bent]) for form in (x, y))
        (u, U), (v, V) = (y_c - s * x_c, Y - s * X), (y_c - x_c, Y - X)
        constant = (pull * (y_c - r * x_c) - a * u - b * v + c * u * v).sum()
        linear = times(pull[None], matrix(Y - r[:, None] * X)) - times((a - c * v)[None], matrix(U))
        linear = (linear - times((b - c * u)[None], matrix(V)))[0]
        found: dict[int, Balls] = {}
        self.put(found, node.x, A * rate)
        used = np.flatnonzero(kept[2, bent])
        C = zeros(len(used), len(used))
        np.fill_diagonal(C, c[used])
        return found, np.array([constant], dtype=object), Part(U[used], C, V[used], x.basis, linear)

    def _curve(self, index: int, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls]:
        """A line below and a line above every entry, of any slope.

        Theorem: ``f(x) >= s x + min (f - s x)`` and ``f(x) <= t x + max (f - t x)``, over the proved range of x.
        """
        node = self.networks.nodes[index]
        assert isinstance(node, Curve)
        below, above = (_array(rule, side, node.size) for side in ("below", "above"))
        up, down = positive(A), negative(A)
        found: dict[int, Balls] = {}
        self.put(found, node.x, up * exact(below) + down * exact(above))
        offsets = self.offsets(node, below, 1), self.offsets(node, above, -1)
        return found, sum(
            (times(part, matrix(o[:, None]))[:, 0] for part, o in zip((up, down), offsets)), zeros(len(A))
        )

    def offsets(self, node: Curve, slopes: Floats, side: int) -> Balls:
        """The least (side 1) or the largest (-1) value of ``f(x) - s x`` for every entry, over its proved range."""
        lower, upper = self.box(node.x)
        key = id(node), side, slopes.tobytes(), lower.tobytes(), upper.tobytes()
        if key not in self._lines:
            ends = zip(slopes.tolist(), lower.tolist(), upper.tolist())
            found = [side * least_above(node.kind, arb(slope), low, high, side) for slope, low, high in ends]
            self._lines[key] = np.array(found, dtype=object)
        return self._lines[key]

    def chords(self, node: Kink) -> tuple[Balls, Balls]:
        """Slopes and offsets of the lines above a kink over its proved range; where it is straight, of itself."""
        left = arb(node.slope)
        slope, offset = zeros(node.size), zeros(node.size)
        for i, (low, high) in enumerate(zip(*(end.tolist() for end in self._below_limit(node)))):
            if low >= 0 or high <= 0:
                slope[i] = ONE if low >= 0 else left
            else:
                slope[i] = (arb(high) - left * arb(low)) / (arb(high) - arb(low))
                offset[i] = arb(high) * (ONE - slope[i])
        return slope, offset

    def _below_limit(self, node: Kink) -> tuple[Floats, Floats]:
        """The range of what goes into a kink, where it is proved to stay below its limit."""
        lower, upper = self.box(node.x)
        if not (upper <= node.limit).all():
            raise Refused("an operand of a Clip that may exceed its limit")
        return lower, upper

    def _softmax(self, index: int, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls]:
        """Off every row a multiple of ``sum_k p_k = 1``, then mixtures of proved planes and constant bounds.

        Theorem: ``a.p = m + (a - m).p``; a mixture with weights >= 0 of bounds on p_k is a bound on p_k, the lower
        ones for coefficients above 0, the upper ones for those below.
        """
        node = self.networks.nodes[index]
        assert isinstance(node, Softmax)
        R, K = node.rows.shape
        S = len(A)
        planes = self.planes.get(int(rule["planes"]))
        if planes is None or planes.node != index:
            raise Refused("planes that were not derived for this node")
        multiplier = exact(_array(rule, "multiplier", S, R))
        rows = node.outputs.of(A) - multiplier[:, :, None]
        constant = multiplier.sum(1)
        slope = zeros(S, R, K)
        least, most = (node.outputs.of(end) for end in self._box(index))
        for part, name, slopes, offsets, rest in (
            (positive(rows), "below", planes.below_slope, planes.below, least),
            (negative(rows), "above", planes.above_slope, planes.above, most),
        ):
            weights = exact(_array(rule, name, len(offsets), R, K, low=0.0, high=1.0))
            left = ONE - weights.sum(0)
            if not all(w >= 0 for w in left.ravel()):
                raise Refused("weights of planes that add up to more than 1")
            value, gradient = left * exact(rest), zeros(R, K, K)
            for w, s, o in zip(weights, slopes, offsets):
                value, gradient = value + w * o, gradient + w[..., None] * s
            constant = constant + (part * value).sum((1, 2))
            for r in range(R):
                slope[:, r] += times(part[:, r], matrix(gradient[r]))
        found: dict[int, Balls] = {}
        self.put(found, node.x, node.rows.spread(slope.reshape(S, -1)))
        return found, constant

    def _split(self, node: Product, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls, Part | Mixed]:
        """One row as a linear function of both factors and a quadratic of the noise, which is bounded in the end.

        Theorem: ``x y = x_c y + y_c x - x_c y_c + (x - x_c)(y - y_c)`` for any numbers x_c, y_c; see ``Forms.split``.
        """
        if len(A) != 1 or rule["split"] not in (0, 1):
            raise Refused("a split of several rows, or of neither factor")
        found, shift, part = self.forms.split(node, A[0], rule["split"], rule.get("reference"), "mixed" in rule)
        return found, np.array([shift], dtype=object), part

    def _fitted(
        self, index: int, A: Balls, rule: Rule, mixed: Mixed | None
    ) -> tuple[dict[int, Balls], Balls, *tuple[Part, ...]]:
        """Every row of a softmax by a quadratic of the differences d to one of its logits, proved in ``cells``.

        Theorem: with ``y = d - o``, ``d = c + S e`` and ``k = c - o``, from ``a.p >= v + s.y + y'H y`` follows exactly
        ``a.p >= v + s.y + k'H k + 2 k'H S e + (S e)'H (S e)``: linear in the logits, and a quadratic of the noise.

        Where values ``W = V e`` are mixed, ``sum_k (p_k - c_k) W_k``, that of the reference is taken off the others, as
        ``sum_k (p_k - c_k) = 0``. For any number m, ``U = W - m``, line l and price t > 0, with ``r = 1 / (4 t)``,
        ``p U >= l U - r U^2 - t (p - l)^2``, as ``((p - l) sqrt(t) + U sqrt(r))^2 >= 0``. So
        ``a p + (p - c) W >= [(a + m) p - t (p - l)^2] + (l - r U) U - c W``: the bracket is what is fitted, and the
        rest a quadratic of the noise, as ``l = level + n.y = (level + n.k) + n.S e``.

        The fit may be one for other ``weights`` w: ``sum_k a_k p_k >= sum_k w_k p_k + min_k (a_k - w_k)``. It then
        depends on nothing of the region but the box of the differences, and holds in every part of that.
        """
        node = self.networks.nodes[index]
        assert isinstance(node, Softmax)
        R, K = node.rows.shape
        reference = np.asarray(rule["fit"])
        if len(A) != 1 or K == 1 or node.hidden is not None:
            raise Refused("a quadratic for several rows of coefficients, for rows of one or behind a mask")
        if ("price" in rule) != (mixed is not None):
            raise Refused("lines of probabilities that mix no values, or values without lines")
        if reference.shape != (R,) or reference.dtype.kind != "i" or reference.min() < 0 or reference.max() >= K:
            raise Refused("references that are no logits of their rows")
        given = {name: _array(rule, name, R, K - 1) for name in ("origin", "slope")}
        given |= {"matrix": _array(rule, "matrix", R, K - 1, K - 1), "value": _array(rule, "value", R)}
        if mixed is not None:
            given |= {"price": _array(rule, "price", R, K - 1, low=np.nextafter(0, 1))}
            given |= {"level": _array(rule, "level", R, K - 1), "lines": _array(rule, "lines", R, K - 1, K - 1)}
        if "weights" in rule:
            given["weights"] = _array(rule, "weights", R, K)
        origin, slope, bent, value = (exact(given[name]) for name in ("origin", "slope", "matrix", "value"))
        rows = node.outputs.of(A[0])
        H = (bent + bent.swapaxes(1, 2)) / 2
        others = np.array([np.delete(np.arange(K), J) for J in reference])
        places, last = np.take_along_axis(node.rows.at, others, 1), node.rows.at[np.arange(R), reference]
        pairs = [(i, J) for row, J in zip(places, last) for i in row]
        d = self.forms.apart(index, Places(pairs, node.size))
        if mixed is not None:
            price, level, beside = (exact(given[name]) for name in ("price", "level", "lines"))
            met = exact(_array(rule, "met", R, K - 1))
            d, values = self.forms.together(d, Form(mixed.centre, mixed.values, mixed.basis))
        total, on_logits = zeros(R * (K - 1), R * (K - 1)), zeros(1, node.size)
        constant, along, parts = value.sum(), zeros(R * (K - 1)), list[Part]()
        for r, J in enumerate(reference.tolist()):
            here = slice(r * (K - 1), (r + 1) * (K - 1))
            k = d.centre[here] - origin[r]
            total[here, here], along[here] = H[r], times(H[r], matrix(k[:, None]))[:, 0]
            constant += (along[here] * k).sum()
            lines = None
            if mixed is not None:
                m, lines = met[r], Lines(price[r], level[r], beside[r])
                rows[r, others[r]] += m
                V, rate = values.slope[places[r]] - values.slope[last[r]], ONE / (4 * lines.price)
                at = lines.level + times(lines.slope, matrix(k[:, None]))[:, 0]
                T = times(lines.slope, matrix(d.slope[here]))
                constant -= (m * (at + rate * m)).sum()
                at_values = at + 2 * rate * m - values.centre[places[r]]
                linear = (times(at_values[None], matrix(V)) - times(m[None], matrix(T)))[0]
                parts.append(Part(T - rate[:, None] * V, identity(K - 1), V, d.basis, linear))
            seen: list[Floats] = []
            if "weights" in rule:
                weights = exact(given["weights"][r])
                constant += reduce(arb.min, rows[r] - weights)
                rows[r] = weights
                seen = self._below.setdefault((J, *((name, part[r].tobytes()) for name, part in given.items())), [])
            f, x = RowQuadratic.of(rows[r], J, origin[r], slope[r], H[r], lines), self.logits(node, r)
            if not any((x.apart >= apart).all() for apart in seen):
                if not below(f, x, J, value[r]):
                    raise Refused(f"the quadratic of row {r} is not proved to lie below it")
                seen.append(x.apart)
            constant -= (slope[r] * origin[r]).sum()
            on_logits[0, places[r]] += slope[r]
            on_logits[0, last[r]] -= slope[r].sum()
        found: dict[int, Balls] = {}
        self.put(found, node.x, on_logits)
        parts.append(Part(d.slope, total, d.slope, d.basis, times(2 * along[None], matrix(d.slope))[0]))
        return found, np.array([constant], dtype=object), *parts

    def _quadratic(self, on_input: Balls, parts: list[Part], rules: Rules) -> Balls:
        """The least value of one row of coefficients on the input together with the quadratics met on the way.

        Theorem: both are functions of the same noise, ``c + l.e + e'B e``, bounded by ``quadratic.least`` or, over an
        l_1 ball, by ``quadratic.least_by_corners``.
        """
        constant, linear, B = self.forms.quadratic(on_input[0], parts)
        rule = rules(0, (linear, B))
        if rule is None:
            raise Refused("the proof does not say how to bound its quadratic")
        if "corners" in rule:
            if self.forms.noise.norm != 1:
                raise Refused("a quadratic is bounded by corners over an l_1 ball alone")
            return np.array([constant + least_by_corners(linear, B.dense(), self.forms.noise)], dtype=object)
        multipliers, point = (_array(rule, name, len(linear)) for name in ("multipliers", "point"))
        found = least(linear, B, multipliers, point, self.forms.noise)
        if found is None:
            raise Refused("multipliers that do not make the quadratic semidefinite")
        return np.array([constant + found], dtype=object)

    def _product(self, index: int, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls]:
        node = self.networks.nodes[index]
        assert isinstance(node, Product)
        if "pairs" in rule:
            return self._paired(node, A, rule)
        return self._contracted(node, A, rule) if "functions" in rule else self._term_by_term(node, A, rule)

    def _term_by_term(self, node: Product, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls]:
        """McCormick planes of every scalar product, mixed with one weight per output entry.

        Below ``x y``: ``w (l_y x + l_x y - l_x l_y) + (1 - w) (u_y x + u_x y - u_x u_y)``, as both factors of
        ``(x - l_x)(y - l_y) >= 0`` have one sign; above likewise from ``(x - l_x)(u_y - y) >= 0``.
        """
        below, above = (
            node.out.of(exact(_array(rule, name, node.size, low=0.0, high=1.0))) for name in ("below", "above")
        )
        lx, ux = (node.left.of(exact(end)) for end in self.box(node.x))
        ly, uy = (node.right.of(exact(end)) for end in self.box(node.y))
        C = node.out.of(A)
        up, down = positive(C), negative(C)
        on_x = up * (below * ly + (ONE - below) * uy) + down * (above * uy + (ONE - above) * ly)
        on_y = up * (below * lx + (ONE - below) * ux) + down * (above * lx + (ONE - above) * ux)
        low = below * lx * ly + (ONE - below) * ux * uy
        high = above * lx * uy + (ONE - above) * ux * ly
        found: dict[int, Balls] = {}
        self.put(found, node.x.at(node.left), on_x)
        self.put(found, node.y.at(node.right), on_y)
        return found, -(up * low + down * high).sum(1)

    def _contracted(self, node: Product, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls]:
        """``<A, product>`` as ``sum_a x_a f_a`` with linear functions f_a of the other factor, each bounded before.

        What the proved function misses of f_a is charged to its bounds over the box of the other factor. Theorem: for
        ``l <= x``, ``m <= f``: ``x f >= l f + m x - l m``; for ``x <= u``, ``f <= n``: ``x f >= u f + n x - u n``.
        """
        keep = int(rule["keep"])
        kept, other = (node.x, node.y) if keep == 0 else (node.y, node.x)
        proved = self._proved(other.node, rule["functions"])
        if keep not in (0, 1):
            raise Refused("keep is neither 0 nor 1")
        S, n = len(A), kept.size
        rows = np.asarray(rule["rows"])
        if rows.shape != (S, n) or rows.dtype.kind != "i" or rows.max() >= len(proved.rows) or rows.min() < -1:
            raise Refused("rows out of range")
        weight = _array(rule, "weight", S, n, low=0.0, high=1.0)
        factors, certain = self.factors(node, keep, A, rule.get("reference"))
        x_low, x_high = (exact(end) for end in self.box(kept))
        lower, upper = self._box(other.node)
        size = matrix(exact(np.maximum(np.abs(lower), np.abs(upper)))[:, None])
        on_kept, on_other, constant = zeros(S, n), certain, zeros(S)
        for (s, a), f in factors.items():
            row = rows[s, a]
            if row < 0:
                raise Refused("a factor without a proved function")
            missed = times(magnitude(f - exact(proved.rows[row]))[None], size)[0, 0]
            low, high = arb(float(proved.lower[row])) - missed, arb(float(proved.upper[row])) + missed
            w = arb(float(weight[s, a]))
            pull = w * x_low[a] + (ONE - w) * x_high[a]
            on_kept[s, a] = w * low + (ONE - w) * high
            on_other[s] = on_other[s] + pull * f
            constant[s] -= w * x_low[a] * low + (ONE - w) * x_high[a] * high
        found: dict[int, Balls] = {other.node: on_other}
        self.put(found, kept, on_kept)
        return found, constant

    def _paired(self, node: Product, A: Balls, rule: Rule) -> tuple[dict[int, Balls], Balls]:
        """``<A, product>`` as ``sum_n f_n(x) g_n(y)``, linear functions bounded before, and what these leave of A.

        Theorem: with ``D = A - sum_n f_n g_n'`` over the entries of both factors, ``<A, product>`` is exactly
        ``sum_n f_n g_n + sum_ij D_ij x_i y_j``; the f_n g_n as in ``_contracted``, and ``|x_i y_j| <= X_i Y_j``.
        """
        left, right = self._proved(node.x.node, rule["left"]), self._proved(node.y.node, rule["right"])
        pairs, sizes = np.asarray(rule["pairs"]), (left.rows.shape[1], right.rows.shape[1])
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind != "i" or not len(pairs):
            raise Refused("pairs that are none")
        if len(A) != 1 or max(*sizes, len(pairs)) * max(sizes) > LARGEST_FORM:
            raise Refused("pairs of functions for several rows, or too many")
        if pairs.min() < 0 or (pairs.max(0) >= (len(left.rows), len(right.rows))).any():
            raise Refused("pairs of functions that were not proved")
        w = exact(_array(rule, "weight", len(pairs), low=0.0, high=1.0))
        f, f_low, f_high = (exact(part[pairs[:, 0]]) for part in (left.rows, left.lower, left.upper))
        g, g_low, g_high = (exact(part[pairs[:, 1]]) for part in (right.rows, right.lower, right.upper))
        missed = zeros(*sizes)
        entries = node.x.at(node.left).index.at, node.y.at(node.right).index.at
        np.add.at(missed, entries, node.out.of(A)[0])
        missed = magnitude(missed - times(f.T, matrix(g)))
        boxes = self._box(node.x.node), self._box(node.y.node)
        X, Y = (exact(np.maximum(np.abs(low), np.abs(high))) for low, high in boxes)
        constant = -(times(missed, matrix(Y[:, None]))[:, 0] * X).sum()
        constant -= (w * f_low * g_low + (ONE - w) * f_high * g_high).sum()
        found: dict[int, Balls] = {}
        for factor, pull, rows in (
            (node.x, w * g_low + (ONE - w) * g_high, f),
            (node.y, w * f_low + (ONE - w) * f_high, g),
        ):
            self.put(found, self.networks.whole(factor.node), times(pull[None], matrix(rows)))
        return found, np.array([constant], dtype=object)

    def _proved(self, node: int, steps: Any) -> Functions:
        """The functions of several steps, one after the other."""
        found = [self.functions.get(int(step)) for step in steps]
        parts = [part for part in found if part is not None and part.node == node]
        if not parts or len(parts) < len(found):
            raise Refused("functions that were not proved for this factor")
        return Functions(
            node, *(np.concatenate([getattr(p, name) for p in parts]) for name in ("rows", "lower", "upper"))
        )

    def factors(self, node: Product, keep: int, A: Balls, reference: Any) -> tuple[dict[tuple[int, int], Balls], Balls]:
        """The functions f_a that are not zero, by row and kept place, and what is left without kept factor.

        ``reference[a]`` names for a place a of a softmax row G another place r of it (-1: none). As the entries of G
        add up to 1, ``sum_{a in G} x_a u_a = u_r + sum_{a in G} x_a (u_a - u_r)``.
        """
        kept, other = (node.x, node.y) if keep == 0 else (node.y, node.x)
        mine, theirs = (node.left, node.right) if keep == 0 else (node.right, node.left)
        S, size = len(A), self.networks.nodes[other.node].size
        stands_for = self.references(kept, reference)
        coefficients = node.out.of(A)
        used = ~is_zero(coefficients).astype(bool)
        kept_places, other_entries = mine.flat, other.at(theirs).index.flat
        found: dict[tuple[int, int], Balls] = {}
        certain = zeros(S, size)
        for s in range(S):
            u: dict[int, Balls] = {}
            for t in np.flatnonzero(used[s]).tolist():
                a = kept_places[t]
                if a not in u:
                    u[a] = zeros(size)
                u[a][other_entries[t]] += coefficients[s, t]
            for r, *members in stands_for:
                base = u.pop(r, None)
                if base is not None:
                    certain[s] = certain[s] + base
                    for a in members:
                        u[a] = u[a] - base if a in u else -base
            found |= {(s, a): f for a, f in u.items()}
        return found, certain

    def references(self, kept: View, reference: Any) -> list[list[int]]:
        """Groups of kept places at which whole softmax rows stand, each with its reference first.

        Theorem: the entries of one softmax row add up to 1; so do those of places that hold each of them once.
        """
        if reference is None:
            return []
        names = np.asarray(reference)
        node = self.networks.nodes[kept.node]
        if names.shape != (kept.size,) or names.dtype.kind != "i" or not isinstance(node, Softmax):
            raise Refused("references to anything but a softmax")
        rows = {frozenset(row.tolist()) for row in node.outputs.at}
        groups = []
        for r in np.unique(names[names >= 0]).tolist():
            members = np.flatnonzero(names == r).tolist()
            whole = kept.at(Places(members, kept.size)).index.flat
            if r not in members or len(set(whole)) < len(whole) or frozenset(whole) not in rows:
                raise Refused("a reference for something that is not one whole softmax row")
            groups.append([r, *(a for a in members if a != r)])
        return groups


def minimum_of(known: Knowledge, pending: dict[int, Balls]) -> Balls:
    """The least value ``[S]`` of pending coefficients over the boxes of their nodes."""
    parts = [minimum_over(A, *known._box(i)) if i else known.region.minimum(A) for i, A in pending.items()]
    return sum(parts[1:], start=parts[0])


def _array(rule: Rule, name: str, *shape: int, low: float = -np.inf, high: float = np.inf) -> Floats:
    found = np.asarray(rule[name])
    if found.dtype != np.float64 or not np.isfinite(found).all() or not ((found >= low) & (found <= high)).all():
        raise Refused(f"{name} holds numbers outside of their range")
    try:
        return np.broadcast_to(found, shape)
    except ValueError:
        raise Refused(f"{name} has shape {found.shape}, {shape} is expected") from None


def _peak(rate: arb, bend: arb, low: arb, high: arb, first: arb, last: arb) -> arb:
    """At least ``rate x - bend (x - low)(x - high)`` for all x from ``first`` to ``last``: a tangent at its ends.

    Theorem: a concave function lies below every tangent. That near the peak loses least; any other is as true.
    """
    middle = (low + high) / 2 + (rate / (2 * bend) if bend > 0 else ZERO)
    at = arb(float(middle.max(first).min(last))) if bend > 0 else first
    value, slope = rate * at - bend * (at - low) * (at - high), rate - bend * (2 * at - low - high)
    return (value + slope * (first - at)).max(value + slope * (last - at))


def _placed(slope: Balls, places: list[int], size: int) -> Balls:
    """Slopes at some places of a row, 0 at the others."""
    found = zeros(size)
    found[places] = slope
    return found


def _fold(function: Callable[[arb, arb], arb], arrays: list[Balls]) -> Balls:
    found = arrays[0]
    for other in arrays[1:]:
        found = np.array([function(a, b) for a, b in zip(found.flat, other.flat)], dtype=object).reshape(found.shape)
    return found
