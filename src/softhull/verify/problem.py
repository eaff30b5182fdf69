"""What is asked and what is known: claims about networks over a batch of regions, and the bounds found on them so far.

Robustness, specifications and scores are all problems: each states claims, and reads its verdicts off the solution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ..branch.tree import Cells, Grown
from ..graph.graph import Graph
from ..propagate.knowledge import Knowledge
from ..propagate.optimize import Apart, Chosen
from ..regions import Region
from .ensemble import Joined, Layered
from .times import Spent


@dataclass(frozen=True)
class Effort:
    """How much work to spend: seconds on the clock of ``time.monotonic``, attack steps, bytes of one tensor."""

    deadline: float = math.inf
    attack: str = "open"  # "never", "open": what bounds leave open, "always"
    attack_steps: int = 40
    restarts: int = 4
    seed: int = 0
    memory: int = 1 << 24
    proofs: bool = False  # whether to keep what is chosen to prove margins


# What proves the bound on one instance: the rows bounded (``coefficients [K]``), each with what was chosen for it.
Proof = tuple[dict[str, Tensor], ...]


@dataclass(frozen=True)
class Tried:
    """One step of a method on one instance: what was tried, the bound after it, and its share of the CPU seconds."""

    by: str
    bound: float
    cpu_seconds: float


@dataclass
class Solution:
    """What is known of a batch so far. Bounds only ever get tighter, so that it is good whenever the work ends."""

    bounds: Tensor  # [S, B], certified lower bounds on what is claimed
    attack: Tensor  # [B], the smallest margin that an attack reached, infinite where there was none
    worst: Tensor  # [B, *input_shape], where
    # By graph: what walks proved of its nodes, over all instances; a later walk starts from it.
    knowledge: tuple[Knowledge, ...] = ()
    stopped: str = ""  # why the work was cut short, if it was
    notes: dict[int, str] = field(default_factory=dict)  # by instance: what of the method could not be used
    cuts: dict[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)  # by instance: what branching cut
    tried: dict[int, list[Tried]] = field(default_factory=dict)  # by instance: the stages that worked on it
    cells: dict[int, Cells] = field(default_factory=dict)  # by instance: what branching made of it
    grown: dict[int, Grown] = field(default_factory=dict)  # by instance: the trees of a search, where proofs are kept
    # By row and instance: what proved a row that the first linear walk did not.
    proved_by: dict[tuple[int, int], str] = field(default_factory=dict)
    # The same: what gradient steps chose for the row and, by softmax, for the logit differences before it.
    chosen: dict[tuple[int, int], tuple[Chosen, Apart]] = field(default_factory=dict)
    # By instance: the entries, by node, that second order bounded again before the rows of the output.
    sharpened: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    # What was chosen to prove bounds: tensors whose rows belong to ``instances``, and whatever else a method keeps.
    choices: list[dict[str, Any]] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)  # by instance: what it took

    def raise_to(self, low: Tensor, instances: Tensor) -> None:
        """Better bounds ``[S, b]`` on some of the instances; what is not a number says nothing."""
        known = self.bounds[:, instances]
        self.bounds[:, instances] = known.maximum(low.nan_to_num(-math.inf, math.inf, -math.inf))

    def proof(self, instance: int) -> Proof:
        """What was chosen for one instance, row by row, as far as it is kept by instance."""
        found = []
        for part in self.choices:
            kept = {name: value for name, value in part.items() if isinstance(value, Tensor)}
            places = (kept["instances"] == instance).nonzero()[:, 0].tolist() if "instances" in kept else ()
            found += [{name: value[place] for name, value in kept.items()} for place in places]
        return tuple(found)


class Claims(Protocol):
    """Numbers ``[S, B]`` to be bounded from below, and when enough is known of them."""

    @property
    def ends(self) -> bool:
        """Whether work on a claim ends with its proof; a score can always be bounded better."""

    @property
    def classes(self) -> Tensor:
        """The classes ``[B, n]`` whose probabilities are to be told apart from all others."""

    def nothing(self) -> Tensor:
        """The bounds ``[S, B]`` that need no work."""

    def open(self, found: Solution, tolerance: float) -> Tensor:
        """Mask ``[B]`` of the instances worth more work; ``tolerance``: the share of a number not worth any."""

    def least(self, found: Solution) -> Tensor:
        """One number ``[B]`` per instance that grows when enough of its bounds do."""

    def improve(self, stage: Any, found: Solution) -> None:
        """Bound what is open of the instances of a stage of some method."""

    def attack(self, problem: Problem, effort: Effort, found: Solution, instances: Tensor) -> None:
        """Look for inputs of some instances that break their claims."""


@dataclass(frozen=True)
class Problem:
    """Claims about the outputs of networks for all inputs of a batch of regions; ``start`` is an input of each."""

    networks: Joined | Layered
    region: Region
    start: Tensor
    claims: Claims

    @property
    def graph(self) -> Graph:
        """The only graph there is, of a question about outputs."""
        assert isinstance(self.networks, Joined)
        (only,) = self.networks.graphs
        return only.graph

    def nothing_known(self) -> Solution:
        """The solution to start from: bounds that say nothing, no attack."""
        bounds = self.claims.nothing()
        return Solution(bounds, bounds.new_full((self.region.size,), math.inf), self.start.clone())
