"""Certificates are accepted, what they claim is true, and what is false gets none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from flint import ctx
from onnx import helper

from softhull.certificates import write
from softhull.certificates.prover import Proof
from softhull.certificates.second_order import SecondOrder
from softhull.certificates.write import NoProof, class_certificate, ranges_certificate, score_certificate
from softhull.checker.balls import PRECISION
from softhull.checker.certificate import write_certificate
from softhull.checker.check import check_certificate
from softhull.checker.network import Networks
from softhull.cli.app import app
from softhull.data import bundled
from softhull.errors import ModelError
from softhull.formats.onnx import load_onnx
from softhull.regions import Perturbation
from softhull.verify.dataset import certify_dataset
from softhull.verify.robustness import verify_robustness
from softhull.verify.uncertainty import verify_uncertainty

from ..checker.evaluate import random_attention, save, values
from ..formats.onnx_models import Builder, build

DIGITS = bundled("digits.npz")


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize(
    "perturbation",
    [Perturbation(0.05), Perturbation(0.1, norm=2), Perturbation(0.2, norm=1), Perturbation(0.05, clip=(-0.5, 0.5))],
)
def test_random_attention_networks(seed: int, perturbation: Perturbation, tmp_path: Path) -> None:
    """Every margin that an accepted certificate claims holds at random inputs of its region."""
    rng = np.random.default_rng(seed)
    model = random_attention(tmp_path / "m.onnx", rng)
    x = rng.uniform(-0.5, 0.5, 6)
    networks = Networks([model])
    view = networks.logits[0]

    def logits(at: np.ndarray) -> np.ndarray:
        return view.index.of(values(networks, at)[view.node]).ravel()

    label = int(logits(x).argmax())
    while True:
        try:
            found = class_certificate(model, x, label, perturbation)
        except NoProof:
            assert perturbation.eps > 1e-4
            perturbation = replace(perturbation, eps=perturbation.eps / 2)
        else:
            break
    write_certificate(tmp_path / "c.npz", found)
    verdict = check_certificate(tmp_path / "c.npz", [model])
    assert verdict.accepted, verdict.reason
    for _ in range(100):
        step = rng.standard_normal(6)
        step *= perturbation.eps / np.linalg.norm(step, perturbation.norm)
        at = x + step if perturbation.clip is None else np.clip(x + step, *perturbation.clip)
        assert logits(at).argmax() == label


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("eps", "norm"), [(0.001, "inf"), (0.05, "inf"), (0.3, "inf"), (0.3, "2"), (0.3, "1"), (0.0, "inf")]
)
def test_second_order_margins(eps: float, norm: str, layers: int, tmp_path: Path) -> None:
    """What a second-order proof claims holds at corners and random inputs, and is not far below the least of them."""
    rng = np.random.default_rng(layers)
    networks = Networks([random_attention(tmp_path / "m.onnx", rng, layers=layers)])
    x = rng.uniform(-0.5, 0.5, 6)
    view = networks.logits[0]
    with ctx.workprec(PRECISION):
        proof = Proof([tmp_path / "m.onnx"], x, eps, norm, None)
        proof.prepare([view])
        second_order = SecondOrder.claimed(proof, [view])
        claimed = max(second_order.lead(view, 0, 1, rows) for rows in ("planes", "fitted", "mixed"))
    steps = rng.choice([-1.0, 1.0], (300, 6))
    steps[:100] = rng.standard_normal((100, 6))
    steps *= eps / np.linalg.norm(steps, float(norm), axis=1, keepdims=True)
    found = [view.index.of(values(networks, x + step)[view.node]).ravel() for step in steps]
    margins = np.array([logits[0] - logits[1] for logits in found])
    assert claimed <= margins.min() + 1e-9
    assert claimed >= margins.min() - 1e-6 - 8 * eps


# Those whose conclusions differ; the others are among the scores of feedforward networks below.
@pytest.mark.parametrize("score", ["nll", "brier", "entropy"])
def test_scores_of_attention(score: str, tmp_path: Path) -> None:
    """The score of an ensemble of two attention networks, at inputs of the region and in the certificate."""
    rng = np.random.default_rng(1)
    models = [random_attention(tmp_path / f"m{i}.onnx", rng) for i in range(2)]
    x = rng.uniform(-0.5, 0.5, 6)
    nets = [load_onnx(m) for m in models]
    record = verify_uncertainty(nets, x[None], np.array([0]), Perturbation(0.05), score, proofs=True)[0]
    found = score_certificate(models, nets, x, 0, Perturbation(0.05), score, record=record)
    assert found.header["property"]["bound"] == pytest.approx(record.bound, abs=1e-6)
    write_certificate(tmp_path / "c.npz", found)
    verdict = check_certificate(tmp_path / "c.npz", models)
    assert verdict.accepted, verdict.reason
    assert [step["claim"] for step in found.header["steps"]].count("form") == 2
    networks = Networks(models)
    worst = -np.inf
    for _ in range(200):
        entries = values(networks, x + 0.05 * rng.choice([-1.0, 1.0], 6))
        p = np.mean([view.index.of(entries[view.node]).ravel() for view in networks.probabilities], 0)
        badness = {"nll": -np.log(p[0]), "brier": ((p - [1, 0, 0]) ** 2).sum(), "margin": p[1:].max() - p[0]}
        badness |= {"confidence": p.max(), "entropy": -(p * np.log(p)).sum()}
        worst = max(worst, float(badness[score]))
    bound = found.header["property"]["bound"] * (-1 if score == "margin" else 1)
    assert worst <= bound <= worst + 0.2


def random_mlp(path: Path, rng: np.random.Generator) -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    weights = {"a": rng.standard_normal((6, 7)).astype(np.float32), "b": rng.standard_normal((7, 3)).astype(np.float32)}
    return save(path, nodes, weights, [1, 6])


@pytest.mark.parametrize("kind", [random_attention, random_mlp])
@pytest.mark.parametrize(
    "perturbation", [Perturbation(0.05), Perturbation(0.1, norm=2), Perturbation(0.2, norm=1, clip=(-0.5, 0.5))]
)
def test_ranges(kind: Any, perturbation: Perturbation, tmp_path: Path) -> None:
    """Ranges of the mean of two networks: accepted, near what was certified, and true at inputs of the region."""
    rng = np.random.default_rng(int(perturbation.eps * 100))
    models = [kind(tmp_path / f"m{i}.onnx", rng) for i in range(2)]
    loaded, x, label = [load_onnx(m) for m in models], rng.uniform(-0.5, 0.5, 6), 1
    wanted = certify_dataset(loaded, torch.from_numpy(x[None]), torch.tensor([label]), perturbation).ranges
    found = ranges_certificate(models, loaded, x, label, perturbation, wanted)
    write_certificate(tmp_path / "c.npz", found)
    verdict = check_certificate(tmp_path / "c.npz", models)
    assert verdict.accepted, verdict.reason
    stated = found.header["property"]
    least, most, ahead = (np.array(stated[name]) for name in ("least", "most", "ahead"))
    assert np.abs(least - wanted.least[0]).max() < 0.1
    assert np.abs(most - wanted.most[0]).max() < 0.1
    networks = Networks(models)
    for _ in range(200):
        step = rng.standard_normal(6) * (rng.random(6) < rng.choice([0.2, 1.0]))
        size = np.linalg.norm(step, perturbation.norm) or 1.0
        at = x + perturbation.eps * (np.sign(step) if np.isinf(perturbation.norm) else step / size)
        entries = values(networks, at if perturbation.clip is None else np.clip(at, *perturbation.clip))
        p = np.mean([view.index.of(entries[view.node]).ravel() for view in networks.probabilities], 0)
        assert (p >= least - 1e-12).all()
        assert (p <= most + 1e-12).all()
        assert ((p - np.eye(3)[label]) ** 2).sum() <= stated["brier"] + 1e-12
        assert ahead[p.argmax()] == -1


@pytest.mark.parametrize("score", ["nll", "brier", "error", "confidence", "margin", "entropy"])
def test_scores(score: str, tmp_path: Path) -> None:
    models = [bundled(f"digits-mlp-{i}.onnx") for i in range(2)]
    with np.load(DIGITS) as data:
        x, label = data["x"][2] / 255, int(data["y"][2])
    nets = [load_onnx(m) for m in models]
    record = verify_uncertainty(nets, x[None], np.array([label]), Perturbation(0.02), score, proofs=True)[0]
    found = score_certificate(models, nets, x, label, Perturbation(0.02), score, record=record)
    assert found.header["property"]["bound"] == pytest.approx(record.bound, abs=1e-6)
    write_certificate(tmp_path / "c.npz", found)
    verdict = check_certificate(tmp_path / "c.npz", models)
    assert verdict.accepted, verdict.reason
    assert f"the {score} for class {label}" in verdict.reason


@pytest.mark.parametrize("activation", ["Gelu", "HardSwish", "Sigmoid", "Relu"])
def test_scores_of_networks_with_curves(activation: str, tmp_path: Path) -> None:
    """A curve is no kink, and a HardSwish is two; a rectifier behind them keeps the slope that the run chose."""
    rng = np.random.default_rng(4)
    constants = {name: rng.normal(size=size).astype(np.float32) for name, size in (("u", (3, 5)), ("v", (5, 4)))}
    constants["w"] = rng.normal(size=(4, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "u"], ["a"]),
        helper.make_node(activation, ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    model = save(tmp_path / "m.onnx", nodes, constants, [1, 3], opset=20)
    network, x, near = load_onnx(model), np.array([0.3, -0.2, 0.5]), Perturbation(0.05)
    record = verify_uncertainty(network, x[None], np.array([0]), near, proofs=True)[0]
    found = score_certificate([model], [network], x, 0, near, record=record)
    assert found.header["property"]["bound"] == pytest.approx(record.bound, abs=1e-2)
    write_certificate(tmp_path / "c.npz", found)
    assert check_certificate(tmp_path / "c.npz", [model]).accepted


def test_single_logit_and_leaky_activation(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("LeakyRelu", ["h"], ["r"], alpha=0.25),
        helper.make_node("Gemm", ["r", "v", "b"], ["y"]),
    ]
    w = np.array([[1, -1], [0.5, 2]], np.float32)
    constants = {"w": w, "v": np.array([[1], [-1]], np.float32), "b": np.array([0.25], np.float32)}
    model = save(tmp_path / "m.onnx", nodes, constants, [1, 2])
    for x, label in ((np.array([1.0, 0.0]), 1), (np.array([-1.0, 0.5]), 0)):
        write_certificate(tmp_path / "c.npz", class_certificate(model, x, label, Perturbation(0.1)))
        assert check_certificate(tmp_path / "c.npz", [model]).reason.startswith(f"class {label} is kept")
    with pytest.raises(NoProof, match="prove a margin of"):
        class_certificate(model, np.array([1.0, 0.0]), 0, Perturbation(0.1))


def test_the_writer_takes_the_way_of_the_run(tmp_path: Path) -> None:
    """One rival was excluded by second order: its margin is claimed once, by a walk that splits products."""
    model, region = bundled("digits-attention.onnx"), Perturbation(0.05, clip=(0, 1))
    with np.load(DIGITS) as data:
        x, label = data["x"][1] / 255, int(data["y"][1])
    (record,) = verify_robustness(load_onnx(model), x[None], [label], region, method="second-order").records
    assert record.proved_by == {9: "second order"}
    found = class_certificate(model, x, label, region, run=record)
    steps = [step for step in found.header["steps"] if step["claim"] == "differences"]
    claimed = [pair for step in steps for pair in found.arrays[step["entries"]].tolist() if pair == [label, 9]]
    assert len(claimed) == 1
    assert any("split" in rule for rule in steps[-1]["rules"].values())
    write_certificate(tmp_path / "c.npz", found)
    assert check_certificate(tmp_path / "c.npz", [model]).accepted


def test_false_claims_get_no_certificate(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    model = random_attention(tmp_path / "m.onnx", rng)
    x = rng.uniform(-0.5, 0.5, 6)
    label = int(load_onnx(model).replay(x[None])[0].argmax())
    for false in {0, 1, 2} - {label}:
        with pytest.raises(NoProof):
            class_certificate(model, x, false, Perturbation(0.01))


def test_operators_that_are_not_covered(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("Acosh", ["x"], ["y"])], {}, [1, 2])
    with pytest.raises(ModelError, match=r"Acosh\): not covered"):
        class_certificate(model, np.zeros(2), 0, Perturbation(0.1))


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("extra", [(), ("--property", "runner-up"), ("--property", "targets", "--target", "1")])
def test_verify_writes_certificates(extra: tuple[str, ...], tmp_path: Path) -> None:
    model = bundled("digits-attention.onnx")
    where = ("--data", DIGITS, "--eps", 0.02, "--clip", 0, 1, "--indices", "0:2")
    found = run("verify", model, *where, *extra, "--certificates", tmp_path / "c", "--json", "-")
    assert found.exit_code == 0, found.output
    named = [r.get("certificate") for r in json.loads(found.stdout)["instances"] if r["verdict"] == "certified"]
    assert named
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == sorted(named)
    for name in named:
        assert run("check", tmp_path / "c" / name, "--model", model, "--data", DIGITS).exit_code == 0


def test_uncertainty_writes_certificates(tmp_path: Path) -> None:
    models = [bundled(f"digits-mlp-{i}.onnx") for i in range(2)]
    where = ("--data", DIGITS, "--eps", 0.02, "--clip", 0, 1, "--indices", "3")
    found = run("uncertainty", *models, *where, "--certificates", tmp_path / "c")
    assert found.exit_code == 0, found.output
    assert "1 certificates in" in found.output
    named = [part for model in models for part in ("--model", model)]
    assert run("check", tmp_path / "c" / "certificate-00003.npz", *named, "--data", DIGITS).exit_code == 0


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = run(
        "verify",
        bundled("digits-attention.onnx"),
        "--data",
        DIGITS,
        "--eps",
        0.02,
        "--certificates",
        tmp_path / "file" / "c",
    )
    assert found.exit_code == 2


def test_softmax_rows_of_one(tmp_path: Path) -> None:
    """A row of one is 1 whatever its logit: planes of slope 0, and second order with them."""
    nodes = [
        helper.make_node("Reshape", ["x", "tall"], ["t"]),
        helper.make_node("Softmax", ["t"], ["p"], axis=-1),
        helper.make_node("Mul", ["p", "t"], ["m"]),
        helper.make_node("Reshape", ["m", "flat"], ["q"]),
        helper.make_node("Gemm", ["q", "w"], ["y"]),
    ]
    constants = {"tall": np.array([2, 1]), "flat": np.array([1, 2]), "w": np.array([[1, -1], [0, 0.5]], np.float32)}
    model = save(tmp_path / "m.onnx", nodes, constants, [1, 2])
    write_certificate(tmp_path / "c.npz", class_certificate(model, np.array([1.0, 0.5]), 0, Perturbation(0.5)))
    assert check_certificate(tmp_path / "c.npz", [model]).accepted
    with pytest.raises(NoProof):  # y0 - y1 = 2 x0 - x1 / 2
        class_certificate(model, np.array([1.0, 0.5]), 0, Perturbation(0.8))


def _rows_of_one(b: Builder) -> str:
    """Probabilities of rows of one entry, which are 1, times values."""
    rng = np.random.default_rng(3)
    p = b.op("Softmax", b.op("MatMul", "x", b.const(rng.normal(size=(4, 3)))), axis=0)
    mixed = b.op("Mul", p, b.op("MatMul", "x", b.const(rng.normal(size=(4, 3)))))
    return str(b.op("MatMul", mixed, b.const(rng.normal(size=(3, 3)))))


def test_softmax_rows_of_one_entry(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(build((1, 4), _rows_of_one))
    network = load_onnx(model)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    y = network.replay(x).reshape(4, 3).argmax(1)
    np.savez(tmp_path / "d.npz", x=x, y=y)
    for command in ("verify", "uncertainty"):
        folder = tmp_path / command
        asked = [command, str(model), "--data", str(tmp_path / "d.npz"), "--eps", "0.001"]
        done = CliRunner().invoke(app, [*asked, "--certificates", str(folder)])
        assert done.exit_code == 0, done.output
        assert "4 certificates" in done.stdout
        for file in folder.iterdir():
            assert check_certificate(file, [model], tmp_path / "d.npz").accepted


def test_a_writer_that_fails_loses_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write.class_certificate

    def failing(model: Any, x: Any, label: int, perturbation: Any, rivals: Any, index: int, **more: Any) -> Any:
        if index == 1:
            raise IndexError("the third wheel")
        return made(model, x, label, perturbation, rivals, index, **more)

    monkeypatch.setattr(write, "class_certificate", failing)
    out = tmp_path / "out.json"
    asked = ["verify", str(bundled("digits-mlp-0.onnx")), "--data", str(DIGITS), "--eps", "0.001", "--indices", "0:3"]
    done = CliRunner().invoke(app, [*asked, "--certificates", str(tmp_path / "c"), "--json", str(out)])
    assert done.exit_code == 0, done.output
    records = json.loads(out.read_text())["instances"]
    assert [record["verdict"] for record in records] == ["certified"] * 3
    assert [record["certificate"] is None for record in records] == [False, True, False]
    assert "IndexError: the third wheel" in records[1]["no_certificate"]
    assert "no certificate for 1: the writer failed" in done.stdout
