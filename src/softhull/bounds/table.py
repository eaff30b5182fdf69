"""THE table of bounds: tests, command line, plots, studies and benchmarks are generated from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from ..errors import InvalidInput, unknown
from .constant import const_lower, const_upper
from .er import er_lower, er_upper
from .hull import hull_lower, hull_upper
from .linear import lin_lower, lin_upper
from .lse import lse2_lower, lse_lower, lse_prime_lower, lse_star_lower, lse_upper
from .planes import Planes


class Curvature(Enum):
    """Shape of a bound as a function of the logits."""

    CONSTANT = "constant"
    AFFINE = "affine"
    CONVEX = "convex"
    CONCAVE = "concave"


class Exactness(Enum):
    """How close a bound comes to the best one of its kind."""

    RANGE = "the exact minimum or maximum over the box, the best constant"
    NEAR_ENVELOPE = "within a few percent of the convex or concave envelope; equal to it for K = 2"
    RELAXATION = "sound, not the best of its kind"


@dataclass(frozen=True)
class Side:
    """One side of a bound: ``tangent(box, at, outputs)`` gives its value and tangent planes at a point.

    A portfolio has ``parts`` instead: for every output the tightest of them at the point.
    ``in_differences``: the bound depends on differences of logits alone, so tighter difference bounds never hurt it;
    for the others the better of the forms with and without them is taken at the point.
    ``free``: names of the free parameters ``tangent`` takes.
    """

    tangent: Callable[..., Planes] | None
    curvature: Curvature
    exactness: Exactness
    equation: str
    in_differences: bool = False
    free: tuple[str, ...] = ()
    only_for: int | None = None  # the one K it is defined for
    parts: tuple[Side, ...] = ()


@dataclass(frozen=True)
class Bound:
    """A named pair of bounds on every softmax output; a side that does not exist is None."""

    name: str
    lower: Side | None
    upper: Side | None
    summary: str


_PAPER = "Wei et al. 2023, eq. "
_RELAXATION, _CONVEX, _CONCAVE = Exactness.RELAXATION, Curvature.CONVEX, Curvature.CONCAVE
_FLAT, _AFFINE, _NEAR = Curvature.CONSTANT, Curvature.AFFINE, Exactness.NEAR_ENVELOPE


def _paper(
    tangent: Callable[..., Planes],
    curvature: Curvature,
    label: str,
    in_differences: bool = False,
    only_for: int | None = None,
) -> Side:
    exactness = Exactness.RANGE if curvature is _FLAT else _RELAXATION
    return Side(tangent, curvature, exactness, _PAPER + label, in_differences, only_for=only_for)


_ROWS = (
    Bound(
        "const",
        _paper(const_lower, _FLAT, "const_LB", True),
        _paper(const_upper, _FLAT, "const_UB", True),
        "the exact range of every output",
    ),
    Bound(
        "lin",
        _paper(lin_lower, _AFFINE, "lin_LB"),
        _paper(lin_upper, _AFFINE, "lin_UB"),
        "linear at every step of the exponential-reciprocal decomposition",
    ),
    Bound(
        "er",
        _paper(er_lower, _CONVEX, "ER_LB", True),
        _paper(er_upper, _CONCAVE, "ER_UB", True),
        "exponential-reciprocal decomposition",
    ),
    Bound(
        "lse",
        _paper(lse_lower, _CONVEX, "LSE_LB (K = 2: LSE_LB2)"),
        _paper(lse_upper, _CONCAVE, "LSE_UB", True),
        "log-sum-exp decomposition",
    ),
    Bound(
        "lse*",
        _paper(lse_star_lower, _CONVEX, "LSE_LB*", True),
        None,
        "log-sum-exp in the differences to the largest logit",
    ),
    Bound("lse2", _paper(lse2_lower, _CONVEX, "LSE_LB2", True, 2), None, "log-sum-exp for two logits"),
    Bound("lse'", _paper(lse_prime_lower, _CONVEX, "LSE_LBalt"), None, "log-sum-exp of the rest"),
    Bound(
        "hull",
        Side(hull_lower, _CONVEX, _NEAR, "docs/mathematics.md, lower hull", free=("w", "alpha", "gamma")),
        Side(hull_upper, _CONCAVE, _NEAR, "docs/mathematics.md, upper hull", True, free=("tangent",)),
        "the envelopes in the log-odds and in (y, s)",
    ),
)


_BEST = Bound(
    "best",
    Side(
        None,
        _CONVEX,
        _NEAR,
        "the largest of all at the point",
        parts=tuple(r.lower for r in _ROWS if r.lower),
    ),
    Side(
        None,
        _CONCAVE,
        _NEAR,
        "the smallest of all at the point",
        parts=tuple(r.upper for r in _ROWS if r.upper),
    ),
    "for every output the tightest of all bounds at the point",
)

BOUNDS: Mapping[str, Bound] = MappingProxyType({row.name: row for row in (*_ROWS, _BEST)})


def find_bound(name: str) -> Bound:
    """A row of the table by name; ``"a/b"`` pairs the lower side of ``a`` with the upper side of ``b``."""
    if not isinstance(name, str):
        raise InvalidInput(f"bound must be a name, not {type(name).__name__}; known: {', '.join(BOUNDS)}")
    if name in BOUNDS:
        return BOUNDS[name]
    below, slash, above = name.partition("/")
    if slash and below in BOUNDS and above in BOUNDS:
        low, high = BOUNDS[below], BOUNDS[above]
        return Bound(name, low.lower, high.upper, f"below: {low.summary}; above: {high.summary}")
    raise InvalidInput(unknown("bound", name, BOUNDS, ", or a pair such as 'lse*/lse'"))
