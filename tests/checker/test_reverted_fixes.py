"""With any one fix taken back the false statement that it refuses is accepted again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from flint import arb

from softhull.checker import certificate, check, network, statement
from softhull.checker.balls import Balls, zeros
from softhull.checker.check import check_certificate
from softhull.checker.forms import Forms
from softhull.checker.network import OPERATORS, View
from softhull.checker.replay import Knowledge, Rules, Walk, minimum_of

from . import false_statements
from .false_statements import FORGERIES
from .false_statements import certificate as written

Patch = pytest.MonkeyPatch


def _forget_quadratics(patch: Patch) -> None:
    whole = Knowledge.least

    def least(self: Knowledge, walk: Walk, rules: Rules) -> Balls:
        return walk.constant + minimum_of(self, walk.pending) if walk.top > 0 else whole(self, walk, rules)

    patch.setattr(Knowledge, "least", least)


def _overwrite_repeated_entries(patch: Patch) -> None:
    """Where the logits of a softmax are combined, the last of several places with one entry counts alone."""
    whole = Forms.combinations

    def combinations(self: Forms, view: View, rows: Balls, own: bool = False) -> Any:
        overwritten = zeros(len(rows), view.index.among)
        overwritten[:, view.index.flat] = rows
        return whole(self, self.known.networks.whole(view.node), overwritten, own)

    def difference(self: Knowledge, view: View, i: int, j: int) -> float:
        first, second = view.index.flat[i], view.index.flat[j]
        return self._apart.get(view.node, {}).get((first, second), -np.inf)

    patch.setattr(Forms, "combinations", combinations)
    patch.setattr(Knowledge, "difference", difference)


def _take_the_first_operator_set(patch: Patch) -> None:
    patch.setattr(network, "operator_set", lambda model: model.opset_import[0].version)


def _cover_every_add(patch: Patch) -> None:
    kinds = {"broadcast": onnx.AttributeProto.INT, "axis": onnx.AttributeProto.INT}
    patch.setitem(OPERATORS, "Add", [replace(rule, since=1, attributes=kinds) for rule in OPERATORS["Add"]])


def _follow_no_masks(patch: Patch) -> None:
    patch.setattr(network.Networks, "_follow_masks", lambda *_: None)
    patch.setattr(check, "proves", lambda derived, claimed: derived >= arb(claimed))  # an infinity is no bound by now


REVERTS: dict[str, Callable[[Patch], None]] = {
    "stop_behind_a_split": _forget_quadratics,
    "one_logit_ahead_of_itself": _overwrite_repeated_entries,
    "repeated_logits_before_a_product": _overwrite_repeated_entries,
    "two_operator_sets": _take_the_first_operator_set,
    "old_broadcast": _cover_every_add,
    "mask_turned_around": _follow_no_masks,
}


@pytest.mark.parametrize("name", FORGERIES)
def test_reverted(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    REVERTS[name](monkeypatch)
    found = FORGERIES[name](tmp_path).check()
    assert found.accepted, found.reason
    assert "stays ahead of all" in found.reason


def test_version_1_accepted_again(tmp_path: Path, monkeypatch: Patch) -> None:
    """Were the version not asked for, an old file would go through."""
    forged = false_statements.one_logit_ahead_of_itself(tmp_path)
    model = forged.model
    claim = {"kind": "class", "label": 0, "rivals": [2]}
    old = written(model, [-1.5, -5], 0.25, claim, [{"claim": "logits", "tensor": "0:y"}], {}, version=1)
    certificate.write_certificate(tmp_path / "old.npz", old)
    with pytest.raises(certificate.CertificateError, match="version"):
        check_certificate(tmp_path / "old.npz", [model])
    monkeypatch.setattr(certificate, "VERSION", 1)
    assert check_certificate(tmp_path / "old.npz", [model]).accepted


def test_demands_forgotten(tmp_path: Path, monkeypatch: Patch) -> None:
    forged = false_statements.one_logit_ahead_of_itself(tmp_path)
    claim = {"kind": "class", "label": 0, "rivals": [2]}
    steps: list[dict[str, Any]] = [{"claim": "logits", "tensor": "0:y"}]
    certificate.write_certificate(tmp_path / "c.npz", written(forged.model, [-1.5, -5], 0.25, claim, steps, {}))
    assert not check_certificate(tmp_path / "c.npz", [forged.model], eps=0.5).accepted
    monkeypatch.setattr(statement.Statement, "demand", lambda *_: None)
    assert check_certificate(tmp_path / "c.npz", [forged.model], eps=0.5).accepted
