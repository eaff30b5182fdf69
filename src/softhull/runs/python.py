"""The run store for Python: the questions of the library, with answers that are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInput
from ..show import data_frame, html_table
from ..verify.methods import find_method
from .engine import Limits
from .progress import Reporter, Tally
from .questions import find_question
from .single import Asked, answer_through_store, dataset_result, robustness_result, uncertainty_result
from .store import Store

if TYPE_CHECKING:
    from ..formats.network import Network
    from ..verify.dataset import DatasetReport
    from ..verify.result import Result
    from ..verify.uncertainty import UncertaintyResult


class RunStore:
    """A file of answers: what it knows is read, the rest is computed and kept, also when the work is cut short.

    Its methods ask the questions of the functions of the same name and take the same arguments; networks come from
    ``load_onnx`` or ``from_torch``. ``softhull results``, ``compare`` and ``report`` read the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def verify_robustness(self, network: Network, x: Any, label: Any, perturbation: Any, **asked: Any) -> Result:
        """As ``softhull.verify_robustness``."""
        return robustness_result(*self._answer("robustness", [network], x, label, perturbation, asked))

    def verify_uncertainty(
        self, networks: Network | Sequence[Network], x: Any, label: Any, perturbation: Any, **asked: Any
    ) -> UncertaintyResult:
        """As ``softhull.verify_uncertainty``."""
        return uncertainty_result(*self._answer("uncertainty", networks, x, label, perturbation, asked))

    def certify_dataset(
        self, networks: Network | Sequence[Network], x: Any, y: Any, perturbation: Any, **asked: Any
    ) -> DatasetReport:
        """As ``softhull.certify_dataset``."""
        return dataset_result(*self._answer("dataset", networks, x, y, perturbation, asked))

    def rows(self) -> list[dict[str, Any]]:
        """Every answered instance with what was asked about it, as plain values."""
        if not self.path.exists():
            return []
        with Store.read(self.path) as store:
            return [row.to_dict() for row in store.rows()]

    def to_pandas(self) -> Any:
        """The rows as a data frame; needs the extra ``pandas``."""
        return data_frame(self.rows())

    def _answer(
        self, question: str, networks: Any, x: Any, label: Any, perturbation: Any, given: dict[str, Any]
    ) -> tuple[Any, Asked]:
        """Answers a question through the store and returns the result and what was asked."""
        from ..formats.datasets import Dataset
        from ..formats.inputs import fit_inputs
        from ..formats.network import Network
        from ..regions import as_perturbation

        networks = list(networks) if isinstance(networks, Sequence) else [networks]
        for network in networks:
            if not isinstance(network, Network):
                raise InvalidInput("a store knows networks by the hash of their file; use load_onnx or from_torch")
        labels = np.asarray(label).reshape(-1)
        data = Dataset(fit_inputs(networks[0], x, len(labels)).cpu().numpy(), labels.astype(np.int64), "arrays")
        given = dict(given)
        limits = Limits(
            given.pop("timeout", None),
            given.pop("budget", None),
            device=str(given.pop("device", None) or "cpu"),
            recheck=given.pop("recheck", False),
        )
        progress = given.pop("progress", None)
        kind, name, bound = find_question(question), given.pop("method", "auto"), given.pop("bound", None)
        method = find_method(name, kind.about)
        asked = Asked(
            *(question, networks, data, list(range(len(data))), as_perturbation(perturbation)),
            *(name if isinstance(name, str) else type(name).__name__.lower(), method, bound, kind.keywords(given)),
        )
        reporter = Reporter() if progress is None else _Callback(progress)
        return answer_through_store(str(self.path), asked, limits, reporter=reporter), asked

    def __repr__(self) -> str:
        return f"<RunStore {self.path}: {len(self.rows())} answers>"

    def _repr_html_(self) -> str:
        shown = ("index", "label", "verdict", "bound", "attack", "question", "network", "eps", "method")
        return html_table(repr(self).strip("<>"), [{name: row[name] for name in shown} for row in self.rows()])


class _Callback(Reporter):
    """Tells a function how many of how many instances are answered."""

    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress = progress

    def answered(self, task: int, indices: list[int], verdicts: list[str], tally: Tally) -> None:
        self._progress(tally.done, tally.total)

    def ended(self, tally: Tally, why: str) -> None:
        self._progress(tally.done, tally.total)
