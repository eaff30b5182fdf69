"""Who works: ``local``, ``local:4``, ``dask``, ``dask:tcp://host:8786``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import InvalidInput, MissingExtra
from ..workers import available_cores
from .engine import Executor
from .local import LocalExecutor
from .worker import ModelFile


@dataclass(frozen=True)
class Choice:
    """An executor that has been named and not been started."""

    workers: int
    here: bool  # its workers are processes of this machine
    start: Callable[[Mapping[str, ModelFile], int | None], Executor]  # networks, bytes a worker


def find_executor(name: str) -> Choice:
    """An executor by its name on the command line."""
    kind, _, rest = name.partition(":")
    if kind == "local":
        if rest and not (rest.isdecimal() and int(rest) > 0):
            raise InvalidInput(f"--executor {name}: the number of processes must be at least 1, for example local:4")
        workers = int(rest) if rest else available_cores()
        return Choice(workers, True, lambda models, memory: LocalExecutor(workers, models, memory))
    if kind == "dask":
        each = 1 if rest else available_cores()
        return Choice(each, not rest, lambda models, memory: _dask(rest or None, models))
    raise InvalidInput(f"--executor {name}: write local, local:N, dask or dask:ADDRESS")


def _dask(address: str | None, models: Mapping[str, ModelFile]) -> Executor:
    try:
        from .cluster import DaskExecutor
    except ModuleNotFoundError as missing:
        raise MissingExtra(
            f"--executor dask needs {missing.name}; install it with: pip install 'softhull[dask]'"
        ) from None
    return DaskExecutor(address, models, available_cores())
