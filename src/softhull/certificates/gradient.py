"""What gradient steps chose for one walk, as choices of the checker.

The run knows its own graph, the checker the tensors of the file. Both compute the same numbers, so what stands where is
found by comparing the values at one input. Nothing rests on that: a wrong guess makes a weaker choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from ..checker.balls import Balls, Floats
from ..checker.forms import pairs_within
from ..checker.network import Curve, Kink, Product, Softmax, View
from ..checker.positions import Indices
from ..checker.replay import Knowledge, Region, Rule
from ..graph.graph import Graph, Node
from ..graph.operator import Bilinear, Elementwise
from ..graph.ops.softmax import Softmax as SoftmaxOperator
from ..propagate.optimize import Chosen
from .planes import best_lower, best_upper, centre, referring
from .prover import Proof

_KINDS = {Kink: Elementwise, Curve: Elementwise, Softmax: SoftmaxOperator, Product: Bilinear}
_SURELY = 1 - 1e-12  # so that weights add up to no more than 1


class Followed:
    """Choices for walks of ``proof``, made from those of a run on ``graph``."""

    def __init__(self, proof: Proof, graph: Graph) -> None:
        self.proof, self.graph = proof, graph
        region = proof.known.region
        at = np.random.default_rng(0).uniform(region.lower, region.upper)
        self._here = Knowledge(proof.networks, Region(at, at))
        with torch.no_grad():
            given = torch.from_numpy(at).reshape(1, *graph.input_shape)
            values = graph.to(torch.float64).values(given)
        self._values = {-1: at} | {i: value.flatten().numpy() for i, value in enumerate(values)}
        self.twins: dict[int, tuple[int, Indices]] = {}  # by node of the checker: of the graph, and entry by entry
        self._planes: dict[int, int] = {}
        self._find_twins()

    def _find_twins(self) -> None:
        """Pair the nodes of the checker that need choices with nodes of the graph of the same values."""
        networks, taken = self.proof.networks, set[int]()
        for index in self.proof.before([networks.logits[0]]):
            node = networks.nodes[index]
            kind = _KINDS.get(type(node))
            if kind is None:
                continue
            # Many outputs of a kink are equal; what goes into it is not.
            view = node.x if isinstance(node, Kink | Curve) else networks.whole(index)
            for i, other in enumerate(self.graph.nodes):
                if i in taken or not isinstance(other.operator, kind):
                    continue
                order = self._order(other.inputs[0] if isinstance(node, Kink | Curve) else i, self._at(view))
                if order is not None:
                    taken.add(i)
                    self.twins[index] = i, order
                    break

    def _at(self, view: View) -> Floats:
        return self._here.box(view)[0].ravel()

    def _order(self, index: int, wanted: Floats) -> Indices | None:
        """Where in a value of the graph every one of some numbers stands; None where it has others."""
        found = self._values[index]
        if found.size != wanted.size:
            return None
        mine, theirs = np.argsort(found, kind="stable"), np.argsort(wanted, kind="stable")
        scale = 1e-9 * (1 + np.abs(found).max())
        if np.abs(found[mine] - wanted[theirs]).max() > scale:
            return None
        order = np.empty(wanted.size, dtype=np.int64)
        order[theirs] = mine
        return order

    def activated(self, entries: Mapping[int, torch.Tensor]) -> dict[int, Indices]:
        """For entries of nodes of the graph the places of what kinks and curves of the checker are applied to."""
        found = {}
        for index in self.twins:
            node = self.proof.networks.nodes[index]
            if isinstance(node, Kink | Curve):
                orders = {source: self._order(source, self._at(node.x)) for source in entries}
                for source, order in orders.items():
                    if order is not None:
                        found[index] = np.flatnonzero(np.isin(order, entries[source].numpy()))
        return found

    def differ(self, apart: Mapping[int, Sequence[Chosen]]) -> None:
        """Claim the logit differences of every softmax as the run did, and derive its planes anew."""
        for index in [i for i in self.twins if self.twins[i][0] in apart]:
            node, (twin, order) = self.proof.networks.nodes[index], self.twins[index]
            assert isinstance(node, Softmax)
            places = pairs_within(node)
            pairs = node.x.at(places).index.at  # of entries
            for chosen in apart[twin]:
                # The differences that this part of the run is about: places of the larger and of the smaller one.
                rows = chosen.rows[:, 0].flatten(1).numpy()
                larger, smaller = rows.argmax(1).tolist(), rows.argmin(1).tolist()
                specifications = {ends: s for s, ends in enumerate(zip(larger, smaller))}
                ends = [tuple(pair) for pair in order[places.at].tolist()]
                mine = [i for i, (a, b) in enumerate(ends) if {(a, b), (b, a)} <= specifications.keys()]
                for part in self.proof.parts(np.array(mine, dtype=np.int64), 2):
                    both = [ends[i] for i in part], [ends[i][::-1] for i in part]
                    which = np.array([specifications[pair] for side in both for pair in side])
                    with self.proof.following(partial(self.choose, chosen, which=which)):
                        self.proof.claim_differences(self.proof.networks.whole(node.x.node), pairs[part])
            self.proof.derive_planes(index)
            self._planes.pop(index, None)

    def choose(self, chosen: Chosen, index: int, A: Balls, which: Indices | None = None) -> Rule | None:
        """The rule for one node, or None where the run says nothing of it.

        ``which``: the specifications of the run that the rows of A are; by default its only one.
        """
        node = self.proof.networks.nodes[index]
        which = np.zeros(1, dtype=np.int64) if which is None else which
        if index not in self.twins or len(A) != len(which):
            return None
        twin, order = self.twins[index]
        own = {}  # with specifications first and without instances
        for (i, name), (value, axis) in chosen.held.items():
            if i == twin:
                own[name] = np.moveaxis(value.double().cpu().numpy().squeeze(axis), axis - 1, 0)
                own[name] = own[name][which if len(own[name]) > 1 else np.zeros_like(which)]
        if isinstance(node, Kink) and "slopes" in own:
            below = own["slopes"][:, 0].reshape(len(A), -1)[:, order]
            return {"slope": np.clip((below - node.slope) / (1 - node.slope), 0.0, 1.0)}
        if isinstance(node, Kink) and "bend" in own and len(A) == 1:
            slope, bend = (np.moveaxis(own[name], 0, 1).reshape(2, -1)[:, order] for name in ("slope", "bend"))
            lower, upper = self.proof.known.box(node.x)
            return {"slope": slope.copy(), "bend": bend / (3 * np.maximum(upper - lower, 1e-9))}
        if isinstance(node, Product) and "kept" in own:
            return self._keep_one(node, self.graph.nodes[twin], own, A)
        if len(A) > 1:
            return None
        own = {name: value[0] for name, value in own.items()}
        if isinstance(node, Curve) and "slopes" in own:
            return dict(zip(("below", "above"), (side.ravel()[order] for side in own["slopes"])))
        if isinstance(node, Softmax) and "planes" in own and "simplex" in own:
            return self._softmax(index, node, self.graph.nodes[twin], own, order)
        if isinstance(node, Product) and "basis" in own:
            return self._keep_neither(node, self.graph.nodes[twin], own, order, A)
        if isinstance(node, Product) and "mixture" in own:
            return dict(zip(("below", "above"), (side.ravel()[order] for side in own["mixture"])))
        return None

    def _softmax(self, index: int, node: Softmax, twin: Node, own: dict[str, Floats], order: Indices) -> Rule:
        """Shares of constants and of further planes, taken one after the other, as weights of all of them."""
        if index not in self._planes:
            self._planes[index] = self._derive(index, node)
        assert isinstance(twin.operator, SoftmaxOperator)
        axis, shape = twin.operator.axis, twin.shape
        rows = (*shape[:axis], *shape[axis + 1 :], shape[axis])

        def placed(values: Floats) -> Floats:
            """``[rows, K]`` of the graph as ``[R, K]`` of the checker."""
            flat = np.moveaxis(np.broadcast_to(values, (values.shape[0], shape[axis])).reshape(rows), -1, axis).ravel()
            return node.outputs.of(flat[order])

        weights = []
        for constant, low, high in (np.moveaxis(side, -1, 0) for side in own["planes"]):
            parts = (1 - constant) * (1 - low) * (1 - high), low * (1 - high), high
            weights.append(np.stack([placed(part) for part in parts]) * _SURELY)
        multiplier = placed(own["simplex"])[:, 0][None]
        return {"planes": self._planes[index], "multiplier": multiplier, "below": weights[0], "above": weights[1]}

    def _derive(self, index: int, node: Softmax) -> int:
        """Planes tangent amid what is known and, for every output, where its own logit is low and where it is high."""
        R, K = node.rows.shape
        below, above = np.zeros((3, R, K, 4)), np.zeros((3, R, K, K))
        for r in range(R):
            x, shown = self.proof.known.logits(node, r), self.proof.known.visible(node, r)
            for own, k in enumerate(shown):
                towards = (x.high - x.low) / 4 * np.where(np.arange(len(shown)) == own, 1.0, -1.0)
                for p, sign in enumerate((0, -1, 1)):
                    at = np.clip(centre(x) + sign * towards, x.low, x.high)
                    below[p, r, k] = referring(best_lower(x, own, at), shown)
                    above[p, r, k, shown] = best_upper(x, own, at)
        return self.proof.add_planes(index, self.proof.known.derive_planes(index, below, above), below, above)

    def _factors(self, node: Product, twin: Node) -> list[tuple[int, Indices]] | None:
        """Which factor of the checker each factor of the graph is, and for its places the entries of the graph's."""
        found: list[tuple[int, Indices]] = []
        for i, taken in zip(twin.inputs, (None, 0)):
            for side, view in enumerate((node.x, node.y)):
                order = self._order(i, self._at(view))
                if order is not None and (taken is None or side != found[0][0]):
                    found.append((side, order))
                    break
        return found if len(found) == 2 else None

    def _keep_one(self, node: Product, twin: Node, own: dict[str, Floats], A: Balls) -> Rule | None:
        """The contraction that keeps the factor that the run kept, with its weights."""
        factors, proof = self._factors(node, twin), self.proof
        if factors is None:
            return None
        second, weight = bool(own["kept"].ravel()[0]), own["product"]
        keep, order = factors[1] if second else factors[0]
        weight = (np.swapaxes(weight, -1, -2) if second else weight).reshape(len(A), -1)[:, order]
        with proof.following(None):
            reference = next((r for side, r in proof.kept(node, A) if side == keep), None)
            _, rule, view, parts = proof.contraction(node, A, keep, reference)
        return {**rule, "weight": weight, "functions": proof.claim_functions(view, parts)} if parts else None

    def _keep_neither(self, node: Product, twin: Node, own: dict[str, Floats], order: Indices, A: Balls) -> Rule | None:
        """Functions ``(C V)'X`` and ``Y V`` of both factors, for singular vectors V of the coefficients C."""
        basis, weight, places = own["basis"], own["product"], self._factors(node, twin)
        if places is None:
            return None
        proof = self.proof
        flat = np.empty(order.size)
        flat[order] = A[0].astype(np.float64)
        groups, inner = len(basis), self.graph.shape_of(twin.inputs[0])[-1]
        C = flat.reshape(groups, -1, basis.shape[1])
        size = np.linalg.norm(C @ basis, axis=1)
        R = max(1, int((size > 1e-9 * size.max()).any(0).sum()))  # the others are no more than rounding
        basis = basis[..., :R]
        amounts = C @ basis
        # Rows over the entries of the graph's factors [groups, I, inner] and [groups, inner, J].
        X = np.zeros((groups, R, inner, groups, C.shape[1], inner))
        Y = np.zeros((groups, R, inner, groups, inner, C.shape[2]))
        for g in range(groups):
            for k in range(inner):
                X[g, :, k, g, :, k], Y[g, :, k, g, k] = amounts[g].T, basis[g].T
        count = groups * R * inner
        steps, sides = [], []
        for rows, (side, at) in zip((X, Y), places):
            view = (node.x, node.y)[side]
            spread = np.zeros((count, proof.networks.nodes[view.node].size))
            np.add.at(spread.T, view.index.flat, rows.reshape(count, -1)[:, at].T)
            with proof.following(None):
                parts = proof.bound_functions(proof.networks.whole(view.node), spread)
            steps.append(proof.claim_functions(proof.networks.whole(view.node), parts))
            sides.append(side)
        pairs = np.repeat(np.arange(count)[:, None], 2, 1)
        left, right = (steps[sides.index(side)] for side in (0, 1))
        weight = weight.reshape(groups, -1, inner)[:, :R].reshape(count)
        return {"left": left, "right": right, "pairs": pairs, "weight": weight}
