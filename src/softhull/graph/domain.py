"""Functions that are not defined everywhere refuse the intervals they cannot answer for."""

from __future__ import annotations

from torch import Tensor

from ..errors import DomainError


def refuse(bad: Tensor, lower: Tensor, upper: Tensor, what: str, label: str) -> None:
    """Raise DomainError naming the node and the first bad interval, if there is one."""
    if not bool(bad.any()):
        return
    where = tuple(int(i) for i in bad.nonzero()[0])
    place = f"node {label!r}: " if label else ""
    interval = f"[{float(lower[where]):.4g}, {float(upper[where]):.4g}]"
    raise DomainError(
        f"{place}{what} of the interval {interval} at index {where}"
        " is not defined; a smaller perturbation or tighter bounds may avoid it"
    )
