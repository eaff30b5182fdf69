"""What an instance took is what was spent on it, and everything adds up to the time of its batch."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

import softhull
from softhull.verify import times
from softhull.verify.instances import shared_costs
from softhull.verify.times import Spent


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is 10 CPU seconds and 20 seconds later at every look."""
    looks = count()
    monkeypatch.setattr(times, "_now", lambda: (10.0 * (look := next(looks)), 20.0 * look))


@pytest.fixture(scope="module")
def case() -> tuple[Any, Any, Any]:
    """A network and six digits."""
    digits = softhull.load_dataset(softhull.bundled("digits.npz"))
    return softhull.load_onnx(softhull.bundled("digits-mlp-0.onnx")), digits.x[:6], digits.y[:6]


@pytest.mark.usefixtures("ticks")
def test_a_stage_is_shared_by_the_instances_it_works_on() -> None:
    spent = Spent()
    spent.charge(torch.tensor([0, 1]))
    spent.charge(torch.tensor([], dtype=torch.long))  # nobody: the time waits for the next charge
    spent.charge({1: 3.0, 2: 1.0})
    assert spent.of(0) == {"cpu_seconds": 5.0, "seconds": 10.0}
    assert spent.of(1) == {"cpu_seconds": 12.5, "seconds": 25.0}
    assert spent.of(2) == {"cpu_seconds": 2.5, "seconds": 5.0}
    assert spent.of(3) == {"cpu_seconds": 0.0, "seconds": 0.0}


def test_what_belongs_to_no_instance_belongs_to_all() -> None:
    certified = softhull.Verdict.CERTIFIED
    records = {i: softhull.Record(i, certified, cpu_seconds=float(i), seconds=2.0 * i) for i in range(3)}
    found = shared_costs(records, 6.0, 12.0)
    assert [record.cpu_seconds for record in found.values()] == [1.0, 2.0, 3.0]
    assert [record.seconds for record in found.values()] == [2.0, 4.0, 6.0]
    assert shared_costs({}, 1.0, 1.0) == {}


@pytest.mark.usefixtures("ticks")
def test_easy_instances_do_not_pay_for_hard_ones(case: tuple[Any, Any, Any]) -> None:
    """What linear bounds prove at once does not pay for the attack on the others."""
    result = softhull.verify_robustness(*case, softhull.Perturbation(0.12, clip=(0, 1)), method="linear")
    cost = {v: [r.cpu_seconds for r in result if r.verdict is v] for v in softhull.Verdict}
    assert max(cost[softhull.Verdict.CERTIFIED]) < min(cost[softhull.Verdict.FALSIFIED])


def test_records_add_up_to_no_more_than_the_result(case: tuple[Any, Any, Any]) -> None:
    network, x, y = case
    for result in (
        softhull.verify_robustness(network, x, y, 0.1, method="linear"),
        softhull.verify_uncertainty(network, x[:3], y[:3], 0.02, method=softhull.Dual(steps=5)),
    ):
        assert 0 < sum(record.cpu_seconds for record in result.records) <= result.cpu_seconds
