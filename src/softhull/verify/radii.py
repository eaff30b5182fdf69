"""Certified radii: the search for them, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..show import data_frame, html_table
from .result import Record, Verdict


class CertifiedRadii(np.ndarray):
    """Certified radii ``[B]``, with the attacked ones beside them; NaN where the clean input is misclassified.

    ``attacked [B]``: the smallest radius at which a counterexample was found, NaN where there was none. ``cap``: the
    largest radius that was tried. The robust radius of an instance is at least the certified and below the attacked
    one. What is computed from this array is a plain array.
    """

    attacked: np.ndarray
    cap: float
    interrupted: bool  # Ctrl-C ended the search; the radii found by then are certified

    @classmethod
    def of(cls, certified: np.ndarray, attacked: np.ndarray, cap: float, interrupted: bool = False) -> CertifiedRadii:
        """Certified and attacked radii of the same instances."""
        found = np.asarray(certified, dtype=np.float64).view(cls)
        found.attacked, found.cap = np.asarray(attacked, dtype=np.float64), float(cap)
        found.interrupted = interrupted
        return found

    def __array_finalize__(self, source: Any) -> None:
        # Parts of the array no longer match the attacked radii: nothing is said of those.
        self.attacked, self.cap, self.interrupted = np.full(self.shape, np.nan), np.nan, False

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    @property
    def capped(self) -> np.ndarray:
        """Where the largest radius tried is certified: the robust radius may be larger, ask again with a larger one."""
        return np.asarray(self) >= self.cap

    def to_dict(self) -> list[dict[str, Any]]:
        """One dictionary per instance; ``certified`` is None where the clean input is misclassified."""
        names = ("certified", "attacked", "capped")
        rows = zip(np.asarray(self).tolist(), self.attacked.tolist(), self.capped.tolist())
        return [dict(zip(names, (_known(certified), _known(attacked), capped))) for certified, attacked, capped in rows]

    def to_pandas(self) -> Any:
        """The same as a data frame, one line per instance."""
        return data_frame(self.to_dict())

    def __repr__(self) -> str:
        known = np.asarray(self)[~np.isnan(np.asarray(self))]
        middle = f", median {np.median(known):.4g}" if len(known) else ""
        capped = f", {int(self.capped.sum())} at the cap" if self.capped.any() else ""
        wrong = f", {len(self) - len(known)} misclassified" if len(known) < len(self) else ""
        return f"<CertifiedRadii of {len(self)} instances up to {self.cap:g}{middle}{capped}{wrong}>"

    def _repr_html_(self) -> str:
        return html_table(repr(self).strip("<>"), self.to_dict())


class RadiusSearch:
    """What is known of the radius of every instance so far, and which to try next."""

    def __init__(self, misclassified: np.ndarray, cap: float) -> None:
        self.misclassified, self.cap = misclassified, cap
        count = len(misclassified)
        self.certified = np.zeros(count)
        self.survived = np.zeros(count)  # the largest radius tried without a counterexample
        self.refused = np.where(misclassified, 0.0, np.inf)  # the smallest radius that was not certified
        self.attacked = np.full(count, np.inf)  # the smallest radius with a counterexample

    def to_certify(self) -> np.ndarray | None:
        """Between what is certified and what is not, the cap first; None when that is settled."""
        here = np.where(np.isinf(self.refused), self.cap, (self.certified + self.refused) / 2)
        return here if ((self.certified < here) & (here < self.refused)).any() else None

    def to_attack(self) -> np.ndarray | None:
        """Between what the attack breaks and what it does not, certified radii elsewhere; None when it breaks none."""
        open_ = np.isfinite(self.attacked) & (self.survived < self.attacked)
        here = np.where(open_, (self.survived + self.attacked) / 2, self.certified)
        return here if open_.any() else None

    def learn(self, here: np.ndarray, records: Sequence[Record]) -> None:
        """Take in the verdicts on the radii tried."""
        verdicts = [record.verdict for record in records]
        good = np.array([verdict is Verdict.CERTIFIED for verdict in verdicts])
        broken = np.array([verdict is Verdict.FALSIFIED for verdict in verdicts])
        self.certified = np.where(good, np.maximum(self.certified, here), self.certified)
        self.refused = np.where(good, self.refused, np.minimum(self.refused, here))
        self.attacked = np.where(broken, np.minimum(self.attacked, here), self.attacked)
        self.survived = np.where(broken, self.survived, np.maximum(self.survived, here))

    def found(self, interrupted: bool = False) -> CertifiedRadii:
        """The result, NaN where the clean input is misclassified."""
        attacked = np.where(np.isfinite(self.attacked), self.attacked, np.nan)
        certified, attacked = (np.where(self.misclassified, np.nan, radii) for radii in (self.certified, attacked))
        return CertifiedRadii.of(certified, attacked, self.cap, interrupted)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
