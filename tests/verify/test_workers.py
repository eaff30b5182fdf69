"""Instances shared by several processes, and Ctrl-C: every instance has a record, and the best found by then."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import softhull
from softhull.deadlines import INTERRUPTED, interrupted
from softhull.errors import InvalidInput
from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx
from softhull.regions import Perturbation
from softhull.verify import uncertainty
from softhull.verify.instances import _batches, answer_all
from softhull.verify.robustness import verify_robustness
from softhull.verify.uncertainty import verify_uncertainty
from softhull.workers import Workers

DATA = Path(softhull.__file__).parent / "data"
EPS = Perturbation(0.02, clip=(0, 1))


def _digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    dataset = load_dataset(DATA / "digits.npz")
    return dataset.take(list(range(count))), dataset.y[:count]


def _untimed(record: Any) -> dict[str, Any]:
    """A record without the times in it, which differ from run to run."""
    times = ("cpu_seconds", "seconds")
    plain = {name: value for name, value in record.to_dict().items() if name not in times}
    plain["tried"] = [{name: value for name, value in stage.items() if name not in times} for stage in plain["tried"]]
    return plain


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    x, y = _digits(12)
    network = load_onnx(DATA / "digits-mlp-0.onnx")
    told: list[tuple[int, int]] = []
    alone = verify_robustness(network, x, y, EPS, workers=1)
    shared = verify_robustness(network, x, y, EPS, workers=2, progress=lambda done, total: told.append((done, total)))
    assert [_untimed(record) for record in shared.records] == [_untimed(record) for record in alone.records]
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    scores = [verify_uncertainty(network, x, y, EPS, workers=workers) for workers in (1, 2)]
    np.testing.assert_array_equal(scores[0].column("bound"), scores[1].column("bound"))


class Dying:
    """A question that one instance answers by ending its process, and another one by an exception."""

    def answer(self, batch: Tensor) -> list[str]:
        if 3 in batch:
            os.kill(os.getpid(), signal.SIGKILL)
        if 5 in batch:
            raise ValueError("no\nluck")
        return [f"answer {i}" for i in batch.tolist()]

    def apart(self, batch: Tensor) -> list[Tensor]:
        return [batch]

    def nothing(self, index: int, why: str, failed: bool = False) -> str:
        return f"{'failed' if failed else 'stopped'}: {why}"


def test_a_worker_that_dies_takes_no_other_instance_with_it() -> None:
    found = answer_all(Dying(), torch.arange(16), 8, workers=2).records
    assert found.pop(3).startswith("failed: the worker process ended (signal SIGKILL)")
    assert found.pop(5) == "failed: no luck"
    assert found == {i: f"answer {i}" for i in range(16) if i not in (3, 5)}


@pytest.mark.parametrize(("count", "largest", "number"), [(1, 1, 1), (2, 1, 2), (9, 3, 4), (100, 16, 8), (500, 63, 10)])
def test_batches_hold_every_instance_once_and_the_last_are_small(count: int, largest: int, number: int) -> None:
    batches = _batches(torch.arange(count), 256, hardest_first=False)
    assert torch.cat(batches).equal(torch.arange(count))
    sizes = [len(batch) for batch in batches]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], len(sizes)) == (largest, number)
    assert 2 * sizes[-1] <= largest + 1
    assert max(len(batch) for batch in _batches(torch.arange(count), 8, hardest_first=False)) <= 8
    hardest = _batches(torch.arange(count), 256, hardest_first=True)
    assert torch.cat(hardest).equal(torch.arange(count))
    assert len(hardest[0]) <= min(16, largest)
    assert max(len(batch) for batch in hardest) <= largest


def test_the_hardest_are_asked_first() -> None:
    """Of those asked about; the records are by number, whatever the order."""
    asked: list[int] = []

    class Listening(Dying):
        def answer(self, batch: Tensor) -> list[str]:
            asked.extend(batch.tolist())
            return [f"answer {i}" for i in batch.tolist()]

    ease = torch.tensor([3.0, 1.0, 2.0, 0.0, -1.0])
    found = answer_all(Listening(), torch.tensor([0, 1, 2, 4]), 8, 1, ease=ease).records
    assert asked == [4, 1, 2, 0]
    assert found == {i: f"answer {i}" for i in (0, 1, 2, 4)}


class Elsewhere(Dying):
    """A question that says which process answers it."""

    def answer(self, batch: Tensor) -> list[str]:
        return [str(os.getpid())] * len(batch)


def test_this_process_works_until_the_others_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that takes long to load them; afterwards all work is theirs."""
    looked: list[int] = []

    def started(pool: Workers) -> bool:
        looked.append(len(looked))
        return len(looked) > 2  # one look before the first wait, one after it

    monkeypatch.setattr(Workers, "started", started)
    threads = torch.get_num_threads()
    found = answer_all(Elsewhere(), torch.arange(64), 8, workers=2).records
    ours = [i for i, who in found.items() if who == str(os.getpid())]
    assert ours == list(range(16, 24))  # the batch after those of the two workers
    assert len(found) == 64
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("workers", [None, "auto", 1, 2])
def test_nothing_to_ask(workers: Any) -> None:
    assert answer_all(Dying(), torch.arange(0), 8, workers).records == {}


def test_a_batch_of_misclassified_inputs() -> None:
    x, y = _digits(3)
    found = verify_robustness(load_onnx(DATA / "digits-mlp-0.onnx"), x, (y + 1) % 10, EPS)
    assert {record.verdict.value for record in found.records} == {"misclassified"}


@pytest.mark.parametrize("workers", [0, -1, 1.5, "many"])
def test_numbers_of_workers_that_are_none(workers: Any) -> None:
    with pytest.raises(InvalidInput, match="workers must be a whole number"):
        answer_all(Dying(), torch.arange(2), 8, workers=workers)


class Waiting(Dying):
    """A question that takes until the first interrupt, as a signal to the main process."""

    def answer(self, batch: Tensor) -> list[str]:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        end = time.monotonic() + 60
        while not interrupted():
            assert time.monotonic() < end, "the signal has not been heard"
        return ["the best so far" for _ in batch]


@pytest.mark.usefixtures("heard")
def test_ctrl_c_is_a_deadline_that_has_passed() -> None:
    found = answer_all(Waiting(), torch.arange(4), 2)
    assert found.interrupted
    assert found.records == {0: "the best so far", 1: "the best so far"} | dict.fromkeys(
        (2, 3), f"stopped: {INTERRUPTED}"
    )
    assert not interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("heard")
def test_scores_keep_what_they_have_on_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted at the start of its second batch: the first one is whole, every other score has its clean value."""
    x, y = _digits(6)
    honest, batches = uncertainty._Asked.answer, []

    def answer(self: Any, batch: Tensor) -> Any:
        batches.append(batch)
        if len(batches) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return honest(self, batch)

    monkeypatch.setattr(uncertainty._Asked, "answer", answer)
    monkeypatch.setattr(uncertainty, "BATCH", 2)
    found = verify_uncertainty(load_onnx(DATA / "digits-mlp-0.onnx"), x, y, EPS)
    assert found.interrupted
    assert [record.message for record in found.records] == ["", "", *[INTERRUPTED] * 4]
    assert np.isfinite(found.column("bound")[:4]).all()
    assert (found.column("bound") >= np.nan_to_num(found.column("attack"), nan=-np.inf)).all()


def test_the_old_name_of_an_argument_still_works() -> None:
    x, y = _digits(1)
    network: Any = load_onnx(DATA / "digits-mlp-0.onnx")
    ask: Any = verify_robustness
    with pytest.warns(DeprecationWarning, match="'y' is now called 'label'"):
        assert len(ask(network, x, y=y, perturbation=EPS)) == 1
    with pytest.raises(TypeError, match="not both"):
        ask(network, x, y=y, label=y, perturbation=EPS)
