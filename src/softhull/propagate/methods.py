"""Methods: small frozen records of settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

from ..bounds.rounding import check_rounding
from ..bounds.table import find_bound
from ..errors import InvalidInput


class Settings:
    """What all methods share."""

    @property
    def first(self) -> Method:
        """The cheapest part of what it tries; what that proves, the method proves."""
        return cast("Method", self)

    def branching(self, seconds: float) -> Branch | None:
        """The method that cuts into cells what this one leaves undecided; None: it has said all it can."""
        return None

    def within(self, timeout: float | None) -> Self:
        """The same for instances that have so many seconds each; None: no limit."""
        return self


@dataclass(frozen=True)
class Linear(Settings):
    """Linear bounds propagated backward, with everything this library knows about attention.

    Args:
        bound: The softmax planes.
        optimize: Gradient steps spent on what is still undecided.
        differences: Bound differences of attention logits by walks of their own.
        simplex: Use that probabilities sum to one: a multiplier at every softmax, a reference value at every mix of
            values.
        contract: Bound the contracted factors of every product separately for each specification.
        contract_limit: Products with more contracted factors than this are relaxed term by term.
        learning_rate: Of the gradient steps.
        mixture: The weight of the McCormick plane through the lower ends of both factors.
        rounding: ``"outward"`` charges every rounding error, so that bounds hold for the real-valued network;
            ``"nearest"`` ignores them.
    """

    bound: str = "hull"
    optimize: int = 20
    differences: bool = True
    simplex: bool = True
    contract: bool = True
    # A product that would need more contracted factors than this at once is relaxed term by term.
    contract_limit: int = 4096
    learning_rate: float = 0.1
    mixture: float = 0.5  # weight of the McCormick plane through the lower ends of both factors
    rounding: str = "outward"

    everywhere: ClassVar[bool] = False  # whether bounds are concretised at every node on the way back
    pad_pairs: ClassVar[bool] = False  # whether rows of two take the form of ``bound`` for longer rows

    def __post_init__(self) -> None:
        find_bound(self.bound)
        if self.optimize < 0:
            raise InvalidInput(f"optimize must be a number of steps of at least 0, got {self.optimize}")
        if not 0 <= self.mixture <= 1:
            raise InvalidInput(f"mixture must be a weight from 0 to 1, got {self.mixture!r}")
        check_rounding(self.rounding)

    @property
    def first(self) -> Linear:
        """Plain walks."""
        return replace(self, optimize=0, contract=False)


@dataclass(frozen=True)
class FirstLook(Linear):
    """Linear bounds where they take little: of large networks, affine forms of all nodes alone."""


@dataclass(frozen=True)
class Paper(Settings):
    """DeepPoly as Wei et al. (2023) ran it for their attention tables.

    Box bounds of every node, concretised at every node on the way back with the best kept; logit differences by box
    subtraction; tangent planes at the midpoint of the logit box, for two tokens in the form for more than two; one
    fixed pair of planes per product. Rounded to nearest, as there.

    Args:
        bound: The softmax planes.
        rounding: As for ``Linear``; ``"nearest"`` proves nothing about the real-valued network.
    """

    bound: str = "lse*"
    rounding: str = "nearest"

    optimize: ClassVar[int] = 0
    differences: ClassVar[bool] = False
    simplex: ClassVar[bool] = False
    contract: ClassVar[bool] = False
    contract_limit: ClassVar[int] = 0
    learning_rate: ClassVar[float] = 0.0
    everywhere: ClassVar[bool] = True
    pad_pairs: ClassVar[bool] = True
    mixture: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        find_bound(self.bound)
        check_rounding(self.rounding)


@dataclass(frozen=True)
class SecondOrder(Settings):
    """Linear bounds without contracted products, then all products of a specification in one quadratic of the noise.

    Networks without products of variable tensors have nothing of second order and are bounded by ``Linear``.

    Args:
        bound: The softmax planes.
        steps: At most so many factorisations for one specification.
        row_fit: Replace the planes of attention rows by quadratics where everything else fails.
        rounding: As for ``Linear``.
    """

    bound: str = "hull"
    steps: int = 12
    row_fit: bool = True
    rounding: str = "outward"

    def __post_init__(self) -> None:
        find_bound(self.bound)
        if self.steps < 1:
            raise InvalidInput(f"steps must be at least 1, got {self.steps}")
        check_rounding(self.rounding)

    @property
    def linear(self) -> Linear:
        """The linear bounds everything starts from."""
        return Linear(bound=self.bound, optimize=0, contract=False, rounding=self.rounding)

    @property
    def first(self) -> Linear:
        """Those."""
        return self.linear


@dataclass(frozen=True)
class Auto(Settings):
    """Whatever proves an instance first: linear bounds, attack, second order, gradient steps on linear bounds.

    Args:
        bound: The softmax planes.
        optimize: Gradient steps, spent only where second order does not apply or gains nothing.
        rounding: As for ``Linear``.
        branch: Seconds per instance for cutting what is still undecided into cells; with 0, as long as a time limit
            allows.
    """

    bound: str = "hull"
    optimize: int = 20
    rounding: str = "outward"
    branch: float = 0.0

    def __post_init__(self) -> None:
        Linear(bound=self.bound, optimize=self.optimize, rounding=self.rounding)
        if not self.branch >= 0:
            raise InvalidInput(f"branch must be a number of seconds of at least 0, got {self.branch!r}")

    def branching(self, seconds: float) -> Branch | None:
        """The method that goes on for its own seconds an instance, or for these; None where there are none."""
        seconds = self.branch or seconds
        return Branch(inner=replace(self, branch=0.0), seconds=seconds) if seconds > 0 else None

    @property
    def second_order(self) -> SecondOrder:
        """The settings of its second-order stage."""
        return SecondOrder(bound=self.bound, rounding=self.rounding)

    @property
    def linear(self) -> Linear:
        """The linear bounds of the last resort."""
        return Linear(bound=self.bound, optimize=self.optimize, rounding=self.rounding)

    @property
    def first(self) -> Linear:
        """The linear bounds everything starts from."""
        return FirstLook(bound=self.bound, optimize=0, contract=False, rounding=self.rounding)


@dataclass(frozen=True)
class Branch(Settings):
    """Branch and bound: regions are cut into cells, the worst first, until all of them are proved.

    Nothing random decides where to cut.

    Args:
        inner: The method that goes first; only what it leaves undecided is cut.
        seconds: CPU seconds for one instance; None: those of the time limit, or ten without one.
        nodes: At most so many cells for one instance.
        memory: Bytes that undecided cells may keep to start from.
        tolerance: A score is finished when its bound is this close to the attack.
        tries: How many cuts of a cell are tried before one is taken.
        cells: How many cells are bounded together.
        seed: Of the attacks from the points where undecided cells are worst.
    """

    inner: Auto | Linear | SecondOrder = Auto()
    seconds: float | None = None
    nodes: int = 1 << 20
    memory: int = 1 << 29
    tolerance: float = 1e-3
    tries: int = 6
    cells: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("seconds", 0), ("nodes", 1), ("memory", 0), ("tolerance", 0), ("tries", 1), ("cells", 1)):
            given = getattr(self, name)
            if not (given is None and name == "seconds") and not given >= least:
                raise InvalidInput(f"{name} must be at least {least}, got {getattr(self, name)!r}")

    def within(self, timeout: float | None) -> Self:
        """With the seconds of a time limit, where it has none of its own."""
        return self if self.seconds is not None or timeout is None else replace(self, seconds=timeout)

    @property
    def allowed(self) -> float:
        """CPU seconds for one instance."""
        return 10.0 if self.seconds is None else self.seconds

    @property
    def rounding(self) -> str:
        """As for ``inner``."""
        return self.inner.rounding

    @property
    def bound(self) -> str:
        """As for ``inner``."""
        return self.inner.bound

    @property
    def linear(self) -> Linear:
        """The linear bounds of the last resort."""
        return self.inner if isinstance(self.inner, Linear) else self.inner.linear

    @property
    def second_order(self) -> SecondOrder:
        """What the cells of networks with products are bounded by."""
        return SecondOrder(bound=self.bound, rounding=self.rounding)

    @property
    def first(self) -> Linear:
        """As for ``inner``."""
        return self.inner.first


Method = Linear | Paper | SecondOrder | Auto | Branch
