"""Workers of a Dask cluster: networks travel once to each, results come back to the one writer."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from distributed import Client, Future, KilledWorker, LocalCluster, WorkerPlugin, get_worker

from .. import __version__
from ..errors import SofthullError
from ..workers import Lost
from .worker import Batch, ModelFile, Outcome, answer_batch, load_networks

_PLUGIN = "softhull"
_PATIENCE = 60.0  # seconds without any worker
_CONNECT = 10.0  # seconds to find the scheduler
_AHEAD = 2  # batches a worker has at hand: the next one is there when one is done


class Networks(WorkerPlugin):
    """What every worker keeps: all networks of the run; workers that join later get them too."""

    name = _PLUGIN

    def __init__(self, models: Mapping[str, ModelFile]) -> None:
        self.models = dict(models)

    def setup(self, worker: Any) -> None:
        import torch

        torch.set_num_threads(1)
        self.load = load_networks(self.models.__getitem__)
        # Two batches at once in one process would share the processor time each is charged for.
        self.alone = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"models": self.models}


def _answer(batch: Batch) -> Outcome:
    from ..devices import find_device

    find_device(batch.device)  # a worker without it ends the run: its instances are not to blame
    plugin: Any = get_worker().plugins[_PLUGIN]
    with plugin.alone:
        return answer_batch(batch, plugin.load)


class DaskExecutor:
    """The workers of the scheduler at ``address``, or of a cluster of ``workers`` processes on this machine."""

    def __init__(self, address: str | None, models: Mapping[str, ModelFile], workers: int) -> None:
        self._cluster = None
        if address is None:
            self._cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )
        try:
            self._client = Client(self._cluster or address, timeout=_CONNECT, set_as_default=False)
        except (OSError, ValueError) as problem:
            raise SofthullError(f"no Dask scheduler answers at {address}: {problem}") from None
        self._futures: dict[Any, tuple[int, Future]] = {}
        self._address = str(self._client.scheduler_info()["address"])
        self._client.register_plugin(Networks(models))
        self._finished: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._seen = time.monotonic()
        self._looked = 0.0
        self.workers = 0
        self._look()

    @property
    def name(self) -> str:
        """How the command line names it."""
        return f"dask:{self._address}"

    def room(self) -> int:
        """How many more batches the cluster takes now."""
        self._look()
        return _AHEAD * self.workers - len(self._futures)

    def submit(self, batch: Batch) -> None:
        """Gives a batch to the cluster."""
        future = self._client.submit(_answer, batch, pure=False, key=f"softhull-{id(self)}-{batch.number}")
        self._futures[future.key] = batch.number, future
        future.add_done_callback(lambda done: self._finished.put(done.key))

    def wait(self, seconds: float) -> list[Outcome | Lost]:
        """What was finished or lost, after at most so many seconds."""
        found: list[Outcome | Lost] = []
        try:
            key = self._finished.get(timeout=seconds) if seconds else self._finished.get_nowait()
            while True:
                found.append(self._outcome(key))
                key = self._finished.get_nowait()
        except queue.Empty:
            return found

    def _outcome(self, key: str) -> Outcome | Lost:
        """What became of a batch that is over."""
        number, future = self._futures.pop(key)
        if future.status == "finished":
            outcome: Outcome = future.result()
            future.release()
            return outcome
        problem = future.exception() if future.status == "error" else None
        if isinstance(problem, KilledWorker):
            return Lost(number, "the workers that had it ended one after the other; memory may be short")
        if future.status in ("cancelled", "lost"):
            return Lost(number, "the scheduler lost it")
        if isinstance(problem, SofthullError):
            raise SofthullError(f"a worker of {self._address}: {problem}")
        raise SofthullError(
            f"a worker of {self._address} failed: {problem!r}; is softhull {__version__} installed there?"
        )

    def close(self) -> None:
        """Withdraw what is left; a cluster of our own ends, another one stays."""
        if self._client.status == "closed":
            return
        futures = [future for _, future in self._futures.values()]
        self._futures.clear()
        try:
            self._client.cancel(futures)
        finally:
            self._client.close()
            if self._cluster is not None:
                self._cluster.close()

    def _look(self) -> None:
        """Counts the workers, once a second at most; an error where there were none for too long."""
        if time.monotonic() - self._looked < 1.0:
            return
        self._looked = time.monotonic()
        self.workers = len(self._client.scheduler_info(n_workers=-1)["workers"])
        if self.workers:
            self._seen = self._looked
        elif self._looked - self._seen > _PATIENCE:
            raise SofthullError(
                f"the scheduler at {self._address} has had no worker for {_PATIENCE:.0f} seconds; "
                f"start one with: dask worker {self._address} --nthreads 1"
            )
