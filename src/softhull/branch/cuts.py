"""Cuts: a linear function of one node, on one side of a number."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cut:
    """``x_plus - x_minus`` at ``threshold`` for two entries of a node, counted row by row; ``minus`` may be None.

    ``below`` says which side: at most the threshold, or at least. The two sides share the threshold itself, so that
    together they cover whatever is cut.
    """

    node: int  # -1 is the input; other numbers are those of the bounds that made the cut
    plus: int
    minus: int | None
    threshold: float
    below: bool = True

    @property
    def sides(self) -> tuple[Cut, Cut]:
        """The cut taken from below and from above."""
        return replace(self, below=True), replace(self, below=False)

    def __str__(self) -> str:
        left = "x" if self.node < 0 else f"n{self.node}"
        other = "" if self.minus is None else f" - {left}[{self.minus}]"
        return f"{left}[{self.plus}]{other} {'<=' if self.below else '>='} {self.threshold!r}"


Path = tuple[Cut, ...]
