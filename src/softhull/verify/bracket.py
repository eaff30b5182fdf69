"""What is known of a batch of instances, and how much work may be spent on knowing more."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from ..propagate.optimize import Chosen

Apart = dict[int, list[Chosen]]


@dataclass
class Bracket:
    """What is known of every instance so far: certified bounds per row, the smallest attacked margin, and where."""

    rows: Tensor  # [S, B]
    attack: Tensor  # [B], infinite where there was none
    worst: Tensor  # [B, *input_shape]
    stopped: str = ""  # why the work was cut short, if it was
    cuts: dict[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)  # by instance: what branching cut
    notes: dict[int, str] = field(default_factory=dict)  # by instance: what of the method could not be used
    # By row and instance: what proved a row that the first linear walk did not.
    proved_by: dict[tuple[int, int], str] = field(default_factory=dict)
    # The same: what gradient steps chose for the row and, by softmax, for the score differences before it.
    chosen: dict[tuple[int, int], tuple[Chosen, Apart]] = field(default_factory=dict)


@dataclass(frozen=True)
class Effort:
    """How much work to spend: seconds on the clock of ``time.monotonic``, attack steps, bytes of one tensor."""

    deadline: float = math.inf
    attack: str = "open"  # "never", "open": what bounds leave open, "always"
    attack_steps: int = 40
    restarts: int = 4
    seed: int = 0
    memory: int = 1 << 24
    proofs: bool = False  # whether to keep what gradient steps choose
