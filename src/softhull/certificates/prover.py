"""Proofs in the language of the checker: claims in order, each with the choices from which the checker derives it.

The bounds that are claimed are those that the checker itself derives, rounded down: what is written has been checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from ..checker.balls import Balls, Floats, exact, lower_floats
from ..checker.certificate import FORMAT, VERSION, Certificate
from ..checker.check import LARGEST_STEP, region_of, sha256
from ..checker.forms import pairs_within, unit_rows
from ..checker.network import Curve, Input, Kink, Matrix, Networks, Product, Softmax, Sum, View
from ..checker.positions import Indices, Places
from ..checker.replay import Functions, Knowledge, ProvedPlanes, Rule, Rules
from ..checker.tree import Cell
from .curves import slopes
from .planes import best_lower, best_upper, centre, parameters, referring

# The run walks no more differences of the logits of one softmax either (_PAIRS in propagate/softmax_steps.py).
_MOST_PAIRS = 4096


class Proof:
    """Steps under construction for one input of some networks, and what they have proved."""

    def __init__(
        self,
        models: Sequence[str | Path],
        x: Floats,
        eps: float | None,
        norm: str,
        clip: Sequence[float] | None,
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        parts = parts or {}
        self.models, self.x = models, x.astype(np.float64).ravel()
        self.region = {
            "eps": None if eps is None else float(eps),
            "norm": norm,
            "clip": None if clip is None else [float(c) for c in clip],
            **{name: f"region {name}" if isinstance(part, np.ndarray) else part for name, part in parts.items()},
        }
        self.networks = Networks(models)
        self.known = Knowledge(self.networks, region_of(self.x, eps, norm, clip, parts))
        self.steps: list[dict[str, Any]] = []
        self.first = 0  # the number of the first of them
        self.arrays: dict[str, np.ndarray[Any, Any]] = {"input": self.x}
        self.arrays |= {f"region {name}": part for name, part in parts.items() if isinstance(part, np.ndarray)}
        self._names = {id(self.x): "input"}
        self.scores: list[tuple[Floats, Floats]] = []
        self.products = "planes"  # how products are passed: term by term, or "contracted"
        self.anchors: dict[int, tuple[int, Floats, Floats]] = {}  # by softmax: step, values below and above
        self.choose_first: Rules | None = None  # choices made elsewhere; they go before our own
        self._slopes: dict[int, str] = {}
        self._curves: dict[int, Rule] = {}
        self._widest = max(node.size for node in self.networks.nodes)

    def cell(self, cell: Cell) -> Proof:
        """A proof about a part of the region: its steps are its own and go on from those before it was cut.

        The arrays of all cells are in one place.
        """
        part = copy(self)
        part.known, part.first = self.known.within(cell.region, cell.cuts), self.next
        part.steps, part.scores, part.anchors, part._slopes, part._curves = [], [], dict(self.anchors), {}, {}
        part.products, part.choose_first = "planes", None
        return part

    @property
    def next(self) -> int:
        """The number that the next step will have."""
        return self.first + len(self.steps)

    def certificate(self, property: dict[str, Any], index: int | None) -> Certificate:
        """The steps so far as a certificate of ``property``."""
        models = [{"file": Path(m).name, "sha256": digest} for m, digest in zip(self.models, self.networks.digests)]
        header = {
            "format": FORMAT,
            "version": VERSION,
            "models": models,
            "input": {"array": "input", "sha256": sha256(self.x.astype("<f8").tobytes()), "index": index},
            "region": self.region,
            "property": property,
        }
        named = _texts(header | {"steps": self.steps})
        arrays = {name: array for name, array in self.arrays.items() if name in named}
        return Certificate(header | {"steps": self.steps}, arrays)

    # Claims

    def prepare(self, views: Sequence[View], stops: bool = False, contract: bool = True) -> None:
        """Claim what the relaxations on the way to some tensors need, first to last.

        With ``stops`` bounds are evaluated at every node on the way back and the best is kept; ``contract``: score
        differences by contracted products, which are tighter and take longer.
        """
        for index in self.before(views):
            node = self.networks.nodes[index]
            if isinstance(node, Curve):
                if self._deep(node.x.node):
                    self._claim_all(node.x, stops)
            elif isinstance(node, Kink):
                lower, upper = self.known.box(node.x)
                crossing = Places(np.flatnonzero((lower < 0) & (upper > 0)), node.x.size)
                if self._deep(node.x.node):  # otherwise interval arithmetic is exact
                    self._claim_all(node.x.at(crossing), stops)
            elif isinstance(node, Product):
                for view in (node.x, node.y):
                    if not isinstance(self.networks.nodes[view.node], Softmax | Kink | Curve):
                        self._claim_all(view, stops)
            elif isinstance(node, Softmax):
                self.prepare_softmax(index, stops, contract)
                self.derive_planes(index)

    def prepare_softmax(self, index: int, stops: bool = False, contract: bool = True) -> None:
        """Claim the logits of a softmax and their differences."""
        node = self.networks.nodes[index]
        assert isinstance(node, Softmax)
        self._claim_all(node.x, stops)
        self.claim_apart(node, stops, contract)

    def claim_apart(self, node: Softmax, stops: bool = False, contract: bool = True) -> None:
        """Claim the differences of the logits of a softmax, unless they are so many that their box has to do."""
        pairs = node.x.at(pairs_within(node)).index.at  # of entries: the difference of one to itself is 0
        whole, pairs = self.networks.whole(node.x.node), pairs[pairs[:, 0] != pairs[:, 1]]
        if len(pairs) > _MOST_PAIRS:
            return
        with self.following(self.choose_first, "contracted" if contract else "planes"):
            self.claim_differences(whole, pairs, stops)

    def _claim_all(self, view: View, stops: bool) -> None:
        """Claim every entry that stands in a tensor, once."""
        self.claim_entries(self.networks.whole(view.node), np.unique(view.index.at), stops)

    def derive_planes(self, index: int, at: Floats | None = None, like: Floats | None = None) -> int:
        """Planes below and above every output of a softmax, touching at logits ``[R, K]`` or amid what is known.

        With slopes ``like [R, K, K]`` the planes below are those nearest to them, and every output gets a second one,
        relative to its own logit. Returns the step.
        """
        node = self.networks.nodes[index]
        assert isinstance(node, Softmax)
        R, K = node.rows.shape
        below, above = np.zeros((1 if like is None else 2, R, K, 4)), np.zeros((1, R, K, K))
        point = np.zeros((R, K))
        for r in range(R):
            x, shown = self.known.logits(node, r), self.known.visible(node, r)
            here = centre(x) if at is None else np.clip(at[r, shown], x.low, x.high)
            point[r, shown] = here
            for own, k in enumerate(shown):
                lower = best_lower(x, own, here, None if like is None else like[r, k, shown])
                below[0, r, k] = referring(lower, shown)
                if like is not None:
                    below[1, r, k] = referring(parameters(x, own, here, own, 1.0), shown)
                above[0, r, k, shown] = best_upper(x, own, here)
        planes = self.known.derive_planes(index, below, above)
        number = self.add_planes(index, planes, below, above)

        def values(slope: Balls, offset: Balls) -> Floats:
            return ((slope[0] * exact(point)[:, None]).sum(-1) + offset[0]).astype(np.float64)

        low = values(planes.below_slope, planes.below)
        self.anchors[index] = number, low, values(planes.above_slope, planes.above)
        return number

    def add_planes(self, index: int, planes: ProvedPlanes, below: Floats, above: Floats) -> int:
        """Planes derived from these parameters as a step; returns its number."""
        number = self.next
        self.known.planes[number] = planes
        name = self.networks.names[index]
        self.steps.append({"claim": "planes", "tensor": name, "below": self.keep(below), "above": self.keep(above)})
        return number

    def renew_lines(self) -> None:
        """Choose the slopes of kinks and curves anew where they are used next, by the ranges known then."""
        self._slopes, self._curves = {}, {}

    def contract(self, views: Sequence[View]) -> None:
        """Claim logit differences again, by contracted products, and derive the planes anew."""
        for index in self.before(views):
            node = self.networks.nodes[index]
            if isinstance(node, Softmax):
                self.claim_apart(node)
                self.derive_planes(index)

    def claim_entries(self, view: View, chosen: Indices, stops: bool = False) -> None:
        """Steps that bound entries of a tensor, which later steps may use."""
        for part in self.parts(chosen, 2):
            places = Places(part, view.size)
            lower, upper = self._both("entries", view, unit_rows(places), {"entries": part}, stops)
            self.known.learn_entries(view, places, lower, upper)

    def claim_differences(self, view: View, pairs: Indices, stops: bool = False) -> None:
        """Steps that bound differences of pairs of entries, which later steps may use."""
        for part in self.parts(pairs, 2):
            places = Places(part, view.size)
            lower, upper = self._both("differences", view, unit_rows(places), {"entries": part}, stops)
            self.known.learn_differences(view, places, lower, upper)

    def bound_functions(self, view: View, rows: Floats) -> list[tuple[Floats, Floats, Floats, Any]]:
        """Bounds on ``rows @ tensor``, in parts that fit a step; nothing is claimed yet."""
        found = []
        for part in self.parts(rows, 2):
            balls = exact(part)
            values, rules = self.walk([(view, np.concatenate((balls, -balls)))], False)
            found.append((part, values[: len(part)], -values[len(part) :], rules))
        return found

    def claim_functions(self, view: View, parts: list[tuple[Floats, Floats, Floats, Any]]) -> list[int]:
        """The numbers of the steps that claim these bounds."""
        for rows, lower, upper, rules in parts:
            self.known.functions[self.next] = Functions(view.node, rows, lower, upper)
            self._commit("functions", view, {"rows": rows}, lower, upper, {"rules": rules})
        return list(range(self.next - len(parts), self.next))

    def claim_lead(self, view: View, label: int, rivals: Sequence[int], contract: bool = True) -> Floats:
        """Claim that one entry of a tensor exceeds others, first cheaply; the lower bounds that were proved."""
        found = np.full(len(rivals), -np.inf)
        for products in ("planes", "contracted") if contract else ("planes",):
            still = np.flatnonzero(~(found > 0))
            if not len(still):
                break
            pairs = Places([(label, rivals[i]) for i in still.tolist()], view.size)
            with self.following(self.choose_first, products):
                values, rules = self.walk([(view, unit_rows(pairs))], False)
                found[still] = values
                if (values > 0).any() and not (values > 0).all():
                    pairs = Places(pairs.at[values > 0], view.size)
                    values, rules = self.walk([(view, unit_rows(pairs))], False)
            if (values > 0).any():
                self._differ(view, pairs, values, {"rules": rules})
        return found

    def claim_difference(self, view: View, label: int, rival: int, on_cuts: Floats | None = None) -> float:
        """Claim a lower bound on the difference of two entries, by one walk of its own.

        ``on_cuts [1, cuts]``: multipliers of the cuts of a cell.
        """
        pairs = Places([(label, rival)], view.size)
        values, rules = self.walk([(view, unit_rows(pairs))], False, on_cuts)
        self._differ(view, pairs, values, self._how(rules, on_cuts))
        return float(values[0])

    def _how(self, rules: dict[str, Any], on_cuts: Floats | None) -> dict[str, Any]:
        return {"rules": rules} | ({} if on_cuts is None else {"cuts": self.keep(on_cuts)})

    def _differ(self, view: View, pairs: Places, lower: Floats, how: dict[str, Any]) -> None:
        self.claim(view, pairs, lower, np.full(len(lower), np.inf), how)

    def claim(self, view: View, places: Places, lower: Floats, upper: Floats, how: dict[str, Any]) -> None:
        """Claim bounds on what stands at some places, or on differences of pairs; ``how`` they are derived."""
        whole, entries = self.networks.whole(view.node), view.at(places).index.at
        single = places.at.ndim == 1
        self._commit("entries" if single else "differences", whole, {"entries": entries}, lower, upper, how)
        learn = self.known.learn_entries if single else self.known.learn_differences
        learn(view, places, lower, upper)

    def claim_score(self, row: Floats) -> float:
        """Claim a lower bound on ``row . p``, p being the sum of the outputs of all networks."""
        rows = row[None]
        lower, rules = self.walk([(view, exact(rows)) for view in self.networks.probabilities], False)
        self.steps.append({"claim": "score", "rows": self.keep(rows), "lower": self.keep(lower), "rules": rules})
        self.scores.append((rows, lower))
        return float(lower[0])

    def claim_sign(self, view: View, positive: bool, on_cuts: Floats | None = None) -> float:
        """Claim that a single output is positive (negative): how far it stays from zero."""
        return self.claim_end(view, 0, positive, ("planes", "contracted") if on_cuts is None else ("planes",), on_cuts)

    def claim_end(
        self, view: View, place: int, lower: bool, ways: Sequence[str] = ("planes",), on_cuts: Floats | None = None
    ) -> float:
        """Claim one end of the range of what stands at a place, an upper one as the lower one of its negative.

        ``ways`` to pass products are tried until it is positive.
        """
        places = Places([place], view.size)
        for products in ways:
            with self.following(self.choose_first, products):
                values, rules = self.walk([(view, unit_rows(places) * (1 if lower else -1))], False, on_cuts)
            if values[0] > 0:
                break
        low, high = (values, np.full(1, np.inf)) if lower else (np.full(1, -np.inf), -values)
        self.claim(view, places, low, high, self._how(rules, on_cuts))
        return float(values[0])

    def _both(self, claim: str, view: View, rows: Balls, what: dict[str, Any], stops: bool) -> tuple[Floats, Floats]:
        values, rules = self.walk([(view, np.concatenate((rows, -rows)))], stops)
        lower, upper = values[: len(rows)], -values[len(rows) :]
        self._commit(claim, view, what, lower, upper, {"stops": stops, "rules": rules})
        return lower, upper

    def walk(
        self, start: list[tuple[View, Balls]], stops: bool, on_cuts: Floats | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Lower bounds as floats, and the choices made for them."""
        chosen: dict[str, Any] = {}

        def choose(index: int, A: Balls) -> Rule:
            rule = self._choose(index, A)
            chosen[self.networks.names[index]] = {
                key: self.keep(value) if isinstance(value, np.ndarray) else value for key, value in rule.items()
            }
            return rule

        values = self.known.lower_bounds(start, choose, stops, on_cuts)
        return lower_floats(values).astype(np.float64), chosen

    def _commit(
        self, claim: str, view: View, what: dict[str, Any], lower: Floats, upper: Floats, how: dict[str, Any]
    ) -> None:
        """A claim as a step; ``how`` says by which choices it is derived."""
        step = {"claim": claim, "tensor": self.networks.names[view.node]}
        step |= {key: self.keep(value) for key, value in (what | {"lower": lower, "upper": upper}).items()}
        self.steps.append(step | how)

    # Choices

    def _choose(self, index: int, A: Balls) -> Rule:
        """What the certificate chooses at a node on the way back, for coefficients ``A`` of its output."""
        if self.choose_first is not None and (first := self.choose_first(index, A)) is not None:
            return first
        node = self.networks.nodes[index]
        if isinstance(node, Kink):
            return {"slope": self.arrays[self._slope(index, node)]}
        if isinstance(node, Curve):
            return self._curve(index, node)
        if isinstance(node, Softmax):
            return self._choose_planes(index, node, A)
        assert isinstance(node, Product)
        contracted = self._choose_functions(node, A) if self.products == "contracted" else None
        return contracted or {"below": np.full(node.size, 0.5), "above": np.full(node.size, 0.5)}

    def _curve(self, index: int, node: Curve) -> Rule:
        if index not in self._curves:
            below, above = slopes(node.kind, *self.known.box(node.x))
            self._curves[index] = {"below": below, "above": above}
            for array in (below, above):
                self.keep(array)
        return self._curves[index]

    def _slope(self, index: int, node: Kink) -> str:
        if index not in self._slopes:
            lower, upper = self.known.box(node.x)
            self._slopes[index] = self.keep((upper > -lower).astype(np.float64))
        return self._slopes[index]

    def _choose_planes(self, index: int, node: Softmax, A: Balls) -> Rule:
        number, low, high = self.anchors[index]
        rows = node.outputs.of(A.astype(np.float64))
        ones = np.ones((1, *node.rows.shape))
        return {"planes": number, "multiplier": _multiplier(rows, low, high), "below": ones, "above": ones}

    def _choose_functions(self, node: Product, A: Balls) -> Rule | None:
        """Of the factors that may be kept the one that loses least: half-width of x times half-width of f, summed.

        None where the kept factor stands for itself alone, as probabilities of rows of one do: nothing to contract.
        """
        with self.following(None):
            tried = [self.contraction(node, A, keep, reference) for keep, reference in self.kept(node, A)]
        _, rule, view, parts = min(tried, key=lambda found: found[0])
        if not parts:
            return None
        return {**rule, "functions": self.claim_functions(view, parts)}

    @contextmanager
    def following(self, choose: Rules | None, products: str = "planes") -> Iterator[None]:
        """Walks with these choices before our own, and a way to pass products where neither says otherwise."""
        before = self.products, self.choose_first
        self.products, self.choose_first = products, choose
        try:
            yield
        finally:
            self.products, self.choose_first = before

    def contraction(
        self, node: Product, A: Balls, keep: int, reference: Indices | None
    ) -> tuple[float, Rule, View, list[tuple[Floats, Floats, Floats, Any]]]:
        """A product contracted with its coefficients: the loss, the rule, and the functions to bound first."""
        factors, _ = self.known.factors(node, keep, A, reference)
        kept, other = (node.x, node.y) if keep == 0 else (node.y, node.x)
        rows = np.full((len(A), kept.size), -1)
        size = self.networks.nodes[other.node].size
        wanted = np.array([f.astype(np.float64) for f in factors.values()]).reshape(-1, size)
        distinct, places = np.unique(wanted, axis=0, return_inverse=True)
        for (s, a), place in zip(factors, places.ravel()):
            rows[s, a] = place
        view = self.networks.whole(other.node)
        parts = self.bound_functions(view, distinct)
        width = np.concatenate([upper - lower for _, lower, upper, _ in parts] or [np.zeros(0)])
        lower, upper = self.known.box(kept)
        loss = sum(float((upper - lower)[a] * width[rows[s, a]]) for s, a in factors)
        rule: dict[str, Any] = {"keep": keep, "rows": rows, "weight": np.full((1, kept.size), 0.5)}
        return loss, rule if reference is None else rule | {"reference": reference}, view, parts

    def kept(self, node: Product, A: Balls) -> list[tuple[int, Indices | None]]:
        """Keep probabilities, one of every row standing for all; otherwise the factor with fewer entries in use."""
        for keep, view in enumerate((node.x, node.y)):
            source = self.networks.nodes[view.node]
            if isinstance(source, Softmax) and sorted(view.index.flat) == list(range(source.size)):
                lower, upper = self.known.box(view)
                place = np.argsort(view.index.at)  # where every probability stands in the factor
                reference = np.full(view.size, -1)
                for members in source.outputs.of(place):
                    reference[members] = members[np.argmax((upper - lower)[members])]
                return [(keep, reference)]
        used = np.flatnonzero((node.out.of(A.astype(np.float64)) != 0).any(0))
        counts = [len(np.unique(side.at[used])) for side in (node.left, node.right)]
        return [(keep, None) for keep in (0, 1) if counts[keep] == min(counts)]

    # Small things

    def keep(self, array: np.ndarray[Any, Any]) -> str:
        """The name under which an array goes into the file; the same array is kept once."""
        if id(array) not in self._names:
            self._names[id(array)] = name = f"a{len(self.arrays)}"
            self.arrays[name] = array  # kept: its identity is not given to another one
        return self._names[id(array)]

    def forget(self, count: int) -> None:
        """Drop all arrays but the first so many: no step that is left may name one."""
        for name in list(self.arrays)[count:]:
            del self._names[id(self.arrays.pop(name))]

    def parts(self, items: Any, sides: int) -> list[Any]:
        """Items in parts that fit a step."""
        step = max(1, LARGEST_STEP // (sides * self._widest))
        return [items[i : i + step] for i in range(0, len(items), step)]

    def _deep(self, index: int) -> bool:
        """Whether a node is more than one matrix away from the input."""
        before = [self.networks.nodes[i] for i in self.networks.before([index])]
        simple = [n for n in before if isinstance(n, Input | Matrix) or (isinstance(n, Sum) and len(n.views) == 1)]
        return len(simple) < len(before) or sum(isinstance(n, Matrix) for n in before) > 1

    def ancestors(self, network: int) -> list[int]:
        """The nodes that the output of a network depends on, with its own."""
        return self.before([self.networks.probabilities[network]])

    def before(self, views: Sequence[View]) -> list[int]:
        """The nodes that some tensors depend on, with their own, first to last."""
        return self.networks.before(view.node for view in views)


def _multiplier(rows: Floats, low: Floats, high: Floats) -> Floats:
    """The multiplier ``[S, R]`` of ``sum_k p_k = 1`` that is best for planes with these values."""
    order = rows.argsort(-1)
    ascending = np.take_along_axis(rows, order, -1)
    least = np.take_along_axis(np.broadcast_to(low, rows.shape), order, -1)
    most = np.take_along_axis(np.broadcast_to(high, rows.shape), order, -1)
    turned = 1 - least.sum(-1, keepdims=True) - (most - least).cumsum(-1) <= 0
    turned[..., -1] = True
    return np.take_along_axis(ascending, turned.argmax(-1)[..., None], -1)[..., 0]


def _texts(value: Any) -> set[str]:
    """All texts in a header: among them, the names of the arrays that it needs."""
    if isinstance(value, str):
        return {value}
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return set().union(*map(_texts, parts))
