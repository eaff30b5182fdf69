"""What was accepted is said in full, can be demanded, and cannot write to the terminal."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import helper

from softhull.certificates.write import class_certificate
from softhull.checker.certificate import Certificate, CertificateError, write_certificate
from softhull.checker.check import check_certificate, sha256
from softhull.checker.statement import Statement
from softhull.cli.app import app
from softhull.data import bundled
from softhull.errors import LONGEST_LINE, ModelError, one_line, quoted
from softhull.regions import Perturbation

from .conftest import Case
from .evaluate import save

DIGITS = bundled("digits.npz")
ESCAPE = "\x1b[2K\raccepted: all is well\u202e\n"


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["check", *(str(argument) for argument in arguments)])


def test_the_whole_statement(attention: Case) -> None:
    model = attention.models[0]
    found = check_certificate(attention.path, attention.models, DIGITS)
    statement = found.to_dict()["statement"]
    label = attention.certificate.header["property"]["label"]
    assert statement["models"] == [{"file": str(model), "sha256": sha256(model.read_bytes())}]
    region = {"eps": 0.05, "norm": "inf", "clip": [0.0, 1.0], "moving": 64, "single_input": False}
    assert statement["region"] == region
    given = {"index": 0, "sha256": attention.certificate.header["input"]["sha256"]}
    assert statement["input"] == given | {"from": "data", "data": str(DIGITS)}
    rivals = [k for k in range(10) if k != label]
    assert statement["property"] == {"kind": "class", "label": label, "rivals": rivals, "all_rivals": True}
    text = run(attention.path, "--model", model, "--data", DIGITS).output
    for part in (
        str(model),
        sha256(model.read_bytes()),
        "input 0",
        "eps = 0.05",
        "l_inf",
        "0.0 to 1.0",
        f"class {label}",
    ):
        assert part in text
    assert "NOT compared with data" in run(attention.path, "--model", model).output


@pytest.mark.parametrize(
    ("option", "good", "bad", "says"),
    [
        ("--eps", (0.05,), (0.04,), "about eps 0.05"),
        ("--norm", ("inf",), ("2",), "about norm inf"),
        ("--clip", (0, 1), (0, 2), r"about clip (0.0, 1.0)"),
        ("--index", (0,), (1,), "about index 0"),
        ("--label", None, (11,), "about label"),
    ],
)
def test_demands(option: str, good: Any, bad: Any, says: str, ensemble: Case) -> None:
    models = [part for model in ensemble.models for part in ("--model", model)]
    good = good or (ensemble.certificate.header["property"]["label"],)
    assert run(ensemble.path, *models, option, *good).exit_code == 0
    refused = run(ensemble.path, *models, option, *bad)
    assert refused.exit_code == 1
    assert refused.output.startswith("rejected: ")
    assert says in refused.output


def test_demands_in_python(ensemble: Case) -> None:
    for wrong in ({"eps": 0.06}, {"norm": 2}, {"norm": "1"}, {"clip": (0, 0.5)}, {"label": 11}, {"index": 5}):
        assert not check_certificate(ensemble.path, ensemble.models, **wrong).accepted  # type: ignore[arg-type]
    label = ensemble.certificate.header["property"]["label"]
    same: dict[str, Any] = {"eps": 0.05, "norm": float("inf"), "clip": [0, 1], "label": label, "index": 0}
    assert check_certificate(ensemble.path, ensemble.models, **same).accepted
    with pytest.raises(CertificateError, match="norm '3'"):
        check_certificate(ensemble.path, ensemble.models, norm=3)


def identity(folder: Path) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return save(folder / "m.onnx", [node], {"w": np.eye(3, dtype=np.float32)}, [1, 3])


@pytest.mark.parametrize("perturbation", [Perturbation(0.0), Perturbation(0.5, clip=(1.0, 1.0))])
def test_a_region_of_one_input_is_said_so(perturbation: Perturbation, tmp_path: Path) -> None:
    model = identity(tmp_path)
    x = np.array([1.0, 0, 0]) if perturbation.clip is None else np.ones(3)
    if perturbation.clip is not None:  # three equal logits: let the first weight win
        weights = np.diag([2, 1, 1]).astype(np.float32)
        model = save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weights}, [1, 3])
    write_certificate(tmp_path / "c.npz", class_certificate(model, x, 0, perturbation))
    found = run(tmp_path / "c.npz", "--model", model)
    assert found.exit_code == 0, found.output
    assert "AT THIS ONE INPUT ONLY" in found.output.splitlines()[0]
    statement = check_certificate(tmp_path / "c.npz", [model]).statement
    assert isinstance(statement, Statement)
    assert statement.single_input


def test_some_rivals_only_is_said_so(tmp_path: Path) -> None:
    model = identity(tmp_path)
    found = class_certificate(model, np.array([1.0, 0, 5]), 0, Perturbation(0.1), rivals=[1])
    write_certificate(tmp_path / "c.npz", found)
    text = run(tmp_path / "c.npz", "--model", model).output
    assert "1 of 2 other classes ONLY" in text.splitlines()[0]
    statement = check_certificate(tmp_path / "c.npz", [model]).to_dict()["statement"]
    assert statement["property"] == {"kind": "class", "label": 0, "rivals": [1], "all_rivals": False}


def test_version_1_is_refused_with_the_reason(attention: Case, tmp_path: Path) -> None:
    old = replace(attention.certificate, header=attention.certificate.header | {"version": 1})
    write_certificate(tmp_path / "old.npz", old)
    with pytest.raises(CertificateError, match=r"old\.npz: version '1'.*false statements.*write it again"):
        check_certificate(tmp_path / "old.npz", attention.models)


def renamed(case: Case, **changes: Any) -> Certificate:
    header = copy.deepcopy(case.certificate.header)
    header["steps"][0] |= changes
    return replace(case.certificate, header=header)


@pytest.mark.parametrize("field", ["tensor", "claim", "lower", "rules"])
def test_names_cannot_write_to_the_terminal(field: str, attention: Case, tmp_path: Path) -> None:
    change = {ESCAPE: {}} if field == "rules" else ESCAPE * 1000
    write_certificate(tmp_path / "c.npz", renamed(attention, **{field: change}))
    found = run(tmp_path / "c.npz", "--model", attention.models[0])
    assert found.exit_code in (1, 2)
    assert clean(found.output)
    assert "\\x1b" in found.output


def clean(text: str) -> bool:
    return text.endswith("\n") and text[:-1].isprintable() and len(text) < LONGEST_LINE + 200


def test_model_text_cannot_write_to_the_terminal(attention: Case, tmp_path: Path) -> None:
    nodes = [helper.make_node(ESCAPE, [ESCAPE], ["y"], name=ESCAPE * 100)]
    model = save(tmp_path / "m.onnx", nodes, {}, [1, 3])
    found = run(attention.path, "--model", model)
    assert found.exit_code == 2
    assert clean(found.output)
    shown = CliRunner().invoke(app, ["verify", str(model), "--data", str(DIGITS), "--eps", "0.1"])
    assert shown.exit_code == 2
    assert clean(shown.output)
    shown = CliRunner().invoke(app, [ESCAPE])
    assert clean(shown.output)


def test_one_line() -> None:
    assert one_line("a\n b\x1b[31m\u202e\ud800") == "a b\\x1b[31m\\u202e\\ud800"
    assert len(one_line("x" * 10_000)) < LONGEST_LINE + 10
    assert str(ModelError("caf\u00e9\x07")) == "caf\u00e9\\x07"
    assert quoted("it's\n") == '"it\'s\\n"'
    assert quoted("y" * 100, 3) == "'yyy'..."
    assert quoted({"a": []}) == "a dict"


def test_duplicate_members(attention: Case, tmp_path: Path) -> None:
    import warnings
    import zipfile

    path = tmp_path / "twice.npz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("header.json", json.dumps(attention.certificate.header))
            archive.writestr("header.json", json.dumps(attention.certificate.header | {"region": {}}))
    with pytest.raises(CertificateError, match="two members"):
        check_certificate(path, attention.models)


@pytest.mark.parametrize("label", [True, 1.0, "1", None, -1, 10**30])
def test_labels_are_whole_numbers(label: Any, attention: Case, tmp_path: Path) -> None:
    claim = {"kind": "class", "label": label, "rivals": [0]}
    header = attention.certificate.header | {"property": claim, "steps": []}
    write_certificate(tmp_path / "c.npz", replace(attention.certificate, header=header))
    assert not check_certificate(tmp_path / "c.npz", attention.models).accepted


@pytest.mark.parametrize("score", ["nll", "brier", "error", "confidence", "margin", "entropy"])
def test_no_scores_of_one_class(score: str, tmp_path: Path) -> None:
    """Nothing but itself is there to be ahead of: every margin would hold."""
    from .false_statements import certificate

    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = save(tmp_path / "m.onnx", [node], {"w": np.ones((3, 1), np.float32)}, [1, 3])
    for label in (0, 1):
        claim = {"kind": "score", "score": score, "label": label, "bound": 7.0}
        write_certificate(tmp_path / "c.npz", certificate(model, [0, 0, 0], 0.1, claim, [], {}))
        assert not check_certificate(tmp_path / "c.npz", [model]).accepted
