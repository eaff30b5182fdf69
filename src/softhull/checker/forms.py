"""Affine forms: the entries of a tensor as ``centre + slope . e``, exactly, with noise e.

The first numbers of the noise are the input's, scaled to [-1, 1]. Where a node is not affine, entries of it get a
number of their own: what such an entry is beside an affine function, divided by how much that can be. So the noise is
not free: the input determines it, and a form is an identity between real numbers.

Where the factors of a product have forms it is a quadratic of the noise, and that is all of its error:
``x y = x_c y + y_c x - x_c y_c + (x - x_c)(y - y_c)``.

Behind a narrow layer forms are written over a *basis*: the deviations of its few entries, each a combination of the
noise, and the noise that is new behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from flint import arb, arb_mat

from .balls import ONE, Balls, exact, is_zero, matrix, times, zeros
from .certificate import Refused
from .curves import function_of
from .network import Curve, Input, Kink, Matrix, Node, Product, Softmax, Sum, View
from .positions import Places
from .quadratic import Noise, ProductRanges, Squares, padded

if TYPE_CHECKING:
    from .replay import Knowledge, ProvedPlanes

MOST_NOISE = 1 << 11  # numbers
LARGEST_FORM = 1 << 22  # coefficients of one node


@dataclass(frozen=True)
class Basis:
    """Numbers ``z = (rows e, e_own)``: combinations ``rows [k, n]`` of the first n of the noise, then some alone."""

    rows: Balls
    own: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return len(self.rows) + len(self.own)

    def over_noise(self, slope: Balls, n: int) -> Balls:
        """Coefficients ``[S, m]`` on the first m of its numbers as coefficients ``[S, n]`` on the noise.

        Theorem: ``s.z = (s_1'rows).e + s_2.e_own``; what is alone is newer than all that is combined.
        """
        found, k = zeros(len(slope), n), len(self.rows)
        found[:, : self.rows.shape[1]] = times(slope[:, :k], matrix(self.rows))
        alone = slope[:, k:]
        found[:, list(self.own[: alone.shape[1]])] = alone
        return found

    def map(self, n: int) -> Balls:
        """All of its numbers over the noise ``[size, n]``."""
        found, k = zeros(self.size, n), len(self.rows)
        found[:k, : self.rows.shape[1]] = self.rows
        found[k + np.arange(len(self.own)), list(self.own)] = ONE
        return found


@dataclass(frozen=True)
class Form:
    """``centre [size]``, ``slope [size, m]`` over the first m numbers of a basis, or of the noise itself (None)."""

    centre: Balls
    slope: Balls
    basis: int | None = None


@dataclass(frozen=True)
class Part:
    """``(left z)'C (right z) + linear . z`` for the numbers z of a basis, or of the noise (None)."""

    left: Balls
    C: Balls
    right: Balls
    basis: int | None
    linear: Balls | None = None


@dataclass(frozen=True)
class Mixed:
    """``sum_i (p_i - centre_i) (values_i . z)`` over all entries p of a softmax, for the numbers z of a basis.

    ``centre [size]`` adds up to 1 in every row; ``values [size, m]``.
    """

    node: int
    centre: Balls
    values: Balls
    basis: int | None


class Forms:
    """The forms of the nodes of some networks over one region, found when they are asked for."""

    def __init__(self, known: Knowledge) -> None:
        self.known, region = known, known.region
        if region.centre is None:
            low, high = exact(region.lower), exact(region.upper)
            self.centre, self.radius = (low + high) / 2, (high - low) / 2
        else:
            unit = np.ones(len(region.centre)) if region.scale is None else region.scale
            self.centre, self.radius = exact(region.centre), arb(region.eps) * exact(unit)
        self.count = len(self.centre)  # of the noise
        self.noise = Noise(self.count, region.norm)
        self._known: dict[int, Form] = {}
        self._bases: list[Basis] = []
        self._ranges: dict[int, ProductRanges] = {}  # by product
        self._bent: dict[int, Form] = {}  # by kink
        self._apart: dict[tuple[int, int, int], Form] = {}  # by softmax and pair of places
        self._own: frozenset[int] = frozenset()  # of every softmax whose differences have weights of their own

    def copy(self) -> Forms:
        """The same forms, which do not see what is found of these later."""
        found = copy(self)
        found._known, found._ranges = dict(self._known), dict(self._ranges)
        found._bases, found._bent, found._apart = list(self._bases), dict(self._bent), dict(self._apart)
        return found

    def rows(self, view: View) -> Form:
        """The form of what stands at the places of a view, over all the numbers that there are of its basis."""
        index = view.flat().index
        if index.size * self.count > LARGEST_FORM:
            raise Refused("a form of more coefficients than the checker allows")
        if isinstance(self.known.networks.nodes[view.node], Input):
            slope = zeros(index.size, self.count)
            slope[np.arange(index.size), index.at] = index.of(self.radius)  # one number in every row
            return Form(index.of(self.centre), slope)
        self._find(view.node)
        form = self._known[view.node]
        slope = padded(index.of(form.slope, 0), self._size(form.basis))
        return Form(index.of(form.centre), slope, form.basis)

    def _size(self, basis: int | None) -> int:
        return self.count if basis is None else self._bases[basis].size

    def over_noise(self, slope: Balls, basis: int | None) -> Balls:
        """Coefficients on the numbers of a basis as coefficients on all the noise there is."""
        return padded(slope, self.count) if basis is None else self._bases[basis].over_noise(slope, self.count)

    def reach(self, form: Form) -> Balls:
        """How far every entry of a form may be from its centre."""
        return np.array([self.noise.reach(row) for row in self.over_noise(form.slope, form.basis)], dtype=object)

    def together(self, *forms: Form) -> list[Form]:
        """The same forms over one basis; where theirs differ, over the noise."""
        bases = {form.basis for form in forms}
        if len(bases) > 1:
            return [replace(form, slope=self.over_noise(form.slope, form.basis), basis=None) for form in forms]
        return [replace(form, slope=padded(form.slope, self._size(form.basis))) for form in forms]

    def _find(self, last: int) -> None:
        """Forms of a node and of those it depends on, first to last."""
        networks = self.known.networks
        for index in networks.before([last], {0} | self._known.keys()):
            self._known[index] = form = self._of(networks.nodes[index])
            size = len(form.centre)
            if index in networks.bottlenecks and size < self._size(form.basis):
                # Theorem: with z the deviations of the node, its form is ``centre + z``.
                self._bases.append(Basis(self.over_noise(form.slope, form.basis)))
                self._known[index] = Form(form.centre, identity(size), len(self._bases) - 1)

    def _of(self, node: Node) -> Form:
        """Theorem: an affine function of forms is the form with the affine function of centres and slopes."""
        if node.size * self.count > LARGEST_FORM:
            raise Refused("a form of more coefficients than the checker allows")
        if isinstance(node, Matrix):
            x, weights = self.rows(node.x), matrix(node.weights)
            return Form(_product(weights, x.centre[:, None])[:, 0], _product(weights, x.slope), x.basis)
        if isinstance(node, Sum):
            forms = self.together(*(self.rows(view) for view in node.views))
            scaled = [(s * x.centre, s[:, None] * x.slope) for s, x in zip(node.scales, forms)]
            centre, slope = (reduce(np.add, parts) for parts in zip(*scaled))
            return Form(exact(node.bias) + centre, slope, forms[0].basis)
        if isinstance(node, Kink):
            return self._kink(node)
        if isinstance(node, Curve):
            return self._curve(node)
        if isinstance(node, Product):
            return self._term_by_term(node)
        raise Refused("the form of a softmax that was not claimed")

    def _kink(self, node: Kink) -> Form:
        """Theorem: a kink lies between its chord ``r x + o`` and the parallel ``r x``: ``r x + o/2 + (o/2) e``."""
        x = self.rows(node.x)
        rate, offset = self.known.chords(node)
        half = offset / 2
        return self._spread(Form(rate * x.centre + half, rate[:, None] * x.slope, x.basis), half)

    def _curve(self, node: Curve) -> Form:
        """Theorem: ``f(x) - s x`` lies between its least and its largest value, for any slope s; here a chord's."""
        x = self.rows(node.x)
        value = function_of(node.kind).value
        ends = zip(*(end.tolist() for end in self.known.box(node.x)))
        rise = [float((value(arb(b)) - value(arb(a))) / (arb(b) - arb(a))) if a < b else 0.0 for a, b in ends]
        slopes = np.array([rate if np.isfinite(rate) else 0.0 for rate in rise])
        low, high = (self.known.offsets(node, slopes, side) for side in (1, -1))
        rate = exact(slopes)
        form = Form(rate * x.centre + (low + high) / 2, rate[:, None] * x.slope, x.basis)
        return self._spread(form, (high - low) / 2)

    def _term_by_term(self, node: Product) -> Form:
        """Theorem: ``x y - (x_c y + y_c x - x_c y_c) = (x - x_c)(y - y_c)``, at most the product of both reaches."""
        if node.out.size * self.count > LARGEST_FORM:
            raise Refused("a product with more terms than the checker allows")
        x, y = self.together(self.rows(node.x), self.rows(node.y))
        reach = self.reach(x), self.reach(y)
        x_centre, y_centre = node.left.of(x.centre), node.right.of(y.centre)
        slope = x_centre[:, None] * node.right.of(y.slope, 0) + y_centre[:, None] * node.left.of(x.slope, 0)
        centre, error = node.out.spread(
            np.stack((x_centre * y_centre, node.left.of(reach[0]) * node.right.of(reach[1])))
        )
        return self._spread(Form(centre, node.out.spread(slope.T).T, x.basis), error)

    def _spread(self, form: Form, error: Balls) -> Form:
        """A new number of noise for every entry that may be off by an error.

        Theorem: ``|d| <= r`` means ``d = r e`` with ``|e| <= 1``.
        """
        off = np.flatnonzero(~is_zero(error).astype(bool))
        first, self.count = self.count, self.count + len(off)
        if self.count > MOST_NOISE:
            raise Refused(f"more than {MOST_NOISE} numbers of noise")
        before = first
        if form.basis is not None:
            basis = self._bases[form.basis]
            before, self._bases[form.basis] = basis.size, replace(basis, own=(*basis.own, *range(first, self.count)))
        slope = padded(form.slope, self._size(form.basis))
        slope[off, before + np.arange(len(off))] = error[off]
        return Form(form.centre, slope, form.basis)

    # Products

    def split(
        self, node: Product, row: Balls, side: int, reference: Any, mixed: bool = False
    ) -> tuple[dict[int, Balls], arb, Part | Mixed]:
        """``<row, product>`` as coefficients on both factors, a constant and the quadratic that is left.

        Where entries of one factor (``side`` 0 or 1) are whole softmax rows, a reference among them (see
        ``Knowledge.references``) is one minus the others, so that only differences of the other factor are multiplied.
        ``mixed``: where that factor is all rows of a softmax, each with a reference, the quadratic is left to them.
        """
        factors = self.together(self.rows(node.x), self.rows(node.y))
        groups = self.known.references((node.x, node.y)[side], reference)
        for r, *members in groups:
            centre, slope = factors[side].centre.copy(), factors[side].slope.copy()
            centre[r], slope[r] = ONE - centre[members].sum(), -slope[members].sum(0)
            factors[side] = replace(factors[side], centre=centre, slope=slope)
        first, C, second = _used(node, row)
        x, y = (Form(places.of(f.centre), places.of(f.slope, 0)) for f, places in zip(factors, (first, second)))
        on_x, on_y = times(C, matrix(y.centre[:, None]))[:, 0], times(C.T, matrix(x.centre[:, None]))[:, 0]
        found: dict[int, Balls] = {}
        self.known.put(found, node.x.at(first), on_x[None])
        self.known.put(found, node.y.at(second), on_y[None])
        shift = -(on_x * x.centre).sum()
        if not mixed:
            return found, shift, Part(x.slope, C, y.slope, factors[0].basis)
        kept, used = ((node.x, first), (node.y, second))[side]
        pull = times(C, matrix(y.slope)) if side == 0 else times(C.T, matrix(x.slope))
        size = self.known.networks.nodes[kept.node].size
        if sum(map(len, groups)) != size or sorted(kept.index.flat) != list(range(size)):
            raise Refused("values that are not mixed by all rows of one softmax, once, with a reference each")
        # Every entry stands at one place.
        values, centre = kept.at(used).index.spread(pull.T).T, kept.index.spread(factors[side].centre[None])[0]
        return found, shift, Mixed(kept.node, centre, values, factors[0].basis)

    def quadratic(self, on_input: Balls, parts: Sequence[Part]) -> tuple[arb, Balls, Squares]:
        """Constant, linear part ``[n]`` and squares over the noise of coefficients and products."""
        linear = padded((on_input * self.radius)[None], self.count)[0]
        for part in parts:
            if part.linear is not None:
                linear = linear + self.over_noise(part.linear[None], part.basis)[0]
        return (on_input * self.centre).sum(), linear, self._squares(parts)

    def _squares(self, parts: Sequence[Part]) -> Squares:
        """Theorem: ``z'T z = z'(T + T')z / 2``."""
        parts = [part for part in parts if part.C.size]
        bases = {part.basis for part in parts}
        basis = bases.pop() if len(bases) == 1 else None
        size = self._size(basis)
        if 0 < 2 * sum(len(part.C) + len(part.C.T) for part in parts) < size:  # fewer combinations than numbers
            sides = [self.over_noise(side, part.basis) for part in parts for side in (part.left, part.right)]
            ends = np.cumsum([0, *map(len, sides)])
            C = zeros(ends[-1], ends[-1])
            for k, part in enumerate(parts):
                one, other = (slice(*ends[n : n + 2]) for n in (2 * k, 2 * k + 1))
                C[one, other], C[other, one] = part.C / 2, part.C.T / 2
            return Squares(np.concatenate(sides), C)
        total = arb_mat(size, size)
        for part in parts:
            left, right = (
                padded(side, size) if part.basis == basis else self.over_noise(side, part.basis)
                for side in (part.left, part.right)
            )
            total += matrix(left.T) * (matrix(part.C) * matrix(right))
        C = zeros(size, size)
        C[...] = ((total + total.transpose()) / 2).tolist()
        return Squares(None if basis is None else self._bases[basis].map(self.count), C)

    # Softmax

    def combinations(self, view: View, rows: Balls, own: bool = False) -> tuple[Form, Balls, Balls]:
        """The form of ``rows [N, places] @ view`` up to a rest, and the least and the most ``[N]`` of that.

        ``own``: that of each by weights of its own.
        """
        nodes = self.known.networks.nodes
        pending, centre = dict[int, Balls](), zeros(len(rows))
        self.known.put(pending, view, rows)
        low, high, ends = zeros(len(rows)), zeros(len(rows)), list[Form]()
        while pending:
            top = max(pending)
            A, here = pending.pop(top), nodes[top]
            found: dict[int, Balls] = {}
            if isinstance(here, Sum | Matrix) and top not in self.known.networks.bottlenecks:
                if isinstance(here, Sum):
                    centre = centre + times(A, matrix(here.bias[:, None]))[:, 0]
                found = self.known.back(here, A)
            elif isinstance(here, Product):
                if A.shape[0] * here.out.size > LARGEST_FORM:
                    raise Refused("a product with more terms than the checker allows")
                x, y = self.together(self.rows(here.x), self.rows(here.y))
                if top not in self._ranges:
                    X, Y = (self.over_noise(form.slope, form.basis) for form in (x, y))
                    self._ranges[top] = ProductRanges(X, Y, self.noise)
                for n, row in enumerate(A):
                    first, C, second = _used(here, row)
                    least, most = self._ranges[top].between(first.at, C, second.at, own)
                    low[n], high[n] = low[n] + least, high[n] + most
                x_centre, y_centre, C = here.left.of(x.centre), here.right.of(y.centre), here.out.of(A)
                self.known.put(found, here.x.at(here.left), C * y_centre)
                self.known.put(found, here.y.at(here.right), C * x_centre)
                centre = centre - (C * (x_centre * y_centre)).sum(1)
            else:
                form = self.rows(self.known.networks.whole(top))
                centre = centre + times(A, matrix(form.centre[:, None]))[:, 0]
                ends.append(Form(centre, times(A, matrix(form.slope)), form.basis))
            for i, back in found.items():
                pending[i] = pending[i] + back if i in pending else back
        ends = self.together(*ends)
        slope = reduce(np.add, [end.slope for end in ends])
        return Form(centre, slope, ends[0].basis), low, high

    def differences(self, index: int, own: bool = False) -> tuple[Places, Balls, Balls]:
        """All pairs of places within the rows of a softmax, and bounds on the differences of their logits.

        ``own``: what products leave of each is bounded by weights of its own, from now on (``apart``).
        """
        node = self.known.networks.nodes[index]
        assert isinstance(node, Softmax)
        if own:
            self._own = self._own | {index}
        pairs = pairs_within(node)
        form, low, high = self.combinations(node.x, unit_rows(pairs), own)
        reach = self.reach(form)
        return pairs, form.centre + low - reach, form.centre + high + reach

    def apart(self, index: int, pairs: Places) -> Form:
        """The differences of logits of a softmax, with noise of its own for what products leave of each.

        The same pair has the same noise wherever it is asked for.
        """
        node = self.known.networks.nodes[index]
        assert isinstance(node, Softmax)
        new = [pair for pair in pairs.at.tolist() if (index, *pair) not in self._apart]
        if new:
            own = index in self._own
            form = self._closed(*self.combinations(node.x, unit_rows(Places(new, node.size)), own))
            for n, (i, j) in enumerate(new):
                self._apart[index, i, j] = Form(form.centre[n : n + 1], form.slope[n : n + 1], form.basis)
        found = self.together(*(self._apart[index, i, j] for i, j in pairs.at.tolist()))
        centre, slope = (np.concatenate([getattr(form, part) for form in found]) for part in ("centre", "slope"))
        return Form(centre, slope, found[0].basis)

    def bent(self, index: int) -> Form:
        """What a kink is applied to, with noise of its own for what products leave of each entry; found once."""
        if index not in self._bent:
            node = self.known.networks.nodes[index]
            assert isinstance(node, Kink)
            if node.size * max(node.size, self.count) > LARGEST_FORM:
                raise Refused("a form of more coefficients than the checker allows")
            self._bent[index] = self._closed(*self.combinations(node.x, identity(node.size)))
        form = self._bent[index]
        return replace(form, slope=padded(form.slope, self._size(form.basis)))

    def kept(self, index: int) -> tuple[Form, Form]:
        """What a kink is applied to and what comes out, over one basis."""
        node = self.known.networks.nodes[index]
        assert isinstance(node, Kink)
        if node.size * max(node.size, self.count) > LARGEST_FORM:
            raise Refused("a form of more coefficients than the checker allows")
        y = self.rows(self.known.networks.whole(index))  # first, as it may bring noise
        x, y = self.together(self.rows(node.x), y)
        return x, y

    def _closed(self, form: Form, low: Balls, high: Balls) -> Form:
        """The form of combinations whose rest lies between two ends."""
        return self._spread(replace(form, centre=form.centre + (low + high) / 2), (high - low) / 2)

    def learn_softmax(self, index: int, planes: ProvedPlanes) -> None:
        """The form of a softmax from planes: parallel to those above, off by what those below leave.

        Theorem: from ``b.x + v <= p <= a.x + w`` follows ``v + min (b - a).x <= p - a.x <= w``.
        """
        node = self.known.networks.nodes[index]
        assert isinstance(node, Softmax)
        R, K = node.rows.shape
        rows = zeros(R, K, node.size)  # over the places of the logits
        least, most = zeros(R, K), planes.above[0]
        for r in range(R):
            x, shown = self.known.logits(node, r), self.known.visible(node, r)
            for k in range(K):
                slope = planes.above_slope[0, r, k]
                rows[r, k, node.rows.at[r]] = slope
                least[r, k] = planes.below[0, r, k] + x.least((planes.below_slope[0, r, k] - slope)[shown])
        form, low, high = self.combinations(node.x, rows.reshape(R * K, node.size))
        low, high = low + least.ravel(), high + most.ravel()
        own = node.outputs  # each entry stands in one row
        centre, error = own.spread(np.stack((form.centre + (low + high) / 2, (high - low) / 2)))
        self._known[index] = self._spread(Form(centre, own.spread(form.slope.T).T, form.basis), error)


def pairs_within(node: Softmax) -> Places:
    """All pairs ``[N, 2]`` of visible places within the rows of a softmax."""
    first, second = np.triu_indices(node.rows.shape[1], 1)
    pairs = np.stack((node.rows.at[:, first], node.rows.at[:, second]), -1).reshape(-1, 2)
    if node.hidden is not None:
        pairs = pairs[~np.isin(pairs, node.hidden.at).any(1)]
    return Places(pairs, node.size)


def unit_rows(places: Places) -> Balls:
    """Rows over the places of a view that pick one of them ``[S]``, or the difference of two ``[S, 2]``."""
    pairs = places.at.reshape(len(places.at), -1)
    rows = zeros(len(pairs), places.among)
    for sign, column in zip((1, -1), pairs.T):
        rows[np.arange(len(rows)), column] += sign
    return rows


def _used(node: Product, row: Balls) -> tuple[Places, Balls, Places]:
    """The product with coefficients as ``x[first] . C y[second]``."""
    coefficients = node.out.of(row)
    used = np.flatnonzero(~is_zero(coefficients).astype(bool))
    first, i = np.unique(node.left.at[used], return_inverse=True)
    second, j = np.unique(node.right.at[used], return_inverse=True)
    if len(first) * len(second) > LARGEST_FORM:
        raise Refused("a product with more terms than the checker allows")
    C = zeros(len(first), len(second))
    np.add.at(C, (i, j), coefficients[used])
    return Places(first, node.left.among), C, Places(second, node.right.among)


def _product(weights: arb_mat, right: Balls) -> Balls:
    found = np.empty((weights.nrows(), right.shape[1]), dtype=object)
    found[...] = (weights * matrix(right)).tolist()
    return found


def identity(size: int) -> Balls:
    """The matrix with ones on its diagonal."""
    found = zeros(size, size)
    np.fill_diagonal(found, ONE)
    return found
