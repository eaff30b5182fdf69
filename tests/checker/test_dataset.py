"""Statements about data sets: honest ones are accepted and true, forged ones are refused in one line."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from onnx import helper

from softhull.certificates.dataset import StatementFolder
from softhull.certificates.write import class_certificate
from softhull.checker.certificate import CertificateError, read_certificate, write_certificate
from softhull.checker.check import Checked, check_certificate, sha256
from softhull.checker.dataset import DatasetStatement, check_dataset
from softhull.checker.metrics import LOWEST
from softhull.cli.app import app
from softhull.data import bundled
from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx
from softhull.regions import Perturbation
from softhull.verify.calibration import bin_edges
from softhull.verify.dataset import certify_dataset

from .evaluate import save
from .test_metrics import metrics_at

CLASSES, INDICES, RADII, BINS = 4, [1, 4, 2], (0.01, 0.03), 6
MODELS, DATA = ("net-0.onnx", "net-1.onnx"), "data.npz"  # in the folder of the statement
Header = dict[str, Any]


def weights(network: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(network)
    return tuple(rng.normal(size=size).astype(np.float32) for size in ((5, 8), (8, CLASSES)))  # type: ignore[return-value]


def mean_probabilities(x: np.ndarray) -> np.ndarray:
    """What the ensemble says of inputs ``[n, 5]``."""
    logits = [np.maximum(x @ first, 0) @ second for first, second in map(weights, range(2))]
    return np.mean([np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in logits], 0)


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two networks, inputs, and a statement about three of them at two radii."""
    path = tmp_path_factory.mktemp("statement")
    nodes = [("MatMul", ["x", "A"], "a"), ("Relu", ["a"], "b"), ("MatMul", ["b", "B"], "y")]
    for i, name in enumerate(MODELS):
        made = [helper.make_node(kind, before, [after]) for kind, before, after in nodes]
        save(path / name, made, dict(zip("AB", weights(i))), [1, 5])
    x = np.random.default_rng(3).random((8, 5)).astype(np.float32)
    np.savez(path / DATA, x=x, y=mean_probabilities(x).argmax(1))
    networks, data = [load_onnx(path / name) for name in MODELS], load_dataset(path / DATA)
    folder = StatementFolder(path, [str(path / m) for m in MODELS], networks, data, INDICES, bin_edges(BINS))
    for eps in RADII:
        ball, y = Perturbation(eps, clip=(0, 1)), torch.from_numpy(data.y[INDICES])
        folder.add(ball, certify_dataset(networks, torch.from_numpy(data.take(INDICES)), y, ball, bins=BINS))
    folder.write()
    assert len(folder) == len(INDICES) * len(RADII)
    return path


@pytest.fixture
def folder(honest: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(honest, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[Header], object]) -> Path:
    path = folder / "statement.json"
    header = json.loads(path.read_text())
    change(header)
    path.write_text(json.dumps(header))
    return path


def check(path: Path, data: Path | str | None = DATA, *args: Any, **demands: Any) -> Checked:
    """The verdict on a statement, with the networks and the data beside it."""
    models = [path.parent / name for name in MODELS]
    return check_dataset(path, models, None if data is None else path.parent / data, *args, **demands)


def rejected(path: Path, data: Path | str | None = DATA, **demands: Any) -> str:
    found = check(path, data, **demands)
    assert not found.accepted
    assert "\n" not in found.reason
    assert found.statement is None
    return found.reason


def test_an_honest_statement_is_accepted_and_true(honest: Path) -> None:
    found = check(honest / "statement.json")
    assert found.accepted, found.reason
    assert isinstance(found.statement, DatasetStatement)
    assert "ONLY 3 of the 8 inputs" in found.reason
    text = str(found)
    for part in ("1 to 2, 4", "l_inf norm, clipped to 0.0 to 1.0", "eps = 0.03: accuracy >= "):
        assert part in text
    data = load_dataset(honest / DATA)
    rng, x, y = np.random.default_rng(0), data.take(INDICES).astype(np.float64), data.y[INDICES]
    for radius in found.statement.radii:
        for _ in range(200):
            noise = radius.eps * np.clip(rng.normal(size=x.shape) * rng.choice([0.5, 1.0, 100.0]), -1, 1)
            p = mean_probabilities(np.clip(x + noise, 0, 1))
            for name, value in metrics_at(p, y, bin_edges(BINS)).items():
                sign = -1 if name in LOWEST else 1
                assert sign * value <= sign * radius.metrics[name] + 1e-9, name


def test_labels_that_no_file_confirms_are_said_so(honest: Path, folder: Path) -> None:
    """Metrics are about labels: inputs that are compared with a file without labels do not confirm them."""
    assert "NOT compared" not in str(check(honest / "statement.json"))
    np.savez(folder / "inputs.npz", x=load_dataset(folder / DATA).x)
    found = check(folder / "statement.json", "inputs.npz")
    assert found.accepted
    assert "labels: as the statement says, NOT compared" in str(found)
    assert found.to_dict()["statement"]["inputs"]["labels"] == "statement"


@pytest.mark.parametrize("eps", [-0.01, None, True, "0.01", 1e400])
def test_radii_are_numbers_of_at_least_0(folder: Path, eps: Any) -> None:
    """Even where nothing is known of any sample, so that no certificate says what its radius is."""
    nothing = {"eps": eps, "certificates": [None] * len(INDICES), "metrics": {"accuracy": 0.0}}
    assert "no radii" in rejected(edit(folder, lambda h: h.update(radii=[nothing])))


def test_the_command_says_all_of_it(honest: Path, tmp_path: Path) -> None:
    models = [part for model in MODELS for part in ("--model", str(honest / model))]
    data = str(honest / DATA)
    ask = ["check", str(honest / "statement.json"), *models, "--data", data, "--indices", "1,2,4", "--eps", "0.01"]
    done = CliRunner().invoke(app, [*ask, "--json", str(tmp_path / "v.json")])
    assert done.exit_code == 0, done.output
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert verdict["verdict"] == "accepted"
    (radius,) = verdict["statement"]["radii"]
    assert radius["eps"] == 0.01
    assert verdict["statement"]["inputs"] == {
        "indices": INDICES,
        "data": data,
        "total": 8,
        "labels": "data",
    }
    done = CliRunner().invoke(app, [*ask, "--indices", "0:3"])
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    for wrong in (["--index", "1"], ["--label", "1"]):
        assert CliRunner().invoke(app, [*ask, *wrong]).exit_code == 2
    one = ["check", str(honest / "radius-0-00001.npz"), *models]
    assert CliRunner().invoke(app, one).exit_code == 0
    assert CliRunner().invoke(app, [*one, "--indices", "1"]).exit_code == 2


def test_demands_are_met_by_equality(honest: Path) -> None:
    path = honest / "statement.json"
    assert check(path, DATA, INDICES, eps=0.03, norm="inf", clip=(0, 1)).accepted
    assert "norm 2 is demanded" in rejected(path, norm=2)
    assert "clip (0, 2) is demanded" in rejected(path, clip=(0, 2))
    assert "eps 0.02 is demanded, the statement is about 0.01, 0.03" in rejected(path, eps=0.02)
    assert "samples 1 is demanded, this one is about 1 to 2, 4" in rejected(path, indices=[1])
    assert "NOT compared with data" in str(check(path, None))
    found = check_dataset(path, [honest / name for name in MODELS[::-1]])
    assert "is not the model" in found.reason


SWAPS = {
    "swapped certificates": lambda h: h["radii"][0]["certificates"].reverse(),
    "the certificate of another radius": lambda h: h["radii"][1].update(certificates=h["radii"][0]["certificates"]),
    "another radius": lambda h: h["radii"][1].update(eps=0.04),
    "another norm": lambda h: h["region"].update(norm="2"),
    "another clip range": lambda h: h["region"].update(clip=[0, 2]),
    "no clip range": lambda h: h["region"].update(clip=None),
    "another label": lambda h: h["samples"][0].update(label=(h["samples"][0]["label"] + 1) % CLASSES),
    "another index": lambda h: h["samples"][0].update(index=7),
    "another input": lambda h: h["samples"][0].update(sha256="0" * 64),
    "another sum": lambda h: h["radii"][0]["certificates"][0].update(sha256="0" * 64),
    "a missing certificate": lambda h: h["radii"][0]["certificates"].pop(),
    "a missing sample": lambda h: h["samples"].pop(),
    "a sample twice": lambda h: h["samples"].append(h["samples"][0]),
    "a radius twice": lambda h: h["radii"].append(h["radii"][0]),
    "no samples": lambda h: h.update(samples=[]),
    "no radii": lambda h: h.update(radii=[]),
    "no claim": lambda h: h["radii"][0].update(metrics={}),
    "an unknown metric": lambda h: h["radii"][0]["metrics"].update(recall=1.0),
    "a claim in words": lambda h: h["radii"][0]["metrics"].update(ece="small"),
    "no number": lambda h: h["radii"][0]["metrics"].update(ece=float("nan")),
    "yes": lambda h: h["radii"][0]["metrics"].update(ece=True),
    "certificates dropped, claims kept": lambda h: h["radii"][0].update(certificates=[None] * 3),
    "bins that fall": lambda h: h.update(bins=[0.0, 0.5, 0.2, 1.0]),
    "an index that is no number": lambda h: h["samples"][0].update(index=True),
    "a label out of range": lambda h: h["samples"][0].update(label=CLASSES),
    "other models": lambda h: h["models"].reverse(),
    "a model less": lambda h: h["models"].pop(),
}


@pytest.mark.parametrize("what", SWAPS)
@pytest.mark.parametrize("data", [DATA, None])
def test_what_does_not_belong_together_is_refused(folder: Path, what: str, data: str | None) -> None:
    rejected(edit(folder, SWAPS[what]), data)


@pytest.mark.parametrize("metric", ["accuracy", "nll", "nll_worst", "brier", "brier_worst", "confidence_low", "ece"])
def test_no_metric_is_better_than_the_ranges_give(folder: Path, metric: str) -> None:
    def better(header: Header) -> None:
        claims = header["radii"][1]["metrics"]
        claims[metric] = float(np.nextafter(claims[metric], 2.0 if metric in LOWEST else -1.0))

    assert f"{metric} at {'least' if metric in LOWEST else 'most'}" in rejected(edit(folder, better))


def test_the_error_of_other_bins_is_refused(folder: Path) -> None:
    """Of one bin the gaps of samples cancel; a claim for one bin is none for more."""

    def fewer(header: Header) -> None:
        header["bins"] = [0.0, 1.0]

    path = edit(folder, fewer)
    assert check(path).accepted  # more bins have the larger error
    found = rejected(edit(folder, lambda h: (h["radii"][1]["metrics"].update(ece=0.0), h.update(bins=[0.0, 0.9, 1.0]))))
    assert "ece at most 0.0 is claimed" in found


def test_weaker_claims_are_accepted(folder: Path) -> None:
    def weaker(header: Header) -> None:
        header["radii"][0]["certificates"][1] = None
        header["radii"][0]["metrics"] = {"accuracy": 0.5, "nll": None, "ece": 1}

    found = check(edit(folder, weaker))
    assert found.accepted, found.reason
    assert "1 samples WITHOUT certificate" in str(found)


@pytest.mark.parametrize(
    "name", ["../radius-0-00001.npz", "/etc/passwd", "sub/x.npz", "", ".", "..", ".hidden", "a\\b.npz", 7, None, ["x"]]
)
def test_only_files_beside_the_statement_are_read(folder: Path, name: Any) -> None:
    shutil.copy(folder / "radius-0-00001.npz", folder.parent)
    change = edit(folder, lambda h: h["radii"][0]["certificates"][0].update(file=name))
    assert "is no name of a file beside the statement" in rejected(change)


@pytest.mark.parametrize("name", ["nothing.npz", "folder", "x\0y", "n" * 300])
def test_files_that_are_not_there_are_one_line(folder: Path, name: str) -> None:
    (folder / "folder").mkdir()
    path = edit(folder, lambda h: h["radii"][0]["certificates"][0].update(file=name))
    with pytest.raises(CertificateError, match=r"eps 0\.01, sample 1"):
        check(path)


def forge(folder: Path, change: Callable[[Header], object]) -> Path:
    """A changed certificate whose sum the statement names as well."""
    name = folder / "radius-0-00001.npz"
    certificate = read_certificate(name)
    header = copy.deepcopy(certificate.header)
    change(header)
    write_certificate(name, type(certificate)(header, certificate.arrays))
    digest = sha256(name.read_bytes())
    return edit(folder, lambda h: h["radii"][0]["certificates"][0].update(sha256=digest))


RANGES = {
    "a probability raised": lambda p: p["least"].__setitem__(p["ahead"].index(-1), 0.999),
    "a probability lowered": lambda p: p["most"].__setitem__(p["ahead"].index(-1), 0.01),
    "nobody on top": lambda p: p.update(ahead=[(k + 1) % CLASSES for k in range(CLASSES)]),
    "a loser ahead": lambda p: p["ahead"].__setitem__(p["ahead"].index(-1), (p["ahead"].index(-1) + 1) % CLASSES),
    "ahead of itself": lambda p: p["ahead"].__setitem__(p["ahead"].index(-1), p["ahead"].index(-1)),
    "ahead of nobody": lambda p: p["ahead"].__setitem__(0, CLASSES),
    "ahead of too few": lambda p: p["ahead"].pop(),
    "a class less": lambda p: p["least"].pop(),
    "more than one": lambda p: p["most"].__setitem__(0, 1.5),
    "no probability": lambda p: p["most"].__setitem__(0, float("nan")),
    "a smaller brier": lambda p: p.update(brier=p["brier"] / 2),
    "no brier": lambda p: p.update(brier=float("nan")),
    "brier in words": lambda p: p.update(brier="none"),
    "a score": lambda p: p.update(kind="score", score="nll", bound=9.0),
}


@pytest.mark.parametrize("what", RANGES)
def test_forged_ranges_are_refused(folder: Path, what: str) -> None:
    path = forge(folder, lambda header: RANGES[what](header["property"]))
    assert rejected(path).startswith("eps 0.01, sample 1: ")


def test_a_certificate_of_another_kind_is_refused(folder: Path) -> None:
    data = load_dataset(folder / DATA)
    ball = Perturbation(0.01, clip=(0, 1))
    found = class_certificate(folder / MODELS[0], data.take([1])[0], int(data.y[1]), ball, index=1)
    write_certificate(folder / "radius-0-00001.npz", found)
    digest = sha256((folder / "radius-0-00001.npz").read_bytes())
    path = edit(folder, lambda h: h["radii"][0]["certificates"][0].update(sha256=digest))
    assert "2 were named" in rejected(path)
    assert check_certificate(folder / "radius-0-00001.npz", [folder / MODELS[0]], folder / DATA).accepted


@pytest.mark.parametrize("outputs", [(1,), (2, 3)])
def test_networks_without_common_classes_are_refused(tmp_path: Path, outputs: tuple[int, ...]) -> None:
    """Of a single logit the sign decides: that its softmax is 1 makes nobody certain."""
    models = []
    for k in outputs:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        models.append(save(tmp_path / f"{k}.onnx", nodes, {"w": np.ones((2, k), np.float32)}, [1, 2]))
    named = [{"file": model.name, "sha256": sha256(model.read_bytes())} for model in models]
    header = {"format": "softhull data set statement", "version": 1, "models": named, "bins": [0.0, 1.0]}
    header |= {"region": {"norm": "inf", "clip": None}, "samples": [{"index": 0, "label": 0, "sha256": ""}]}
    header["radii"] = [{"eps": 0.1, "certificates": [None], "metrics": {"accuracy": 1.0}}]
    (tmp_path / "statement.json").write_text(json.dumps(header))
    assert "two or more classes" in check_dataset(tmp_path / "statement.json", models).reason


def test_other_data_is_noticed(folder: Path, tmp_path: Path) -> None:
    with np.load(folder / DATA) as data:
        x, y = data["x"].copy(), data["y"].copy()
    np.savez(tmp_path / "labels.npz", x=x, y=(y + 1) % CLASSES)
    x[1] = x[0]
    np.savez(tmp_path / "inputs.npz", x=x, y=y)
    np.savez(tmp_path / "few.npz", x=x[:2], y=y[:2])
    path = folder / "statement.json"
    assert "is not the one" in rejected(path, tmp_path / "inputs.npz")
    assert "has label" in rejected(path, tmp_path / "labels.npz")
    dropped = edit(folder, lambda h: h["radii"][0].update(certificates=[None] * 3, metrics={"accuracy": 0.0}))
    assert "has label" in rejected(dropped, tmp_path / "labels.npz")
    with pytest.raises(CertificateError, match="there is no input"):
        check(dropped, tmp_path / "few.npz")


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"format": 1}', '{"format": "softhull data set statement", "version": 9}', "{" * 100_000,
     '{"a": 1, "a": 2}', '{"format": "softhull data set statement", "version": 1, "models": 3}'],
)  # fmt: skip
def test_files_that_are_no_statements_are_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "statement.json"
    path.write_text(text)
    done = CliRunner().invoke(app, ["check", str(path), "--model", str(bundled("digits-mlp-0.onnx"))])
    assert done.exit_code == 2, done.output
    assert done.output.count("\n") == 1


@pytest.mark.parametrize("key", ["models", "region", "bins", "samples", "radii"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [[]], [{}], [None]])
def test_parts_of_the_wrong_kind_are_one_line(folder: Path, key: str, value: Any) -> None:
    path = edit(folder, lambda h: h.update({key: value}))
    models = [part for model in MODELS for part in ("--model", str(folder / model))]
    done = CliRunner().invoke(app, ["check", str(path), *models])
    assert done.exit_code in (1, 2), done.output
    assert done.output.count("\n") == 1


def leaves(part: Any) -> list[tuple[Any, Any]]:
    """Every place of plain data that holds a number, a string or nothing: (container, key)."""
    pairs = part.items() if isinstance(part, dict) else enumerate(part)
    return [
        found for key, value in pairs for found in (leaves(value) if isinstance(value, dict | list) else [(part, key)])
    ]


@pytest.mark.parametrize("seed", range(10))
def test_random_changes_prove_nothing_new(folder: Path, seed: int) -> None:
    """A changed statement is refused, unreadable in one line, or claims no more than the honest one."""
    rng = np.random.default_rng(seed)
    honest = json.loads((folder / "statement.json").read_text())

    def change(header: Header) -> None:
        places = leaves(header)
        (one, key), (other, name) = (places[i] for i in rng.choice(len(places), 2))
        value = one[key]
        if isinstance(value, float | int) and rng.random() < 0.5:
            one[key] = value * (1 + rng.normal() * rng.choice([1e-9, 1e-2, 1.0]))
        else:
            one[key], other[name] = other[name], one[key]

    path = edit(folder, change)
    try:
        found = check(path)
    except CertificateError:
        return
    if not found.accepted:
        assert "\n" not in found.reason
        return
    assert isinstance(found.statement, DatasetStatement)
    for radius, before in zip(found.statement.radii, honest["radii"]):
        assert radius.eps == before["eps"]
        for name, claim in radius.metrics.items():
            if name != "ece" or list(found.statement.edges) == honest["bins"]:
                assert claim <= before["metrics"][name] if name in LOWEST else claim >= before["metrics"][name]
