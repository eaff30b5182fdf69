"""Certified radii: the search for them, and what it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..propagate.methods import Settings
from ..show import data_frame, html_table
from .engine import Work, stages
from .result import Record, Verdict

# Certified radii are found up to this share of themselves, however small they are.
_PRECISE = 1 / 8


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


@dataclass(frozen=True)
class AttackAlone(Settings):
    """No bounds: what an attack breaks is all that is found."""

    rounding: str = "outward"


@stages.register(AttackAlone)
def _(method: AttackAlone, work: Work) -> Iterator[Any]:
    work.attack_open()
    return iter(())


class RadiusSearch:
    """What is known of the radius of every instance so far, and which to try next.

    A radius of NaN: nothing is left to try of that instance. ``steps``: certified radii are found up to a share
    ``2^-steps`` of the largest one, and small ones up to a share of themselves.
    """

    def __init__(self, misclassified: np.ndarray, cap: float, steps: int) -> None:
        self.misclassified, self.cap, self.steps = misclassified, cap, steps
        self.fine = cap / 2.0**steps
        count = len(misclassified)
        self.certified = np.zeros(count)
        self.looked_at = np.full(count, 2 * cap)  # the smallest radius of the first look
        self.survived = np.zeros(count)  # the largest radius tried without a counterexample
        self.refused = np.where(misclassified, 0.0, np.inf)  # the smallest radius that was not certified
        self.attacked = np.full(count, np.inf)  # the smallest radius with a counterexample

    def to_attack(self) -> np.ndarray | None:
        """The cap, half of it, and so on while it is broken, then between what is broken and what is not."""
        broken = np.isfinite(self.attacked)
        width = np.where(broken, self.attacked, self.cap) - self.survived
        here = np.where(broken, self.attacked - width / 2, self.cap)
        left = width > np.where(broken, self.attacked / 2.0 ** (self.steps // 2 + 1), 0.0)
        return _some(here, left & ~self.misclassified)

    def to_look_at(self) -> np.ndarray | None:
        """The cap, or what is less than half of what the attack breaks, then half of it, while nothing is certified."""
        broken = np.isfinite(self.attacked)
        halvings = np.ceil(np.log2(2 * self.cap / np.where(broken, self.attacked, 2 * self.cap)))
        here = np.minimum(self.looked_at / 2, self.cap / 2.0**halvings)
        open_ = (self.certified == 0) & ~self.misclassified
        self.looked_at = np.where(open_, here, self.looked_at)
        return _some(here, open_)

    def to_certify(self) -> np.ndarray | None:
        """Twice what is certified, or nearer where something is refused there; the cap where nothing is certified.

        From below: a proof is found early or not at all, and what is far too large takes all there is to find that out.
        Multiples of ``2^-steps`` of the cap come before finer radii.
        """
        low, high = self.certified, np.minimum(self.refused, 2 * self.cap)
        here = np.where(low > 0, np.minimum(2 * low, (low + high) / 2), (low + high) / 2)
        cells = np.floor(here / self.fine)
        cells = np.where(cells * self.fine > low, cells, np.floor(low / self.fine) + 1)
        coarse = cells * self.fine < high
        here = np.where(coarse, np.minimum(cells * self.fine, self.cap), here)
        left = coarse | (high - low > low * _PRECISE) & (low > 0)
        return _some(here, left & (low < here) & (here < self.refused))

    def learn(self, here: np.ndarray, records: Mapping[int, Record], final: bool) -> None:
        """Take in the verdicts on radii, by instance; what is not certified is refused where it is broken or final."""
        for i, record in records.items():
            radius, broken = here[i], record.verdict is Verdict.FALSIFIED
            if record.verdict is Verdict.CERTIFIED:
                self.certified[i] = max(self.certified[i], radius)
            elif broken or final:
                self.refused[i] = min(self.refused[i], radius)
            if broken:
                self.attacked[i] = min(self.attacked[i], radius)
            else:
                self.survived[i] = max(self.survived[i], radius)

    def found(self, interrupted: bool = False) -> CertifiedRadii:
        """The result, NaN where the clean input is misclassified."""
        attacked = np.where(np.isfinite(self.attacked), self.attacked, np.nan)
        certified, attacked = (np.where(self.misclassified, np.nan, radii) for radii in (self.certified, attacked))
        return CertifiedRadii.of(certified, attacked, self.cap, interrupted)


def _some(radii: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """The radii that are wanted, NaN elsewhere; None where none is."""
    return np.where(wanted, radii, np.nan) if wanted.any() else None


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
