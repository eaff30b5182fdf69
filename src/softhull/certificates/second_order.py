"""Proofs by one quadratic of the noise per specification: forms of the softmax outputs, splits, multipliers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checker.balls import Balls, Floats, is_zero
from ..checker.certificate import Refused
from ..checker.forms import Form, Mixed, pairs_within
from ..checker.network import Curve, Input, Kink, Product, Softmax, View
from ..checker.positions import Indices, Places
from ..checker.quadratic import Squares
from ..checker.replay import Rule, Rules
from ..checker.softmax_planes import Logits, NotAPlane, lower_plane, upper_plane
from ..propagate.second_order.fitted_rows import MixedValues
from ..propagate.second_order.probabilities import SHARES, affine_probabilities, tangent_directions
from ..propagate.second_order.row_fit import CELLS, fit_rows
from ..propagate.second_order.specification import FITS, TOWARDS
from .planes import STEEPEST, centre, referring
from .prover import Proof
from .searched import Fits, Searched

if TYPE_CHECKING:
    from torch import Tensor

# How rows of a softmax are passed, time after time: by planes, fitted, or fitted together with the values they mix.
PASSES = ("planes", *("mixed" if mixed else "fitted" for mixed in FITS))
# After a search: with its fits, then with our own.
SEARCHED = ("searched", "mixed")
_STEPS, _PATIENT = 15, 40  # on the multipliers; where there are fits there is nothing after it
_LEAST = 1e-12  # of a price
_BENDING = 1e-9  # differences of logits that vary less are as good as straight
# What they are raised by: a share, and the radii of balls around matrices of next to nothing.
_MORE, _ALWAYS = 1e-9, 1e-16


class SecondOrder:
    """Forms of every softmax before some tensors, and margins that follow with them."""

    def __init__(self, proof: Proof, own: bool = False) -> None:
        self.proof, self.known = proof, proof.known
        self.own = own  # whether what products leave of differences of logits has weights of its own
        self.searched: Searched | None = None  # fits and multipliers of a search
        self._errors: dict[int, Floats] = {}  # of the probabilities beside their affine functions, by softmax
        self._rows = "planes"  # how rows of a softmax are passed, one of PASSES
        self._near: Floats | None = None  # noise near which they are fitted
        # Values that are left to a softmax in this walk, and the entries that are references of its rows.
        self._mixed: dict[int, tuple[Mixed, Indices]] = {}
        self._left: list[int] = []  # the noise of what products leave of differences of logits

    @staticmethod
    def claimed(proof: Proof, views: Sequence[View], own: bool = False) -> SecondOrder:
        """With the forms as steps of the proof."""
        found = SecondOrder(proof, own)
        for index in proof.before(views):
            if isinstance(proof.networks.nodes[index], Softmax):
                found._form(index)
        return found

    def _form(self, index: int) -> None:
        """Better differences of the logits first, then the form, then the planes of ordinary walks anew."""
        node, proof = self.proof.networks.nodes[index], self.proof
        assert isinstance(node, Softmax)
        name = proof.networks.names[index]
        self.known.learn_logits(index, self.own)
        proof.steps.append({"claim": "logits", "tensor": name} | ({"own": 1} if self.own else {}))
        R, K = node.rows.shape
        below, above = np.zeros((1, R, K, 4)), np.zeros((1, R, K, K))
        for r in range(R):
            x, shown = self.known.logits(node, r), self.known.visible(node, r)
            for own, (k, rate) in enumerate(zip(shown, parallel_rates(x))):
                lower, above[0, r, k, shown] = parallel_planes(x, own, rate)
                below[0, r, k] = referring(lower, shown)
        planes = self.known.derive_planes(index, below, above)
        number = proof.add_planes(index, planes, below, above)
        forms = self.known.forms
        before = forms.count
        forms.learn_softmax(index, planes)
        proof.steps.append({"claim": "form", "tensor": name, "planes": number})
        form = forms.rows(proof.networks.whole(index))
        self._errors[index] = self._over_noise(form)[:, before:].sum(1)
        proof.derive_planes(index)

    @staticmethod
    def sharpened(proof: Proof, views: Sequence[View]) -> None:
        """Claim all differences of the logits of short rows, each as a quadratic of its own.

        Kinks before them by lines, or as they are: neither is always better.
        """
        found = SecondOrder(proof)

        def kept(index: int, A: Balls) -> Rule | None:
            node = proof.networks.nodes[index]
            return {"kept": np.zeros((3, node.size))} if isinstance(node, Kink) else None

        for index in proof.before(views):
            node = proof.networks.nodes[index]
            if isinstance(node, Softmax) and node.hidden is None and node.rows.shape[1] - 1 in CELLS:
                for i, j in pairs_within(node).at.tolist():
                    found._best(partial(found.lead, node.x, i, j), (None, kept))
                    found._best(partial(found.lead, node.x, j, i), (None, kept))

    def near(self, noise: Floats) -> None:
        """Fits that come next are near this noise."""
        self._near = noise

    def lead(
        self,
        view: View,
        label: int,
        rival: int,
        rows: str = "planes",
        first: Rules | None = None,
        on_cuts: Floats | None = None,
    ) -> float:
        """Claim that one entry exceeds another, and by how much.

        ``rows``: how attention rows are passed (PASSES); fits are near where the walks before this were at their least.
        ``first``: choices that go before our own, but for rows that are fitted; ``on_cuts [1, cuts]``: multipliers of
        the cuts of a cell.
        """
        with self.choosing(rows, first):
            return self.proof.claim_difference(view, label, rival, on_cuts)

    def sign(self, view: View, positive: bool, rows: str = "planes", on_cuts: Floats | None = None) -> float:
        """Claim that a single output is positive (negative): how far it stays from zero."""
        with self.choosing(rows):
            return self.proof.claim_sign(view, positive, on_cuts)

    def sharpen(self, entries: Mapping[int, Indices]) -> None:
        """Claim both ends of some entries of what kinks and curves are applied to, by node, first to last."""
        for index in sorted(entries):
            node = self.proof.networks.nodes[index]
            assert isinstance(node, Kink | Curve)
            for place in entries[index].tolist():
                for lower in (True, False):
                    with self.choosing():
                        self.proof.claim_end(node.x, place, lower)
            self.proof.renew_lines()

    def first(self, claim: Callable[[str], float], passes: Sequence[str] = PASSES) -> float:
        """What ``claim`` proves with the first way to pass attention rows that suffices, or with the last.

        Steps that do not suffice are left out, and the noise that only they have.
        """
        steps, forms, left, found = len(self.proof.steps), self.known.forms, self._left, -np.inf
        for rows in passes:
            del self.proof.steps[steps:]
            self.known.forms, self._left = forms.copy(), left.copy()
            self._near = None if self._near is None else self._near[: forms.count]
            try:
                found = claim(rows)
            except Refused:  # a fit in more cells than the checker looks at
                found = -np.inf
            if found > 0:
                break
        return found

    def _best(self, claim: Callable[..., float], ways: Sequence[Rules | None]) -> None:
        """Keep the better of several claims, by what goes first in each; the noise of others is forgotten."""
        start, forms, found = len(self.proof.steps), self.known.forms, []
        for first in ways:
            self.known.forms = forms.copy()
            found.append((claim(first=first), self.proof.steps[start:], self.known.forms))
            del self.proof.steps[start:]
        _, steps, self.known.forms = max(found, key=lambda way: way[0])
        self.proof.steps += steps

    @contextmanager
    def choosing(self, rows: str = "planes", first: Rules | None = None) -> Iterator[None]:
        """Walks that split products."""
        self._rows, self._mixed = rows if self._near is not None else "planes", {}

        def choose(index: int, A: Any) -> Rule | None:
            fitted = isinstance(self.proof.networks.nodes[index], Softmax) and self._fitted(index)
            return (first is not None and not fitted and first(index, A)) or self._choose(index, A)

        with self.proof.following(choose):
            yield

    def _over_noise(self, form: Form) -> Floats:
        """Slopes over all the noise there is, as floats."""
        return self.known.forms.over_noise(form.slope, form.basis).astype(np.float64)

    def _choose(self, index: int, A: Any) -> Rule | None:
        """Choices at the input, at products and at short attention rows; None leaves it to the linear prover."""
        node = self.proof.networks.nodes[index]
        if isinstance(node, Input):
            return self._multipliers(*A)
        if isinstance(node, Kink) and self.searched is not None:
            return self.searched.kept(index, node.size)
        if isinstance(node, Softmax) and self._fitted(index):
            known = self._known_fits(index, node) if index in self._mixed else None
            if known is not None:
                return self._fit_again(index, node, known)
            return self._fit(index, node, node.outputs.of(A[0].astype(np.float64)))
        if not isinstance(node, Product):
            return None
        for side, view in enumerate((node.x, node.y)):
            source = self.proof.networks.nodes[view.node]
            if isinstance(source, Softmax) and sorted(view.index.flat) == list(range(source.size)):
                known = self._known_fits(view.node, source)
                reference = self._reference(node, A[0], side) if known is None else known_reference(view, source, known)
                rule: dict[str, Any] = {"split": side, "reference": reference}
                if self._rows in SEARCHED and self._fitted(view.node) and view.node not in self._mixed:
                    part = self.known.forms.split(node, A[0], side, reference, mixed=True)[2]
                    assert isinstance(part, Mixed)
                    self._mixed[view.node] = part, view.index.at.ravel()[np.unique(reference)]
                    rule["mixed"] = 1
                return rule
        return {"split": 0}

    def _fitted(self, index: int) -> bool:
        """Whether the rows of a softmax are fitted: they are short, and bend."""
        node = self.proof.networks.nodes[index]
        assert isinstance(node, Softmax)
        if self._rows == "planes" or node.hidden is not None or node.rows.shape[1] - 1 not in CELLS:
            return False
        apart = self._apart(node)
        return bool((-apart - apart.swapaxes(1, 2)).max() > _BENDING)

    def _known_fits(self, index: int, node: Softmax) -> Fits | None:
        """Those of a search, where they are asked for."""
        if self.searched is None or self._rows != "searched" or not self._fitted(index):
            return None
        return self.searched.fits(index, node)

    def _fit_again(self, index: int, node: Softmax, known: Fits) -> Rule:
        """Known fits around where they are to be good: there, what is left of products of the logits costs least."""
        others = np.array([np.delete(np.arange(node.rows.shape[1]), J) for J in known.reference])
        point, low, high = self._points(index, node, known.reference, others)
        moved = np.clip(point, low, high) - known.origin
        bent = (known.matrix @ moved[..., None])[..., 0]
        value = known.value + (moved * (known.slope + bent)).sum(1)
        return {
            "fit": known.reference,
            "weights": known.weights,
            "origin": known.origin + moved,
            "slope": known.slope + 2 * bent,
            "matrix": known.matrix,
            "value": value - 1e-9 * (1 + np.abs(value)),
            "price": np.maximum(known.price, _LEAST),
            "level": known.level + (known.lines @ moved[..., None])[..., 0],
            "lines": known.lines,
            "met": known.met,
        }

    def _points(self, index: int, node: Softmax, reference: Indices, others: Indices) -> tuple[Floats, Floats, Floats]:
        """Differences ``[R, K - 1]`` to a reference near which rows are fitted, and between which they are."""
        near = self._near
        assert near is not None
        R, K = node.rows.shape
        row, last, places = np.arange(R)[:, None], reference[:, None], node.rows.at
        pairs = np.stack(np.broadcast_arrays(places[row, others], places[row, last]), -1).reshape(-1, 2)
        before = self.known.forms.count
        d = self.known.forms.apart(index, Places(pairs, node.size))
        self._left += range(before, self.known.forms.count)
        known = self._over_noise(d)[:, : len(near)]
        point = (d.centre.astype(np.float64) + known @ near[: known.shape[1]]).reshape(R, K - 1)
        apart = self._apart(node)
        return point, apart[row, others, last], -apart[row, last, others]

    def _apart(self, node: Softmax) -> Floats:
        """Lower bounds ``[R, K, K]`` on the differences of the logits of every row."""
        return np.stack([self.known.logits(node, r).apart for r in range(len(node.rows.at))])

    def _reference(self, node: Product, row: Balls, side: int) -> Indices:
        """Of every softmax row the entry to which the others' values are nearest, weighted with the others' errors."""
        kept, other = (node.x, node.y) if side == 0 else (node.y, node.x)
        mine, theirs = (node.left, node.right) if side == 0 else (node.right, node.left)
        source = self.proof.networks.nodes[kept.node]
        assert isinstance(source, Softmax)
        C = np.zeros((kept.size, other.size))
        np.add.at(C, (mine.at, theirs.at), node.out.of(row).astype(np.float64))
        pulls = C @ self._over_noise(self.known.forms.rows(other))
        errors = kept.index.of(self._errors[kept.node])
        place = np.argsort(kept.index.at)  # where every probability stands in the factor
        found = np.full(kept.size, -1)
        for members in source.outputs.of(place):
            apart = np.abs(pulls[members, None] - pulls[None, members]).sum(-1)
            found[members] = members[np.argmin(errors[members] @ apart)]
        return found

    def _fit(self, index: int, node: Softmax, weights: Floats) -> Rule | None:
        """Quadratics below ``weights [R, K]`` on the rows of a softmax, as close as they can be at some noise."""
        import torch

        near, (mixed, references) = self._near, self._mixed.get(index, (None, None))
        assert near is not None
        R, K = node.rows.shape
        apart = self._apart(node)
        width = -apart - apart.swapaxes(1, 2)
        reference = np.log(np.maximum(width, 1e-12)).sum(1).argmin(1)  # whose differences have the smallest box
        if references is not None:  # for values it is chosen already
            reference = np.isin(node.outputs.at, references).argmax(1)
        row, last = np.arange(R)[:, None], reference[:, None]
        others = np.array([np.delete(np.arange(K), J) for J in reference])
        places = node.rows.at
        point, low, high = self._points(index, node, reference, others)
        middle = low + (high - low) / 2
        between = apart[row[..., None], others[:, :, None], others[:, None]]
        between = between - middle[:, :, None] + middle[:, None]
        a = np.concatenate((weights[row, others], weights[row, last]), 1)
        met = price = np.zeros((R, K - 1))
        if mixed is not None:  # the values beside that of the reference
            own = places[row, others]
            V = self.known.forms.over_noise(mixed.values, mixed.basis).astype(np.float64)
            V = V[own] - V[places[row, last]]
            met = V[..., : len(near)] @ near[: V.shape[-1]]
            about = V, mixed.centre[own].astype(np.float64), np.abs(V).sum(-1), self._errors[index][own]
            price = np.maximum(MixedValues(*(torch.from_numpy(part) for part in about)).price().numpy(), _LEAST)
            a[:, :-1] += met
        A, at, lower, upper, least, most, here, priced = (
            torch.from_numpy(part)
            for part in (
                a,
                np.pad(middle, ((0, 0), (0, 1))),
                low - middle,
                high - middle,
                between,
                -between.swapaxes(1, 2),
                np.clip(point, low, high) - middle,
                np.pad(price, ((0, 0), (0, 1))),
            )
        )
        found = fit_rows(A, at, lower, upper, (least, most), here, priced)
        value, slope, matrix = (part.numpy() for part in (found.value, found.slope, found.matrix))
        if not np.isfinite(value).all():
            return None
        # Around where it is to be good: there, what is left of products of the logits costs least.
        moved = here.numpy()
        bent = (matrix @ moved[..., None])[..., 0]
        value, slope = value + (moved * (slope + bent)).sum(1), slope + 2 * bent
        slack = 1e-9 * (1 + np.abs(value))
        rule = {"fit": reference, "origin": middle + moved, "slope": slope, "matrix": matrix, "value": value - slack}
        if mixed is not None:
            level, lines = (part.numpy()[:, :-1] for part in (found.level, found.lines))
            rule |= {"price": price, "level": level + (lines @ moved[..., None])[..., 0], "lines": lines, "met": met}
        return rule

    def _least_at(self, noise: Floats) -> None:
        """Where a quadratic is least: fits that come next are near it, and not far from where those before were.

        Noise that only fits have is left out: it follows them around.
        """
        noise[self._left] = 0.0
        if self._near is not None and self._rows != "planes":
            before = np.pad(self._near, (0, max(0, len(noise) - len(self._near))))
            noise = TOWARDS * noise + (1 - TOWARDS) * before[: len(noise)]
        self._near = noise

    def _multipliers(self, linear: Balls, B: Squares) -> Rule:
        """Multipliers found in floating point, and the minimiser.

        Over an l_1 ball there is nothing to choose.
        """
        import torch

        from ..propagate.second_order.dual import Problem, Pursuit, bound, minimiser
        from ..propagate.second_order.low_rank import LowRankQuadratic
        from ..propagate.second_order.quadratic import NEWTON_UP_TO, DenseQuadratic

        noise = self.known.forms.noise
        l_ = linear.astype(np.float64)
        if noise.norm == 1:  # what the run does, and tighter than any multipliers
            steepest = np.arange(len(l_)) == np.abs(l_[: noise.inputs]).argmax()
            steepest[noise.inputs :] = True
            self._least_at(np.where(steepest, -np.sign(l_), 0.0))
            return {"corners": 1}
        # Noise that does not enter, with nothing to search there; by floats what enters may be nothing, too.
        used = (l_ != 0) | ~is_zero(B.C if B.U is None else B.U).astype(bool).all(0)
        C, ball = B.C.astype(np.float64), torch.from_numpy(np.flatnonzero(used) < noise.inputs) if noise.norm else None
        problem: Problem
        U = (np.eye(len(C)) if B.U is None else B.U.astype(np.float64))[:, used]
        matrix, given = U.T @ (C @ U), torch.from_numpy(l_[used])[None]
        if B.U is None or (ball is None and len(matrix) <= NEWTON_UP_TO):
            problem = DenseQuadratic(given, torch.from_numpy(matrix)[None], ball)
        else:
            problem = LowRankQuadratic.of(given, torch.from_numpy(U)[None], torch.from_numpy(C)[None], ball)
        never = torch.full((1,), torch.inf, dtype=torch.float64)
        d = bound(problem, Pursuit(_STEPS if self._rows == "planes" else _PATIENT, never))[1][0].numpy()
        multipliers, point = np.zeros(len(l_)), np.zeros(len(l_))
        # A little more than floating point proves, so that balls prove it, too.
        multipliers[used] = d * (1 + _MORE) + _MORE * d.sum() / max(1, len(d)) + _ALWAYS
        point[used] = -np.linalg.solve(matrix + np.diag(multipliers[used]), l_[used]) / 2
        near = np.zeros(len(l_))
        near[used] = minimiser(problem, torch.from_numpy(multipliers[used])[None])[0].nan_to_num().numpy()
        self._least_at(near)
        return {"multipliers": multipliers, "point": point}


def known_reference(view: View, source: Softmax, known: Fits) -> Indices:
    """For every place of a factor that is all probabilities of a softmax: that of the reference of its row."""
    place = np.argsort(view.index.at)  # where every probability stands in the factor
    found = np.full(view.size, -1)
    for members, J in zip(source.outputs.of(place), known.reference):
        found[members] = members[J]
    return found


class QuadraticRows:
    """Claims on linear functions of the probabilities.

    Some differences of logits, ``pairs [N, 2]``, are bounded by second order first, which tightens the planes of the
    outputs. These are tangent at ``logits``, one ``[K]`` for every network, or amid what is known.
    """

    def __init__(self, second_order: SecondOrder) -> None:
        self.proof, self.second_order = second_order.proof, second_order

    @staticmethod
    def claimed(proof: Proof, pairs: Indices, logits: Sequence[Floats] | None = None) -> QuadraticRows:
        """With what is bounded first as steps of the proof."""
        proof.prepare(proof.networks.logits, contract=False)  # second order bounds these differences anew
        found = QuadraticRows(SecondOrder.claimed(proof, proof.networks.logits))
        for number, (view, output) in enumerate(zip(proof.networks.logits, proof.networks.probabilities)):
            proof.prepare_softmax(output.node)
            for j, k in pairs.tolist():
                found.second_order.lead(view, j, k)
            proof.derive_planes(output.node, None if logits is None else logits[number][None])
        return found

    def claim(self, coefficients: Tensor) -> None:
        """Lower bounds on ``-coefficients . (sum of the probabilities)``, one claim for every row ``[R, K]``."""
        for row in coefficients:
            self.follow({"coefficients": row})

    def follow(self, found: Mapping[str, Tensor], rows: str = "planes") -> None:
        """The claim on one row ``coefficients [K]``."""
        with self.second_order.choosing(rows):
            self.proof.claim_score(-found["coefficients"].cpu().numpy())


def parallel_rates(x: Logits) -> list[float]:
    """For every output the slope in its log-odds that the run gives planes with little between them."""
    import torch

    at, apart = torch.from_numpy(centre(x)), torch.from_numpy(x.apart)
    unknown = torch.full_like(at, torch.inf)
    found = affine_probabilities(
        at, (apart, -apart.T), tangent_directions(at), lambda _: (-unknown, unknown), lambda *_: unknown[0]
    )
    return found.slope.diagonal().clamp(0, STEEPEST).tolist()


def parallel_planes(x: Logits, k: int, rate: float) -> tuple[tuple[float, float, float, float], Floats]:
    """Parameters of planes below and above ``p_k`` with little between them once they are made parallel."""
    at = centre(x)
    others = np.delete(np.arange(len(at)), k)
    best, found = np.inf, ((-1.0, 0.0, 0.0, 1.0), np.zeros(len(at)))
    if not len(others):
        return found
    shares = np.exp(at[others] - at[others].max())
    pulls = np.zeros(len(at))
    pulls[others] = rate * shares / shares.sum()
    try:
        above_slope, above = upper_plane(x, k, pulls)
    except NotAPlane:
        return found
    for J in others[np.argsort(-at[others])][:3].tolist():
        here = _chords(x, k, J, at)
        for part in SHARES:
            plane = (float(J), 1.0, rate, float(np.clip(rate * part / here, 1e-300, 1e300)))
            try:
                below_slope, below = lower_plane(x, k, J, *plane[1:])
            except NotAPlane:
                continue
            left = float(above - below - x.least(below_slope - above_slope))
            if left < best:
                best, found = left, (plane, pulls)
    return found


def _chords(x: Logits, k: int, J: int, at: Floats) -> float:
    """The sum of the chords of the other exponentials at a point, relative to J and scaled as in ``lower_plane``."""
    low, high = x.apart[:, J].copy(), -x.apart[J]
    low[J] = high[J] = 0.0
    top = high.max()
    first, last, width = np.exp(low - top), np.exp(high - top), high - low
    share = np.clip(np.where(width > 0, (at - at[J] - low) / np.where(width > 0, width, 1), 1), 0, 1)
    return float(np.delete(first + share * (last - first), k).sum())
