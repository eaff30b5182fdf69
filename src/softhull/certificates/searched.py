"""What a search chose in one cell by second order, as choices of the checker."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checker.balls import Floats
from ..checker.network import Softmax
from ..checker.replay import Rule
from ..graph.ops.softmax import Softmax as SoftmaxOperator

if TYPE_CHECKING:
    from ..branch.product_leaves import Warm
    from .gradient import Followed

# The cuts of a rectifier in a search, y (y - x), -y and x - y, as rows of multipliers of the checker.
_ROWS = (2, 0, 1)


@dataclass(frozen=True)
class Fits:
    """``phi(d) >= value + slope . y + y'matrix y``, ``y = d - origin``, row by row; see the rule of the checker."""

    reference: np.ndarray[Any, np.dtype[np.int64]]  # [R]
    weights: Floats  # [R, K]
    value: Floats  # [R]
    origin: Floats  # [R, K - 1], as are slope, met, price and level
    slope: Floats
    matrix: Floats  # [R, K - 1, K - 1], as are lines
    met: Floats
    price: Floats
    level: Floats
    lines: Floats


class Searched:
    """The choices of one cell; nodes of the graph are found by ``followed``."""

    def __init__(self, followed: Followed, warm: Warm) -> None:
        self.twins, self.graph, self.warm = followed.twins, followed.graph, warm

    def kept(self, index: int, size: int) -> Rule | None:
        """Multipliers of the rectifiers of a node that stay in the quadratic; None where they do not."""
        twin, order = self.twins.get(index, (None, None))
        own = [(entry, kind, b) for (node, entry, kind), b in self.warm.kinks.items() if node == twin]
        if order is None or not own:
            return None
        place, found = {entry: p for p, entry in enumerate(order.tolist())}, np.zeros((3, size))
        for entry, kind, b in own:
            found[_ROWS[kind], place[entry]] = max(b, 0.0)
        return {"kept": found}

    def fits(self, index: int, node: Softmax) -> Fits | None:
        """The fits of the rows of a softmax; None where there are none that the checker has a rule for.

        Those of the search are in differences to a reference that may be another than that of the values: x being all
        logits, ``y = E x - centre``, and E vanishes where all are equal, so that ``E x = T d`` for other differences.
        """
        twin, order = self.twins.get(index, (None, None))
        if order is None or self.warm.fits is None or twin not in self.warm.fits:
            return None
        known, operator = self.warm.fits[twin], self.graph.nodes[twin].operator
        assert isinstance(operator, SoftmaxOperator)
        K = node.rows.shape[1]
        shape = self.graph.nodes[twin].shape
        entries = np.arange(prod(shape)).reshape(shape)
        entries = np.moveaxis(entries, operator.axis, -1).reshape(-1, K)
        where = {entry: (row, k) for row, own in enumerate(entries.tolist()) for k, entry in enumerate(own)}
        found: list[tuple[Any, ...]] = []
        for own in order[node.outputs.at].tolist():
            row, columns = where[own[0]][0], [where[entry][1] for entry in own]
            weights, met, price, level, lines, slope, matrix, centre = (
                getattr(known, name)[0, row].numpy()
                for name in ("weights", "met", "price", "level", "lines", "slope", "matrix", "centre")
            )
            last = int(known.reference[0, row])
            stands = np.arange(K)  # at every place of the search: the logit, its reference last
            stands[last], stands[-1] = K - 1, last
            E = np.eye(K)[stands[:-1]] - np.eye(K)[last]
            here = np.argsort(stands)[columns]  # of every logit: its place there
            weights, met, price = weights[columns], met[columns], price[columns]
            J = int(price.argmin())
            others = np.delete(np.arange(K), J)
            value = float(known.value[0, row])
            if price[J] != 0 or not np.isfinite(value):
                return None
            T = E[:, columns][:, others]
            found.append(
                (
                    J,
                    weights,
                    value,
                    np.linalg.solve(T, centre),
                    T.T @ slope,
                    T.T @ matrix @ T,
                    met[others],
                    price[others],
                    level[here][others],
                    lines[here][others] @ T,
                )
            )
        return Fits(*(np.array(part) for part in zip(*found)))
