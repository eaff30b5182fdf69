"""Affine forms: the entries of a tensor as ``centre + slope . e``, exactly, with noise e.

The first numbers of the noise are the input's, scaled to [-1, 1]. Where a node is not affine, entries of it get a
number of their own: what such an entry is beside an affine function, divided by how much that can be. So the noise is
not free: the input determines it, and a form is an identity between real numbers.

Where the factors of a product have forms it is a quadratic of the noise, and that is all of its error:
``x y = x_c y + y_c x - x_c y_c + (x - x_c)(y - y_c)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flint import arb, arb_mat

from .balls import ONE, Balls, exact, is_zero, matrix, times, zeros
from .certificate import Refused
from .curves import function_of
from .network import Curve, Input, Kink, Matrix, Node, Product, Softmax, Sum, View
from .positions import Places
from .quadratic import Noise, ProductRanges, padded

if TYPE_CHECKING:
    from .replay import Knowledge, ProvedPlanes

MOST_NOISE = 1 << 11  # numbers
LARGEST_FORM = 1 << 22  # coefficients of one node


@dataclass(frozen=True)
class Form:
    """``centre [size]``, ``slope [size, n]`` over the first n numbers of the noise."""

    centre: Balls
    slope: Balls


@dataclass(frozen=True)
class Part:
    """The quadratic ``(left e)'C (right e)``."""

    left: Balls
    C: Balls
    right: Balls


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
        self._apart: dict[tuple[int, int, int], tuple[arb, Balls]] = {}  # by softmax and pair of places

    def rows(self, view: View) -> Form:
        """The form of what stands at the places of a view, over all the noise there is."""
        index = view.flat().index
        if index.size * self.count > LARGEST_FORM:
            raise Refused("a form of more coefficients than the checker allows")
        if isinstance(self.known.networks.nodes[view.node], Input):
            slope = zeros(index.size, self.count)
            slope[np.arange(index.size), index.at] = index.of(self.radius)  # one number in every row
            return Form(index.of(self.centre), slope)
        self._find(view.node)
        form = self._known[view.node]
        return Form(index.of(form.centre), padded(index.of(form.slope, 0), self.count))

    def _find(self, last: int) -> None:
        """Forms of a node and of those it depends on, first to last."""
        networks = self.known.networks
        for index in networks.before([last], {0} | self._known.keys()):
            self._known[index] = self._of(networks.nodes[index])

    def _of(self, node: Node) -> Form:
        """Theorem: an affine function of forms is the form with the affine function of centres and slopes."""
        if node.size * self.count > LARGEST_FORM:
            raise Refused("a form of more coefficients than the checker allows")
        if isinstance(node, Matrix):
            x, weights = self.rows(node.x), matrix(node.weights)
            return Form(_product(weights, x.centre[:, None])[:, 0], _product(weights, x.slope))
        if isinstance(node, Sum):
            centre, slope = exact(node.bias), zeros(node.size, self.count)
            for view, scale in zip(node.views, node.scales):
                x = self.rows(view)
                centre, slope = centre + scale * x.centre, slope + scale[:, None] * x.slope
            return Form(centre, slope)
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
        return self._spread(Form(rate * x.centre + half, rate[:, None] * x.slope), half)

    def _curve(self, node: Curve) -> Form:
        """Theorem: ``f(x) - s x`` lies between its least and its largest value, for any slope s; here a chord's."""
        x = self.rows(node.x)
        value = function_of(node.kind).value
        ends = zip(*(end.tolist() for end in self.known.box(node.x)))
        rise = [float((value(arb(b)) - value(arb(a))) / (arb(b) - arb(a))) if a < b else 0.0 for a, b in ends]
        slopes = np.array([rate if np.isfinite(rate) else 0.0 for rate in rise])
        low, high = (self.known.offsets(node, slopes, side) for side in (1, -1))
        rate = exact(slopes)
        return self._spread(Form(rate * x.centre + (low + high) / 2, rate[:, None] * x.slope), (high - low) / 2)

    def _term_by_term(self, node: Product) -> Form:
        """Theorem: ``x y - (x_c y + y_c x - x_c y_c) = (x - x_c)(y - y_c)``, at most the product of both reaches."""
        if node.out.size * self.count > LARGEST_FORM:
            raise Refused("a product with more terms than the checker allows")
        x, y = self.rows(node.x), self.rows(node.y)
        reach = [np.array([self.noise.reach(row) for row in form.slope], dtype=object) for form in (x, y)]
        x_centre, y_centre = node.left.of(x.centre), node.right.of(y.centre)
        slope = x_centre[:, None] * node.right.of(y.slope, 0) + y_centre[:, None] * node.left.of(x.slope, 0)
        centre, error = node.out.spread(
            np.stack((x_centre * y_centre, node.left.of(reach[0]) * node.right.of(reach[1])))
        )
        return self._spread(Form(centre, node.out.spread(slope.T).T), error)

    def _spread(self, form: Form, error: Balls) -> Form:
        """A new number of noise for every entry that may be off by an error.

        Theorem: ``|d| <= r`` means ``d = r e`` with ``|e| <= 1``.
        """
        off = np.flatnonzero(~is_zero(error).astype(bool))
        first, self.count = self.count, self.count + len(off)
        if self.count > MOST_NOISE:
            raise Refused(f"more than {MOST_NOISE} numbers of noise")
        slope = padded(form.slope, self.count)
        slope[off, first + np.arange(len(off))] = error[off]
        return Form(form.centre, slope)

    # Products

    def split(self, node: Product, row: Balls, side: int, reference: Any) -> tuple[dict[int, Balls], arb, Part]:
        """``<row, product>`` as coefficients on both factors, a constant and the quadratic that is left.

        Where entries of one factor (``side`` 0 or 1) are whole softmax rows, a reference among them (see
        ``Knowledge.references``) is one minus the others, so that only differences of the other factor are multiplied.
        """
        factors = [self.rows(node.x), self.rows(node.y)]
        for r, *members in self.known.references((node.x, node.y)[side], reference):
            centre, slope = factors[side].centre.copy(), factors[side].slope.copy()
            centre[r], slope[r] = ONE - centre[members].sum(), -slope[members].sum(0)
            factors[side] = Form(centre, slope)
        first, C, second = _used(node, row)
        x, y = (Form(places.of(f.centre), places.of(f.slope, 0)) for f, places in zip(factors, (first, second)))
        on_x, on_y = times(C, matrix(y.centre[:, None]))[:, 0], times(C.T, matrix(x.centre[:, None]))[:, 0]
        found: dict[int, Balls] = {}
        self.known.put(found, node.x.at(first), on_x[None])
        self.known.put(found, node.y.at(second), on_y[None])
        return found, -(on_x * x.centre).sum(), Part(x.slope, C, y.slope)

    def quadratic(self, on_input: Balls, parts: Sequence[Part]) -> tuple[arb, Balls, Balls]:
        """Constant, linear part ``[n]`` and symmetric matrix ``[n, n]`` over the noise of coefficients and products."""
        linear = padded((on_input * self.radius)[None], self.count)[0]
        total = arb_mat(self.count, self.count)
        for part in parts:
            left, right = (matrix(padded(side, self.count)) for side in (part.left, part.right))
            total += left.transpose() * (matrix(part.C) * right)
        B = zeros(self.count, self.count)
        B[...] = ((total + total.transpose()) / 2).tolist()
        return (on_input * self.centre).sum(), linear, B

    # Softmax

    def combinations(self, view: View, rows: Balls) -> tuple[Balls, Balls, Balls, Balls]:
        """``rows [N, places] @ view``: centres ``[N]``, slopes ``[N, n]``, least and most ``[N]`` of the rest."""
        nodes = self.known.networks.nodes
        pending, centre = dict[int, Balls](), zeros(len(rows))
        self.known.put(pending, view, rows)
        slope, low, high = zeros(len(rows), self.count), zeros(len(rows)), zeros(len(rows))
        while pending:
            top = max(pending)
            A, here = pending.pop(top), nodes[top]
            found: dict[int, Balls] = {}
            if isinstance(here, Sum | Matrix):
                if isinstance(here, Sum):
                    centre = centre + times(A, matrix(here.bias[:, None]))[:, 0]
                found = self.known.back(here, A)
            elif isinstance(here, Product):
                if A.shape[0] * here.out.size > LARGEST_FORM:
                    raise Refused("a product with more terms than the checker allows")
                for view in (here.x, here.y):
                    self._find(view.node)
                slope = padded(slope, self.count)
                x, y = self.rows(here.x), self.rows(here.y)
                ranges = ProductRanges(x.slope, y.slope, self.noise)
                for n, row in enumerate(A):
                    first, C, second = _used(here, row)
                    least, most = ranges.between(first.at, C, second.at)
                    low[n], high[n] = low[n] + least, high[n] + most
                x_centre, y_centre, C = here.left.of(x.centre), here.right.of(y.centre), here.out.of(A)
                self.known.put(found, here.x.at(here.left), C * y_centre)
                self.known.put(found, here.y.at(here.right), C * x_centre)
                centre = centre - (C * (x_centre * y_centre)).sum(1)
            else:
                form = self.rows(self.known.networks.whole(top))
                centre = centre + times(A, matrix(form.centre[:, None]))[:, 0]
                slope = padded(slope, self.count) + times(A, matrix(form.slope))
            for i, back in found.items():
                pending[i] = pending[i] + back if i in pending else back
        return centre, slope, low, high

    def differences(self, node: Softmax) -> tuple[Places, Balls, Balls]:
        """All pairs of places within the rows of a softmax, and bounds on the differences of their logits."""
        pairs = pairs_within(node)
        centre, slope, low, high = self.combinations(node.x, unit_rows(pairs))
        reach = np.array([self.noise.reach(row) for row in slope], dtype=object)
        return pairs, centre + low - reach, centre + high + reach

    def apart(self, index: int, pairs: Places) -> Form:
        """The differences of logits of a softmax, with noise of its own for what products leave of each.

        The same pair has the same noise wherever it is asked for.
        """
        node = self.known.networks.nodes[index]
        assert isinstance(node, Softmax)
        new = [pair for pair in pairs.at.tolist() if (index, *pair) not in self._apart]
        if new:
            centre, slope, low, high = self.combinations(node.x, unit_rows(Places(new, node.size)))
            form = self._spread(Form(centre + (low + high) / 2, slope), (high - low) / 2)
            self._apart |= {(index, i, j): row for (i, j), row in zip(new, zip(form.centre, form.slope))}
        found = [self._apart[index, i, j] for i, j in pairs.at.tolist()]
        slope = np.concatenate([padded(row[None], self.count) for _, row in found])
        return Form(np.array([centre for centre, _ in found], dtype=object), slope)

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
        centre, slope, low, high = self.combinations(node.x, rows.reshape(R * K, node.size))
        low, high = low + least.ravel(), high + most.ravel()
        own = node.outputs  # each entry stands in one row
        centre, error = own.spread(np.stack((centre + (low + high) / 2, (high - low) / 2)))
        self._known[index] = self._spread(Form(centre, own.spread(slope.T).T), error)


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
