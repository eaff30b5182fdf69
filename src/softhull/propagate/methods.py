"""Methods: small frozen records of settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..bounds.table import find_bound
from ..errors import InvalidInput


@dataclass(frozen=True)
class Linear:
    """Backward linear bounds with everything this library knows about attention.

    ``bound`` names the softmax planes; ``differences`` bounds score differences by walks of their own; ``simplex`` uses
    that probabilities sum to one (the multiplier at every softmax, the reference value at every mixing of values);
    ``contract`` bounds the contracted factors of every product per specification; ``optimize`` is the number of
    gradient steps spent on what is still unproved.
    """

    bound: str = "hull"
    optimize: int = 20
    differences: bool = True
    simplex: bool = True
    contract: bool = True
    # A product that would need more contracted factors than this at once is relaxed term by term.
    contract_limit: int = 4096
    learning_rate: float = 0.1

    everywhere: ClassVar[bool] = False  # whether bounds are concretised at every node on the way back
    pad_pairs: ClassVar[bool] = False  # whether rows of two take the form of ``bound`` for longer rows
    mixture: ClassVar[float] = 0.5  # weight of the McCormick plane through the lower ends of both factors

    def __post_init__(self) -> None:
        find_bound(self.bound)
        if self.optimize < 0:
            raise InvalidInput(f"optimize must be a number of steps of at least 0, got {self.optimize}")


@dataclass(frozen=True)
class Paper:
    """DeepPoly as Wei et al. (2023) ran it for their attention tables.

    Box bounds of every node, concretised at every node on the way back with the best kept; score differences by box
    subtraction; tangent planes at the midpoint of the score box, for two tokens in the form for more than two; one
    fixed pair of planes per product.
    """

    bound: str = "lse*"

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


Method = Linear | Paper


def find_method(method: Method | str, bound: str | None = None, optimize: int | None = None) -> Method:
    """A method by name, ``linear`` or ``paper``, with settings where given; a method object is returned as it is."""
    if method == "linear":
        return Linear(bound=bound or Linear.bound, optimize=Linear.optimize if optimize is None else optimize)
    if method == "paper":
        if optimize:
            raise InvalidInput("method 'paper' has nothing to optimise; use method 'linear'")
        return Paper(bound=bound or Paper.bound)
    if isinstance(method, Linear | Paper):
        return method
    raise InvalidInput(f"unknown method {method!r}; choose linear or paper")
