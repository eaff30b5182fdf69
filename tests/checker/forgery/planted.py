"""Errors to plant in the checker, each a change of its source: those it once had, and likely ones.

The search has teeth if it finds every one of them. A change that no longer fits the source fails loudly.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from softhull.checker import (
    balls,
    cells,
    check,
    curves,
    forms,
    network,
    operators,
    positions,
    quadratic,
    ranges,
    replay,
    scores,
    softmax_planes,
    tree,
)

MODULES = (
    balls,
    cells,
    check,
    curves,
    forms,
    network,
    *(module for module in vars(operators).values() if inspect.ismodule(module)),
    quadratic,
    ranges,
    replay,
    scores,
    softmax_planes,
    tree,
)


@dataclass(frozen=True)
class Planted:
    """``old`` becomes ``new`` in the source of ``owner.name``; the families in which it can show.

    ``seed`` is where the search begins: one that was seen to find it soon. The others follow.
    """

    what: str
    owner: Any
    name: str
    old: str
    new: str
    families: tuple[str, ...]
    seed: int = 0

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        function = inspect.unwrap(getattr(self.owner, self.name))
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.what}: {self.name} has changed"
        module = sys.modules[function.__module__]
        made: dict[str, Any] = {}
        exec(compile(source.replace(self.old, self.new), f"<{self.what}>", "exec"), vars(module), made)
        patch.setattr(self.owner, self.name, made[self.name])
        if self.owner is module:  # others may have imported it by name
            for other in MODULES:
                if getattr(other, self.name, None) is function:
                    patch.setattr(other, self.name, made[self.name])

    def __str__(self) -> str:
        return self.what.replace(" ", "-")


K, P = replay.Knowledge, Planted
PLANTED = [
    # What the checker once accepted
    P(
        "a stop forgets quadratics",
        K,
        "least",
        "return np.full(len(walk.constant), arb.neg_inf(), dtype=object)",
        "return walk.constant + minimum_of(self, walk.pending)",
        ("product", "shared"),
    ),
    P("repeated entries overwrite", positions._Positions, "add", "if self.distinct:", "if True:", ("repeated",)),
    P(
        "the first import counts",
        network,
        "operator_set",
        'if domains.count("") != 1 or len(set(domains)) < len(domains):',
        "if False:",
        ("imports",),
    ),
    P("masks go anywhere", network.Networks, "_follow_masks",
      'raise ModelError("-inf in anything but a mask before a softmax")', "continue", ("turned",)),
    P("one class has scores", scores, "proved_of_mean", "K < 2 or", "", ("leaky",)),
    # Ranges and references
    P(
        "any share is a share",
        replay,
        "_array",
        "or not ((found >= low) & (found <= high)).all()",
        "",
        ("relu", "leaky"),
        1,
    ),
    P("weights above one", K, "_softmax", "if not all(w >= 0 for w in left.ravel()):", "if False:", ("residual",)),
    P(
        "planes of another node",
        K,
        "_softmax",
        "if planes is None or planes.node != index:",
        "if planes is None:",
        ("ensemble",),
    ),
    P("half a row for a whole one", K, "references", "or frozenset(whole) not in rows", "",
      ("weighted", "repeated", "removed"), 38),
    # Rules
    P("chord too low", K, "chords", "arb(high) * (ONE - slope[i])", "arb(high) * (ONE - slope[i]) / 2", ("relu",)),
    P("parabolas below by their best end", K, "_bent", "reduce(arb.min,", "reduce(arb.max,", ("relu", "leaky")),
    P("parabolas above by their worse end", replay, "_peak", "(first - at)).max(", "(first - at)).min(",
      ("relu", "leaky")),
    P("squares of parabolas forgotten", K, "_bent", "bend[i] += part * k", "bend[i] += 0 * k", ("relu", "leaky"), 274),
    P("a rectifier may be negative", K, "_kept", " - a * u - b * v +", " - b * v +", ("relu",)),
    P("multipliers of any sign", K, "_kept", "not (kept[:2] >= 0).all() or", "", ("relu",), 23),
    P("squares of rectifiers forgotten", K, "_kept", "np.fill_diagonal(C, c[used])", "pass", ("relu",)),
    P("what a rectifier is beside its chord twice", K, "_kept", "pull * (y_c - r * x_c)",
      "2 * pull * (y_c - r * x_c)", ("relu",)),
    P("McCormick sides swapped", K, "_term_by_term", "up * low + down * high", "up * high + down * low", ("product",)),
    P("missed part forgotten", K, "_contracted", "arb(float(proved.lower[row])) - missed",
      "arb(float(proved.lower[row]))", ("shared", "weighted"), 13),
    P("what pairs leave forgotten", K, "_paired", "constant = -(times(missed, matrix(Y[:, None]))[:, 0] * X).sum()",
      "constant = ZERO", ("product", "shared", "weighted"), 35),
    P("lower plane by 1e-6", softmax_planes, "lower_plane", "constant = delta", "constant = arb(1e-6) + delta",
      ("attention", "old"), 6),
    P("upper plane by 1e-6", softmax_planes, "upper_plane", "offset - entropy", "offset - entropy - arb(1e-6)",
      ("attention", "old")),
    P("a difference and its negative", K, "learn_differences", "-np.inf), -high)", "-np.inf), low)", ("twins", "old")),
    P("nothing is rounded outward", balls, "outward",
      "lower_floats(lower).astype(np.float64), upper_floats(upper).astype(np.float64)",
      "lower.astype(np.float64), upper.astype(np.float64)", ("affine", "leaky")),
    P("the l2 ball of the noise", quadratic.Noise, "reach", "largest(own) if self.norm == 1 else euclidean(own)",
      "largest(own)", ("attention", "product")),
    P("the l1 ball of the region", replay.Region, "minimum", "largest if self.norm == 1 else euclidean", "largest",
      ("affine",)),
    P("every matrix is semidefinite", quadratic, "least", "or not B.covered(d)", "", ("product", "shared"), 7),
    P("combinations half as long", forms.Basis, "map", "= self.rows", "= self.rows / 2", ("square",), 11),
    P("half the squares of combinations", quadratic.Squares, "covered", "matrix(U.T)", "matrix(U.T / 2)",
      ("square",), 11),
    P("half the cost of multipliers", quadratic.Noise, "cost", "d.sum() if", "d.sum() / 2 if", ("product", "shared")),
    P("parallel planes without error", forms.Forms, "learn_softmax", "(high - low) / 2", "0 * (high - low)",
      ("weighted", "attention")),
    P("the word of a quadratic", cells, "below", "if least >= value:", "if True:", ("attention",), 28),
    P("the origin of a fit forgotten", K, "_fitted", "constant -= (slope[r] * origin[r]).sum()", "pass",
      ("attention", "weighted")),
    P("squares of values forgotten", K, "_fitted", "T - rate[:, None] * V", "T", ("weighted", "repeated")),
    P("what is met is met once", K, "_fitted", "constant -= (m * (at", "constant -= 0 * (m * (at",
      ("weighted", "repeated")),
    P("values that nobody mixes", K, "least", "walk.top > 0 or walk.mixed", "walk.top > 0",
      ("weighted", "repeated"), 27),
    P("the sum for the mean", scores, "proved_of_mean", "arb(float(v)) / len(networks.probabilities)", "arb(float(v))",
      ("ensemble",), 4),
    # Cells
    P("cells that do not cover", tree, "cells_of", "if waiting:", "if False:", ("relu", "attention"), 29),
    P("below twice", tree, "halves", "for sign in (1, -1)", "for sign in (1, 1)", ("affine", "relu", "residual")),
    P("the other side of a cut", K, "lower_bounds", "cut.view, cut.sign * share", "cut.view, -cut.sign * share",
      ("affine", "relu", "residual")),
    P("where a cut is forgotten", K, "lower_bounds", " - cut.sign * share * arb(cut.value)", "",
      ("affine", "relu", "residual")),
    P("a difference that is cut is a sum", replay.Cut, "row", "-1.0", "1.0", ("affine", "relu", "residual")),
    P("what a cell learns leaves it", K, "within", "{i: dict(known) for i, known in self._apart.items()}",
      "self._apart", ("relu", "attention")),
    # Operators that are made of others, masks, ranges of probabilities
    P("a curve by its ends", curves, "least_above", "if steep >= 0 or steep <= 0:", "if True:", ("curved", "normed")),
    P("the chord of a curve for its tangent", K, "_curve", "self.offsets(node, below, 1)",
      "self.offsets(node, below, -1)", ("curved",)),
    P("nothing leaks from behind a mask", K, "leak", "ZERO if top == -np.inf else", "ZERO if True else", ("leaking",)),
    P("another epsilon", operators.normalization, "_steadied", "arb(1), epsilon)", "arb(1), 2 * epsilon)", ("normed",)),
    P("nothing is made 0", network, "_rows_softmax", "empty.reshape(x.shape))", "np.zeros(x.shape, dtype=bool))",
      ("emptied",)),
    P("a limit below that is not 0", operators.curves, "_clipped", "arb(-1), least)", "arb(-1), 0.0)", ("clipped",), 6),
    P("what is above a limit counted", operators.curves, "_clipped", "-most), arb(-1))", "-most), arb(0))",
      ("clipped",)),
    P("a product that counts once", network, "_times", "if factor == 1 else", "if True else", ("scaled",)),
    P("probabilities for their logarithms", operators.attention, "_log_probabilities", "if not reader.final:",
      "if False:", ("logarithms",)),
    P("a softplus that never jumps", operators.masks, "_straight", "arb(1).union(1 - (-t).exp().log1p() / t)", "arb(1)",
      ("jumping",)),
    P("windows without pads", operators.windows, "_windows", " * strides[i] - pads[i] +", " * strides[i] +",
      ("pooled",)),
    P("the others at their least", ranges, "proved_ranges", "ONE - (high.sum() - high), ONE - (low.sum() - low)",
      "ONE - (low.sum() - low), ONE - (low.sum() - low)", ("ensemble", "twins"), 3),
    P("ahead at best", ranges.ProvedRanges, "ahead", "self.low[t] - self.high[k]", "self.high[t] - self.low[k]",
      ("ensemble", "old"), 11),
]  # fmt: skip
