"""What every instance of a batch took: the time of a stage is shared by the instances that it worked on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Spent:
    """CPU seconds and seconds by instance; the clock runs from the moment this is made."""

    def __init__(self) -> None:
        self._spent: dict[int, tuple[float, float]] = {}
        self._last = _now()

    def charge(self, instances: Tensor | Mapping[int, float]) -> None:
        """Shares the time since the last charge among instances, equally or by the weights given.

        Without instances, or where all weights are 0, the time waits for the next charge.
        """
        weights = instances if isinstance(instances, Mapping) else dict.fromkeys(instances.tolist(), 1.0)
        total = sum(weights.values())
        if not total:
            return
        now = _now()
        cpu, wall = (after - before for before, after in zip(self._last, now))
        for instance, weight in weights.items():
            before = self._spent.get(instance, (0.0, 0.0))
            self._spent[instance] = before[0] + cpu * weight / total, before[1] + wall * weight / total
        self._last = now

    def of(self, instance: int) -> dict[str, Any]:
        """``cpu_seconds`` and ``seconds`` of one instance."""
        return dict(zip(("cpu_seconds", "seconds"), self._spent.get(instance, (0.0, 0.0))))


def _now() -> tuple[float, float]:
    return time.process_time(), time.monotonic()
