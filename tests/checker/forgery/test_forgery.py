"""No forgery proves what is false, honest proofs are accepted, and planted errors of the checker are found.

``SOFTHULL_FORGERIES`` sets how many are tried, ``SOFTHULL_SEED`` the seed; ``make soundness`` tries a million.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from softhull.checker.certificate import write_certificate
from softhull.checker.check import check_certificate
from softhull.checker.scores import SCORES

from .networks import Instance, instances, refused
from .planted import PLANTED, Planted
from .search import Hunt, Tally, know, shares
from .truth import Truth, inside
from .writer import norm_of

COUNT = int(os.environ.get("SOFTHULL_FORGERIES", "10000"))
SEED = int(os.environ.get("SOFTHULL_SEED", "0"))
SEEDS = 36  # a planted error is looked for from, as it is a matter of luck
EACH = 100  # forgeries of an instance from each of them: a fresh start finds more than a long search

REFUSED = {"imports": "operator sets twice", "turned": "-inf in anything but a mask"}
CLAIMS = {"entries", "differences", "functions", "score", "planes", "form", "logits", "tree", "cuts"}
KEYS = ("slope", "planes", "pairs", "functions", "split", "multipliers", "below", "fit", "price", "kept", "weights")
RULES = {f"rule {key}" for key in KEYS}


@pytest.fixture(scope="module")
def all_instances(tmp_path_factory: pytest.TempPathFactory) -> list[Instance]:
    folder = tmp_path_factory.mktemp("networks")
    return [*instances(folder), *refused(folder)]


def test_no_false_statement_is_accepted(all_instances: list[Instance], tmp_path: Path) -> None:
    """Honest proofs are accepted, and every claim and rule takes part: in what is accepted and in what was changed."""
    tally = Tally()
    for instance, count in zip(all_instances, shares(all_instances, COUNT)):
        know(instance)
        hunt = Hunt(instance, SEED)
        if instance.name in REFUSED:
            assert REFUSED[instance.name] in str(hunt.refusal)
        else:
            assert hunt.refusal is None, hunt.refusal
            assert hunt.honest
        tally.merge(hunt.run(count))
        for seed in hunt.seeds[:1] + hunt.seeds[-1:]:  # what was replayed in pieces, as a file
            write_certificate(tmp_path / "c.npz", seed.certificate)
            found = check_certificate(tmp_path / "c.npz", instance.paths)
            assert found.accepted, f"{instance.name}: {found.reason}"
    print(tally, dict(tally.accepted), dict(tally.changed))
    assert tally.false == []
    assert tally.crashes == []
    assert tally.forgeries == COUNT
    if COUNT >= 10000:
        assert CLAIMS | RULES | set(SCORES) | {"class", "ranges"} <= tally.accepted.keys()
        assert tally.changed.keys() >= CLAIMS | RULES
        assert min(tally.outcomes[name] for name in ("refused", "malformed", "accepted and true")) > COUNT // 50


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_planted_errors_are_found(
    planted: Planted, all_instances: list[Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of the first test, from honest proofs of the checker as it is, stopped where it finds something."""
    chosen = [instance for instance in all_instances if instance.name.split()[0] in planted.families]
    for instance in chosen:
        know(instance)
    planted.plant(monkeypatch)
    for seed in range(SEED + planted.seed, SEED + planted.seed + SEEDS):
        hunts: dict[str, Hunt] = {}
        for _ in range(0, EACH, 50):
            for instance in chosen:
                if instance.name not in hunts:
                    hunts[instance.name] = Hunt(instance, seed)
                if false := hunts[instance.name].run(50).false:
                    print(f"seed {seed}, after {sum(hunt.tally.forgeries for hunt in hunts.values())}: {false[0]}")
                    return
    pytest.fail("not found")


def test_truth_agrees_with_itself(all_instances: list[Instance]) -> None:
    """Balls contain what floats say, up to rounding; points lie inside their region."""
    for instance in all_instances:
        if instance.name == "turned":  # no numbers to compare
            continue
        region = (instance.region.eps, norm_of(instance), instance.region.clip)
        pool = Truth(instance).pool(instance.x, *region)
        for point in (0, 1, -1):
            place = range(len(pool.at))[point]
            assert inside(pool.at[place].tolist(), instance.x.tolist(), *region)
            for name, exact in pool.exact(place).items():
                np.testing.assert_allclose(exact.astype(np.float64), pool.floats[name][place], rtol=1e-12, atol=1e-15)
