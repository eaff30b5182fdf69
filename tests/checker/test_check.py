"""Verdicts of the checker: accepted, rejected with the first step that fails, or one clear line."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from softhull.certificates.write import class_certificate
from softhull.checker.certificate import VERSION, CertificateError, read_certificate, write_certificate
from softhull.checker.check import Checked, check_certificate
from softhull.cli.app import app
from softhull.data import bundled
from softhull.errors import ModelError
from softhull.regions import Perturbation

from .conftest import Case
from .evaluate import save

DIGITS = bundled("digits.npz")


def altered(
    case: Case, folder: Path, header: dict[str, Any] | None = None, arrays: dict[str, np.ndarray] | None = None
) -> Checked:
    """The verdict on a certificate with parts of its header and some arrays exchanged."""
    changed = replace(
        case.certificate,
        header=case.certificate.header | (header or {}),
        arrays=case.certificate.arrays | (arrays or {}),
    )
    path = folder / "altered.npz"
    write_certificate(path, changed)
    return check_certificate(path, case.models)


def test_accepted(attention: Case, quadratic: Case, ensemble: Case) -> None:
    ahead = "stays ahead of all 9 other classes"
    for case, what in ((attention, ahead), (quadratic, ahead), (ensemble, "the nll for class")):
        found = check_certificate(case.path, case.models, DIGITS)
        assert found.accepted, found.reason
        assert what in found.reason
        assert "taken from the certificate" in check_certificate(case.path, case.models).reason


def test_same_certificate_same_bytes(attention: Case, tmp_path: Path) -> None:
    write_certificate(tmp_path / "again.npz", read_certificate(attention.path))
    assert (tmp_path / "again.npz").read_bytes() == attention.path.read_bytes()


def test_wrong_model(attention: Case, tmp_path: Path) -> None:
    other = check_certificate(attention.path, [bundled("digits-mlp-0.onnx")])
    assert not other.accepted
    assert "is not the model" in other.reason
    assert "2 were named" in check_certificate(attention.path, attention.models * 2).reason
    content = attention.models[0].read_bytes() + b"\x00"  # whatever the reader makes of it, it is another file
    (tmp_path / "changed.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=rf"about '{attention.models[0].name}', another file than was .*changed\.onnx"):
        check_certificate(attention.path, [tmp_path / "changed.onnx"])
    (tmp_path / attention.models[0].name).write_bytes(content)
    with pytest.raises(ModelError, match=r"^(?!.*another file)"):
        check_certificate(attention.path, [tmp_path / attention.models[0].name])
    model = onnx.load(str(attention.models[0]))
    model.doc_string = "changed"
    onnx.save(model, str(tmp_path / "changed.onnx"))
    assert "is not the model" in check_certificate(attention.path, [tmp_path / "changed.onnx"]).reason


def test_wrong_input(attention: Case, tmp_path: Path) -> None:
    assert "about index 0" in check_certificate(attention.path, attention.models, DIGITS, 1).reason
    without = replace(
        attention.certificate,
        header=attention.certificate.header | {"input": attention.certificate.header["input"] | {"index": None}},
    )
    write_certificate(tmp_path / "anonymous.npz", without)
    assert "is not the one" in check_certificate(tmp_path / "anonymous.npz", attention.models, DIGITS, 1).reason
    assert check_certificate(tmp_path / "anonymous.npz", attention.models, DIGITS, 0).accepted
    assert "index None" in check_certificate(tmp_path / "anonymous.npz", attention.models, None, 0).reason
    with np.load(DIGITS) as data:
        np.savez(tmp_path / "relabelled.npz", x=data["x"], y=data["y"] + 1)
    assert "has label" in check_certificate(attention.path, attention.models, tmp_path / "relabelled.npz").reason
    with pytest.raises(CertificateError, match="no input 100 among 100"):
        check_certificate(tmp_path / "anonymous.npz", attention.models, DIGITS, 100)


@pytest.mark.parametrize(
    "change",
    [
        {"region": {"eps": 0.06, "norm": "inf", "clip": [0, 1]}},
        {"region": {"eps": 0.05, "norm": "inf", "clip": None}},
        {"region": {"eps": float("inf"), "norm": "inf", "clip": None}},
        {"region": {"eps": -0.01, "norm": "inf", "clip": None}},
        {"region": {"eps": 0.05, "norm": "7", "clip": None}},
        {"region": {"eps": 0.05, "norm": "inf", "clip": [0.5, 1]}},
        {"property": {"kind": "class", "label": 3, "rivals": [0]}},
        {"property": {"kind": "class", "label": 11, "rivals": [0]}},
        {"property": {"kind": "class", "label": 0, "rivals": [11]}},
        {"property": {"kind": "class", "label": 0, "rivals": []}},
        {"property": {"kind": "magic", "label": 0}},
        {"property": {"kind": "score", "score": "nll", "label": 0, "bound": 0.1}},
        {"steps": []},
    ],
)
def test_claims_that_do_not_follow(change: dict[str, Any], attention: Case, tmp_path: Path) -> None:
    label = attention.certificate.header["property"]["label"]
    if change.get("property", {}).get("label") == 0:
        change = {"property": change["property"] | {"label": label}}
    assert not altered(attention, tmp_path, change).accepted


def test_first_step_that_fails_is_named(attention: Case, tmp_path: Path) -> None:
    steps = attention.certificate.header["steps"]
    number, step = next((i, s) for i, s in enumerate(steps) if s["claim"] == "differences")
    better = attention.certificate.arrays[step["lower"]] + 1e-3
    found = altered(attention, tmp_path, arrays={step["lower"]: better})
    assert (found.accepted, found.step) == (False, number)
    assert f"step {number} ('differences' of" in found.reason
    assert "does not follow" in found.reason


def test_better_score_than_proved(ensemble: Case, tmp_path: Path) -> None:
    claim = ensemble.certificate.header["property"]
    found = altered(ensemble, tmp_path, {"property": claim | {"bound": claim["bound"] * 0.999}})
    assert not found.accepted
    assert "nll is not proved to be at most" in found.reason


def test_weaker_claims_are_accepted(ensemble: Case, tmp_path: Path) -> None:
    claim = ensemble.certificate.header["property"]
    assert altered(ensemble, tmp_path, {"property": claim | {"bound": claim["bound"] * 1.5}}).accepted


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def array_bytes(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


HEAD = {"format": "softhull certificate", "version": VERSION}
FOREIGN: dict[str, dict[str, bytes]] = {
    "no header": {"a.npy": array_bytes(np.zeros(3))},
    "not JSON": {"header.json": b"{"},
    "nested": {"header.json": b"[" * 1_000_000},
    "not ours": {"header.json": b'{"format": "cake"}'},
    "list": {"header.json": b"[1, 2]"},
    "version": {"header.json": json.dumps(HEAD | {"version": VERSION + 1}).encode()},
    "key twice": {"header.json": json.dumps(HEAD).encode()[:-1] + b', "version": 2}'},
    "long number": {"header.json": b'{"format": ' + b"9" * 100_000 + b"}"},
    "empty": {"header.json": json.dumps(HEAD).encode()},
    "strange member": {"header.json": json.dumps(HEAD).encode(), "../evil.py": b"import os"},
    "pickle": {
        "header.json": json.dumps(HEAD).encode(),
        "a.npy": array_bytes(np.array([{}], dtype=object), allow_pickle=True),
    },
    "false shape": {
        "header.json": json.dumps(HEAD).encode(),
        "a.npy": array_bytes(np.zeros(3)).replace(b"(3,)", b"(9" + b"9" * 9 + b",)"[:2]),
    },
    "strings": {"header.json": json.dumps(HEAD).encode(), "a.npy": array_bytes(np.array(["x"]))},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files(name: str, attention: Case, tmp_path: Path) -> None:
    path = zipped(tmp_path / "foreign.npz", FOREIGN[name])
    with pytest.raises(CertificateError, match=r"foreign\.npz"):
        check_certificate(path, attention.models)


def test_no_zip(attention: Case, tmp_path: Path) -> None:
    whole = attention.path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 30):
        (tmp_path / "cut.npz").write_bytes(whole[:length])
        with pytest.raises(CertificateError, match=r"cut\.npz"):
            check_certificate(tmp_path / "cut.npz", attention.models)
    with pytest.raises(CertificateError, match="missing"):
        check_certificate(tmp_path / "missing.npz", attention.models)


def test_zip_bombs_stay_small(attention: Case, tmp_path: Path) -> None:
    """Zeros pack a thousandfold; no more than the limit is ever unpacked."""
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for i in range(16):
            archive.writestr(f"{i}.npy", bytes(1 << 24))
    tracemalloc.start()
    with pytest.raises(CertificateError, match="bytes unpacked"):
        check_certificate(path, attention.models)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500 << 20


def test_too_many_rows(attention: Case, tmp_path: Path) -> None:
    step = next(s for s in attention.certificate.header["steps"] if s["claim"] == "entries")
    many = 200_000
    found = altered(
        attention,
        tmp_path,
        arrays={
            step["entries"]: np.zeros(many, dtype=np.int64),
            step["lower"]: np.full(many, -1e6),
            step["upper"]: np.full(many, 1e6),
        },
    )
    assert not found.accepted
    assert "more rows" in found.reason


def test_command(attention: Case, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["check", *arguments])

    model = str(attention.models[0])
    good = run(str(attention.path), "--model", model, "--data", str(DIGITS), "--json", "-")
    assert good.exit_code == 0
    assert json.loads(good.output)["verdict"] == "accepted"
    bad = run(str(attention.path), "--model", str(bundled("digits-mlp-0.onnx")))
    assert bad.exit_code == 1
    assert bad.output.startswith("rejected: ")
    unreadable = run(str(DIGITS), "--model", model)
    assert unreadable.exit_code == 2
    assert "not a certificate" in unreadable.output
    assert run(str(attention.path)).exit_code == 2


def test_command_with_several_files(attention: Case, tmp_path: Path) -> None:
    """One line for each, with its input and region, and a count; one that is rejected or unreadable stops nobody."""
    path, model = str(attention.path), str(attention.models[0])
    forged = str(tmp_path / "forged.npz")
    header = attention.certificate.header | {"steps": []}
    write_certificate(Path(forged), replace(attention.certificate, header=header))

    def run(*files: str, out: str = str(tmp_path / "out.json")) -> tuple[int, list[str]]:
        done = CliRunner().invoke(app, ["check", *files, "--model", model, "--data", str(DIGITS), "--json", out])
        return done.exit_code, done.output.splitlines()

    code, lines = run(forged, str(DIGITS), path)
    assert code == 1
    assert [line.split(": ")[:2] for line in lines[::2]] == [[forged, "rejected"], [path, "accepted"]]
    assert lines[1].startswith(f"error: {DIGITS}: ")
    assert lines[3] == "1 of 3 accepted"
    assert all(part in lines[2] for part in ("input 0, compared with", "eps = 0.05 in the l_inf norm", "0.0 to 1.0"))
    records = json.loads((tmp_path / "out.json").read_text())
    assert [(r["file"], r["verdict"]) for r in records] == [
        (forged, "rejected"),
        (str(DIGITS), "error"),
        (path, "accepted"),
    ]
    code, lines = run(path, str(DIGITS), path)
    assert (code, lines[-1]) == (2, "2 of 3 accepted, ONLY 1 of them different")
    code, lines = run(path, path, out="-")
    assert code == 0
    assert [record["verdict"] for record in json.loads("\n".join(lines))] == ["accepted"] * 2


def test_second_order_rules(quadratic: Case, tmp_path: Path) -> None:
    """Every choice of a second-order proof that proves less, or nothing, is refused at its step."""
    steps = quadratic.certificate.header["steps"]
    last = next(i for i, step in reversed(list(enumerate(steps))) if step["claim"] == "differences")
    rules = steps[last]["rules"]
    on_input = next(name for name, rule in rules.items() if "multipliers" in rule)
    arrays = quadratic.certificate.arrays
    multipliers = arrays[rules[on_input]["multipliers"]]
    for wrong in (0.5 * multipliers, 2 * multipliers, multipliers[:-1]):
        found = altered(quadratic, tmp_path, arrays={rules[on_input]["multipliers"]: wrong})
        assert not found.accepted
        assert found.step == last, found.reason

    def without(number: int) -> Checked:
        """Step numbers are names: a step is exchanged for one that is known already, not left out."""
        return altered(quadratic, tmp_path, {"steps": [*steps[:number], steps[0], *steps[number + 1 :]]})

    for number, step in enumerate(steps):
        if step["claim"] in ("form", "logits"):
            assert not without(number).accepted
    left_out = {name: rule for name, rule in rules.items() if name != on_input}
    found = altered(
        quadratic, tmp_path, {"steps": [*steps[:last], steps[last] | {"rules": left_out}, *steps[last + 1 :]]}
    )
    assert "does not say how to bound its quadratic" in found.reason


def test_deep_network(tmp_path: Path) -> None:
    """As many nodes in a row as a recursive reader could not follow."""
    count = 600
    nodes = [
        onnx.helper.make_node("Relu" if i % 2 else "Add", [f"t{i}"] if i % 2 else [f"t{i}", "c"], [f"t{i + 1}"])
        for i in range(count)
    ]
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    model = save(tmp_path / "deep.onnx", nodes, {"c": np.full((1, 2), 1e-3, dtype=np.float32)}, (1, 2))
    found = class_certificate(model, np.array([[0.5, 0.1]]), 0, Perturbation(0.01))
    write_certificate(tmp_path / "deep.npz", found)
    assert check_certificate(tmp_path / "deep.npz", [model]).accepted
